"""A recorded run folder as tests judge it: its log and its record, with changes."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from verl_e2e.adapters.files.logs import open_log
from verl_e2e.adapters.files.run_folder import read_record
from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.record import Record


@dataclass(frozen=True)
class RecordedRun:
    """One folder, each of its documents read once."""

    folder: Path

    @cached_property
    def text(self) -> str:
        """The whole log."""
        return b"".join(open_log(self.folder / "log.txt.zst")).decode()

    @cached_property
    def documents(self) -> Record:
        """What the folder holds besides its log."""
        return read_record(self.folder)

    def judged(self, text: str | None = None, **changes: Any) -> Verdict:
        """The verdict on the folder with another log or other documents."""
        return judge(self.documents.model_copy(update=changes), scan([(text or self.text).encode()]))

    def cut(self, *parts: str) -> str:
        """The log without the lines that hold one of the parts."""
        lines = self.text.splitlines(keepends=True)
        kept = [line for line in lines if not any(part in line for part in parts)]
        assert len(kept) < len(lines)
        return "".join(kept)
