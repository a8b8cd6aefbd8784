"""Bridge tests run while the imports are proved: they neither read nor write the lines of the proof."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from tests.fakes.patience import HANG_S
from tests.runners.world import World
from verl_e2e_runner.isolation import find_isolation, open_cage
from verl_e2e_runner.preflight.imports import prove_imports
from verl_e2e_runner.process.confined import run, with_own_scratch
from verl_e2e_runner.process.session import planned_session
from verl_e2e_runner.trees import prepare_trees
from verl_e2e_runner.verl_wrapper import launches, python_path

pytestmark = [pytest.mark.bwrap, pytest.mark.ray]

# What a test of the head can do: look for the lines wherever it may, and put others in their place.
FORGER = """
folder=$1
while :; do
    for file in $(find "$folder" -name 'imports-*.jsonl' 2>/dev/null); do
        echo "$file"
        echo '{"module": "verl"}' > "$file"
    done
    sleep 0.01
done
"""


def test_a_test_of_the_head_does_not_reach_the_lines_of_the_proof(
    world: World, base: dict[str, str], tmp_path: Path
) -> None:
    job, own = world.job(), tmp_path / "own"
    own.mkdir()
    tools = find_isolation(job, base).tools
    assert tools is not None
    trees = prepare_trees(job, own, base=base, caged=True)
    cage = open_cage(job, trees, tools, own, tmp_path / "out", base)
    caged = replace(trees, cage=cage)
    session = planned_session(os.urandom(8).hex(), cage.outbox / "imports.jsonl", caged=True)
    variables = launches(job, caged, session, base=base)[0].environment
    runtime_env = {"env_vars": {"PYTHONPATH": python_path(job, caged)}}
    stop = Event()
    words = ("bash", "-c", FORGER, "forger", str(own))
    tests = with_own_scratch(cage, "bridge-tests")
    with ThreadPoolExecutor(1) as executor:
        forger = executor.submit(
            run, words, env={"PATH": "/usr/bin:/bin"}, cwd=cage.scratch, timeout_s=HANG_S, cage=tests, stop=stop
        )
        try:
            made = prove_imports(job, caged, session, variables, runtime_env, tmp_path / "work")
        finally:
            stop.set()
    assert [finding.ok for finding in made.findings] == [True, True], made.findings
    assert {line.role for line in made.lines} == {"driver", "ray_worker"}
    assert forger.result().stdout == ""
