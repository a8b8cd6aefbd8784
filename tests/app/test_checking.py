"""`check`: what it runs, what it leaves out and says so, and that an unrun level never lets a card pass."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from tests.core.builders import bridge_error, cut_facts, ended, make_facts, make_record
from tests.core.executions import DROPOUT, ran
from tests.core.executions import change as changed_by
from tests.fakes.app import passes
from tests.fakes.run_folders import FakeChanges, FakeFolders, ScriptedDispatcher
from verl_e2e.app.check import CheckRequest, CheckServices, check_change
from verl_e2e.app.judge_folder import card_of
from verl_e2e.app.plan_change import Planned, Planner
from verl_e2e.config.policy import packaged_policy
from verl_e2e.config.profiles import load_profile
from verl_e2e.core.compare.jobs import unsharded
from verl_e2e.core.judge.related_runs import AS_ASKED, Allowed, MergeBase
from verl_e2e.core.model.access import Demand
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.execution import Executed
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.jobs import Checkpoint, Job
from verl_e2e.core.model.levels import Level, Variant
from verl_e2e.core.model.outcome import Attribution, Result, Stage
from verl_e2e.core.model.record import PLAN_FILE, Check, Environment, Finding, Record
from verl_e2e.core.plan.contract import ContractFinding, Kind
from verl_e2e.core.plan.outline import in_order
from verl_e2e.core.plan.plan import plan
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.report.plan_text import PLANNING
from verl_e2e.core.report.run_card import Card, render_text, result_of, sentence_of

BASE, HEAD, VERL = "a" * 40, "b" * 40, "c" * 40
NO_GPU = Finding(check=Check.GPUS, ok=False, summary="no GPU is visible, 1 is needed", fix="run on a GPU host")


def _request(**changes: object) -> CheckRequest:
    request = CheckRequest(
        bridge=Path("/bridge"),
        verl=Path("/verl"),
        verl_commit=VERL,
        base=BASE,
        head=HEAD,
        out=Path("/out"),
        policy=packaged_policy(),
        site=load_profile("hopper-offline", {"kit": "/kit"}),
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def _check(tmp_path: Path, paths: tuple[str, ...], record: Record, facts: LogFacts | None = None, **changes: object):  # type: ignore[no-untyped-def]
    folders = FakeFolders()
    change = Change(BASE, HEAD, BASE, tuple(ChangedPath(path, PathStatus.MODIFIED) for path in paths))
    source = FakeChanges(change)
    dispatcher = ScriptedDispatcher(folders, record, facts)
    text: list[str] = []
    request = _request(out=tmp_path / "out", **changes)
    card = check_change(
        request, CheckServices(source, dispatcher, folders, {"bridge": source, "verl": source}), text.append
    )
    return card, dispatcher, folders, text


@pytest.fixture
def blocked() -> Record:
    return Record(environment=Environment(findings=(NO_GPU,)))


def test_nothing_required_is_a_pass_that_runs_nothing(tmp_path: Path, blocked: Record) -> None:
    card, dispatcher, folders, _ = _check(tmp_path, ("docs/guide.md",), blocked)
    assert (result_of(card), dispatcher.jobs) == (Result.PASS, [])
    assert sentence_of(card) == "no verl coverage is required by this change"
    assert json.loads(folders.files[tmp_path / "out"][PLAN_FILE])["levels"] == []


def test_without_a_gpu_the_card_is_blocked_and_still_names_every_planned_level(tmp_path: Path, blocked: Record) -> None:
    card, dispatcher, folders, text = _check(tmp_path, ("src/megatron/bridge/peft/lora.py",), blocked)
    assert dispatcher.jobs[0].id == "0-lora-ddp"
    assert result_of(card) is Result.BLOCKED
    assert NO_GPU.summary in card.verdicts[0].sentence
    assert f"Run on a GPU host. Found: {NO_GPU.summary}" in card.verdicts[0].followups
    assert {job.coverage[:7] for job in card.not_run} >= {"Level 1", "Level 5"}
    assert all("0-lora-ddp" in job.reason for job in card.not_run if not job.coverage.startswith("Level 0"))
    assert text[0] == PLANNING
    assert text[1].startswith("plan: levels 0, 1")
    assert text[2].startswith("Plan for ")
    assert len(text[2].splitlines()) <= 25
    assert "Level 3, Megatron-FSDP: not required" in folders.files[tmp_path / "out"]["card.md"]


def test_a_level_asked_for_by_hand_runs_though_the_change_needs_none(tmp_path: Path, blocked: Record) -> None:
    _, dispatcher, _, _ = _check(tmp_path, ("docs/guide.md",), blocked, asked=(Level.SMOKE,))
    assert [job.level for job in dispatcher.jobs] == [Level.SMOKE]


def test_a_job_carries_the_site_and_the_commits_under_test(tmp_path: Path, blocked: Record) -> None:
    _, dispatcher, _, _ = _check(tmp_path, ("docs/guide.md",), blocked, asked=(Level.SMOKE,))
    job = dispatcher.jobs[0]
    assert (job.bridge.commit, job.verl.commit, job.site.name) == (HEAD, VERL, "hopper-offline")
    assert job.checkpoint.model_path == "/kit/model"
    assert job.wrapper["VANILLA_MBRIDGE"] == "False"


def test_a_declared_patch_that_does_not_fit_is_left_out_and_reported(tmp_path: Path, blocked: Record) -> None:
    card, dispatcher, _, _ = _check(tmp_path, ("docs/guide.md",), blocked, asked=(Level.SMOKE,))
    assert dispatcher.jobs[0].patches == ()
    assert any(note.startswith("Declared patch") for note in card.notes)


def test_a_job_that_the_site_cannot_complete_is_told_and_blocks_the_whole(tmp_path: Path, blocked: Record) -> None:
    site = load_profile("hopper-offline", {"kit": "/kit"}).model_copy(update={"data": None})
    card, dispatcher, _, _ = _check(tmp_path, ("docs/guide.md",), blocked, asked=(Level.SMOKE,), site=site)
    assert dispatcher.jobs == []
    assert result_of(card) is Result.BLOCKED
    assert "names no task data" in card.not_run[0].reason


def test_a_planned_job_without_a_run_folder_keeps_the_card_from_a_pass() -> None:
    folders = FakeFolders(plans={Path("/out"): {"0-lora-ddp": Level.SMOKE, "1-resume": Level.SAVE_RESUME}})
    card = card_of(folders, Path("/out"))
    assert [job.job_id for job in card.not_run] == ["0-lora-ddp", "1-resume"]
    assert result_of(card) is Result.BLOCKED


def test_the_card_of_a_check_folder_is_the_card_of_the_check(tmp_path: Path, blocked: Record) -> None:
    card, _, folders, _ = _check(tmp_path, ("src/megatron/bridge/peft/lora.py",), blocked)
    out = tmp_path / "out"
    folders.plans[out] = {job["id"]: Level(job["level"]) for job in json.loads(folders.files[out][PLAN_FILE])["jobs"]}
    again = card_of(folders, out)
    assert sorted(again.not_run, key=str) == sorted(card.not_run, key=str)
    assert (again.verdicts, again.notes) == (card.verdicts, card.notes)


def test_a_family_that_no_host_can_run_is_said_first_and_blocks_nothing_else(tmp_path: Path, blocked: Record) -> None:
    card, _, folders, _ = _check(tmp_path, ("src/megatron/bridge/models/kimi_vl/modeling_kimi_k25_vl.py",), blocked)
    (kimi,) = (job for job in card.not_run if job.uncoverable)
    assert (kimi.job_id, kimi.reason.startswith("no host can run a model of the family kimi_k25_vl: ")) == (
        "4-feature-kimi-k25-vl",
        True,
    )
    out = tmp_path / "out"
    folders.plans[out] = {job["id"]: Level(job["level"]) for job in json.loads(folders.files[out][PLAN_FILE])["jobs"]}
    assert kimi in card_of(folders, out).not_run


class _BreakingPlanner:
    """Plans by paths, and has read that the head drops a function that verl imports."""

    def plan(self, base: str, head: str, policy: Policy, asked: Iterable[Level] = ()) -> Planned:
        change = Change(base, head, base, (ChangedPath("src/megatron/bridge/peft/utils.py", PathStatus.MODIFIED),))
        gone = "verl imports it, and the head has it no more"
        skew = ContractFinding(Kind.SKEW, "a.b", "missing on both sides", "verl/x.py", 1)
        broken = ContractFinding(Kind.BREAK, "megatron.bridge.peft.utils.create_peft", gone, "verl/utils/peft.py", 28)
        return Planned(change, plan(change, policy, asked), None, (broken, skew))


def test_a_broken_contract_fails_the_bridge_checks_and_starts_nothing(tmp_path: Path, blocked: Record) -> None:
    folders = FakeFolders()
    source = FakeChanges(Change(BASE, HEAD, BASE, ()))
    dispatcher = ScriptedDispatcher(folders, blocked, None)
    blobs = {"bridge": source, "verl": source}
    services = CheckServices(source, dispatcher, folders, blobs, cast(Planner, _BreakingPlanner()))
    card = check_change(_request(out=tmp_path / "out"), services, lambda _: None)
    assert (result_of(card), dispatcher.jobs) == (Result.FAIL, [])
    text = render_text(card)
    assert text.startswith(
        "Result: Fail - verl's use of Bridge breaks at the head and works at the base: verl/utils/peft.py:28"
    )
    assert "- Bridge-side checks: Fail - verl's use" in text
    assert "a.b" not in text
    folders.plans[tmp_path / "out"] = {"0-lora-ddp": Level.SMOKE}
    assert result_of(card_of(folders, tmp_path / "out")) is Result.FAIL


def _import(attribution: Attribution) -> Finding:
    return Finding(
        check=Check.IMPORT_DRIVER,
        ok=False,
        stage=Stage.IMPORT,
        summary="import megatron.bridge fails in the driver",
        attribution=attribution,
        fingerprint="" if attribution is Attribution.HOST else "megatron/bridge/__init__.py imports a.b",
    )


class _OneHost:
    """A host with one GPU, where Level 0 passes and a larger job is stopped by preflight; or where all fail.

    At the `stopped` commits of Bridge preflight finds that an import fails.
    """

    def __init__(self, folders: FakeFolders, *, broken: bool = False, stopped: Mapping[str, Attribution] = {}) -> None:
        self.folders, self.broken, self.stopped = folders, broken, stopped
        self.jobs: list[Job] = []

    def run(self, job: Job, out: Path) -> int:
        self.jobs.append(job)
        few = Finding(check=Check.GPUS, ok=False, summary=f"1 GPU is visible, {job.gpu_count} are needed")
        record: Record = make_record()
        facts: LogFacts | None = make_facts()
        if self.broken:
            record, facts = make_record(events=ended(exit_code=1)), cut_facts(Stage.PEFT, errors=(bridge_error(),))
        elif job.bridge.commit in self.stopped:
            record, facts = Record(environment=Environment(findings=(_import(self.stopped[job.bridge.commit]),))), None
        elif job.gpu_count > 1:
            record, facts = Record(environment=Environment(findings=(few,))), None
        # The healthy record shows the job that it was made of.
        own = make_record().job if job.level is Level.SMOKE else job
        self.folders.records[out] = record.model_copy(update={"job": own})
        if facts is not None:
            self.folders.logs[out] = facts
        return 0


def _check_here(  # type: ignore[no-untyped-def]
    tmp_path: Path,
    *,
    broken: bool = False,
    stopped: Mapping[str, Attribution] = {},
    related: Allowed = AS_ASKED,
    asked: tuple[Level, ...] = (),
    **given: object,
):
    folders = FakeFolders()
    source = FakeChanges(Change(BASE, HEAD, BASE, (ChangedPath("docs/guide.md", PathStatus.MODIFIED),)))
    here = _OneHost(folders, broken=broken, stopped=stopped)
    request = _request(out=tmp_path / "out", asked=asked, related=related, **given)
    text: list[str] = []
    card = check_change(request, CheckServices(source, here, folders, {"bridge": source, "verl": source}), text.append)
    return card, here, text


EVERY_LEVEL = tuple(Level)


def test_level_0_runs_first_and_alone_and_the_others_by_their_cost(tmp_path: Path) -> None:
    _, here, _ = _check_here(tmp_path, asked=EVERY_LEVEL)
    ids = [job.id for job in here.jobs]
    assert ids[0] == "0-lora-ddp"
    assert {"1-resume", "2-dense", "3-fsdp", "5-signal"} <= set(ids)
    assert ids.index("3-fsdp") < ids.index("1-resume") < ids.index("2-dense")


def test_the_order_is_level_0_and_then_what_costs_least() -> None:
    change = Change(BASE, HEAD, BASE, (ChangedPath("src/megatron/bridge/peft/lora.py", PathStatus.MODIFIED),))
    ordered = in_order(plan(change, packaged_policy(), EVERY_LEVEL).jobs)
    assert ordered[0].id == "0-lora-ddp"
    levels = [job.variant.level is Level.SMOKE for job in ordered]
    assert levels == sorted(levels, reverse=True)
    costs = [job.gpu_minutes for job in ordered if job.variant.level is not Level.SMOKE]
    assert costs == sorted(costs)
    slow = replace(ordered[0], variant=Variant(Level.SMOKE, "slow", 8), requires=("0-lora-ddp",), reason="to come last")
    planned = replace(plan(change, packaged_policy(), EVERY_LEVEL), jobs=(*ordered, slow))
    assert [job.id for job in in_order(planned.jobs)].index("0-slow") == sum(levels)


def test_no_level_starts_before_level_0_has_passed(tmp_path: Path) -> None:
    card, here, _ = _check_here(tmp_path, broken=True, asked=EVERY_LEVEL)
    assert {job.level for job in here.jobs} == {Level.SMOKE}
    waiting = {job.reason for job in card.not_run if not job.reason.startswith("it cannot pass as planned: ")}
    assert waiting == {"it needs 0-lora-ddp, which did not pass"}


def test_a_job_that_needs_more_gpus_than_there_are_says_so_and_stops_no_other(tmp_path: Path) -> None:
    card, here, _ = _check_here(tmp_path, asked=EVERY_LEVEL)
    dense = next(verdict for verdict in card.verdicts if verdict.job_id == "2-dense")
    assert dense.result is Result.BLOCKED
    assert "1 GPU is visible, 4 are needed" in dense.sentence
    assert {"5-signal", "1-resume"} <= {job.id for job in here.jobs}


def test_a_failed_job_of_a_check_is_rerun_on_the_merge_base(tmp_path: Path) -> None:
    related = Allowed(merge_base=MergeBase("d" * 40))
    card, here, text = _check_here(tmp_path, broken=True, related=related, asked=(Level.SMOKE,))
    assert [job.bridge.commit for job in here.jobs] == [HEAD, "d" * 40]
    assert result_of(card) is Result.BLOCKED
    assert "not caused by this change" in sentence_of(card)
    assert any("may be followed by the same job on the merge base when it fails" in line for line in text)
    assert any("starting same job on the merge base" in line and "GPU minutes" in line for line in text)


OTHER = "d" * 40
TREES, UNDECIDED, HOST = Attribution.TREES, Attribution.UNDECIDED, Attribution.HOST


@pytest.mark.parametrize(
    ("stopped", "ran", "result", "text"),
    [
        (
            {HEAD: UNDECIDED},
            [HEAD, OTHER, HEAD],
            Result.FAIL,
            "the merge base dddddddddddd passed, ",
        ),
        ({HEAD: UNDECIDED, OTHER: UNDECIDED}, [HEAD, OTHER], Result.BLOCKED, " was blocked the same way"),
        ({HEAD: TREES}, [HEAD, OTHER, HEAD], Result.FAIL, "this head failed twice"),
        ({HEAD: TREES, OTHER: TREES}, [HEAD, OTHER], Result.BLOCKED, " failed the same way"),
        ({HEAD: HOST}, [HEAD], Result.BLOCKED, "import megatron.bridge fails in the driver"),
    ],
)
def test_an_import_that_stops_a_job_is_judged_by_the_merge_base(
    stopped: Mapping[str, Attribution], ran: list[str], result: Result, text: str, tmp_path: Path
) -> None:
    related = Allowed(merge_base=MergeBase(OTHER))
    card, here, _ = _check_here(tmp_path, stopped=stopped, related=related, asked=(Level.SMOKE,))
    assert [job.bridge.commit for job in here.jobs] == ran
    assert result_of(card) is result
    assert text in sentence_of(card)


def test_parity_adds_its_jobs_and_announces_their_reference_run(tmp_path: Path) -> None:
    card, here, text = _check_here(tmp_path, parity=True)
    ids = ["2-dp2-parity", "2-pp2-tied-parity", "2-tp2-parity"]
    assert [job.id for job in here.jobs if job.level is Level.PARALLELISM] == ids
    said = [line for line in text if "may be followed by the unsharded reference run" in line]
    assert [line.partition(":")[0] for line in said] == ids
    # One run is the reference of all three.
    assert len({unsharded(job).digest() for job in here.jobs if job.id in ids}) == 1
    # The runs of these tests train no step that could be compared.
    assert result_of(card) is Result.BLOCKED


def test_only_the_named_jobs_run_and_the_others_keep_the_whole_from_a_pass(tmp_path: Path) -> None:
    card, here, _ = _check_here(tmp_path, asked=EVERY_LEVEL, only=("1-*", "5-signal"))
    # Level 0 was left out on purpose, so they do not wait for it.
    assert [job.id for job in here.jobs] == ["5-signal", "1-resume"]
    assert result_of(card) is Result.BLOCKED
    smoke = next(job for job in card.not_run if job.job_id == "0-lora-ddp")
    assert smoke.reason == "it was left out by --only 1-* 5-signal"
    assert f"Still to run: {smoke.coverage} ({smoke.reason})." in render_text(card)


def test_a_job_that_passes_alone_is_no_pass_of_a_plan_with_more(tmp_path: Path) -> None:
    whole, _, _ = _check_here(tmp_path / "whole", asked=(Level.SMOKE,), only=("0-*",))
    part, _, _ = _check_here(tmp_path / "part", asked=(Level.SMOKE, Level.SAVE_RESUME), only=("0-*",))
    assert (result_of(whole), result_of(part)) == (Result.PASS, Result.BLOCKED)
    assert sentence_of(part).endswith("did not run: it was left out by --only 0-*")


def test_a_pattern_that_no_job_has_is_one_error_with_the_ids(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"--only 7-\*: no job of the plan has this id; its jobs: 0-lora-ddp, 1-resume$"
    ):
        _check_here(tmp_path, asked=(Level.SMOKE, Level.SAVE_RESUME), only=("0-*", "7-*"))
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match=r"its jobs: none$"):
        _check_here(tmp_path, only=("*",))


def test_named_model_and_steps_are_those_of_every_run_and_said_on_the_card(tmp_path: Path) -> None:
    mine = Checkpoint(model_id="local/tiny", model_path="/models/tiny")
    card, here, _ = _check_here(tmp_path, asked=(Level.SMOKE, Level.SAVE_RESUME), checkpoint=mine, steps=3)
    assert {(job.checkpoint, job.steps) for job in here.jobs} == {(mine, 3)}
    said = "The runs were asked for with local/tiny and 3 training steps: the verdicts speak for these,"
    assert card.notes[0].startswith(said)
    assert said in " ".join(render_text(card).split())


def test_a_level_that_needs_more_steps_is_not_run_and_is_no_pass(tmp_path: Path) -> None:
    card, here, _ = _check_here(tmp_path, asked=(Level.SMOKE, Level.SAVE_RESUME, Level.LEARNING_SIGNAL), steps=1)
    assert [job.id for job in here.jobs] == ["0-lora-ddp"]
    assert {job.job_id: job.reason for job in card.not_run} == {
        "1-resume": "it cannot pass as planned: 1 training step cannot show save/resume; ask for 2 or more",
        "5-signal": "it cannot pass as planned: 1 training step cannot show learning signal; ask for 10 or more",
    }
    assert result_of(card) is Result.BLOCKED


def test_an_empty_card_says_that_nothing_is_required() -> None:
    assert sentence_of(Card(())) == "no verl coverage is required by this change"


class _PartPlanner:
    """Plans the jobs of level 0 alone, each for one function."""

    def plan(self, base: str, head: str, policy: Policy, asked: tuple[Level, ...] = ()) -> Planned:
        change = Change(base, head, base, (ChangedPath("src/megatron/bridge/peft/lora.py", PathStatus.MODIFIED),))
        made = plan(change, policy, asked)
        jobs = tuple(job for job in made.jobs if job.variant.level is Level.SMOKE)
        return Planned(
            change, replace(made, jobs=tuple(replace(job, changed=changed_by(DROPOUT)) for job in jobs)), None
        )


@dataclass
class _RecordingDispatcher:
    """Every run is healthy; each executed what is said of it."""

    folders: FakeFolders
    executed: dict[str, Executed]
    jobs: list[str] = field(default_factory=list)

    def run(self, job: Job, out: Path) -> int:
        self.jobs.append(job.id)
        record, facts = passes(job)
        executed = self.executed.get(job.id)
        self.folders.records[out] = record.model_copy(update={"executed": executed})
        assert facts is not None
        self.folders.logs[out] = facts
        return 0


NOT_ENTERED, ENTERED = ran(bridge_commit=""), ran(DROPOUT, bridge_commit="")


@pytest.mark.parametrize(
    ("second", "gate", "result", "sentence"),
    [
        (
            ENTERED,
            {},
            Result.PASS,
            "0-lora-ddp ran well and never entered its part of the change; what it missed ran in",
        ),
        (NOT_ENTERED, {}, Result.BLOCKED, "the run never entered the changed code"),
        (NOT_ENTERED, {"unexecuted": Demand.ALLOW}, Result.PASS, "never ran"),
        (None, {}, Result.BLOCKED, "the run never entered the changed code"),
    ],
)
def test_a_job_that_never_entered_the_change_lets_the_others_run_and_one_of_them_makes_up_for_it(
    tmp_path: Path, second: Executed | None, gate: dict[str, Demand], result: Result, sentence: str
) -> None:
    folders = FakeFolders()
    source = FakeChanges(Change(BASE, HEAD, BASE, ()))
    dispatcher = _RecordingDispatcher(folders, {"0-lora-ddp": NOT_ENTERED})
    if second is not None:
        dispatcher.executed["0-amplified-lora"] = second
    packaged = packaged_policy()
    rules = packaged.gate.model_copy(update=gate)
    policy = packaged.model_copy(update={"gate": rules, "require_bridge_checks": False, "patches": ()})
    services = CheckServices(
        source, dispatcher, folders, {"bridge": source, "verl": source}, cast(Planner, _PartPlanner())
    )
    card = check_change(_request(out=tmp_path / "out", policy=policy), services, lambda _: None)
    assert dispatcher.jobs == ["0-lora-ddp", "0-amplified-lora"]
    assert (result_of(card), sentence in sentence_of(card)) == (result, True), sentence_of(card)
    # Judged again from the folder alone, it is the same.
    assert result_of(card_of(folders, tmp_path / "out")) is result
