"""The pool of forks is checked: another pool's runner, or one that stays, is a finding."""

import pytest

from verl_e2e.core.pulls.checkup import State, of_dispatch_branch, of_fork_pool, of_kept_runners
from verl_e2e.core.pulls.forge import Machine

RUNNERS = {1: ("self-hosted", "gpu-x1"), 8: ("self-hosted", "gpu-x8")}
FORKS = {1: ("self-hosted", "forks-x1")}


def machine(*labels: str, ephemeral: bool | None = True) -> Machine:
    return Machine("host", online=True, busy=False, labels=("self-hosted", *labels), ephemeral=ephemeral)


@pytest.mark.parametrize(
    ("machines", "forks", "state", "message"),
    [
        ([machine("Forks-X1")], FORKS, State.OK, "host: one job each"),
        # A just-in-time runner is there only while a job waits.
        ([machine("gpu-x1", ephemeral=False)], FORKS, State.OK, "none is registered now"),
        ([machine("forks-x1", ephemeral=False)], FORKS, State.ERROR, "host takes jobs of forks and stays"),
        ([machine("forks-x1", ephemeral=None)], FORKS, State.NOTE, "does not tell whether host serves one job only"),
        ([machine("forks-x1", "gpu-x8")], FORKS, State.ERROR, "host would take jobs of forks and other jobs"),
        ([machine("forks-x1", "gpu-x1", ephemeral=False)], FORKS, State.ERROR, "host would take jobs of forks and"),
        ([machine("gpu-x1")], {}, State.ERROR, "no runners are named for the jobs of forks"),
        ([], {1: ("self-hosted", "gpu-x1")}, State.OK, "none is registered now"),
    ],
)
def test_the_pool_of_forks(
    machines: list[Machine], forks: dict[int, tuple[str, ...]], state: State, message: str
) -> None:
    found = next(iter(of_fork_pool(machines, RUNNERS, forks)))
    assert found.state is state
    assert message in found.sentence
    assert bool(found.fix) is (state is not State.OK)


def test_everything_that_is_wrong_with_the_pool_is_reported() -> None:
    found = list(of_fork_pool([machine("forks-x1", "gpu-x1", ephemeral=False)], RUNNERS, FORKS))
    assert [finding.state for finding in found] == [State.ERROR, State.ERROR]


def test_a_runner_that_stays_is_reported() -> None:
    assert list(of_kept_runners([machine("gpu-x1"), machine("other", ephemeral=False)], RUNNERS)) == []
    (found,) = of_kept_runners([machine("gpu-x1", ephemeral=False)], RUNNERS)
    assert (found.state, "host serves one job after another" in found.sentence) == (State.NOTE, True)


def test_jobs_run_on_a_branch_of_their_own() -> None:
    assert of_dispatch_branch("verl-e2e", "main").state is State.OK
    assert "VERL_E2E_WORKFLOW_REF" in of_dispatch_branch("main", "main").fix
