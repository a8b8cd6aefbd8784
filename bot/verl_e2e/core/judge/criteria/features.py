"""Level 4: each feature of the job is shown by a fact that no dense run has, in the configuration or in the log.

A checkpoint's features do not show in verl's configuration. They show in the class of Bridge that converted its
weights, in what verl prints when it prepares a feature, and in metrics that only the feature has. Images and sound
show in none of them, but in what reached the model: `content` judges these.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from verl_e2e.core.judge.case import ABSENT, Case
from verl_e2e.core.judge.criteria.config import same_value
from verl_e2e.core.judge.criteria.content import CONTENTS, content_active
from verl_e2e.core.log.resolved_config import lookup
from verl_e2e.core.model.evidence import Criterion, Evidence, State
from verl_e2e.core.model.expected import Value, expected_config
from verl_e2e.core.model.jobs import JobFeature
from verl_e2e.core.model.levels import BASE_WRAPPER
from verl_e2e.core.model.record import JOB_FILE


@dataclass(frozen=True, slots=True)
class Trace:
    """What a feature leaves in a log; any one of the three is enough.

    `bridges` matches Bridge's classes for models that always have the feature, `signs` are names of the scan's signs,
    `metrics` matches names of step metrics.
    """

    bridges: re.Pattern[str] | None = None
    signs: frozenset[str] = frozenset()
    metrics: re.Pattern[str] | None = None


# A class of Bridge is listed only when every model that it converts has the feature.
TRACES: Mapping[str, Trace] = {
    "moe": Trace(
        bridges=re.compile(
            r"\w*M[oO][eE]\w*Bridge|Qwen3NextBridge|DeepSeekV\dBridge|GPTOSSBridge|KimiK\w*Bridge|MiniMaxM\d\w*Bridge"
            r"|GLM4[57]\w*Bridge|GLM5Bridge|HYV3Bridge|MiMoV2FlashBridge|Qwen3OmniBridge|Step3\dBridge|SarvamMLABridge"
            r"|Ernie45(?:VL)?Bridge"
        ),
        signs=frozenset({"router-layers", "rollout-experts"}),
    ),
    "mla": Trace(bridges=re.compile(r"DeepSeekV[234]Bridge|KimiK2\w*Bridge|GLM5Bridge|GLM47FlashBridge|\w*MLABridge")),
    "ssm": Trace(bridges=re.compile(r"NemotronHBridge|FalconH1Bridge|Qwen3NextBridge|Qwen35(?:MoE)?Bridge")),
    "mtp": Trace(signs=frozenset({"mtp-layers-patched"}), metrics=re.compile(r"(?:^|/)mtp_losses/")),
    "fp8": Trace(signs=frozenset({"fp8-weights-loaded"})),
}


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


def leaves_trace(name: str) -> bool:
    """Whether a log, or what reached the model, can show the feature."""
    if name in CONTENTS:
        return True
    trace = TRACES.get(name)
    return trace is not None and bool(trace.bridges or trace.signs or trace.metrics)


def can_be_shown(name: str, active_when: Mapping[str, Value]) -> bool:
    """Whether any run can show the feature, as `judge_feature` asks for it."""
    return (
        leaves_trace(name)
        if name in TRACES or name in CONTENTS
        else any(not _is_dense(key, value) for key, value in active_when.items())
    )


def judge_feature(case: Case, feature: JobFeature) -> Evidence:
    """One feature: all that its configuration must show, and a trace in the log where the feature leaves one."""
    name, trace = feature.name, TRACES.get(feature.name)
    wrong = next(_not_configured(case, feature), "")
    if wrong:
        return _evidence(case, State.MISSING, f"{name} is not switched on: {wrong}")
    if name in CONTENTS:
        return content_active(case, name)
    telling = {key: value for key, value in feature.active_when.items() if not _is_dense(key, value)}
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


def bears_name(bridge: str, family: str) -> bool:
    """Whether a class of Bridge has a family's name in its own, which is how a run shows the family."""
    return _letters_and_digits(family) in _letters_and_digits(bridge)


def _evidence(case: Case, state: State, summary: str, fact: _Fact | None = None) -> Evidence:
    line, excerpt = (fact.line, fact.excerpt) if fact else (0, "")
    return Evidence(Criterion.FEATURE_ACTIVE, state, summary, case.log, line, excerpt)


def _not_configured(case: Case, feature: JobFeature) -> Iterator[str]:
    for config in case.facts.configs or (None,):
        for key, wanted in feature.active_when.items():
            found: Any = lookup(config.values, key, ABSENT) if config else ABSENT
            if not same_value(found, wanted):
                yield f"{key} is {'absent' if found is ABSENT else repr(found)[:80]}, asked {wanted!r}"


def _is_dense(key: str, value: Value) -> bool:
    """Whether the smoke's own configuration has the same value, so that it tells nothing."""
    return same_value(_DENSE.get(key, ABSENT), value)


_DENSE = expected_config(BASE_WRAPPER, ())


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


def _letters_and_digits(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())
