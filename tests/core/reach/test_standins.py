"""Names that may be imported in the place of something else: a table of changed names with what they may do."""

import pytest

from verl_e2e.core.reach.other_paths import TreeNames, stand_ins

ROOTS, PACKAGE = ("src/", "more/"), "lib"
FILES = frozenset({"src/lib/__init__.py", "src/lib/a.py", "src/lib/b/__init__.py", "docs/x.md"})


def found(name: str, *added: str, links: dict[str, str] | None = None) -> str:
    """Why a changed name may stand in for something, where the head has some files and links more."""
    base, head = TreeNames(FILES, {}), TreeNames(FILES | {*added}, links or {})
    return stand_ins((name,), (base, head), ROOTS, PACKAGE).get(name, "")


@pytest.mark.parametrize(
    ("name", "added", "links", "reason"),
    (
        ("src/lib/a.py", (), {}, ""),
        ("docs/x.md", (), {}, ""),
        # By the name alone.
        ("src/other.py", (), {}, "next to the package under test"),
        ("src/lib/a.so", (), {}, "in the place of a source file"),
        ("src/lib/a.egg/x.py", (), {}, "in the place of a source file"),
        ("src/lib/__pycache__/a.py", (), {}, "in the place of a source file"),
        (".gitattributes", (), {}, "what a checkout of the sources holds"),
        ("src/lib/.gitattributes", (), {}, "what a checkout of the sources holds"),
        ("docs/.gitattributes", (), {}, ""),
        # Two names for one module.
        ("src/lib/b.py", ("src/lib/b.py",), {}, "a module and a package have one name: src/lib/b"),
        ("more/lib/a.py", ("more/lib/a.py",), {}, "a module and a package have one name"),
        # Links.
        ("src/lib/c", (), {"src/lib/c": "../../docs"}, "it is a link or a submodule"),
        ("src/lib/c", (), {"src/lib/c": ""}, "it is a link or a submodule"),
        ("docs/x.md", (), {"src/lib/c": "../../docs"}, "src/lib/c links to docs"),
        ("tools/x.py", (), {"src/lib/c": "../../docs", "docs": "tools"}, "docs links to tools"),
        ("tools/x.py", (), {"src/lib/c": "../../docs", "other": "tools"}, ""),
        ("tools/x.py", (), {"src/lib/c": "d", "src/lib/d": "c"}, ""),
        ("tools/x.py", (), {f"src/lib/c{n}": f"c{n + 1}" for n in range(60)}, "too many links"),
    ),
)
def test_a_changed_name(name: str, added: tuple[str, ...], links: dict[str, str], reason: str) -> None:
    message = found(name, *added, links=links)
    assert bool(message) == bool(reason)
    assert reason in message
