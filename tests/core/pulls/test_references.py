"""What is to be reconciled as text, and back."""

import pytest

from tests.core.pulls.entries import HEAD, NOW, OTHER
from verl_e2e.core.pulls.pull import MergeGroup, PullRef, Reference, read_reference, reference_text


@pytest.mark.parametrize(
    "reference",
    (PullRef("octo/bridge", 7), MergeGroup("octo/bridge", "main", OTHER, HEAD, (7, 8), NOW, destroyed=True)),
)
def test_a_reference_is_read_from_its_text(reference: Reference) -> None:
    assert read_reference(reference_text(reference)) == reference


@pytest.mark.parametrize("text", ("", "octo/bridge", "octo/bridge#", "#7", "octo/bridge#seven", "{}"))
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a reference|validation error"):
        read_reference(text)
