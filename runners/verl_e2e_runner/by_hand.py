"""A run by hand: the script that `--dry-run` prints, and the folders that the script's commands need.

The script makes those folders by `verl-e2e run --prepare`: what is checked out, patched and downloaded for it is what
a run of the job would use.
"""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Finding
from verl_e2e.core.pulls.ray_nodes import by_hand_text
from verl_e2e.git.repository import UnknownRevisionError
from verl_e2e_runner.bridge_tests import bridge_tests_text
from verl_e2e_runner.launch.launcher import cluster_of, dry_run_text
from verl_e2e_runner.launch.launchers import launcher_of
from verl_e2e_runner.preflight.preflight import prepare
from verl_e2e_runner.process.cage import Session, model_folder, ray_folder
from verl_e2e_runner.reporting import stops
from verl_e2e_runner.run import own_folder
from verl_e2e_runner.trees import apply_patches, file_at, open_repository, planned_trees, prepare_trees

_NAME = "dry-run"


def dry_run(job: Job, out: Path, *, environ: Mapping[str, str], work: Path | None, prepare: Sequence[str]) -> str:
    """The commands of a run as a script for bash; reads the repositories at the commits, makes and starts nothing.

    `prepare` is the command that makes the folders of the other commands, by `prepare_by_hand`.
    """
    own = own_folder(out, work, _NAME)
    trees = planned_trees(job, own)
    session = replace(_session(own), ray_address=cluster_of(job, environ))
    launcher = launcher_of(job)
    script = file_at(job.verl, job.script, base=environ)
    known = None if script is None else launcher.reads(script)
    starts = launcher.launches(job, trees, session, base=environ, reads=known)
    if recipe := job.checkpoint.synthetic:
        # Where the commands find a model that no hub has, once `prepare_by_hand` has made it.
        made = str(model_folder(recipe, starts[0].environment))
        starts = launcher.launches(job, trees, session, base=environ, model=made, reads=known)
    existing = job
    with suppress(UnknownRevisionError):
        # Where the repository is not on this machine, all tests are taken to be there.
        if (folder := Path(job.bridge.path)).is_dir():
            files = open_repository(folder, base=environ).tree(job.bridge.commit)
            there = tuple(test for test in job.bridge_tests if test.partition("::")[0] in files)
            existing = job.model_copy(update={"bridge_tests": there})
    tests = bridge_tests_text(existing, trees, starts[0].environment, own / "bridge-tests", base=environ)
    return "\n".join(
        (
            f"# The commands of job {job.id}, for bash: one after the other, until one fails.",
            "# They are not isolated: the code under test runs with your rights.",
            *by_hand_text(job, session.ray_address).splitlines(),
            f"# Their files lie in {own} and {session.ray_folder}; remove both when you are done.",
            "(",
            "set -e",
            "# the repositories at the job's commits, its patches, data and model",
            " \\\n  ".join(map(shlex.quote, prepare)),
            *((tests.rstrip("\n"),) if existing.bridge_tests else ()),
            dry_run_text(starts, environ).rstrip("\n"),
            ")\n",
        )
    )


def prepare_by_hand(job: Job, out: Path, *, environ: Mapping[str, str], work: Path | None) -> tuple[Finding, ...]:
    """Make the folders of the commands that `dry_run` prints, afresh each time; a blocking finding says what failed."""
    own = own_folder(out, work, _NAME)
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    trees = apply_patches(job, prepare_trees(job, own, base=environ))
    if stops(trees.findings):
        return trees.findings
    start, *_ = launcher_of(job).launches(job, trees, _session(own), base=environ)
    prepared = own / "prepared"
    prepared.mkdir(exist_ok=True)
    return (*trees.findings, *prepare(job, trees, start.environment, environ, prepared))


def _session(own: Path) -> Session:
    nonce = "0" * 32
    return Session(nonce, ray_folder(nonce), own / "imports.jsonl")
