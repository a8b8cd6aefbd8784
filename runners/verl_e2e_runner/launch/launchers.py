"""The launchers by consumer, and the one of a job."""

from collections.abc import Mapping

from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.consumer.skyrl import SKYRL
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import Job
from verl_e2e_runner.launch.launcher import Launcher
from verl_e2e_runner.launch.skyrl import SKYRL_LAUNCHER
from verl_e2e_runner.launch.verl import VERL_LAUNCHER

LAUNCHERS: Mapping[str, Launcher] = {VERL.name: VERL_LAUNCHER, SKYRL.name: SKYRL_LAUNCHER}


def launcher_of(job: Job) -> Launcher:
    """What starts a job; UserError for a consumer that nothing starts."""
    consumer = consumer_of(job)
    if consumer.name not in LAUNCHERS:
        raise UserError(f"job {job.id}: consumer: nothing starts {consumer.title} yet; plan the job for another one")
    return LAUNCHERS[consumer.name]
