"""The policy's keys on choosing Bridge tests for a change."""

from typing import Annotated

from pydantic import Field

from verl_e2e.core.model.document import DescribedDocument, PathPatterns, Patterns, Seconds, Text


class ConversionTests(DescribedDocument):
    """Tests that come first for a change of import or export."""

    changes: Patterns
    """The paths that are about import and export."""
    tests: Patterns
    """The tests that come first for them."""


class ChoiceOfTests(DescribedDocument):
    """How Bridge tests are chosen for a change, in addition to those that the policy lists."""

    paths: Patterns
    """Where tests may be chosen from."""
    files: Annotated[int, Field(strict=True, ge=1)] | None = None
    """At most so many files are run, those that the policy lists among them; null: as many as the time allows."""
    seconds: Seconds = 300
    """How long all of them together may take."""
    durations: dict[Text, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Seconds that test files are known to take, by path; others are estimated from the number of their tests."""
    gpu_marks: tuple[Text, ...] = ("gpu",)
    """The pytest marks that ask for a GPU."""
    conversion: ConversionTests | None = None
    """Tests that come first for a change of import or export."""

    def is_conversion(self, path: str) -> bool:
        """Whether a path is about import and export."""
        return self.conversion is not None and self.conversion.changes.match(path)

    def is_conversion_test(self, path: str) -> bool:
        """Whether a test comes first for such a path."""
        return self.conversion is not None and self.conversion.tests.match(path)


NO_CHOSEN_TESTS = ChoiceOfTests.model_construct(paths=PathPatterns())
