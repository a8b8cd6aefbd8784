"""Level 4: each feature of the job is shown by a fact that no dense run has, in the configuration or in the log.

A checkpoint's features do not show in verl's configuration. They show in the class of Bridge that converted its
weights, in what verl prints when it prepares a feature, and in metrics that only the feature has. Images and sound
show in none of them, but in what reached the model: `content` judges these.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from verl_e2e.core.judge.case import ABSENT, Case
from verl_e2e.core.judge.criteria.content import content_active
from verl_e2e.core.judge.feature_traces import CONTENTS, TRACES, Trace, bears_name, is_dense
from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.evidence import Criterion, Evidence, State
from verl_e2e.core.model.expected import same_value
from verl_e2e.core.model.jobs import JobFeature
from verl_e2e.core.model.record import JOB_FILE


@dataclass(frozen=True, slots=True)
class _Fact:
    """Where something was seen, and what."""

    summary: str
    line: int
    excerpt: str


def feature_active(case: Case) -> Evidence:
    """Every feature of the job, and its family, left what a dense run does not have."""
    rows = [judge_feature(case, feature) for feature in case.job.features]
    if case.job.family:
        rows.append(_judge_family(case, case.job.family))
    if not rows:
        return Evidence(Criterion.FEATURE_ACTIVE, State.MISSING, "the job names no feature to look for", JOB_FILE)
    gap = next((row for row in rows if row.state is State.MISSING), None)
    if gap:
        return gap
    first = next((row for row in rows if row.excerpt), rows[0])
    summary = "; ".join(row.summary for row in rows)
    return Evidence(Criterion.FEATURE_ACTIVE, State.MET, summary, first.file, first.line, first.excerpt)


def judge_feature(case: Case, feature: JobFeature) -> Evidence:
    """One feature: all that its configuration must show, and a trace in the log where the feature leaves one."""
    name, trace = feature.name, TRACES.get(feature.name)
    wrong = next(_not_configured(case, feature), "")
    if wrong:
        return _evidence(case, State.MISSING, f"{name} is not switched on: {wrong}")
    if name in CONTENTS:
        return content_active(case, name)
    telling = {key: value for key, value in feature.active_when.items() if not is_dense(key, value)}
    if trace is None and not telling:
        return _evidence(case, State.MISSING, f"nothing that the run prints shows whether {name} was active")
    found = _trace(case, trace) if trace else None
    if trace and found is None:
        return _evidence(case, State.MISSING, f"nothing in the log shows {name} at work")
    shown = [f"{key}={value}" for key, value in telling.items()] + ([found.summary] if found else [])
    return _evidence(case, State.MET, f"{name}: {', '.join(shown)}", found or _config_line(case, shown))


def _judge_family(case: Case, family: str) -> Evidence:
    """The weights of the family's checkpoint were converted by Bridge's class for it."""
    found = next((use for use in case.facts.bridges if bears_name(use.bridge, family)), None)
    if found:
        fact = _Fact(f"weights converted by {found.bridge}", found.at.line, found.at.text)
        return _evidence(case, State.MET, f"{family}: {fact.summary}", fact)
    classes = ", ".join(dict.fromkeys(use.bridge for use in case.facts.bridges)) or "none"
    summary = f"the classes of Bridge that converted weights ({classes}) do not name the family {family}"
    return _evidence(case, State.MISSING, summary)


def _evidence(case: Case, state: State, summary: str, fact: _Fact | None = None) -> Evidence:
    line, excerpt = (fact.line, fact.excerpt) if fact else (0, "")
    return Evidence(Criterion.FEATURE_ACTIVE, state, summary, case.log, line, excerpt)


def _not_configured(case: Case, feature: JobFeature) -> Iterator[str]:
    for config in case.facts.configs or (None,):
        for key, wanted in feature.active_when.items():
            found: Any = lookup(config.values, key, ABSENT) if config else ABSENT
            if not same_value(found, wanted):
                yield f"{key} is {'absent' if found is ABSENT else repr(found)[:80]}, asked {wanted!r}"


def _trace(case: Case, trace: Trace) -> _Fact | None:
    """The first line that shows the feature."""
    facts = case.facts
    for use in facts.bridges:
        if trace.bridges and trace.bridges.fullmatch(use.bridge):
            return _Fact(f"weights converted by {use.bridge}", use.at.line, use.at.text)
    for sign in facts.signs:
        if sign.name in trace.signs:
            return _Fact(f"{sign.name} on line {sign.at.line}", sign.at.line, sign.at.text)
    for step in case.train_steps():
        name = next((name for name in step.values if trace.metrics and trace.metrics.search(name)), "")
        if name:
            return _Fact(f"metric {name}", step.line, f"step:{step.step} {name}:{step.values[name]}")
    return None


def _config_line(case: Case, shown: list[str]) -> _Fact:
    config = case.facts.configs[-1]
    return _Fact("", config.line, ", ".join(shown))
