"""Asked against got: a run that shows another setting than the one asked for is Blocked, whatever became of it."""

from dataclasses import replace

import pytest

from tests.core.builders import make_case, make_facts
from tests.core.logs import lines
from verl_e2e.core.judge.criteria.basic import local_import
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.evidence import State
from verl_e2e.core.triage.triage import TriageVerdict, triage

ECHO = "+ PYTHONPATH=/src/bridge/src:/src/bridge/3rdparty/Megatron-LM:/src/verl"
WARNED = "{0}/megatron/bridge/models/qwen/qwen2_bridge.py:48: FutureWarning: old"
RAISED = ("Traceback (most recent call last):",)
RAISED_IN = '  File "{0}/megatron/bridge/peft/lora.py", line 93, in transform'
DONE = (
    "step:1 - actor/loss:0.5 - actor/grad_norm:0.25 - critic/grad_norm:1.5",
    "Training Progress: 100%|###| 1/1 [00:01<00:00, 1.0s/it]",
)


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        ((ECHO, WARNED.format("/src/bridge/src")), "completed"),
        ((ECHO, WARNED.format("/src/bridge/./src/")), "completed"),
        ((ECHO, WARNED.format("/usr/lib/python3/site-packages")), "other-checkout"),
        ((ECHO, WARNED.format("/src/main/src")), "other-checkout"),
        # One kind of process imports the checkout, another one what the image has.
        (
            (ECHO, "(T pid=1) " + WARNED.format("/src/bridge/src"), "(W pid=2) " + WARNED.format("/opt/b")),
            "other-checkout",
        ),
        ((ECHO, "(W pid=1) " + WARNED.format("/src/bridge/src"), "(W pid=2) " + WARNED.format("/opt/b")), "completed"),
        # Ray's copy of a working directory, a path that was not asked for, and one that nothing tells apart.
        ((ECHO, WARNED.format("/tmp/ray/session/runtime_resources/working_dir_files/_ray_pkg_1/src")), "completed"),
        (("+ PYTHONPATH=/src/verl", WARNED.format("/usr/lib/python3/site-packages")), "completed"),
        (("+ PYTHONPATH=/opt/site-packages", WARNED.format("/usr/lib/python3/site-packages")), "completed"),
        ((WARNED.format("/usr/lib/python3/site-packages"),), "completed"),
        # A variable that names the checkout, a relative entry, a checkout under another name.
        (("+ export BRIDGE_ROOT=/work/pr", WARNED.format("/work/pr/src")), "completed"),
        (("+ export BRIDGE_ROOT=/work/pr", WARNED.format("/usr/lib/python3/site-packages")), "other-checkout"),
        (("+ PYTHONPATH=./bridge/src", WARNED.format("/src/bridge/src")), "completed"),
        (("+ PYTHONPATH=./bridge/src", WARNED.format("/work/other/src")), "other-checkout"),
        (("PYTHONPATH=/w/pr-1/src:/w/pr-1/3rdparty/Megatron-LM", WARNED.format("/w/pr-2/src")), "other-checkout"),
        (("PYTHONPATH=/w/pr-1/src", WARNED.format("/w/pr-2/src")), "completed"),
        # The frame of an error counts where it is of an installed package, and only there; Megatron-LM like Bridge.
        ((ECHO, *RAISED, RAISED_IN.format("/usr/lib/python3/site-packages"), "ValueError: x"), "other-checkout"),
        ((ECHO, *RAISED, RAISED_IN.format("/another/machine"), "ValueError: x"), "peft"),
        ((ECHO, "/usr/lib/site-packages/megatron/core/a.py:3: UserWarning: x"), "other-checkout"),
        (("+ PYTHONPATH=/src/bridge/src/:/src/verl", WARNED.format("/src/bridge/src")), "completed"),
    ],
)
def test_which_paths_are_of_another_checkout(rows: tuple[str, ...], rule: str) -> None:
    assert triage(scan(lines(*rows, *DONE))).rule == rule


RUN = "+ python3 -m verl.trainer.main_ppo"
SIZES = ("+ COMMON_TP=1", "+ COMMON_PP=1")
RANK = "(W pid=3)  > number of parameters on (tensor, pipeline) model parallel rank ({0}, 0, {1}): 12"
DUMMY = ("+ USE_DUMMY_MODEL=True", "+ MODEL_PATH=/a", "+ DUMMY_MODEL_PATH=/b")


def printed(key: str, value: object) -> str:
    """The configuration with one value, as the run prints it."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return repr({"actor_rollout_ref": {}} | value) if isinstance(value, dict) else ""


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        (("+ LORA_RANK=4", "Enabling LORA with rank=8, alpha=8"), "not-as-asked"),
        (("+ LORA_RANK=4", "+ CRITIC_LORA_RANK=8", "Enabling LORA with rank=8, alpha=8"), "completed"),
        # The last assignment counts, and one of another process is none of ours.
        (("+ LORA_RANK=4", "+ LORA_RANK=8", "Enabling LORA with rank=8, alpha=8"), "completed"),
        (("(W pid=1) + LORA_RANK=4", "Enabling LORA with rank=8, alpha=8"), "completed"),
        (("+ export LORA_RANK=4 OTHER=1", "Enabling LORA with rank=8"), "not-as-asked"),
        (("++ env LORA_RANK=4 COMMON_TP=1 bash run.sh", "Enabling LORA with rank=8"), "not-as-asked"),
        (("LORA_RANK=4", "Enabling LORA with rank=8"), "not-as-asked"),
        (("+ LORA_RANK='4", "Enabling LORA with rank=8"), "completed"),
        (("LORA_RANK=4 is what he said", "Enabling LORA with rank=8"), "completed"),
        (("+ LORA_RANK=${RANK}", "Enabling LORA with rank=8"), "completed"),
        (("+ TOTAL_TRAIN_STEPS=2", "Total training steps: 1"), "not-as-asked"),
        (("+ TOTAL_TRAIN_STEPS=1", "Total training steps: 1"), "completed"),
        (("+ SAVE_FREQ=1",), "not-as-asked"),
        (("+ SAVE_FREQ=1", "Saving checkpoint to /c/global_step_1"), "completed"),
        (("+ SAVE_FREQ=-1",), "completed"),
        (("+ RESUME_MODE=auto", "Training from scratch"), "not-as-asked"),
        (("+ RESUME_MODE=disable", "Training from scratch"), "completed"),
        (("Training from scratch",), "completed"),
        (("+ RESUME_MODE=auto", "Resuming from /c/global_step_3, setting global step to 3"), "not-as-asked"),
        (("+ RESUME_MODE=auto", "Resuming from /c/global_step_0, setting global step to 0"), "completed"),
        # The progress bar, the class around the models, and the ranks that built them.
        (("+ TOTAL_TRAIN_STEPS=2",), "not-as-asked"),
        (("+ USE_MEGATRON_FSDP=False", "(W pid=3) FullyShardedDataParallelV1 contains 1.2M"), "not-as-asked"),
        (("+ USE_MEGATRON_FSDP=True", "(W pid=3) DistributedDataParallel contains 1.2M"), "not-as-asked"),
        (("+ USE_MEGATRON_FSDP=True", "(W pid=3) FullyShardedDataParallelV1 contains 1.2M"), "completed"),
        ((*SIZES, RANK.format(1, 0)), "not-as-asked"),
        ((*SIZES, RANK.format(0, 1)), "not-as-asked"),
        ((*SIZES, RANK.format(0, 0)), "completed"),
        ((SIZES[0], RANK.format(0, 1)), "completed"),
        # A variable that the command does not pass on, and one of a name that other scripts use too.
        (("+ LORA_RANK=16", f"{RUN} actor_rollout_ref.model.lora.rank=4"), "not-as-asked"),
        (("+ NUM_GPUS=4", f"{RUN} trainer.n_gpus_per_node=8"), "completed"),
        # The configuration that was printed, against variables and overrides in the words of shell and Hydra.
        (("+ ENGINE=sglang", printed("actor_rollout_ref.rollout.name", "vllm")), "not-as-asked"),
        (("+ COMMON_TP=2", printed("critic.megatron.tensor_model_parallel_size", 1)), "not-as-asked"),
        (("+ COMMON_TP=2", "+ CRITIC_TP=1", printed("critic.megatron.tensor_model_parallel_size", 1)), "completed"),
        (("+ ROLLOUT_TP=2", printed("actor_rollout_ref.rollout.tensor_model_parallel_size", 1)), "not-as-asked"),
        (("+ MODEL_PATH=/a", printed("actor_rollout_ref.model.path", "/b")), "not-as-asked"),
        (("+ MODEL_PATH=~/a", printed("actor_rollout_ref.model.path", "/root/a")), "completed"),
        ((*DUMMY, printed("actor_rollout_ref.model.path", "/b")), "completed"),
        ((f"{RUN} trainer.nnodes=2", printed("trainer.nnodes", 1)), "not-as-asked"),
        ((f"{RUN} a.b=1 \\", "    trainer.nnodes=2", printed("trainer.nnodes", 1)), "not-as-asked"),
        ((f"{RUN} trainer.nnodes=2 ++trainer.nnodes=1", printed("trainer.nnodes", 1)), "completed"),
        ((f"{RUN} 'actor_rollout_ref.a=\"x\"'", printed("actor_rollout_ref.a", "y")), "not-as-asked"),
        ((f"{RUN} 'actor_rollout_ref.a=\"x\"'", printed("actor_rollout_ref.a", "x")), "completed"),
        ((f"{RUN} +critic.vanilla_mbridge=false", printed("critic.vanilla_mbridge", value=False)), "completed"),
        ((f"{RUN} algorithm.kl_coef=1e-3", printed("algorithm.kl_coef", 0.001)), "completed"),
        ((f"{RUN} critic.size=null", printed("critic.size", None)), "completed"),
        ((f"{RUN} 'critic.parts=[a,b]'", printed("critic.parts", ["a", "b"])), "completed"),
        ((f"{RUN} 'critic.parts=[a,b]'", printed("critic.parts", ["a"])), "not-as-asked"),
        ((f"{RUN} critic.parts={{a:1}}", printed("critic.parts", {"a": 1, "b": 2})), "completed"),
        (
            (f"{RUN} actor_rollout_ref.model.path=${{oc.env:M}}", printed("actor_rollout_ref.model.path", "/b")),
            "completed",
        ),
        ((f"{RUN} +not.printed=3 trainer.device=cpu x=1", printed("trainer.device", "cuda")), "completed"),
        (("(T pid=3) [response] + LORA_RANK=64", "Enabling LORA with rank=4"), "completed"),
    ],
)
def test_what_was_asked_is_held_against_what_the_run_shows(rows: tuple[str, ...], rule: str) -> None:
    assert triage(scan(lines(*rows, *DONE))).rule == rule


def test_a_contradiction_outranks_the_error_of_the_run_and_names_both_lines() -> None:
    rows = ("+ LORA_RANK=4", "Traceback (most recent call last):", '  File "a.py", line 1, in f', "ValueError: no")
    answer = triage(scan(lines(*rows, "Enabling LORA with rank=8, alpha=8")))
    assert (answer.verdict, answer.rule, answer.line, answer.excerpt) == (
        TriageVerdict.BLOCKED,
        "not-as-asked",
        1,
        "LORA_RANK=4",
    )
    assert answer.cause == "asked for LORA_RANK=4 (line 1), but an adapter of rank 8 was enabled (line 5)"


def test_the_list_that_hydra_prints_counts_where_no_command_was_echoed() -> None:
    rows = (
        "Enabling LORA with rank=8, alpha=8",
        "Error executing job with overrides: ['critic.model.lora.rank=8', '{0}']",
    )
    listed = [row.format("actor_rollout_ref.model.lora.rank=4") for row in rows]
    facts = scan(lines(*listed))
    assert [(item.name, item.value) for item in facts.asked][1] == ("actor_rollout_ref.model.lora.rank", "4")
    for broken in ("[", "[x y]", "[1, 2]"):
        assert not list(scan(lines(f"Error executing job with overrides: {broken}")).asked)


@pytest.mark.parametrize("prefix", ["[node-7]: ", "2026-11-20T14:20:56.1234567Z ", "0: ", "trainer-0  | "])
def test_what_was_asked_is_read_behind_a_launcher(prefix: str) -> None:
    rows = ("+ export HYDRA=1", *("+ A=1",) * 20, "+ LORA_RANK=4", "Enabling LORA with rank=8", *DONE)
    assert triage(scan(lines(*(prefix + row for row in rows)))).rule == "not-as-asked"


def test_each_run_of_a_log_is_asked_by_its_own_echo() -> None:
    first = ("+ LORA_RANK=4", "+ python3 -m verl.trainer.main_ppo a.b=1", "Enabling LORA with rank=4", *DONE)
    second = ("+ LORA_RANK=8", "+ python3 -m verl.trainer.main_ppo a.b=2", "Enabling LORA with rank=8", *DONE)
    facts = scan(lines(*first, *second))
    asked = [[(item.name, item.value) for item in part.facts.asked] for part in facts.parts]
    assert asked == [[("LORA_RANK", "4"), ("a.b", "1")], [("LORA_RANK", "8"), ("a.b", "2")]]
    assert triage(facts).rule == "completed"


def test_in_a_run_folder_a_warning_from_another_checkout_breaks_the_import() -> None:
    facts = make_facts()
    other = scan(lines(ECHO, WARNED.format("/usr/lib/python3/site-packages")))
    case = make_case(facts=replace(facts, asked=other.asked, packages=other.packages))
    item = local_import(case)
    assert (item.state, item.line) == (State.BROKEN, 2)
    assert "imported from /usr/lib/python3/site-packages (line 2)" in item.summary
