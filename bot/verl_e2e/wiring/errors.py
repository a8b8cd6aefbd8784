"""The user's mistake, as every part of the wiring raises it."""


class UsageError(Exception):
    """The user's mistake, in one sentence with the mend."""

    user_mistake = True
