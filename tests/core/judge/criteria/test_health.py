"""What a green run can hide: gradients, agreement of trainer and rollout, adapter, lost weights.

A run counts for a change only if it executed some of it, and says what it left out.
"""

import math
from typing import Any

import pytest

from tests.core.builders import (
    BRIDGE,
    bridge_error,
    config_with,
    cut_facts,
    ended,
    judged,
    make_case,
    make_facts,
    make_job,
    make_record,
    step_line,
)
from tests.core.executions import (
    AT_IMPORT,
    DROPOUT,
    GATHER,
    IN_SECOND,
    IN_TEST,
    IN_TRAINER,
    LORA,
    MAPPING,
    REMOVED,
    TRANSFORM,
    change,
    ran,
)
from verl_e2e.core.judge.case import wants_adapter
from verl_e2e.core.judge.criteria.metrics import (
    AGREEMENT_NOTE_BELOW,
    adapter,
    agreement_note,
    gradients,
    rollout_agreement,
    weights_kept,
)
from verl_e2e.core.judge.criteria.table import Criterion
from verl_e2e.core.judge.verdict import disagreement
from verl_e2e.core.judge.verdict_document import Verdict, read_verdict, verdict_json
from verl_e2e.core.model.evidence import Evidence, State
from verl_e2e.core.model.execution import ChangedCode, Entered, Executed
from verl_e2e.core.model.facts import AdapterReport, Excerpt, LogFacts, StepMetrics
from verl_e2e.core.model.jobs import Patch, SiteProfile
from verl_e2e.core.model.outcome import Outcome, Result, Stage
from verl_e2e.core.model.record import EndReason, TestCase
from verl_e2e.core.model.related import RelatedRun, Role
from verl_e2e.core.triage.silent import AGREEMENT_FAIL_BELOW

NO_CRITIC = config_with({"algorithm.adv_estimator": "grpo"})


def test_the_healthy_run_meets_all_of_them() -> None:
    case = make_case()
    judges = (adapter, weights_kept, gradients, rollout_agreement)
    assert [judge(case).state for judge in judges] == [State.MET] * 4


def spoiled(metric: str, value: float | None) -> StepMetrics:
    changes: dict[str, Any] = {metric: value}
    return step_line(**changes)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("metric", ["actor_grad_norm", "critic_grad_norm"])
def test_a_gradient_that_is_not_finite_and_positive_is_broken(metric: str, value: float) -> None:
    item = gradients(make_case(facts=make_facts(steps=(spoiled(metric, value),))))
    assert (item.state, item.line) == (State.BROKEN, 1334)
    assert item.summary == f"{metric.replace('_', '/', 1)} is {value} at step 1"


@pytest.mark.parametrize("metric", ["actor_grad_norm", "critic_grad_norm"])
def test_an_absent_gradient_is_missing(metric: str) -> None:
    item = gradients(make_case(facts=make_facts(steps=(spoiled(metric, None),))))
    assert (item.state, "is absent at step 1" in item.summary) == (State.MISSING, True)


def test_one_bad_step_among_good_ones_is_enough() -> None:
    record = make_record(job=make_job(steps=3))
    steps = (step_line(1), step_line(2, 1400, actor_grad_norm=0.0), step_line(3, 1500))
    item = gradients(make_case(record, make_facts(steps=steps)))
    assert (item.state, item.line) == (State.BROKEN, 1400)


@pytest.mark.parametrize(("steps", "absent"), [((), 1), ((step_line(0),), 1), ((step_line(1), step_line(3)), 2)])
def test_every_requested_step_must_show_its_gradients(steps: Any, absent: int) -> None:
    item = gradients(make_case(make_record(job=make_job(steps=3)), make_facts(steps=steps)))
    assert (item.state, item.summary) == (State.MISSING, f"no gradient norms of step {absent}")


def test_the_validation_before_training_has_no_gradients() -> None:
    first = step_line(0, 1200, actor_grad_norm=None, critic_grad_norm=None)
    assert gradients(make_case(facts=make_facts(steps=(first, step_line())))).state is State.MET


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (make_facts(configs=(NO_CRITIC,), steps=(step_line(critic_grad_norm=None),)), State.MET),
        (make_facts(configs=(NO_CRITIC,), steps=(step_line(critic_grad_norm=0.0),)), State.BROKEN),
        (make_facts(configs=(), steps=(step_line(critic_grad_norm=0.0),)), State.BROKEN),
        (make_facts(steps=(step_line(critic_grad_norm=None),)), State.MISSING),
    ],
)
def test_the_critic_is_judged_where_one_trains(facts: LogFacts, state: State) -> None:
    assert gradients(make_case(facts=facts)).state is state


def agreeing(*values: float | None) -> LogFacts:
    return make_facts(
        steps=tuple(step_line(n, 1300 + n, pearson_corr=value) for n, value in enumerate(values, start=1))
    )


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ((0.99996,), State.MET),
        ((1.0000001,), State.MET),
        ((AGREEMENT_FAIL_BELOW,), State.MET),
        ((math.nextafter(AGREEMENT_FAIL_BELOW, 0),), State.BROKEN),
        ((0.99996, 0.8, 0.99996), State.BROKEN),
        ((-0.2,), State.BROKEN),
        ((None,), State.WAIVED),
        ((0.99996, None), State.MET),
        ((math.nan,), State.MISSING),
        ((0.99996, math.nan), State.MISSING),
        ((math.nan, 0.5), State.MISSING),
        ((math.inf,), State.MISSING),
        ((-math.inf,), State.MISSING),
        ((1.01,), State.MISSING),
    ],
)
def test_agreement_of_trainer_and_rollout(values: tuple[float | None, ...], state: State) -> None:
    assert rollout_agreement(make_case(facts=agreeing(*values))).state is state


def test_the_worst_step_is_the_one_that_is_quoted() -> None:
    item = rollout_agreement(make_case(facts=agreeing(0.99996, 0.9, 0.95)))
    assert (item.line, item.excerpt) == (1302, "step:2 training/rollout_actor_probs_pearson_corr:0.9")


@pytest.mark.parametrize(
    ("value", "remarked"),
    [
        (0.9989, True),
        (AGREEMENT_FAIL_BELOW, True),
        (AGREEMENT_NOTE_BELOW, False),
        (0.99996, False),
        (0.9, False),
        (math.nan, False),
        (None, False),
    ],
)
def test_a_weak_agreement_is_a_limitation(value: float | None, remarked: bool) -> None:
    assert bool(agreement_note(make_case(facts=agreeing(value)))) is remarked


FULL, EMPTY = AdapterReport(1191, 7470, 1000, 10), AdapterReport(1210, 7470, 1000, 0)


@pytest.mark.parametrize(
    ("reports", "state", "line"),
    [
        ((FULL,), State.MET, 1191),
        ((EMPTY,), State.BROKEN, 1210),
        ((FULL, EMPTY), State.BROKEN, 1210),
        ((), State.MISSING, 0),
    ],
)
def test_every_adapter_has_parameters(reports: tuple[AdapterReport, ...], state: State, line: int) -> None:
    item = adapter(make_case(facts=make_facts(adapters=reports)))
    assert (item.state, item.line) == (state, line)


OFF = config_with({"actor_rollout_ref.model.lora.rank": 0})
NO_LORA = make_record(job=make_job(wrapper={"LORA_RANK": "0"}))
BY_SITE = SiteProfile(name="s", wrapper={"LORA_RANK": "8"})
FROM_SITE = make_job(site=BY_SITE).model_copy(update={"wrapper": {}})


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        (make_case(), True),
        (make_case(NO_LORA), True),
        (make_case(NO_LORA, make_facts(configs=(OFF,))), True),
        (make_case(NO_LORA, make_facts(configs=(OFF,), lora_at=None)), False),
        (make_case(NO_LORA, make_facts(configs=(), lora_at=None)), False),
        (make_case(make_record(job=FROM_SITE), make_facts(configs=(), lora_at=None)), True),
    ],
)
def test_whether_an_adapter_was_asked_for(case: Any, wanted: bool) -> None:
    assert wants_adapter(case) is wanted


def test_without_lora_no_adapter_is_needed() -> None:
    item = adapter(make_case(NO_LORA, make_facts(configs=(OFF,), lora_at=None, adapters=())))
    assert (item.state, item.summary) == (State.MET, "no adapter was asked for")


def test_a_warning_of_lost_weights_is_broken() -> None:
    lost = (Excerpt(1195, "Can't find the following HF parameters in hf_keys: ['a']"), Excerpt(1196, "more"))
    item = weights_kept(make_case(facts=make_facts(lost_weights=lost)))
    assert (item.state, item.line) == (State.BROKEN, 1195)
    assert item.summary == "2 warning(s) of lost weights"


@pytest.mark.parametrize(
    ("first", "more", "text"),
    [
        ("WARNING: No mapping found for megatron_param: a.b", 0, "Bridge has no mapping for a.b"),
        ("WARNING: No mapping found for global_name: a.b", 2, "Bridge has no mapping for a.b (and 2 more)"),
        ("WARNING: Can't find x.weight in hf_keys", 0, "the checkpoint does not hold what Bridge maps to x.weight"),
    ],
)
def test_a_lost_weight_is_named(first: str, more: int, text: str) -> None:
    lost = (Excerpt(1195, first), *(Excerpt(1196 + line, "more") for line in range(more)))
    assert weights_kept(make_case(facts=make_facts(lost_weights=lost))).summary == text


SAME, LOADED = Criterion.IMPORTED_WEIGHTS, Criterion.ROLLOUT_WEIGHTS


@pytest.mark.parametrize(
    ("met", "text"),
    [
        ((), "they do not hold the same weights, or compute something else with them"),
        ((SAME,), "they do not hold the same weights, or compute something else with them"),
        ((LOADED,), "what was compared arrived as it was exported, so the export or what the two compute is wrong"),
        (
            (LOADED, SAME),
            "the weights that were compared are the same in both, so the rest or what is computed with them differs",
        ),
    ],
)
def test_a_disagreement_says_what_is_known_of_the_weights(met: tuple[Criterion, ...], text: str) -> None:
    state = [
        Evidence(State.MET if entry in met else State.WAIVED, "x", "y", criterion=entry) for entry in (LOADED, SAME)
    ]
    broken = Evidence(State.BROKEN, "0.4, below 0.995", "log", criterion=Criterion.ROLLOUT_AGREEMENT)
    assert disagreement(broken, state).summary == f"0.4, below 0.995: {text}"
    healthy = Evidence(State.MET, "0.999", "log", criterion=Criterion.ROLLOUT_AGREEMENT)
    assert disagreement(healthy, state) == healthy


BASE = "d" * 40
NEVER = "the run never entered the changed code: "


def of(changed: ChangedCode, executed: Executed | None, **given: object) -> Verdict:
    return judged(
        given.pop("facts", None),  # type: ignore[arg-type]
        job=make_job(changed=changed, **given.pop("job", {})),  # type: ignore[arg-type]
        executed=executed,
        **given,
    )


def item_of(verdict: Verdict) -> Evidence | None:
    return next((item for item in verdict.evidence if item.criterion == Criterion.CHANGE_EXECUTED), None)


def limitations(verdict: Verdict, start: str) -> list[str]:
    return [text for text in verdict.limitations if text.startswith(start)]


def test_a_job_that_is_for_no_change_is_not_asked() -> None:
    verdict = judged(executed=ran(TRANSFORM))
    assert (item_of(verdict), verdict.execution, verdict.result) == (None, None, Result.PASS)


def test_a_run_that_executed_all_of_the_change_passes_and_says_where() -> None:
    verdict = of(change(TRANSFORM, GATHER), ran(TRANSFORM, GATHER, by=(IN_TRAINER, IN_SECOND)))
    item = item_of(verdict)
    assert (verdict.result, item is not None and item.state) == (Result.PASS, State.MET)
    assert item is not None
    assert item.summary.startswith(f"2 of 2 changed functions ran: {MAPPING}:10 gather, ")
    assert (item.file, item.excerpt) == (
        "executed.json",
        f"{MAPPING}:10 gather: entered by trainer 0 (train), trainer 1 (train), first after 31.5 s",
    )
    assert item in verdict.key_lines
    assert not limitations(verdict, "Changed")


def test_a_run_that_only_went_around_the_changed_lines_is_blocked() -> None:
    record = ran(TRANSFORM, lines={LORA: {41: (IN_TRAINER,), **dict.fromkeys(TRANSFORM.lines, ())}})
    verdict = of(change(TRANSFORM), record)
    assert (verdict.result, verdict.decided_by) == (Result.BLOCKED, Criterion.CHANGE_EXECUTED)
    assert verdict.cause == f"{NEVER}{LORA}:40 LoRA.transform (entered, but none of its changed lines ran)"


def test_a_constant_that_nothing_read_blocks_the_run() -> None:
    constant = AT_IMPORT.model_copy(update={"first_line": 3, "lines": (3,), "readers": (12,)})
    verdict = of(change(constant), ran(lines={MAPPING: {3: (IN_TRAINER,)}}))
    assert (verdict.result, verdict.decided_by) == (Result.BLOCKED, Criterion.CHANGE_EXECUTED)
    assert verdict.cause == f"{NEVER}{MAPPING}:3 code at import (it ran, but no function that reads what it binds did)"
    item = item_of(verdict)
    assert item is not None
    assert item.excerpt.startswith(f"{MAPPING}:3 code at import: no function that reads it in 4 processes; ")
    assert of(change(constant), ran(lines={MAPPING: {3: (IN_TRAINER,), 12: (IN_SECOND,)}})).result is Result.PASS


def test_code_at_import_is_not_enough_where_a_function_is_changed_too() -> None:
    verdict = of(change(AT_IMPORT, TRANSFORM), ran(lines={MAPPING: {3: (IN_TRAINER,)}}))
    assert verdict.result is Result.BLOCKED
    assert verdict.cause == f"{NEVER}{LORA}:40 LoRA.transform"
    assert of(change(AT_IMPORT), ran(lines={MAPPING: {3: (IN_TRAINER,)}})).result is Result.PASS


def test_a_run_that_executed_a_part_passes_and_lists_what_it_did_not() -> None:
    record = ran(TRANSFORM, lines={LORA: {45: (IN_TEST,)}})
    verdict = of(change(TRANSFORM, DROPOUT, GATHER), record)
    assert verdict.result is Result.PASS
    assert limitations(verdict, "Changed") == [
        f"Changed functions that the run did not execute: {MAPPING}:10 gather, "
        f"{LORA}:70 LoRA.drop (only with lora_dropout above 0).",
        f"Changed lines that did not run: {LORA}:45.",
    ]
    assert f"{LORA}:40 LoRA.transform" in verdict.shows


def test_another_job_that_entered_them_shows_them() -> None:
    verdict = of(change(TRANSFORM, DROPOUT), ran(TRANSFORM))
    other = of(change(TRANSFORM, DROPOUT), ran(DROPOUT))
    at = verdict.limitations.index(limitations(verdict, "Changed functions")[0])
    assert set(verdict.left_open[at]) <= set(other.shows)


def test_of_more_than_are_listed_no_job_is_said_to_show_them() -> None:
    many = [DROPOUT.model_copy(update={"first_line": line, "last_line": line}) for line in range(100, 120)]
    verdict = of(change(TRANSFORM, *many), ran(TRANSFORM))
    (text,) = limitations(verdict, "Changed functions")
    assert text.endswith(" and 8 more.")
    assert verdict.left_open[verdict.limitations.index(text)] == ()


def test_a_run_that_entered_none_of_it_is_blocked_however_green_the_rest() -> None:
    verdict = of(change(DROPOUT, GATHER), ran(TRANSFORM))
    assert (verdict.result, verdict.stage, verdict.decided_by) == (
        Result.BLOCKED,
        Stage.TRAIN_STEP,
        Criterion.CHANGE_EXECUTED,
    )
    assert verdict.never_entered
    places = f"{MAPPING}:10 gather, {LORA}:70 LoRA.drop (only with lora_dropout above 0)"
    assert verdict.cause == f"{NEVER}{places}"
    assert verdict.sentence == (
        f"Level 0 blocked: {NEVER}{places}; the run was good otherwise; not evidence against the Bridge change"
    )
    assert "policy" in verdict.followups[0]
    run = next(row for row in verdict.deliverables if row.name == "verl Megatron backend run")
    assert run.outcome is Outcome.BLOCKED
    assert verdict.key_lines[-1].excerpt.endswith("in none of 4 processes; 1 functions of the files ran")
    assert verdict.shows == ()


def test_what_bridge_tests_alone_executed_does_not_satisfy_the_criterion() -> None:
    verdict = of(change(TRANSFORM), ran(TRANSFORM, by=(IN_TEST,)))
    assert verdict.never_entered
    assert verdict.key_lines[-1].excerpt.endswith(", 1 of the changed ones only by Bridge tests")
    assert limitations(verdict, "Executed by") == [
        f"Executed by Bridge tests alone, not in verl: {LORA}:40 LoRA.transform."
    ]


@pytest.mark.parametrize(
    ("given", "decided_by"),
    [
        ({"tests": (TestCase(name="a.test_b", outcome="failed"),)}, Criterion.BRIDGE_TESTS),
        ({"facts": make_facts(steps=(step_line(grad_norm=0.0),))}, Criterion.GRADIENTS),
        ({"facts": cut_facts(Stage.PEFT, errors=(bridge_error(),)), "events": ended(exit_code=1)},
         Criterion.NO_EXCEPTION),
        ({"events": ended(EndReason.STALLED, None)}, None),
        ({"job": {"require_bridge_checks": True}, "tests": None}, Criterion.BRIDGE_TESTS),
        ({"missing": ("config.json: not there",)}, None),
    ],
)  # fmt: skip
def test_a_run_that_did_not_pass_for_another_reason_keeps_that_reason(
    given: dict[str, object], decided_by: Criterion | None
) -> None:
    verdict = of(change(DROPOUT), ran(TRANSFORM), **given)
    assert (verdict.result is Result.PASS, verdict.decided_by) == (False, decided_by)
    assert NEVER not in verdict.cause
    assert not verdict.never_entered


@pytest.mark.parametrize(
    ("executed", "why"),
    [
        (None, "the folder holds no executed.json"),
        (Executed(problem="the run's Python is 3.11"), "the run's Python is 3.11"),
    ],
)
def test_without_a_record_the_run_passes_with_that_limitation(executed: Executed | None, why: str) -> None:
    verdict = of(change(TRANSFORM), executed)
    item = item_of(verdict)
    assert (verdict.result, item is not None and item.state) == (Result.PASS, State.WAIVED)
    assert f"Execution not recorded: {why}." in verdict.limitations


def test_what_a_record_that_is_not_whole_does_not_hold_is_not_known() -> None:
    verdict = of(change(TRANSFORM, GATHER), ran(TRANSFORM, cut=("too much.",)))
    assert verdict.result is Result.PASS
    assert limitations(verdict, "Whether these") == [
        f"Whether these changed functions ran is not known, the record is not whole: too much: {MAPPING}:10 gather."
    ]


def on_merge_base() -> tuple[RelatedRun, ...]:
    run = RelatedRun(
        role=Role.MERGE_BASE,
        job_id="0-lora-ddp",
        job_digest="f" * 64,
        bridge_commit=BASE,
        folder="related/merge_base",
        result=Result.PASS,
    )
    return (run,)


def test_removed_code_is_a_limitation_where_the_merge_base_was_not_run() -> None:
    verdict = of(change(REMOVED), ran(TRANSFORM))
    text = "Whether the removed code ran is not known: the job was not run on the merge base."
    assert (verdict.result, limitations(verdict, "Whether the removed")) == (Result.PASS, [text])


def test_removed_code_that_the_merge_base_never_entered_blocks_too() -> None:
    base = ran(bridge_commit=BASE)
    verdict = of(change(REMOVED), ran(TRANSFORM), related=on_merge_base(), base_executed=base)
    assert verdict.cause == f"{NEVER}{LORA}:90 LoRA.old (before the change)"
    conditional = REMOVED.model_copy(update={"condition": "only for experts"})
    verdict = of(change(conditional), ran(TRANSFORM), related=on_merge_base(), base_executed=base)
    assert verdict.cause == f"{NEVER}{LORA}:90 LoRA.old (before the change, only for experts)"


def test_removed_code_that_ran_on_the_merge_base_was_executed() -> None:
    base = ran(REMOVED, bridge_commit=BASE)
    verdict = of(change(REMOVED, TRANSFORM), ran(), related=on_merge_base(), base_executed=base)
    assert verdict.result is Result.PASS
    assert verdict.execution is not None
    assert [item.entered for item in verdict.execution.functions] == [Entered.NEVER, Entered.IN_VERL]


def test_removed_code_that_did_not_run_there_is_a_limitation_of_a_run_that_executed_the_rest() -> None:
    base = ran(bridge_commit=BASE)
    verdict = of(change(REMOVED, TRANSFORM), ran(TRANSFORM), related=on_merge_base(), base_executed=base)
    start = "Code that the change takes out and that did not run on the merge base either"
    text = f"{start}: {LORA}:90 LoRA.old (before the change)."
    assert limitations(verdict, "Code that") == [text]


def test_a_merge_base_whose_folder_has_no_record_leaves_it_open() -> None:
    verdict = of(change(REMOVED), ran(TRANSFORM), related=on_merge_base())
    text = "Whether the removed code ran is not known: the folder holds no executed.json."
    assert limitations(verdict, "Whether the removed") == [text]


def test_files_without_known_functions_are_named() -> None:
    verdict = of(change(unread={"setup.cfg": "not Python"}), ran(TRANSFORM))
    assert limitations(verdict, "Which") == ["Which functions the change touches is not known: setup.cfg: not Python."]
    verdict = of(change(left_out=9), ran(TRANSFORM))
    assert limitations(verdict, "Which") == [
        "Which functions the change touches is not known: 9 functions are not listed."
    ]
    verdict = of(change(TRANSFORM, unread={"setup.cfg": "not Python"}, left_out=2), ran(TRANSFORM))
    assert limitations(verdict, "Changed files") == [
        "Changed files whose functions are not known: setup.cfg: not Python."
    ]
    assert limitations(verdict, "2 more") == ["2 more changed functions were not compared with what ran."]


def test_a_change_that_no_run_has_to_execute_is_met_and_says_so() -> None:
    verdict = of(change(TRANSFORM.model_copy(update={"reached": False})), ran())
    item = item_of(verdict)
    assert item is not None
    assert (verdict.result, item.state) == (Result.PASS, State.MET)
    assert item.summary.startswith("nothing of the change has to be executed")


def test_a_patched_file_is_matched_by_name() -> None:
    patch = Patch(
        name="p", repository="bridge", file=LORA, substitutions=(), before="1" * 64, after="2" * 64, reason="needed"
    )
    moved = TRANSFORM.model_copy(update={"first_line": 140, "last_line": 150})
    assert of(change(TRANSFORM), ran(moved), job={"patches": (patch,)}).result is Result.PASS


def test_many_processes_are_counted_in_the_excerpt() -> None:
    record = ran(TRANSFORM)
    ranks = tuple(record.processes[IN_TRAINER].model_copy(update={"rank": rank}) for rank in range(8))
    item = item_of(of(change(TRANSFORM), ran(TRANSFORM, by=tuple(range(8)), processes=ranks)))
    assert item is not None
    assert "trainer 2 (train) and 5 more, first after" in item.excerpt


def test_the_verdict_carries_what_ran_and_is_read_back() -> None:
    verdict = of(change(TRANSFORM, DROPOUT), ran(TRANSFORM))
    text = verdict_json(verdict)
    assert '"schema": 2' in text
    again = read_verdict(text)
    assert again is not None
    assert again.execution == verdict.execution
    assert '"missed": "72"' in text


def test_the_verdict_of_an_earlier_version_has_none() -> None:
    text = verdict_json(judged()).replace('"execution": null,', "")
    again = read_verdict(text)
    assert again is not None
    assert (again.execution, again.never_entered) == (None, False)
    assert BRIDGE in text
