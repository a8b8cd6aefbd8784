"""Maps files: what of a run's execution record they keep, and which map of a job counts."""

from typing import Any

import pytest
from pydantic import ValidationError

from verl_e2e.core.model.execution import (
    NO_MAPS,
    Executed,
    ExecutedFile,
    ExecutedFunction,
    ExecutedProcess,
    ExecutionMap,
    ExecutionMaps,
    ProcessRole,
    entered_files,
    merged_maps,
)

LORA = "src/megatron/bridge/peft/lora.py"
CORE = "3rdparty/Megatron-LM/megatron/core/utils.py"


def process(role: ProcessRole) -> ExecutedProcess:
    return ExecutedProcess(phase="train", role=role, title=role, pid=1, python="3.12.3", began_s=0)


def map_of(job: str = "0-lora-ddp", **given: object) -> ExecutionMap:
    fields = {
        "job": job,
        "variant": "0-lora-ddp",
        "model": "local/tiny",
        "bridge": "a" * 40,
        "verl": "b" * 40,
        "megatron_lm": "c" * 40,
        "measured": "2026-11-22",
        "files": {LORA: {"LoRA.transform": ("trainer",)}, CORE: {"f": ("trainer",), "g": ("rollout",)}},
    }
    return ExecutionMap.model_validate(fields | given)


def test_a_map_keeps_who_entered_what_and_forgets_tests_and_lines() -> None:
    roles = (ProcessRole.TRAINER, ProcessRole.BRIDGE_TEST, ProcessRole.ROLLOUT, ProcessRole.TRAINER)
    functions = (
        ExecutedFunction(symbol="b", line=9, first_s={2: 3.0, 0: 1.0, 3: 1.0}),
        ExecutedFunction(symbol="a", line=1, first_s={0: 1.0, 1: 2.0, 77: 1.0}),
        ExecutedFunction(symbol="tested", line=20, first_s={1: 2.0}),
    )
    executed = Executed(
        processes=tuple(map(process, roles)),
        files=(
            ExecutedFile(path="z.py", functions=functions),
            ExecutedFile(path="a.py", functions=functions[2:], lines={20: (1,)}),
        ),
    )
    trainer, rollout = ProcessRole.TRAINER, ProcessRole.ROLLOUT
    assert entered_files(executed) == {"z.py": {"a": (trainer,), "b": (trainer, rollout)}}
    assert list(entered_files(executed)["z.py"]) == ["a", "b"]


def test_what_a_map_says() -> None:
    found = map_of()
    assert found.enters(LORA, "LoRA.transform") == (ProcessRole.TRAINER,)
    assert (found.enters(LORA, "LoRA.merge"), found.enters("other.py", "f")) == ((), ())
    assert (found.count(of_bridge=True), found.count(of_bridge=False)) == (1, 2)


def test_of_one_job_the_newer_map_counts() -> None:
    older = ExecutionMaps(maps=(map_of("1-resume"), map_of(measured="2026-01-01")))
    newer = ExecutionMaps(maps=(map_of(),))
    both = merged_maps(older, newer)
    assert [found.job for found in both.maps] == ["0-lora-ddp", "1-resume"]
    assert both.maps[0] == map_of()
    assert merged_maps(both, NO_MAPS) == both
    assert ExecutionMaps.model_validate_json(both.model_dump_json()) == both


@pytest.mark.parametrize(
    "given",
    [{"bridge": "main"}, {"measured": "yesterday"}, {"files": {LORA: {"f": ("nobody",)}}}, {"megatron_lm": "x"}],
)
def test_what_is_no_map_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        map_of(**given)
    assert map_of(megatron_lm="").megatron_lm == ""
