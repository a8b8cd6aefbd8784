"""What the nodes of a job run: bash runs the script itself, with a Python in Ray's place that only records."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.core.builders import make_job
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.needs import CLUSTER_VARIABLE
from verl_e2e.core.pulls.ray_nodes import (
    ADDRESS_FILE,
    END_FILE,
    LOST_FILE,
    STOP_FILE,
    by_hand_text,
    end_script,
    node_script,
)

# Ray's own command writes where the head is into its folder; the wait for the nodes fails where it is asked to.
PYTHON = """#!/bin/bash
printf '%s\\n' "$*" >> "$RECORD"
for word; do
    case $word in --temp-dir=*) folder=${word#*=} ;; start) ray=yes ;; esac
done
if [ -z "${ray:-}" ]; then
    [ -n "${STOP_JOINING:-}" ] && : > "$STOP_JOINING" && exec sleep 600
    exit "${WAIT_ENDS_WITH:-0}"
fi
[ -n "${STOP_RAY:-}" ] && : > "$STOP_RAY" && exec sleep 600
[ -n "${RAY_FAILS:-}" ] && exit 1
[ -n "${END:-}" ] && : > "$END"
echo 192.0.2.1:6400 > "$folder/ray_current_cluster"
exec sleep 600
"""


def spread_job(python: str) -> Job:
    job = make_job(gpu_count=4, process={"GREETING": "it's $HOME"})
    return job.model_copy(update={"site": job.site.model_copy(update={"gpus_per_node": 2, "python": python})})


def run_node(tmp_path: Path, number: str, **variables: str) -> subprocess.CompletedProcess[str]:
    python = tmp_path / "python 3"
    python.write_text(PYTHON)
    python.chmod(0o755)
    text = f'folder={tmp_path}\n{node_script(spread_job(str(python)))}echo "$GREETING at ${CLUSTER_VARIABLE}"\nfalse\n'
    environ = {"PATH": os.environ["PATH"], "RECORD": str(tmp_path / "record"), "SLURM_PROCID": number}
    words = ["bash", "-c", f"{text}code=$?\n{end_script()}exit $code\n"]
    return subprocess.run(words, env=environ | variables, capture_output=True, text=True, check=False)


def test_the_first_node_starts_the_cluster_runs_and_ends_it(tmp_path: Path) -> None:
    ended = run_node(tmp_path, "0")
    assert (ended.returncode, ended.stdout) == (1, "it's $HOME at 192.0.2.1:6400\n")
    assert (tmp_path / ADDRESS_FILE).read_text() == "192.0.2.1:6400\n"
    assert (tmp_path / END_FILE).exists()
    assert not (tmp_path / LOST_FILE).exists()
    record = (tmp_path / "record").read_text()
    assert "start --head --port=0" in record
    assert "--num-gpus=2 --num-cpus=12 --min-worker-port=0" in record
    assert "192.0.2.1:6400 2 300" in record


def test_another_node_joins_until_the_run_has_ended(tmp_path: Path) -> None:
    (tmp_path / ADDRESS_FILE).write_text("192.0.2.1:6400\n")
    ended = run_node(tmp_path, "1", END=str(tmp_path / END_FILE))
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "start --address=192.0.2.1:6400 --temp-dir=" in (tmp_path / "record").read_text()


def test_another_node_ends_where_the_first_one_never_started_a_cluster(tmp_path: Path) -> None:
    (tmp_path / LOST_FILE).touch()
    assert run_node(tmp_path, "1").returncode == 0
    assert not (tmp_path / "record").exists()


@pytest.mark.parametrize(
    ("number", "variables", "says"),
    [
        ("0", {"RAY_FAILS": "1"}, "node 0: the Ray cluster did not start"),
        ("0", {"WAIT_ENDS_WITH": "1"}, "node 0: the nodes did not all join the Ray cluster"),
        ("1", {"RAY_FAILS": "1"}, "node 1: its part of the Ray cluster ended before the run did"),
    ],
)
def test_a_node_that_cannot_take_part_says_so(
    tmp_path: Path, number: str, variables: dict[str, str], says: str
) -> None:
    if number == "1":
        (tmp_path / ADDRESS_FILE).write_text("192.0.2.1:6400\n")
    ended = run_node(tmp_path, number, **variables)
    assert (ended.returncode, ended.stdout) == (79, "")
    assert says in ended.stderr
    assert (tmp_path / LOST_FILE).exists()
    assert not (tmp_path / END_FILE).exists()


@pytest.mark.parametrize("while_waiting", ["STOP_RAY", "STOP_JOINING"])
def test_a_run_that_is_asked_to_end_before_its_nodes_are_there_ends_soon(tmp_path: Path, while_waiting: str) -> None:
    ended = run_node(tmp_path, "0", **{while_waiting: str(tmp_path / STOP_FILE)})
    assert (ended.returncode, ended.stdout) == (76, "")
    assert "the run was ended before it began" in ended.stderr
    assert (tmp_path / END_FILE).exists()
    assert not (tmp_path / LOST_FILE).exists()
    for file in (ADDRESS_FILE, END_FILE):
        (tmp_path / file).unlink(missing_ok=True)
    assert run_node(tmp_path, "1").returncode == 0


def test_a_dry_run_says_which_cluster_it_needs() -> None:
    assert by_hand_text(make_job(), "") == ""
    job = spread_job("python3")
    text = by_hand_text(job, "")
    assert "# They need a Ray cluster of 2 nodes with 2 GPUs each. Set VERL_E2E_RAY_CLUSTER to its address." in text
    assert all(line.startswith("# ") for line in text.splitlines())
    assert "They join the Ray cluster at 192.0.2.1:6400." in by_hand_text(job, "192.0.2.1:6400")
