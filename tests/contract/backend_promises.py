"""What every back end promises. Each engine has a file that tests it with the engine's real programs.

A job takes seconds to begin on a real cluster, so one job shows as much as it can.
"""

import base64
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fakes.engines import Engine, order, runners_of, until
from tests.fakes.smart_http import serving
from tests.runners.world import World, bare_forge, fetched
from verl_e2e.adapters.files.run_folder import read_record
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.outcome import EngineEnd, Result, of_engine
from verl_e2e.core.model.record import EVENTS_FILE, LOG_FILE, EndReason
from verl_e2e.core.pulls.job_order import same_job
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.retry import RetryClass, class_of
from verl_e2e.ports import Backend, BackendError, Progress


def seen(backend: Backend, run: Run) -> Progress:
    return backend.poll(run)


def wait_for(backend: Backend, run: Run, state: RunState) -> Progress:
    """The progress once it has the state; one that has ended otherwise fails at once."""
    shown: list[Progress] = []

    def reached() -> bool:
        shown[:] = [seen(backend, run)]
        return shown[0].state is state or shown[0].state.final

    until(reached)
    assert shown[0].state is state, shown
    return shown[0]


def has_begun(backend: Backend, run: Run) -> None:
    """Wait until the runner has begun, which may take an engine that restarts some time to know."""

    def begun() -> bool:
        with suppress(BackendError):
            progress = seen(backend, run)
            return progress.state is RunState.RUNNING and "phase" in progress.note
        return False

    until(begun)


def begin(backend: Backend, run: Run) -> Run:
    """The submitted run, once its runner has begun."""
    submitted = run.model_copy(update={"handle": backend.submit(run), "state": RunState.SUBMITTED})
    has_begun(backend, submitted)
    return submitted


def ends_of(folder: Path) -> list[str]:
    events = [json.loads(line) for line in (folder / EVENTS_FILE).read_text().splitlines()]
    return [event["data"]["reason"] for event in events if event["kind"] == "ended"]


def submitted_again(backend: Backend, run: Run) -> str:
    """The handle, once the engine answers."""
    handles: list[str] = []

    def taken() -> bool:
        with suppress(BackendError):
            handles.append(backend.submit(run))
        return bool(handles)

    until(taken)
    return handles[0]


class Promises:
    """The contract; a subclass in the file of an engine has a fixture `engine`."""

    def test_a_run_ends_in_a_folder_of_its_order(self, world: World, engine: Engine, tmp_path: Path) -> None:
        backend, run = engine.make(), order(world.job())
        assert seen(backend, run).state is RunState.LOST, "it was never submitted"
        assert b"".join(backend.log(run)) == b""
        run = run.model_copy(update={"handle": backend.submit(run)})
        took = wait_for(backend, run, RunState.FINISHED).took
        assert took is not None
        assert took.started is not None
        assert took.ended is not None
        assert backend.artifacts(run, tmp_path / "home")
        record = read_record(tmp_path / "home")
        assert record.job is not None
        assert same_job(record.job, world.job())
        assert not same_job(record.job, world.job(steps=2))
        assert judge(record, None).result is Result.BLOCKED
        assert len(ends_of(tmp_path / "home")) == 1
        assert backend.unattested(run) == ""
        deep = engine.root / run.key / "run" / "a/b/c/d/e/f/g/h/i"
        deep.mkdir(parents=True)
        with pytest.raises(BackendError, match="deeper than allowed") as refused:
            backend.artifacts(run, tmp_path / "capped")
        assert refused.value.final
        assert not (tmp_path / "capped").exists()
        log_is_read_as_it_is(engine, backend, run)

    def test_a_run_is_started_once_whatever_is_lost_and_ends_when_asked(
        self, slow: Job, engine: Engine, tmp_path: Path
    ) -> None:
        """A lost reply, a double submit and a restart of the engine leave one runner, which is then cancelled."""
        run = order(slow)
        engine.lose_reply(run)
        first, second = engine.make(), engine.make()
        found = first.find(run)
        assert found
        run = run.model_copy(update={"handle": found})
        assert {second.submit(run), first.submit(run), first.find(run)} == {found}
        has_begun(second, run)
        first.end_doubles(run)
        if engine.remembers:
            engine.restart()
            second = engine.make()
            has_begun(second, run)
            assert second.submit(run) == found
        assert len(runners_of(run)) == 1
        assert not second.artifacts(run, tmp_path / "early")
        second.cancel(run)
        second.cancel(run)
        wait_for(second, run, RunState.CANCELLED)
        assert second.artifacts(run, tmp_path / "home")
        assert ends_of(tmp_path / "home") == [EndReason.INTERRUPTED]
        assert runners_of(run) == []

    def test_a_run_that_waits_is_cancelled_or_refused_when_its_order_was_changed(
        self, slow: Job, world: World, engine: Engine, tmp_path: Path
    ) -> None:
        """Another job in the order's place never comes back as the run of the order."""
        backend = engine.make()
        first, second, changed = order(slow), order(slow, attempt=2), order(world.job())
        begin(backend, first)
        for run in (second, changed):
            backend.submit(run)
            assert seen(backend, run).state is RunState.SUBMITTED
        (engine.root / changed.key / "job.json").write_text(world.job(steps=2).model_dump_json())
        backend.cancel(second)
        wait_for(backend, second, RunState.CANCELLED)
        backend.cancel(first)
        wait_for(backend, first, RunState.CANCELLED)
        until(lambda: seen(backend, changed).state.final)
        if seen(backend, changed).state is RunState.FINISHED:
            assert backend.artifacts(changed, tmp_path / "changed")
            record = read_record(tmp_path / "changed")
            assert record.job is not None
            assert not same_job(record.job, world.job())
        else:
            assert seen(backend, changed).state is RunState.LOST
            assert not backend.artifacts(changed, tmp_path / "changed")
        with suppress(BackendError):
            backend.submit(second)
        assert seen(backend, second).state is RunState.CANCELLED
        assert runners_of(second) == []
        assert not backend.artifacts(second, tmp_path / "home")

    def test_a_host_without_clones_fetches_what_each_order_names_once(
        self, world: World, engine: Engine, tmp_path: Path
    ) -> None:
        """Of a server that wants a token; a pull request's head is on no branch, and a pinned commit has successors."""
        heads = bare_forge(world, tmp_path / "forge")
        text = base64.b64encode(b"x-access-token:s3cret-of-the-host").decode()
        (engine.root.parent / "token").write_text("s3cret-of-the-host\n")
        backend = engine.make()
        with serving(tmp_path / "forge") as server:
            server.authorization = f"Basic {text}"
            for number, head in heads.items():
                job = fetched(world, server.url, head, f"refs/pull/{number}/head")
                run = order(job)
                backend.submit(run)
                wait_for(backend, run, RunState.FINISHED)
                assert backend.artifacts(run, tmp_path / f"home-{number}")
                record = read_record(tmp_path / f"home-{number}")
                assert record.job is not None
                assert same_job(record.job, job)
                assert record.environment is not None
                at = {state.name: state.commit for state in record.environment.repositories}
                assert at == {"bridge": head, "verl": world.verl_commit, "megatron_lm": world.megatron_commit}
            packs = [path.split("/")[2] for method, path in server.asked if method == "POST" and "upload" in path]
        assert {*packs} == {"bridge.git", "verl.git", "mlm.git"}
        assert packs.count("verl.git") == packs.count("mlm.git") == packs.count("bridge.git") / 2
        secrets = (b"s3cret-of-the-host", text.encode())
        files = [path for path in tmp_path.rglob("*") if path.is_file() and path != engine.root.parent / "token"]
        assert [path for path in files if any(secret in path.read_bytes() for secret in secrets)] == []

    def test_a_lost_node(self, slow: Job, engine: Engine) -> None:
        backend = engine.make()
        run = begin(backend, order(slow))
        engine.lose_node(run)
        assert "rerun" in wait_for(backend, run, RunState.LOST).note

    def test_a_job_that_the_engine_killed_and_an_artifact_half_written(
        self, slow: Job, engine: Engine, tmp_path: Path
    ) -> None:
        backend = engine.make()
        run = begin(backend, order(slow))
        engine.kill(run)
        lost = wait_for(backend, run, RunState.LOST)
        assert "rerun" in lost.note
        assert lost.end is EngineEnd.RUNNER_KILLED
        until(lambda: runners_of(run) == [])
        left = engine.root / run.key / "run"
        whole = (left / EVENTS_FILE).read_bytes()
        (left / EVENTS_FILE).write_bytes(whole[: len(whole) - 5] + b'\n{"kind": "end')
        (left / "outside").symlink_to("/etc/passwd")
        os.mkfifo(left / "pipe")
        assert seen(backend, run).state is RunState.LOST
        assert backend.artifacts(run, tmp_path / "home")
        assert {"outside", "pipe"}.isdisjoint(path.name for path in (tmp_path / "home").iterdir())
        whole_lines = (tmp_path / "home" / EVENTS_FILE).read_text().splitlines()[:-2]
        assert "ended" not in [json.loads(line)["kind"] for line in whole_lines]

    def test_a_runner_that_is_killed_before_it_wrote_anything_is_a_fault_of_its_host(
        self, world: World, engine: Engine
    ) -> None:
        backend, run = engine.make(), order(world.job())
        backend.submit(run)
        until(lambda: runners_of(run) != [])
        engine.kill(run)
        lost = wait_for(backend, run, RunState.LOST)
        assert lost.end is EngineEnd.RUNNER_KILLED
        assert class_of([of_engine(lost.end)], undecided=False) is RetryClass.PASSING

    def test_a_run_without_a_job_and_a_key_that_leads_elsewhere_are_refused(self, world: World, engine: Engine) -> None:
        backend, run = engine.make(), order(world.job())
        with pytest.raises(BackendError, match="has no job"):
            backend.submit(run.model_copy(update={"job": None}))
        with pytest.raises(BackendError, match="not a run key"):
            backend.poll(run.model_copy(update={"key": "../../etc", "handle": "../../etc"}))


class PromisesAfterACrash:
    """What holds when the engine itself is killed."""

    def test_an_engine_that_is_killed_while_a_run_waits(self, slow: Job, world: World, engine: Engine) -> None:
        """Whatever the engine forgot of it, the run that waits is started once."""
        backend = engine.make()
        first, second = begin(backend, order(slow)), order(world.job())
        backend.submit(second)
        engine.crash()
        backend = engine.make()
        second = second.model_copy(update={"handle": submitted_again(backend, second)})
        if engine.remembers:
            assert runners_of(second) == []
            backend.cancel(first)
            wait_for(backend, first, RunState.CANCELLED)
        else:
            assert "rerun" in wait_for(backend, first, RunState.LOST).note
            assert runners_of(first) == []
            with pytest.raises(BackendError) as refused:
                backend.submit(first)
            assert refused.value.final
        wait_for(backend, second, RunState.FINISHED)
        events = (engine.root / second.key / "run" / EVENTS_FILE).read_text().splitlines()
        assert [json.loads(event)["kind"] for event in events].count("started") == 1


def log_is_read_as_it_is(engine: Engine, backend: Backend, run: Run) -> None:
    """The log of a run that has ended is read from its file each time, cut short and rotated too."""
    assert backend.where(run)
    whole = b"".join(backend.log(run))
    assert b"preflight" in whole
    log = engine.root / run.key / "runner.log"
    os.truncate(log, 5)
    if not (engine.root / run.key / "run" / LOG_FILE).exists():
        assert b"".join(backend.log(run)) == whole[:5]
    log.rename(log.with_name("runner.log.1"))
    (log.parent / "run" / LOG_FILE).unlink(missing_ok=True)
    assert b"".join(backend.log(run)) == b""
    log.write_bytes(b"rotated\n")
    assert b"".join(backend.log(run)) == b"rotated\n"
