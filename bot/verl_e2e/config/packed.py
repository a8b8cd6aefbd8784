"""Documents that are kept packed: read within bounds, and refused in one sentence."""

import gzip
import io
import zlib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from verl_e2e.core.model.errors import UserError

Model = TypeVar("Model", bound=BaseModel)


def bounded_content(path: Path, most: int, fix: str) -> bytes:
    """The content of a file, no more than a byte beyond `most`; UserError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; {fix}") from None


def packed_document(
    content: bytes, model: type[Model], most: int, named: tuple[str, str], *, packed: bool = True
) -> Model:
    """The document in a content, by gzip where it is `packed`, of at most so many bytes.

    `named` are the source, as errors name it, and what to do. UserError.
    """
    source, fix = named
    try:
        if packed:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as unpacked:
                content = unpacked.read(most + 1)
    except (OSError, EOFError, zlib.error):
        raise UserError(f"{source}: it is damaged, so it cannot be unpacked; {fix}") from None
    if len(content) > most:
        raise UserError(f"{source}: it is larger than {most >> 20} MiB; {fix}")
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))[:200]
        raise UserError(f"{source}: {f'{place}: ' if place else ''}{first['msg'][:300]}; {fix}") from None
