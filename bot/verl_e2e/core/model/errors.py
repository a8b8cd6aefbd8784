"""Errors that several packages raise, and that mean the same in each of them.

UserError          what a person can correct, as against a fault of ours and a service that does not answer
+- LimitError
"""


class UserError(Exception):
    """Something that the reader of the text can correct; the text says what is wrong and what to do about it."""


class LimitError(UserError):
    """Work on what a stranger wrote would take more than it may: `what` it takes exceeds `limit`."""

    def __init__(self, what: str, limit: str) -> None:
        super().__init__(what, limit)
        self.what = what
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.what} exceeds {self.limit}"
