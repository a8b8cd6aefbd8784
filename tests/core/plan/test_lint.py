"""What of a policy says nothing about a tree: a table of rules with the finding of each."""

from datetime import date

import pytest

from verl_e2e.config import load_policy
from verl_e2e.core.plan.lint import ToFix, lint_policy, lint_quarantine
from verl_e2e.core.plan.policy import Policy

DIGEST = "sha256:" + "0" * 64
SYMBOLS = {"src/a.py": ("f", "Maker.make"), "src/b.py": ("g",)}
PATHS = (*SYMBOLS, "docs/a.md")
WORDS = ("loss", "scale")
NO_SOURCE = "its paths meet no source file that is looked into"
NO_SYMBOL = "its symbols meet none below its paths"
NO_WORD = "its words stand nowhere in the sources"


def policy(*, rules: str = "", exempt: str = "", families: str = "", reach: str | None = None) -> Policy:
    """A policy with nothing to find but what is given, each the entries of one list in YAML."""
    lines = [
        "schema: 1",
        "verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}",
        f"image: {{name: verlai/verl, tag: latest, digest: '{DIGEST}'}}",
        "checkpoint: {model_id: tiny/dense, weights_gib: 1, features: []}",
        f"exempt: [{exempt}]",
        f"rules: [{rules}]",
        f"families: [{families}]",
    ]
    if reach is not None:
        lines.append(f"reach: {{package: src, roots: [src], rules: [{reach}]}}")
    return load_policy("\n".join(lines), "policy.yml")


SOURCES = "{name: sources, paths: [src/], levels: [0], reason: imported}"
DOCS = "{name: docs, paths: [docs/], reason: no run reads it}"


@pytest.mark.parametrize(
    ("given", "expected"),
    (
        (policy(rules=SOURCES, exempt=DOCS), ()),
        (policy(rules=SOURCES), ("docs/a.md: nothing judges it, so a change of it asks for level 0",)),
        # What is looked into is judged by its symbols.
        (policy(exempt=DOCS), ()),
        (
            policy(rules="{name: gone, paths: [gone/], levels: [0], reason: imported}", exempt=DOCS),
            ("gone: its paths meet no file of this commit",),
        ),
        (
            policy(exempt=DOCS + ", {name: none, paths: [none/], reason: no run reads it}"),
            ("none: its paths meet no file of this commit",),
        ),
        (
            policy(exempt=DOCS, families="{family: lost, paths: [lost/]}, {family: kept, paths: [src/]}"),
            ("family lost: its paths meet no file of this commit",),
        ),
    ),
)
def test_paths_that_meet_no_file_and_files_that_nothing_judges(given: Policy, expected: tuple[str, ...]) -> None:
    assert lint_policy(given, PATHS, SYMBOLS, WORDS) == tuple(f"policy.yml: {finding}" for finding in expected)


@pytest.mark.parametrize(
    ("tests", "missing"),
    ((["src/a.py"], []), (["src/a.py::test_x", "src/"], []), (["src/gone.py::test_x", "sr"], ["src/gone.py", "sr"])),
)
def test_bridge_tests_that_the_commit_does_not_have_are_named(tests: list[str], missing: list[str]) -> None:
    given = policy(exempt=DOCS).model_copy(update={"bridge_tests": tuple(tests)})
    found = lint_policy(given, {*PATHS, "src/a.py"}, SYMBOLS, WORDS)
    assert [finding for finding in found if "bridge_tests" in finding] == [
        f"policy.yml: bridge_tests: this commit has no {file}; correct or remove it" for file in missing
    ]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    (
        ("", ""),
        ("paths: [docs/]", NO_SOURCE),
        ("paths: [src/b.py]", ""),
        ("symbols: [Maker.make]", ""),
        ("symbols: [other]", NO_SYMBOL),
        ("symbols: [f], paths: [src/b.py]", NO_SYMBOL),
        # A symbol may match on the chain from verl, and an import is not a symbol of the file.
        ("symbols: [other], through: [f]", ""),
        ("symbols: [other], imports: [torch]", ""),
        ("words: [sca*]", ""),
        ("words: [mtp]", NO_WORD),
    ),
)
def test_rules_for_symbols_that_meet_nothing(conditions: str, expected: str) -> None:
    rule = f"{{name: rule, levels: [0], reason: reached, {conditions}}}"
    found = lint_policy(policy(exempt=DOCS, reach=rule), PATHS, SYMBOLS, WORDS)
    assert found == ((f"policy.yml: rule: {expected}",) if expected else ())


def test_an_entry_of_the_quarantine_that_does_not_count_today_is_named() -> None:
    entry = "quarantine: [{{cause: 'log:network', until: {}, reason: a switch, link: 'https://x.example/1'}}]"
    text = f"policy.yml: quarantine of log:network until {'{}'}"

    def found(until: str) -> tuple[ToFix, ...]:
        lines = ["schema: 1", "verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}", "image: {name: v, tag: l}"]
        lines += ["checkpoint: {model_id: tiny/dense}", "rules: []", entry.format(until)]
        return lint_quarantine(load_policy("\n".join(lines), "policy.yml"), date(2026, 11, 23))

    assert found("2026-11-23") == found("2027-02-21") == ()
    expired, far = "2026-11-22", "2027-02-22"
    assert found(expired) == (
        ToFix(f"{text.format(expired)} has expired and no longer counts", "remove it, see https://x.example/1"),
    )
    assert found(far) == (
        ToFix(
            f"{text.format(far)} does not count yet, for its last day is more than 90 days away",
            "give a day until 2027-02-21",
        ),
    )
