"""Errors that several packages raise, and that mean the same in each of them.

UserError          what a person can correct, as against a fault of ours and a service that does not answer
+- LimitError
ForgeError         GitHub, or another server of repositories, refused or did not answer
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


class ForgeError(Exception):
    """A forge, as GitHub, refused or did not answer in time; the text says what.

    Reading or reconciling again is always safe.

    `passing` says that it may work later, not before `wait_s` seconds. `absent` says that there is no such thing, or
    none that we may see, `permission` names the one that our App needs, such as `checks: write`. `answer` is what
    GitHub said without the address that was asked, else the whole text. `unreached` says why this machine got
    no connection, empty where it got one. `unknown_to_it` says that it does not accept our key or token.
    """

    def __init__(
        self,
        message: str,
        *,
        passing: bool = False,
        wait_s: float = 0.0,
        absent: bool = False,
        permission: str = "",
        answer: str = "",
        unreached: str = "",
        unknown_to_it: bool = False,
    ) -> None:
        super().__init__(message)
        self.passing, self.wait_s = passing, wait_s
        self.absent, self.permission = absent, permission
        self.unreached, self.unknown_to_it = unreached, unknown_to_it
        self.answer = answer or message
