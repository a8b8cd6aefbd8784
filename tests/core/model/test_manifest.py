"""Which files a seal is about, and how a folder differs from it."""

import pytest

from verl_e2e.core.model.record import Manifest, SealedFile, is_sealed, seal_differences

A, B = "a" * 64, "b" * 64


def _manifest(*names: str) -> Manifest:
    files = tuple(SealedFile(path=name, size=1, sha256=A, word="recorder") for name in names)
    return Manifest(job="0-x", job_digest=A, began="t", ended="t", seconds=1.0, isolation="none", files=files)


@pytest.mark.parametrize(
    "path", ("events.jsonl", "log.txt.zst", "related/baseline/events.jsonl", "related.json", "anything", "plots")
)
def test_what_the_judgement_reads_is_sealed(path: str) -> None:
    assert is_sealed(path)


@pytest.mark.parametrize(
    "path",
    ("verdict.json", "card.md", "related/baseline/verdict.json", "plots/signal.svg", "manifest.json", ".x.part"),
)
def test_what_the_judgement_makes_is_not(path: str) -> None:
    assert not is_sealed(path)


@pytest.mark.parametrize(
    ("found", "text"),
    (
        ({"x": (1, A), "y": (1, A)}, ""),
        ({"x": (1, B), "y": (1, A)}, "x was changed"),
        ({"x": (2, A), "y": (1, A)}, "x was changed"),
        ({"y": (1, A)}, "x is gone"),
        ({"x": (1, A), "y": (1, A), "z": (1, A)}, "z was added"),
        ({"z": (1, A), "u": (1, A), "v": (1, A)}, "x is gone, y is gone, u was added and 2 more"),
    ),
)
def test_every_difference_is_named(found: dict[str, tuple[int, str]], text: str) -> None:
    assert seal_differences(_manifest("x", "y"), found) == text
