"""What verl makes of the settings of jobs, as people and programs read it.

The plan as people read it: a table of plans, each with the lines that it adds to the shortest one.
"""

from dataclasses import replace
from typing import Any

import pytest

from verl_e2e.core.consumer.consumers import variant_named
from verl_e2e.core.model.execution import ChangedCode, ChangedFunction, Excuse, Purpose, Side
from verl_e2e.core.model.jobs import Checkpoint, ChosenTest, WhyChosen
from verl_e2e.core.model.levels import CostBasis, Level
from verl_e2e.core.model.settings import SettingsCheck
from verl_e2e.core.model.space import POINTS
from verl_e2e.core.plan.bridge_tests import Choice
from verl_e2e.core.plan.contract import ContractFinding, Kind
from verl_e2e.core.plan.measured_jobs import NEW, NOT_ENTERED, NotCovered, Place
from verl_e2e.core.plan.outline import JobOutline, Missing, Obstacle
from verl_e2e.core.plan.plan import Exempted, NotRequired, Plan, Reason
from verl_e2e.core.plan.policy import Feature
from verl_e2e.core.reach.effects import LookedAt
from verl_e2e.core.report.plan_text import (
    MOST_COLUMNS,
    MOST_ROWS,
    render_contract,
    render_plan_text,
    render_short_plan,
    render_why,
    settings_json,
    settings_text,
)

CHECKS = (
    SettingsCheck("0-lora-ddp"),
    SettingsCheck("2-cp", "Key 'x' is not in struct", ("a is 1, the job expects 2",), "vLLM is not installed"),
    SettingsCheck("2-dp", unchecked="vLLM is not installed"),
)


def test_each_job_has_a_line_and_its_reasons_and_what_was_not_checked_is_said_once() -> None:
    assert settings_text(CHECKS) == (
        "accepted  0-lora-ddp\n"
        "refused   2-cp\n"
        "    Key 'x' is not in struct\n"
        "    a is 1, the job expects 2\n"
        "accepted  2-dp\n"
        "2 of 3 accepted\n"
        "not checked: vLLM is not installed"
    )


def test_the_document_has_the_same() -> None:
    jobs = settings_json(CHECKS)["jobs"]
    assert isinstance(jobs, list)
    assert jobs[1] == {
        "id": "2-cp",
        "accepted": False,
        "refused": "Key 'x' is not in struct",
        "mismatches": ["a is 1, the job expects 2"],
        "unchecked": "vLLM is not installed",
    }
    assert [job["accepted"] for job in jobs] == [True, False, True]


SMOKE = Reason(Level.SMOKE, "src/a.py", "it is imported")
LATER = "no script yet"


def outline(name: str = "0-lora-ddp", **given: Any) -> JobOutline:
    variant = variant_named(name)
    assert variant is not None
    fields: dict[str, Any] = {"requires": (), "checkpoint": Checkpoint(model_id="tiny/dense")} | given
    return JobOutline(variant, **fields)


def text_of(**given: Any) -> list[str]:
    """The lines below the head of a plan, without the empty ones."""
    fields: dict[str, Any] = {"jobs": (), "reasons": (), "not_required": (), "families": (), "features": ()} | given
    levels = tuple(sorted({reason.level for reason in fields["reasons"]}))
    text = render_plan_text(Plan("a" * 40, "b" * 40, levels, **fields)).partition("\n\n")[2]
    return [line for line in text.splitlines() if line]


def head_of(*jobs: JobOutline) -> list[str]:
    levels = tuple(sorted({Level.SMOKE, *(job.variant.level for job in jobs)}))
    text = render_plan_text(Plan("a" * 40, "b" * 40, levels, jobs, (SMOKE,), (), (), ()))
    return text.partition("\n\n")[0].splitlines()


BLOCKED = (Obstacle(Missing.SCRIPT, LATER, "set `script:`"),)
HEAD = "Plan for aaaaaaaaaaaa..bbbbbbbbbbbb: level 0"


@pytest.mark.parametrize(
    ("jobs", "expected"),
    (
        ((), [HEAD, "0 jobs, about 0 GPU minutes (nothing is run), 0 GPUs at most"]),
        (
            (outline(),),
            [
                HEAD,
                f"1 job, about 7 GPU minutes ({CostBasis.MEASURED}), 1 GPU at most",
                "Time to an answer: about 7 minutes where no job waits for a machine",
            ],
        ),
        (
            (outline("2-dense", obstacles=BLOCKED),),
            [
                f"{HEAD}, 2",
                "1 job, about 0 GPU minutes (nothing is run), 0 GPUs at most",
                "1 job cannot pass as planned and will not run, so the gate stays closed until the policy has what "
                "is missing or level 2 is overridden: 2-dense",
            ],
        ),
    ),
)
def test_the_head_says_what_is_run_and_what_cannot_pass(jobs: tuple[JobOutline, ...], expected: list[str]) -> None:
    assert head_of(*jobs) == expected


@pytest.mark.parametrize(
    ("reasons", "expected"),
    (
        ((Reason(Level.SMOKE, None, "requested by hand"),), ["requested by hand"]),
        ((SMOKE,), ["it is imported", "  src/a.py"]),
        ((Reason(Level.SMOKE, "a.py", "used", "f"),), ["used", "  a.py: f"]),
        ((Reason(Level.SMOKE, "a.py", "used", "f", ("verl imports f",)),), ["used", "  a.py: f"]),
        (
            (Reason(Level.SMOKE, "a.py", "used", "f", ("verl imports f", "rule r")),),
            ["used", "  a.py: f, from verl imports f"],
        ),
        (
            tuple(Reason(Level.SMOKE, f"{name}.py", "used") for name in "abcd"),
            ["used", "  a.py", "  b.py", "  c.py", "  and 1 more path"],
        ),
    ),
)
def test_a_level_shows_its_reasons_with_few_places(reasons: tuple[Reason, ...], expected: list[str]) -> None:
    assert text_of(reasons=reasons) == [
        "Level 0, LoRA + DDP smoke: required",
        *(f"  {line}" for line in expected),
    ]


def feature(name: str, **given: Any) -> Feature:
    return Feature.model_validate({"feature": name, "reason": "as CI does", **given})


@pytest.mark.parametrize(
    ("job", "expected"),
    (
        (outline(), "job 0-lora-ddp: 1 GPU (the policy declares no size of this model), about 7 GPU minutes (meas"),
        (outline(requires=("x", "y")), ", tiny/dense, after x, y"),
        (outline(features=(feature("moe"),)), ", tiny/dense, shows moe"),
        (outline(features=(feature("moe", script="a.sh"),)), ", tiny/dense, by a.sh, shows moe"),
        (outline(not_shown=(feature("sound"),)), ", tiny/dense, no script of verl shows sound"),
        (outline(absent=("mtp", "ssm")), ", tiny/dense, its checkpoint has no mtp and no ssm"),
        (outline(obstacles=BLOCKED), "job 0-lora-ddp on tiny/dense: cannot pass as planned, so it is not run: no"),
        (outline(obstacles=BLOCKED, checkpoint=None), "job 0-lora-ddp: cannot pass as planned, so it is not run: no"),
    ),
)  # fmt: skip
def test_a_job_says_what_it_needs_and_shows(job: JobOutline, expected: str) -> None:
    (line,) = (line for line in text_of(reasons=(SMOKE,), jobs=(job,)) if "job " in line)
    assert expected in line


def chosen(test: str, gpu_count: int = 0) -> ChosenTest:
    return ChosenTest(test=test, why=WhyChosen.CHANGED, reason="it changed", gpu_count=gpu_count)


LOOKED_AT = LookedAt(1, 20, 0)
EXEMPTED = (Exempted("docs", 2, "no run reads them"),)


@pytest.mark.parametrize(
    ("given", "expected"),
    (
        ({}, []),
        (
            {"tests": Choice((chosen("t/a.py"), chosen("t/b.py", 2)), ("1 more is left out.",), 60)},
            [
                "Bridge tests chosen for this change, besides those of the policy, for 60 s at most:",
                "  t/a.py: it changed",
                "  t/b.py: it changed, needs 2 GPUs",
                "  1 more is left out.",
            ],
        ),
        ({"tests": Choice((), ("3 do not fit.",))}, ["  3 do not fit."]),
        (
            {"not_required": (NotRequired(Level.SMOKE, "no file"), NotRequired(Level.FEATURE, "no file"))},
            ["Not required, every level: no file"],
        ),
        (
            {"not_required": (NotRequired(Level.SMOKE, "no file"), NotRequired(Level.FEATURE, "idle"))},
            ["Level 0, LoRA + DDP smoke: not required, no file", f"Level 4, {Level.FEATURE.title}: not required, idle"],
        ),
        ({"families": ("any", "qwen3")}, ["Families: any, qwen3"]),
        ({"features": ("moe", "mtp")}, ["Features: moe, mtp"]),
        # Why nothing is asked for is in its reason; how much was looked at matters there alone.
        ({"looked_at": LOOKED_AT, "exempted": EXEMPTED}, [LOOKED_AT.sentence]),
        (
            {"looked_at": LOOKED_AT, "exempted": EXEMPTED, "reasons": (SMOKE,)},
            [
                "Level 0, LoRA + DDP smoke: required",
                "  it is imported",
                "    src/a.py",
                "Set aside: 2 paths in docs (no run reads them)",
            ],
        ),
    ),
)
def test_what_stands_below_the_levels(given: dict[str, Any], expected: list[str]) -> None:
    assert text_of(**given) == expected


SKEW = ContractFinding(Kind.SKEW, "bridge.f", "missing on both sides", "verl/a.py", 3)
BREAK = ContractFinding(Kind.BREAK, "bridge.g", "it is gone", "verl/b.py", 4)


@pytest.mark.parametrize(
    ("findings", "expected"),
    (
        ((), ""),
        ((SKEW,), ""),
        (
            (BREAK, SKEW),
            "verl's uses of Bridge that the head no longer supports:\n  break: verl/b.py:4 bridge.g: it is gone\n",
        ),
    ),
)
def test_only_what_the_change_broke_is_told_of_the_contract(
    findings: tuple[ContractFinding, ...], expected: str
) -> None:
    assert render_contract(findings) == expected


def changed_function(name: str = "f", **given: Any) -> ChangedFunction:
    fields: dict[str, Any] = {"path": "src/a.py", "symbol": name, "first_line": 1, "last_line": 9, "lines": (2, 3)}
    return ChangedFunction(**(fields | given))


def test_the_changed_code_is_counted_for_each_job() -> None:
    head, gone = changed_function("f"), changed_function("old", side=Side.MERGE_BASE)
    idle = changed_function("g", lines=(), excused=({"excuse": Excuse.LOGGING, "lines": (4,)},))
    body = changed_function("", lines=(1,))
    unreached = tuple(changed_function(name, reached=False) for name in ("u1", "u2", "u3", "u4"))
    unread = {f"src/{name}.py": "it is not Python" for name in "abcde"}
    code = ChangedCode(functions=(body, head, idle, gone, *unreached), unread=unread, left_out=7)
    job, other = outline(changed=ChangedCode(functions=(head,))), outline("2-cp", reason="rule ranks: it averages")
    text = text_of(changed=code, jobs=(job, other), reasons=(SMOKE,))
    assert text[4:] == [
        "Changed code that at least one run must execute: 1 function, 3 lines",
        "  looked for in 0-lora-ddp: 1 function, 2 lines",
        "Removed code, looked for in runs on the merge base: 1 function, 2 lines",
        "Changed code that verl does not reach by its sources: src/a.py:u1, src/a.py:u2, src/a.py:u3 and 1 more",
        *(f"Which functions differ is not known for src/{name}.py: it is not Python" for name in "abc"),
        "  nor for 2 more files",
        "Changed functions and files that are not listed: 7",
    ]
    assert text_of(changed=ChangedCode(functions=(body,))) == [
        "Changed code that at least one run must execute: 0 functions, 1 line"
    ]


@pytest.mark.parametrize("given", ({"reached": False}, {"symbol": "", "reached": False}))
def test_a_plan_that_asks_for_no_run_does_not_speak_of_code_that_must_run(given: dict[str, Any]) -> None:
    code = ChangedCode(functions=(changed_function(path="a\nb", **given),))
    (line,) = text_of(changed=code)
    assert line == f"Changed code that verl does not reach by its sources: a\\nb{':f' if 'symbol' not in given else ''}"


PURPOSE = Purpose(path="a.py", symbol="f", condition="tp > 1")


@pytest.mark.parametrize(
    ("purposes", "expected"),
    (
        ((PURPOSE,), ["    for a.py:f: tp > 1"]),
        ((PURPOSE, PURPOSE.model_copy(update={"lines": (3,)})), ["    for a.py:f: tp > 1"]),
        ((PURPOSE, PURPOSE.model_copy(update={"symbol": "g"})), ["    for a.py:f, a.py:g: tp > 1"]),
        ((PURPOSE.model_copy(update={"symbol": ""}),), ["    for a.py: tp > 1"]),
        (
            tuple(PURPOSE.model_copy(update={"symbol": name}) for name in "fghi"),
            ["    for a.py:f, a.py:g and 2 more: tp > 1"],
        ),
        (
            tuple(PURPOSE.model_copy(update={"condition": f"tp > {size}"}) for size in range(5)),
            [*(f"    for a.py:f: tp > {size}" for size in range(3)), "    for 2 more conditions"],
        ),
    ),
)
def test_a_job_says_for_which_places_it_is_there(purposes: tuple[Purpose, ...], expected: list[str]) -> None:
    lines = text_of(reasons=(SMOKE,), jobs=(outline(purposes=purposes),))
    assert lines[-len(expected) :] == expected
    assert lines[-len(expected) - 1].startswith("  job 0-lora-ddp")


def test_places_without_a_job_are_named_by_reason() -> None:
    other = PURPOSE.model_copy(update={"symbol": "g", "condition": "cp > 1"})
    left = (NotCovered(PURPOSE, "it costs too much"), NotCovered(other, "no host is large enough"))
    assert text_of(reasons=(SMOKE,), not_covered=left)[3:] == [
        "No job is planned for 2 places of the change:",
        "  it costs too much",
        "    for a.py:f: tp > 1",
        "  no host is large enough",
        "    for a.py:g: cp > 1",
    ]


def test_places_that_nothing_is_known_to_enter_are_named_by_reason() -> None:
    function = ChangedFunction(path="a.py", symbol="f", first_line=1, last_line=9)
    left = [Place(function, (line,), frozenset(), problem=NOT_ENTERED) for line in range(1, 6)]
    new = Place(function, (), frozenset(), problem=NEW)
    assert text_of(reasons=(SMOKE,), not_entered=(*left, new))[3:] == [
        f"It is not known whether a planned job enters 5 places of the change, for {NOT_ENTERED}:",
        *(f"  a.py:f, lines {line}" for line in (1, 2, 3)),
        "  and 2 more",
        f"It is not known whether a planned job enters 1 place of the change, for {NEW}:",
        "  a.py:f",
    ]


@pytest.mark.parametrize("levels", ((), (Level.SMOKE,)))
def test_what_a_plan_rests_on_comes_first(levels: tuple[Level, ...]) -> None:
    made = Plan(
        "a" * 40, "b" * 40, levels, (), (), (), (), (), notes=("By names alone.",), incomplete=("c is not read",)
    )
    first, *rows = render_plan_text(made).splitlines()
    assert first.startswith("Plan for aaaaaaaaaaaa..bbbbbbbbbbbb: ")
    assert rows[:2] == ["The plan is incomplete: c is not read", "By names alone."]


def test_a_job_without_a_reason_cannot_be_planned() -> None:
    one, other = outline(), outline("2-expert")
    for jobs, levels in (
        # Of the level's default job the level has the reasons; where it is not required there are none.
        ((one,), ()),
        ((one, other), (Level.SMOKE, Level.PARALLELISM)),
        ((one, outline("2-cp", replaces="2-dp")), (Level.SMOKE, Level.PARALLELISM)),
    ):
        with pytest.raises(ValueError, match="planned without a reason"):
            Plan("a" * 40, "b" * 40, levels, jobs, (), (), (), ())
    given = (one, outline("2-expert", reason="rule experts: idle"), outline("2-cp", purposes=(PURPOSE,)))
    lines = text_of(reasons=(SMOKE, Reason(Level.PARALLELISM, "src/a.py", "it splits")), jobs=given)
    assert "    rule experts: idle" in lines


def plan(levels: tuple[Level, ...] = (Level.SMOKE,), **given: Any) -> Plan:
    fields: dict[str, Any] = {"jobs": (), "reasons": (), "not_required": (), "families": (), "features": ()} | given
    return Plan("a" * 40, "b" * 40, levels, **fields)


def rows_of_short(given: Plan, contract: tuple[str, ...] = ()) -> list[str]:
    shown = render_short_plan(given, contract).splitlines()
    assert len(shown) <= MOST_ROWS
    assert max(map(len, shown)) <= MOST_COLUMNS
    return shown


def test_the_short_plan_has_a_row_for_each_level_and_says_what_to_ask_next() -> None:
    rows = rows_of_short(plan(jobs=(outline(),), reasons=(SMOKE, replace(SMOKE, path="src/b.py"))))
    assert rows[0].startswith("Plan for ")
    head = next(row for row in rows if row.startswith("level"))
    assert head.split() == ["level", "GPUs", "min", "jobs", "because"]
    assert next(row for row in rows if row.startswith("0 ")).endswith("it is imported")
    assert rows[-1] == "More: --why 0, --why PATH, --full, --json"


def test_the_short_plan_names_the_trainer_that_a_change_breaks() -> None:
    assert "SkyRL breaks on this: gone" in render_short_plan(plan(), ("gone",), "SkyRL")


def test_no_plan_is_longer_than_a_terminal() -> None:
    path = f"src/{'a' * 300}.py"
    long = Purpose(path=path, symbol="b" * 200, condition="c" * 150)
    function = ChangedFunction(path=path, symbol="b" * 200, first_line=1, last_line=9)
    levels = tuple(Level)
    rows = rows_of_short(
        plan(
            levels=levels,
            jobs=tuple(outline(name, reason="r" * 150) for name in POINTS),
            reasons=tuple(Reason(level, path, f"{'d' * 200} {number}") for level in levels for number in range(40)),
            incomplete=("e" * 500,) * 9,
            not_covered=(NotCovered(long, "f" * 300),) * 30,
            not_entered=(Place(function, (1,), frozenset(), problem="g" * 300),) * 30,
        ),
        ("h" * 500,) * 12,
    )
    assert sum(row.endswith("(and 29 more)") for row in rows) == 2
    assert any("+" in row for row in rows if row.startswith("2 "))


def test_a_place_that_does_not_fit_beside_what_follows_is_cut_and_not_left_out() -> None:
    function = ChangedFunction(path=f"src/{'a' * 60}.py", symbol="B.c", first_line=1, last_line=9)
    rows = rows_of_short(plan(not_entered=(Place(function, (), frozenset(), problem="g"),) * 30))
    (row,) = (row for row in rows if row.startswith("Not known"))
    assert row.startswith(f"Not known to be entered: src/{'a' * 40}")
    assert row.endswith("a ... (and 29 more)")


def test_why_answers_a_level_and_a_path() -> None:
    shown = plan(jobs=(outline(),), reasons=(replace(SMOKE, symbol="f", via=("verl/x.py:1 uses f", "f")),))
    assert "it is imported" in render_why(shown, "0")
    assert render_why(shown, "src/a.py") == "Level 0: it is imported (f)\n  verl/x.py:1 uses f\n  f\n"
    assert render_why(shown, "src/a.py:f") == render_why(shown, "src/a.py")
    assert render_why(replace(shown, not_required=(NotRequired(Level(5), "no rule matches"),)), "5") == (
        "Level 5, Learning signal: not required, no rule matches\n"
    )
    assert render_why(shown, "src/other.py") == ""
