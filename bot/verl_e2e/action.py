"""Action mode: the commands of a workflow step. Input is the step's environment, output are lines for GITHUB_OUTPUT.

Nothing here runs code of a pull request. Use `event` and `sweep` in trusted workflows of the base branch. Use `order`
in the job on the GPU host, before any code under test is there.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from verl_e2e.adapters.clock import SystemClock
from verl_e2e.app.action_run import Here, Order, act_on, busy_pulls
from verl_e2e.config.action_settings import (
    ActionSettings,
    CheckDigestSettings,
    DigestSettings,
    OrderSettings,
    load_step,
)
from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import Job, RehearsalJob, RunOrder
from verl_e2e.core.model.record import CARD_MARKDOWN_FILE
from verl_e2e.core.pulls.deliveries import BadDeliveryError, parse_event
from verl_e2e.core.pulls.forge import Branch, MergeGroup, PullRef, Reference
from verl_e2e.core.pulls.job_order import read_target
from verl_e2e.core.report.run_card import MAX_MARKDOWN
from verl_e2e.core.text.escape import one_line
from verl_e2e.wiring.action import OrderPlace, action_handlers, check_order, digest_of_folder, take_order

_Say = Callable[[str], None]
# For a pull request from a fork only this event gives a token that may write; its payload is the same.
_TRUSTED = {"pull_request_target": "pull_request"}


class ActionError(UserError):
    """The step is not set up correctly; the text says how to fix it."""


def _event(environ: Mapping[str, str], say: _Say) -> int:
    settings = load_step(ActionSettings, environ)
    name = _TRUSTED.get(settings.event_name, settings.event_name)
    try:
        event = parse_event(name, json.dumps(settings.payload).encode())
    except BadDeliveryError as error:
        raise ActionError(f"GITHUB_EVENT_PATH: {error}; run this as a step of a workflow") from None
    with _here(settings, environ) as here:
        named: tuple[Reference, ...] = ()
        if settings.target:
            # The workflow names the target itself, as the step after an ended run does.
            target = read_target(settings.target)
            if target.number is not None:
                named = (PullRef(settings.repository, target.number),)
            else:
                named = here.events.known.of_commit(settings.repository, target.head_sha)
        if event is None and not named:
            say("nothing to do: verl-e2e does not act on this event")
            return 0
        for reference in act_on(event, named, settings.run_id, here):
            say(f"updated {_name(reference)}")
    return 0


def _sweep(environ: Mapping[str, str], say: _Say) -> int:
    """Reconcile each open pull request with a running job once, because its events may have been lost.

    GitHub runs a schedule on the default branch alone, which is looked at too where its policy has it watched.
    """
    settings = load_step(ActionSettings, environ)
    scheduled = settings.event_name == "schedule" and settings.ref_name
    branches = (Branch(settings.repository, settings.ref_name),) if scheduled else ()
    with _here(settings, environ) as here:
        for reference in (*busy_pulls(settings.repository, here), *branches):
            act_on(None, (reference,), "", here)
            say(f"updated {_name(reference)}")
    return 0


def _name(reference: Reference) -> str:
    return f"the merge group {reference.head_sha[:12]}" if isinstance(reference, MergeGroup) else str(reference)


@contextmanager
def _here(settings: ActionSettings, environ: Mapping[str, str]) -> Iterator[Here]:
    with action_handlers(settings, environ, SystemClock()) as (own, memory):
        yield Here(own.events, own.reconciler, memory, time.sleep, settings.patience_s)


def _order(environ: Mapping[str, str], say: _Say) -> int:
    given = load_step(OrderSettings, environ)
    request = Order(repository=given.repository, job_id=given.job_id, packed=given.job, target=given.target)
    place = OrderPlace(given.api_url, given.token, given.workspace, given.temporary / "verl-e2e-order")
    # A runner may keep its folders between jobs; this one may hold another job.
    shutil.rmtree(place.work, ignore_errors=True)
    taken = take_order(request, place)
    say(f"Blocked: {taken.why}" if taken.why else f"{taken.job.id}: the head has not changed, the job may run")
    core = taken.job.megatron_lm if isinstance(taken.job, Job) else None
    outputs = {
        "go": "false" if taken.why else "true",
        "why": taken.why,
        "folder": str(place.folder),
        "job-file": str(place.job_file),
        "bridge-sha": taken.job.bridge.commit,
        "verl-sha": taken.job.verl.commit if isinstance(taken.job, Job) else "",
        "consumer-repository": _other_repository(taken.job),
        "merge-base": taken.merge_base,
        "base-key": taken.job.cells_digest() if isinstance(taken.job, RehearsalJob) else "",
        "megatron-lm": taken.megatron_lm,
        "megatron-lm-sha": core.commit if core is not None else "",
    }
    _write_outputs(environ, outputs)
    return 0


def _digest(environ: Mapping[str, str], say: _Say) -> int:
    """Print the digest of a run folder for the job that uploads it, and show its card in the summary of the job.

    All its writers must have ended.
    """
    folder = load_step(DigestSettings, environ).folder
    digest = digest_of_folder(folder)
    card, summary = folder / CARD_MARKDOWN_FILE, environ.get("GITHUB_STEP_SUMMARY", "")
    if summary and card.is_file():
        with Path(summary).open("a", encoding="utf-8") as out:
            out.write(card.read_text(encoding="utf-8", errors="replace")[:MAX_MARKDOWN])
    say(f"the digest of the run folder is {digest}")
    _write_outputs(environ, {"digest": digest})
    return 0


def _check_digest(environ: Mapping[str, str], say: _Say) -> int:
    """Check that a run folder is unchanged and belongs to the requested job. Runs only on a runner of GitHub."""
    given = load_step(CheckDigestSettings, environ)
    found = digest_of_folder(given.folder)
    if found != given.digest:
        what = f"the run folder was changed after the job ended: its digest is {found}, not {given.digest}"
        raise ActionError(f"{what}; run the job again")
    check_order(given.job_id, given.job, given.folder)
    say(f"the run folder is unchanged and belongs to the requested job: {found}")
    return 0


def _other_repository(job: RunOrder) -> str:
    """The repository of the trainer that a job is for, empty for verl's, which a site may keep elsewhere."""
    consumer = consumer_of(job) if isinstance(job, Job) else VERL
    return "" if consumer is VERL else consumer.repository


def _write_outputs(environ: Mapping[str, str], outputs: Mapping[str, str]) -> None:
    """Write each output as one line, so that a value cannot set another output."""
    lines = "".join(f"{name}={one_line(value, 1000)}\n" for name, value in outputs.items())
    file = environ.get("GITHUB_OUTPUT", "")
    if not file:
        sys.stdout.write(lines)
        return
    with Path(file).open("a", encoding="utf-8") as out:
        out.write(lines)


_COMMANDS: Mapping[str, Callable[[Mapping[str, str], _Say], int]] = {
    "order": _order,
    "digest": _digest,
    "check-digest": _check_digest,
    "event": _event,
    "sweep": _sweep,
}


def act(command: str, environ: Mapping[str, str], say: _Say) -> int:
    """Run one command of a step, of those that `verl-e2e action` takes; the exit code. UserError."""
    return _COMMANDS[command](environ, say)
