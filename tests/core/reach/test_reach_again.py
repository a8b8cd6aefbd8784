"""Taking the reach of one tree over for another: only where nothing differs that it rests on."""

import pytest

from tests.core.reach.programs import entries_of, program, reach
from verl_e2e.core.reach.program import Program, Views
from verl_e2e.core.reach.reader import summarize
from verl_e2e.core.reach.walk import Reach

FILES = {
    "src/p/__init__.py": "",
    "src/p/a.py": "from p.b import K\nimport p.perhaps\ndef f(x):\n    K().m()\n    return x.n\n",
    "src/p/b.py": "class K:\n    def m(self): pass\n    def n(self): pass\n",
    "src/p/aside.py": "def g(): pass\n",
}


@pytest.mark.parametrize(
    ("path", "text", "same"),
    (
        ("src/p/a.py", FILES["src/p/a.py"], True),
        ("src/p/a.py", "# lines move\n\n" + FILES["src/p/a.py"].replace("K().m()", "K().m(1)"), True),
        ("src/p/a.py", FILES["src/p/a.py"].replace("K().m()", "K().m('data/a.json', 'import numba')"), True),
        ("src/p/a.py", FILES["src/p/a.py"].replace("K().m()", "K().n()"), False),
        ("src/p/b.py", FILES["src/p/b.py"] + "    def other(self): pass\n", False),
        ("src/p/b.py", None, False),
        ("src/p/aside.py", "def h(): pass\n", True),
        ("src/p/aside.py", None, True),
        ("src/p/new.py", "from p.b import K\n", True),
        ("src/p/perhaps.py", "def h(): pass\n", False),
        ("src/p/perhaps/inner.py", "def h(): pass\n", False),
    ),
)
def test_reach_is_taken_over_where_what_it_rests_on_is_the_same(path: str, text: str | None, same: bool) -> None:
    entries = entries_of(("p.a", "f"))
    head = {name: content for name, content in {**FILES, path: text}.items() if content is not None}
    known, new = reach(FILES, ("p.a", "f")), program(head)
    found = known.in_program(new, entries)
    assert (found is not None) is same
    if found is not None:
        fresh = Reach(new, entries)
        assert list(found.steps.items()) == list(fresh.steps.items())
        assert (found.live, found.imported, found.entries) == (fresh.live, fresh.imported, fresh.entries)
        assert found.definers("n") == fresh.definers("n") == known.definers("n")


@pytest.mark.parametrize(("old", "new"), (("src/p/b.py", "src/p/b/__init__.py"), ("src/p/b/__init__.py", "src/p/b.py")))
def test_a_module_that_becomes_a_package_is_another_one(old: str, new: str) -> None:
    rest = {path: text for path, text in FILES.items() if path != "src/p/b.py"}
    before, after = ({**rest, path: FILES["src/p/b.py"]} for path in (old, new))
    assert reach(before, ("p.a", "f")).in_program(program(after), entries_of(("p.a", "f"))) is None


def test_other_entries_lead_elsewhere() -> None:
    assert reach(FILES, ("p.a", "f")).in_program(program(FILES), entries_of(("p.b", "K"))) is None


@pytest.mark.parametrize(
    ("head", "same"),
    (
        (FILES, True),
        ({**FILES, "src/p/new.py": ""}, False),
        (dict(reversed(FILES.items())), False),
        ({**FILES, "src/p/aside.py": "def h(): pass\n"}, False),
    ),
)
def test_a_search_through_all_modules_rests_on_all_of_them_and_their_order(head: dict[str, str], same: bool) -> None:
    entries = entries_of(("p.gone", "g"))
    assert (Reach(program(FILES), entries).in_program(program(head), entries) is not None) is same


def test_programs_share_the_tables_of_modules_that_have_the_same_summary() -> None:
    views, summaries = Views(most=2), [summarize(b"def f(): pass\n"), summarize(b"def g(): pass\n")]
    first = Program({"p.a": "src/p/a.py"}, lambda _: summaries[0], views).view("p.a")
    same = Program({"p.a": "other/p/a.py"}, lambda _: summaries[0], views).view("p.a")
    assert first is not None
    assert same is first
    package = Program({"p.a": "src/p/a/__init__.py"}, lambda _: summaries[0], views).view("p.a")
    assert package is not first
    changed = Program({"p.a": "src/p/a/__init__.py"}, lambda _: summaries[1], views).view("p.a")
    assert changed is not None
    assert [*changed.symbols] == ["g", ""]
    known = [views.of(name, summaries[0], package=False) for name in "xyz"]
    assert views.of("x", summaries[0], package=False) is not known[0]
