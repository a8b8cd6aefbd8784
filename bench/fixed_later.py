"""Plan changes that were fixed later: is a job planned under whose settings the fault shows, and at what cost.

python bench/fixed_later.py --bridge DIR [--rows tests/fixtures/plan/fixed-later.json]

A row names the commit that brought the lines that a fix changed, and the condition under which the fault shows, read
from the fix before any plan was made. A job counts where it has all settings of the condition, its model is of one of
the families, or has the feature, and fields of a configuration are set as named.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bot"))

from verl_e2e.config.policy import packaged_policy  # noqa: E402  (this checkout)
from verl_e2e.core.model.settings import Axis  # noqa: E402
from verl_e2e.core.model.space import POINTS, JobPoint  # noqa: E402
from verl_e2e.core.plan.job_models import is_on_family  # noqa: E402
from verl_e2e.core.plan.outline import JobOutline  # noqa: E402
from verl_e2e.core.plan.policy import Policy  # noqa: E402
from verl_e2e.git.repository import GitRepository  # noqa: E402
from verl_e2e.wiring.planning import PlanRequest, planner_of  # noqa: E402


def shows(job: JobOutline, row: dict[str, Any], policy: Policy) -> bool:
    """Whether the fault of a row shows in a job, as far as its settings and its model tell."""
    if job.obstacles:
        return False
    point = POINTS.get(job.variant.job_id) or JobPoint.of_level(job.variant.level).with_axes(job.settings)
    for name, value in row["axes"].items():
        axis = Axis(name)
        if (point.size(axis) < value) if axis.is_size else (point[axis] != value):
            return False
    families = [family for family in policy.families if is_on_family(job, family)]
    if row["families"] and not {family.name for family in families} & {*row["families"]}:
        return False
    made = job.checkpoint.synthetic if job.checkpoint else None
    fields = {**made.fields, **made.wanted} if made else {}
    if any(fields.get(name, "") != value for name, value in row["fields"].items()):
        return False
    return (
        not row["feature"]
        or row["feature"] in (job.model.features or ())
        or (row["feature"] == "moe" and job.has_experts)
    )


def main() -> None:
    """Plan the changes and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bridge", type=Path, required=True)
    parser.add_argument("--rows", type=Path, default=ROOT / "tests" / "fixtures" / "plan" / "fixed-later.json")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    policy, repository = packaged_policy(), GitRepository(given.bridge)
    planner = planner_of(repository, PlanRequest(given.bridge, cache=given.cache), policy)
    found = []
    for row in json.loads(given.rows.read_bytes()):
        commit = row["introduced"]
        plan = planner.plan(repository.resolve(f"{commit}^1"), commit, policy).plan
        jobs = [job.id for job in plan.jobs if shows(job, row, policy)]
        found.append((bool(jobs), plan.gpu_minutes))
        print(f"{'shown' if jobs else 'not  '} {plan.gpu_minutes:4} {row['subject'][:60]}: {row['condition']}: {jobs}")
        if given.out:
            given.out.mkdir(exist_ok=True)
            listed = [(job.id, job.gpu_minutes, job.blocked, [p.condition for p in job.purposes]) for job in plan.jobs]
            (given.out / f"{commit}.json").write_text(json.dumps([bool(jobs), plan.gpu_minutes, listed], indent=1))
    shown, minutes = sum(item[0] for item in found), sum(item[1] for item in found)
    print(f"{shown} of {len(found)} shown, {minutes / len(found):.1f} GPU minutes each")


if __name__ == "__main__":
    main()
