"""The check that the model's processor can be loaded, over a stand-in of transformers."""

from pathlib import Path

import pytest

from tests.runners.world import World
from verl_e2e.core.model.jobs import Checkpoint, Job
from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.preflight.inputs import check_processor

LOADED = "print('a library speaks')"
# A processor of transformers imports mistral_common, which imports what is not there.
UNLOADED = """
        try:
            try:
                import no_such_package.inner
            except ModuleNotFoundError:
                raise RuntimeError("the module needs another one")
        except RuntimeError as error:
            raise ModuleNotFoundError("Could not import module 'MistralCommonBackend'") from error
"""
NAMELESS = "raise ImportError('the library is broken')"
OTHER = "raise ValueError('it needs code of its own')"
ENDED = "import os; os._exit(3)"


def found(world: World, folder: Path, body: str, *, file: str = "processor_config.json") -> tuple[Finding, ...]:
    libraries, model = folder / "libraries", folder / "model"
    libraries.mkdir()
    model.mkdir()
    (libraries / "transformers.py").write_text(
        f"class AutoProcessor:\n    @staticmethod\n    def from_pretrained(folder):\n        {body}\n"
    )
    (model / file).write_text("{}")
    job: Job = world.job(checkpoint=Checkpoint(model_id="some/model", model_path=str(model)))
    return check_processor(job, folder, {"PYTHONPATH": str(libraries), "PATH": ""}, folder)


def test_a_processor_that_loads_is_well(world: World, tmp_path: Path) -> None:
    (finding,) = found(world, tmp_path, LOADED)
    assert (finding.ok, finding.check) == (True, Check.PACKAGES)


def test_a_missing_package_is_named_and_blocks(world: World, tmp_path: Path) -> None:
    (finding,) = found(world, tmp_path, UNLOADED)
    assert (finding.ok, finding.blocking, finding.check) == (False, True, Check.PACKAGES)
    assert finding.summary == (
        "the processor of some/model cannot be loaded: ModuleNotFoundError: No module named 'no_such_package'"
    )
    assert finding.fix == "install the package no_such_package for the job's Python"


def test_an_error_without_a_name_is_told_as_it_is(world: World, tmp_path: Path) -> None:
    (finding,) = found(world, tmp_path, NAMELESS)
    assert (finding.ok, finding.blocking) == (False, True)
    assert "ImportError: the library is broken" in finding.summary
    assert finding.fix == "install what the error names for the job's Python"


def test_what_is_not_an_import_is_left_to_the_run(world: World, tmp_path: Path) -> None:
    (finding,) = found(world, tmp_path, OTHER)
    assert finding.ok


def test_a_check_that_ends_early_is_a_note(world: World, tmp_path: Path) -> None:
    (finding,) = found(world, tmp_path, ENDED)
    assert (finding.ok, finding.blocking) == (False, False)
    assert "exit code 3" in finding.summary


@pytest.mark.parametrize("file", ("config.json", "tokenizer.json"))
def test_a_model_that_reads_text_alone_is_not_asked(world: World, tmp_path: Path, file: str) -> None:
    assert found(world, tmp_path, NAMELESS, file=file) == ()


def test_a_model_that_is_not_there_is_not_asked(world: World, tmp_path: Path) -> None:
    job = world.job(checkpoint=Checkpoint(model_id="some/model"))
    assert check_processor(job, tmp_path, {"HF_HOME": str(tmp_path)}, tmp_path) == ()
