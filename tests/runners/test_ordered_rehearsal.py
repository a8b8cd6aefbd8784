"""An ordered rehearsal, run for real on two commits of a released Bridge, and judged as the service judges it."""

import json
import os
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import REHEARSAL as ENVIRONMENT
from tests.runners.test_released_bridge import ROPE
from verl_e2e.adapters.files.folders import run_folders
from verl_e2e.app.analysis import DOCUMENT, Judged, judge_ended
from verl_e2e.cli.run import run_verb
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.compare.rehearsal import CellOutcome
from verl_e2e.core.model.jobs import REHEARSAL, RehearsalJob, Repository
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.related import Bands
from verl_e2e.core.pulls.job_order import NONCE_FILE
from verl_e2e.core.pulls.ledger import Run, run_key
from verl_e2e.git.repository import GitRepository

NONCE = "c" * 32
FAULTY = "src/megatron/bridge/models/conversion/param_mapping.py"
ENTERED, STATEMENT = "src/megatron/bridge/models/qwen/qwen3_bridge.py", "        provider.qk_layernorm = True"


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, message: str) -> str:
    git(folder, "add", "--all", "--", ".", ":!3rdparty")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A repository of the released Bridge, with Megatron-LM as its submodule, and its commit."""
    root = tmp_path_factory.mktemp("repositories")
    released = ENVIRONMENT / "released" / "megatron"
    core, own = root / "bridge/.git/modules/3rdparty/Megatron-LM", root / "bridge"
    made = root / "core"
    for folder, source, below in (
        (made, released / "core", "megatron/core"),
        (own, released / "bridge", "src/megatron/bridge"),
    ):
        shutil.copytree(source, folder / below, ignore=shutil.ignore_patterns("__pycache__"))
        git(folder, "init", "--quiet")
    pin = commit(made, "Megatron-LM")
    core.parent.mkdir(parents=True)
    git(root, "clone", "--quiet", "--bare", str(made), str(core))
    git(own, "update-index", "--add", "--cacheinfo", f"160000,{pin},3rdparty/Megatron-LM")
    return own, commit(own, "Bridge")


def ordered(bridge: Path, base: str, head: str) -> RehearsalJob:
    recipes = {
        family.name: {**family.synthetic.recipe.model_dump(mode="json"), "wanted": ROPE}
        for family in packaged_policy().families
        if family.synthetic and family.name == "qwen3"
    }
    return RehearsalJob.model_validate(
        {
            "kind": "rehearsal",
            "bridge": Repository(path=str(bridge), commit=head),
            "base": base,
            "recipes": recipes,
            "cells": ("qwen3-plain",),
            "python": str(ENVIRONMENT / "bin/python"),
        }
    )


def rehearse(job: RehearsalJob, folder: Path, work: Path, *words: str) -> int:
    """The exit code of `verl-e2e run` for the order."""
    folder.mkdir(exist_ok=True)
    file = folder / "job.json"
    file.write_text(job.model_dump_json())
    (folder / NONCE_FILE).write_text(NONCE)
    words = ("--job", str(file), "--out", str(folder / "run"), "--work", str(work), *words)
    found = CliRunner().invoke(run_verb, words, standalone_mode=False)
    assert found.exception is None, found.output
    return int(found.return_value)


def judged(job: RehearsalJob, folder: Path) -> Judged:
    now = datetime.now(UTC)
    run = Run(
        key=run_key("octo/bridge", job.bridge.commit, job.digest(), 1),
        repository="octo/bridge",
        number=7,
        head_sha=job.bridge.commit,
        job_id=REHEARSAL,
        job_digest=job.digest(),
        created=now,
        updated=now,
        rehearsal=job,
        nonce=NONCE,
    )
    return judge_ended(run, folder / "run", run_folders(Bands()), GitRepository(Path(job.bridge.path)))


@pytest.mark.rehearsal
def test_two_commits_are_run_and_their_records_are_judged_elsewhere(bridge: tuple[Path, str], tmp_path: Path) -> None:
    own, base = bridge
    (own / FAULTY).write_text((own / FAULTY).read_text() + "\n# a comment\n")
    comment = commit(own, "Comment")
    text = (own / ENTERED).read_text()
    assert text.count(STATEMENT) == 1
    (own / ENTERED).write_text(text.replace(STATEMENT, "        provider.qk_layernorm = bool(1)"))
    equal = commit(own, "Change nothing")
    (own / FAULTY).write_text((own / FAULTY).read_text() + "\nraise ImportError('nothing of this can be imported')\n")
    broken = commit(own, "Break it")
    work = tmp_path / "work"
    # The base alone first, as the workflow does before anything of the head is run.
    job = ordered(own, base, equal)
    assert rehearse(job, tmp_path / "equal", work, "--prepare") == 0
    assert not (tmp_path / "equal/run").exists()
    kept = sorted((work / "rehearsals/records").iterdir())
    assert len(kept) == 1
    assert rehearse(job, tmp_path / "equal", work) == 0
    found = judged(job, tmp_path / "equal")
    assert (found.result, found.rehearsed and found.rehearsed.outcome) == (Result.PASS, CellOutcome.EQUAL), (
        found.sentence
    )
    assert json.loads((tmp_path / "equal/run" / DOCUMENT).read_bytes())["outcome"] == "Equal"
    # Its cell enters the function that differs; of a comment it enters nothing, and need not run.
    job = ordered(own, base, comment)
    assert rehearse(job, tmp_path / "comment", work) == 0
    found = judged(job, tmp_path / "comment")
    assert found.rehearsed is not None
    assert found.rehearsed.outcome is CellOutcome.EQUAL, found.sentence
    carried = [
        json.loads((tmp_path / name / "run" / side / "qwen3-plain.json").read_bytes()).get("carried", False)
        for name, side in (("equal", "base"), ("equal", "head"), ("comment", "head"))
    ]
    assert carried == [False, False, True]
    assert "0 cells ran over the head. What counts for the other 1 is that of a base" in found.rehearsed.section
    job = ordered(own, base, broken)
    assert rehearse(job, tmp_path / "broken", work) == 0
    found = judged(job, tmp_path / "broken")
    assert found.result is Result.FAIL
    assert "import: ImportError: nothing of this can be imported" in found.sentence
    assert kept[0] in (work / "rehearsals/records").iterdir()


def test_what_cannot_be_fetched_is_said_in_the_folder(tmp_path: Path) -> None:
    job = ordered(tmp_path, "a" * 40, "b" * 40).model_copy(update={"python": str(tmp_path / "none")})
    assert rehearse(job, tmp_path / "order", tmp_path / "work") == 4
    assert not (tmp_path / "order" / NONCE_FILE).exists()
    events = [json.loads(line) for line in (tmp_path / "order/run/events.jsonl").read_text().splitlines()]
    (ended,) = [event["data"] for event in events if event["kind"] == "ended"]
    assert (ended["reason"], ended["nonce"]) == ("not_started", NONCE)
    assert "make rehearsal-env" in ended["note"]


def test_options_of_jobs_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(ordered(tmp_path, "a" * 40, "b" * 40).model_dump_json())
    for words in (("--dry-run",), ("--keep-caches", str(tmp_path / "new"))):
        found = CliRunner().invoke(run_verb, ["--job", str(file), "--out", str(tmp_path / "run"), *words])
        assert found.exit_code == 2
        assert "is a rehearsal" in found.output
    assert os.listdir(tmp_path) == ["job.json"]
