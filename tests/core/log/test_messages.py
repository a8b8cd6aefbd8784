"""What a reader gets of an error: its whole message, the frame of ours with its source line, and what Ray folded."""

import pytest

from tests.core.logs import fed, lines
from verl_e2e.core.log.scan import scan
from verl_e2e.core.log.traceback import MAX_LINES, MAX_TEXT, is_ours
from verl_e2e.core.model.facts import Frame, LoggedError
from verl_e2e.core.triage.triage import TriageVerdict, triage

H = "Traceback (most recent call last):"
FRAME = '  File "/w/megatron/bridge/peft/lora.py", line 7, in transform'
SOURCE = "    raise ValueError(name)"
FOLDED = " [repeated 43x across cluster]"


def only(*texts: str) -> LoggedError:
    (error,) = scan(lines(*texts)).errors
    return error


def behind(prefix: str, *texts: str) -> list[str]:
    return [prefix + text for text in texts]


# Whole messages as the programs print them, and what follows that is none of it.
MESSAGES = {
    # PyTorch, torch/nn/modules/module.py:load_state_dict
    "state-dict": (
        "RuntimeError: Error(s) in loading state_dict for GPTModel:",
        '\tMissing key(s) in state_dict: "a", "b". ',
        "\tsize mismatch for c: copying a param with shape torch.Size([2]) from checkpoint.",
    ),
    # pydantic-core, src/errors/validation_exception.rs
    "pydantic": (
        "pydantic_core._pydantic_core.ValidationError: 2 validation errors for ModelConfig",
        "max_model_len",
        "  Input should be greater than 0 [type=greater_than, input_value=-1, input_type=int]",
        "    For further information visit https://errors.pydantic.dev/2.12/v/greater_than",
        "dtype",
        "  Value error, unknown dtype [type=value_error, input_value='x', input_type=str]",
    ),
    # omegaconf, errors.py, as Hydra prints it
    "omegaconf": (
        "omegaconf.errors.ConfigAttributeError: Key 'x' is not in struct",
        "    full_key: a.x",
        "    object_type=dict",
    ),
    # PyTorch, torch/testing/_comparison.py
    "not-close": (
        "AssertionError: Tensor-likes are not close!",
        "",
        "Mismatched elements: 3 / 16 (18.8%)",
        "Greatest absolute difference: 0.5 at index (0, 1) (up to 1e-05 allowed)",
    ),
    # PyTorch, torch/csrc/distributed/c10d/NCCLUtils.hpp
    "nccl": (
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error",
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "Last error:",
        "socketStartConnect: Connect to 192.0.2.7<39231> failed : Software caused connection abort",
    ),
    # Transformers, dynamic_module_utils.py
    "remote-code": (
        "ValueError: The repository x contains custom code which must be executed.",
        " You can inspect the repository content at https://hf.co/x.",
        "Please pass the argument `trust_remote_code=True` to allow custom code to be run.",
    ),
    "single": ("KeyError: 'prompt'",),
}
AFTER = (
    ("", "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."),
    ("+ exit 1",),
    ("ERROR:root:the next record",),
    ("2026-11-20 14:22:03,674 - name - INFO - x",),
    ("Loading:  10%|#         | 1/10 [00:01<00:09]",),
    ("ray init kwargs: {}",),
    ("*** SIGTERM received at time=1 on cpu 3 ***",),
    ("", "a sentence of another program"),
)


@pytest.mark.no_cover
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("prefix", ["", "(W pid=3) ", "[rank0]: ", "(E pid=3) ERROR 11-20 14:54:29 [core.py:1231] "])
def test_the_whole_message_is_kept_and_nothing_else(name: str, after: tuple[str, ...], prefix: str) -> None:
    first, *more = MESSAGES[name]
    facts = scan(lines(*behind(prefix, H, FRAME, SOURCE, first, *more, *after)))
    expected = "\n".join(row.rstrip() for row in (first.partition(": ")[2], *more))
    assert facts.errors[0].full_message == expected


def test_the_message_stops_where_the_chain_goes_on() -> None:
    error = only(
        H,
        FRAME,
        "ValueError: first",
        "Please do this.",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        H,
        FRAME,
        "OSError: x",
        "more of x",
    )
    assert error.full_message == "first\nPlease do this."


def test_a_message_without_end_is_bounded() -> None:
    error = only(H, FRAME, "ValueError: x", *(f"  line {number} {'y' * 300}" for number in range(500)))
    assert len(error.full_message) <= MAX_TEXT
    assert len(error.full_message.split("\n")) <= MAX_LINES


def test_hydra_says_more_below_its_first_line() -> None:
    more = ("To append to your config use +a.b=1", "Key 'b' is not in struct", "    full_key: a.b")
    facts = scan(lines("Could not override 'a.b'.", *more, "", "Set the environment variable HYDRA_FULL_ERROR=1"))
    assert facts.errors[0].full_message == "\n".join(("Could not override 'a.b'.", *more))


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("/opt/kit/bridge/src/megatron/bridge/peft/lora.py", True),
        ("/workspace/Megatron-LM/megatron/core/optimizer/__init__.py", True),
        ("/usr/lib/python3/dist-packages/verl/trainer/ppo/ray_trainer.py", True),
        ("verl/workers/engine_workers.py", True),
        ("/src/verl/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py", False),
        ("/opt/verl/lib/python3.12/json/decoder.py", False),
        ("/opt/megatron/bridge.py", False),
        ("<string>", False),
    ],
)
def test_which_files_are_ours(path: str, ours: bool) -> None:
    assert is_ours(path) is ours


def frame(path: str, function: str, source: str = "") -> list[str]:
    row = f'  File "{path}", line 7, in {function}'
    return [row, f"    {source}", "    ^^^^^^"] if source else [row]


BRIDGE = ("/w/megatron/bridge/peft/lora.py", "transform")
VERL = ("/w/verl/workers/engine_workers.py", "init_model")
TORCH = ("/v/site-packages/torch/nn/modules/module.py", "_call_impl")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        # The innermost of ours, whatever it calls.
        (
            [*frame(*VERL, "build()"), *frame(*BRIDGE, "wrap(x)"), *frame(*TORCH, "call()"), "ValueError: x"],
            (*BRIDGE, "wrap(x)"),
        ),
        ([*frame(*BRIDGE, "wrap(x)"), *frame(*VERL, "build()"), "ValueError: x"], (*VERL, "build()")),
        ([*frame(*BRIDGE), *frame(*TORCH, "call()"), "ValueError: x"], (*BRIDGE, "")),
        ([*frame(*TORCH, "call()"), "ValueError: x"], None),
        # The root's own frames come first, then those of what wraps it.
        (
            [
                *frame(*VERL, "get()"),
                "ray.exceptions.RayTaskError(ValueError): ray::W.run() (pid=3, ip=192.0.2.2)",
                *frame(*TORCH, "call()"),
                "ValueError: x",
            ],
            (*VERL, "get()"),
        ),
        (
            [
                *frame(*VERL, "get()"),
                "ray.exceptions.RayTaskError(ValueError): ray::W.run() (pid=3, ip=192.0.2.2)",
                *frame(*BRIDGE, "wrap(x)"),
                "ValueError: x",
            ],
            (*BRIDGE, "wrap(x)"),
        ),
        # Cut before its exception.
        (frame(*BRIDGE, "wrap(x)"), (*BRIDGE, "wrap(x)")),
    ],
)
def test_the_frame_that_matters(texts: list[str], expected: tuple[str, str, str] | None) -> None:
    error = only(H, *texts)
    assert error.frame == (None if expected is None else Frame(expected[0], 7, expected[1], expected[2]))


def test_the_frame_and_the_message_are_fields_of_the_answer() -> None:
    answer = triage(scan(lines(H, *frame(*BRIDGE, "wrap(x)"), "ValueError: no such layer", "Known: a, b")))
    assert answer.frame == Frame(BRIDGE[0], 7, BRIDGE[1], "wrap(x)")
    assert answer.message == "no such layer\nKnown: a, b"


def test_an_exception_that_ray_folded_ends_the_traceback_that_waits_for_it() -> None:
    facts = scan(lines(*behind("(W pid=3) ", H, FRAME, SOURCE), "(W pid=4) ValueError: no such layer" + FOLDED))
    (error,) = facts.errors
    assert (error.kind, error.at.line, error.message) == ("ValueError", 4, "no such layer")
    assert error.frame is not None


def test_a_frame_that_ray_folded_is_joined() -> None:
    outer = '  File "/w/verl/workers/engine_workers.py", line 7, in init_model'
    facts = scan(lines("(W pid=3) " + H, "(W pid=4) " + outer + FOLDED, *behind("(W pid=3) ", FRAME, "ValueError: x")))
    (error,) = facts.errors
    assert [call.split(":")[-1] for call in error.calls] == ["init_model", "transform"]


def test_a_line_of_a_message_that_ray_folded_is_joined() -> None:
    head = behind("(W pid=3) ", H, FRAME, SOURCE, "RuntimeError: Error(s) in loading state_dict for GPTModel:")
    facts = scan(lines(*head, "(W pid=4) \tMissing key(s) in state_dict: 'a'." + FOLDED, "(T pid=9) going on"))
    assert facts.errors[0].full_message.endswith("\n\tMissing key(s) in state_dict: 'a'.")
    assert facts.errors[0].message.endswith("Missing key(s) in state_dict: 'a'.")


# Ray, src/ray/raylet/node_manager.cc and python/ray/exceptions.py
KILLED = (
    "(raylet) [2024-08-25 19:21:02,241 E 11 11] (raylet) node_manager.cc:3064: 12 Workers (tasks / actors) killed "
    "due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: b8, IP: 192.0.2.2).",
    "(raylet) Workers killed due to memory pressure (OOM)",
    "(raylet) node_manager.cc:2963: System memory low at node with IP 192.0.2.2. Used memory (23.63GB)",
    "Memory on the node (IP: 192.0.2.2, ID: 06) where the task was running was 219.41GB / 230.40GB (0.952289), which "
    "exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: ba) because it was the most recent one",
)
DIED = (
    "Error executing job with overrides: []",
    H,
    '  File "main_ppo.py", line 3, in main',
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
)
BAR = "Training Progress: {0}%|###| {1}/{2} [00:01<00:00, 1.0s/it]"


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("killed", KILLED)
def test_memory_pressure_is_the_hosts(killed: str, late: bool) -> None:
    texts = (*DIED, killed) if late else (killed, *DIED)
    answer = triage(scan(lines(BAR.format(50, 1, 2), *texts)))
    assert (answer.verdict, answer.rule, answer.stage) == (TriageVerdict.BLOCKED, "host-memory", "train_step")


def test_a_report_of_no_killed_worker_says_nothing() -> None:
    report = "(raylet) 0 Workers (tasks / actors) killed due to memory pressure (OOM), 3 Workers crashed"
    assert scan(lines(report)).errors == ()


@pytest.mark.parametrize("size", [1, 33, 1000])
def test_messages_do_not_depend_on_how_the_bytes_arrive(size: int) -> None:
    log = lines(*behind("(W pid=3) ", H, FRAME, SOURCE, *MESSAGES["pydantic"]), *MESSAGES["omegaconf"])[0]
    assert fed(log, size) == scan([log])
