"""How long it takes until the jobs of a head have an answer, as far as they are known."""

from collections.abc import Iterable

from verl_e2e.core.plan.answer_time import TimedJob, minutes_to_answer
from verl_e2e.core.pulls.gate import Standing
from verl_e2e.core.pulls.job_status import UNDERWAY


def minutes_left(found: Iterable[Standing]) -> int:
    """Minutes until the last required job has ended if none has to wait for a machine; 0 when none is open.

    A job that runs counts with its whole time: so the number changes only when a job's status does.
    """
    jobs = ((standing.wanted, standing.wanted.job) for standing in found if standing.state in UNDERWAY)
    return minutes_to_answer(
        TimedJob(wanted.id, wanted.requires, wanted.gpu_minutes, job.gpu_count)
        for wanted, job in jobs
        if job is not None and wanted.required
    )
