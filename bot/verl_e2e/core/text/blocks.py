"""A long Markdown document made to fit: blocks that lose their last rows by rule, and say so."""

from dataclasses import dataclass
from itertools import accumulate

from verl_e2e.core.text.escape import fence_for, fenced_row


@dataclass(frozen=True, slots=True)
class Block:
    """Rows between an opening and a closing; complete Markdown with any number of its rows.

    `share` is the number of characters that the block may take at most.
    """

    opening: str
    rows: tuple[str, ...]
    closing: str
    share: int


def fit(blocks: tuple[Block, ...], limit: int, note: str) -> str:
    """All blocks in at most `limit` characters; one that lost rows ends with `note`, in its own place."""
    text = ""
    for block in blocks:
        text += _shown(block, min(block.share, limit - len(text)), note)
    return text


def _shown(block: Block, room: int, note: str) -> str:
    whole = _text(block, block.rows)
    if len(whole) <= room:
        return whole
    room -= len(_text(block, (note,)))
    if room < 0:
        return ""
    ends = accumulate(len(row) + 1 for row in block.rows)
    kept = [row for row, end in zip(block.rows, ends, strict=True) if end <= room]
    return _text(block, (*kept, note))


def _text(block: Block, rows: tuple[str, ...]) -> str:
    return "\n".join((block.opening, *rows, block.closing)) + "\n"


def folded(title: str, rows: tuple[str, ...], share: int) -> Block:
    """Rows of Markdown behind a title that opens on a click."""
    return Block(f"<details><summary>{title}</summary>\n", rows, "\n</details>", share)


def folded_text(title: str, rows: tuple[str, ...], share: int) -> Block:
    """Rows of plain text behind a title, in a fence that none of them can close."""
    inert = tuple(fenced_row(row) for row in rows)
    fence = fence_for(inert)
    return Block(f"<details><summary>{title}</summary>\n\n{fence}text", inert, f"{fence}\n\n</details>", share)


def open_text(title: str, rows: tuple[str, ...], share: int) -> Block:
    """Rows of plain text under a title, not folded, in a fence that none of them can close."""
    inert = tuple(fenced_row(row) for row in rows)
    fence = fence_for(inert)
    return Block(f"**{title}**\n\n{fence}text", inert, f"{fence}\n", share)
