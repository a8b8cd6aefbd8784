"""The base of every document that crosses a border, and the validated types of what people write into one.

A document is strict, frozen, and described where people write it. A validated value (text, a level, a path, a
pattern) is written in YAML in one way (`written`) and used in code in another; the JSON schema shows the written way.
One that does not fit says what to write.
"""

import ast
import fnmatch
import inspect
import re
import textwrap
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pathspec import RegexPattern
from pathspec.util import lookup_pattern
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    GetPydanticSchema,
    StringConstraints,
)

from verl_e2e.core.model.levels import Level
from verl_e2e.core.text.escape import suggest


class Document(BaseModel):
    """A strict, frozen document: an unknown key is an error."""

    # A program that starts builds the validators of the documents that it reads, not of all.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class NumberedDocument(Document):
    """A document that says the number of its schema."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)
    schema_: Annotated[Literal[1], Field(alias="schema")] = 1


Filled = TypeVar("Filled", bound=BaseModel)


def filled(document: type[Filled], source: object, **made: object) -> Filled:
    """A document with what was made for it, and for the rest what the source has of the same names."""
    return document(**{name: getattr(source, name) for name in document.model_fields.keys() - made.keys()}, **made)


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


# What a model or a run may have of its own, whatever a policy adds: the program knows what each takes and shows.
FEATURES = frozenset(["audio", "fp8", "long_context", "lora", "mla", "moe", "mtp", "packed_seq", "quant", "ssm", "vlm"])


class UnfitError(ValueError):
    """A value that a validator refuses: what is wrong with it, and what to write instead.

    `at` leads from the validated value to the part that is meant.
    """

    def __init__(self, what: str, fix: str = "", at: tuple[str | int, ...] = ()) -> None:
        super().__init__(f"{what}; {fix}" if fix else what)
        self.what, self.fix, self.at = what, fix, at


@dataclass(frozen=True, slots=True)
class PathPatterns:
    """Compiled patterns in gitignore's language; of those that match, the last decides."""

    # Each with whether it takes the path in; a pattern that begins with `!` takes it out.
    steps: tuple[tuple[re.Pattern[str], bool], ...] = ()

    def match(self, path: str) -> bool:
        """Whether the path, relative to the repository's top folder, is taken in."""
        name = path.replace("\n", " ")
        for regex, takes_in in reversed(self.steps):
            if regex.match(name):
                return takes_in
        return False


def _written(form: Any, build: Callable[[Any], Any]) -> GetPydanticSchema:
    """How a value is written in a file, and what is built of it."""
    return GetPydanticSchema(lambda _, schema_of: schema_of(Annotated[form, AfterValidator(build)]))


# A `PathSpec` would also build a search database for each of the policy's hundreds of patterns.
_PATTERN = lookup_pattern("gitignore")


def _compiled_pattern(line: str) -> tuple[re.Pattern[str], bool]:
    try:
        pattern = _PATTERN(line)
    except ValueError:
        pattern = None
    if not (isinstance(pattern, RegexPattern) and pattern.regex and line.strip("/! ")):
        raise UnfitError(f"{line!r} is not a path pattern", "write it as in a .gitignore file")
    return pattern.regex, bool(pattern.include)


def _level(number: int) -> Level:
    if number not in set(Level):
        raise UnfitError(f"{number} is not a level", f"use {int(min(Level))} to {int(max(Level))}")
    return Level(number)


def text_that(fits: Callable[[str], bool], problem: str, fix: str) -> AfterValidator:
    """A validator for a text; `problem` says what is wrong with one that does not fit, as `is not a team`."""

    def check(text: str) -> str:
        if not fits(text):
            raise UnfitError(f"{text!r} {problem}", fix)
        return text

    return AfterValidator(check)


def name_among(known: Collection[str], kind: str) -> AfterValidator:
    """A validator for a name of a closed set; `kind` says what it names, as `a role`."""

    def check(name: str) -> str:
        if name not in known:
            raise UnfitError(f"{name!r} is not {kind}", suggest(name, known))
        return name

    return AfterValidator(check)


_ADDRESS = re.compile(r"https://[^\s/@?#]+/[^\s@?#]+|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?/[^\s@?#]+")

# Text that is not empty.
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
# Where a repository is fetched from: nothing that could start a program, and no password.
Address = Annotated[
    Text,
    text_that(
        lambda text: bool(_ADDRESS.fullmatch(text)),
        "is not an address of a repository",
        "write https://HOST/OWNER/NAME",
    ),
]
# A container image, or a part of its name.
ImageText = Annotated[
    str,
    text_that(
        lambda text: all(letter.isprintable() and not letter.isspace() for letter in text),
        "holds a blank",
        "write the image as `docker pull` takes it",
    ),
]
# A path relative to a repository's top folder.
InnerPath = Annotated[
    Text,
    text_that(
        lambda path: not path.startswith("/") and ".." not in path.split("/"),
        "leads out of the repository",
        "write a path relative to its top folder",
    ),
]
# A whole number of seconds.
Seconds = Annotated[int, Field(strict=True, ge=1)]
# The number of a level.
LevelNumber = Annotated[Level, _written(Annotated[int, Field(strict=True)], _level)]
# Levels, each once, in their order; at least one.
Levels = Annotated[tuple[LevelNumber, ...], Field(min_length=1), AfterValidator(lambda given: tuple(sorted({*given})))]
# Patterns of a `.gitignore` file, at least one.
Patterns = Annotated[
    PathPatterns,
    _written(
        Annotated[tuple[Annotated[str, AfterValidator(_compiled_pattern)], ...], Field(min_length=1)], PathPatterns
    ),
]
# Shell patterns, at least one, as one expression that matches whole identifiers.
Words = Annotated[
    re.Pattern[str],
    _written(
        Annotated[tuple[Text, ...], Field(min_length=1)],
        lambda words: re.compile("|".join(map(fnmatch.translate, words))),
    ),
]
