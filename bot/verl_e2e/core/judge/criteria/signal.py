"""The learning signal of a case: from the report to evidence, limitations and the line of the card."""

from collections.abc import Iterable

from verl_e2e.core.judge.case import Case
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import Record
from verl_e2e.core.model.related import Role
from verl_e2e.core.signal.curves import (
    ACTOR_GRADIENT,
    ENTROPY,
    KL,
    LENGTH,
    POLICY_LOSS,
    REWARD,
    Curve,
    curve,
    sparkline,
    train_steps,
)
from verl_e2e.core.signal.report import (
    Run,
    SignalFigure,
    SignalOptions,
    SignalOutcome,
    SignalReport,
    signal_figure,
    signal_report,
)
from verl_e2e.core.signal.statistics import length_free_reward

_SHORT = ((REWARD, "reward"), (POLICY_LOSS, "loss"), (ACTOR_GRADIENT, "grad"), (KL, "KL"), (ENTROPY, "entropy"))
# The rule of triage for a step that ended in an exception because of NaN: it prints no metrics any more.
STOPPED_BY_NAN = "not-finite"
_WITH_LENGTH = (*_SHORT, (LENGTH, "length"))


def learning_signal(case: Case) -> Evidence:
    """Level 5: passed is met, unstable broken, flat broken where the baseline learned, all else missing."""
    stopped = case.triage
    if stopped.rule == STOPPED_BY_NAN:
        summary = f"{SignalOutcome.UNSTABLE}: {stopped.cause}"
        return Evidence(State.BROKEN, summary, case.log, stopped.line, stopped.excerpt)
    report = case_report(case)
    line = next((item.line for item in reversed(case.facts.steps) if item.step == report.step), 0)
    excerpt = sparklines(case)
    return Evidence(_state(report), report.sentence, case.log, line, excerpt)


def _state(report: SignalReport) -> State:
    if report.failed:
        return State.BROKEN
    return State.MET if report.outcome is SignalOutcome.PASSED and not report.weak else State.MISSING


def case_report(case: Case) -> SignalReport:
    """The report on a case: its own steps compared with those of the runs on the merge base."""
    return signal_report(case.facts.steps, baseline=baselines_of(case), options=case_options(case))


def baselines_of(case: Case) -> tuple[Run, ...]:
    """The runs of the same job on the merge base that trained at all."""
    return tuple(
        Run(related_run.folder, related_run.steps) for related_run in case.related(Role.MERGE_BASE) if related_run.steps
    )


def case_figure(case: Case) -> SignalFigure | None:
    """The curves of a level 5 run and its baselines, to be drawn; None for other levels and untrained runs."""
    if case.job.level is not Level.LEARNING_SIGNAL or not case.train_steps():
        return None
    title = f"{figure_title(case.record)}: {case_report(case).headline}"
    return signal_figure(title, case.facts.steps, baselines_of(case))


def figure_title(record: Record) -> str:
    """The job and its Bridge commit."""
    return f"{record.job.id}, Bridge {record.job.bridge.commit[:12]}" if record.job else "unknown job"


def case_options(case: Case) -> SignalOptions:
    """What the job asks of its evidence.

    Random weights know no end of a response, and a job may switch the end off: then every response is cut by the
    length limit, by design. That says nothing as long as the reward does not depend on the length.
    """
    chosen, reward = case.job.checkpoint, length_free_reward(case.job)
    random = chosen.is_random
    endless = random or case.config_value("actor_rollout_ref.rollout.ignore_eos") is True
    if not endless or not reward:
        return SignalOptions(requested_steps=case.job.steps)
    why = "random weights end no response" if random else "the job lets no response end"
    waived = f"{why}, and the reward {reward} does not depend on the length"
    return SignalOptions(requested_steps=case.job.steps, max_cap_share=1.0, cap_waived=waived)


def sparklines(case: Case) -> str:
    """Every curve in a few characters, with its first and last value; empty where no step was trained."""
    trained = train_steps(case.facts.steps)
    drawn = ((title, curve(trained, quantity)) for quantity, title in _WITH_LENGTH)
    return ", ".join(f"{title} {_drawn(found)}" for title, found in drawn if found is not None)


def _drawn(found: Curve) -> str:
    return f"{found.values[0]:.3g} {sparkline(found.values)} {found.values[-1]:.3g}"


def signal_limitations(case: Case) -> Iterable[str]:
    """What a learning signal leaves open, as sentences without a full stop; nothing before a step was trained."""
    report = case_report(case)
    if not case.train_steps():
        return
    if report.outcome is SignalOutcome.PASSED and not report.weak:
        yield f"Learning-signal passed over {case.job.steps} steps of one run: no convergence is claimed"
    if not report.baselines:
        yield "There is no run on the merge base to compare with, so its curves are not compared"
    yield from report.notes
    for baseline in report.baselines:
        if baseline.outcome in (SignalOutcome.UNSTABLE, SignalOutcome.NOT_ENOUGH_STEPS):
            yield f"Baseline {baseline.name} says nothing: {baseline.outcome}, {baseline.cause}"
