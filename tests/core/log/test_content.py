"""A file that is not text is named by its first bytes; one that may be a console log never is."""

import pickle
import random
import struct

import pytest

from verl_e2e.core.log.scan import foreign, wide_encoding

NOISE = random.Random(1).randbytes(4096)
FILES = (
    (b"PK\x03\x04" + bytes(26) + b"run.log", "a zip archive"),
    (b"run.log" + bytes(93) + b"0000644\x00" + bytes(149) + b"ustar\x0000", "a tar archive"),
    (b"BZh91AY&SY", "a bzip2 file"),
    (b"PK\x03\x04" + bytes(26) + b"model/data.pkl" + NOISE, "a PyTorch checkpoint"),
    (struct.pack("<Q", 90) + b'{"weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', "a safetensors file"),
    (b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog >>\n", "a PDF document"),
    ("step:1".encode("utf-32"), "a UTF-32 text"),
    (b"PK\x03\x04" + bytes(26) + b"run.log" + b" it read /data.pkl", "a zip archive"),
    (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00", "a binary file"),
    (b"\x89PNG\r\n\x1a\n" + NOISE, "a binary file"),
    (b"\x80\x04" + pickle.dumps({"a": 1})[2:], "a binary file"),
    (b"\x1f\x8b\x08" + NOISE, "a gzip file"),
    (NOISE, "a binary file"),
    (struct.pack("<1000f", *range(1000)), "a binary file"),
)
TEXTS = (
    b"",
    b"x",
    "caf\N{LATIN SMALL LETTER E WITH ACUTE}\n".encode("latin-1") * 50,
    "\N{CJK UNIFIED IDEOGRAPH-6B65}\n".encode("gb18030") * 50,
    b"\x1b[36m(WorkerDict pid=1)\x1b[0m \rbar\x08\x07\n" * 10,
    bytes(4096) + b"what was written after the rotation\n",
    bytes(8192),
    "text\r\n".encode("utf-16"),
    "text\n".encode("utf-16-be"),
)


@pytest.mark.parametrize(("head", "name"), FILES)
def test_what_is_not_text_is_named(head: bytes, name: str) -> None:
    found = foreign(head)
    assert found is not None
    assert found.name == name
    assert found.hint.endswith(".")


@pytest.mark.parametrize("head", TEXTS)
def test_text_in_any_encoding_is_not_foreign(head: bytes) -> None:
    assert foreign(head) is None


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_wide_encodings_are_known_without_a_mark(encoding: str) -> None:
    assert wide_encoding("+ export X=1\n".encode(encoding)) == encoding
    assert wide_encoding("\ufeff+ export\n".encode(encoding)) == encoding
