"""Words that this project does not use, each with the term to use: in code, messages, tests and documents."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A pattern, and what to say instead.
REFUSED = {
    r"\bmend(?:s|ed|ing)?\b|_mend(?:s|ed)?\b|\bmend_|\bMEND": "fix, hint",
    r"\b(?:App|Doctor)Rooms\b|\brooms\b|_rooms?\b|\brooms?_": "services, dependencies; package",
    r"\b[Ww]ish(?:es|ed)?\b|_wish|\bwish_": "request",
    r"\btwins?\b|\bTWIN|_twin": "reference run, uninterrupted run",
    r"\bbeside\b|\bBeside\b|_beside\b|\bbeside_": "next to, with, in addition to, related",
    r"\btold\b|_told\b|\btold_": "message, reported",
    r"\bheard\b|_heard\b|\bheard_": "received, processed",
    r"\black(?:s|ing|ed)?\b|_lack(?:s|ing)?\b|\black(?:s|ing)?_|\bLack": "missing, unavailable, does not have",
    r"\b[Ww]hoever\b|_whoever_": "anyone who, the person who",
    r"\banew\b|_anew\b": "again",
    r"(?<![`\"'])\b(?:[Nn]obody|(?:[Ss]ome|[Aa]ny|[Ee]very)body)\b(?![`\"'])": "no one, someone, anyone, everyone",
    r"\b[Ss]urroundings?\b|_surroundings": "environment",
    r"\b[Hh]opeless\b|_hopeless": "unrecoverable",
    r"\b[Cc]ourier\b|_courier\b": "requester",
    r"\bSituation\b|\bsituation\b": "target state",
    r"\bconduct\b": "decide, actions",
    r"\b[Rr]emarks?\b|_remarks?\b|\bremarks?_": "note, annotation, warning",
    r"\btrivial[ _]sizes?\b|\bTRIVIAL": "unsharded, single-rank",
    r"\bfor one in\b|, one in\b": "a noun, as `for run in runs`",
    r"(?<!here )\b(?:is|are|was|were) no (?!longer|more\b|one\b|such\b|way\b|need\b)": "is not a, is not",
    r"\bshall\b": "must, should, will",
    r"\bupon\b": "on",
}
# Who uses such a word in its own sense: a path, and what of a line allows it.
ALLOWED = {
    "tests/core/triage/silent_cases.py": r"There is no module",
    "tests/fakes/small_bridge.py": r"for one in tasks",
    "tests/project/test_prose.py": r"remarks|told\.|in one for one in",
    "tests/project/test_words.py": r".*",
}


def _texts() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    names = listed or [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    kinds = {".py", ".md", ".yml", ".toml", ".sh"}
    kept = [ROOT / name for name in names if Path(name).suffix in kinds or Path(name).name in {"Makefile", "run"}]
    return [path for path in kept if path.is_file() and not {"fixtures", "node_modules", ".venv"} & {*path.parts}]


TEXTS = _texts()


@pytest.mark.parametrize("pattern", REFUSED)
def test_a_refused_word_is_nowhere(pattern: str) -> None:
    found = []
    for path in TEXTS:
        name = str(path.relative_to(ROOT))
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if re.search(pattern, line) and not re.search(ALLOWED.get(name, r"(?!)"), line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert not found, f"say {REFUSED[pattern]} instead; {len(found)} lines:\n" + "\n".join(found[:200])


def test_the_search_sees_the_project() -> None:
    assert len(TEXTS) > 500
    assert {"README.md", "Makefile"} <= {path.name for path in TEXTS}
