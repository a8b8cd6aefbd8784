"""What an error says to the person who reads it."""

from verl_e2e.core.model.errors import ForgeError, LimitError, UserError


def test_a_limit_says_what_exceeds_it() -> None:
    error = LimitError("unpacking the folder", "64 MiB")
    assert isinstance(error, UserError)
    assert (str(error), error.what, error.limit) == ("unpacking the folder exceeds 64 MiB", *error.args)


def test_what_a_forge_answered_is_its_text_without_an_address() -> None:
    assert ForgeError("GET /x: not found", absent=True).answer == "GET /x: not found"
    error = ForgeError("GET /x: wait", answer="wait", passing=True, wait_s=3.0)
    assert (error.answer, error.passing, error.wait_s, error.absent) == ("wait", True, 3.0, False)
