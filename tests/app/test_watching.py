"""A watched branch: rounds on its tip, the search for what broke a job, its issue, and newer commits of verl."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.core.pulls.entries import asked
from tests.fakes.app import APP, BASE, POLICY, REPOSITORY, App, FakeSource, blocks, fails, passes
from tests.fakes.trees import sha
from verl_e2e.adapters.derived_ledger import DerivedLedger
from verl_e2e.config.policy import POLICY_PATH, load_policy
from verl_e2e.config.validation import ConfigError
from verl_e2e.core.model.change import Change, HistoryCommit
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.outcome import EngineEnd
from verl_e2e.core.pulls.forge import Branch
from verl_e2e.core.pulls.ledger import Run, RunState, Watched
from verl_e2e.core.pulls.queue import Pool
from verl_e2e.core.report.watch_text import marker_of

MAIN = Branch(REPOSITORY, "main")
WATCH = "schedule: {levels: [0], confirm: false, labels: [red]}\n"
HOUR = 3600.0


class BranchInMemory:
    """A branch in memory, with runs that end as `broken` says of the commits of Bridge and of verl."""

    def __init__(self, rules: str = WATCH) -> None:
        self.app = App()
        self.rules = rules
        self.broken: Callable[[Job], bool] = lambda _: False
        self.silent: Callable[[Job], bool] = lambda _: False
        self.ran: list[Run] = []
        # Whether what a process holds is forgotten before each look.
        self.restarts = False
        self.commit("root")

    def commit(self, name: str, path: str = "src/peft/lora.py") -> str:
        """A new tip of the branch, with the policy on it."""
        parent = self.app.line[-1].sha if self.app.line else BASE
        self.app.line.append(HistoryCommit(sha(name), parent, "Mona Lisa", f"Change {name} (#12)"))
        self.app.paths[sha(name)] = path
        self.app.hub.tips["main"] = sha(name)
        self.app.hub.files[sha(name), POLICY_PATH] = (POLICY + self.rules).encode()
        return sha(name)

    def look(self) -> float | None:
        if self.restarts:
            self.app.restart()
        return self.app.handlers.reconciler.reconcile(MAIN)

    def until_settled(self) -> float | None:
        """Look, and let all that was started end, until nothing is under way."""
        for _ in range(60):
            wait_s = self.look()
            live = self.app.backend.live()
            if wait_s is None or (wait_s > HOUR and not live):
                return wait_s
            for run in live:
                self.ran.append(run)
                assert run.job is not None
                outcome = blocks if self.silent(run.job) else fails if self.broken(run.job) else passes
                self.app.backend.finish(run, outcome)
            self.app.clock.pass_s(60)
        raise AssertionError("it does not settle")

    def next_day(self) -> None:
        self.app.clock.pass_s(25 * HOUR)

    @property
    def heads(self) -> list[str]:
        return [run.head_sha for run in self.ran]

    @property
    def issues(self) -> list[str]:
        return [issue.body for issue in self.app.hub.issues.values() if issue.is_open]


def broken_since(names: list[str]) -> Callable[[Job], bool]:
    bad = {sha(name) for name in names}
    return lambda job: job.bridge.commit in bad


def test_a_branch_without_a_schedule_is_left_alone() -> None:
    watched = BranchInMemory(rules="")
    assert watched.look() is None
    assert not watched.app.backend.submitted


def test_the_tip_is_run_once_in_a_round_and_no_check_is_written() -> None:
    watched = BranchInMemory()
    wait_s = watched.until_settled()
    assert wait_s is not None
    assert 20 * HOUR < wait_s <= 24 * HOUR
    assert watched.heads == [sha("root")]
    watched.next_day()
    watched.until_settled()
    assert watched.heads == [sha("root")], "the same commit was run twice"
    watched.commit("next")
    watched.until_settled()
    assert watched.heads == [sha("root")], "a round began before its time"
    watched.next_day()
    watched.until_settled()
    assert watched.heads == [sha("root"), sha("next")]
    assert not watched.issues
    assert not watched.app.hub.runs


def test_what_broke_a_job_is_found_and_told_once() -> None:
    watched = BranchInMemory()
    watched.until_settled()
    names = [f"c{number}" for number in range(1, 17)]
    for number, name in enumerate(names):
        watched.commit(name, "docs/a.md" if number % 2 else "src/peft/lora.py")
    watched.broken = broken_since(names[10:])
    watched.next_day()
    watched.until_settled()
    # The tip, and three to tell the eight commits apart that can matter.
    assert len(watched.heads) == 1 + 1 + 3
    (body,) = watched.issues
    assert f"A commit broke it: `{sha('c11')}` by Mona Lisa" in body
    watched.next_day()
    watched.commit("later")
    watched.broken = broken_since([*names[10:], "later"])
    watched.until_settled()
    assert len(watched.heads) == 6
    assert watched.issues == [body], "the same was said twice"
    assert not watched.app.hub.talk
    watched.next_day()
    watched.commit("repaired")
    watched.until_settled()
    assert not watched.issues
    ((number, (said,)),) = watched.app.hub.talk.items()
    assert number in watched.app.hub.issues
    assert f"passes again on `{sha('repaired')}`, after it failed in 2 rounds in a row" in said.body
    note = watched.app.ledger.note(Watched, REPOSITORY, f"{sha('repaired')}:watch:main")
    assert note is not None
    assert [(row.good, row.bad, row.streak) for row in note.jobs] == [(sha("repaired"), "", 1)]


def test_a_restart_in_the_middle_of_a_search_changes_nothing() -> None:
    watched = BranchInMemory()
    watched.until_settled()
    for number in range(1, 9):
        watched.commit(f"c{number}")
    watched.broken = broken_since(["c6", "c7", "c8"])
    watched.next_day()
    watched.restarts = True
    watched.until_settled()
    assert f"A commit broke it: `{sha('c6')}`" in watched.issues[0]
    assert len(watched.heads) == len(set(watched.heads)) == 1 + 1 + 3


def without_a_database(watched: BranchInMemory) -> None:
    """Every look is a process of its own, and its memory is read off GitHub."""
    app, look = watched.app, watched.look
    app.has_queue = False

    def look_in_a_process_of_its_own() -> float | None:
        memory = DerivedLedger(app.hub, app.hub, app.hub, app.clock, app_id=APP)
        app.ledger = memory  # type: ignore[assignment]
        app.restart()
        try:
            return look()
        finally:
            memory.flush()

    watched.look = look_in_a_process_of_its_own  # type: ignore[method-assign]


def test_looks_between_rounds_ask_github_little_however_much_was_merged() -> None:
    watched = BranchInMemory()
    without_a_database(watched)
    watched.until_settled()
    for number in range(20):
        watched.commit(f"c{number}")
        watched.look()
    watched.commit("last")
    before = len(watched.app.hub.calls)
    watched.look()
    assert watched.app.hub.calls[before:].count("check_runs") <= 4
    assert watched.heads == [sha("root")]
    watched.next_day()
    watched.until_settled()
    assert watched.heads == [sha("root"), sha("last")]


def test_what_is_remembered_without_a_database_is_enough_for_a_search() -> None:
    watched = BranchInMemory()
    without_a_database(watched)
    watched.until_settled()
    for number in range(1, 9):
        watched.commit(f"c{number}")
    watched.broken = broken_since(["c3", "c4", "c5", "c6", "c7", "c8"])
    watched.next_day()
    watched.until_settled()
    assert f"A commit broke it: `{sha('c3')}`" in watched.issues[0]
    assert len(watched.heads) == len(set(watched.heads)) == 1 + 1 + 3


def test_a_search_confirms_the_commit_and_the_one_before() -> None:
    watched = BranchInMemory("schedule: {levels: [0]}\n")
    watched.until_settled()
    for number in range(1, 5):
        watched.commit(f"c{number}", "docs/a.md" if number == 3 else "src/peft/lora.py")
    # The planner leaves out the commit that did it.
    watched.broken = broken_since(["c3", "c4"])
    watched.next_day()
    watched.until_settled()
    (body,) = watched.issues
    assert f"A commit broke it: `{sha('c3')}`" in body
    assert "two runs failed and two passed" in body


def test_an_issue_shows_the_run_that_failed_and_none_that_says_nothing() -> None:
    watched = BranchInMemory("schedule: {levels: [0]}\n")
    watched.until_settled()
    watched.commit("c1")
    watched.broken = lambda job: job.bridge.commit == sha("c1")
    # The second run of the commit says nothing.
    watched.silent = lambda job: [run.head_sha for run in watched.ran].count(job.bridge.commit) > 1
    watched.next_day()
    watched.until_settled()
    (body,) = watched.issues
    assert watched.heads.count(sha("c1")) == 2
    assert f"A commit broke it: `{sha('c1')}`" in body
    assert "none was repeated" in body
    assert "| What fails | Level 0 failed at" in body


def test_a_commit_that_cannot_be_run_is_not_blamed() -> None:
    watched = BranchInMemory()
    watched.until_settled()
    for number in range(1, 5):
        watched.commit(f"c{number}")
    watched.broken = broken_since(["c3", "c4"])
    watched.silent = broken_since(["c2", "c3"])
    watched.next_day()
    watched.until_settled()
    (body,) = watched.issues
    assert "One of 3 commits broke it" in body
    assert all(sha(name) in body for name in ("c2", "c3", "c4"))


class HalfReadable(FakeSource):
    """Trees of which one commit cannot be read."""

    def change(self, base: str, head: str) -> Change:
        if head == sha("broken tree"):
            raise UserError("it holds no package")
        return super().change(base, head)


@pytest.mark.parametrize("place", [1, 3])
def test_a_commit_that_cannot_be_planned_ends_neither_a_search_nor_the_watch(place: int) -> None:
    watched = BranchInMemory()
    app = watched.app
    app.handlers = app.connect(analysis=replace(app.analysis(), changes=lambda _: HalfReadable(app.paths, app.same)))
    watched.until_settled()
    names = ["c1", "c2", "c3"]
    names[place - 1] = "broken tree"
    for name in names:
        watched.commit(name)
    watched.broken = broken_since(names)
    watched.next_day()
    watched.until_settled()
    watched.commit("c4")
    watched.broken = broken_since([*names, "c4"])
    watched.next_day()
    watched.until_settled()
    (body,) = watched.issues
    assert "One of" in body if place == 1 else f"A commit broke it: `{sha('c1')}`" in body


def test_a_job_that_never_passed_blames_no_one() -> None:
    watched = BranchInMemory()
    watched.broken = lambda _: True
    watched.until_settled()
    (body,) = watched.issues
    assert "No commit is known on which it passed" in body


def test_where_the_good_commit_fails_too_no_commit_is_blamed() -> None:
    """The policy names another verl since, and that is what breaks the job."""
    watched = BranchInMemory()
    watched.until_settled()
    watched.rules = WATCH
    other = POLICY.replace(sha("verl"), sha("other verl"))
    watched.commit("c1")
    watched.commit("c2")
    watched.app.hub.files[sha("c2"), POLICY_PATH] = (other + WATCH).encode()
    watched.broken = lambda job: job.verl.commit == sha("other verl")
    watched.next_day()
    watched.until_settled()
    (body,) = watched.issues
    assert "No commit broke it" in body
    assert sha("c1") not in body


def test_a_host_that_changed_since_the_last_good_run_blames_no_commit() -> None:
    watched = BranchInMemory("schedule: {levels: [0]}\n")
    watched.until_settled()
    for number in range(1, 9):
        watched.commit(f"c{number}")
    watched.broken = lambda _: True
    watched.next_day()
    watched.until_settled()
    (body,) = watched.issues
    assert f"On `{sha('root')}` it passed and failed" in body
    assert "broke it" not in body


def test_the_run_of_another_job_on_the_same_commit_goes_on() -> None:
    watched = BranchInMemory()
    watched.until_settled()
    for number in range(1, 9):
        watched.commit(f"c{number}")
    watched.broken = broken_since(["c8"])
    watched.next_day()
    watched.look()
    watched.app.backend.finish(watched.app.backend.live()[0], fails)
    watched.look()
    (probe,) = watched.app.backend.live()
    other = probe.model_copy(update={"key": "f" * 64, "job_id": "1-resume", "state": RunState.RUNNING, "handle": "h"})
    watched.app.ledger.put_run(other)
    watched.app.backend.submit(other)
    watched.look()
    assert other.key in {run.key for run in watched.app.backend.live()}
    assert watched.app.ledger.kept[other.key].state is RunState.RUNNING


def test_the_jobs_that_the_schedule_names_are_watched_each_by_itself() -> None:
    watched = BranchInMemory("schedule: {levels: [0], variants: [0-recompute], follow_verl: true}\n")
    verl_commits(watched, "verl", "v1")
    watched.until_settled()
    ids = [run.job_id.partition("-x")[0] for run in watched.ran]
    assert sorted(ids) == ["0-lora-ddp", "0-lora-ddp", "0-recompute", "0-recompute"]
    assert len(watched.issues) == 1
    assert "`0-lora-ddp`, `0-recompute` passed with it" in watched.issues[0]
    for number in range(1, 5):
        watched.commit(f"c{number}")
    since = broken_since(["c2", "c3", "c4"])
    watched.broken = lambda job: "recompute" in job.id and since(job)
    watched.next_day()
    watched.until_settled()
    (body,) = (body for body in watched.issues if "0-recompute" in body and "broke it" in body)
    assert f"A commit broke it: `{sha('c2')}`" in body


def test_a_schedule_of_level_4_is_refused_with_what_to_do() -> None:
    text = (POLICY + "schedule: {levels: [0, 4]}\n").encode()
    with pytest.raises(ConfigError, match="level 4"):
        load_policy(text, "policy.yml")


def test_a_failure_that_the_policy_sets_aside_is_no_news() -> None:
    entry = "{cause: CAUSE, fingerprint: MARK, until: 2026-12-31, reason: known, link: 'https://example.com/1'}"
    watched = BranchInMemory()
    watched.broken = lambda _: True
    watched.until_settled()
    (run,) = watched.app.ledger.runs(REPOSITORY)
    aside = entry.replace("CAUSE", run.causes[0]).replace("MARK", run.fingerprint)
    again = BranchInMemory(f"{WATCH}quarantine: [{aside}]\n")
    again.broken = lambda _: True
    again.until_settled()
    assert (len(watched.issues), len(again.issues), len(again.heads)) == (1, 0, 1)


def test_the_issue_on_a_job_that_is_not_asked_for_any_more_is_closed() -> None:
    watched = BranchInMemory()
    watched.broken = lambda _: True
    watched.until_settled()
    (number,) = watched.app.hub.issues
    watched.commit("next")
    watched.next_day()
    # As if the last round had run a job that the policy of now has no more.
    note = watched.app.ledger.note(Watched, REPOSITORY, f"{sha('root')}:watch:main")
    assert note is not None
    renamed = tuple(row.model_copy(update={"job_id": "0-gone"}) for row in note.jobs)
    watched.app.hub.issues[number].body = marker_of(MAIN, renamed[0])
    watched.app.ledger.put_note(note.model_copy(update={"jobs": renamed}))
    watched.broken = lambda _: False
    watched.until_settled()
    assert not watched.issues
    assert "does not ask for `0-gone` any more" in watched.app.hub.talk[number][0].body


def test_the_issue_of_a_branch_that_was_written_again_is_closed_when_the_job_passes() -> None:
    watched = BranchInMemory()
    watched.broken = lambda _: True
    watched.until_settled()
    (number,) = watched.app.hub.issues
    watched.app.line.clear()
    watched.commit("another root")
    watched.broken = lambda _: False
    watched.next_day()
    watched.until_settled()
    assert not watched.issues
    said = f"✅ `0-lora-ddp` passes on `{sha('another root')}`.\n"
    assert [comment.body for comment in watched.app.hub.talk[number]] == [said]


def test_two_issues_on_one_job_are_both_closed_when_it_passes() -> None:
    """Two processes looked at the same time, and neither found the issue of the other."""
    watched = BranchInMemory()
    watched.broken = lambda _: True
    watched.until_settled()
    (number,) = watched.app.hub.issues
    watched.app.hub.issues[watched.app.hub.next_id()] = replace(watched.app.hub.issues[number])
    watched.broken = lambda _: False
    watched.commit("next")
    watched.next_day()
    watched.until_settled()
    assert not watched.issues
    assert len(watched.app.hub.issues) == 2


def test_a_run_whose_machine_was_lost_is_made_again_before_the_round_ends() -> None:
    watched = BranchInMemory()
    watched.look()
    watched.app.backend.lose(watched.app.backend.live()[0], EngineEnd.NODE_FAILED)
    watched.until_settled()
    assert [run.attempt for run in watched.ran] == [2]
    note = watched.app.ledger.note(Watched, REPOSITORY, f"{sha('root')}:watch:main")
    assert note is not None
    assert [row.good for row in note.jobs] == [sha("root")]


def test_a_full_queue_lets_the_round_wait_and_wakes_it() -> None:
    watched = BranchInMemory()
    app = watched.app
    app.pools = (Pool("all", 1),)
    app.restart()
    pull = app.open()
    app.handlers.reconciler.reconcile(pull.ref)
    (held,) = app.backend.live()
    wait_s = watched.look()
    assert wait_s is not None
    assert wait_s < HOUR
    assert [run.number for run in app.backend.live()] == [pull.ref.number]
    while held.number is not None:
        app.backend.finish(held, passes)
        app.handlers.reconciler.reconcile(pull.ref)
        if MAIN in app.woken:
            break
        (held,) = app.backend.live()
    watched.until_settled()
    assert watched.heads == [sha("root")]
    numbers = [run.number for run in app.backend.submitted]
    assert len(numbers) > 2
    assert set(numbers[:-1]) == {pull.ref.number}, "the branch did not wait for the jobs of the pull request"


def test_a_paused_repository_starts_no_round() -> None:
    watched = BranchInMemory()
    pause = asked("pause", "the disk is full", actor="mona").model_copy(update={"repository": REPOSITORY})
    watched.app.ledger.written.append(pause)
    watched.look()
    assert not watched.app.backend.submitted
    watched.app.ledger.written.clear()
    watched.until_settled()
    assert watched.heads == [sha("root")]


def test_the_search_ends_with_the_minutes_that_a_round_may_take() -> None:
    watched = BranchInMemory(WATCH.replace("levels", "gpu_minutes: 1, levels"))
    watched.until_settled()
    for number in range(1, 9):
        watched.commit(f"c{number}")
    watched.broken = broken_since(["c6", "c7", "c8"])
    watched.next_day()
    watched.until_settled()
    assert len(watched.heads) == 2
    (body,) = watched.issues
    assert "One of 8 commits broke it; the GPU minutes" in body


def verl_commits(watched: BranchInMemory, *names: str) -> None:
    for name in names:
        parent = watched.app.verl_line[-1].sha if watched.app.verl_line else sha("before")
        watched.app.verl_line.append(HistoryCommit(sha(name), parent, "Ann", f"verl {name}"))


FOLLOW = WATCH.replace("levels", "follow_verl: true, levels")


def test_a_newer_verl_that_passes_is_proposed_and_the_proposal_ends_with_the_pin() -> None:
    watched = BranchInMemory(FOLLOW)
    verl_commits(watched, "verl", "v1", "v2")
    watched.until_settled()
    assert [run.job.verl.commit for run in watched.ran if run.job] == [sha("verl"), sha("v2")]
    (body,) = watched.issues
    assert f"-  commit: {sha('verl')}\n+  commit: {sha('v2')}" in body
    watched.next_day()
    watched.commit("bumped")
    watched.app.hub.files[sha("bumped"), POLICY_PATH] = (POLICY.replace(sha("verl"), sha("v2")) + FOLLOW).encode()
    watched.until_settled()
    assert not watched.issues


def test_what_verl_broke_is_never_blamed_on_bridge() -> None:
    watched = BranchInMemory(FOLLOW)
    verl_commits(watched, "verl", *(f"v{number}" for number in range(1, 9)))
    bad = {sha(f"v{number}") for number in range(5, 9)}
    watched.broken = lambda job: job.verl.commit in bad
    watched.until_settled()
    (body,) = watched.issues
    assert f"A commit of verl broke it: `{sha('v5')}` by Ann" in body
    assert "No commit of this repository is blamed" in body
    assert set(watched.heads) == {sha("root")}


@pytest.mark.parametrize("call", ["open_issue", "open_issue!", "close_issue", "comment", "find_issue"])
def test_github_that_fails_once_is_asked_again_and_nothing_is_said_twice(call: str) -> None:
    watched = BranchInMemory()
    watched.until_settled()
    watched.commit("c1")
    watched.broken = broken_since(["c1"])
    watched.next_day()
    watched.app.hub.fail.append(call)
    for _ in range(3):
        try:
            watched.until_settled()
        except Exception as error:
            assert call.rstrip("!") in str(error)  # noqa: PT017  GitHub failed, as asked
    assert len(watched.app.hub.issues) == 1
    watched.next_day()
    watched.commit("c2")
    for _ in range(3):
        try:
            watched.until_settled()
        except Exception as error:
            assert call.rstrip("!") in str(error)  # noqa: PT017
    assert not watched.issues
    assert len(watched.app.hub.talk[next(iter(watched.app.hub.issues))]) == 1


def test_a_merge_group_of_the_same_commit_leaves_the_runs_of_a_branch_alone() -> None:
    from verl_e2e.core.pulls.forge import MergeGroup

    watched = BranchInMemory()
    watched.look()
    group = MergeGroup(REPOSITORY, "main", BASE, sha("root"))
    watched.app.handlers.known.remember_group(group, destroyed=True)
    watched.app.handlers.reconciler.reconcile(group)
    assert [order.state.final for order in watched.app.backend.orders.values()] == [False]
    assert watched.app.under_way() == {MAIN}
