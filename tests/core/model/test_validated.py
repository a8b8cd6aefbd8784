"""Values that people write: one that does not fit says what is wrong and what to write instead."""

from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter, ValidationError

from verl_e2e.core.model.document import Address, ImageText, InnerPath, LevelNumber, Patterns, name_among

Color = Annotated[str, name_among({"red", "green"}, "a color")]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Address, "https://github.com/octo/bridge"),
        (Address, "http://localhost:8080/octo/bridge"),
        (ImageText, "verlai/verl:vllm024"),
        (InnerPath, "src/a..b/c"),
        (LevelNumber, 0),
        (LevelNumber, 5),
        (Patterns, ["*.py", "!tests/"]),
        (Color, "red"),
    ],
)
def test_what_fits_is_taken(kind: Any, value: object) -> None:
    TypeAdapter(kind).validate_python(value)


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (Address, "http://github.com/octo/bridge", "write https://HOST/OWNER/NAME"),
        (Address, "https://token@github.com/octo/bridge", "is not an address of a repository"),
        (Address, "ext::sh -c id", "is not an address of a repository"),
        (ImageText, "verlai/verl vllm", "holds a blank"),
        (ImageText, "verlai/verl\x1b[31m", "as `docker pull` takes it"),
        (InnerPath, "/etc/passwd", "leads out of the repository"),
        (InnerPath, "src/../../x", "relative to its top folder"),
        (LevelNumber, 6, "6 is not a level; use 0 to 5"),
        (LevelNumber, -1, "-1 is not a level"),
        (Patterns, ["/"], "as in a .gitignore file"),
        (Patterns, ["# nothing"], "is not a path pattern"),
        (Color, "gren", "'gren' is not a color; did you mean 'green'?"),
    ],
)
def test_what_does_not_fit_says_what_to_write(kind: Any, value: object, said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(kind).validate_python(value)
    assert said in str(refused.value)
