"""The facts of a log on disk, found with the fastest matcher that this machine has."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from verl_e2e.adapters.files.logs import LogStream, open_log
from verl_e2e.adapters.files.prefilter import fastest_prefilter
from verl_e2e.adapters.files.run_folder import find_log, stage_times, was_stopped
from verl_e2e.core.log.scan import literal_bytes, scan
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.stages import Stage


def log_facts(name: str) -> LogFacts:
    """The facts of a log on disk, or of standard input for `-`."""
    return facts_of(open_log(name))


def facts_of(log: LogStream) -> LogFacts:
    """The facts of an open log."""
    facts = scan(log, fastest_prefilter(literal_bytes()))
    return replace(facts, truncated=True) if log.truncated else facts


def log_with_times(name: str) -> tuple[LogFacts, Mapping[Stage, float]]:
    """The facts of a log or of a run folder's log, and when its run entered each stage, where the folder says so.

    Raises UserError for a folder without a log.
    """
    path = Path(name)
    log = find_log(path) if path.is_dir() else path
    if log is None:
        raise UserError(f"{name}: no log in this folder; give a log file or a run folder")
    facts = log_facts(name if name == "-" else str(log))
    return replace(facts, stopped=path.is_dir() and was_stopped(path)), stage_times(log.parent)
