"""Red cards as the author of a pull request meets them: recorded GPU runs, and a few made ones, with what was changed.

    python -m tests.fakes.red_cards FOLDER

writes each card as GitHub's Markdown, and prints how many words it has.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tests.core import builders
from tests.core.judged import RUNS
from tests.core.judged import judged as recorded
from tests.core.pulls.test_rehearsal_standing import FAILED, rehearsed_state
from tests.fakes.shown_pull import ended_state
from verl_e2e.adapters.files.folders import run_folders
from verl_e2e.core.judge.related_runs import related_run_of
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.execution import ChangeExecution, Entered, FunctionRun
from verl_e2e.core.model.facts import Frame, LogFacts
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.outcome import Attribution, Result, Stage
from verl_e2e.core.model.record import Check, EndReason, Finding
from verl_e2e.core.model.related import RelatedRun, Role
from verl_e2e.core.pulls.decide import decide_actions
from verl_e2e.core.pulls.ledger import RehearsalFailure
from verl_e2e.core.report.pull_card import render_pull_card
from verl_e2e.core.text.escape import BREAK

_BASE = "4f0c2b7a9d1e3f5a6b7c8d9e0f1a2b3c4d5e6f70"
_WORD = re.compile(r"\S*\w\S*")
_LINK = re.compile(r"\]\([^)]*\)")


@dataclass(frozen=True)
class RedCard:
    """One card: what was judged, and the functions that the pull request changes."""

    verdict: Verdict
    job: Job
    changed: tuple[FunctionRun, ...]
    minutes: float = 3.3

    @property
    def markdown(self) -> str:
        """The comment."""
        state = ended_state(self.job, replace(self.verdict, execution=ChangeExecution(self.changed)), self.minutes)
        return render_pull_card(state, decide_actions(state))


def edited(path: str, symbol: str, *lines: int, entered: Entered = Entered.IN_VERL) -> FunctionRun:
    """A changed function of Bridge, whose changed lines ran if it was entered."""
    ran = entered is Entered.IN_VERL
    path = f"src/megatron/bridge/{path}"
    return FunctionRun(path, symbol, lines[0], entered, ran=lines if ran else (), missed=() if ran else lines)


def related(role: Role, result: Result, job: Job, like: Verdict | None = None) -> RelatedRun:
    """A run on the merge base or a retry; one that did not pass ended as `like` did."""
    return RelatedRun(
        role=role,
        job_id=job.id,
        job_digest=job.digest(),
        bridge_commit=job.bridge.commit if role is Role.RETRY else _BASE,
        folder=f"related/{role}",
        result=result,
        stage=like.stage if like else None,
        cause=like.cause if like else "",
        fingerprint=like.fingerprint if like else (),
    )


def from_folder(name: str, *changed: FunctionRun, base: Result | None = None, retry: Result | None = None) -> RedCard:
    """A recorded run whose merge base and retry ended so, the same way where they did not pass; None: not run."""
    folder, job = RUNS / name, Job.model_validate_json((RUNS / name / "job.json").read_bytes())
    record, facts = run_folders().record(folder), run_folders().facts(folder)
    # As a plan names such a job.
    job = job.model_copy(update={"id": job.id.removesuffix("-plant")})
    alone, extra = recorded(name), (_unsharded(),) if name == "level2-dp2-unaveraged" else ()
    if extra:
        alone = judge(record.model_copy(update={"related": extra}), facts)
    asked = ((Role.MERGE_BASE, base), (Role.RETRY, retry))
    runs = tuple(
        related(role, result, job, None if result is Result.PASS else alone) for role, result in asked if result
    )
    return RedCard(judge(record.model_copy(update={"related": (*extra, *runs)}), facts), job, changed)


def _unsharded() -> RelatedRun:
    folder = RUNS / "level2-unsharded"
    record, facts = run_folders().record(folder), run_folders().facts(folder)
    assert record.job is not None
    return related_run_of(Role.UNSHARDED, record.job, recorded(folder.name), record, facts, folder="related/unsharded")


def made(facts: LogFacts, *changed: FunctionRun, base: Result | None = None, **given: object) -> RedCard:
    """A run that no folder has, as values."""
    job = builders.make_job()
    runs = (related(Role.MERGE_BASE, base, job),) if base else ()
    return RedCard(builders.judged(facts, related=runs, **given), job, changed)


ADAPTER = edited("models/conversion/peft_bridge.py", "MegatronPeftBridge.stream_adapter_weights", 412, 413)
GEMMA = edited("models/gemma/gemma2_provider.py", "gemma2_layer_spec", 120)
LORA = edited("peft/lora.py", "LoRA.transform", 171, 172)
GONE = Finding(
    check=Check.IMPORT_DRIVER,
    ok=False,
    stage=Stage.IMPORT,
    attribution=Attribution.TREES,
    fingerprint="megatron/bridge/training/utils/pg_utils.py imports megatron.core.process_groups_config",
    summary=(
        "import megatron.bridge fails in the driver: ImportError: cannot import name 'ProcessGroupCollection' from "
        "'megatron.core.process_groups_config' (at megatron/bridge/training/utils/pg_utils.py:21)"
    ),
    fix="Import only names that the pinned Megatron-LM has.",
    place="$WORK/bridge/src/megatron/bridge/training/utils/pg_utils.py:21",
)
FULL = builders.error(
    "torch.OutOfMemoryError",
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB.",
    stage=Stage.TRAIN_STEP,
    calls=("megatron/core/optimizer/distrib_optimizer.py:step", "torch/optim/adamw.py:step"),
    frame=Frame("$WORK/bridge/3rdparty/Megatron-LM/megatron/core/optimizer/distrib_optimizer.py", 2201, "step"),
)
STALLED = builders.ended(EndReason.STALLED, None, "no line for 900 s")


@cache
def red_cards() -> Mapping[str, RedCard]:
    """Every kind of end, by name."""
    fail, good = Result.FAIL, Result.PASS
    environment = builders.make_environment(findings=(GONE,), imports=())
    not_started = builders.ended(EndReason.NOT_STARTED, exit_code=None)
    return {
        "exception": from_folder("level0-lora-exception", LORA, base=good, retry=fail),
        "import": made(
            LogFacts(0),
            edited("training/utils/pg_utils.py", "", 21, entered=Entered.UNKNOWN),
            base=good,
            environment=environment,
            events=not_started,
            imports=(),
        ),
        "export": from_folder("level0-stale-adapter-export", ADAPTER, base=good, retry=fail),
        "replicas": from_folder(
            "level2-tp2-unaveraged", edited("models/common/heads.py", "LinearForLastLayer.forward", 88), base=good
        ),
        "resume": from_folder(
            "level1-moments-lost",
            edited("training/checkpointing.py", "_load_checkpoint_from_path", 1604, 1605),
            base=good,
            retry=good,
        ),
        "memory": made(builders.cut_facts(Stage.TRAIN_STEP, errors=(FULL,)), LORA, events=builders.ended(exit_code=1)),
        "stalled": made(builders.cut_facts(Stage.EXPORT_WEIGHT_SYNC), ADAPTER, events=STALLED),
        "host": from_folder(
            "level0-dataset-missing", edited("peft/utils.py", "get_adapter", 77, entered=Entered.NEVER)
        ),
        "base-too": from_folder("level4-mask-not-understood", GEMMA, base=fail),
        "parity": from_folder(
            "level2-dp2-unaveraged", edited("training/finalize.py", "finalize_model_grads", 54), base=good, retry=fail
        ),
        "hollow": from_folder(
            "level0-branch-not-taken",
            edited("peft/utils.py", "ParallelLinearAdapter._get_init_fn", 1191, entered=Entered.AROUND),
        ),
        "in-verl": from_folder("level3-adapter-export", ADAPTER),
    }


def rehearsal_card() -> str:
    """The card of a change whose rehearsal failed before any GPU was used."""
    failure = RehearsalFailure(
        what="qwen3-tp2: RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x64 and 32x64)",
        where="src/megatron/bridge/peft/lora_layers.py:164 forward",
        edited="src/megatron/bridge/peft/lora_layers.py:LoRALinear.forward",
    )
    assert FAILED.rehearsed is not None
    rehearsed = FAILED.rehearsed.model_copy(update={"failure": failure})
    state = rehearsed_state(FAILED.model_copy(update={"rehearsed": rehearsed}))
    return render_pull_card(state, decide_actions(state))


def shown_cards() -> dict[str, str]:
    """The Markdown of all of them, by name."""
    return {**{name: card.markdown for name, card in red_cards().items()}, "rehearsal": rehearsal_card()}


def words_of(card: str) -> tuple[int, int]:
    """The words that a reader sees before the first fold, and those of the whole card."""
    shown = re.sub(r"<[^>]*>", " ", _LINK.sub("]", card.replace("<details>", "\f"))).replace(BREAK, "")
    return len(_WORD.findall(shown.partition("\f")[0])), len(_WORD.findall(shown))


def main() -> None:
    """Write the cards into a folder."""
    for name, text in shown_cards().items():
        (Path(sys.argv[1]) / f"{name}.md").write_text(text)
        sys.stdout.write(f"{name:12}{'{:>6}{:>6}'.format(*words_of(text))}\n")


if __name__ == "__main__":
    main()
