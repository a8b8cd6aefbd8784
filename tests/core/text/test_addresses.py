"""Each page that a message names becomes an address, and no page of another repository does."""

import ast
import re
import tomllib

import pytest

from tests.fakes.places import ROOT
from verl_e2e.core.text.escape import HOME, PAGES, as_code, with_addresses, with_links

TRIAGE = f"{HOME}/blob/main/docs/triage.md"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("See docs/triage.md#adapter-path.", f"See {TRIAGE}#adapter-path."),
        ("(docs/triage.md)", f"({TRIAGE})"),
        ("docs/triage.md, docs/triage.md", f"{TRIAGE}, {TRIAGE}"),
        ("see docs/runners/ray.md", f"see {HOME}/blob/main/docs/runners/ray.md"),
        (f"{TRIAGE}#peft", f"{TRIAGE}#peft"),
        ("docs/changes.md of Bridge", "docs/changes.md of Bridge"),
        ("src/docs/triage.md", "src/docs/triage.md"),
        ("`docs/triage.md`", "`docs/triage.md`"),
    ],
)
def test_a_page_of_ours_is_an_address_on_a_terminal(text: str, shown: str) -> None:
    assert with_addresses(text) == shown
    assert with_addresses(shown) == shown


def test_a_page_of_ours_is_a_link_in_markdown() -> None:
    assert with_links(as_code("See docs/triage.md#peft.")) == f"See [`docs/triage.md#peft`]({TRIAGE}#peft)."
    assert with_links(as_code("See docs/other.md.")) == "See docs/other.md."


def test_the_address_is_that_of_the_metadata_and_each_page_is_there() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Homepage"] == HOME
    assert [page for page in PAGES if not (ROOT / f"docs/{page}.md").is_file()] == []


def test_no_message_names_a_page_without_an_address() -> None:
    """Every page in a string that is not a docstring is among those that get one, and every one of those is named."""
    named = set()
    for path in (ROOT / "bot/verl_e2e").rglob("*.py"):
        tree = ast.parse(path.read_text())
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        nodes = [node for node in ast.walk(tree) if isinstance(node, documented) and node.body]
        # A docstring, and a string below a field, is read in the code.
        inner = {id(item.value) for node in nodes for item in node.body if isinstance(item, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
                named |= set(re.findall(r"(?<![\w./`-])docs/([\w/-]+)\.md", node.value))
    # The stand-in's own page, and the source of a rule of triage in another repository.
    assert named - {"changes", "Error"} == set(PAGES)
