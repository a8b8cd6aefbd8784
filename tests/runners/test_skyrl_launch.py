"""The command, environment and preflight of a SkyRL job, with a small SkyRL whose parser says what it is asked to."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.core.builders import make_job
from verl_e2e.core.consumer.consumers import variant_of
from verl_e2e.core.consumer.skyrl import EVERY_JOB, SKYRL
from verl_e2e.core.model.jobs import Checkpoint, Job, Repository
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import Check, RepositoryState
from verl_e2e.core.model.space import POINTS
from verl_e2e_runner.launch.launchers import launcher_of
from verl_e2e_runner.process.cage import Session
from verl_e2e_runner.trees import Trees, planned_trees

# What SkyRL's parser answers to: keys with a value, and one that it does not know.
CONFIG = """
import dataclasses

@dataclasses.dataclass
class SkyRLTrainConfig:
    trainer: dict
    generator: dict
    environment: dict

    @classmethod
    def from_cli_overrides(cls, arguments):
        made = {"trainer": {}, "generator": {}, "environment": {}, "data": {}}
        for item in arguments:
            key, _, text = item.partition("=")
            if key == "trainer.unknown":
                raise ValueError("Invalid fields {'unknown'} for TrainerConfig.")
            place = made
            *parents, last = key.split(".")
            for name in parents:
                place = place.setdefault(name, {})
            words = {"true": True, "false": False, "null": None}
            if text in words:
                place[last] = words[text]
            elif text.lstrip("-").replace(".", "", 1).isdigit():
                place[last] = float(text) if "." in text else int(text)
            else:
                place[last] = text
        made.pop("data")
        return cls(**made)
"""
FILES = {
    "skyrl/__init__.py": "",
    "skyrl/train/__init__.py": "",
    "skyrl/train/config/__init__.py": CONFIG,
    "skyrl/train/utils/__init__.py": "def validate_cfg(config): pass\n",
    "skyrl/train/entrypoints/main_base.py": "",
}
MADE = ("trainer.log_path", "trainer.ckpt_path", "trainer.export_path")


@pytest.fixture
def skyrl(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / "skyrl" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "skyrl"


def job_of(skyrl: Path, name: str, *overrides: str) -> Job:
    level = Level(int(name[0]))
    variant = variant_of(POINTS[name], level, name[2:], consumer=SKYRL)
    wrapper = {**SKYRL.base, **variant.wrapper, **SKYRL.counts(variant.gpu_count, variant.steps).wrapper}
    given = (*EVERY_JOB, *variant.overrides, *overrides)
    phases = 2 if level is Level.SAVE_RESUME else 1
    job = make_job(level, name[2:], consumer="skyrl", steps=variant.steps, gpu_count=variant.gpu_count)
    return job.model_copy(
        update={
            "script": SKYRL.script,
            "wrapper": wrapper,
            "overrides": given,
            "expected": SKYRL.expected(wrapper, given, phases=phases),
            "verl": Repository(path=str(skyrl), commit="b" * 40),
            "site": job.site.model_copy(update={"python": sys.executable, "overrides": ("++verl.own=1",)}),
        }
    )


def trees_of(job: Job, work: Path) -> Trees:
    planned = planned_trees(job, work)
    state = RepositoryState(name="verl", commit="b" * 40, root="$VERL")
    return replace(planned, verl=Path(job.verl.path), cwd=work, states=(state,))


def session_of(work: Path) -> Session:
    return Session(nonce="n", imports=work / "imports.jsonl", ray_folder=work / "ray")


def test_the_command_is_that_of_skyrls_entry_point(skyrl: Path, tmp_path: Path) -> None:
    job = job_of(skyrl, "1-resume")
    starts = launcher_of(job).launches(job, trees_of(job, tmp_path), session_of(tmp_path), base={"PATH": "/bin"})
    assert [start.phase.name for start in starts] == ["save", "resume"]
    first, second = starts
    assert first.argv[:3] == (sys.executable, "-m", "skyrl.train.entrypoints.main_base")
    assert "trainer.override_entrypoint=verl_e2e_skyrl" in first.argv
    assert "trainer.max_training_steps=1" in first.argv
    assert "trainer.resume_mode=none" in first.argv
    assert "trainer.resume_mode=latest" in second.argv
    # Both phases save to, and load from, one place.
    assert {item for item in first.argv if "ckpt_path" in item} == {item for item in second.argv if "ckpt_path" in item}
    # In a cage the names of SkyRL's own files are links in the folder that a run starts in, and may not be written to.
    made = [Path(item.partition("=")[2]) for item in first.argv if item.partition("=")[0] in MADE]
    assert len(made) == len(MADE)
    assert not {path.relative_to(tmp_path).parts[0] for path in made} & {path.name for path in skyrl.iterdir()}
    # What a site profile sets of a trainer is verl's.
    assert not any("verl.own" in item for item in first.argv)
    path = first.environment["PYTHONPATH"].split(":")
    assert path.index(str(skyrl)) < path.index(str(skyrl / "skyrl-gym"))
    assert first.environment["SKYRL_DUMP_INFRA_LOG_TO_STDOUT"] == "1"
    assert not {*SKYRL.base} & {*first.set_here}


def test_preflight_asks_skyrls_own_parser(skyrl: Path, tmp_path: Path) -> None:
    job = job_of(skyrl, "2-dense")
    check = launcher_of(job).check(
        job, trees_of(job, tmp_path), session_of(tmp_path), base={"PATH": "/bin"}, model=None, work=tmp_path
    )
    assert [(finding.check, finding.ok) for finding in check.findings] == [(Check.WRAPPER, True), (Check.HYDRA, True)]
    assert check.configs[-1]["trainer"]["policy"]["megatron_config"]["tensor_model_parallel_size"] == 2
    assert check.driver_environment is not None


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "trainer.unknown=1",
            "SkyRL refuses the configuration: ValueError: Invalid fields {'unknown'}",
        ),
        (
            "trainer.strategy=fsdp",
            "trainer.strategy is 'fsdp' in the composed configuration",
        ),
    ],
)
def test_what_the_parser_refuses_or_reads_otherwise_blocks(
    skyrl: Path, tmp_path: Path, override: str, words: str
) -> None:
    job = job_of(skyrl, "0-lora-ddp", override)
    job = job.model_copy(update={"expected": {"trainer.strategy": "megatron"}})
    check = launcher_of(job).check(
        job, trees_of(job, tmp_path), session_of(tmp_path), base={"PATH": "/bin"}, model=None, work=tmp_path
    )
    (found,) = check.findings
    assert (found.check, found.ok, found.blocking) == (Check.HYDRA, False, True)
    assert words in found.summary


def test_a_skyrl_that_cannot_be_imported_blocks(skyrl: Path, tmp_path: Path) -> None:
    (skyrl / "skyrl/train/config/__init__.py").write_text("import a_package_that_is_missing\n")
    job = job_of(skyrl, "0-lora-ddp")
    check = launcher_of(job).check(
        job, trees_of(job, tmp_path), session_of(tmp_path), base={"PATH": "/bin"}, model=None, work=tmp_path
    )
    (found,) = check.findings
    assert "SkyRL's configuration cannot be imported: No module named 'a_package_that_is_missing'" in found.summary


def test_a_model_without_weights_is_refused(skyrl: Path, tmp_path: Path) -> None:
    job = job_of(skyrl, "0-lora-ddp")
    job = job.model_copy(update={"checkpoint": Checkpoint(model_id="a/b", dummy_config="/c.json")})
    check = launcher_of(job).check(
        job, trees_of(job, tmp_path), session_of(tmp_path), base={"PATH": "/bin"}, model=None, work=tmp_path
    )
    assert "SkyRL has no switch for a model without weights" in check.findings[0].summary
