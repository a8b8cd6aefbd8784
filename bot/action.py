"""Action mode: what a workflow step runs. The step's environment comes in, lines for GITHUB_OUTPUT go out.

Nothing here runs code of a pull request. The commands are `order` (in the job on the GPU host, before any code under
test is there) and `event` and `sweep` (in trusted workflows of the base branch).
"""

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from bot.core.inert import one_line
from bot.handlers.taking import Order
from bot.wiring.orders import Place, take_order


class ActionError(Exception):
    """The step is set up wrongly; the text says how to mend it."""

    user_mistake = True


def act(command: str, environ: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Run one command of a step; gives the exit code. Raises errors that say so for a user's mistake."""
    if command == "order":
        return _order(environ, say)
    raise ActionError(f"{command}: no such command; give event, sweep or order")


def _order(environ: Mapping[str, str], say: Callable[[str], None]) -> int:
    order = Order(
        repository=_needed(environ, "GITHUB_REPOSITORY"),
        job_id=_needed(environ, "VERL_E2E_JOB_ID"),
        packed=_needed(environ, "VERL_E2E_JOB"),
        target=_needed(environ, "VERL_E2E_TARGET"),
    )
    place = Place(
        api_url=environ.get("GITHUB_API_URL", ""),
        token=environ.get("VERL_E2E_TOKEN", ""),
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
    }
    _write_outputs(environ, outputs)
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


def _needed(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise ActionError(f"{name}: not set; run this as a step of a workflow, by way of action.yml")
    return value
