"""Judge run folders and render their card, from what the folders hold and nothing else."""

from pathlib import Path

from verl_e2e.core.judge.verdict import judge
from verl_e2e.core.judge.verdict_document import Verdict, verdict_json
from verl_e2e.core.model.access import ExecutionRules
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import CARD_MARKDOWN_FILE, CARD_TEXT_FILE, EVIDENCE_FILE, VERDICT_FILE
from verl_e2e.core.report.comparison_text import (
    PARITY_JSON_FILE,
    PARITY_MARKDOWN_FILE,
    render_report_markdown,
    report_json,
)
from verl_e2e.core.report.run_card import Card, NotRun, evidence_json, render_markdown, render_text
from verl_e2e.ports import RunFolders, UnreadableLogError


def judge_folders(folders: RunFolders, folder: Path) -> tuple[Verdict, ...]:
    """The verdict of every run folder that `folder` is or holds."""
    return tuple(judge_run(folders, path)[0] for path in folders.find(folder))


def judge_run(folders: RunFolders, path: Path, known: LogFacts | None = None) -> tuple[Verdict, LogFacts | None]:
    """One run folder and what its log says; a damaged log is missing evidence and hides no other job of a check.

    `known` are the facts of an earlier look at the same log, which is then not read again.
    """
    record = folders.record(path)
    try:
        facts = folders.facts(path) if known is None else known
    except UnreadableLogError as error:
        return judge(record.model_copy(update={"missing": (*record.missing, str(error))}), None), None
    return judge(record, facts), facts


def write_judgement(folders: RunFolders, folder: Path, verdicts: tuple[Verdict, ...]) -> None:
    """Write verdict, evidence and card of each run folder next to its log."""
    for path, verdict in zip(folders.find(folder), verdicts, strict=True):
        card = Card((verdict,))
        folders.write(
            path,
            {
                EVIDENCE_FILE: evidence_json(verdict.evidence),
                VERDICT_FILE: verdict_json(verdict),
                CARD_TEXT_FILE: render_text(card),
                CARD_MARKDOWN_FILE: render_markdown(card),
                **_comparisons(verdict),
            },
        )
        if verdict.figure is not None:
            folders.draw(path, verdict.figure)


def _comparisons(verdict: Verdict) -> dict[str, str]:
    """The comparisons with its related runs, where there are any."""
    if not verdict.reports:
        return {}
    return {
        PARITY_MARKDOWN_FILE: render_report_markdown(verdict.reports),
        PARITY_JSON_FILE: report_json(verdict.reports),
    }


def make_card(
    verdicts: tuple[Verdict, ...],
    not_run: tuple[NotRun, ...] = (),
    notes: tuple[str, ...] = (),
    contract: tuple[str, ...] = (),
    execution: ExecutionRules | None = None,
) -> Card:
    """One card of all verdicts, in level order; `execution` is what the policy of a whole check asks for."""
    in_order = tuple(sorted(verdicts, key=lambda verdict: verdict.job_id))
    return Card(in_order, not_run, notes, contract=contract, execution=execution)


def card_of(folders: RunFolders, folder: Path, verdicts: tuple[Verdict, ...] | None = None) -> Card:
    """The card of a run folder or a `check` folder; a planned job without a run folder keeps it from a Pass.

    `verdicts` are those of the folder, where they are known already: a log is large and need not be read twice.
    """
    verdicts = judge_folders(folders, folder) if verdicts is None else verdicts
    ran = {verdict.job_id for verdict in verdicts}
    missing = [(name, level) for name, level in folders.planned(folder).items() if name not in ran]
    notes = folders.notes(folder)
    reasons = {name: notes.not_run.get(name, "it has no run folder") for name, _ in missing}
    not_run = tuple(
        NotRun(name, coverage(name, level), reasons[name], name in notes.uncoverable) for name, level in missing
    )
    return make_card(verdicts, not_run, notes.notes, notes.contract, notes.execution)


def coverage(job_id: str, level: Level) -> str:
    """What a job of this id covers, as a card says it."""
    return f"Level {int(level)}: {level.title} ({job_id.partition('-')[2]})"
