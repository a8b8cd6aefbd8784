"""Which cells need not run over a head, by what they entered at the base."""

import pytest

from verl_e2e.core.compare.rehearsal import IMPORTS, CellRecord
from verl_e2e.core.compare.unaffected import carried_code, unaffected_cells

FILE, LAZY, UNUSED = "src/a.py", "src/lazy.py", "src/unused.py"
TEXT = b'''import os

LIMIT = 1


@register
class Model:
    """A model."""

    rank = 2

    def build(self, rank=1):
        """Build it."""
        return rank + LIMIT

    def never(self):
        # fmt: off
        return 0


def helper():
    def inner():
        return 1

    return inner()


def at_import():
    return 3


VALUE = at_import()
'''
LINES = {
    # The imports enter every statement of the module, and one function.
    IMPORTS: {FILE: ((1, 30),)},
    "plain": {FILE: ((12, 14),)},
    "lora": {FILE: ((20, 24),), LAZY: ((1, 9),)},
    "lora-tp2": {FILE: ((20, 24),)},
    "other": {"src/b.py": ((1, 1),)},
    "hang": {"src/b.py": ((1, 1),)},
    "raises": {"src/b.py": ((1, 1),)},
}
FUNCTIONS = {
    IMPORTS: [f"{FILE}:<module>", f"{FILE}:at_import"],
    "plain": [f"{FILE}:Model.build"],
    "lora": [f"{FILE}:helper", f"{FILE}:helper.<locals>.inner", f"{LAZY}:f"],
    "lora-tp2": [f"{FILE}:helper.<locals>.inner"],
}
ERRORS = {"hang": "Hang", "raises": "KeyError"}
AGREES_WITH = {"lora-tp2": "lora", "plain": ""}
ALWAYS = {"other", "raises"}


def base() -> dict[str, CellRecord]:
    return {
        name: CellRecord.model_validate(
            {
                "cell": name,
                "error": {"type": ERRORS[name], "text": "x", "at": ""} if name in ERRORS else None,
                "entered": {"lines": lines, "functions": FUNCTIONS.get(name, [])},
            }
        )
        for name, lines in LINES.items()
    }


def unaffected(*edits: tuple[bytes, bytes]) -> set[str]:
    text = TEXT
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return set(unaffected_cells(base(), {FILE: (TEXT, text)}, AGREES_WITH))


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        # The body of a function affects what enters it, or a function in it.
        (b"rank + LIMIT", b"rank - LIMIT", {"lora", "lora-tp2", *ALWAYS}),
        (b"        return 1\n", b"        return 2\n", {"plain", *ALWAYS}),
        # Blanks, comments and the text of a function do nothing.
        (b"import os\n", b"# A comment.\nimport os\n", {"plain", "lora", "lora-tp2", *ALWAYS}),
        (b"Build it.", b"Build the model.", {"plain", "lora", "lora-tp2", *ALWAYS}),
        # What no cell entered by its name may still have run in a process or thread of its own.
        (b"return 0", b"return 9", {*ALWAYS}),
        (b"return 0", b"return jit(9)", set()),
        (b"# fmt: off", b"# jit", set()),
        # What is a generator is seen only once it has begun.
        (b"return 0", b"yield 0", set()),
        # What runs at import may change everything.
        (b"return 3", b"return 4", set()),
        (b"LIMIT = 1", b"LIMIT = 2", set()),
        (b"rank=1", b"rank=2", set()),
        (b"rank = 2", b"rank = 3", set()),
        (b"@register\n", b"", set()),
        (b"class Model:", b"class Model(dict):", set()),
        (b"def never(self)", b"def always(self)", set()),
        (b"import os", b"import sys", set()),
        (b"import os", b"import os (", set()),
    ],
)
def test_a_cell_is_unaffected_that_enters_nothing_that_differs(old: bytes, new: bytes, same: set[str]) -> None:
    assert unaffected((old, new)) == same


def test_a_file_that_only_cells_import_affects_those_that_do() -> None:
    same = unaffected_cells(base(), {LAZY: (b"A = 1\n", b"A = 2\n"), UNUSED: (b"", b"A = 1\n")}, AGREES_WITH)
    assert same == {"plain", *ALWAYS}


def test_a_cell_runs_with_the_one_that_it_is_held_against() -> None:
    records = base()
    records["alone"] = records["other"].model_copy(update={"cell": "alone"})
    both = {"plain": "other", "other": "alone", "alone": "", "lora-tp2": "lora"}
    affects_plain = {FILE: (TEXT, TEXT.replace(b"rank + LIMIT", b"rank"))}
    assert unaffected_cells(records, affects_plain, both) == {"lora", "lora-tp2", "raises"}


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [("src/table.json", b"1", b"2"), (UNUSED, None, b"A = 1\n"), (UNUSED, b"A = 1\n", None)],
    ids=["not Python", "new", "gone"],
)
def test_nothing_is_unaffected_by_what_cannot_be_told(path: str, old: bytes | None, new: bytes | None) -> None:
    assert unaffected_cells(base(), {path: (old, new)}, AGREES_WITH) == set()


@pytest.mark.parametrize("error", [None, {"type": "KeyError", "text": "x", "at": ""}])
def test_nothing_is_unaffected_without_the_imports_of_the_base(error: dict[str, str] | None) -> None:
    records = base()
    if error is None:
        del records[IMPORTS]
    else:
        records[IMPORTS] = CellRecord.model_validate({"cell": IMPORTS, "error": error})
    assert unaffected_cells(records, {UNUSED: (b"", b"A = 1\n")}, AGREES_WITH) == set()


def test_what_a_carried_record_entered_is_counted_in_the_lines_of_the_head() -> None:
    new = TEXT.replace(b"import os\n", b"import os\n# A comment.\n").replace(b'        """Build it."""\n', b"")
    found = carried_code(base()["plain"].entered, {FILE: (TEXT, new)})
    assert found.lines == {FILE: ((13, 14),)}
    assert found.functions == base()["plain"].entered.functions
    assert carried_code(base()["other"].entered, {FILE: (TEXT, new)}).lines == LINES["other"]


def test_lines_are_carried_function_by_function_and_not_by_what_looks_alike() -> None:
    same = "".join(f"    {name} = run({name})\n" for name in "abcdef")
    old = f"def f(x):\n    if x:\n        return\n{same}def g(x):\n    return x\n"
    commented = same.replace("\n", "\n    # A word.\n")
    new = f"def f(x):\n    if x:\n        return\n{commented}def g(x):\n{same}    return x\n"
    entered = CellRecord.model_validate({"cell": "c", "error": None, "entered": {"lines": {FILE: [[1, 9]]}}}).entered
    found = carried_code(entered, {FILE: (old.encode(), new.encode())})
    assert found.lines[FILE][-1][1] < new[: new.index("def g")].count("\n") + 1


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        ({"type": "RuntimeError", "text": "x", "at": ""}, {}),
        ({"type": "Hang", "text": "x", "at": ""}, {"src/b.py": [[1, 1]]}),
    ],
)
def test_a_cell_that_ended_without_telling_what_it_entered_runs_again(error: object, lines: object) -> None:
    records = base()
    records["other"] = CellRecord.model_validate({"cell": "other", "error": error, "entered": {"lines": lines}})
    assert unaffected_cells(records, {UNUSED: (b"", b"A = 1\n")}, {}) == {"plain", "lora", "lora-tp2", "raises"}


def test_what_saves_and_loads_may_run_in_processes_of_its_own() -> None:
    path = "src/checkpoint/writer.py"
    records = base()
    for name, functions in ((IMPORTS, []), ("plain", [f"{path}:write"]), ("other", [])):
        known = records[name].model_dump(mode="json")
        known["entered"]["lines"][path] = [[1, 1]]
        known["entered"]["functions"] = [*known["entered"]["functions"], *functions]
        records[name] = CellRecord.model_validate(known)
    differing = {path: (b"def write():\n    return 1\n", b"def write():\n    return 2\n")}
    assert unaffected_cells(records, differing, {}) == {"lora", "lora-tp2", "raises"}


def test_nothing_is_unaffected_by_a_file_that_was_no_python_or_by_imports_that_tell_nothing() -> None:
    assert unaffected_cells(base(), {UNUSED: (b"x = (\n", b"x = 1\n")}, {}) == set()
    records = base()
    records[IMPORTS] = CellRecord.model_validate({"cell": IMPORTS, "error": None})
    assert unaffected_cells(records, {UNUSED: (b"", b"A = 1\n")}, {}) == set()
