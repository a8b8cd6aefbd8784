"""Compare plans with labels: how many required levels were planned, how many planned ones were wanted, the cost."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from verl_e2e.core.consumer.consumers import variants_of
from verl_e2e.core.model.document import LevelNumber
from verl_e2e.core.model.jobs import Sha
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.plan import Plan, Reason


@dataclass(frozen=True, slots=True)
class LabelledPull:
    """One labelled pull request. Levels in neither `required` nor `optional` are not wanted."""

    pr: int
    base: Sha
    head: Sha
    required: frozenset[LevelNumber]
    title: str = ""
    optional: frozenset[LevelNumber] = frozenset()


@dataclass(frozen=True, slots=True)
class PlannedPull:
    """A labelled pull request and its plan; `problem` is set, and the plan None, where none could be made."""

    pull: LabelledPull
    plan: Plan | None
    problem: str = ""

    @property
    def levels(self) -> frozenset[Level]:
        """The levels that were planned."""
        return frozenset(self.plan.levels if self.plan else ())

    @property
    def missed(self) -> frozenset[Level]:
        """Required levels that were not planned."""
        return self.pull.required - self.levels

    @property
    def wasted(self) -> frozenset[Level]:
        """Planned levels that are neither required nor optional."""
        return self.levels - self.pull.required - self.pull.optional


@dataclass(frozen=True, slots=True)
class Figures:
    """The four measures, each between 0 and 1, and the mean cost in GPU minutes."""

    count: int
    recall: float
    precision: float
    safe: float
    exact: float
    gpu_minutes_per_pr: float


def figures(outcomes: Sequence[PlannedPull]) -> Figures:
    """Measure the outcomes; a share of nothing counts as 1."""
    required = sum(len(outcome.pull.required) for outcome in outcomes)
    planned = sum(len(outcome.levels) for outcome in outcomes)
    missed = sum(len(outcome.missed) for outcome in outcomes)
    wasted = sum(len(outcome.wasted) for outcome in outcomes)
    safe = sum(not outcome.missed for outcome in outcomes)
    exact = sum(not outcome.missed and not outcome.wasted for outcome in outcomes)
    minutes = sum(outcome.plan.gpu_minutes for outcome in outcomes if outcome.plan)
    count = len(outcomes)
    return Figures(
        count,
        _share(required - missed, required),
        _share(planned - wasted, planned),
        _share(safe, count),
        _share(exact, count),
        round(minutes / count, 1) if count else 0.0,
    )


def everything_minutes() -> int:
    """The cost of every level's default variant."""
    return sum(variants_of(level)[0].gpu_minutes for level in Level)


def _costs(count: int = 1) -> dict[str, object]:
    """What everything would take, so often, and the GPU minutes that each variant is counted with."""
    table = {variant.job_id: variant.gpu_minutes for level in Level for variant in variants_of(level)}
    return {"gpu_minutes_everything": count * everything_minutes(), "cost_table": table}


def backtest_json(outcomes: Sequence[PlannedPull]) -> dict[str, object]:
    """The whole backtest as one document."""
    rows = []
    for outcome in outcomes:
        wasted: list[dict[str, object]] = []
        for level in sorted(outcome.wasted):
            reasons = [
                {"path": reason.path, "symbol": reason.symbol, "reason": reason.reason, "via": list(reason.via)}
                for reason in _reasons(outcome, level)
            ]
            wasted.append({"level": int(level), "reasons": reasons})
        row = {
            "pr": outcome.pull.pr,
            "title": outcome.pull.title,
            "levels": _numbers(outcome.levels),
            "required": _numbers(outcome.pull.required),
            "optional": _numbers(outcome.pull.optional),
            "missed": _numbers(outcome.missed),
            "wasted": wasted,
            "features": list(outcome.plan.features) if outcome.plan else [],
            "families": list(outcome.plan.families) if outcome.plan else [],
            "gpu_minutes": outcome.plan.gpu_minutes if outcome.plan else 0,
            "problem": outcome.problem,
        }
        rows.append(row)
    return {"schema": 2, **asdict(figures(outcomes)), **_costs(), "prs": rows}


def render_backtest(outcomes: Sequence[PlannedPull]) -> str:
    """The figures, then every miss and every waste with the reasons behind it."""
    measured = figures(outcomes)
    rows = [
        f"{measured.count} pull requests: recall {measured.recall:.3f}, precision {measured.precision:.3f}, "
        f"safe {measured.safe:.3f}, exact {measured.exact:.3f}",
        f"{measured.gpu_minutes_per_pr:g} GPU minutes each (everything always: {everything_minutes()})",
    ]
    for outcome in outcomes:
        if not (outcome.missed or outcome.wasted or outcome.problem):
            continue
        rows.append(f"#{outcome.pull.pr} {outcome.pull.title}: planned {_numbers(outcome.levels)}")
        if outcome.problem:
            rows.append(f"  could not be planned: {outcome.problem}")
        for level in sorted(outcome.missed):
            spared = outcome.plan.not_required if outcome.plan else ()
            why_not = next((item.reason for item in spared if item.level is level), "no plan")
            rows.append(f"  missed level {int(level)}: {why_not}")
        for level in sorted(outcome.wasted):
            for reason in _reasons(outcome, level)[:3]:
                place = ":".join(filter(None, (reason.path, reason.symbol)))
                led = reason.via[-1] if reason.via else "asked"
                rows.append(f"  wasted level {int(level)}: {place}: {reason.reason} ({led})")
    return "\n".join(rows) + "\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """How often each level would run over a stretch of history, and what that costs in GPU minutes."""

    # How many commits were planned, or could not be.
    commits: int
    # How many could not be planned.
    unplanned: int
    # How often each level would run.
    runs: dict[Level, int]
    # GPUs times minutes of all runs.
    gpu_minutes: int


def usage(plans: Iterable[Plan | None]) -> Usage:
    """Count the levels of plans; None stands for a commit that could not be planned."""
    every = tuple(plans)
    made = [plan for plan in every if plan is not None]
    runs = {level: sum(level in plan.levels for plan in made) for level in Level}
    return Usage(len(every), len(every) - len(made), runs, sum(plan.gpu_minutes for plan in made))


def usage_json(counted: Usage) -> dict[str, object]:
    """The usage compared with its two alternatives: everything always, and level 0 always."""
    smoke = variants_of(Level.SMOKE)[0].gpu_minutes
    return {
        "schema": 2,
        **asdict(counted),
        "gpu_minutes_level_0_always": counted.commits * smoke,
        **_costs(counted.commits),
    }


def render_usage(counted: Usage) -> str:
    """The usage as people read it."""
    shares = (f"level {int(level)}: {count}" for level, count in counted.runs.items())
    smoke = variants_of(Level.SMOKE)[0].gpu_minutes
    return (
        f"{counted.commits} commits ({counted.unplanned} could not be planned): {', '.join(shares)}\n"
        f"{counted.gpu_minutes} GPU minutes; everything always {counted.commits * everything_minutes()}, "
        f"level 0 always {counted.commits * smoke}\n"
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 1.0


def _reasons(outcome: PlannedPull, level: Level) -> list[Reason]:
    return [reason for reason in outcome.plan.reasons if reason.level is level] if outcome.plan else []


def _numbers(levels: Iterable[Level]) -> list[int]:
    return sorted(int(level) for level in levels)
