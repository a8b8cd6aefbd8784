"""The limited analysis against commits that are small to send and huge to read: a plan, or one sentence, in time."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.git_bombs import COMMITS, ENTRY, POLICY_TEXT, Bombs
from tests.fakes.github_standin.repository import Submodule
from tests.fakes.github_standin.world import World, living
from tests.fakes.patience import slowness
from verl_e2e.adapters.files.caches import SummaryCache
from verl_e2e.adapters.mirror import Mirrors
from verl_e2e.app.plan_change import Planner
from verl_e2e.config.maps import packaged_uses
from verl_e2e.config.policy import load_policy
from verl_e2e.core.model.errors import LimitError
from verl_e2e.core.model.levels import Level
from verl_e2e.core.plan.plan import Plan
from verl_e2e.core.plan.policy import MegatronLm
from verl_e2e.core.pulls.forge import Pull, PullRef, PullState
from verl_e2e.git.repository import GitRepository
from verl_e2e.ports import ForgeError
from verl_e2e.wiring.analysis import LimitedAnalysis

POLICY = load_policy(POLICY_TEXT, "the test's")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with living(tmp_path_factory.mktemp("world")) as made:
        made.commit({ENTRY: "value = 1\n", "docs/guide.md": "how to\n"}, "Start")
        yield made


@pytest.fixture(scope="module")
def analysis(world: World, tmp_path_factory: pytest.TempPathFactory) -> LimitedAnalysis:
    folder = tmp_path_factory.mktemp("service")
    return LimitedAnalysis(folder, world.url, folder, Mirrors(folder, world.url))


def pull_of(world: World, head: str, number: int = 1, owner: str = "carol") -> Pull:
    git = world.repository.git
    git.update_ref(f"refs/pull/{number}/head", head)
    base = git.text("rev-parse", "refs/heads/main")
    return Pull(
        ref=PullRef(world.full_name, number),
        base_branch="main",
        base_sha=base,
        head_sha=head,
        head_repository=f"{owner}/bridge",
        author="carol",
        author_association="NONE",
        draft=False,
        state=PullState.OPEN,
        changed_files=1,
    )


@pytest.mark.parametrize("name", COMMITS)
def test_a_bomb_is_planned_by_its_names_or_refused_in_a_sentence(
    world: World, analysis: LimitedAnalysis, name: str
) -> None:
    base = world.repository.git.text("rev-parse", "refs/heads/main")
    pull = pull_of(world, COMMITS[name](Bombs(world.repository.git, base)))
    began = time.monotonic()
    levels: tuple[Level, ...] = (Level.SMOKE,)
    with suppress(LimitError):
        levels = analysis.plan(pull, POLICY).plan.levels
    # What could not be read is never "nothing".
    assert Level.SMOKE in levels
    # With other work at the same time; the limits themselves are 30 s of one core and 90 s in all.
    assert time.monotonic() - began < 150 * slowness()


def test_an_ordinary_change_is_planned_as_it_is_in_this_process(world: World, analysis: LimitedAnalysis) -> None:
    head = world.repository.git.commit("refs/heads/side", {ENTRY: "value = 2\n", "docs/a.md": "b\n"}, "Change it")
    pull = pull_of(world, head, 2)
    found = analysis.plan(pull, POLICY)
    repository = GitRepository(world.repository.git.path)
    uses = packaged_uses("the service plans without a verl checkout")
    here = Planner(repository, uses, SummaryCache()).plan(pull.base_sha, head, POLICY)
    assert found == here


def test_a_bump_is_compared_by_commits_that_the_service_fetches(world: World, analysis: LimitedAnalysis) -> None:
    core, path = world.state.add_repository("nvidia/megatron-lm"), "megatron/core/optimizer/optimizer.py"
    old, new = (
        core.git.commit("refs/heads/main", {path: f"def step():\n    return {value}\n"}, "c") for value in (1, 2)
    )
    rule = {"name": "state", "paths": ["optimizer/"], "levels": [1], "reason": "it is saved"}
    other = {"name": "shards", "paths": ["fsdp/"], "levels": [3], "reason": "it shards"}
    place, git = "3rdparty/Megatron-LM", world.repository.git
    base = git.commit("refs/heads/pinned", {place: Submodule(old)}, "Pin", (git.text("rev-parse", "refs/heads/main"),))

    def planned(commit: str, number: int, site: str = world.url) -> Plan:
        head = git.commit(f"refs/heads/bump-{number}", {place: Submodule(commit)}, "Bump", (base,))
        named = MegatronLm.model_validate({"repository": f"{site}/nvidia/megatron-lm", "rules": [rule, other]})
        pull = replace(pull_of(world, head, number), base_sha=base)
        return analysis.plan(pull, POLICY.model_copy(update={"megatron_lm": named})).plan

    compared = planned(new, 6)
    assert ([int(level) for level in compared.levels], compared.incomplete) == ([0, 1], ())
    assert [item.path for item in compared.changed.functions] == [f"{place}/{path}"]
    for commit, number, site, passing, why in (
        ("0123456789" * 4, 7, world.url, False, "no longer has what was asked for"),
        (new, 8, "http://127.0.0.1:9", True, "could not be fetched from 127.0.0.1"),
    ):
        lost = planned(commit, number, site)
        assert ([int(level) for level in lost.levels], lost.passing) == ([0, 1, 3], passing)
        assert any(why in sentence for sentence in lost.incomplete), lost.incomplete


def test_a_child_gets_no_commit_but_those_of_its_pull_request(world: World, tmp_path: Path) -> None:
    mirrors = Mirrors(tmp_path, world.url)
    answer = mirrors.answers([pull_of(world, world.repository.git.text("rev-parse", "refs/heads/main"))], "")
    for question in (
        ("commits", (("pull/1", "0" * 40, "refs/pull/1/head"),)),
        ("contents", ("--upload-pack=touch /tmp/x",)),
        ("contents", ("0" * 40,) * 200_000),
        ("renew", "x"),
        ("token",),
        None,
    ):
        with pytest.raises(ValueError, match="may not have"):
            answer(question)


@pytest.mark.parametrize("unit", ["![[](", "[a][", "`", "> ", "- ", "<", "**a ", "|a"])
def test_a_comment_of_any_shape_is_understood_or_holds_no_command(analysis: LimitedAnalysis, unit: str) -> None:
    body = "/verl-e2e plan\n\n" + unit * (60_000 // len(unit))
    found = analysis.commands(body)
    assert [line.text for line in found] in ([], ["/verl-e2e plan"])


def test_a_short_comment_needs_no_process(analysis: LimitedAnalysis) -> None:
    assert [line.text for line in analysis.commands("/verl-e2e plan")] == ["/verl-e2e plan"]
    assert analysis.commands("x" * 100_000) == ()


def test_plans_of_forks_leave_a_place_for_the_repositorys_own_branches(world: World, analysis: LimitedAnalysis) -> None:
    base = world.repository.git.text("rev-parse", "refs/heads/main")
    slow = pull_of(world, COMMITS["a long expression"](Bombs(world.repository.git, base)), 3)
    fork, own = pull_of(world, base, 4), pull_of(world, base, 5, world.full_name.partition("/")[0])
    assert (slow.from_fork, own.from_fork) == (True, False)
    with ThreadPoolExecutor(8) as pool:
        # Each takes a second or more, so that one of them always waits for another.
        forks = [pool.submit(analysis.plan, slow if number % 2 else fork, POLICY) for number in range(7)]
        began = time.monotonic()
        assert analysis.plan(own, POLICY).change.paths == ()
        assert time.monotonic() - began < 60 * slowness()
        ended = [item.exception() for item in forks]
    put_off = [error for error in ended if isinstance(error, ForgeError)]
    assert put_off
    assert all(error.passing for error in put_off)
    assert len(put_off) < len(forks)
