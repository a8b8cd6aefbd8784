"""Write bench/results/planned-changes.md: the plans of ten merged changes, with the places, jobs and models.

python bench/planned_changes.py --bridge DIR --verl DIR [--cache DIR]

The two are checkouts or bare git directories that hold the commits that the table names.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bot"))

from verl_e2e.config.policy import packaged_policy  # noqa: E402  (this checkout)
from verl_e2e.core.judge.wording import purpose_rows  # noqa: E402
from verl_e2e.core.plan.outline import JobOutline  # noqa: E402
from verl_e2e.core.plan.plan import Plan  # noqa: E402
from verl_e2e.core.text.escape import code, markdown  # noqa: E402
from verl_e2e.git.repository import GitRepository  # noqa: E402
from verl_e2e.wiring.planning import PlanRequest, planner_of  # noqa: E402

PULL = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/"
SHOWN_ROWS = 6


class Change(NamedTuple):
    """One merged pull request: what it is about, its commit on the main branch, and what it changed, in a phrase."""

    subject: str
    number: int
    commit: str
    phrase: str


CHANGES = (
    Change("adapters", 5588, "a95a3daf6674", "a new flag writes adapters that experts share once for each expert"),
    Change("conversion", 5384, "e1464874749f", "adapters are merged into a base weight before it is quantized"),
    Change("provider", 5397, "8a84d716600a", "GPT-OSS takes the bias of attention from the model's configuration"),
    Change("experts", 5731, "0f418defd83b", "weights gathered from expert ranks lose their first dimension alone"),
    Change("pipeline", 5451, "6799f0997", "finalize allows packed sequences of several lengths in a pipeline"),
    Change("checkpoint", 5315, "5a0774b4e", "loading sharded checkpoints renames fused MLA and MTP weights"),
    Change("vision", 5614, "f54f47b14", "a slice of packed sequences is clamped under context parallelism"),
    Change("Megatron-FSDP", 5395, "ed56c0a0c550", "the second version of Megatron-FSDP can be used"),
    Change("optimizer", 5589, "96db95584", "a function makes two learning rates for the two matrices of an adapter"),
    Change("documents", 5724, "cc59a637a", "a card with measured performance joins the examples"),
)
HEAD = """# Plans of ten merged changes

Each change is planned against its first parent, with the packaged policy and verl {verl}. This page is written by

```sh
python bench/planned_changes.py --bridge DIR --verl DIR
```

A job is there for its level, and for the places of the change that are listed with it.
[Planning](../../docs/planning.md#jobs-by-measurement) says how jobs are found for places,
[Coverage levels](../../docs/levels.md#jobs) what the named jobs are,
[Synthetic models](../../docs/synthetic-models.md) what `synthetic/FAMILY` is.

| change | about | levels | jobs | not run | GPU minutes |
|---|---|---|---:|---:|---:|
"""


def levels_text(plan: Plan) -> str:
    """The required levels."""
    return ", ".join(str(int(level)) for level in plan.levels) or "none"


def overview_row(change: Change, plan: Plan) -> str:
    """The change in one row."""
    name = f"[#{change.number}](#{change.number}-{change.subject.lower()})"
    counts = f"{len(plan.jobs)} | {len(plan.blocked_jobs)} | {plan.gpu_minutes}"
    return f"| {name} | {change.subject} | {levels_text(plan)} | {counts} |"


def job_row(job: JobOutline) -> str:
    """A job with its size and its model."""
    model = code(job.checkpoint.model_id) if job.checkpoint else "none"
    if job.obstacles:
        return f"| {code(job.id)} | | | {model} | not run: {markdown(job.blocked, 300)} |"
    fitted = job.fitted().reason
    changed = len(job.changed.required)
    functions = "function" if changed == 1 else "functions"
    must = f"must execute {changed} changed {functions}" if changed else "for its level"
    note = f"{must}; {markdown(fitted)}" if fitted else must
    return f"| {code(job.id)} | {job.gpu_count} | {job.gpu_minutes} | {model} | {note} |"


def place_rows(plan: Plan) -> Iterator[str]:
    """What each job is there for besides its level, and what no job is planned for."""
    for job in plan.jobs:
        rows = list(purpose_rows(job.purposes))
        if rows:
            yield f"- {code(job.id)}:"
        yield from (f"  - {markdown(row, 400)}" for row in rows[:SHOWN_ROWS])
        if len(rows) > SHOWN_ROWS:
            yield f"  - and {len(rows) - SHOWN_ROWS} more"
    for item in plan.not_covered[:SHOWN_ROWS]:
        place = f"{item.purpose.place}: {item.purpose.condition}"
        yield f"- no job: {markdown(place, 300)}: {markdown(item.reason)}"


def section(change: Change, plan: Plan) -> Iterator[str]:
    """One change with its plan."""
    yield f"\n## #{change.number} {change.subject}\n"
    phrase = change.phrase[0].upper() + change.phrase[1:]
    yield f"{phrase}: [#{change.number}]({PULL}{change.number}), commit `{plan.head[:12]}`."
    if not plan.jobs:
        yield f"\nNo level is required: {markdown(plan.not_required[0].reason, 500)}."
        return
    yield "\n| level | required, for |\n|---|---|"
    for level in plan.levels:
        reasons = dict.fromkeys(reason.reason for reason in plan.reasons if reason.level is level)
        yield f"| {int(level)} | {markdown('; '.join(reasons), 500)} |"
    yield "\n| job | GPUs | GPU minutes | model | |\n|---|---:|---:|---|---|"
    yield from (job_row(job) for job in plan.jobs)
    rows = list(place_rows(plan))
    yield "\nPlaces:\n" if rows else "\nNo job is there for a place alone."
    yield from rows


def main() -> None:
    """Plan the changes and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bridge", type=Path, required=True)
    parser.add_argument("--verl", type=Path, required=True)
    parser.add_argument("--cache", type=Path)
    given = parser.parse_args()
    policy, repository = packaged_policy(), GitRepository(given.bridge)
    request = PlanRequest(given.bridge, given.verl, policy.verl.commit, None, given.cache)
    planner = planner_of(repository, request, policy)
    found = []
    for change in CHANGES:
        commit = repository.resolve(change.commit)
        found.append((change, planner.plan(repository.resolve(f"{commit}^1"), commit, policy).plan))
    lines = [HEAD.format(verl=policy.verl.commit[:12]).rstrip("\n")]
    lines += [overview_row(change, plan) for change, plan in found]
    lines += [line for change, plan in found for line in section(change, plan)]
    (ROOT / "bench" / "results" / "planned-changes.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
