"""The memory of a repository without a server, over real HTTP: what is believed, what is not, and what survives."""

import random
import string
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.github_adapters import ONE, REPOSITORY, GithubAdapters, github_adapters
from tests.core.builders import make_job
from tests.fakes.clocks import BEGAN, HandClock
from tests.fakes.github_standin.state import GITHUB_ACTIONS
from verl_e2e.adapters.derived_ledger import LEDGER_CHECK, DerivedLedger
from verl_e2e.adapters.github.checks import GithubChecks
from verl_e2e.adapters.github.pulls import GithubConversation, GithubPulls
from verl_e2e.adapters.github.session import GitHub, with_token
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.forge import MAX_OUTPUT
from verl_e2e.core.pulls.ledger import Approval, Override, Posted, Pushers, RecordedCommand, Run, RunState, run_key
from verl_e2e.ports import ForgeError

TOKEN = "ghs_of-a-workflow"


@pytest.fixture
def at(tmp_path: Path) -> Iterator[GithubAdapters]:
    with github_adapters(tmp_path) as made:
        made.world.actions_token(TOKEN, {"checks": "write", "pull_requests": "write", "contents": "read"})
        yield made


@pytest.fixture
def workflow(at: GithubAdapters) -> Iterator[GitHub]:
    github = with_token(TOKEN, app_id=GITHUB_ACTIONS, api_url=at.world.url)
    yield github
    github.close()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def opened(github: GitHub, clock: HandClock, **more: Any) -> DerivedLedger:
    """The ledger as a fresh workflow run has it."""
    return DerivedLedger(GithubChecks(github), GithubConversation(github), GithubPulls(github), clock, **more)


@pytest.fixture
def ledger(workflow: GitHub, clock: HandClock) -> DerivedLedger:
    return opened(workflow, clock)


def asked(head: str, source: str = "label:verl-e2e:run:x", **more: Any) -> RecordedCommand:
    values = {"actor": "ada", "verb": "run", "head_sha": head, "at": BEGAN, **more}
    return RecordedCommand.model_validate({"source": source, "repository": REPOSITORY, "number": 1, **values})


def run(head: str, attempt: int = 1, **more: Any) -> Run:
    job = make_job()
    values = {"key": run_key(REPOSITORY, head, job.digest(), attempt), "repository": REPOSITORY, "number": 1}
    values |= {"head_sha": head, "job_id": job.id, "job_digest": job.digest(), "attempt": attempt, "job": job}
    return Run.model_validate({**values, "created": BEGAN + timedelta(minutes=attempt), "updated": BEGAN, **more})


def test_what_one_workflow_run_writes_the_next_one_reads(
    at: GithubAdapters, ledger: DerivedLedger, workflow: GitHub, clock: HandClock
) -> None:
    head = at.world.head(1)
    common = {"repository": REPOSITORY, "number": 1, "head_sha": head, "actor": "ada", "at": BEGAN, "base": "main"}
    approval = Approval.model_validate({**common, "source": "check:1:approve"})
    override = Override.model_validate(
        {**common, "source": "check:2:override", "level": Level.PARALLELISM, "reason": "no host is free"}
    )
    given = (asked(head), approval, override)
    assert [ledger.add(item) for item in given] == [True] * 3
    ledger.put_run(run(head))
    card = Posted(repository=REPOSITORY, subject="1:card", remote_id=7, digest="c", at=BEGAN)
    reply, check = (card.model_copy(update={"subject": name}) for name in ("1:comment:5", f"{head}:verl-e2e"))
    pushers = Pushers(repository=REPOSITORY, subject=f"{head}:1:pusher", logins=("ada",), at=BEGAN)
    notes = card, reply, check, pushers
    for note in notes:
        ledger.put_note(note)
    ledger.flush()
    again = opened(workflow, clock)
    assert again.entries(REPOSITORY, 1) == given
    assert [again.add(item) for item in given] == [False] * 3
    assert again.runs(REPOSITORY, number=1) == again.runs(REPOSITORY, head_sha=head) == (run(head),)
    assert [again.note(type(note), REPOSITORY, note.subject) for note in notes] == list(notes)
    assert again.note(Posted, REPOSITORY, f"{head}:another") is None
    assert again.note(Pushers, REPOSITORY, "1:card") is None


def test_the_card_of_the_head_before_is_still_the_card(
    at: GithubAdapters, ledger: DerivedLedger, workflow: GitHub, clock: HandClock
) -> None:
    first = at.world.head(1)
    ledger.put_note(Posted(repository=REPOSITORY, subject="1:card", remote_id=7, at=BEGAN))
    ledger.flush()
    second = at.world.push(1, {"src/a.py": b"a = 2\n"})
    found = opened(workflow, clock, before={second: first}).note(Posted, REPOSITORY, "1:card")
    assert found is not None
    assert found.remote_id == 7


def test_a_head_has_one_book_however_often_it_is_written(at: GithubAdapters, ledger: DerivedLedger) -> None:
    head = at.world.head(1)
    for number in range(5):
        ledger.add(asked(head, f"label:{number}:x"))
    checks = [check_run for check_run in at.world.state.checks_of(REPOSITORY, head) if check_run.name == LEDGER_CHECK]
    assert len(checks) == 1


def test_a_final_run_stays_as_it_is(at: GithubAdapters, ledger: DerivedLedger) -> None:
    head = at.world.head(1)
    ended = run(head, state=RunState.CANCELLED)
    assert ledger.put_run(ended) == ended
    assert ledger.put_run(run(head, state=RunState.RUNNING)) == ended


def test_a_run_is_added_only_where_there_is_none_with_its_key(at: GithubAdapters, ledger: DerivedLedger) -> None:
    head = at.world.head(1)
    live = run(head, state=RunState.RUNNING)
    assert ledger.add_run(live) == live
    assert ledger.add_run(run(head, state=RunState.FINISHED)) == live
    assert ledger.runs(REPOSITORY, head_sha=head) == (live,)


@pytest.mark.parametrize("change", ["edited", "deleted", "another author"])
def test_a_command_counts_only_while_its_comment_stands(
    at: GithubAdapters, ledger: DerivedLedger, workflow: GitHub, clock: HandClock, change: str
) -> None:
    comment = at.world.comment("ada", "/verl-e2e run")
    author = "eve" if change == "another author" else "ada"
    ledger.add(asked(at.world.head(1), f"comment:{comment.id}:1", actor=author))
    assert len(opened(workflow, clock).entries(REPOSITORY, 1)) == (change != "another author")
    if change == "edited":
        at.world.edit_comment(comment, "/verl-e2e level5", by="eve")
    elif change == "deleted":
        at.world.delete_comment(comment, by="ada")
    assert opened(workflow, clock).entries(REPOSITORY, 1) == ()


def test_a_book_of_another_app_is_not_believed(at: GithubAdapters, ledger: DerivedLedger, clock: HandClock) -> None:
    head = at.world.head(1)
    forger = opened(at.github, clock, app_id=at.world.app.id)
    forger.add(asked(head))
    assert forger.entries(REPOSITORY, 1) != ()
    assert ledger.entries(REPOSITORY, 1) == ()


def test_a_book_copied_from_another_head_is_not_believed(
    at: GithubAdapters, ledger: DerivedLedger, workflow: GitHub, clock: HandClock
) -> None:
    head = at.world.head(1)
    ledger.put_run(run(head, state=RunState.FINISHED))
    pushed = at.world.push(1, {"src/a.py": b"a = 2\n"})
    (book,) = [
        check_run for check_run in GithubChecks(workflow).check_runs(REPOSITORY, head) if check_run.name == LEDGER_CHECK
    ]
    GithubChecks(workflow).write_check(REPOSITORY, replace(book, id=0, head_sha=pushed))
    assert opened(workflow, clock).runs(REPOSITORY, number=1) == ()


def test_a_damaged_book_is_started_again(
    at: GithubAdapters, ledger: DerivedLedger, workflow: GitHub, clock: HandClock
) -> None:
    head = at.world.head(1)
    ledger.add(asked(head))
    (check,) = [check_run for check_run in at.world.state.checks_of(REPOSITORY, head) if check_run.name == LEDGER_CHECK]
    check.text = "not a book"
    again = opened(workflow, clock)
    assert again.entries(REPOSITORY, 1) == ()
    assert again.add(asked(head))


def test_the_runs_of_the_head_before_are_known_after_a_push(
    at: GithubAdapters, ledger: DerivedLedger, workflow: GitHub, clock: HandClock
) -> None:
    first = at.world.head(1)
    ledger.put_run(run(first))
    second = at.world.push(1, {"src/a.py": b"a = 2\n"})
    message = opened(workflow, clock, before={second: first})
    message.put_run(run(second, attempt=2))
    third = at.world.push(1, {"src/a.py": b"a = 3\n"})
    message = opened(workflow, clock, before={third: second})
    message.put_note(Posted(repository=REPOSITORY, subject="1:card", remote_id=7, at=BEGAN))
    message.flush()
    later = opened(workflow, clock)
    assert [other_run.head_sha for other_run in later.runs(REPOSITORY, number=1)] == [first, second]
    assert later.entries(REPOSITORY, 1) == ()


def test_a_comment_that_no_workflow_processed_is_found(
    at: GithubAdapters, ledger: DerivedLedger, workflow: GitHub, clock: HandClock
) -> None:
    clock.time = at.world.state.now() - timedelta(minutes=1)
    processed = at.world.comment("ada", "/verl-e2e run")
    missed = at.world.comment("bob", "/verl-e2e cancel")
    edited = at.world.comment("bob", "/verl-e2e help")
    at.world.edit_comment(edited, "/verl-e2e run")
    ledger.hear(ONE, [processed.id])
    ledger = opened(workflow, clock)
    assert [item.id for item in ledger.unprocessed(ONE)] == [missed.id]
    ledger.add(asked(at.world.head(1), f"comment:{missed.id}:1", actor="bob"))
    assert ledger.unprocessed(ONE) == ()


def test_a_comment_on_an_earlier_head_is_never_processed_late(
    at: GithubAdapters, ledger: DerivedLedger, workflow: GitHub, clock: HandClock
) -> None:
    clock.time = at.world.state.now() - timedelta(minutes=1)
    at.world.comment("ada", "/verl-e2e override 2 the cluster is down")
    assert len(ledger.unprocessed(ONE)) == 1
    at.world.push(1, {"src/a.py": b"a = 2\n"})
    clock.time = at.world.state.now() + timedelta(minutes=1)
    assert opened(workflow, clock).unprocessed(ONE) == ()


def test_the_command_of_another_app_stands_and_is_found_as_a_persons_is(
    at: GithubAdapters, ledger: DerivedLedger, workflow: GitHub, clock: HandClock
) -> None:
    clock.time = at.world.state.now() - timedelta(minutes=1)
    GithubConversation(workflow).comment(ONE, "/verl-e2e run, says our own card")
    helper = GithubConversation(at.github).comment(ONE, "/verl-e2e run")
    (found,) = ledger.unprocessed(ONE)
    assert found.id == helper
    ledger.add(asked(at.world.head(1), f"comment:{helper}:1", actor=found.author))
    assert [entry.actor for entry in opened(workflow, clock).entries(REPOSITORY, 1)] == [found.author]


def noise(length: int) -> str:
    chosen = random.Random(length)
    return "".join(chosen.choice(string.printable) for _ in range(length))


def test_a_long_book_loses_what_can_be_done_without_first(
    at: GithubAdapters, ledger: DerivedLedger, workflow: GitHub, clock: HandClock
) -> None:
    head = at.world.head(1)
    for attempt in range(1, 7):
        ended = run(head, attempt, state=RunState.FINISHED, verdict=noise(15_000 + attempt), handle=str(attempt))
        ledger.put_run(ended)
    kept = opened(workflow, clock).runs(REPOSITORY, number=1)
    assert [other_run.handle for other_run in kept] == ["1", "2", "3", "4", "5", "6"]
    assert [bool(other_run.verdict) for other_run in kept] == [False, False, False, True, True, True]
    (check,) = [check_run for check_run in at.world.state.checks_of(REPOSITORY, head) if check_run.name == LEDGER_CHECK]
    assert len(check.text or "") <= MAX_OUTPUT


def test_a_full_book_says_so(at: GithubAdapters, ledger: DerivedLedger) -> None:
    with pytest.raises(ForgeError, match="install the App"):
        ledger.add(asked(at.world.head(1), options={"model": noise(120_000)}))
