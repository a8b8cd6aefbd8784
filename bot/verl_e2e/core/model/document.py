"""The base of every document that crosses a border: strict, frozen, and described where people write it."""

import ast
import inspect
import textwrap
from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler


class Document(BaseModel):
    """A strict, frozen document: an unknown key is an error."""

    # A program that starts builds the validators of the documents that it reads, not of all.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class DescribedDocument(Document):
    """A document that people write; the text below a key describes it, in the code and in the JSON schema."""

    # Not pydantic's `use_attribute_docstrings`: each program that starts would read the sources of all documents.
    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler, /) -> dict[str, Any]:
        """The JSON schema with what describes each key."""
        schema = handler(core_schema)
        described = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in _texts_below_keys(cls).items():
            key = cls.model_fields[name].alias or name
            described[key].setdefault("description", text)
        return schema


def _texts_below_keys(document: type[BaseModel]) -> dict[str, str]:
    """The text below each key of a document, by the name of its field."""
    found: dict[str, str] = {}
    for cls in reversed(document.__mro__):
        if not issubclass(cls, DescribedDocument):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in zip(tree.body, tree.body[1:], strict=False):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    if name in document.model_fields:
                        found[name] = inspect.cleandoc(text)
                case _:
                    pass
    return found
