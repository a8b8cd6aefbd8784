"""Where jobs run; every back end satisfies `bot.ports.Dispatcher`."""
