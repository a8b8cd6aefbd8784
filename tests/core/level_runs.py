"""Runs of levels 1 to 4 made from the recorded Level 0 log: what verl prints beyond it is put in where it prints it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tests.core.builders import DRIVER, TRAINER, config_with, import_lines, make_job, make_record
from tests.core.logs import recorded
from verl_e2e.core.consumer.consumer import PlannedPhase
from verl_e2e.core.consumer.consumers import consumer_of, variant_named
from verl_e2e.core.judge.case import Case
from verl_e2e.core.judge.criteria.basic import requested_config
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import CheckpointFile, CheckpointListing, Checkpoints, Event, Record
from verl_e2e.core.triage.triage import triage

LOGGED = "INFO:2026-11-20 14:24:50,000:"
SAVED = "checkpoints/verl-test/tiny-qwen2-megatron-gsm8k-minimal"
ROLES = ("actor", "critic")


def job_of(level: Level, variant: str, **given: Any) -> Job:
    """The job of a variant on the standard checkpoint."""
    chosen = variant_named(f"{int(level)}-{variant}")
    assert chosen is not None
    counts = {"NUM_GPUS": str(chosen.gpu_count), "TOTAL_TRAIN_STEPS": str(chosen.steps)}
    wrapper = {**chosen.wrapper, **counts, **given.pop("wrapper", {})}
    fields = {"gpu_count": chosen.gpu_count, "steps": chosen.steps, "overrides": chosen.overrides, "expected": {}}
    return make_job(level, variant, **{**fields, **given, "wrapper": wrapper})


def said(pid: int, text: str, actor: str = "WorkerDict") -> str:
    """A line as Ray prefixes it."""
    return f"14:24:50 \x1b[36m({actor} pid={pid})\x1b[0m {text}"


def driver(text: str, pid: int = DRIVER) -> str:
    """A line of the trainer's own process, through its logger."""
    return said(pid, f"{LOGGED}{text}", "TaskRunnerV1")


def saving(step: int, pid: int = TRAINER) -> list[str]:
    """What verl prints while it saves a step: it announces it, and prints the provider of each model."""
    lines = [driver(f"Saving checkpoint to {SAVED}/global_step_{step}")]
    for _ in ROLES:
        lines += [
            said(pid, "Streaming adapter weights ━━━━━━━━━━━━━━━━━━━━━ 100% 0:00:00 (16/16) Qwen2Bridge"),
            said(pid, "GPTModelProvider(tensor_model_parallel_size=1, pipeline_model_parallel_size=1)"),
        ]
    return lines


def resuming(step: int, pid: int = TRAINER) -> list[str]:
    """What verl prints while it goes on from the checkpoint of a step."""
    folder = f"$WORK/verl/{SAVED}/global_step_{step}"
    lines = [
        said(DRIVER, f"Found checkpoint: %s {folder}", "TaskRunnerV1"),
        driver(f"Resuming from {folder}, setting global step to {step}"),
    ]
    for role in ROLES:
        own = f"{folder}/{role}"
        lines += [
            said(pid, f"{LOGGED}[Rank 0] Loaded PEFT adapter checkpoint from {own}/model/dist_ckpt"),
            said(pid, f"{LOGGED}[Rank 0] Loaded optimizer checkpoint from {own}/optimizer/dist_ckpt"),
            said(pid, f"{LOGGED}[Rank 0] Loaded LR scheduler checkpoint from {own}/optimizer/dist_ckpt"),
            said(pid, f"{LOGGED}[Rank 0] Loaded RNG states from {own}/extra/dist_ckpt"),
        ]
    return lines


def trained(step: int, *, before: list[str] | None = None, after: list[str] | None = None) -> str:
    """The recorded run as one that trains just this step: `before` it starts, `after` it trained."""
    text = recorded("level0-pass").decode()
    text = text.replace("step:1 - ", f"step:{step} - ").replace(
        "training/global_step:1 ", f"training/global_step:{step} "
    )
    text = text.replace("| 1/1 [", f"| {step}/{step} [").replace("| 0/1 [", f"| {step - 1}/{step} [")
    if after:
        text = text.replace("timing_s/step:", "timing_s/save_checkpoint:6.6 - timing_s/step:")
    lines = text.splitlines()
    fit = next(index for index, line in enumerate(lines) if "ready to fit" in line)
    shown = next(index for index, line in enumerate(lines) if f"step:{step} - " in line)
    whole = [*lines[: fit + 1], *(before or []), *lines[fit + 1 : shown], *(after or []), *lines[shown:]]
    return "\n".join(whole) + "\n"


def files(step: int, **changes: Any) -> dict[str, CheckpointFile]:
    """The files of one step as verl writes them under LoRA, by path below the folder of the run."""
    sizes = {"data.pt": 4_000}
    for role in ROLES:
        sizes |= {
            f"{role}/ckpt_contents.json": 2_000,
            f"{role}/transformer_config.json": 9_000,
            f"{role}/model/dist_ckpt/.metadata": 5_000,
            f"{role}/model/dist_ckpt/__0_0.distcp": 220_000,
            f"{role}/model/dist_ckpt/common.pt": 900,
            f"{role}/model/huggingface/config.json": 700,
            f"{role}/model/huggingface/adapter/adapter_model.safetensors": 218_000,
            f"{role}/optimizer/dist_ckpt/__0_0.distcp": 1_280_000,
            f"{role}/extra/dist_ckpt/__0_0.distcp": 16_000,
        }
    paths = {f"global_step_{step}/{path}": size for path, size in sizes.items()}
    given = {"modified_ns": step * 10**9, "sha256": "", **changes}
    return {path: CheckpointFile(path=path, size=size, **given) for path, size in paths.items()}


def listing(after: str, *steps: int, tracker: str | None = None) -> CheckpointListing:
    """The list made after a phase, with the checkpoints of these steps."""
    found = tuple(file for step in steps for file in files(step).values())
    text = str(steps[-1]) if steps and tracker is None else tracker
    trackers = {"latest_checkpointed_iteration.txt": text} if text else {}
    return CheckpointListing(after=after, files=found, trackers=trackers)


def checkpoints(*listings: CheckpointListing) -> Checkpoints:
    """The document of a run that saved after step 1 and after step 2, or of these lists."""
    made = listings or (listing(""), listing("save", 1), listing("resume", 1, 2))
    return Checkpoints(folder=SAVED, listings=made)


def phase_events(log: Sequence[tuple[PlannedPhase, str]]) -> tuple[Event, ...]:
    """What the runner writes down of the phases, with the first line of each."""
    events, line = [Event(t_s=0.0, kind="started")], 1
    for planned, text in log:
        begin = {"name": "run", "state": "begin", "step": planned.name, "line": line}
        end = {"name": "run", "state": "end", "step": planned.name, "reason": "exited", "exit_code": 0}
        events += [Event(t_s=1.0, kind="phase", data=begin), Event(t_s=2.0, kind="phase", data=end)]
        line += text.count("\n")
    ended = {"reason": "exited", "exit_code": 0, "note": ""}
    return (*events, Event(t_s=3.0, kind="ended", data=ended), Event(t_s=3.1, kind="left_running"))


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder before it is judged."""

    record: Record
    facts: LogFacts

    def case(self) -> Case:
        """The case of the folder."""
        assert self.record.job is not None
        return Case(self.record.job, self.record, self.facts, triage(self.facts))

    def verdict(self) -> Verdict:
        """The verdict on the folder."""
        return judge(self.record, self.facts)


@cache
def _scanned(texts: tuple[str, ...]) -> LogFacts:
    return scan(text.encode() for text in texts)


def run_of(job: Job, *texts: str, pids: tuple[int, ...] = (TRAINER,), **given: Any) -> Run:
    """A run of the job whose phases printed these texts, and each the configuration that was asked of it."""
    log = list(zip(consumer_of(job).phases(job), texts, strict=False))
    facts = _scanned(texts)
    configs = tuple(
        config_with(dict(requested_config(job, phase)), config.line)
        for (phase, _), config in zip(log, facts.configs, strict=True)
    )
    record = make_record(
        **{"job": job, "events": phase_events(log), "imports": import_lines("run", DRIVER, *pids), **given}
    )
    return Run(record, replace(facts, configs=configs))


def resume_run(edit: Callable[[str], str] = str, **given: Any) -> Run:
    """A save/resume run that is as it should be, but for what `edit` does to the log of its second phase."""
    save = trained(1, after=saving(1))
    resume = trained(2, before=resuming(1), after=saving(2))
    return run_of(job_of(Level.SAVE_RESUME, "resume"), save, edit(resume), **{"checkpoints": checkpoints(), **given})


PARALLEL_PIDS = (7470, 7471, 7472, 7473)


def _repeat_lines(text: str, other: str, part: str) -> str:
    """The text with the line of the other one after every line that holds the part."""
    pairs = zip(text.splitlines(keepends=True), other.splitlines(keepends=True), strict=True)
    return "".join(line + (again if part in line else "") for line, again in pairs)


def parallel_log(
    tensor: int = 1,
    pipeline: int = 1,
    chunks: int = 1,
    data: int = 1,
    *,
    world: int = 1,
    models: int = 2,
    rollout: int = 1,
) -> str:
    """The recorded run as `world` workers print it: who built which part, and how the tokens were shared."""
    text = recorded("level0-pass").decode()
    if rollout > 1:
        for rank, pid in ((0, 7828), (rollout - 1, 7829)):
            named = text.replace("(Worker pid=7829)", f"(Worker_TP{rank} pid={pid})")
            text = named if pid == 7829 else _repeat_lines(text, named, "(Worker pid=7829)")
    kept = [line for line in text.splitlines() if "number of parameters on" not in line and "module: 1" not in line]
    built = next(index for index, line in enumerate(kept) if "DistributedDataParallel contains" in line)
    shown = [said(pid, f"module: {chunks}") for pid in PARALLEL_PIDS[:world] for _ in range(models)]
    grid = [(t, p) for p in range(pipeline) for t in range(tensor)]
    for pid, (t, p) in zip(PARALLEL_PIDS, grid, strict=False):
        line = f" > number of parameters on (tensor, gtp_remat, pipeline) model parallel rank ({t}, 0, {p}): 13747200"
        shown += [said(pid, line)] * models
    whole = "\n".join([*kept[:built], *shown, *kept[built:]]) + "\n"
    return whole.replace("perf/total_num_tokens:9716", f"perf/total_num_tokens:{9716 * data}")
