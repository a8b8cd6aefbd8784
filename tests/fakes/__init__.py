"""Hand-made stand-ins with state, for the ports of `bot.ports`."""
