"""Action mode: what a workflow step runs. The step's environment comes in, lines for GITHUB_OUTPUT go out.

Nothing here runs code of a pull request. `event` and `sweep` belong in trusted workflows of the base branch; `order`
is for the job on the GPU host, before any code under test is there.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from verl_e2e.app.accept_job import Order
from verl_e2e.app.action_run import Here, act_on, busy_pulls
from verl_e2e.app.merge_groups import remembered_group
from verl_e2e.config import settings_values as read
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.pulls.attestation import HOSTED, Attestation
from verl_e2e.core.pulls.job_order import read_target
from verl_e2e.core.pulls.pull import PullRef
from verl_e2e.core.pulls.references import Reference
from verl_e2e.core.pulls.webhook_events import Event
from verl_e2e.core.pulls.webhooks import BadDeliveryError, parse_event
from verl_e2e.core.text.escape import one_line
from verl_e2e.wiring.accept_job import Place, check_order, digest_of_folder, take_order
from verl_e2e.wiring.action import GITHUB_ACTIONS_APP, ActionSettings, action_rooms

Say = Callable[[str], None]
# A pull request from a fork gets a token that may write only under this name; the event is the same.
_TRUSTED = {"pull_request_target": "pull_request"}
_DEFAULTS = {
    "VERL_E2E_WORKFLOW": "verl-e2e.yml",
    "VERL_E2E_ATTESTATION": "required",
    # Longer than the card's least interval.
    "VERL_E2E_PATIENCE_S": "20",
    "VERL_E2E_VERL": "https://github.com/verl-project/verl",
    "VERL_E2E_SITE": "default",
    # Where GitHub puts the home folder of a job in a container.
    "VERL_E2E_HOME": "/github/home",
    "VERL_E2E_APP_ID": str(GITHUB_ACTIONS_APP),
    "GITHUB_API_URL": "https://api.github.com",
    "GITHUB_SERVER_URL": "https://github.com",
}


class ActionError(UserError):
    """The step is set up wrongly; the text says how to mend it."""


class _Clock:
    def now(self) -> datetime:
        return datetime.now(UTC)


def act(command: str, environ: Mapping[str, str], say: Say) -> int:
    """Run one command of a step; gives the exit code. Raises errors that say so for a user's mistake."""
    match command:
        case "order":
            return _order(environ, say)
        case "digest":
            return _digest(environ, say)
        case "check-digest":
            return _check_digest(environ, say)
        case "event":
            return _event(environ, say)
        case "sweep":
            return _sweep(environ, say)
        case _:
            raise ActionError(f"{command}: no such command; give event, sweep, order, digest or check-digest")


def _event(environ: Mapping[str, str], say: Say) -> int:
    payload = _payload(environ)
    event = _parsed(environ, payload)
    with _here(environ, payload) as here:
        asked = _asked(environ, here)
        if event is None and not asked:
            say("nothing to do: this event is none that verl-e2e acts on")
            return 0
        for reference in act_on(event, asked, _text(environ, "GITHUB_RUN_ID"), here):
            say(f"looked at {_name(reference)}")
    return 0


def _sweep(environ: Mapping[str, str], say: Say) -> int:
    """One look at each open pull request with a run under way, for events that were lost."""
    with _here(environ, _payload(environ)) as here:
        for reference in busy_pulls(_needed(environ, "GITHUB_REPOSITORY"), here):
            act_on(None, (reference,), "", here)
            say(f"looked at {_name(reference)}")
    return 0


def _name(reference: Reference) -> str:
    return str(reference) if isinstance(reference, PullRef) else f"the merge group {reference.head_sha[:12]}"


def _payload(environ: Mapping[str, str]) -> dict[str, Any]:
    file = Path(_needed(environ, "GITHUB_EVENT_PATH"))
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        raise ActionError(f"{file}: no event that can be read; run this as a step of a workflow") from None
    return found if isinstance(found, dict) else {}


def _parsed(environ: Mapping[str, str], payload: Mapping[str, Any]) -> Event | None:
    name = _needed(environ, "GITHUB_EVENT_NAME")
    try:
        return parse_event(_TRUSTED.get(name, name), json.dumps(payload).encode())
    except BadDeliveryError as error:
        raise ActionError(f"GITHUB_EVENT_PATH: {error}; run this as a step of a workflow") from None


def _asked(environ: Mapping[str, str], here: Here) -> tuple[Reference, ...]:
    """What the workflow names itself, as the report of an ended run does."""
    if not _text(environ, "VERL_E2E_TARGET"):
        return ()
    repository, target = _needed(environ, "GITHUB_REPOSITORY"), read_target(environ["VERL_E2E_TARGET"])
    if target.number is not None:
        return (PullRef(repository, target.number),)
    group = remembered_group(repository, target.head_sha, here.rooms)
    return (group,) if group is not None else ()


@contextmanager
def _here(environ: Mapping[str, str], payload: Mapping[str, Any]) -> Iterator[Here]:
    with action_rooms(_settings(environ, payload), _Clock()) as (rooms, memory):
        yield Here(rooms, memory, time.sleep, _read(environ, "VERL_E2E_PATIENCE_S", read.number(0, 600)))


def _settings(environ: Mapping[str, str], payload: Mapping[str, Any]) -> ActionSettings:
    repository = payload.get("repository")
    branch = repository.get("default_branch") if isinstance(repository, dict) else ""
    tool = _read(environ, "VERL_E2E_TOOL", read.pinned_tool)
    if tool == ("", ""):
        raise ActionError("VERL_E2E_TOOL: not set; pin the action by its full commit, OWNER/verl-e2e@SHA")
    return ActionSettings(
        api_url=_read(environ, "GITHUB_API_URL", read.api_url),
        web_url=_read(environ, "GITHUB_SERVER_URL", read.url),
        token=_needed(environ, "VERL_E2E_TOKEN"),
        app_id=_read(environ, "VERL_E2E_APP_ID", read.number(1, 10**15)),
        branch=_text(environ, "VERL_E2E_WORKFLOW_REF") or (branch if isinstance(branch, str) and branch else "main"),
        workflow=_read(environ, "VERL_E2E_WORKFLOW", read.workflow),
        tool=tool,
        image=_text(environ, "VERL_E2E_IMAGE"),
        runners=_read(environ, "VERL_E2E_RUNNERS", read.runners),
        fork_runners=_read(environ, "VERL_E2E_FORK_RUNNERS", read.runners),
        attestation=Attestation(_read(environ, "VERL_E2E_ATTESTATION", read.one_of(*map(str, Attestation)))),
        verl=_text(environ, "VERL_E2E_VERL"),
        site=_text(environ, "VERL_E2E_SITE"),
        site_values=_pairs(_text(environ, "VERL_E2E_SITE_VALUES")),
        home=_text(environ, "VERL_E2E_HOME"),
        work=Path(_needed(environ, "RUNNER_TEMP"), "verl-e2e"),
        before=_replaced(payload),
        surroundings=environ,
    )


def _replaced(payload: Mapping[str, Any]) -> dict[str, str]:
    """The head that a push replaced, by the new one; only such an event tells."""
    before, after = payload.get("before"), payload.get("after")
    told = payload.get("action") == "synchronize" and isinstance(before, str) and isinstance(after, str)
    return {str(after): str(before)} if told else {}


def _pairs(text: str) -> dict[str, str]:
    wrong = next((word for word in text.split() if "=" not in word), None)
    if wrong is not None:
        raise ActionError(f"VERL_E2E_SITE_VALUES: {wrong[:40]!r} is no NAME=VALUE; write kit=/data/kit and the like")
    return dict(word.partition("=")[::2] for word in text.split())


def _read(environ: Mapping[str, str], name: str, reader: Callable[[str], Any]) -> Any:
    try:
        return reader(_text(environ, name))
    except read.BadValueError as error:
        raise ActionError(f"{name}: {error.what}; {error.mend}") from None


def _text(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip() or _DEFAULTS.get(name, "")


def _needed(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise ActionError(f"{name}: not set; run this as a step of a workflow, by way of action.yml")
    return value


def _order(environ: Mapping[str, str], say: Say) -> int:
    order = Order(
        repository=_needed(environ, "GITHUB_REPOSITORY"),
        job_id=_needed(environ, "VERL_E2E_JOB_ID"),
        packed=_needed(environ, "VERL_E2E_JOB"),
        target=_needed(environ, "VERL_E2E_TARGET"),
    )
    place = Place(
        api_url=_read(environ, "GITHUB_API_URL", read.api_url),
        token=_text(environ, "VERL_E2E_TOKEN"),
        checkouts=Path(_needed(environ, "GITHUB_WORKSPACE")),
        work=Path(_needed(environ, "RUNNER_TEMP"), "verl-e2e-order"),
    )
    # A runner that keeps its folders between jobs may hold another job's.
    shutil.rmtree(place.work, ignore_errors=True)
    taken = take_order(order, place)
    say(f"Blocked: {taken.why}" if taken.why else f"{taken.job.id}: the head is as it was, the job may run")
    outputs = {
        "go": "false" if taken.why else "true",
        "why": taken.why,
        "folder": str(place.folder),
        "job-file": str(place.job_file),
        "bridge-sha": taken.job.bridge.commit,
        "verl-sha": taken.job.verl.commit,
        "merge-base": taken.merge_base,
    }
    _write_outputs(environ, outputs)
    return 0


def _digest(environ: Mapping[str, str], say: Say) -> int:
    """The digest of a run folder whose writers have all ended, for the job that uploads it."""
    digest = digest_of_folder(Path(_needed(environ, "VERL_E2E_FOLDER")))
    say(f"the digest of the run folder is {digest}")
    _write_outputs(environ, {"digest": digest})
    return 0


def _check_digest(environ: Mapping[str, str], say: Say) -> int:
    """Whether a run folder is as it was handed over, of the job that was ordered, and this machine GitHub's own."""
    if _text(environ, "RUNNER_ENVIRONMENT") != HOSTED:
        raise ActionError("RUNNER_ENVIRONMENT: this is for a runner of GitHub's own, which never ran code under test")
    folder, told = Path(_needed(environ, "VERL_E2E_FOLDER")), _needed(environ, "VERL_E2E_DIGEST")
    found = digest_of_folder(folder)
    if found != told:
        what = f"the run folder was changed after the job ended: its digest is {found}, not {told}"
        raise ActionError(f"{what}; run the job again")
    check_order(_needed(environ, "VERL_E2E_JOB_ID"), _needed(environ, "VERL_E2E_JOB"), folder)
    say(f"the run folder is as the job left it, and of the job that was ordered: {found}")
    return 0


def _write_outputs(environ: Mapping[str, str], outputs: Mapping[str, str]) -> None:
    """One line each, so that no value can name another output."""
    lines = "".join(f"{name}={one_line(value, 1000)}\n" for name, value in outputs.items())
    file = environ.get("GITHUB_OUTPUT", "")
    if not file:
        sys.stdout.write(lines)
        return
    with Path(file).open("a", encoding="utf-8") as out:
        out.write(lines)
