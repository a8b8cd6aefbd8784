"""Reconciling, story by story: what GitHub shows, what runs, and what a second look adds (nothing)."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.app import APP, BASE, POLICY, REF, REPOSITORY, STRANGER, App, FakeSource, blocks, fails, passes
from tests.fakes.trees import sha
from verl_e2e.adapters.dispatch.order_folder import follow_ups
from verl_e2e.adapters.files.folders import run_folders
from verl_e2e.adapters.files.run_folder import FolderError, read_record
from verl_e2e.app.action_run import AcceptedJob, leave_blocked
from verl_e2e.app.known_targets import AUTHOR_KEPT
from verl_e2e.config.policy import POLICY_PATH
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Isolation, Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.outcome import Result
from verl_e2e.core.model.record import Event, Record
from verl_e2e.core.model.related import Bands
from verl_e2e.core.pulls.forge import MergeGroup, PullState
from verl_e2e.core.pulls.ledger import Approval, Override, RecordedCommand, Run, RunState
from verl_e2e.core.report.pull_card import MARKER
from verl_e2e.ports import BackendError, ForgeError

SMOKE, AMPLIFIED, RECOMPUTE = "0-lora-ddp", "0-amplified-lora", "0-recompute"


@pytest.fixture
def app() -> App:
    return App()


def look(app: App, seconds: float = 60) -> float | None:
    app.clock.pass_s(seconds)
    return app.handlers.reconciler.reconcile(REF)


def gate(app: App, head: str = "one") -> tuple[str, str, str]:
    found = app.hub.gate(sha(head))
    assert found is not None
    return found.status, found.conclusion, found.title


def live(app: App) -> list[str]:
    return [text.job_id for text in app.backend.live()]


def finish(app: App, job_id: str, how: object) -> None:
    (run,) = (text for text in app.backend.live() if text.job_id == job_id)
    app.backend.finish(run, how)  # type: ignore[arg-type]


def ask(app: App, verb: str, *arguments: str, head: str = "one", **options: str) -> None:
    source = f"comment:{app.hub.next_id()}:1"
    app.ledger.add(
        RecordedCommand(
            source=source,
            repository=REPOSITORY,
            number=7,
            actor="alice",
            verb=verb,
            arguments=arguments,
            options=options,
            head_sha=sha(head),
            at=app.clock.now(),
        )
    )


def approve(app: App, head: str) -> None:
    app.ledger.add(
        Approval(
            base="main",
            repository=REPOSITORY,
            number=7,
            head_sha=sha(head),
            actor="mona",
            source=f"comment:{app.hub.next_id()}:1",
            at=app.clock.now(),
        )
    )


def to_the_end(app: App, how: object = passes, rounds: int = 6) -> None:
    for _ in range(rounds):
        look(app)
        app.backend.begin()
        app.backend.settle()
        for text in app.backend.live():
            app.backend.finish(text, how)  # type: ignore[arg-type]
    look(app)


def test_calls_about_a_run_are_counted_and_say_in_log_lines_which_run_it_is(app: App) -> None:
    app.open()
    for operation in ("submit", "poll"):
        app.backend.fail.append(operation)
        with pytest.raises(BackendError):
            look(app)
        look(app)

    def with_a_phase(job: Job) -> tuple[Record, LogFacts | None]:
        record, facts = passes(job)
        phase = Event(t_s=1.0, kind="phase", data={"name": "preflight", "state": "begin"})
        return record.model_copy(update={"events": (phase, *record.events)}), facts

    finish(app, SMOKE, with_a_phase)
    look(app)
    (run,) = (run for run in app.backend.submitted if run.job_id == SMOKE)
    about = {"run": run.key, "head": run.head_sha, "job": SMOKE}
    of_run = [name for name, said in app.backend.calls if said == about]
    assert {"submit", "poll", "artifacts", "unattested"} <= {*of_run}
    assert all(said["head"] == run.head_sha for _, said in app.backend.calls)
    text = app.metrics.text().decode()
    for operation, outcome in (("submit", "failed"), ("submit", "ok"), ("poll", "failed"), ("artifacts", "ok")):
        assert f'verl_e2e_backend_call_seconds_count{{operation="{operation}",outcome="{outcome}"}}' in text
    assert 'verl_e2e_run_seconds_count{phase="preflight"} 1.0' in text


def test_level_0_runs_first_and_alone_then_the_rest_then_the_gate_opens(app: App) -> None:
    app.open()
    look(app)
    assert (live(app), gate(app)[:2]) == ([SMOKE], ("in_progress", ""))
    look(app)
    assert live(app) == [SMOKE]
    finish(app, SMOKE, passes)
    look(app)
    assert live(app) == [AMPLIFIED, RECOMPUTE]
    finish(app, AMPLIFIED, passes)
    look(app)
    assert gate(app)[0] == "in_progress"
    finish(app, RECOMPUTE, passes)
    assert look(app) is None
    assert gate(app) == ("completed", "success", "All 3 required jobs passed")
    names = {run.name: run.conclusion for run in app.hub.runs}
    assert names == {"verl-e2e": "success"} | {f"verl-e2e / {job}": "success" for job in (SMOKE, AMPLIFIED, RECOMPUTE)}
    (card,) = app.hub.cards(7)
    assert "Pass" in card.body.splitlines()[1]


def test_every_run_knows_the_commit_that_its_failure_is_held_against(app: App) -> None:
    app.open()
    look(app)
    (run,) = app.ledger.runs(REPOSITORY, number=7)
    assert run.merge_base == app.hub.pulls[7].base_sha
    assert follow_ups(run) == ("--follow-ups", "--baseline", run.merge_base)


@pytest.mark.parametrize(("site", "ref"), [("https://forge.example", "refs/pull/7/head"), ("", "")])
def test_an_order_says_where_its_host_fetches_the_head_from(site: str, ref: str) -> None:
    app = App(fetched_from=site)
    app.open()
    look(app)
    (run,) = app.ledger.runs(REPOSITORY, number=7)
    assert run.job is not None
    assert (run.job.bridge.path, run.job.bridge.commit) == ("bridge", run.head_sha)
    found = {name: (origin.url, origin.ref) for name, origin in run.job.origins.items()}
    assert found.get("bridge", ("", ""))[1] == ref
    assert found.keys() == ({"bridge", "verl", "megatron_lm"} if site else {"megatron_lm"})
    assert all(url.startswith("https://") for url, _ in found.values())
    again = App()
    again.open()
    look(again)
    assert [other.key for other in again.ledger.runs(REPOSITORY, number=7)] == [run.key], "it is the same run"


def test_a_second_look_writes_nothing(app: App) -> None:
    app.open()
    to_the_end(app)
    app.hub.calls.clear()
    look(app)
    assert set(app.hub.calls) <= {"pull", "role", "tip"}


def test_a_failed_level_0_leaves_the_others_skipped_with_the_reason(app: App) -> None:
    app.open()
    to_the_end(app, fails)
    assert gate(app)[:2] == ("completed", "failure")
    assert [run.job_id for run in app.backend.submitted] == [SMOKE]
    (check,) = (run for run in app.hub.runs if run.name == f"verl-e2e / {RECOMPUTE}")
    assert (check.conclusion, check.title) == ("action_required", f"Skipped: it needs {SMOKE}, which did not pass")


def test_a_run_that_proves_nothing_is_blocked_and_never_neutral(app: App) -> None:
    app.open()
    to_the_end(app, blocks)
    assert gate(app)[:2] == ("completed", "action_required")
    assert {run.conclusion for run in app.hub.runs} == {"action_required"}


def test_a_doubt_about_who_handed_the_folder_over_is_a_limitation_on_the_card(app: App) -> None:
    app.backend.doubt = "nothing proves it"
    app.open()
    to_the_end(app, passes)
    (card,) = app.hub.cards(7)
    assert "Nothing proves it." in card.body


def test_nothing_required_is_a_success_with_the_reasons(app: App) -> None:
    app.open(path="docs/a.md")
    assert look(app) is None
    assert gate(app) == ("completed", "success", "No verl coverage is required by this change")
    found = app.hub.gate(sha("one"))
    assert found is not None
    assert "nothing runs it" in found.summary
    assert app.backend.submitted == []


@pytest.mark.parametrize(
    ("author", "repository", "conclusion"),
    (
        ("mallory", "evil/bridge", "action_required"),
        ("mallory", "octo/bridge", "action_required"),
        # A member opened it, and the fork's owner pushes into it.
        ("alice", "evil/bridge", "action_required"),
        ("rita", "alice/bridge", "action_required"),
        ("alice", "alice-org/bridge", "action_required"),
        ("alice", "", "action_required"),
        ("alice", "Alice/bridge", "success"),
        ("alice", "alice/bridge", "success"),
        ("rita", "rita/bridge", "success"),
        ("mona", "octo/bridge", "success"),
    ),
)
def test_nothing_required_needs_an_approval_of_the_head_of_an_author_without_a_role(
    app: App, author: str, repository: str, conclusion: str
) -> None:
    app.open(path="docs/a.md", head_repository=repository, author=author)
    look(app)
    assert gate(app)[1] == conclusion
    approve(app, "one")
    look(app)
    assert (gate(app)[1], app.backend.submitted) == ("success", [])


def test_where_the_policy_asks_for_it_nothing_required_needs_an_approval_of_a_forks_head(app: App) -> None:
    app.hub.files[(BASE, POLICY_PATH)] = (POLICY + "gate: {none: approve}\n").encode()
    app.open(path="docs/a.md")
    look(app)
    assert gate(app)[1] == "success"
    app.open(path="docs/a.md", head_repository="evil/bridge", author="mallory")
    look(app)
    assert gate(app)[1] == "action_required"
    assert gate(app)[2].startswith("The policy asks for an approval where nothing is required (gate.none)")
    approve(app, "zero")
    look(app)
    assert gate(app)[1] == "action_required"
    approve(app, "one")
    look(app)
    assert (gate(app)[1], app.backend.submitted) == ("success", [])


def test_a_job_said_to_have_passed_for_another_order_is_no_evidence(app: App) -> None:
    app.open()
    look(app)
    finish(app, SMOKE, lambda job: passes(job.model_copy(update={"steps": 2})))
    look(app)
    (run,) = app.ledger.kept.values()
    assert (run.result, run.sentence) == (
        Result.BLOCKED,
        "the run folder holds another job than the one that was sent, so it is not evidence",
    )


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, 1e308, -5.0])
def test_whatever_time_a_run_says_it_took_its_row_can_be_read_back(app: App, seconds: float) -> None:
    def timed(job: Job) -> tuple[Record, LogFacts | None]:
        record, facts = passes(job)
        odd = Event(t_s=seconds, kind="step", data={})
        return record.model_copy(update={"events": (odd, *record.events)}), facts

    app.open(path="src/lora/a.py")
    look(app)
    finish(app, SMOKE, timed)
    look(app)
    (kept,) = app.ledger.kept.values()
    assert Run.model_validate_json(kept.model_dump_json()) == kept


def test_a_folder_that_is_in_the_way_of_its_own_judgement_is_blocked(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> None:
        raise FileExistsError(17, "File exists", "/srv/data/runs/plots")

    monkeypatch.setattr(app.folders, "write", write)
    app.open(path="src/lora/a.py")
    look(app)
    finish(app, SMOKE, passes)
    look(app)
    assert gate(app)[1] == "action_required"
    assert "cannot be judged: File exists" in gate(app)[2]
    assert "/srv" not in gate(app)[2]


def test_a_folder_that_cannot_be_judged_tells_no_path_of_ours(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(folder: Path, _: object) -> None:
        raise FolderError(f"{folder / 'verdict.json'}: cannot be written: Is a directory")

    monkeypatch.setattr(app.folders, "write", write)
    app.open(path="src/lora/a.py")
    look(app)
    (run,) = app.backend.live()
    finish(app, SMOKE, passes)
    look(app)
    text = gate(app)[2]
    assert "cannot be judged: run folder/verdict.json: cannot be written" in text
    assert run.key not in text


def test_the_paths_of_the_machine_that_ran_it_do_not_matter(app: App) -> None:
    app.open()
    look(app)
    placed = {"path": "/somewhere/bridge"}
    finish(app, SMOKE, lambda job: passes(job.model_copy(update={"bridge": job.bridge.model_copy(update=placed)})))
    look(app)
    assert next(iter(app.ledger.kept.values())).result is Result.PASS


def test_a_new_head_ends_the_runs_of_the_one_before_and_waits_for_their_end(app: App) -> None:
    app.open()
    look(app)
    app.push("two")
    look(app)
    assert [item.state for item in app.ledger.kept.values()] == [RunState.CANCELLING]
    assert (live(app), gate(app, "two")[0]) == ([SMOKE], "in_progress")
    app.backend.settle()
    look(app)
    assert [text.head_sha for text in app.backend.live()] == [sha("two")]
    assert gate(app, "one")[1:] == ("cancelled", f"Superseded by {sha('two')[:12]}")


def test_a_late_result_goes_into_history_only(app: App) -> None:
    app.open()
    look(app)
    (old,) = app.backend.live()
    app.push("two", "docs/a.md")
    app.backend.finish(old, fails)
    look(app)
    look(app)
    assert gate(app, "two")[:2] == ("completed", "success")
    (card,) = app.hub.cards(7)
    assert card.body.splitlines()[1].startswith("### ✅")
    assert f"`{sha('one')[:12]}` ❌ Fail" in card.body


def test_a_push_back_to_a_head_that_passed_needs_no_second_run(app: App) -> None:
    app.open()
    to_the_end(app)
    app.push("two", "docs/a.md")
    look(app)
    app.push("one")
    look(app)
    assert (gate(app, "one")[1], len(app.backend.submitted)) == ("success", 3)


def test_a_fork_waits_for_an_approval_of_exactly_its_head(app: App) -> None:
    app.open(head_repository="evil/bridge", author="mallory", author_association="NONE")
    look(app)
    assert (gate(app)[1], live(app)) == ("action_required", [])
    assert gate(app)[2] == "Awaiting approval: the head lies in evil/bridge, outside the repository"
    assert f"`/verl-e2e approve {sha('one')}`" in app.hub.cards(7)[0].body
    approve(app, "zero")
    look(app)
    assert live(app) == []
    approve(app, "one")
    look(app)
    assert live(app) == [SMOKE]
    assert [run.from_fork for run in app.backend.live()] == [True]
    assert {run.job.isolation for run in app.backend.live() if run.job} == {Isolation.REQUIRED}
    app.push("two")
    look(app)
    app.backend.settle()
    look(app)
    assert (live(app), gate(app, "two")[1]) == ([], "action_required")


def test_a_member_of_a_fork_or_a_first_time_author_is_asked_as_well(app: App) -> None:
    app.open(head_repository="alice/bridge")
    look(app)
    assert live(app) == []
    app.open(author_association="FIRST_TIME_CONTRIBUTOR")
    look(app)
    assert live(app) == []


def test_somebody_who_lost_the_role_runs_nothing_more(app: App) -> None:
    app.open()
    look(app)
    app.hub.roles["alice"] = "read"
    app.clock.pass_s(AUTHOR_KEPT.total_seconds())
    look(app)
    app.backend.settle()
    look(app)
    assert (live(app), gate(app)[1]) == ([], "action_required")


def test_a_lost_role_is_seen_though_the_clock_was_set_back(app: App) -> None:
    app.open()
    look(app)
    app.hub.roles["alice"] = "read"
    app.clock.pass_s(AUTHOR_KEPT.total_seconds())
    app.clock.pass_s(-86_400)
    look(app)
    app.backend.settle()
    look(app)
    assert live(app) == []


def test_a_head_that_moved_while_we_looked_runs_nothing(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    pull = app.open()
    seen: list[int] = []

    def moving(_: object) -> object:
        seen.append(1)
        return pull if len(seen) == 1 else replace(pull, head_sha=sha("two"))

    monkeypatch.setattr(app.hub, "pull", moving)
    assert look(app) is not None
    assert app.backend.submitted == []


def test_a_draft_is_planned_and_not_run(app: App) -> None:
    app.open(draft=True)
    look(app)
    assert (live(app), gate(app)[1:]) == ([], ("action_required", "Drafts are planned, not run"))
    assert SMOKE in app.hub.cards(7)[0].body
    app.open()
    look(app)
    assert live(app) == [SMOKE]


def test_closing_ends_what_runs(app: App) -> None:
    app.open()
    look(app)
    app.open(state=PullState.CLOSED)
    look(app)
    app.backend.settle()
    look(app)
    assert (live(app), [item.state for item in app.ledger.kept.values()]) == ([], [RunState.CANCELLED])


def test_closed_from_the_start_is_left_alone(app: App) -> None:
    app.open(state=PullState.CLOSED)
    assert look(app) is None
    assert (app.hub.runs, app.hub.cards(7)) == ([], [])


def test_cancel_then_run(app: App) -> None:
    app.open()
    look(app)
    ask(app, "cancel")
    look(app)
    app.backend.settle()
    look(app)
    assert (live(app), gate(app)[1:]) == ([], ("action_required", "Cancelled by alice"))
    ask(app, "run")
    to_the_end(app)
    assert gate(app)[1] == "success"
    assert [item.attempt for item in app.ledger.kept.values() if item.job_id == SMOKE] == [1, 2]


@pytest.mark.parametrize(
    ("how", "arguments", "again"),
    [
        (fails, (), True),
        (fails, ("failed",), True),
        (fails, ("blocked",), False),
        (fails, (SMOKE,), True),
        (fails, (RECOMPUTE,), False),
        (blocks, (), True),
        (blocks, ("failed",), False),
        (blocks, ("blocked",), True),
        (passes, (), False),
    ],
)
def test_rerun_runs_again_what_it_names_and_once(
    app: App, how: object, arguments: tuple[str, ...], again: bool
) -> None:
    app.open(path="src/lora/a.py")
    to_the_end(app, how)
    ask(app, "rerun", *arguments)
    to_the_end(app, how)
    assert [item.attempt for item in app.ledger.kept.values()] == ([1, 2] if again else [1])


def test_what_an_order_that_was_not_taken_advises_runs_it_again(app: App, tmp_path: Path) -> None:
    app.hub.files[(BASE, POLICY_PATH)] = (POLICY + "retry: {passing: 0}\n").encode()
    app.open(path="src/lora/a.py")
    look(app)
    (run,) = app.backend.live()
    assert run.job is not None
    leave_blocked(AcceptedJob(run.job, "the head could not be read again"), tmp_path, run_folders(Bands()))
    record = read_record(tmp_path)
    finish(app, SMOKE, lambda _: (record, None))
    look(app)
    assert (gate(app)[1], live(app)) == ("action_required", [])
    assert record.environment is not None
    advised = re.search("`/verl-e2e ([^`]+)`", record.environment.findings[0].fix)
    assert advised is not None
    ask(app, *advised[1].split())
    look(app)
    assert live(app) == [SMOKE]


def test_a_rerun_that_passes_opens_the_gate(app: App) -> None:
    app.open()
    to_the_end(app, fails)
    ask(app, "rerun", "failed")
    look(app)
    assert gate(app)[0] == "in_progress"
    to_the_end(app)
    assert gate(app)[1] == "success"


def test_an_extra_level_runs_beside_the_plan_and_never_satisfies_the_gate(app: App) -> None:
    app.open(path="src/lora/a.py")
    ask(app, "level", "0", steps="5")
    look(app)
    extra = next(text for text in live(app) if text != SMOKE)
    assert extra.startswith(f"{SMOKE}-x")
    finish(app, extra, passes)
    look(app)
    assert gate(app)[0] == "in_progress"
    finish(app, SMOKE, fails)
    look(app)
    assert gate(app)[1] == "failure"


def test_a_variant_of_one_level_stands_for_it_before_the_others_that_were_asked_for(app: App) -> None:
    app.open(path="docs/a.md")
    ask(app, "level", "0", "1", variant=RECOMPUTE)
    look(app)
    (first,) = live(app)
    assert first.startswith(f"{RECOMPUTE}-x")
    finish(app, first, passes)
    look(app)
    assert live(app) == [f"1-resume{first.removeprefix(RECOMPUTE)}"]


def test_a_level_beyond_the_plan_waits_for_level_0(app: App) -> None:
    app.open(path="docs/a.md")
    ask(app, "level", "2")
    look(app)
    assert live(app) == [SMOKE]
    finish(app, SMOKE, passes)
    look(app)
    assert live(app) == ["2-dense"]
    finish(app, "2-dense", fails)
    look(app)
    assert gate(app)[1] == "success"


def test_a_foreign_image_is_refused_with_the_reason(app: App) -> None:
    app.open(path="docs/a.md")
    ask(app, "level", "0", image="evil/verl:t")
    look(app)
    assert live(app) == []
    assert "only images of verlai/verl" in app.hub.cards(7)[0].body


def test_the_image_that_the_policy_pins_is_ordered_whatever_the_site_names(app: App) -> None:
    pinned = f"verlai/verl@sha256:{'a' * 64}"
    policy = app.hub.files[(BASE, POLICY_PATH)].decode()
    message = policy.replace("tag: t}", f"tag: u, digest: 'sha256:{'a' * 64}'}}")
    assert message != policy
    app.hub.files[(BASE, POLICY_PATH)] = message.encode()
    app.open(path="src/lora/a.py")
    look(app)
    (run,) = (run for run in app.ledger.runs(REPOSITORY, number=7) if run.job_id == SMOKE)
    assert run.job is not None
    assert run.job.site.image == pinned
    assert any("the site names verlai/verl:t" in row for row in run.job.site.limitations)


def test_an_override_needs_nothing_to_run_and_is_shown(app: App) -> None:
    app.open(path="src/lora/a.py")
    to_the_end(app, fails)
    app.ledger.add(
        Override(
            base="main",
            repository=REPOSITORY,
            number=7,
            head_sha=sha("one"),
            level=Level.SMOKE,
            reason="a known fault of the host",
            actor="mona",
            source="comment:1:1",
            at=app.clock.now(),
        )
    )
    look(app)
    assert gate(app)[1:] == ("success", "0 of 1 required jobs passed, 1 overridden by mona")
    assert "a known fault of the host" in app.hub.cards(7)[0].body
    app.push("two", "src/lora/a.py")
    look(app)
    assert gate(app, "two")[0] == "in_progress"


def test_a_policy_that_starts_nothing_by_itself_waits_to_be_asked(app: App) -> None:
    app.hub.files[(BASE, POLICY_PATH)] = (POLICY + "gate: {start: asked, name: e2e}\n").encode()
    app.open()
    look(app)
    found = app.hub.gate(sha("one"), "e2e")
    assert found is not None
    assert (live(app), found.conclusion) == ([], "action_required")
    ask(app, "run")
    look(app)
    assert live(app) == [SMOKE]


def test_the_policy_of_the_head_has_no_effect(app: App) -> None:
    app.hub.files[(sha("one"), POLICY_PATH)] = POLICY.replace("paths: [docs/]", "paths: [src/]").encode()
    app.open()
    look(app)
    assert live(app) == [SMOKE]


def test_a_broken_policy_of_the_base_holds_everything_and_says_what_to_fix(app: App) -> None:
    app.hub.files[(BASE, POLICY_PATH)] = (POLICY + "rulez: []\n").encode()
    app.open()
    look(app)
    assert (live(app), gate(app)[1], "did you mean 'rules'" in gate(app)[2]) == ([], "action_required", True)


def test_fewer_files_than_github_counts_asks_for_everything(app: App) -> None:
    app.open(path="docs/a.md", changed_files=3_001)
    look(app)
    assert live(app) == [SMOKE]
    card = app.hub.cards(7)[0].body
    assert "3001 changed files" in card
    assert "5-signal" in card


def test_a_card_that_was_deleted_is_made_again_and_one_of_somebody_else_is_left(app: App) -> None:
    forged = app.hub.say(REF, "mallory", f"{MARKER}\nall green")
    other = app.hub.say(REF, "helper[bot]", f"{MARKER}\nall green", app_id=STRANGER)
    app.open()
    look(app)
    app.hub.talk[7] = [forged, other]
    finish(app, SMOKE, passes)
    look(app)
    assert len(app.hub.cards(7)) == 1
    assert app.hub.talk[7][:2] == [forged, other]


def test_the_card_is_edited_at_most_every_15_seconds(app: App) -> None:
    app.open()
    look(app)
    finish(app, SMOKE, passes)
    wait = look(app, 5)
    assert wait is not None
    assert wait <= 15
    assert "edit" not in app.hub.calls
    look(app, 10)
    assert app.hub.calls.count("edit") == 1


LOST = ("comment!", "write_check!", "comment", "write_check", "check_runs", "comments", "pull", "role", "file_at")


@pytest.mark.parametrize("call", LOST)
def test_a_call_that_fails_once_leaves_one_of_everything(app: App, call: str) -> None:
    app.open()
    app.hub.fail = [call]
    with pytest.raises(ForgeError):
        look(app)
    app.restart()
    to_the_end(app)
    assert (gate(app)[1], len(app.hub.cards(7)), len(app.hub.runs), len(app.backend.submitted)) == ("success", 1, 4, 3)


@pytest.mark.parametrize("call", ["submit", "submit!", "poll", "artifacts"])
def test_a_back_end_that_fails_once_gets_no_order_twice(app: App, call: str) -> None:
    app.open()
    app.backend.fail = [call]
    failed = 0
    for _ in range(8):
        try:
            look(app)
        except BackendError:
            failed += 1
        for text in app.backend.live():
            app.backend.finish(text, passes)
    assert (failed, gate(app)[1], len(app.backend.submitted)) == (1, "success", 3)


def test_an_order_that_is_refused_for_good_is_reported(app: App) -> None:
    app.open()
    app.backend.fail = ["submit?"]
    look(app)
    assert gate(app)[1] == "action_required"
    assert "submit: never" in app.hub.cards(7)[0].body


def test_a_run_that_no_machine_takes_is_given_up(app: App) -> None:
    app.open()
    look(app)
    look(app, 21_700)
    app.backend.settle()
    look(app)
    assert (gate(app)[1], "no machine took it within 360 minutes" in gate(app)[2]) == ("action_required", True)


def test_the_policy_says_how_long_a_run_may_wait_for_a_machine(app: App) -> None:
    app.hub.files[(BASE, POLICY_PATH)] = (POLICY + "gate: {queue_deadline_s: 600}\n").encode()
    app.open()
    look(app)
    # The back end knows it by the order, and needs it nowhere else.
    assert [run.queue_deadline_s for run in app.ledger.kept.values()] == [600]
    look(app, 700)
    app.backend.settle()
    look(app)
    assert "no machine took it within 10 minutes" in gate(app)[2]


def test_a_cancel_that_got_lost_is_given_again(app: App) -> None:
    app.open()
    look(app)
    app.push("two", "docs/a.md")
    app.backend.fail = ["cancel"]
    with pytest.raises(BackendError):
        look(app)
    look(app)
    app.backend.settle()
    look(app)
    assert live(app) == []


def test_explain_and_help_are_answered_once(app: App) -> None:
    app.open(path="docs/a.md")
    ask(app, "help")
    ask(app, "explain", "src/peft/lora.py")
    look(app)
    look(app)
    text = [comment.body for comment in app.hub.talk[7] if "reply" in comment.body]
    assert (len(text), "| command |" in text[0], "this commit has no such path" in text[1]) == (2, True, True)


def test_a_pull_request_is_under_way_until_its_runs_are_over(app: App) -> None:
    app.open()
    look(app)
    app.open(state=PullState.CLOSED)
    assert app.under_way() == {REF}
    app.backend.settle()
    look(app)
    app.backend.settle()
    look(app)
    assert app.under_way() == set()


def group(app: App, path: str = "src/lora/a.py") -> MergeGroup:
    app.paths[sha("group")] = path
    app.same[sha("group")] = sha("one")
    made = MergeGroup(REPOSITORY, "main", BASE, sha("group"), (7,))
    app.handlers.known.remember_group(made)
    return made


def test_a_merge_group_carries_a_pass_forward_where_nothing_it_reaches_differs(app: App) -> None:
    app.open(path="src/lora/a.py")
    to_the_end(app)
    ran = len(app.backend.submitted)
    assert app.handlers.reconciler.reconcile(group(app)) is None
    assert (gate(app, "group")[1], len(app.backend.submitted)) == ("success", ran)
    summary = app.hub.gate(sha("group")).summary  # type: ignore[union-attr]
    assert f"reused from `{sha('one')[:12]}` of #\u200b7, 2026-11-20 [log](https://ci.example/" in summary


def test_a_merge_group_carries_a_good_run_forward_that_never_entered_the_change(app: App) -> None:
    app.open(path="src/lora/a.py")
    to_the_end(app)
    (run,) = (run for run in app.ledger.runs(REPOSITORY, number=7) if run.job_id == SMOKE)
    # What is over is not changed any more by the ledger itself.
    app.ledger.kept[run.key] = run.model_copy(update={"result": Result.BLOCKED, "never_entered": True})
    submitted = len(app.backend.submitted)
    app.handlers.reconciler.reconcile(group(app))
    # It does not pass there either, and a GPU would show nothing new.
    assert (gate(app, "group")[1], len(app.backend.submitted)) == ("action_required", submitted)
    assert gate(app, "group")[2].startswith(f"{SMOKE} unexecuted")


def test_a_merge_group_in_which_something_differs_runs_again(app: App) -> None:
    app.open(path="src/lora/a.py")
    to_the_end(app)
    made = group(app, "src/lora/b.py")
    app.handlers.reconciler.reconcile(made)
    assert [(text.job_id, text.number) for text in app.backend.live()] == [(SMOKE, None)]
    finish(app, SMOKE, passes)
    app.handlers.reconciler.reconcile(made)
    assert gate(app, "group")[1] == "success"


def test_a_merge_group_is_answered_before_the_queue_gives_up(app: App) -> None:
    made = group(app)
    app.handlers.reconciler.reconcile(made)
    assert gate(app, "group")[0] == "in_progress"
    app.clock.pass_s(3_400)
    app.handlers.reconciler.reconcile(made)
    assert (gate(app, "group")[1], "no verdict within 55 minutes" in gate(app, "group")[2].lower()) == (
        "action_required",
        True,
    )


def test_a_merge_group_that_is_first_looked_at_too_late_leaves_no_check_open(app: App) -> None:
    made = group(app)
    app.clock.pass_s(3_400)
    assert app.handlers.reconciler.reconcile(made) is None
    assert (gate(app, "group")[1], unfinished(app), live(app)) == ("action_required", [], [])


def test_what_a_late_merge_group_never_began_does_not_wait(app: App) -> None:
    made = group(app, "src/peft/a.py")
    app.handlers.reconciler.reconcile(made)
    finish(app, SMOKE, passes)
    app.clock.pass_s(3_400)
    app.handlers.reconciler.reconcile(made)
    assert (gate(app, "group")[1], unfinished(app), live(app)) == ("action_required", [], [])
    summaries = {check.name: check.summary for check in app.hub.runs}
    assert "no verdict within 55 minutes" in summaries["verl-e2e / 0-recompute"]
    assert "Add the pull request to the merge queue again." in summaries["verl-e2e"]


def test_a_merge_group_that_was_given_up_ends_its_runs(app: App) -> None:
    made = group(app)
    app.handlers.reconciler.reconcile(made)
    assert app.under_way() == {made}
    app.handlers.known.remember_group(made, destroyed=True)
    app.handlers.reconciler.reconcile(made)
    app.backend.settle()
    app.handlers.reconciler.reconcile(made)
    assert (live(app), app.under_way()) == ([], set())
    assert app.handlers.reconciler.reconcile(made) is None


def test_a_merge_group_that_was_given_up_leaves_no_check_open(app: App) -> None:
    made = group(app)
    app.handlers.reconciler.reconcile(made)
    app.handlers.known.remember_group(made, destroyed=True)
    for _ in range(3):
        app.handlers.reconciler.reconcile(made)
        app.backend.settle()
    assert unfinished(app) == []
    assert (gate(app, "group")[1:], live(app)) == (("cancelled", "The merge queue gave this group up"), [])
    app.hub.calls.clear()
    assert app.handlers.reconciler.reconcile(made) is None
    assert app.hub.calls == []


def test_a_group_that_was_merged_keeps_its_green_gate(app: App) -> None:
    made = group(app)
    app.handlers.reconciler.reconcile(made)
    finish(app, SMOKE, passes)
    app.handlers.reconciler.reconcile(made)
    app.handlers.known.remember_group(made, destroyed=True)
    app.handlers.reconciler.reconcile(made)
    assert gate(app, "group")[1] == "success"


def unfinished(app: App) -> list[str]:
    """The check runs of ours that look as if someone still worked on them."""
    return [f"{check.head_sha[:7]} {check.name}" for check in app.hub.runs if check.status != "completed"]


@pytest.mark.parametrize("how", (passes, fails, blocks))
def test_a_superseded_run_that_ends_by_itself_leaves_no_check_open(app: App, how: object) -> None:
    app.open()
    look(app)
    app.backend.begin()
    look(app)
    app.push("two", "docs/a.md")
    look(app)
    assert unfinished(app) == [f"{sha('one')[:7]} verl-e2e / {SMOKE}"]
    finish(app, SMOKE, how)
    look(app)
    assert unfinished(app) == []
    conclusion = {check.name: check.conclusion for check in app.hub.runs if check.head_sha == sha("one")}
    assert conclusion["verl-e2e"] == "cancelled"
    wanted = {passes: "success", fails: "failure", blocks: "action_required"}[how]  # type: ignore[index]
    assert conclusion[f"verl-e2e / {SMOKE}"] == wanted


def test_checks_of_jobs_that_never_began_are_ended_however_many_heads_ago(app: App) -> None:
    app.open()
    for head in ("one", "two", "three", "four"):
        app.push(head)
        look(app)
        assert f"{sha(head)[:7]} verl-e2e / {SMOKE}" in unfinished(app)
    app.push("five", "docs/a.md")
    look(app)
    app.backend.settle()
    look(app)
    assert unfinished(app) == []


@pytest.mark.parametrize("ending", ("cancel", "close", "draft", "fork", "base", "policy", "gate", "problem"))
def test_whatever_holds_a_job_leaves_no_check_that_waits_for_ever(app: App, ending: str) -> None:
    app.open()
    look(app)
    assert len(unfinished(app)) == 4
    moved = sha("moved")
    message: dict[str, dict[str, Any]] = {
        "close": {"state": PullState.CLOSED},
        "draft": {"draft": True},
        "fork": {"head_repository": "evil/bridge"},
        "cancel": {},
        "problem": {},
    }
    written = {"base": "src/peft/", "policy": "schema: 1", "gate": "rules:"}.get(ending, "")
    other = {"base": "src/other/", "policy": "schema: 2", "gate": "gate: {name: e2e}\nrules:"}.get(ending, "")
    app.hub.files[(moved, POLICY_PATH)] = POLICY.replace(written, other).encode() if written else POLICY.encode()
    if ending == "cancel":
        ask(app, "cancel")
    if ending == "problem":
        app.handlers = app.connect(changes=no_trees)
    if ending not in message:
        app.hub.tips["main"] = moved
    app.open(**message.get(ending, {}))
    to_the_end(app)
    assert (live(app), unfinished(app)) == ([], [])


def no_trees(_: object) -> FakeSource:
    raise FolderError("there is no such commit any more")


def test_what_was_opened_right_before_a_kill_is_ended_all_the_same(app: App) -> None:
    app.open()
    app.hub.fail = ["write_check!"]
    with pytest.raises(ForgeError):
        look(app)
    app.restart()
    app.push("two", "docs/a.md")
    look(app)
    app.backend.settle()
    look(app)
    assert unfinished(app) == []


def test_only_our_own_app_writes_the_gate(app: App) -> None:
    app.open(path="docs/a.md")
    look(app)
    assert {run.app_id for run in app.hub.runs} == {APP}


def test_a_job_that_changed_under_way_is_ended_before_its_successor_begins(app: App) -> None:
    app.open()
    look(app)
    moved = sha("moved")
    app.hub.files[(moved, POLICY_PATH)] = POLICY.replace(sha("verl"), sha("newer verl")).encode()
    app.hub.tips["main"] = moved
    look(app)
    assert [item.state for item in app.ledger.kept.values()] == [RunState.CANCELLING]
    look(app)
    assert len(app.backend.submitted) == 1
    app.backend.settle()
    look(app)
    assert [text.job.verl.commit for text in app.backend.live() if text.job] == [sha("newer verl")]
    assert set(app.backend.most_live.values()) == {1}


def test_an_order_whose_answer_was_lost_is_ended_when_a_new_head_comes(app: App) -> None:
    app.open()
    app.backend.fail = ["submit!"]
    with pytest.raises(BackendError):
        look(app)
    app.restart()
    app.push("two", "docs/a.md")
    look(app)
    app.backend.settle()
    look(app)
    assert (len(app.backend.submitted), live(app)) == (1, [])


def test_a_rerun_asked_for_while_the_run_goes_on_is_not_kept_for_later(app: App) -> None:
    app.open(path="src/lora/a.py")
    look(app)
    app.clock.pass_s(10)
    ask(app, "rerun")
    app.clock.pass_s(10)
    finish(app, SMOKE, fails)
    to_the_end(app, fails)
    assert len(app.backend.submitted) == 1


def test_a_rerun_counts_once_though_no_time_passes(app: App) -> None:
    app.open(path="src/lora/a.py")
    look(app)
    ask(app, "rerun")
    for _ in range(5):
        for text in app.backend.live():
            app.backend.finish(text, fails)
        look(app, 0)
    assert len(app.backend.submitted) == 2


def test_a_job_that_the_plan_drops_is_ended_and_its_check_says_so(app: App) -> None:
    app.open()
    look(app)
    finish(app, SMOKE, passes)
    look(app)
    assert live(app) == [AMPLIFIED, RECOMPUTE]
    moved = sha("moved")
    app.hub.files[(moved, POLICY_PATH)] = POLICY.replace("0-amplified-lora, ", "").encode()
    app.hub.tips["main"] = moved
    look(app)
    app.backend.settle()
    finish(app, RECOMPUTE, passes)
    look(app)
    (check,) = (run for run in app.hub.runs if run.name == f"verl-e2e / {AMPLIFIED}")
    assert (check.conclusion, "no longer requested" in check.summary) == ("cancelled", True)
    assert gate(app)[1] == "success"


def test_a_policy_that_breaks_under_way_changes_no_check_of_a_job(app: App) -> None:
    app.open(path="src/lora/a.py")
    look(app)
    before = [run for run in app.hub.runs if run.name != "verl-e2e"]
    moved = sha("moved")
    app.hub.files[(moved, POLICY_PATH)] = b"schema: 2\n"
    app.hub.tips["main"] = moved
    look(app)
    assert [run for run in app.hub.runs if run.name != "verl-e2e"] == before
    assert (live(app), gate(app)[1]) == ([SMOKE], "action_required")


def test_what_we_ended_begins_again_when_the_reason_is_gone(app: App) -> None:
    app.open(path="src/lora/a.py")
    look(app)
    app.hub.roles["alice"] = "read"
    look(app, 600)
    app.backend.settle()
    look(app)
    assert live(app) == []
    approve(app, "one")
    look(app)
    assert (live(app), [item.attempt for item in app.ledger.kept.values()]) == ([SMOKE], [1, 2])


def test_a_repository_without_the_policys_package_is_reported_and_nothing_runs(app: App) -> None:
    reach = "reach: {package: other.package, roots: [src/], rules: []}\n"
    app.hub.files[(BASE, POLICY_PATH)] = (POLICY + reach).encode()
    app.open(path="docs/a.md")
    look(app)
    assert (live(app), gate(app)[1]) == ([], "action_required")
    assert "not the repository that the policy" in gate(app)[2]
    assert "no package other.package below src/" in app.hub.cards(7)[0].body


def test_a_job_that_cannot_pass_is_told_with_the_plan_and_never_started(app: App) -> None:
    rule = "  - {name: seen, paths: [src/], levels: [4], reason: idle, features: [odd]}\n"
    odd = "features:\n  - {feature: odd, reason: the checkpoint brings it}\n"
    app.hub.files[(BASE, POLICY_PATH)] = (POLICY + rule + odd).encode()
    app.open()
    look(app)
    assert live(app) == [SMOKE]
    body = app.hub.cards(7)[0].body
    assert "neither the configuration nor the log of a run shows whether odd was active" in body
    to_the_end(app)
    assert "4-feature-odd" not in {run.job_id for run in app.ledger.runs(REPOSITORY)}
    status, conclusion, title = gate(app)
    assert (status, conclusion, title.startswith("4-feature-odd blocked: ")) == ("completed", "action_required", True)


def test_the_cost_of_a_job_is_that_of_its_past_runs(app: App) -> None:
    app.open()
    to_the_end(app)
    first = next(run for run in app.ledger.runs(REPOSITORY) if run.job_id == SMOKE)
    app.ledger.put_run(first.model_copy(update={"key": "f" * 64, "gpu_minutes": 40.0, "head_sha": "e" * 40}))
    app.push("two")
    to_the_end(app)
    shown = next(check.summary for check in app.hub.runs if check.head_sha == sha("two") and SMOKE in check.name)
    assert "past runs" in shown
