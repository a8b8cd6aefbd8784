"""Generated logs: the tracebacks of several workers as Ray, torchrun and plain processes mix them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

H = "Traceback (most recent call last):"
CAUSE = "The above exception was the direct cause of the following exception:"
DURING = "During handling of the above exception, another exception occurred:"
NOISE = (
    "INFO:2026-11-20 14:22:27,507:memory after offload",
    "warnings.warn(",
    "/venv/lib/x.py:12: FutureWarning: `a` is deprecated",
    "  warnings.warn('x')",
    "FutureWarning: printed by a logger",
    "Error: 3 files are missing, going on",
    "Capturing CUDA graph shapes:  10%|#         | 1/10 [00:01<00:09]",
    "",
    "step 3: all good",
)
Raised = tuple[str, str]
ROOTS: tuple[Raised, ...] = (
    ("ValueError", "Unsupported class (TELinear)"),
    ("KeyError", "'model.norm.weight'"),
    ("AssertionError", ""),
    ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 446.00 MiB."),
)


def frames(*calls: str) -> list[str]:
    """Frames with their source lines, `path:function` each."""
    rows: list[str] = []
    for call in calls:
        path, function = call.split(":")
        rows += [
            f'  File "/venv/{path}", line {len(rows) + 7}, in {function}',
            "    return work(x)",
            "           ^^^^^^^",
        ]
    return rows


def exception(raised: Raised) -> str:
    kind, message = raised
    return f"{kind}: {message}" if message else kind


PEFT = ("verl/workers/engine_workers.py:init_model", "megatron/bridge/peft/lora.py:transform")
TRAINER = ("verl/trainer/main_ppo.py:main", "verl/trainer/ppo/ray_trainer.py:init_workers")


@dataclass(frozen=True)
class Worker:
    """One process: its prefix and the lines of its traceback."""

    prefix: str
    rows: list[str]

    def printed(self) -> list[str]:
        return [f"{self.prefix}{row}" for row in self.rows]


def ray_worker(number: int, raised: Raised, *, colour: bool = False, head: Sequence[str] = ()) -> Worker:
    name = f"(WorkerDict pid={7470 + number})"
    prefix = f"\x1b[36m{name}\x1b[0m " if colour else f"{name} "
    return Worker(prefix, [*head, H, *frames(*PEFT), exception(raised)])


def rank(number: int, raised: Raised) -> Worker:
    return Worker(f"[rank{number}]: ", [H, *frames(*PEFT), exception(raised)])


def driver(raised: Raised, *, wrapper: str = "") -> list[str]:
    """What ends the driver: the remote traceback in its two wrappers, or an actor's death."""
    kind = raised[0].rsplit(".", 1)[-1]
    rows = ["Error executing job with overrides: ['a=b']", H, *frames(TRAINER[0])]
    if wrapper == "creation":
        rows += [
            "ray.exceptions.ActorDiedError: The actor died because of an error raised in its creation task, "
            "ray::abcWorkerDict_0:0:WorkerDict.__init__() (pid=7470, ip=192.0.2.2, actor_id=1)"
        ]
    else:
        rows += [f"ray.exceptions.RayTaskError({kind}): ray::TaskRunner.run() (pid=5, ip=192.0.2.2, actor_id=2)"]
        rows += ["           ^^^^^^^^^^^^^^^^^^", *frames(TRAINER[1])]
        rows += [
            f"ray.exceptions.RayTaskError({kind}): ray::WorkerDict.actor_rollout_init_model() (pid=7470, ip=192.0.2.2)"
        ]
    return [*rows, *frames(*PEFT), exception(raised), "", "Set the environment variable HYDRA_FULL_ERROR=1"]


def interleave(chance: Random, workers: Sequence[Worker], noise: int = 0) -> list[str]:
    """The lines of all workers, each in its own order, with `noise` percent of other lines of the same process."""
    queues = [worker.printed() for worker in workers]
    mixed: list[str] = []
    while any(queues):
        at = chance.choice([index for index, queue in enumerate(queues) if queue])
        if chance.randrange(100) < noise:
            mixed.append(workers[at].prefix + chance.choice(NOISE))
        else:
            mixed.append(queues[at].pop(0))
    return mixed


def deduplicated(rows: Sequence[str]) -> list[str]:
    """What Ray makes of rows that differ only in their process: printed once, then with a count."""
    seen: dict[str, int] = {}
    kept: list[str] = []
    for row in rows:
        text = row.split(") ", 1)[-1]
        seen[text] = seen.get(text, 0) + 1
        if seen[text] == 1:
            kept.append(row)
    late = [row for row in kept if seen[row.split(") ", 1)[-1]] > 1 and row.strip()]
    return kept + [
        f"{row}\x1b[32m [repeated {seen[row.split(') ', 1)[-1]] - 1}x across cluster]\x1b[0m" for row in late
    ]


def group(*parts: Raised) -> list[str]:
    """An ExceptionGroup as Python prints it."""
    rows = ["  + Exception Group Traceback (most recent call last):"]
    rows += [f"  | {row}" for row in frames("verl/workers/rollout/base.py:gather")]
    rows += [f"  | ExceptionGroup: unhandled errors in a TaskGroup ({len(parts)} sub-exceptions)"]
    for number, part in enumerate(parts, 1):
        rows.append(
            f"  +{'-' if number > 1 else '+-'}+---------------- {number} ----------------".replace("+-+-", "+-+-", 1)
        )
        rows += [f"    | {row}" for row in (H, *frames(*PEFT), exception(part))]
    return [*rows, "    +------------------------------------"]


def log_of(rows: Sequence[str]) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


Shape = Callable[[Random, Raised], list[str]]


def _many(chance: Random, root: Raised) -> list[str]:
    return interleave(chance, [ray_worker(n, root, colour=bool(n % 2)) for n in range(chance.randint(2, 8))], noise=15)


def _ranks(chance: Random, root: Raised) -> list[str]:
    return interleave(chance, [rank(n, root) for n in range(chance.randint(2, 8))], noise=15)


def _deduplicated(chance: Random, root: Raised) -> list[str]:
    return deduplicated(interleave(chance, [ray_worker(n, root) for n in range(chance.randint(2, 6))]))


def _echoes(chance: Random, root: Raised) -> list[str]:
    """One worker fails, the others only notice; the driver reports the death of one of them."""
    echo = ("RuntimeError", "[gloo] Connection closed by peer [192.0.2.2]:1234")
    dist = ("torch.distributed.DistBackendError", "NCCL error: remote process exited or there was a network error")
    workers = [ray_worker(0, root), ray_worker(1, echo), ray_worker(2, dist)]
    died = ("ray.exceptions.ActorDiedError", "The actor died unexpectedly before finishing this task.")
    return [*interleave(chance, workers, noise=10), H, *frames(*TRAINER), exception(died)]


def _driver(chance: Random, root: Raised) -> list[str]:
    return [*_many(chance, root), *driver(root)]


def _driver_first(chance: Random, root: Raised) -> list[str]:
    return [*driver(root), *_deduplicated(chance, root)]


def _creation(chance: Random, root: Raised) -> list[str]:
    head = [
        "Exception raised in creation task: The actor died because of an error raised in its creation task, "
        "ray::WorkerDict.__init__() (pid=7470, ip=192.0.2.2)"
    ]
    return [*interleave(chance, [ray_worker(0, root, head=head)], noise=10), *driver(root, wrapper="creation")]


def _during(chance: Random, root: Raised) -> list[str]:
    rows = [H, *frames(*PEFT), exception(root), "", chance.choice((DURING, CAUSE)), "", H, *frames(TRAINER[0])]
    rows.append("RuntimeError: model initialization failed")
    return interleave(chance, [Worker("(WorkerDict pid=7470) ", rows), ray_worker(1, root)], noise=10)


def _group(chance: Random, root: Raised) -> list[str]:
    other = ("TimeoutError", "no answer")
    return interleave(
        chance, [Worker("(WorkerDict pid=7470) ", group(root, other)), Worker("(TaskRunner pid=5) ", ["going on"] * 9)]
    )


SHAPES: dict[str, Shape] = {
    "many-workers": _many,
    "torchrun-ranks": _ranks,
    "deduplicated": _deduplicated,
    "echoes": _echoes,
    "driver-last": _driver,
    "driver-first": _driver_first,
    "creation-task": _creation,
    "chained": _during,
    "exception-group": _group,
}
