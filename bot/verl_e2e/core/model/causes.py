"""What ended a run, as an identifier: `log:<rule>`, `preflight:<check>`, `end:<reason>`, `engine:<end>` and so on.

A sentence says it to people and may be worded otherwise tomorrow. Retries, statistics and quarantine go by these.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import StringConstraints

Cause = Annotated[str, StringConstraints(pattern=r"^[a-z]+:[a-z][a-z0-9_-]{0,60}$")]
# The folder is not as the recorder left it.
SEAL = "verdict:seal"
# Something that a Pass needs is not there, and nothing says why.
EVIDENCE = "verdict:evidence"
# The folder does not show that the checkout under test is what failed.
UNPROVEN = "verdict:unproven"
# Someone else on the host may have caused it.
NEIGHBOUR = "verdict:neighbour"


class EngineEnd(StrEnum):
    """How a run ended that has no verdict of its own, as the back end or the service itself knows it."""

    # The machine failed or was lost while it ran.
    NODE_FAILED = "node_failed"
    # The machine could not start it: nothing of the job ran.
    NODE_NOT_READY = "node_not_ready"
    # The engine took the machine away for other work.
    PREEMPTED = "preempted"
    # No machine took it in time.
    NO_MACHINE = "no_machine"
    # The machine's memory limit was passed.
    HOST_MEMORY = "host_memory"
    # The engine's time limit was passed.
    TIME_LIMIT = "time_limit"
    # The runner itself was killed from outside, as by a kernel that needs memory.
    RUNNER_KILLED = "runner_killed"
    # The runner ended without a word on how the run ended.
    RUNNER_ENDED = "runner_ended"
    # The engine no longer knows of it.
    FORGOTTEN = "forgotten"
    # The engine could not begin it: its own configuration is wrong.
    NOT_STARTED = "not_started"
    # The engine will never take the order.
    REFUSED = "refused"
    # It ended and left no run folder, or more than one.
    LEFT_NOTHING = "left_nothing"
    # What it left could not be brought here.
    NOT_FETCHED = "not_fetched"
    # It left the folder of another job.
    OTHER_FOLDER = "other_folder"
    # We could not judge what it left.
    NOT_JUDGED = "not_judged"


def of_log(rule: str) -> Cause:
    """The cause of an error that a rule of triage explains."""
    return f"log:{rule}"


def of_preflight(check: str) -> Cause:
    """The cause of a preflight check that failed."""
    return f"preflight:{check}"


def of_end(reason: str) -> Cause:
    """The cause of a run that ended early."""
    return f"end:{reason}"


def of_engine(end: EngineEnd) -> Cause:
    """The cause of a run that has no verdict."""
    return f"engine:{end}"


def of_criterion(criterion: str) -> Cause:
    """The cause of a criterion that is broken or has no evidence."""
    return f"criterion:{criterion}"
