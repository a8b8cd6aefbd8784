"""One thing that a launcher or a log store puts around lines: a head before each of them, or a record of its own."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from verl_e2e.core.log.containers import parse_record
from verl_e2e.core.log.heads import Shape, shape_of
from verl_e2e.core.log.labels import STREAMS, Labels, Ledger
from verl_e2e.core.log.lines import LINE_CAP, without_colours

MAX_EXACT = 256
# A runtime that splits long lines does so at 8 KiB or more.
_SPLIT_AT = 4096
MAX_SPLIT = 64


class TextLayer:
    """A head that is written before each line."""

    is_record = False
    """Whether what is inside is written differently than it was."""

    def __init__(self, shape: Shape, ledger: Ledger) -> None:
        self.broad = shape.broad
        self._broad = re.compile(shape.broad) if shape.timed else None
        self._ledger = ledger
        self._exact: dict[str, None] = {}
        self._known: re.Pattern[str] | None = None
        self.labels = Labels(ledger)

    def learn(self, heads: Sequence[str]) -> None:
        """Take heads of this shape whose words are known from now on."""
        for head in heads:
            shape = shape_of(head)
            if shape is not None:
                self._exact[shape.exact] = None
        for exact in list(self._exact)[:-MAX_EXACT]:
            del self._exact[exact]
        # The longest first: what is padded on its right would else lose a space of its text.
        self._known = re.compile("|".join(sorted(self._exact, key=len, reverse=True)))

    def open(self, text: str) -> tuple[str, list[str]] | None:
        """The label and the lines inside, None for a line without this around it."""
        match = self._match(text)
        if match is None:
            return None
        label, tag = self._label(match, learn=True)
        if tag != "P" and not self._ledger.split:
            return label, [text[match.end() :]]
        return label, _joined(self._ledger, f"{id(self)} {label}", text[match.end() :], more=tag == "P")

    def peek(self, text: str) -> tuple[str, list[str]] | None:
        """What `open` gives, without learning from the line."""
        match = self._match(text)
        return None if match is None else (self._label(match, learn=False)[0], [text[match.end() :]])

    def _label(self, match: re.Match[str], *, learn: bool) -> tuple[str, str]:
        words = [word for word in match.groups() if word is not None]
        tag = _take_tag(words) if "F" in words or "P" in words else ""
        return self.labels.of(enumerate(words), learn=learn), tag

    def _match(self, text: str) -> re.Match[str] | None:
        assert self._known is not None
        return self._known.match(text) or (self._broad.match(text) if self._broad is not None else None)


def _take_tag(words: list[str]) -> str:
    """Take the tag of the CRI log format out of a head: F for a full line, P for a part of one; else empty."""
    tag = next((tag for stream, tag in pairwise(words) if stream in STREAMS and tag in ("F", "P")), "")
    if tag:
        words.remove(tag)
    return tag


class RecordLayer:
    """A record for each line, with the line in one of its fields."""

    is_record = True
    """See `TextLayer.is_record`."""

    def __init__(self, path: str, ledger: Ledger) -> None:
        self._path = path
        self._ledger = ledger
        self.labels = Labels(ledger)
        self._ended = 0

    def open(self, text: str) -> tuple[str, list[str]] | None:
        """The label and the lines inside, None for a line that is no such record."""
        record = parse_record(text)
        if record is None or self._path not in record:
            return None
        label = self.label(record)
        message = without_colours(record[self._path])
        ended = message.endswith("\n")
        self._ended += ended
        more = self._ended > 0 and not ended and len(message) >= _SPLIT_AT
        rows = _joined(self._ledger, f"{id(self)} {label}", message.removesuffix("\n"), more=more)
        return label, [row for joined in rows for row in joined.split("\n")]

    def label(self, record: Mapping[str, str], *, learn: bool = True) -> str:
        """The label that a record gives."""
        return self.labels.of((item for item in record.items() if item[0] != self._path), learn=learn)

    def peek(self, text: str) -> tuple[str, list[str]] | None:
        """What `open` gives, without learning from the line."""
        record = parse_record(text)
        if record is None or self._path not in record:
            return None
        message = without_colours(record[self._path]).removesuffix("\n")
        return self.label(record, learn=False), message.split("\n")


def _joined(ledger: Ledger, key: str, text: str, *, more: bool) -> list[str]:
    """The line with the parts before it that its runtime split off, or nothing while a part is still to come."""
    if key in ledger.split:
        text = ledger.split.pop(key) + text
    if more and len(text) < LINE_CAP and len(ledger.split) < MAX_SPLIT:
        ledger.split[key] = text
        return []
    return [text]


Layer = TextLayer | RecordLayer
