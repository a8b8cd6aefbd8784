"""Imports that failed because something is not there: whose they are, by the module and the files that Python names."""

import pytest

from tests.core.builders import error
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.facts import LoggedError
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.triage.explain import explain_log
from verl_e2e.core.triage.origin import BrokenImport, Origin, between_trees, broken_import, error_origin, involves_trees
from verl_e2e.core.triage.triage import TriageVerdict, triage

BRIDGE = "/opt/Megatron-Bridge/src/megatron/bridge"
CORE = "/opt/Megatron-LM/megatron/core"
INSTALLED = "/usr/lib/python3.12/site-packages/megatron/core"
VERL = "/opt/verl/verl/models/mcore"
BODY = "<module>"


def logged(line: str, importer: str = f"{BRIDGE}/peft/lora.py", function: str = BODY) -> bytes:
    """A log of an exception that was raised below verl in this file."""
    frames = (("/opt/verl/verl/trainer/main_ppo.py", "main"), (importer, function))
    rows = [f'  File "{path}", line 12, in {name}' for path, name in frames]
    return "\n".join(["Traceback (most recent call last):", *rows, line, ""]).encode()


def read(line: str, importer: str = f"{BRIDGE}/peft/lora.py", function: str = BODY) -> LoggedError:
    (found,) = scan([logged(line, importer, function)]).errors
    return found


GONE = f"ImportError: cannot import name 'gone' from 'megatron.core.utils' ({CORE}/utils.py)"
CIRCULAR = (
    "ImportError: cannot import name 'late' from partially initialized module 'megatron.bridge.peft.base' "
    f"(most likely due to a circular import) ({BRIDGE}/peft/base.py)"
)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ModuleNotFoundError: No module named 'megatron.core.gone'", BrokenImport("megatron.core.gone")),
        (GONE, BrokenImport("megatron.core.utils", "gone", f"{CORE}/utils.py")),
        (CIRCULAR, BrokenImport("megatron.bridge.peft.base", "late", f"{BRIDGE}/peft/base.py")),
        (
            "AttributeError: module 'megatron.core.utils' has no attribute 'gone'",
            BrokenImport("megatron.core.utils", "gone"),
        ),
        ("AttributeError: 'Provider' object has no attribute 'gone'", None),
        ("ImportError: cannot import name 'core' from 'megatron' (unknown location)", None),
        ("ImportError: fused kernels are not installed", None),
        ("ValueError: No module named 'megatron.core.gone'", None),
    ],
)
def test_what_an_exception_says_is_missing(line: str, found: BrokenImport | None) -> None:
    assert broken_import(read(line)) == found


@pytest.mark.parametrize(
    ("line", "importer"),
    [
        ("ModuleNotFoundError: No module named 'megatron.core.gone'", f"{BRIDGE}/peft/lora.py"),
        ("ModuleNotFoundError: No module named 'megatron.bridge.gone.deep'", f"{CORE}/transformer/a/b/c/d/mlp.py"),
        (GONE, f"{BRIDGE}/peft/lora.py"),
        (GONE.replace("(/opt/Megatron-LM", "($MEGATRON_LM"), "$BRIDGE/src/megatron/bridge/peft/lora.py"),
        (CIRCULAR, f"{BRIDGE}/peft/lora.py"),
        ("AttributeError: module 'megatron.core' has no attribute 'gone'", f"{BRIDGE}/__init__.py"),
    ],
)
def test_an_import_between_bridge_and_megatron_lm_is_a_fail_at_any_stage(line: str, importer: str) -> None:
    found = read(line, importer)
    assert between_trees(found)
    assert error_origin(found) is Origin.TREES
    for before in (b"", b"all initialize finished, ready to fit\nTraining Progress:   0%|  | 0/2 [00:00<?, ?it/s]\n"):
        answer = triage(scan([before + logged(line, importer)]))
        assert (answer.verdict, answer.stage, answer.rule) == (TriageVerdict.FAIL, Stage.IMPORT, "import-between-trees")
        assert not answer.undecided
    shown = explain_log(scan([logged(line, importer)]))
    assert shown.decided == ("rule import-between-trees: a fault in the source under test, Fail wherever it happens")


@pytest.mark.parametrize(
    ("line", "importer", "undecided"),
    [
        # Part of a package that is not installed, or of a copy that is.
        ("ModuleNotFoundError: No module named 'megatron.energon'", f"{BRIDGE}/data/a.py", True),
        ("ModuleNotFoundError: No module named 'transformer_engine'", f"{CORE}/extensions/a.py", True),
        (GONE.replace(CORE, INSTALLED), f"{BRIDGE}/peft/lora.py", True),
        (GONE, f"{INSTALLED}/transformer/mlp.py", True),
        ("ModuleNotFoundError: No module named 'modelopt'", f"{INSTALLED}/post/training.py", False),
        # Compiled, or there only with a package that is wrapped.
        (
            "ModuleNotFoundError: No module named 'megatron.core.datasets.helpers_cpp'",
            f"{CORE}/datasets/utils.py",
            True,
        ),
        (
            "ImportError: cannot import name 'TELinear' from 'megatron.core.extensions.transformer_engine' "
            f"({CORE}/extensions/transformer_engine.py)",
            f"{BRIDGE}/models/gpt.py",
            True,
        ),
        # The whole package is not on the path.
        ("ModuleNotFoundError: No module named 'megatron.bridge'", f"{VERL}/bridge.py", False),
        ("ModuleNotFoundError: No module named 'megatron.core'", f"{BRIDGE}/__init__.py", True),
        # verl imports what Bridge does not have: the contract, which the merge base decides.
        ("ModuleNotFoundError: No module named 'megatron.bridge.gone'", f"{VERL}/bridge.py", True),
        (GONE, f"{VERL}/bridge.py", True),
        ("ModuleNotFoundError: No module named 'transfer_queue'", f"{VERL}/bridge.py", False),
    ],
)
def test_other_failed_imports_stay_blocked_and_say_whether_the_change_may_be_at_fault(
    line: str, importer: str, undecided: bool
) -> None:
    found = read(line, importer)
    assert not between_trees(found)
    assert involves_trees(found) == undecided
    answer = triage(scan([logged(line, importer)]))
    assert (answer.verdict, answer.undecided) == (TriageVerdict.BLOCKED, undecided)


def test_a_missing_attribute_counts_only_while_a_module_is_imported() -> None:
    line = "AttributeError: module 'megatron.core.utils' has no attribute 'gone'"
    assert between_trees(read(line))
    assert not between_trees(read(line, function="transform"))


def test_an_error_without_frames_is_put_down_to_no_tree() -> None:
    alone = error("ModuleNotFoundError", "No module named 'megatron.core.gone'", stage=Stage.DATA)
    assert not between_trees(alone)
    assert involves_trees(alone)


@pytest.mark.parametrize(
    ("line", "undecided"),
    [
        ("RuntimeError: the fused kernel is not installed", True),
        ("NameError: name 'List' is not defined", True),
        ("OSError: [Errno 28] No space left on device", False),
        ("torch.AcceleratorError: CUDA error: CUDA driver version is insufficient for CUDA runtime version", False),
    ],
)
def test_what_blocks_a_run_while_bridge_is_imported(line: str, undecided: bool) -> None:
    answer = triage(scan([logged(line)]))
    assert (answer.verdict, answer.undecided) == (TriageVerdict.BLOCKED, undecided)
    elsewhere = triage(scan([logged(line, "/usr/lib/python3/site-packages/other/a.py")]))
    assert (elsewhere.verdict, elsewhere.undecided) == (TriageVerdict.BLOCKED, False)
