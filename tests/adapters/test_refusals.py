"""A refusal of GitHub is reported in the words of the page where it is fixed, without an address of its API."""

import pytest

from verl_e2e.adapters.github.actions import Doing, refusal_text, refusals
from verl_e2e.adapters.github.requester import RefusedError, StatusError, as_forge_error
from verl_e2e.ports import BackendError, ForgeError

NOT_ACCESSIBLE = "Resource not accessible by integration"


def refused(what: str, status: int, message: str = "", **headers: str) -> ForgeError:
    found = {name.replace("_", "-"): value for name, value in headers.items()}
    return as_forge_error(StatusError(status, found, message), what)


DISPATCH = "POST /repos/o/r/actions/workflows/verl-e2e.yml/dispatches"


@pytest.mark.parametrize(
    ("error", "doing", "message", "doctor"),
    [
        (refused(DISPATCH, 404, "Not Found"), Doing.START, "`.github/workflows/verl-e2e.yml` is not on the branch", 0),
        (refused(DISPATCH, 422, "No ref found for: main"), Doing.START, "yml` is not on the branch main", 0),
        (refused(DISPATCH, 403, NOT_ACCESSIBLE), Doing.START, "does not have the permission `actions: write`", 0),
        (refused(DISPATCH, 422, "Unexpected inputs provided"), Doing.START, "422 Unexpected inputs provided", 1),
        (refused("GET /repos/o/r/actions/runs/1", 403, NOT_ACCESSIBLE), Doing.LOOK, "permission `actions: read`", 0),
        (refused("GET /repos/o/r/actions/runs/1", 451, "Gone"), Doing.LOOK, "451 Gone", 0),
        (ForgeError("The archive cannot be unpacked: Bad offset for central directory"), Doing.BRING, "Bad offset", 0),
        (ForgeError("The archive unpacks to more bytes than it says"), Doing.BRING, "more bytes than it says", 0),
    ],
)
def test_a_refusal_names_the_page_where_it_is_fixed(error: ForgeError, doing: Doing, message: str, doctor: int) -> None:
    text = refusal_text(error, doing, "verl-e2e.yml", "main")
    assert message in text
    assert "/repos/" not in text
    assert text.count("verl-e2e doctor") == doctor
    assert "/verl-e2e rerun blocked" in text
    with pytest.raises(BackendError) as raised, refusals(doing, "verl-e2e.yml", "main"):
        raise error
    assert raised.value.final


def test_what_may_pass_is_tried_again_in_its_own_words() -> None:
    with pytest.raises(BackendError, match="GitHub did not answer") as raised, refusals(Doing.START, "w", "main"):
        raise ForgeError("GitHub did not answer", passing=True)
    assert not raised.value.final


@pytest.mark.parametrize(
    ("what", "headers", "permission"),
    [
        ("POST /repos/o/r/check-runs", {}, "checks: write"),
        ("PATCH /repos/o/r/check-runs/7", {}, "checks: write"),
        ("GET /repos/o/r/commits/abc/check-runs", {}, "checks: read"),
        ("POST /repos/o/r/issues/7/comments", {}, "issues: write"),
        ("GET /repos/o/r/contents/.github/verl-e2e.yml", {}, "contents: read"),
        ("GET /repos/o/r/pulls/7", {}, "pull_requests: read"),
        ("GET /repos/o/r/attestations/sha256:0", {}, "attestations: read"),
        ("GET /repos/o/r/actions/runners", {}, "administration: read"),
        ("POST /repos/o/r/x", {"x_accepted_github_permissions": "checks=write"}, "checks: write"),
        ("POST /x", {"x_accepted_github_permissions": "issues=write; pull_requests=write"}, "issues: write"),
        ("POST /x", {"x_accepted_github_permissions": "nonsense"}, ""),
    ],
)
def test_a_lost_permission_is_named_with_the_page_where_it_is_given(
    what: str, headers: dict[str, str], permission: str
) -> None:
    error = refused(what, 403, NOT_ACCESSIBLE, **headers)
    assert isinstance(error, RefusedError)
    assert error.permission == permission
    assert ("Permissions & events" in str(error)) is bool(permission)
    assert permission in str(error)


@pytest.mark.parametrize(("status", "message"), [(403, "Repository access blocked"), (404, "Not Found"), (422, "no")])
def test_another_refusal_is_no_matter_of_permissions(status: int, message: str) -> None:
    error = refused("POST /repos/o/r/check-runs", status, message)
    assert (error.permission, error.absent) == ("", status == 404)
    assert error.answer == f"{status} {message}"
