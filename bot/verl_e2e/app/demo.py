"""Show the whole way on embedded defaults: a real plan of a small change, and the judgement of a recorded run."""

from dataclasses import dataclass
from pathlib import Path

from verl_e2e.app.judge_folder import judge_folders, make_card, write_judgement
from verl_e2e.core.model.record import PLAN_FILE, Record
from verl_e2e.core.plan.plan import Plan, plan
from verl_e2e.core.plan.plan_document import plan_json
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.report.run_card import Card
from verl_e2e.ports import ChangeSource, RunFolders


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What the demo showed: the plan of the change, and the card of the recorded run."""

    plan: Plan
    card: Card


def demonstrate(
    folders: RunFolders, folder: Path, *, changes: ChangeSource, base: str, head: str, policy: Policy
) -> Demonstration:
    """Plan base..head and judge the recorded run folders that lie below `folder`'s `jobs`."""
    planned = plan(changes.change(base, head), policy)
    folders.write(folder, {PLAN_FILE: plan_json(planned)})
    verdicts = judge_folders(folders, folder)
    write_judgement(folders, folder, verdicts)
    notes = tuple(recording_note(folders.record(path)) for path in folders.find(folder))
    return Demonstration(planned, make_card(verdicts, (), notes))


def next_steps(command: str, recording: str) -> str:
    """What to try after the demonstration: three commands that work as they stand, anywhere and without a network.

    `command` is how `verl-e2e` is called, `recording` the packaged run folder, both quoted for a shell.
    """
    steps = (
        (f"triage --explain {recording}/log.txt.zst", "how the log of this run is read, phase by phase"),
        (f"card {recording} --format markdown", "the card as GitHub shows it"),
        ("demo --out verl-e2e-demo", "keep the repository, the plan and the run folder to look around in"),
    )
    lines = (f"  {command} {words}\n      {purpose}\n" for words, purpose in steps)
    return "\nTry next:\n" + "".join(lines)


def recording_note(record: Record) -> str:
    """Says plainly that a run is a recording, of what and on what."""
    environment = record.environment
    name = ", ".join(sorted({gpu.name for gpu in environment.gpus})) if environment else ""
    commit = (
        next((repository.commit for repository in environment.repositories if repository.name == "bridge"), "")
        if environment
        else ""
    )
    return (
        f"This run is a recording, made on {name or 'another machine'} with Megatron-Bridge {commit[:12] or '?'}; "
        f"nothing was run here, and the planned change is the demonstration's own."
    )
