"""The plan of a change, by the packaged policy and by small ones."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.places import FIXTURES
from verl_e2e.config import load_policy, packaged_policy
from verl_e2e.core.consumer.consumers import VARIANTS
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.outline import Missing
from verl_e2e.core.plan.plan import Plan, plan
from verl_e2e.core.plan.plan_document import plan_document, plan_json
from verl_e2e.core.report.plan_text import render_plan_text

BASE, HEAD = "a" * 40, "b" * 40
MODELS = "src/megatron/bridge/models"
POLICY = packaged_policy()
LABELLED = FIXTURES / "plan" / "labelled.jsonl"

# Paths of every kind that the packaged policy tells apart, and some that it cannot know.
KINDS = (
    "README.md",
    "tests/unit_tests/peft/test_lora.py",
    "3rdparty/Megatron-LM",
    "pyproject.toml",
    "src/megatron/bridge/peft/lora.py",
    "src/megatron/bridge/peft/utils.py",
    "src/megatron/bridge/peft/base.py",
    "src/megatron/bridge/training/train.py",
    "src/megatron/bridge/training/checkpointing.py",
    "src/megatron/bridge/training/fsdp_compat.py",
    f"{MODELS}/conversion/param_mapping.py",
    f"{MODELS}/model_provider.py",
    f"{MODELS}/qwen/qwen3_moe_bridge.py",
    f"{MODELS}/qwen_vl/modelling_qwen3_vl/rope.py",
    f"{MODELS}/brand_new/brand_new_bridge.py",
    "something/never/seen.cpp",
)


def change(*paths: str) -> Change:
    return Change(BASE, HEAD, BASE, tuple(ChangedPath(path, PathStatus.MODIFIED) for path in paths))


def levels(*paths: str) -> list[int]:
    return [int(level) for level in plan(change(*paths), POLICY).levels]


@pytest.mark.parametrize(
    ("path", "expected"),
    (
        ("docs/index.md", []),
        (f"{MODELS}/qwen/README.md", []),
        ("tests/unit_tests/models/test_param_mapping.py", []),
        ("src/megatron/bridge/recipes/llama/llama3.py", []),
        ("src/megatron/bridge/perf_recipes/kimi/h100/kimi.py", []),
        ("src/megatron/bridge/data/datasets/gpt_sft.py", []),
        (f"{MODELS}/qwen_vl/data/collate_fn.py", []),
        ("src/megatron/bridge/diffusion/models/wan/wan_provider.py", []),
        ("src/megatron/bridge/training/train.py", []),
        ("src/megatron/bridge/training/pretrain.py", []),
        ("src/megatron/bridge/training/finetune.py", []),
        ("scripts/training/run_recipe.py", []),
        (".github/workflows/cicd-main.yml", []),
        ("docker/Dockerfile.ci", []),
        ("uv.lock", [0]),
        # Names alone do not say what differs in it.
        ("3rdparty/Megatron-LM", [0, 1, 2, 3, 4, 5]),
        (".gitmodules", [0]),
        ("pyproject.toml", [0]),
        ("src/megatron/bridge/__init__.py", [0]),
        ("src/megatron/bridge/training/utils/train_utils.py", [0]),
        ("src/megatron/bridge/training/a_new_module.py", [0]),
        ("src/megatron/bridge/a_new_package/core.py", [0]),
        ("src/megatron/bridge/training/checkpointing.py", [0, 1]),
        ("src/megatron/bridge/training/fsdp_compat.py", [0, 3]),
        (f"{MODELS}/model_provider.py", [0, 2]),
        (f"{MODELS}/conversion/auto_bridge.py", [0, 1]),
        (f"{MODELS}/conversion/param_mapping.py", [0, 1, 2, 4]),
        (f"{MODELS}/gemma/gemma3_provider.py", [0, 4]),
        (f"{MODELS}/mistral/mistral_bridge.py", [0, 1, 4]),
        (f"{MODELS}/brand_new/brand_new_bridge.py", [0, 1, 4]),
        (f"{MODELS}/glm_vl/modeling_glm_45v.py", [0, 2, 4]),
        ("src/megatron/bridge/peft/lora.py", [0, 1, 4, 5]),
        ("src/megatron/bridge/peft/utils.py", [0, 1, 2, 4, 5]),
    ),
)
def test_the_packaged_policy_gives_each_path_its_levels(path: str, expected: list[int]) -> None:
    assert levels(path) == expected


@pytest.mark.no_cover
def test_the_packaged_policy_stays_above_its_floor_on_labelled_pull_requests() -> None:
    wanted = met = planned = right = safe = exact = 0
    rows = [json.loads(line) for line in LABELLED.read_text().splitlines()]
    for row in rows:
        found, required, optional = set(levels(*row["paths"])), set(row["required"]), set(row["optional"])
        wanted, met = wanted + len(required), met + len(required & found)
        planned, right = planned + len(found), right + len(found & (required | optional))
        safe += required <= found
        exact += required <= found <= required | optional
    assert met / wanted >= 0.90
    assert right / planned >= 0.75
    assert safe / len(rows) >= 0.90
    assert exact / len(rows) >= 0.65


def test_the_document_has_exactly_its_keys_and_a_reason_for_every_level() -> None:
    document = json.loads(plan_json(plan(change(*KINDS), POLICY)))
    assert list(document) == [
        "schema",
        "base",
        "head",
        "levels",
        "jobs",
        "minutes_to_answer",
        "reasons",
        "not_required",
        "families",
        "features",
        "bridge_tests",
        "incomplete",
        "notes",
        "looked_at",
        "changed",
        "not_covered",
        "not_entered",
        "unshown",
    ]
    assert (document["schema"], document["base"], document["head"]) == (2, BASE, HEAD)


def test_a_change_with_no_files_says_so() -> None:
    made = plan(change(), POLICY)
    assert made.levels == ()
    assert [item.level for item in made.not_required] == list(Level)
    assert {item.reason for item in made.not_required} == {"the change has no files"}
    assert "no level is required" in render_plan_text(made)


def test_an_exempt_change_tells_how_many_paths_and_why() -> None:
    made = plan(change("docs/a.md", "docs/b.md", "tests/test_a.py"), POLICY)
    reason = made.not_required[0].reason
    assert "2 in documentation" in reason
    assert "1 in tests" in reason


def test_an_unknown_path_is_never_skipped() -> None:
    made = plan(change("something/never/seen.cpp"), POLICY)
    assert [int(level) for level in made.levels] == [0]
    assert made.reasons[0].path == "something/never/seen.cpp"
    assert "unknown path" in made.reasons[0].reason


@pytest.mark.parametrize("old", ("src/megatron/bridge/peft/lora.py", "docs/lora.md"))
def test_a_rename_counts_by_both_names(old: str) -> None:
    new = "docs/lora.md" if old.startswith("src") else "src/megatron/bridge/peft/lora.py"
    renamed = Change(BASE, HEAD, BASE, (ChangedPath(new, PathStatus.RENAMED, old_path=old),))
    assert [int(level) for level in plan(renamed, POLICY).levels] == levels("src/megatron/bridge/peft/lora.py")


def test_a_deleted_package_is_planned_like_a_changed_one() -> None:
    gone = ChangedPath(f"{MODELS}/mistral/mistral_bridge.py", PathStatus.REMOVED)
    assert [int(level) for level in plan(Change(BASE, HEAD, None, (gone,)), POLICY).levels] == [0, 1, 4]


def test_jobs_wait_for_the_smoke_and_use_the_family_checkpoint() -> None:
    made = plan(change(f"{MODELS}/qwen/qwen3_bridge.py"), POLICY)
    jobs = {job.id: job for job in made.jobs}
    assert list(jobs) == ["0-lora-ddp", "1-resume", "4-feature-qwen3"]
    assert jobs["0-lora-ddp"].requires == ()
    assert all(job.requires == ("0-lora-ddp",) for id_, job in jobs.items() if id_ != "0-lora-ddp")
    assert {job.checkpoint.model_id for job in made.jobs if job.checkpoint} == {"Qwen/Qwen3-0.6B"}


def test_a_family_that_no_host_can_run_keeps_its_job_and_says_why() -> None:
    made = plan(change(f"{MODELS}/kimi_vl/modeling_kimi.py"), POLICY)
    feature = next(job for job in made.jobs if job.id == "4-feature-kimi-k25-vl")
    assert (feature.checkpoint, feature.gpu_minutes, feature.obstacles[0].missing) == (None, 0, Missing.MODEL)
    assert (made.blocked_jobs, made.uncoverable_jobs) == ((), (feature,))
    reason = "no host can run a model of the family kimi_k25_vl: Bridge takes"
    assert feature.uncoverable.startswith(reason)
    text = render_plan_text(made)
    assert f"\nNot covered by 4-feature-kimi-k25-vl: {reason}" in text.partition("\n\n")[0]
    assert f"  job 4-feature-kimi-k25-vl: not covered: {reason}" in text
    assert plan_document(made).jobs[-1].uncoverable == feature.uncoverable


def test_a_family_without_a_model_and_without_a_reason_can_be_given_one() -> None:
    kimi = next(family for family in POLICY.families if family.name == "kimi_k25_vl")
    policy = POLICY.model_copy(update={"families": (kimi.model_copy(update={"no_synthetic": None}),)})
    made = plan(change(f"{MODELS}/kimi_vl/modeling_kimi.py"), policy)
    blocked = next(job for job in made.blocked_jobs if job.family)
    assert (blocked.uncoverable, made.uncoverable_jobs, blocked.obstacles[0].missing) == ("", (), Missing.CHECKPOINT)
    assert "the family kimi_k25_vl has neither `checkpoint:` nor `synthetic:` in the policy" in render_plan_text(made)


def test_an_expert_change_adds_the_expert_variant_with_an_expert_checkpoint() -> None:
    made = plan(change("src/megatron/bridge/peft/utils.py"), POLICY)
    expert = next(job for job in made.jobs if job.id == "2-expert")
    assert expert.checkpoint is not None
    assert expert.checkpoint.model_id == "synthetic/qwen3_moe"


def test_a_dense_family_alone_asks_for_no_expert_variant() -> None:
    made = plan(change(f"{MODELS}/ministral3/modeling_ministral3.py"), POLICY)
    assert [job.id for job in made.jobs if job.variant.level is Level.PARALLELISM] == ["2-dense"]


def test_rules_may_name_variants() -> None:
    ids = [job.id for job in plan(change("src/megatron/bridge/peft/recompute.py"), POLICY).jobs]
    assert {"0-lora-ddp", "0-amplified-lora", "0-recompute"} <= set(ids)
    assert ids[0] == "0-lora-ddp"


def test_feature_jobs_are_bounded() -> None:
    paths = [f"{MODELS}/{name}" for name in ("mistral/m_bridge.py", "olmoe/o_bridge.py", "llama/l_bridge.py")]
    paths += [f"{MODELS}/{name}" for name in ("gpt_oss/g_bridge.py", "falcon_h1/f_bridge.py", "mimo/m_bridge.py")]
    made = plan(change(*paths), POLICY)
    assert len([job for job in made.jobs if job.variant.level is Level.FEATURE]) == POLICY.family_jobs
    assert "no job of their own, for family_jobs is 4: falcon_h1, mimo" in render_plan_text(made)


def test_level_zero_is_added_with_a_reason_where_only_another_is_asked_for() -> None:
    text = """
    schema: 1
    verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
    image: {name: verlai/verl, tag: latest}
    checkpoint: {model_id: tiny/dense}
    rules: [{name: fsdp, paths: [fsdp/], levels: [3], reason: sharding}]
    """
    made = plan(change("fsdp/wrap.py"), load_policy(text, "policy.yml"))
    assert [int(level) for level in made.levels] == [0, 3]
    smoke = next(reason for reason in made.reasons if reason.level is Level.SMOKE)
    assert smoke.path is None
    assert "level 3" in smoke.reason


@pytest.mark.parametrize("paths", ((), ("docs/a.md",), (f"{MODELS}/model_provider.py",)))
def test_a_level_asked_for_by_hand_is_planned_with_level_zero(paths: tuple[str, ...]) -> None:
    made = plan(change(*paths), POLICY, (Level.LEARNING_SIGNAL, Level.FEATURE))
    assert {Level.SMOKE, Level.LEARNING_SIGNAL, Level.FEATURE} <= set(made.levels)
    assert {job.variant.level for job in made.jobs} == set(made.levels)
    assert consistent(made)
    assert "requested by hand" in render_plan_text(made)


@pytest.mark.slow
def test_three_thousand_odd_names_are_planned_and_fold_into_a_short_text() -> None:
    names = [f"src/megatron/bridge/peft/n\u00e4me {i}\n\x1b[31m\udcff.py" for i in range(3000)]
    made = plan(change(*names), POLICY)
    plan_json(made).encode()
    text = render_plan_text(made)
    assert text.encode()
    assert "\x1b" not in text
    assert len(text.splitlines()) < 60
    assert "and 2997 more paths" in text


def test_text_counts_jobs_gpus_and_minutes() -> None:
    made = plan(change(f"{MODELS}/model_provider.py"), POLICY)
    text = render_plan_text(made)
    assert f"{len(made.jobs)} jobs, about {made.gpu_minutes} GPU minutes (measured), 4 GPUs at most" in text


paths = st.lists(st.sampled_from(KINDS) | st.text(max_size=40).map(lambda tail: f"src/{tail}"), max_size=8)


def consistent(made: Plan) -> bool:
    """Every level is required with a reason or not required with one, never both."""
    required = {reason.level for reason in made.reasons}
    spared = {item.level for item in made.not_required}
    return required == set(made.levels) and required | spared == set(Level) and not required & spared


@settings(deadline=None, max_examples=25)
@given(paths, st.data())
def test_the_order_of_paths_is_irrelevant(given_paths: list[str], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(given_paths))
    made = plan(change(*given_paths), POLICY)
    assert made == plan(change(*shuffled), POLICY)
    assert consistent(made)


@settings(deadline=None, max_examples=25)
@given(paths, paths)
def test_more_paths_never_lower_a_level_or_drop_a_reason(some: list[str], more: list[str]) -> None:
    less, whole = plan(change(*some), POLICY), plan(change(*some, *more), POLICY)
    assert set(less.levels) <= set(whole.levels)
    implied = {reason for reason in less.reasons if reason.path is None}
    assert set(less.reasons) - implied <= set(whole.reasons)


@settings(deadline=None, max_examples=25)
@given(paths)
def test_any_level_brings_level_zero_and_every_level_its_job(given_paths: list[str]) -> None:
    made = plan(change(*given_paths), POLICY)
    if made.levels:
        assert made.levels[0] is Level.SMOKE
    assert {job.variant.level for job in made.jobs} == set(made.levels)
    assert len({job.id for job in made.jobs}) == len(made.jobs)


def test_every_variant_has_an_id_of_its_own() -> None:
    assert len({variant.job_id for variant in VARIANTS}) == len(VARIANTS)


@pytest.mark.parametrize(
    ("path", "jobs"),
    (
        # The packaged checkpoint of Qwen3-VL has no experts: those of another family's model do not run its files.
        (f"{MODELS}/qwen_vl/modelling_qwen3_vl/attention.py", {}),
        (f"{MODELS}/conversion/param_mapping.py", {"2-expert": "rule parameter mapping: "}),
    ),
)
def test_a_job_beside_the_default_one_runs_what_asks_for_it(path: str, jobs: dict[str, str]) -> None:
    made = plan(change(path), packaged_policy(), (Level.PARALLELISM,))
    found = {job.id: job.reason for job in made.jobs if job.variant.level is Level.PARALLELISM and not job.is_default}
    assert {name: reason[: len(jobs.get(name, ""))] for name, reason in found.items()} == jobs
