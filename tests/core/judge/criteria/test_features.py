"""Level 4: what shows each feature, and that the recorded dense run shows none of them."""

from dataclasses import replace
from typing import Any

import pytest

from tests.core.builders import config_with, make_case, make_record
from tests.core.level_runs import Run, job_of, run_of, said
from tests.core.logs import recorded
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.judge.criteria.basic import requested_config
from verl_e2e.core.judge.criteria.features import TRACES, can_be_shown, feature_active, judge_feature
from verl_e2e.core.log.literals import STRATEGY_SIGN
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.jobs import Job, JobFeature
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.settings import Value

POLICY = packaged_policy()
FEATURES = {entry.name: JobFeature(name=entry.name, active_when=dict(entry.active_when)) for entry in POLICY.features}
SHOWN = sorted(entry.name for entry in POLICY.features if entry.script)


def job(*names: str, family: str = "") -> Job:
    return job_of(Level.FEATURE, "feature", features=tuple(FEATURES[name] for name in names), family=family)


def dense() -> str:
    return recorded("level0-pass").decode()


def run(made: Job, *lines: str, bridge: str = "Qwen2Bridge") -> Run:
    """A run of the job with these lines before its first step, and this class of Bridge."""
    text = dense().replace("Qwen2Bridge", bridge)
    at = text.index("Training Progress:   0%")
    start = text.rindex("\n", 0, at) + 1
    text = text[:start] + "".join(f"{line}\n" for line in lines) + text[start:]
    whole = run_of(made, text)
    (config,) = whole.facts.configs
    asked = {key: value for feature in made.features for key, value in feature.active_when.items()}
    changed = config_with({**_flat(made), **asked}, config.line)
    return replace(whole, facts=replace(whole.facts, configs=(changed,)))


def _flat(made: Job) -> dict[str, Any]:
    return dict(requested_config(made))


@pytest.mark.no_cover
@pytest.mark.parametrize("name", sorted(FEATURES))
def test_the_recorded_dense_run_shows_no_feature(name: str) -> None:
    """Whatever the configuration is made to say, the dense log itself never shows a feature that leaves a trace."""
    facts = scan([recorded("level0-pass")])
    case = make_case(make_record(job=job(name)), facts)
    assert judge_feature(case, FEATURES[name]).state is State.MISSING


@pytest.mark.parametrize("name", sorted(set(TRACES) & set(FEATURES)))
def test_a_setting_without_a_trace_is_not_enough_where_the_feature_leaves_one(name: str) -> None:
    made = run(job(name))
    item = feature_active(made.case())
    assert (item.state, made.verdict().result) == (State.MISSING, Result.BLOCKED)
    assert item.summary == f"nothing in the log shows {name} at work"


TRACE_LINES = {
    "mtp": said(7470, "Found and patched 1 MTP layer(s) in any of the actor modules"),
    "fp8": said(7829, "INFO:2026-11-20 14:23:53,016:FP8 weights loaded (async), loaded_params: 51, loaded_buffers: 0"),
    "moe": said(7470, "routing replay layers: 2"),
}


@pytest.mark.parametrize("name", TRACE_LINES)
def test_setting_and_trace_together_pass(name: str) -> None:
    made = run(job(name), TRACE_LINES[name])
    item = feature_active(made.case())
    assert (item.state, item.summary.startswith(f"{name}: ")) == (State.MET, True)
    assert item.line
    assert made.verdict().result is Result.PASS, made.verdict().cause


@pytest.mark.parametrize("name", ["mtp", "fp8"])
def test_a_trace_without_the_setting_is_not_the_feature_that_was_asked_for(name: str) -> None:
    made = run(job(name), TRACE_LINES[name])
    plain = replace(made.facts, configs=(config_with({}, made.facts.configs[0].line),))
    item = feature_active(Run(made.record, plain).case())
    assert (item.state, "is not switched on" in item.summary) == (State.MISSING, True)


@pytest.mark.parametrize(
    "line",
    [
        said(7470, "No MTP layers found to patch in any of the actor modules"),
        said(7829, "INFO:2026-11-20 14:23:53,016:FP8 weights loaded (async), loaded_params: 0, loaded_buffers: 0"),
        said(7470, "routing replay layers: 0"),
    ],
)
def test_a_line_that_denies_the_feature_is_no_trace(line: str) -> None:
    signs = run(job("moe"), line).facts.signs
    assert [sign for sign in signs if not sign.name.startswith(STRATEGY_SIGN)] == []


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("name", "bridge", "shown"),
    [
        ("moe", "Qwen3MoEBridge", True),
        ("moe", "OlMoEBridge", True),
        ("moe", "ExaoneMoeBridge", True),
        ("moe", "DeepSeekV3Bridge", True),
        ("moe", "GPTOSSBridge", True),
        ("moe", "Qwen2Bridge", False),
        ("moe", "Qwen3Bridge", False),
        ("moe", "LlamaBridge", False),
        ("moe", "Gemma4Bridge", False),
        ("mla", "DeepSeekV2Bridge", True),
        ("mla", "KimiK2Bridge", True),
        ("mla", "Qwen3MoEBridge", False),
        ("ssm", "NemotronHBridge", True),
        ("ssm", "FalconH1Bridge", True),
        ("ssm", "NemotronBridge", False),
        ("vlm", "Qwen25VLBridge", False),
    ],
)
def test_the_class_that_converted_the_weights_tells_what_its_models_always_have(
    name: str, bridge: str, shown: bool
) -> None:
    item = feature_active(run(job(name), bridge=bridge).case())
    assert (item.state is State.MET) is shown
    assert not shown or bridge in item.summary


def test_a_metric_that_only_the_feature_has_is_a_trace() -> None:
    made = run(job("mtp"))
    (step,) = made.facts.steps
    facts = replace(made.facts, steps=(replace(step, values={**step.values, "actor/mtp_losses/mtp_1_loss": 1.5}),))
    item = feature_active(Run(made.record, facts).case())
    assert (item.state, "metric actor/mtp_losses/mtp_1_loss" in item.summary) == (State.MET, True)


@pytest.mark.parametrize("name", ["packed_seq", "lora"])
def test_a_setting_that_the_smoke_does_not_have_is_enough_where_no_trace_is_known(name: str) -> None:
    item = feature_active(run(job(name)).case())
    assert (item.state, item.line > 0) == (State.MET, True)


def test_a_setting_that_the_smoke_has_too_tells_nothing() -> None:
    same: dict[str, Value] = {"actor_rollout_ref.model.lora.rank": 4, "algorithm.adv_estimator": "gae"}
    feature = JobFeature(name="own", active_when=same)
    made = run(job_of(Level.FEATURE, "feature", features=(feature,)))
    assert feature_active(made.case()).summary == "nothing that the run prints shows whether own was active"


def test_the_sentence_of_a_pass_names_features_and_family() -> None:
    made = run(job("moe", family="qwen3_moe"), bridge="Qwen3MoEBridge").verdict()
    assert (made.result, "moe, family qwen3_moe active (Level 4, feature)" in made.sentence) == (Result.PASS, True)


def test_every_feature_of_the_job_must_show() -> None:
    made = run(job("moe", "mtp"), TRACE_LINES["moe"])
    assert feature_active(made.case()).summary == "nothing in the log shows mtp at work"
    both = run(job("moe", "mtp"), TRACE_LINES["moe"], TRACE_LINES["mtp"])
    item = feature_active(both.case())
    assert (item.state, "moe: " in item.summary and "mtp: " in item.summary) == (State.MET, True)


def test_a_job_without_features_or_family_has_nothing_to_show() -> None:
    assert feature_active(run(job()).case()).summary == "the job names no feature to look for"


@pytest.mark.parametrize(
    ("family", "bridge", "shown"),
    [
        ("qwen3_moe", "Qwen3MoEBridge", True),
        ("falcon_h1", "FalconH1Bridge", True),
        ("gemma3", "Gemma3ModelBridge", True),
        ("gemma3", "Qwen2Bridge", False),
        ("qwen2", "Qwen2Bridge", True),
    ],
)
def test_a_family_shows_by_the_class_that_converted_its_weights(family: str, bridge: str, shown: bool) -> None:
    item = feature_active(run(job(family=family), bridge=bridge).case())
    assert (item.state is State.MET) is shown


def test_the_packaged_features_that_can_be_shown_are_those_with_a_setting_or_a_trace() -> None:
    assert {name for name in SHOWN if FEATURES[name].active_when or can_be_shown(name, {})} == set(SHOWN)
