"""What an error says to the person who reads it."""

from verl_e2e.core.model.errors import LimitError, UserError


def test_a_limit_says_what_exceeds_it() -> None:
    error = LimitError("unpacking the folder", "64 MiB")
    assert isinstance(error, UserError)
    assert (str(error), error.what, error.limit) == ("unpacking the folder exceeds 64 MiB", *error.args)
