"""The seed's story with SkyRL's own trainer: gradients that no rank shares, and what each layout shows of it.

Opt in with repositories of SkyRL, Megatron-Bridge and Megatron-LM that have the pins, a Python with Ray, torch and what
else SkyRL needs, and a folder with `model/`, whose tokenizer is used, and `data/`, GSM8K in parquet as verl has
it. `tests/fakes/skyrl_on_cpu` stands in for vLLM and for what needs a GPU.
"""

import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.runners.whole_runs import NO_TOOLS, ONE_GPU, run_whole
from verl_e2e.adapters.files.folders import run_folders
from verl_e2e.app.judge_folder import judge_run
from verl_e2e.config import packaged_policy
from verl_e2e.config.profiles import load_profile
from verl_e2e.core.compare.jobs import unsharded
from verl_e2e.core.consumer.skyrl import SKYRL
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.related_runs import related_run_of
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.change import Change
from verl_e2e.core.model.evidence import State
from verl_e2e.core.model.jobs import Job, Repository
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.related import RELATED_FILE, Related, Role
from verl_e2e.core.plan.beside_verl import for_consumer
from verl_e2e.core.plan.build import PatchChoice, Sources, build_job
from verl_e2e.core.plan.plan import plan, with_parity
from verl_e2e.ports import RunFolders
from verl_e2e_runner.samplers import Device, Devices

pytestmark = [pytest.mark.skyrl_trainer, pytest.mark.host]

STAND_IN = Path(__file__).parents[1] / "fakes" / "skyrl_on_cpu"
GPU = ONE_GPU.devices[0].gpu.model_copy(update={"memory_total_mib": 80000})
TWO_GPUS = Devices(tuple(Device(GPU.model_copy(update={"index": index}), f"GPU-{index}") for index in range(2)))
POLICY = packaged_policy()
BRIDGE, MEGATRON = "067f987df03b8355b03192d88d70f1709fedf51a", "2a75ac12c54ba6a42b34024756820bf819a2e25f"


def job_of(name: str, process: dict[str, str]) -> Job:
    """The parity job as it is planned, but for packed sequences, which the stand-in's attention cannot have."""
    profile = load_profile("hopper-offline", {"kit": os.environ["KIT"]})
    given = profile.model_dump(mode="json")
    site = type(profile).model_validate(
        {
            **given,
            "python": os.environ["SKYRL_PYTHON"],
            "python_path": [str(STAND_IN)],
            "required_packages": [],
            "process": {**given["process"], "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", **process},
        }
    )
    nothing = Change("a" * 40, "b" * 40, "a" * 40, ())
    asked = for_consumer(with_parity(plan(nothing, POLICY, [Level.PARALLELISM]), POLICY), SKYRL, POLICY)
    outline = next(job for job in asked.jobs if job.id == f"{name}-skyrl")
    sources = Sources(
        bridge=Repository(path=os.environ["BRIDGE_REPO"], commit=BRIDGE),
        verl=Repository(path=os.environ["SKYRL"], commit=SKYRL.pin),
        megatron_lm=Repository(path=os.environ["MEGATRON_LM"], commit=MEGATRON),
    )
    job = build_job(outline, policy=POLICY, site=site, sources=sources, patches=PatchChoice(SKYRL.patches, ()))
    padded = "trainer.remove_microbatch_padding"
    assert job.expected[padded] is True
    return job.model_copy(
        update={
            "bridge_tests": (),
            "chosen_tests": (),
            "wrapper": {**job.wrapper, "REMOVE_MICROBATCH_PADDING": "false"},
            "expected": {**job.expected, padded: False},
        }
    )


def judged(folders: RunFolders, job: Job, out: Path, reference: Path | None) -> Verdict:
    variables = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    run_whole(job, out, variables, devices=lambda: TWO_GPUS, isolation=lambda *_: NO_TOOLS)
    if reference is not None:
        shutil.copytree(reference, out / "related" / "unsharded-1")
        record = folders.record(reference)
        assert record.job is not None
        verdict, facts = judge_run(folders, reference)
        # Blocked, as what an engine shows is missing; what it trained counts here.
        passed = replace(verdict, result=Result.PASS)
        run = related_run_of(Role.UNSHARDED, record.job, passed, record, facts, folder="related/unsharded-1")
        (out / RELATED_FILE).write_text(Related(runs=(run,)).model_dump_json(by_alias=True))
        # What joined the folder has no line in its list of files.
        for name in ("manifest.json", "manifest.sig.json"):
            (out / name).unlink()
    verdict, _ = judge_run(folders, out)
    return verdict


def states(verdict: Verdict) -> dict[Criterion, State]:
    return {Criterion(item.criterion): item.state for item in verdict.evidence}


@pytest.mark.parametrize(
    ("name", "shown_by"),
    [
        ("2-dp2-parity", Criterion.PARITY),
        ("2-tp2-parity", Criterion.REPLICAS),
        ("2-pp2-tied-parity", Criterion.REPLICAS),
    ],
)
def test_gradients_that_no_rank_shares_are_shown_by_what_each_layout_has(
    name: str, shown_by: Criterion, tmp_path: Path
) -> None:
    folders, job = run_folders(), partial(job_of, name)
    judged(folders, unsharded(job({})), tmp_path / "reference", None)
    healthy = states(judged(folders, job({}), tmp_path / "healthy", tmp_path / "reference"))
    planted = judged(folders, job({"PLANTED": "no-finalize"}), tmp_path / "planted", tmp_path / "reference")
    # The engine is none, and what it would show is missing.
    assert [criterion for criterion, state in healthy.items() if state is State.BROKEN] == []
    assert (healthy[Criterion.PARITY], healthy[Criterion.REPLICAS]) == (State.MET, State.MET)
    assert states(planted)[shown_by] is State.BROKEN
