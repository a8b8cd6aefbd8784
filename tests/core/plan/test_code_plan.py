"""What of a change each job is planned to execute."""

import hashlib
from dataclasses import replace

import pytest

from tests.core.builders import make_job
from tests.core.reach.programs import effects
from verl_e2e.config import load_policy
from verl_e2e.core.model.change import Change, ChangedPath, PathStatus, SubmoduleBump
from verl_e2e.core.model.execution import MOST_FUNCTIONS, MOST_PURPOSES, ChangedCode, ChangedFunction, Side, purpose_of
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.settings import Axis, Value
from verl_e2e.core.plan.code_plan import MOST_OF_JOB
from verl_e2e.core.plan.plan import Plan, plan
from verl_e2e.core.pulls.job_order import MAX_INPUT_CHARS, pack_order
from verl_e2e.core.reach.changed_functions import TouchedFunction
from verl_e2e.core.reach.effects import Effects
from verl_e2e.core.report.plan_text import render_plan_text

POLICY_TEXT = """
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image: {name: verlai/verl, tag: latest}
checkpoint: {model_id: tiny/dense}
rules:
  - {name: all, paths: [src/], levels: [0, 1], reason: unread source}
  - {name: submodule, paths: [3rdparty/], levels: [0], reason: models are built from it}
reach:
  package: p
  roots: [src/]
  rules:
    - {name: reached code, levels: [0], reason: verl runs it}
    - {name: export, symbols: ["*export*"], levels: [1], reason: it is saved, variants: [0-amplified-lora]}
    - {name: experts, words: [moe], levels: [4], reason: experts are idle, features: [moe]}
    - {name: contexts, words: [cp], levels: [2], reason: contexts, features: [packed_seq], variants: [2-cp]}
    - {name: shards, symbols: [shard], levels: [2], reason: shards}
families:
  - {family: small, paths: [src/p/small.py], features: [moe], checkpoint: {model_id: tiny/moe, features: [moe]}}
  - {family: large, paths: [src/p/large.py], features: [moe], checkpoint: {model_id: large/moe, features: [moe]}}
features:
  - {feature: moe, reason: by the checkpoint}
"""
POLICY = load_policy(POLICY_TEXT, "policy.yml")
A, SMALL, LARGE = "src/p/a.py", "src/p/small.py", "src/p/large.py"
BASE = {
    "src/p/__init__.py": "from p.a import run\nimport p.small\nimport p.large\n",
    A: "from p.small import small\nfrom p.large import large\n"
    "def run(x):\n    export(x)\n    shard(x)\n    split(x)\n    small(x)\n    large(x)\n    return 1\n"
    "def export(x):\n    return 1\ndef shard(x):\n    return 1\ndef split(cp):\n    return 1\n"
    "def spare():\n    return 1\n",
    SMALL: "def small(moe):\n    return 1\n",
    LARGE: "def large(moe):\n    return 1\n",
}


def change(*paths: str) -> Change:
    return Change("a" * 40, "b" * 40, "a" * 40, tuple(ChangedPath(path, PathStatus.MODIFIED) for path in paths))


def edited(*functions: str) -> dict[str, str | None]:
    """The files in which these functions return something else."""
    files = dict(BASE)
    for name in functions:
        for path, text in files.items():
            head, found, body = text.partition(f"def {name}(")
            if found:
                parameters, _, rest = body.partition("    return 1")
                moe = "moe" if "moe" in parameters else "cp" if "cp" in parameters else "2"
                files[path] = f"{head}{found}{parameters}    return {moe}{rest}"
    return {path: text for path, text in files.items() if text != BASE[path]}


def planned(files: dict[str, str | None], *asked: Level, known: Effects | None = None) -> Plan:
    found = known if known is not None else effects(BASE, files, ("p", "run"))
    return plan(change(*files), POLICY, asked, found)


def names(code: ChangedCode) -> list[str]:
    return [function.symbol for function in code.functions]


def by_job(made: Plan) -> dict[str, list[str]]:
    return {job.id: names(job.changed) for job in made.jobs}


def test_each_job_is_planned_for_the_functions_that_its_reasons_name() -> None:
    made = planned(edited("run", "export", "shard", "split", "spare"))
    assert by_job(made) == {
        "0-lora-ddp": ["run", "export", "shard", "split"],
        # Its rule asks for it by name.
        "0-amplified-lora": ["export"],
        "1-resume": ["export"],
        "2-dense": ["shard", "split"],
        "2-cp": ["split"],
    }
    assert names(made.changed) == ["run", "export", "shard", "split", "spare"]
    assert [function.symbol for function in made.changed.functions if not function.reached] == ["spare"]


def test_a_job_that_merges_its_adapters_is_not_planned_for_what_exports_them_by_themselves() -> None:
    path = "src/p/models/conversion/peft_bridge.py"
    code = "def stream_adapter_weights(moe):\n    return 1\ndef other_export(moe):\n    return 1\n"
    base = {**BASE, path: code, A: f"from p.models.conversion.peft_bridge import *\n{BASE[A]}"}
    base[A] = base[A].replace("    return 1\n", "    stream_adapter_weights(x)\n    other_export(x)\n    return 1\n", 1)
    base[A] = base[A].replace("import *", "import other_export, stream_adapter_weights")
    base |= {"src/p/models/__init__.py": "", "src/p/models/conversion/__init__.py": ""}
    files: dict[str, str | None] = {path: code.replace("return 1", "return moe")}
    made = planned(files, known=effects(base, files, ("p", "run")))
    assert by_job(made)["0-lora-ddp"] == ["stream_adapter_weights", "other_export"]
    assert by_job(made)["4-feature-small"] == ["other_export"]


def test_a_family_s_job_is_planned_for_that_family_alone() -> None:
    made = planned(edited("small", "large", "run"))
    assert by_job(made) == {
        "0-lora-ddp": ["run", "large", "small"],
        "4-feature-small": ["small"],
        "4-feature-large": ["large"],
    }
    small = next(function for function in made.changed.functions if function.symbol == "small")
    assert small.condition == "it is about moe, which a run must have switched on"
    assert next(function for function in made.changed.functions if function.symbol == "run").condition == ""


@pytest.mark.parametrize(
    ("alone", "reason", "families"),
    [(True, "no class of it", "small"), (True, None, ""), (False, "no class of it", "")],
)
def test_a_function_of_families_that_no_host_can_run_says_so(alone: bool, reason: str | None, families: str) -> None:
    small, large = POLICY.families
    small = small.model_copy(update={"named": None, "no_synthetic": reason})
    # A second family of the same file has a model, so a run may enter it.
    large = large if alone else large.model_copy(update={"paths": small.paths})
    policy = POLICY.model_copy(update={"families": (small, large)})
    files = edited("small", "run")
    made = plan(change(*files), policy, (), effects(BASE, files, ("p", "run")))
    found = {function.symbol: function for function in made.changed.functions}
    assert (found["run"].uncoverable, found["small"].uncoverable) == ("", families)
    assert ("no host can run small" in found["small"].condition) is bool(families)


def test_a_function_that_other_code_takes_from_such_a_file_must_run() -> None:
    small, large = POLICY.families
    policy = POLICY.model_copy(
        update={"families": (small.model_copy(update={"named": None, "no_synthetic": "no class of it"}), large)}
    )
    files = edited("small", "run")
    found = effects(BASE, files, ("p", "run"))
    (path,) = {item.path for item in found.functions if item.symbol == "small"}
    for symbols, families in ((frozenset({"small"}), ""), (frozenset({"other"}), "small")):
        made = plan(change(*files), policy, (), replace(found, taken={path: symbols}))
        assert {function.uncoverable for function in made.changed.functions if function.symbol == "small"} == {families}


def test_a_job_knows_the_words_of_its_changed_statements() -> None:
    made = planned(edited("run", "small", "split"))
    words = {job.id: job.changed_words for job in made.jobs}
    assert {"moe", "cp"} <= words["0-lora-ddp"]
    assert ("moe" in words["2-dense"], "cp" in words["2-dense"]) == (False, True)


def test_a_level_that_another_one_needs_is_planned_for_nothing() -> None:
    reach = POLICY.reach
    assert reach is not None
    export = reach.rules[1].model_copy(update={"variants": ()})
    policy = POLICY.model_copy(update={"reach": reach.model_copy(update={"rules": (export,)})})
    files = edited("export")
    made = plan(change(*files), policy, (), effects(BASE, files, ("p", "run")))
    assert by_job(made) == {"0-lora-ddp": [], "1-resume": ["export"]}


def test_a_level_that_is_requested_by_hand_is_planned_for_all_that_is_reached() -> None:
    made = planned(edited("run", "spare"), Level.LEARNING_SIGNAL)
    assert by_job(made) == {"0-lora-ddp": ["run"], "5-signal": ["run"]}
    assert by_job(planned({}, Level.SMOKE, known=Effects())) == {"0-lora-ddp": []}


def test_the_merge_base_s_side_goes_with_each_job() -> None:
    files = edited("export")
    files[A] = str(files.get(A)).replace("    shard(x)\n", "").replace("def shard(x):\n    return 1\n", "")
    made = planned(files)
    smoke, resume = made.jobs[0].changed, next(job for job in made.jobs if job.id == "1-resume").changed
    assert [(function.symbol, function.side) for function in smoke.functions] == [
        ("run", Side.HEAD),
        ("export", Side.HEAD),
        ("run", Side.MERGE_BASE),
        ("shard", Side.MERGE_BASE),
    ]
    assert [function.symbol for function in smoke.on_merge_base().functions] == ["run", "export", "shard"]
    assert [(function.symbol, function.lines) for function in resume.on_merge_base().functions] == [("export", (11,))]


def test_files_that_could_not_be_read_are_named_where_their_level_is() -> None:
    unread = Effects(unread={A: "it is not Python"}, unknown={A: "it is not Python"})
    made = planned(edited("run"), known=unread)
    # Verl imports it, so it hides at least one function: the gate must not open as if there were none.
    assert made.changed == ChangedCode(unread={A: "it is not Python"}, left_out=1)
    assert {job.id: job.changed.left_out for job in made.jobs} == {"0-lora-ddp": 1, "1-resume": 1}
    unimported = planned(edited("run"), known=Effects(unread={A: "it is not Python"}))
    assert unimported.changed == ChangedCode(unread={A: "it is not Python"})
    assert {job.id: dict(job.changed.unread) for job in made.jobs}["1-resume"] == {A: "it is not Python"}
    by_name = plan(change(A, "docs/x.md", "src/p/data.json"), POLICY)
    no_source = "it is not Python source, and whether a run reads it is not recorded"
    assert dict(by_name.changed.unread) == {
        "docs/x.md": no_source,
        A: "the sources were not looked into",
        "src/p/data.json": no_source,
    }
    assert dict(by_name.jobs[0].changed.unread) == dict(by_name.changed.unread)
    without = POLICY.model_copy(update={"reach": None})
    assert plan(change(A), without).changed == ChangedCode()


def test_a_difference_that_belongs_to_no_function_is_named() -> None:
    twice = "class Own:\n    x = 1\nclass Own:\n    x = 2\n"
    base = {**BASE, A: f"{BASE[A]}{twice}".replace("return 1", "return Own", 1)}
    files: dict[str, str | None] = {
        A: base[A].replace(twice, twice.replace("1", "3").replace("2", "1").replace("3", "2"))
    }
    made = plan(change(A), POLICY, (), effects(base, files, ("p", "run")))
    why = "no function differs, only its name or the order of what it defines, and no record shows that"
    assert dict(made.changed.unread) == {A: why}
    assert dict(made.jobs[0].changed.unread) == {A: why}


def test_what_no_reason_names_is_planned_for_level_0() -> None:
    files = edited("export")
    found = effects(BASE, files, ("p", "run"))
    reach = POLICY.reach
    assert reach is not None
    export = reach.rules[1].model_copy(update={"variants": ()})
    policy = POLICY.model_copy(update={"reach": reach.model_copy(update={"rules": (export,)})})
    unnamed = replace(found, functions=(*found.functions, touched(40, 1)))
    made = plan(change(A), policy, (), unnamed)
    assert by_job(made)["0-lora-ddp"] == ["f40"]
    assert by_job(made)["1-resume"] == ["export"]


def test_what_lies_behind_a_file_that_could_not_be_read_counts_as_reached() -> None:
    files = edited("spare")
    found = effects(BASE, files, ("p", "run"))
    doubted = Effects(functions=found.functions, unknown={A: "what reaches it is not known"})
    assert [function.reached for function in planned(files, known=doubted).changed.functions] == [True]


@pytest.mark.parametrize(
    ("bump", "moves"),
    (
        (SubmoduleBump("1" * 40, "2" * 40), "it moves from 111111111111 to 222222222222"),
        (SubmoduleBump(None, "2" * 40), "it moves from nothing to 222222222222"),
    ),
)
def test_a_moved_submodule_is_named(bump: SubmoduleBump, moves: str) -> None:
    core, other = (
        ChangedPath(f"3rdparty/{name}", PathStatus.MODIFIED, submodule=bump) for name in ("Megatron-LM", "x")
    )
    made = plan(Change("a" * 40, "b" * 40, "a" * 40, (core, other)), POLICY, (), Effects())
    assert dict(made.changed.unread) == {
        "3rdparty/Megatron-LM": f"{moves}, and its functions were not compared",
        "3rdparty/x": "it is not Python source, and whether a run reads it is not recorded",
    }
    assert dict(made.jobs[0].changed.unread) == dict(made.changed.unread)
    assert [sentence.partition(":")[0] for sentence in made.incomplete] == [
        f"3rdparty/Megatron-LM {moves[3:]}",
        f"3rdparty/x {moves[3:]}",
    ]


def touched(number: int, lines: int, *, reached: bool = True) -> TouchedFunction:
    first = 1 + number * (lines + 1)
    function = ChangedFunction(
        path=A,
        symbol=f"f{number}",
        first_line=first,
        last_line=first + lines,
        lines=tuple(range(first + 1, first + 1 + lines)),
        reached=reached,
    )
    return TouchedFunction(function, A, f"f{number}")


def test_what_is_too_much_is_counted() -> None:
    functions, lines = MOST_OF_JOB
    reasons = effects(BASE, edited("run"), ("p", "run"))
    many = replace(reasons, functions=tuple(touched(number, 1) for number in range(functions + 2)))
    job = planned({A: ""}, known=many).jobs[0].changed
    assert (len(job.functions), job.left_out) == (functions, 2)
    long = replace(reasons, functions=tuple(touched(number, lines // 2) for number in range(3)))
    job = planned({A: ""}, known=long).jobs[0].changed
    assert (names(job), job.left_out) == (["f0", "f1"], 1)
    # What verl reaches is kept before the rest.
    rest = tuple(touched(number, 1, reached=number > 0) for number in range(MOST_FUNCTIONS + 1))
    whole = planned({A: ""}, known=replace(reasons, functions=rest)).changed
    assert (names(whole)[0], whole.left_out) == ("f1", 1)
    unread = Effects(unread={f"src/p/x{number}.py": "why" for number in range(MOST_FUNCTIONS + 2)})
    assert planned({}, known=unread).changed.left_out == 2


def test_the_largest_job_fits_into_the_inputs_of_a_workflow() -> None:
    functions, lines = MOST_OF_JOB
    each = lines // functions
    path = "src/megatron/bridge/models/conversion/param_mapping.py"
    found = []
    for number in range(functions):
        name = f"Mapping{hashlib.sha256(str(number).encode()).hexdigest()[:12]}.hf_to_megatron_{number}"
        # Lines with gaps, as those of a real change.
        own = tuple(sorted({1 + number * 97 + (line * line * 7 + number) % 89 for line in range(each)}))
        function = ChangedFunction(
            path=path, symbol=name, first_line=1 + number * 97, last_line=96 + number * 97, lines=own
        )
        base = function.model_copy(update={"side": Side.MERGE_BASE})
        found += [TouchedFunction(function, A, "run"), TouchedFunction(base, A, "run", earlier=True)]
    job = planned({A: ""}, known=replace(effects(BASE, edited("run"), ("p", "run")), functions=tuple(found))).jobs[0]
    assert len(job.changed.functions) == functions
    texts = [hashlib.sha512(str(number).encode()).hexdigest() * 4 for number in range(MOST_PURPOSES)]
    touched = [ChangedFunction(path=path, symbol=text[:60], first_line=1, last_line=9) for text in texts]
    settings: dict[Axis, Value] = {Axis.ADAPTER_TARGETS: "linear_qkv,linear_proj", Axis.TENSOR: 2}
    purposes = tuple(purpose_of(item, range(500), text, settings) for item, text in zip(touched, texts, strict=True))
    order = pack_order(make_job().model_copy(update={"changed": job.changed, "purposes": purposes}), "a" * 40, "b" * 32)
    assert len(order) < MAX_INPUT_CHARS * 0.9


@pytest.mark.parametrize(
    ("function", "rule", "levels", "expected"),
    (
        # Level 1 runs the policy's own model, which has no experts and is of no family.
        ("small", "moe", (1, 4), [(1, "runs no model of small"), (1, "runs no model with moe")]),
        ("run", "moe", (1, 4, 5), [(1, "runs no model with moe"), (5, "runs no model with moe")]),
        # Level 2 gets a job with experts.
        ("run", "moe", (2, 4), []),
        # What models do not have is a setting.
        ("export", "cp", (1, 2), []),
        # Level 4 has a job on a model of the family.
        ("large", "moe", (4,), []),
        # What verl does not reach is not asked for.
        ("spare", "moe", (1, 4), []),
    ),
)
def test_what_no_job_of_a_level_can_show_is_said(
    function: str, rule: str, levels: tuple[int, ...], expected: list[tuple[int, str]]
) -> None:
    feature = "moe" if rule == "moe" else "packed_seq"
    asked = f"{{name: named, symbols: [{function}], levels: {list(levels)}, reason: named, features: [{feature}]}}"
    declared = POLICY_TEXT.replace("{model_id: tiny/dense}", "{model_id: tiny/dense, features: []}")
    start = declared.index("    - {name: reached code")
    policy = load_policy(f"{declared[:start]}    - {asked}\n{declared[declared.index('families:') :]}", "policy.yml")
    # A change of more than one family's files is run on the policy's own model.
    files = edited(function, "shard")
    found = effects(BASE, files, ("p", "run"))
    made = plan(change(*files), policy, (), found)
    assert [(int(item.level), item.reason) for item in made.unshown] == expected
    path = next(name for name in BASE if f"def {function}(" in BASE[name])
    assert all(item.places == (f"{path}:{function}",) for item in made.unshown)
    text = render_plan_text(made)
    for level, reason in expected:
        assert f"  level {level} {reason}: {path}:{function}\n" in text
    assert ("What the planned jobs cannot show" in text) == bool(expected)
