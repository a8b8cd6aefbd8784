"""The jobs of level 4: the features that they switch on, and those that no script of verl shows."""

import json
from typing import Any

import pytest

from verl_e2e.config import load_policy, packaged_policy
from verl_e2e.config.validation import ConfigError
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus
from verl_e2e.core.model.jobs import WRAPPER_SCRIPT
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.space import ModelWant
from verl_e2e.core.plan.job_models import made_model
from verl_e2e.core.plan.lint import lint_alone, lint_features, lint_jobs, lint_policy
from verl_e2e.core.plan.outline import JobOutline, Missing
from verl_e2e.core.plan.plan import plan
from verl_e2e.core.plan.plan_document import plan_json
from verl_e2e.core.report.plan_text import render_plan_text

PACKAGED = packaged_policy()
POLICY = """
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image: {name: verlai/verl, tag: latest}
checkpoint: {model_id: tiny/dense}
rules:
  - {name: fp8, paths: [fp8/], levels: [4], reason: idle, features: [fp8]}
  - {name: packed, paths: [packed/], levels: [4], reason: idle, features: [packed]}
  - {name: quant, paths: [quant/], levels: [4], reason: idle, features: [quant]}
  - {name: moe, paths: [moe/], levels: [4], reason: idle, features: [moe]}
  - {name: sound, paths: [sound/], levels: [4], reason: idle, features: [sound]}
  - {name: mtp, paths: [mtp/], levels: [4], reason: idle, features: [mtp]}
  - {name: models, paths: [models/], levels: [4], reason: idle}
families:
  - {family: both, paths: [models/both.py], features: [moe, mtp], checkpoint: {model_id: tiny/both}}
  - {family: dense, paths: [models/dense.py], checkpoint: {model_id: tiny/plain}}
  - {family: talk, paths: [models/talk.py], features: [sound], checkpoint: {model_id: tiny/talk}}
  - {family: omni, paths: [models/omni.py], features: [moe, sound], checkpoint: {model_id: tiny/omni}}
features:
  - {feature: moe, reason: as CI does, wrapper: {LORA_MERGE: "True", ADV_ESTIMATOR: grpo}, shown_by: [ci/moe.yml]}
  - {feature: mtp, reason: as shown, overrides: [model.mtp.enable=True], active_when: {model.mtp.enable: true}}
  - {feature: fp8, reason: as CI does, wrapper: {ROLLOUT_QUANTIZATION: fp8}, checkpoint: {model_id: tiny/fp8}}
  - feature: packed
    reason: its own script
    script: tests/packed.sh
    wrapper: {PACK: "1"}
    active_when: {model.packed: true}
  - {feature: other, reason: its own script, script: tests/other.sh, active_when: {model.other: true}}
  - {feature: quant, reason: kept elsewhere, script: null}
  - {feature: sound, reason: no one plays sound, script: null}
"""


def jobs(*paths: str, policy: str = POLICY) -> dict[str, JobOutline]:
    change = Change("a" * 40, "b" * 40, None, tuple(ChangedPath(path, PathStatus.MODIFIED) for path in paths))
    made = plan(change, load_policy(policy, "policy.yml"))
    return {job.id: job for job in made.jobs if job.variant.level is Level.FEATURE}


def names(job: JobOutline) -> list[str]:
    return [feature.name for feature in job.features]


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


FIRST_FEATURE = "features:\n  - {feature: moe"
VISION = POLICY.replace(
    FIRST_FEATURE,
    """  - family: vision
    paths: [models/vision.py]
    features: [moe, sound, mtp]
    checkpoint: {model_id: tiny/vision, features: [sound, mtp]}
    synthetic: {model_type: v, architecture: V, experts: true, without: [mtp]}
"""
    + FIRST_FEATURE,
)


@pytest.mark.parametrize(
    ("paths", "model", "shown", "absent"),
    (
        # The named checkpoint has pretrained weights, so it stays where it has what is asked for, or nothing is.
        (("models/vision.py",), "tiny/vision", ["mtp"], ("moe",)),
        (("models/vision.py", "mtp/a.py"), "tiny/vision", ["mtp"], ()),
        (("models/vision.py", "moe/a.py"), "synthetic/vision", ["moe"], ()),
        # Neither has both: what the checkpoint shows is not given up for the other.
        (("models/vision.py", "moe/a.py", "mtp/a.py"), "tiny/vision", ["mtp"], ("moe",)),
    ),
)
def test_a_family_runs_its_synthetic_model_where_that_alone_has_what_is_asked_for(
    paths: tuple[str, ...], model: str, shown: list[str], absent: tuple[str, ...]
) -> None:
    found = jobs(*paths, policy=VISION)
    job = found["4-feature-vision"]
    assert (job.checkpoint and job.checkpoint.model_id, names(job), job.absent, job.blocked) == (
        model,
        shown,
        absent,
        "",
    )
    # No other family's job is there for what the synthetic model has.
    assert ("4-feature-both" in found) is ("moe" in absent and "moe/a.py" in paths)


SWITCHED = VISION.replace("without: [mtp]", "switched: {mtp: {layers: 1}}").replace(
    "checkpoint: {model_id: tiny/vision, features: [sound, mtp]}\n    ", ""
)


@pytest.mark.parametrize(
    ("paths", "wanted", "shown", "absent"),
    (
        # A model with the feature is made where that is asked for alone.
        (("models/vision.py",), {}, ["moe"], ("mtp",)),
        (("models/vision.py", "moe/a.py"), {}, ["moe"], ()),
        (("models/vision.py", "mtp/a.py"), {"layers": 1}, ["mtp"], ()),
        (("models/vision.py", "moe/a.py", "mtp/a.py"), {"layers": 1}, ["moe", "mtp"], ()),
    ),
)
def test_a_synthetic_model_has_a_feature_by_fields_where_it_is_asked_for(
    paths: tuple[str, ...], wanted: dict[str, object], shown: list[str], absent: tuple[str, ...]
) -> None:
    policy = load_policy(SWITCHED, "policy.yml")
    assert not [found for found in lint_alone(policy) if "cannot be shown" in found]
    job = jobs(*paths, policy=SWITCHED)["4-feature-vision"]
    assert job.checkpoint is not None
    assert job.checkpoint.synthetic is not None
    assert (job.checkpoint.synthetic.wanted, names(job), job.absent) == (wanted, shown, absent)
    assert job.model.shows("mtp") is bool(wanted)
    assert policy.recipes["vision"]["switched"] == {"mtp": {"layers": 1}}
    # What a condition wants of the model joins these fields.
    want = ModelWant(family="vision", features=frozenset({"mtp"}), fields={"window": 3})
    made = made_model(want, policy)
    assert made is not None
    assert made.synthetic is not None
    assert made.synthetic.wanted == {"layers": 1, "window": 3}


def test_a_feature_that_only_the_synthetic_model_has_is_a_promise_that_is_kept() -> None:
    assert not [found for found in lint_alone(load_policy(VISION, "policy.yml")) if "cannot be shown" in found]


def test_a_setting_runs_on_its_own_checkpoint_else_on_the_policys() -> None:
    checkpoints = [job.checkpoint for path in ("fp8/a.py", "packed/a.py") for job in jobs(path).values()]
    assert [item.model_id for item in checkpoints if item] == ["tiny/fp8", "tiny/dense"]


@pytest.mark.parametrize(
    ("path", "name", "reason"),
    (
        ("quant/a.py", "4-feature-quant", "no script of verl shows quant: kept elsewhere"),
        ("models/talk.py", "4-feature-talk", "no script of verl shows sound: no one plays sound"),
        ("sound/a.py", "4-feature-talk", "no script of verl shows sound: no one plays sound"),
    ),
)
def test_a_feature_without_a_script_blocks_its_job_with_the_reason(path: str, name: str, reason: str) -> None:
    (job,) = jobs(path).values()
    (obstacle,) = job.obstacles
    assert (job.id, obstacle.missing, obstacle.reason) == (name, Missing.SCRIPT, reason)
    assert obstacle.fix.startswith("set `script:` of the feature")


def test_a_family_still_runs_for_what_can_be_shown_and_says_what_cannot() -> None:
    made = plan(Change("a" * 40, "b" * 40, None, (ChangedPath("models/omni.py", PathStatus.MODIFIED),)), loaded())
    assert "tiny/omni, after 0-lora-ddp, shows moe, no script of verl shows sound" in render_plan_text(made)
    entry = json_jobs(json.loads(plan_json(made)))["4-feature-omni"]
    assert (entry["features"], entry["not_shown"]) == (["moe"], ["sound"])
    assert (entry["script"], entry["blocked"]) == (WRAPPER_SCRIPT, "")


def test_text_and_document_tell_another_script_and_a_blocked_job() -> None:
    packed = plan(Change("a" * 40, "b" * 40, None, (ChangedPath("packed/a.py", PathStatus.MODIFIED),)), loaded())
    assert "by tests/packed.sh, shows packed" in render_plan_text(packed)
    assert json_jobs(json.loads(plan_json(packed)))["4-feature-packed"]["script"] == "tests/packed.sh"
    quant = plan(Change("a" * 40, "b" * 40, None, (ChangedPath("quant/a.py", PathStatus.MODIFIED),)), loaded())
    text = render_plan_text(quant)
    assert "1 job cannot pass as planned and will not run" in text
    assert "cannot pass as planned, so it is not run: no script of verl shows quant: kept elsewhere; set" in text
    entry = json_jobs(json.loads(plan_json(quant)))["4-feature-quant"]
    assert ("kept elsewhere" in entry["blocked"], entry["obstacles"][0]["missing"]) == (True, "script")
    assert (entry["gpu_minutes"], quant.gpu_minutes) == (0, 7)


def test_two_scripts_in_one_job_block_it() -> None:
    text = POLICY.replace("features: [packed]", "features: [packed, other]")
    ((obstacle,),) = (job.obstacles for job in jobs("packed/a.py", policy=text).values())
    assert (obstacle.missing, obstacle.reason) == (
        Missing.SCRIPTS_DIFFER,
        "its features ask for different scripts (packed: tests/packed.sh, other: tests/other.sh)",
    )


def test_a_policy_without_the_table_keeps_its_jobs() -> None:
    old = POLICY.partition("features:\n  - {feature")[0].replace("[packed]", "[packed_seq]")
    assert {name: names(job) for name, job in jobs("moe/a.py", policy=old).items()} == {"4-feature-both": []}
    lost = jobs("fp8/a.py", policy=old)["4-feature"]
    assert (lost.checkpoint, [obstacle.missing for obstacle in lost.obstacles]) == (
        None,
        [Missing.CHECKPOINT, Missing.EVIDENCE],
    )


def test_verls_files_that_the_table_names_and_verl_does_not_have_are_reported() -> None:
    policy = loaded()
    known = {WRAPPER_SCRIPT, "tests/packed.sh", "ci/moe.yml"}
    assert lint_features(policy, known, "verl 9097cc4d") == (
        "policy.yml: feature other: script: verl 9097cc4d has no tests/other.sh",
    )
    assert "policy.yml: feature moe: shown_by: verl has no ci/moe.yml" in lint_features(policy, set(), "verl")
    dummies = [line for line in lint_features(PACKAGED, set(), "verl") if "dummy_config" in line]
    assert any("feature moe: dummy_config" in line for line in dummies)
    random = POLICY.replace("{model_id: tiny/both}", "{model_id: tiny/both, dummy_config: tests/tiny.json}")
    found = lint_features(load_policy(random, "policy.yml"), known, "verl")
    assert "policy.yml: family both: dummy_config: verl has no tests/tiny.json" in found


def test_a_planned_job_whose_script_verl_does_not_have_is_reported_once_for_each_script() -> None:
    found = lint_jobs(jobs("packed/a.py", "models/dense.py", "quant/a.py").values(), {WRAPPER_SCRIPT}, "verl 1dda")
    assert found == ("verl 1dda has no tests/packed.sh, so these jobs cannot run: 4-feature-dense.",)
    assert lint_jobs(jobs("quant/a.py").values(), set(), "verl 1dda") == ()


@pytest.mark.parametrize("script", ("/bin/sh", "../outside.sh", "tests/../../outside.sh"))
def test_a_script_outside_verl_is_refused(script: str) -> None:
    with pytest.raises(ConfigError, match="leads out of the repository"):
        load_policy(POLICY.replace("tests/packed.sh", script), "policy.yml")


def test_every_feature_that_the_packaged_policy_names_is_in_its_table() -> None:
    reach = PACKAGED.reach.rules if PACKAGED.reach else ()
    of_rules = {tag for rule in PACKAGED.rules for tag in rule.features} | {
        tag for rule in reach for tag in rule.features
    }
    named = of_rules | {tag for family in PACKAGED.families for tag in family.features}
    assert named <= {feature.name for feature in PACKAGED.features}
    assert all(feature.shown_by for feature in PACKAGED.features if feature.script)
    assert not any(
        feature.wrapper or feature.overrides or feature.active_when
        for feature in PACKAGED.features
        if not feature.script
    )


def loaded() -> Any:
    return load_policy(POLICY, "policy.yml")


def json_jobs(document: dict[str, Any]) -> dict[str, Any]:
    return {job["id"]: job for job in document["jobs"]}


DECLARED = """
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image:
  name: verlai/verl
  tag: latest
  digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000"
checkpoint: {model_id: tiny/dense, weights_gib: 1, features: []}
rules:
  - {name: moe, paths: ["*moe*"], levels: [2, 4], reason: idle, features: [moe]}
  - {name: mtp, paths: [mtp/], levels: [4], reason: idle, features: [mtp]}
  - {name: models, paths: [models/], levels: [4], reason: idle}
families:
  - family: hybrid
    paths: [models/hybrid*]
    features: [moe, ssm]
    checkpoint: {model_id: mid/hybrid, weights_gib: 15.2, features: [ssm]}
  - family: sparse
    paths: [models/sparse*]
    features: [moe]
    checkpoint: {model_id: big/sparse, weights_gib: 29.8, features: [moe]}
  - family: seeing
    paths: [models/seeing*]
    features: [vlm]
    checkpoint: {model_id: tiny/seeing, features: [vlm, fp8]}
  - {family: unheard, paths: [models/unheard*], features: [moe]}
  - family: silent
    paths: [models/silent*]
    features: [silent]
    checkpoint: {model_id: tiny/silent, weights_gib: 1, features: [silent]}
  - family: blind
    paths: [models/blind*]
    features: [vlm]
    checkpoint: {model_id: tiny/blind, weights_gib: 1, features: [vlm]}
features:
  - {feature: silent, reason: nothing tells}
  - {feature: moe, reason: as CI does, wrapper: {ADV_ESTIMATOR: grpo}}
  - {feature: ssm, reason: the checkpoint brings it, wrapper: {ADV_ESTIMATOR: grpo}}
  - feature: vlm
    reason: the checkpoint brings it
    wrapper: {ADV_ESTIMATOR: grpo}
    data: images
    read_of: [seeing]
    unread: verl makes no processor for it
  - {feature: fp8, reason: as CI does}
"""


def declared(*paths: str) -> dict[str, JobOutline]:
    change = Change("a" * 40, "b" * 40, None, tuple(ChangedPath(path, PathStatus.MODIFIED) for path in paths))
    return {job.id: job for job in plan(change, load_policy(DECLARED, "policy.yml")).jobs}


def test_a_family_promises_only_what_its_checkpoint_has() -> None:
    job = declared("models/hybrid.py")["4-feature-hybrid"]
    assert (names(job), job.absent, job.obstacles) == (["ssm"], ("moe",), ())
    assert "moe is not exercised: mid/hybrid does not have it" in job.limitations
    found = declared("models/hybrid_moe.py")
    expert = found["2-expert"].checkpoint
    assert expert is not None
    assert expert.model_id == "big/sparse"


def test_what_only_another_family_has_is_shown_there_and_blocks_the_family_itself() -> None:
    found = declared("models/hybrid_moe.py")
    (obstacle,) = found["4-feature-hybrid"].obstacles
    assert (obstacle.missing, obstacle.reason) == (Missing.FEATURE, "mid/hybrid has no moe")
    assert names(found["4-feature-sparse"]) == ["moe"]


def test_every_lack_is_told_with_the_plan_and_costs_nothing() -> None:
    change = Change("a" * 40, "b" * 40, None, (ChangedPath("models/silent.py", PathStatus.MODIFIED),))
    made = plan(change, load_policy(DECLARED, "policy.yml"))
    job = next(job for job in made.jobs if job.variant.level is Level.FEATURE)
    assert [obstacle.missing for obstacle in job.obstacles] == [Missing.EVIDENCE]
    assert "`active_when:` of the feature silent" in job.obstacles[0].fix
    assert made.blocked_jobs == (job,)
    assert made.gpu_minutes == sum(other_job.gpu_minutes for other_job in made.jobs if other_job is not job)
    text = render_plan_text(made)
    assert "level 4 is overridden: 4-feature-silent" in text
    unheard = declared("models/unheard.py")["4-feature-unheard"]
    assert [obstacle.missing for obstacle in unheard.obstacles] == [Missing.CHECKPOINT]


def test_a_family_whose_images_verl_does_not_read_runs_without_them_and_says_so() -> None:
    change = Change("a" * 40, "b" * 40, None, (ChangedPath("models/blind.py", PathStatus.MODIFIED),))
    made = plan(change, load_policy(DECLARED, "policy.yml"))
    job = next(job for job in made.jobs if job.variant.level is Level.FEATURE)
    assert (job.id, names(job), job.obstacles) == ("4-feature-blind", [], ())
    assert "no run of verl shows vlm of blind: verl makes no processor for it" in job.limitations
    assert "tiny/blind, after 0-lora-ddp, without vlm (verl makes no processor for it)" in render_plan_text(made)


def test_images_that_no_family_asks_for_are_shown_on_a_family_of_which_verl_reads_them() -> None:
    seeing = declared("models/seeing.py")["4-feature-seeing"]
    assert (names(seeing), seeing.obstacles) == (["vlm"], ())
    rules = "  - {name: eyes, paths: [eyes/], levels: [4], reason: idle, features: [vlm]}"
    text = DECLARED.replace("families:\n", f"{rules}\nfamilies:\n", 1).replace("read_of: [seeing]", "read_of: [blind]")
    change = Change("a" * 40, "b" * 40, None, (ChangedPath("eyes/a.py", PathStatus.MODIFIED),))
    found = [job.id for job in plan(change, load_policy(text, "policy.yml")).jobs if job.variant.level is Level.FEATURE]
    assert found == ["4-feature-blind"]


def test_jobs_take_the_gpus_of_their_model_and_say_why() -> None:
    found = declared("models/sparse.py")
    assert {name: job.gpu_count for name, job in found.items()} == {"0-lora-ddp": 4, "4-feature-sparse": 2}
    entry = json_jobs(planned_json("models/sparse.py"))["4-feature-sparse"]
    assert (entry["gpu_count"], "29.8 GiB of weights" in entry["gpu_count_reason"]) == (2, True)
    assert (entry["gpu_minutes"], entry["gpu_minutes_from"]) == (14, "estimate")
    unsized = declared("models/seeing.py")["0-lora-ddp"]
    assert (unsized.gpu_count, unsized.fitted().reason) == (1, "the policy declares no size of this model")


def planned_json(path: str) -> dict[str, object]:
    change = Change("a" * 40, "b" * 40, None, (ChangedPath(path, PathStatus.MODIFIED),))
    found: dict[str, object] = json.loads(plan_json(plan(change, load_policy(DECLARED, "policy.yml"))))
    return found


def test_the_policy_check_tells_promises_that_no_checkpoint_keeps() -> None:
    policy = load_policy(DECLARED, "policy.yml")
    assert lint_alone(policy) == (
        "policy.yml: family hybrid: mid/hybrid has no moe, so a change of the family's moe cannot be shown",
        "policy.yml: family seeing: tiny/seeing declares fp8, which the family does not list under `features:`",
        "policy.yml: checkpoint tiny/seeing: neither `weights_gib:` nor `gpus:` is declared, so its jobs get the GPUs "
        "of a small model",
    )
    old = load_policy(DECLARED.replace(", weights_gib: 1, features: []", ""), "policy.yml")
    assert any("tiny/dense: no `features:` are declared" in finding for finding in lint_alone(old))


def test_the_policy_check_tells_families_whose_name_no_class_bears() -> None:
    symbols = {"models/hybrid.py": ("HybridBridge",), "models/sparse.py": ("OtherBridge", "OtherBridge.sparse")}
    found = [line for line in lint_policy(load_policy(DECLARED, "policy.yml"), symbols, symbols, ()) if "bears" in line]
    assert found == [
        "policy.yml: family sparse: none of its classes (OtherBridge) bears its name, so no run shows it",
    ]
