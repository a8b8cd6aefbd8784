"""The bot's memory, on SQLite and on a real PostgreSQL server."""

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.fakes.patience import HANG_S
from verl_e2e.adapters.store import (
    Retention,
    SqlDeliveries,
    SqlFigures,
    SqlLedger,
    SqlOutbox,
    SqlWorklist,
    Store,
    StoreError,
    open_store,
)
from verl_e2e.adapters.store.database import SCHEMA_VERSION, entries, versions
from verl_e2e.core.model.levels import Level
from verl_e2e.core.pulls.deliveries import Received, reply_to
from verl_e2e.core.pulls.figures import Waiting
from verl_e2e.core.pulls.forge import MergeGroup, PullRef
from verl_e2e.core.pulls.ledger import Approval, Override, Posted, Pushers, RecordedCommand, Run, RunState, run_key

NOW = datetime(2026, 11, 20, 19, 0, tzinfo=UTC)
HEAD = "a" * 40
REPOSITORY = "NVIDIA-NeMo/Megatron-Bridge"


def asked(source: str = "comment:7:1", number: int = 5, **other: object) -> RecordedCommand:
    values = {"actor": "ann", "verb": "run", "head_sha": HEAD, "at": NOW, **other}
    return RecordedCommand.model_validate({"source": source, "repository": REPOSITORY, "number": number, **values})


def run(state: RunState = RunState.QUEUED, attempt: int = 1, number: int | None = 5, minute: int = 0) -> Run:
    return Run(
        key=run_key(REPOSITORY, HEAD, "job", attempt),
        repository=REPOSITORY,
        number=number,
        head_sha=HEAD,
        job_id="0-lora-ddp",
        job_digest="job",
        attempt=attempt,
        state=state,
        created=NOW + timedelta(minutes=minute),
        updated=NOW,
    )


def received(key: str = "72d3162e-cc78-11e3-81ab-4c9367dc0958", second: int = 0, body: bytes = b"{}") -> Received:
    return Received(key, "push", body, NOW + timedelta(seconds=second))


def give_back(store: Store) -> None:
    """Nothing is owned any more, as after the end of the process that took it."""
    store.free_rows((), (), ())


def wanted(store: Store, now: datetime) -> tuple[str, ...]:
    """The targets that are to be looked at now; none of them is."""
    found = tuple(taken.target for taken in SqlWorklist(store).take(now, 10))
    for target in found:
        SqlWorklist(store).release(target)
    return found


def waiting(store: Store, now: datetime) -> tuple[Received, ...]:
    """The deliveries to hear, which stay free."""
    found = SqlDeliveries(store).take(now, 100)
    give_back(store)
    return found


def look(store: Store, target: str, now: datetime = NOW, again_at: datetime | None = None) -> None:
    """Take a target and return it."""
    (taken,) = SqlWorklist(store).take(now, 1, only=[target])
    SqlWorklist(store).finish(taken, now, again_at)


def test_entries_are_kept_in_order_and_each_source_once_for_each_kind(store: Store) -> None:
    ledger = SqlLedger(store)
    approval = Approval(
        base="main", repository=REPOSITORY, number=5, head_sha=HEAD, actor="ann", source="comment:7:1", at=NOW
    )
    override = Override(
        base="main",
        repository=REPOSITORY,
        number=5,
        head_sha=HEAD,
        level=Level.PARALLELISM,
        reason="flaky host",
        actor="ann",
        source="comment:8:1",
        at=NOW,
    )
    given = (asked(options={"model": "qwen3"}), approval, override)
    assert [ledger.add(entry) for entry in given] == [True] * 3
    assert [ledger.add(entry) for entry in (asked(actor="eve"), approval, override)] == [False] * 3
    assert ledger.add(asked(number=6))
    assert ledger.entries(REPOSITORY, 5) == given
    assert ledger.entries("other/repository", 5) == ()


@pytest.mark.parametrize("statement", ("UPDATE entries SET document = ''", "DELETE FROM entries"))
def test_the_database_itself_refuses_to_change_an_entry(store: Store, statement: str) -> None:
    ledger = SqlLedger(store)
    ledger.add(asked())
    with pytest.raises(sa.exc.DBAPIError, match="append-only"), store.write() as connection:
        connection.exec_driver_sql(statement)
    assert ledger.entries(REPOSITORY, 5) == (asked(),)


@pytest.mark.postgres
def test_entries_cannot_be_truncated(server: str) -> None:
    from tests.adapters.databases import fresh_database

    opened = open_store(fresh_database(server))
    with pytest.raises(sa.exc.DBAPIError, match="append-only"), opened.write() as connection:
        connection.exec_driver_sql("TRUNCATE entries")
    opened.close()


@pytest.mark.parametrize("final", [state for state in RunState if state.final])
def test_a_final_state_is_never_left(store: Store, final: RunState) -> None:
    ledger = SqlLedger(store)
    ledger.put_run(run())
    over = run(final).model_copy(update={"sentence": "over"})
    assert ledger.put_run(over) == over
    for state in RunState:
        assert ledger.put_run(run(state)) == over
    assert ledger.runs(REPOSITORY, number=5) == (over,)
    assert ledger.open_runs() == ()


@pytest.mark.parametrize("state", RunState)
def test_a_run_is_added_only_where_there_is_none_with_its_key(store: Store, state: RunState) -> None:
    ledger = SqlLedger(store)
    known, over = run(state), run(RunState.FINISHED).model_copy(update={"sentence": "over"})
    assert ledger.add_run(known) == known
    assert ledger.add_run(over) == known
    assert ledger.runs(REPOSITORY, number=5) == (known,)


def test_runs_are_found_by_pull_by_head_and_by_repository_oldest_first(store: Store) -> None:
    ledger = SqlLedger(store)
    second, first, group = run(attempt=2, minute=5), run(attempt=1), run(attempt=3, number=None, minute=9)
    for each in (second, first, group):
        ledger.put_run(each)
    assert ledger.runs(REPOSITORY) == (first, second, group)
    assert ledger.runs(REPOSITORY, number=5) == (first, second)
    assert ledger.runs(REPOSITORY, head_sha=HEAD) == (first, second, group)
    assert ledger.runs(REPOSITORY, head_sha="b" * 40) == ()
    assert ledger.open_runs() == (first, second, group)


def test_a_run_is_found_by_what_the_back_end_calls_it_while_it_goes_on(store: Store) -> None:
    ledger = SqlLedger(store)
    live = run(RunState.RUNNING).model_copy(update={"handle": "77"})
    over = run(RunState.FINISHED, attempt=2).model_copy(update={"handle": "76"})
    for each in (live, over):
        ledger.put_run(each)
    assert [ledger.run_by_handle(REPOSITORY, handle) for handle in ("77", "76", "")] == [live, None, None]
    assert ledger.run_by_handle("other/repository", "77") is None


def test_a_merge_group_keeps_when_it_was_asked_for_first_and_that_it_ended(store: Store) -> None:
    ledger, group = SqlLedger(store), MergeGroup(REPOSITORY, "main", "b" * 40, HEAD, (5, 6))
    assert ledger.group(REPOSITORY, HEAD) is None
    ledger.put_group(replace(group, since=NOW))
    ledger.put_group(replace(group, since=NOW + timedelta(minutes=1)))
    assert ledger.group(REPOSITORY, HEAD) == replace(group, since=NOW)
    ledger.put_group(replace(group, destroyed=True))
    ledger.put_group(replace(group, since=NOW))
    assert ledger.group(REPOSITORY, HEAD) == replace(group, since=NOW, destroyed=True)
    assert ledger.group("other/repository", HEAD) is None


def test_a_head_knows_its_pull_requests_the_newest_first(store: Store) -> None:
    ledger = SqlLedger(store)
    for number in (5, 12, 5):
        ledger.put_head(PullRef(REPOSITORY, number), HEAD)
    assert [ref.number for ref in ledger.pulls_with(REPOSITORY, HEAD)] == [12, 5]
    assert ledger.pulls_with(REPOSITORY, "b" * 40) == ()


def test_a_pull_request_has_one_newest_head_also_after_it_went_back(store: Store) -> None:
    ledger, ref = SqlLedger(store), PullRef(REPOSITORY, 5)
    ledger.put_head(PullRef(REPOSITORY, 12), HEAD)
    for head_sha in (HEAD, "b" * 40, HEAD):
        ledger.put_head(ref, head_sha)
        assert ref in ledger.pulls_with(REPOSITORY, head_sha, newest=True)
        other = HEAD if head_sha != HEAD else "b" * 40
        assert ref not in ledger.pulls_with(REPOSITORY, other, newest=True)
    assert [found.number for found in ledger.pulls_with(REPOSITORY, HEAD)] == [12, 5]
    assert ledger.pulls_with(REPOSITORY, "b" * 40) == (ref,)


def test_runs_are_found_by_what_their_verdict_depends_on(store: Store) -> None:
    ledger = SqlLedger(store)
    old = ledger.put_run(run())
    new = ledger.put_run(run(attempt=2).model_copy(update={"reuse_key": "c" * 64}))
    assert ledger.runs(REPOSITORY) == (old, new)
    assert ledger.runs(REPOSITORY, reuse_key="c" * 64) == (new,)
    assert ledger.runs("octo/other", reuse_key="c" * 64) == ()


def test_what_was_posted_is_replaced(store: Store) -> None:
    ledger = SqlLedger(store)
    card = Posted(repository=REPOSITORY, subject="5:card", remote_id=1, digest="x", at=NOW)
    assert ledger.note(Posted, REPOSITORY, "5:card") is None
    ledger.put_note(card)
    newer = card.model_copy(update={"digest": "y"})
    ledger.put_note(newer)
    assert ledger.note(Posted, REPOSITORY, "5:card") == newer
    assert ledger.note(Pushers, REPOSITORY, "5:card") is None


def test_a_delivery_is_kept_once_even_after_it_was_processed(store: Store) -> None:
    deliveries = SqlDeliveries(store)
    assert deliveries.keep([received(body=b"\x00\xff")]) == (True,)
    assert deliveries.keep([received()]) == (False,)
    assert [each.body for each in waiting(store, NOW)] == [b"\x00\xff"]
    deliveries.processed([(received().id, ["pull 5"])], NOW)
    assert deliveries.keep([received()]) == (False,)
    assert waiting(store, NOW) == ()
    assert wanted(store, NOW) == ("pull 5",)


def test_deliveries_are_kept_together_and_each_once(store: Store) -> None:
    deliveries = SqlDeliveries(store)
    deliveries.keep([received("known")])
    several = [received(key, body=key.encode()) for key in ("a", "known", "b", "a")]
    assert deliveries.keep(several) == (True, False, True, False)
    assert [item.body for item in waiting(store, NOW)] == [b"{}", b"a", b"b"]


def test_a_delivery_that_failed_waits_for_its_time_and_a_refused_one_for_nothing(store: Store) -> None:
    deliveries = SqlDeliveries(store)
    later = NOW + timedelta(minutes=1)
    deliveries.keep([received("one")])
    deliveries.keep([received("two")])
    deliveries.failed("one", "GitHub answered 502", later)
    deliveries.failed("two", "no JSON", None)
    assert waiting(store, NOW) == ()
    assert [(each.id, each.attempts) for each in waiting(store, later)] == [("one", 1)]
    backlog = SqlFigures(store).read(NOW + timedelta(seconds=90))
    assert (backlog.deliveries, backlog.deliveries_refused) == (Waiting(1, 90.0), 1)


def test_only_old_deliveries_that_are_done_with_are_forgotten(store: Store, tmp_path: Path) -> None:
    deliveries = SqlDeliveries(store)
    for key, second in (("old", 0), ("waits", 0), ("new", 9)):
        deliveries.keep([received(key, second)])
    deliveries.processed([("old", ()), ("new", ())], NOW)
    assert not Retention(store, tmp_path / "none").remove(NOW + timedelta(seconds=5))
    assert deliveries.keep([received("old")]) == (True,)
    assert deliveries.keep([received("new")]) == (False,)
    assert deliveries.keep([received("waits")]) == (False,)


def test_what_is_asked_while_a_target_is_looked_at_is_not_lost(store: Store) -> None:
    worklist = SqlWorklist(store)
    for _ in range(3):
        worklist.want(["pull 5"], NOW)
    (taken,) = worklist.take(NOW, 10)
    worklist.want(["pull 5"], NOW)
    assert worklist.take(NOW, 10) == ()
    worklist.finish(taken, NOW)
    assert wanted(store, NOW) == ("pull 5",)
    look(store, "pull 5")
    assert wanted(store, NOW) == ()


def test_a_target_is_wanted_again_at_its_time_or_earlier_for_news(store: Store) -> None:
    worklist, deliveries = SqlWorklist(store), SqlDeliveries(store)
    later = NOW + timedelta(seconds=15)
    for key in ("quiet", "busy", "news"):
        worklist.want([key], NOW)
    taken = worklist.take(NOW, 10)
    worklist.want(["busy"], NOW)
    for each in taken:
        worklist.finish(each, NOW, again_at=later)
    assert wanted(store, NOW) == ("busy",)
    assert SqlFigures(store).read(NOW).targets.count == 1
    worklist.want(["quiet"], NOW)
    deliveries.processed([("x", ["news"])], NOW)
    assert wanted(store, NOW) == ("busy", "news")
    assert wanted(store, later) == ("busy", "news", "quiet")
    worklist.want(["quiet"], NOW, at_once=True)
    assert set(wanted(store, NOW)) == {"busy", "news", "quiet"}


def test_a_postponed_target_waits_but_for_news(store: Store) -> None:
    worklist, deliveries = SqlWorklist(store), SqlDeliveries(store)
    later = NOW + timedelta(minutes=5)
    worklist.want(["pull 5"], NOW)
    (taken,) = worklist.take(NOW, 10)
    worklist.postpone("pull 5", "GitHub answered 502", later)
    worklist.want(["pull 5"], NOW)
    assert worklist.take(NOW, 10) == ()
    (again,) = worklist.take(later, 10)
    assert (taken.attempts, again.attempts) == (0, 1)
    give_back(store)
    deliveries.keep([received()])
    deliveries.processed([(received().id, ["pull 5"])], NOW)
    (news,) = worklist.take(NOW, 10)
    assert (news.target, news.attempts) == ("pull 5", 0)


def test_a_target_that_ends_the_process_again_and_again_is_left_alone_for_a_while(store: Store) -> None:
    worklist, now = SqlWorklist(store), NOW
    worklist.want(["pull 5"], now)
    for _ in range(3):
        assert [taken.target for taken in worklist.take(now, 10)] == ["pull 5"]
        give_back(store)
    worklist.want(["pull 5", "pull 6"], now)
    (other,) = worklist.take(now, 10)
    worklist.finish(other, now)
    now += timedelta(minutes=15)
    (again,) = worklist.take(now, 10)
    assert (other.target, again.target, again.attempts) == ("pull 6", "pull 5", 3)
    # One that returned counts for nothing.
    worklist.finish(again, now)
    worklist.want(["pull 5"], now)
    assert [taken.attempts for taken in worklist.take(now, 10)] == [0]


def test_a_target_that_was_given_back_without_a_look_is_due_at_once(store: Store) -> None:
    worklist = SqlWorklist(store)
    worklist.want(["pull 5"], NOW)
    for _ in range(2):
        worklist.take(NOW, 10)
        give_back(store)
    worklist.take(NOW, 10)
    worklist.release("pull 5")
    assert [taken.attempts for taken in worklist.take(NOW, 10)] == [2]


def test_stale_targets_are_those_that_something_happened_to_lately_and_nobody_looked_at_since(store: Store) -> None:
    worklist = SqlWorklist(store)
    worklist.want(["touched"], NOW)
    worklist.want(["old"], NOW - timedelta(days=9))
    for target in ("touched", "old"):
        look(store, target)
    assert worklist.stale(NOW - timedelta(days=3), NOW + timedelta(hours=1), 10) == ("touched",)
    assert worklist.stale(NOW - timedelta(days=3), NOW, 10) == ()


def test_many_writers_at_once_lose_nothing_and_double_nothing(store: Store) -> None:
    deliveries, worklist = SqlDeliveries(store), SqlWorklist(store)

    def deliver(number: int) -> bool:
        worklist.want([f"pull {number % 3}"], NOW)
        return deliveries.keep([received(f"{number % 50}")])[0]

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(deliver, range(200))) == 50
    assert len(deliveries.take(NOW, 100)) == 50
    assert sum(taken.asked for taken in worklist.take(NOW, 10)) == 200


def test_several_that_open_an_empty_database_at_once_make_its_tables_once(database: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(open_store, [database] * 4))
    SqlLedger(stores[0]).add(asked())
    assert SqlLedger(stores[3]).entries(REPOSITORY, 5) == (asked(),)
    for opened in stores:
        opened.close()


def test_a_first_start_that_is_killed_half_way_leaves_nothing_and_the_next_one_begins_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = dict.fromkeys(("sqlite", "postgresql"), ("CREATE TABLE broken (this is not SQL",))
    monkeypatch.setattr("verl_e2e.adapters.store.database._APPEND_ONLY", broken)
    with pytest.raises(StoreError):
        open_store(database)
    monkeypatch.undo()
    store = open_store(database)
    assert SqlLedger(store).add(asked())
    store.close()


def test_a_message_is_kept_once_and_strangers_have_a_budget(store: Store) -> None:
    outbox = SqlOutbox(store)

    def put(source: str, *, person: bool, minute: int = 0) -> bool:
        message = reply_to("o/r", 1, source, "text", person=person)
        return outbox.put(message, NOW + timedelta(minutes=minute))

    assert [put("same", person=True) for _ in range(3)] == [True, False, False]
    assert [put(f"typo {number}", person=False) for number in range(30)].count(True) == 10
    assert put("of a person", person=True)
    assert put("typo later", person=False, minute=2)
    (first,) = outbox.take(NOW, 1)
    assert first.message.person
    outbox.failed(first.number, "limited", NOW + timedelta(minutes=1))
    assert [letter.message.subject for letter in outbox.take(NOW, 99, besides=["o:others"])] == ["reply:1:of a person"]


def test_one_sign_is_kept_for_each_person_whatever_others_used_up(store: Store) -> None:
    outbox = SqlOutbox(store)

    def put(to: str, number: int, minute: int = 0, owner: str = "o") -> bool:
        message = reply_to(f"{owner}/r", 1, f"{to} {number} {minute}", "text", person=False, to=to)
        return outbox.put(message, NOW + timedelta(minutes=minute))

    assert [put("ann", number) for number in range(12)].count(True) == 10
    # The first one to each, and no second one; a login is the same in capitals.
    assert [put(f"stranger-{number}", 0) for number in range(20)] == [True] * 20
    assert not any(put(f"Stranger-{number}", 1) for number in range(20))
    # However many they are, they share a limit, which is not that of another installation.
    assert not put("one more", 0)
    assert put("one more", 0, owner="p")
    # Someone whose login is not known takes none of what is kept for others.
    assert not put("", 0)
    for minute in range(2, 59, 2):
        for number in range(30):
            put(f"visitor-{minute}-{number}", 0, minute)
    assert not put("late", 0, 59)
    assert put("late", 1, 130)


@pytest.mark.parametrize("version", (SCHEMA_VERSION - 1, SCHEMA_VERSION + 1))
def test_a_database_of_another_version_is_refused_in_one_sentence(database: str, version: int) -> None:
    opened = open_store(database)
    with opened.write() as connection:
        connection.execute(versions.update().values(version=version))
    opened.close()
    with pytest.raises(StoreError) as refused:
        open_store(database)
    text = str(refused.value)
    assert text.startswith(f"DATABASE_URL {database}: its tables are of version {version}, ")
    assert text.endswith("; name an empty database, or start the verl-e2e that made it")


@pytest.mark.parametrize(
    "made",
    (
        "CREATE TABLE deliveries (x INTEGER)",
        "CREATE TABLE schema_version (version INTEGER)",
        "CREATE TABLE schema_version (x INTEGER)",
    ),
)
def test_tables_of_another_program_are_refused_in_one_sentence(tmp_path: Path, made: str) -> None:
    with closing(sqlite3.connect(tmp_path / "other.sqlite3")) as other:
        other.execute(made)
    with pytest.raises(StoreError, match="name an empty database"):
        open_store(f"sqlite:///{tmp_path}/other.sqlite3")


def test_a_file_that_is_not_a_database_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, and long enough to be looked at\n" * 40)
    with pytest.raises(StoreError, match=r"file is not a database; .* name an empty database"):
        open_store(f"sqlite:///{tmp_path}/notes.txt")


@pytest.mark.parametrize(
    ("url", "message"),
    (
        ("nonsense", "write sqlite:///FILE or postgresql://"),
        ("mysql://bot:hunter2@host/db", "mysql is not supported"),
        ("sqlite:////proc/no/such/folder/bot.sqlite3", "see that its folder is there"),
        pytest.param("postgresql://bot:hunter2@127.0.0.1:1/db", "see that the server runs", marks=pytest.mark.postgres),
    ),
)
def test_a_database_that_cannot_be_opened_is_one_sentence_without_its_password(url: str, message: str) -> None:
    with pytest.raises(StoreError) as refused:
        open_store(url)
    assert message in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_was_written_is_there_for_the_next_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bot.sqlite3'}"
    first = open_store(url)
    SqlLedger(first).add(asked())
    second = open_store(url)
    assert SqlLedger(second).entries(REPOSITORY, 5) == (asked(),)
    with second.read() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(entries)) == 1
    first.close()
    second.close()


FULL = """
import resource, signal, sys
from datetime import UTC, datetime
import sqlalchemy as sa
from verl_e2e.adapters.store import SqlDeliveries, open_store
from verl_e2e.core.pulls.deliveries import Received
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
now, large = datetime(2026, 11, 20, 12, tzinfo=UTC), b"x" * 2_000_000
deliveries = SqlDeliveries(open_store(sys.argv[1]))
deliveries.keep([Received("small", "push", b"{}", now)])
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
try:
    deliveries.keep([Received("large", "push", large, now)])
except sa.exc.OperationalError:
    print("refused")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(deliveries.keep([Received("large", "push", large, now)]))
print(sorted(delivery.id for delivery in deliveries.take(now, 9)))
"""


def test_a_full_disk_refuses_a_delivery_loses_nothing_and_goes_on_when_there_is_space(tmp_path: Path) -> None:
    """The limit on the size of a file stands in for a full disk."""
    argv = [sys.executable, "-c", FULL, f"sqlite:///{tmp_path / 'bot.sqlite3'}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.stdout.splitlines() == ["refused", "(True,)", "['large', 'small']"], done.stderr
