"""The JSON schema of a document describes each key by the text below it, wherever in its bases that stands."""

from typing import Any

from pydantic import Field

from verl_e2e.core.model.document import DescribedDocument, Document


class Inner(DescribedDocument):
    """A part."""

    size: int = 1
    """How large it is,
    in bytes."""
    """A second text is none of a key."""


class Plain(Document):
    """Not described."""

    silent: int = 0
    """Of a document that people do not write."""


class Outer(Inner, Plain):
    """The whole."""

    inner: Inner | None = Field(default=None, alias="part")
    """One part."""
    named: int = Field(default=0, description="As it says itself.")
    """Not this."""
    bare: int = 0


def descriptions(kind: dict[str, Any]) -> dict[str, str | None]:
    return {key: about.get("description") for key, about in kind["properties"].items()}


def test_each_key_is_described_by_the_text_below_it() -> None:
    schema = Outer.model_json_schema()
    size = "How large it is,\nin bytes."
    expected = {"silent": None, "size": size, "part": "One part.", "named": "As it says itself.", "bare": None}
    assert descriptions(schema) == expected
    assert descriptions(schema["$defs"]["Inner"]) == {"size": size}
