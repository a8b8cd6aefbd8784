"""What a process of a run is for, by what it called itself: Ray and vLLM set the titles of their processes."""

import re
from collections.abc import Sequence

from verl_e2e.core.model.executed import ProcessRole

# verl's classes of workers and servers: Ray names a process by the class of its actor.
_ROLES = (
    (
        ProcessRole.TRAINER,
        re.compile(r"ray::(WorkerDict|FusedWorker\w*|ActorRolloutRefWorker|DetachActorWorker|TrainingWorker)$"),
    ),
    (ProcessRole.CONTROLLER, re.compile(r"ray::(\w*TaskRunner\w*|main_task)$")),
    (ProcessRole.ROLLOUT, re.compile(r"ray::(\w*HttpServer|CheckpointEngineWorker)$|(?i:vllm|sglang)::")),
    (ProcessRole.DRIVER, re.compile(r"\S+ -m verl\.trainer\.\w+$")),
)
_IDLE = "ray::IDLE"


def role_of(titles: Sequence[str]) -> tuple[ProcessRole, str]:
    """The role of a process with the title that tells it: the last one that is known, else the last that says anything.

    Ray calls a worker idle before its first task and after its last.
    """
    for title in reversed(titles):
        for role, pattern in _ROLES:
            if pattern.match(title):
                return role, title
    said = [title for title in titles if title and title != _IDLE]
    return ProcessRole.OTHER, (said or list(titles) or [""])[-1]
