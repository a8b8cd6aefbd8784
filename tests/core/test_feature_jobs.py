"""The jobs of level 4: the features that they switch on, and those that no script of verl shows."""

from typing import Any

import pytest

from bot.config import load_policy, packaged_policy
from bot.config.problems import ConfigError
from bot.core.change import Change, ChangedPath, PathStatus
from bot.core.jobs import WRAPPER_SCRIPT
from bot.core.levels import Level
from bot.core.planning.outline import JobOutline, Lack
from bot.core.planning.plan import plan
from bot.core.planning.plan_text import render_plan_text
from bot.core.planning.policy_lint import lint_features, lint_jobs

PACKAGED = packaged_policy()
POLICY = """
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image: {name: verlai/verl, tag: latest}
checkpoint: {model_id: tiny/dense}
rules:
  - {name: fp8, paths: [fp8/], levels: [4], because: idle, features: [fp8]}
  - {name: packed, paths: [packed/], levels: [4], because: idle, features: [packed]}
  - {name: quant, paths: [quant/], levels: [4], because: idle, features: [quant]}
  - {name: moe, paths: [moe/], levels: [4], because: idle, features: [moe]}
  - {name: sound, paths: [sound/], levels: [4], because: idle, features: [sound]}
  - {name: models, paths: [models/], levels: [4], because: idle}
families:
  - {family: both, paths: [models/both.py], features: [moe, mtp], checkpoint: {model_id: tiny/both}}
  - {family: dense, paths: [models/dense.py], checkpoint: {model_id: tiny/plain}}
  - {family: talk, paths: [models/talk.py], features: [sound], checkpoint: {model_id: tiny/talk}}
  - {family: omni, paths: [models/omni.py], features: [moe, sound], checkpoint: {model_id: tiny/omni}}
features:
  - {feature: moe, because: as CI does, wrapper: {LORA_MERGE: "True", ADV_ESTIMATOR: grpo}, shown_by: [ci/moe.yml]}
  - {feature: mtp, because: as shown, overrides: [model.mtp.enable=True], active_when: {model.mtp.enable: true}}
  - {feature: fp8, because: as CI does, wrapper: {ROLLOUT_QUANTIZATION: fp8}, checkpoint: {model_id: tiny/fp8}}
  - feature: packed
    because: its own script
    script: tests/packed.sh
    wrapper: {PACK: "1"}
    active_when: {model.packed: true}
  - {feature: other, because: its own script, script: tests/other.sh, active_when: {model.other: true}}
  - {feature: quant, because: kept elsewhere, script: null}
  - {feature: sound, because: nobody plays sound, script: null}
"""


def jobs(*paths: str, policy: str = POLICY) -> dict[str, JobOutline]:
    change = Change("a" * 40, "b" * 40, None, tuple(ChangedPath(path, PathStatus.MODIFIED) for path in paths))
    made = plan(change, load_policy(policy, "policy.yml"))
    return {job.id: job for job in made.jobs if job.variant.level is Level.FEATURE}


def names(job: JobOutline) -> list[str]:
    return [one.name for one in job.features]


@pytest.mark.parametrize(
    ("paths", "expected"),
    (
        (("models/both.py",), {"4-feature-both": ["moe", "mtp"]}),
        (("models/both.py", "moe/a.py"), {"4-feature-both": ["moe"]}),
        (("models/both.py", "fp8/a.py"), {"4-feature-both": ["moe", "mtp", "fp8"]}),
        (("models/dense.py",), {"4-feature-dense": []}),
        (("models/dense.py", "moe/a.py"), {"4-feature-dense": [], "4-feature-both": ["moe"]}),
        (("moe/a.py", "fp8/a.py"), {"4-feature-both": ["moe", "fp8"]}),
        (("fp8/a.py",), {"4-feature-fp8": ["fp8"]}),
        (("quant/a.py", "fp8/a.py"), {"4-feature-fp8-quant": ["fp8"]}),
        (("models/omni.py",), {"4-feature-omni": ["moe"]}),
    ),
)
def test_a_change_gets_jobs_that_switch_on_what_it_asks_for(paths: tuple[str, ...], expected: dict[str, Any]) -> None:
    found = jobs(*paths)
    assert {name: names(job) for name, job in found.items()} == expected
    assert {name: names(job) for name, job in jobs(*reversed(paths)).items()} == expected
    assert not any(job.blocked for job in found.values())


def test_a_setting_runs_on_its_own_checkpoint_else_on_the_policys() -> None:
    checkpoints = [job.checkpoint for path in ("fp8/a.py", "packed/a.py") for job in jobs(path).values()]
    assert [one.model_id for one in checkpoints if one] == ["tiny/fp8", "tiny/dense"]


@pytest.mark.parametrize(
    ("path", "name", "because"),
    (
        ("quant/a.py", "4-feature-quant", "no script of verl shows quant: kept elsewhere"),
        ("models/talk.py", "4-feature-talk", "no script of verl shows sound: nobody plays sound"),
        ("sound/a.py", "4-feature-talk", "no script of verl shows sound: nobody plays sound"),
    ),
)
def test_a_feature_without_a_script_blocks_its_job_with_the_reason(path: str, name: str, because: str) -> None:
    (job,) = jobs(path).values()
    (obstacle,) = job.obstacles
    assert (job.id, obstacle.lack, obstacle.reason) == (name, Lack.SCRIPT, because)
    assert obstacle.fix.startswith("set `script:` of the feature")


def test_a_family_still_runs_for_what_can_be_shown_and_says_what_cannot() -> None:
    made = plan(Change("a" * 40, "b" * 40, None, (ChangedPath("models/omni.py", PathStatus.MODIFIED),)), loaded())
    assert "tiny/omni, after 0-lora-ddp, shows moe, no script of verl shows sound" in render_plan_text(made)
    entry = json_jobs(made.to_json())["4-feature-omni"]
    assert (entry["features"], entry["not_shown"]) == (["moe"], ["sound"])
    assert not {"script", "blocked"} & set(entry)


def test_text_and_document_tell_another_script_and_a_blocked_job() -> None:
    packed = plan(Change("a" * 40, "b" * 40, None, (ChangedPath("packed/a.py", PathStatus.MODIFIED),)), loaded())
    assert "by tests/packed.sh, shows packed" in render_plan_text(packed)
    assert json_jobs(packed.to_json())["4-feature-packed"]["script"] == "tests/packed.sh"
    quant = plan(Change("a" * 40, "b" * 40, None, (ChangedPath("quant/a.py", PathStatus.MODIFIED),)), loaded())
    text = render_plan_text(quant)
    assert "1 job cannot pass as planned and will not be run" in text
    assert "cannot pass as planned, so it is not run: no script of verl shows quant: kept elsewhere; set" in text
    entry = json_jobs(quant.to_json())["4-feature-quant"]
    assert ("kept elsewhere" in entry["blocked"], entry["obstacles"][0]["lack"]) == (True, "script")
    assert (entry["gpu_minutes"], quant.gpu_minutes) == (0, 7)


def test_two_scripts_in_one_job_block_it() -> None:
    text = POLICY.replace("features: [packed]", "features: [packed, other]")
    ((obstacle,),) = (job.obstacles for job in jobs("packed/a.py", policy=text).values())
    assert (obstacle.lack, obstacle.reason) == (
        Lack.SCRIPTS_DIFFER,
        "its features ask for different scripts (packed: tests/packed.sh, other: tests/other.sh)",
    )


def test_a_policy_without_the_table_keeps_its_jobs() -> None:
    old = POLICY.partition("features:\n  - {feature")[0]
    assert {name: names(job) for name, job in jobs("moe/a.py", policy=old).items()} == {"4-feature-both": []}
    lost = jobs("fp8/a.py", policy=old)["4-feature"]
    assert (lost.checkpoint, [one.lack for one in lost.obstacles]) == (None, [Lack.CHECKPOINT, Lack.EVIDENCE])


def test_verls_files_that_the_table_names_and_verl_lacks_are_told() -> None:
    policy = loaded()
    known = {WRAPPER_SCRIPT, "tests/packed.sh", "ci/moe.yml"}
    assert lint_features(policy, known, "verl 9097cc4d") == (
        "policy.yml: feature other: script: verl 9097cc4d has no tests/other.sh",
    )
    assert "policy.yml: feature moe: shown_by: verl has no ci/moe.yml" in lint_features(policy, set(), "verl")
    dummies = [line for line in lint_features(PACKAGED, set(), "verl") if "dummy_config" in line]
    assert any("family qwen3_moe: dummy_config" in line for line in dummies)
    assert any("feature moe: dummy_config" in line for line in dummies)


def test_a_planned_job_whose_script_verl_lacks_is_told_once_for_each_script() -> None:
    found = lint_jobs(jobs("packed/a.py", "models/dense.py", "quant/a.py").values(), {WRAPPER_SCRIPT}, "verl 1dda")
    assert found == ("verl 1dda has no tests/packed.sh, so these jobs cannot run: 4-feature-dense.",)
    assert lint_jobs(jobs("quant/a.py").values(), set(), "verl 1dda") == ()


@pytest.mark.parametrize("script", ("/bin/sh", "../outside.sh", "tests/../../outside.sh"))
def test_a_script_outside_verl_is_refused(script: str) -> None:
    with pytest.raises(ConfigError, match="leads out of the repository"):
        load_policy(POLICY.replace("tests/packed.sh", script), "policy.yml")


def test_every_feature_that_the_packaged_policy_names_is_in_its_table() -> None:
    reach = PACKAGED.reach.rules if PACKAGED.reach else ()
    of_rules = {tag for one in PACKAGED.rules for tag in one.features} | {tag for one in reach for tag in one.features}
    named = of_rules | {tag for one in PACKAGED.families for tag in one.features}
    assert named <= {one.name for one in PACKAGED.features}
    assert all(one.shown_by for one in PACKAGED.features if one.script)
    assert not any(one.wrapper or one.overrides or one.active_when for one in PACKAGED.features if not one.script)


def loaded() -> Any:
    return load_policy(POLICY, "policy.yml")


def json_jobs(document: dict[str, Any]) -> dict[str, Any]:
    return {job["id"]: job for job in document["jobs"]}
