"""Packed documents: what was packed comes back, and nothing else does."""

import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_e2e.core.text.packed import UnpackError, pack_text, unpack_text


@given(st.text())
def test_a_document_comes_back_also_over_several_lines(document: str) -> None:
    line = pack_text(document)
    assert "\n" not in line
    assert unpack_text(f" {line[:5]}\n{line[5:]}\r\n", 1 << 20) == document.encode()


@pytest.mark.parametrize("text", ["not base64!", base64.b64encode(b"not deflated").decode(), "\u00e4"])
def test_what_was_not_packed_is_refused(text: str) -> None:
    with pytest.raises(UnpackError):
        unpack_text(text, 1 << 20)


@pytest.mark.parametrize(
    "text", ["", pack_text("word " * 100)[:-8], base64.b64encode(zlib.compress(b"0" * (64 << 20))).decode()]
)
def test_what_is_cut_or_unpacks_to_too_much_is_refused(text: str) -> None:
    with pytest.raises(match="larger than 1,000 bytes"):
        unpack_text(text, 1000)


def test_a_document_of_just_the_limit_is_taken() -> None:
    assert unpack_text(pack_text("0" * 1000), 1000) == b"0" * 1000
