"""A bump of Megatron-LM: what differs in it, what jobs were measured to enter of that, and what a plan makes of it."""

from dataclasses import replace

import pytest

from verl_e2e.config import load_policy
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus, SubmoduleBump
from verl_e2e.core.model.execution import MEGATRON_LM_FOLDER, Excuse, ExcusedLines, ExecutionMaps
from verl_e2e.core.plan.plan import Plan, plan
from verl_e2e.core.plan.policy import Exemption
from verl_e2e.core.reach.bump import other_files, with_bump
from verl_e2e.core.reach.changed_functions import TouchedFunction
from verl_e2e.core.reach.diff import compare
from verl_e2e.core.reach.effects import Effect, Effects, Inside

OLD, NEW = "1" * 40, "2" * 40
DOCUMENTS = {"name": "documents", "paths": ["*.md"], "reason": "nothing imports them"}
POLICY = load_policy(
    """
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image: {name: verlai/verl, tag: latest}
checkpoint: {model_id: tiny/dense}
exempt: []
rules:
  - {name: submodule, paths: [/3rdparty/], levels: [0], reason: every model is built from it}
reach:
  package: megatron.bridge
  roots: [src/]
  rules:
    - {name: reached code, levels: [5], reason: a rule of Bridge's code}
megatron_lm:
  rules:
    - {name: optimizer, paths: [optimizer/], measured: true, levels: [1], reason: it is saved}
    - {name: sharded state, symbols: ["*sharded_state_dict"], levels: [1], reason: it says who saves what}
    - {name: FSDP, paths: [fsdp/], levels: [3], reason: no measured job trains with it}
""",
    "policy.yml",
)


def measured(**jobs: tuple[str, ...]) -> ExecutionMaps:
    """Maps of jobs, by the path and the function that each entered."""
    commits = {"bridge": "a" * 40, "verl": "b" * 40, "measured": "2026-11-27"}
    maps = []
    for job, names in jobs.items():
        files: dict[str, dict[str, list[str]]] = {}
        for path, _, symbol in (name.partition(":") for name in names):
            files.setdefault(f"{MEGATRON_LM_FOLDER}/{path}", {})[symbol] = ["trainer"]
        name = job.replace("_", "-")
        maps.append({"job": name, "variant": name[2:], "model": "tiny/dense", "files": files, **commits})
    return ExecutionMaps.model_validate({"maps": maps})


def bumped(maps: ExecutionMaps, **files: tuple[str, str]) -> Plan:
    """The plan of a bump in which files differ, each as the body of its function `run` before and after."""
    sources = {path.replace("__", "/") + ".py": bodies for path, bodies in files.items()}
    differences = {
        path: compare(*(f"def run():\n    return {body}\n".encode() for body in bodies))
        for path, bodies in sources.items()
    }
    effects = with_bump(Effects(), differences, maps, (OLD, NEW))
    return plan(moved(), POLICY, effects=effects)


def moved(old: str | None = OLD, new: str | None = NEW) -> Change:
    path = ChangedPath(MEGATRON_LM_FOLDER, PathStatus.MODIFIED, submodule=SubmoduleBump(old, new))
    return Change("a" * 40, "b" * 40, "a" * 40, (path,))


OPTIMIZER, MODEL = "megatron__core__optimizer__adam", "megatron__core__model"
ENTERED = ("megatron/core/optimizer/adam.py:run", "megatron/core/model.py:run")


def test_code_that_a_job_entered_asks_for_the_level_of_its_rule() -> None:
    maps = measured(**{"0_lora_ddp": ENTERED})
    assert bumped(maps, **{OPTIMIZER: ("1", "2"), MODEL: ("1", "2")}).levels == (0, 1)
    # Of the model's code level 0 shows all.
    assert bumped(maps, **{MODEL: ("1", "2")}).levels == (0,)
    # A rule of measured code says nothing of code that no job entered, and a comment changes nothing.
    assert bumped(measured(), **{OPTIMIZER: ("1", "2")}).levels == (0,)
    assert bumped(maps, **{OPTIMIZER: ("1", "1  # one")}).levels == (0,)


def test_code_that_no_job_trains_with_is_judged_by_its_place() -> None:
    found = bumped(measured(), megatron__core__distributed__fsdp__wrap=("1", "2"))
    assert found.levels == (0, 3)
    (reason,) = (reason for reason in found.reasons if reason.level == 3)
    assert (reason.symbol, reason.rule, reason.via[0]) == ("run", "FSDP", "no job was measured with it")


def test_code_that_only_higher_levels_entered_asks_for_the_lowest_of_them() -> None:
    maps = measured(**{"1_resume": ENTERED, "2_cp": ENTERED[1:]})
    found = bumped(maps, **{MODEL: ("1", "2")})
    assert found.levels == (0, 1)
    assert "only 1-resume and 2-cp entered it" in found.reasons[-1].reason
    # A derived job tells the level where no named one entered the code.
    derived = bumped(measured(**{"2_ep2_qwen3_moe": ENTERED}), **{MODEL: ("1", "2")})
    assert (derived.levels, "only 2-ep2-qwen3-moe entered it" in derived.reasons[-1].reason) == ((0, 2), True)


def test_a_job_must_execute_what_it_was_measured_to_enter_and_nothing_else() -> None:
    maps = measured(**{"0_lora_ddp": ENTERED[1:], "1_resume": ENTERED})
    found = bumped(maps, **{OPTIMIZER: ("1", "2"), MODEL: ("1", "2")})
    by_job = {job.id: [function.path.rpartition("/")[2] for function in job.changed.functions] for job in found.jobs}
    assert by_job == {"0-lora-ddp": ["model.py"], "1-resume": ["model.py", "adam.py"]}
    assert f"{MEGATRON_LM_FOLDER}: it moves" not in str(found.changed.unread)


def test_code_that_one_job_alone_entered_is_for_that_job() -> None:
    found = bumped(measured(**{"2_vpp": ENTERED[1:]}), **{MODEL: ("1", "2")})
    by_job = {job.id: len(job.changed.functions) for job in found.jobs}
    assert by_job == {"0-lora-ddp": 0, "2-dense": 0, "2-vpp": 1}


def test_a_job_is_asked_for_the_function_that_it_entered_and_not_for_one_inside() -> None:
    sources = (f"class A:\n    def __init__(self):\n        self.f = lambda x: x + {n}\n".encode() for n in (1, 2))
    own, inner = (f"megatron/core/model.py:A.__init__{rest}" for rest in ("", ".<locals>.<lambda>"))
    maps = measured(**{"0_lora_ddp": (own,), "1_resume": (own, inner)})
    effects = with_bump(Effects(), {"megatron/core/model.py": compare(*sources)}, maps, (OLD, NEW))
    (smoke, *_) = plan(moved(), POLICY, effects=effects).jobs
    assert smoke.id == "0-lora-ddp"
    assert not any(function.symbol.endswith("<lambda>") for function in smoke.changed.functions)


def test_new_code_beside_what_one_job_entered_was_entered_by_none() -> None:
    new = b"def run():\n    return 1\n\n\ndef new():\n    return 2\n"
    differences = {"megatron/core/optimizer/adam.py": compare(b"def run():\n    return 1\n", new)}
    effects = with_bump(Effects(), differences, measured(**{"2_vpp": ENTERED[:1]}), (OLD, NEW))
    found = plan(moved(), POLICY, effects=effects)
    assert [job.id for job in found.jobs] == ["0-lora-ddp", "1-resume"]
    assert any("beside code that was entered by 2-vpp" in reason.via for reason in found.reasons)


def test_a_submodule_that_lies_elsewhere_asks_for_all_that_one_not_compared_does() -> None:
    path = ChangedPath("third_party/mcore", PathStatus.RENAMED, MEGATRON_LM_FOLDER, SubmoduleBump(OLD, OLD))
    elsewhere = plan(Change("a" * 40, "b" * 40, "a" * 40, (path,)), POLICY, effects=Effects())
    assert elsewhere.levels == plan(moved(), POLICY, effects=Effects()).levels != (0,)
    # The same commit in the same place, as a change of its mode alone gives it, asks for none of it.
    assert plan(moved(OLD, OLD), POLICY, effects=Effects()).levels == (0,)


@pytest.mark.parametrize(("demanded", "expected"), [(True, "peft/lora.py"), (False, "core/model.py")])
def test_a_job_that_must_execute_code_of_bridge_is_not_satisfied_by_a_bump(*, demanded: bool, expected: str) -> None:
    effects = with_bump(
        Effects(),
        {"megatron/core/model.py": compare(b"def run():\n    return 1\n", b"def run():\n    return 2\n")},
        measured(**{"0_lora_ddp": ENTERED}),
        (OLD, NEW),
    )
    path = "src/megatron/bridge/peft/lora.py"
    (own,) = compare(b"def f():\n    return 1\n", b"def f():\n    return 2\n").functions.changed
    # Where nothing but the text of a message differs, a run need not enter it.
    excused = () if demanded else (ExcusedLines(excuse=next(iter(Excuse)), lines=(2,)),)
    lines = own.lines if demanded else ()
    touched = TouchedFunction(own.model_copy(update={"path": path, "lines": lines, "excused": excused}), path, "f")
    inside = Inside((Effect(path, "f", "changed", (frozenset(),), (), sure=True),))
    both = replace(effects, paths={**effects.paths, path: inside}, functions=(*effects.functions, touched))
    change = replace(moved(), paths=(*moved().paths, ChangedPath(path, PathStatus.MODIFIED)))
    (job, *_) = plan(change, POLICY, effects=both).jobs
    assert [function.path.endswith(expected) for function in job.changed.required] == [True]


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        # A default of a class, a new method, the module's own statements, and a new file beside one that runs.
        ("adam", "class A:\n    x = 1\n", "class A:\n    x = 2\n"),
        ("adam", "class A:\n    x = 1\n", "class A:\n    x = 1\n\n    def step(self):\n        return 1\n"),
        ("adam", "x = 1\n", "x = 2\n"),
        # Of what an import alone runs: a call, a relative import, and a condition around one.
        ("adam", "flag.set(True)\n", "flag.set(False)\n"),
        ("adam", "from .a import x\n", "from .b import x\n"),
        ("adam", "if HAVE:\n    import a\n", "if HAVE and v > 2:\n    import a\n"),
        ("new", None, "def run():\n    return 1\n"),
    ],
)
def test_what_takes_part_in_code_that_jobs_enter_counts_as_entered(path: str, before: str | None, after: str) -> None:
    files = {f"megatron/core/optimizer/{path}.py": compare(before.encode() if before else None, after.encode())}
    effects = with_bump(Effects(), files, measured(**{"0_lora_ddp": ENTERED}), (OLD, NEW))
    assert plan(moved(), POLICY, effects=effects).levels == (0, 1)


def test_what_was_compared_is_said() -> None:
    found = bumped(measured(**{"0_lora_ddp": ENTERED}), **{OPTIMIZER: ("1", "2"), "megatron__core__other": ("1", "2")})
    assert found.notes[-1] == (
        "Compared Megatron-LM 111111111111 with 222222222222: 2 functions in 2 files differ, and measured jobs entered "
        "1 of them. Other folders than megatron/ are in no run."
    )
    assert found.incomplete == ()


@pytest.mark.parametrize("effects", [None, Effects()])
def test_a_bump_that_could_not_be_compared_asks_for_every_level_that_a_rule_names(effects: Effects | None) -> None:
    found = plan(moved(), POLICY, effects=effects)
    assert found.levels == (0, 1, 3)
    assert any("moves from 111111111111 to 222222222222" in sentence for sentence in found.incomplete)
    # GitHub's list of names does not say whether it moves.
    listed = replace(moved(), paths=(ChangedPath(MEGATRON_LM_FOLDER, PathStatus.MODIFIED),))
    assert plan(listed, POLICY).levels == (0, 1, 3)
    assert plan(moved(OLD, OLD), POLICY).levels == (0,)


def test_a_file_that_cannot_be_read_is_judged_by_its_name() -> None:
    broken = compare(b"def run(:\n", b"def run():\n    return 1\n")
    files = {"megatron/core/distributed/fsdp/wrap.py": broken, "megatron/core/optimizer/adam.py": broken}
    maps = measured(**{"0_lora_ddp": ENTERED})
    found = plan(moved(), POLICY, effects=with_bump(Effects(), files, maps, (OLD, NEW)))
    assert found.levels == (0, 1, 3)
    assert sum("could not be compared" in sentence for sentence in found.incomplete) == 2


def test_what_a_run_has_beside_sources_is_judged_by_its_place() -> None:
    old = dict.fromkeys(("megatron/a.py", "megatron/b.py", "setup.py", "docs/a.md", "megatron/optimizer/x.cu"), "1")
    new = {**old, "megatron/a.py": "2", "docs/a.md": "2", "megatron/optimizer/x.cu": "2", "site.py": "1"}
    del new["setup.py"]
    assert other_files(old, new) == ("megatron/optimizer/x.cu", "setup.py", "site.py")


def test_a_file_that_is_no_source_asks_for_what_a_rule_says_of_its_place() -> None:
    def planned(*names: str, **jobs: tuple[str, ...]) -> Plan:
        others = dict.fromkeys(names, "it is not a Python source")
        return plan(moved(), POLICY, effects=with_bump(Effects(), {}, measured(**jobs), (OLD, NEW), others))

    table = planned("megatron/core/distributed/fsdp/table.json")
    assert [int(level) for level in table.levels] == [0, 3]
    place = f"{MEGATRON_LM_FOLDER}/megatron/core/distributed/fsdp/table.json"
    assert table.changed.unread == {place: "it is not a Python source"}
    assert table.incomplete == ()
    # A rule that names functions says nothing of it; one that asks what jobs entered means those beside it.
    assert [int(level) for level in planned("megatron/core/helpers.cpp").levels] == [0]
    kernel = "megatron/core/optimizer/adam.cu"
    assert [int(level) for level in planned(kernel).levels] == [0]
    assert [int(level) for level in planned(kernel, **{"0_lora_ddp": ENTERED}).levels] == [0, 1]


def test_a_document_of_megatron_lm_is_set_aside() -> None:
    policy = POLICY.model_copy(update={"exempt": (Exemption.model_validate(DOCUMENTS),)})
    others = {"megatron/core/README.md": "it is not a Python source"}
    found = plan(moved(), policy, effects=with_bump(Effects(), {}, measured(), (OLD, NEW), others))
    assert found.changed.unread == {}
    assert [item.count for item in found.exempted] == [1]
