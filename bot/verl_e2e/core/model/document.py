"""The base of every document that crosses a border: strict, frozen, and described where people write it."""

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """A strict, frozen document: an unknown key is an error."""

    # A program that starts builds the validators of the documents that it reads, not of all.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class DescribedDocument(Document):
    """A document that people write; the text below a key describes it, in the code and in the JSON schema."""

    model_config = ConfigDict(use_attribute_docstrings=True)
