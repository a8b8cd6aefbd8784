"""The verb that rehearses a change on a CPU."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from verl_e2e.cli.command import (
    EXIT_BLOCKED,
    EXIT_FAIL,
    EXIT_INTERRUPTED,
    FOLDER,
    JSON_OPTION,
    POLICY_OPTION,
    indented_json,
    say,
)
from verl_e2e.core.model.errors import UserError

if TYPE_CHECKING:
    from verl_e2e.core.compare.rehearsal import RehearsedPair
    from verl_e2e.core.model.jobs import RehearsalJob

_PYTHON = Path(".venv-rehearsal/bin/python")
# Where an ordered rehearsal finds its Python, unless the site profile says it.
PYTHON_VARIABLE = "VERL_E2E_REHEARSAL_PYTHON"
_DESCRIBES_ADAPTERS = "verl/utils/megatron_peft_utils.py"


@click.command("rehearse")
@click.option("--cells", "list_cells", is_flag=True, help="List the cells and run nothing.")
@click.option("--repo", type=FOLDER, help="A Megatron-Bridge checkout or bare git directory.")
@click.option("--base", metavar="SHA", help="The commit that the change is based on.")
@click.option("--head", default="HEAD", show_default=True, metavar="SHA", help="The commit to rehearse.")
@click.option("--megatron-lm", type=FOLDER, help="A Megatron-LM repository that holds the submodule's commits.")
@click.option(
    "--verl", type=FOLDER, help="A verl checkout: adapters are held against what it passes to the rollout engine."
)
@click.option("--out", type=FOLDER, help="The folder for records, trees and models; it is used again.")
@click.option(
    "--only", multiple=True, metavar="PATTERN", help="Run the cells that this names, as `qwen3-*`; repeatable."
)
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    default=_PYTHON,
    show_default=True,
    help="The Python that `make rehearsal-env` made.",
)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Processes at a time.")
@click.option("--require-cage", is_flag=True, help="Fail where this host cannot keep the code apart from the recorder.")
@click.option(
    "--observe-functions",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="Try faults in so many changed functions.",
)
@click.option(
    "--observe-faults", type=click.IntRange(1), default=6, show_default=True, help="So many faults in each function."
)
@click.option(
    "--observe-seconds", type=click.FloatRange(1), default=90, show_default=True, help="Seconds for all faults."
)
@POLICY_OPTION
@JSON_OPTION
def rehearse_verb(
    repo: Path | None,
    base: str | None,
    head: str,
    megatron_lm: Path | None,
    verl: Path | None,
    out: Path | None,
    only: tuple[str, ...],
    python: Path,
    workers: int,
    observe_functions: int,
    observe_faults: int,
    observe_seconds: float,
    policy: Path | None,
    *,
    require_cage: bool,
    list_cells: bool,
    as_json: bool,
) -> int:
    """Rehearse a change on a CPU: drive Bridge over a table of tiny models, at the base and at the head, and compare.

    Needs no GPU. An oracle that fails at the head and not at the base is a Fail, a quantity that differs is Changed.
    Changed lines that no cell entered are listed, and changed functions in which the cells would notice no fault.

    Example: verl-e2e rehearse --repo Megatron-Bridge --base origin/main --megatron-lm Megatron-LM --out rehearsal
    """
    from verl_e2e.config.maps import NAME, cell_map_content
    from verl_e2e.core.compare.rehearsal import CellOutcome, ObserveLimits
    from verl_e2e.core.report.rehearsal_text import rehearsal_json, render_rehearsal
    from verl_e2e.core.text.escape import plain_section
    from verl_e2e.wiring import rehearse as rehearsing
    from verl_e2e_runner.rehearsal import rehearse as runner
    from verl_e2e_runner.rehearsal.cells import CELLS

    if list_cells:
        listed = {name: cell.described() for name, cell in CELLS.items()}
        click.echo(indented_json(listed) if as_json else "\n".join(f"{name}: {text}" for name, text in listed.items()))
        return 0
    if repo is None or base is None or out is None:
        raise click.UsageError("--repo, --base and --out are needed, unless --cells asks for the list")
    cells = runner.chosen_cells(only)
    out.mkdir(parents=True, exist_ok=True)
    described = verl.resolve() / _DESCRIBES_ADAPTERS if verl else None
    if described and not described.exists():
        raise UserError(f"--verl {verl}: it has no {_DESCRIBES_ADAPTERS}; give a checkout of verl")
    place = runner.RehearsalPlace(
        python.absolute(), out.resolve(), dict(os.environ), workers, require_cage, verl=described
    )
    runner.check_environment(place)

    observe = ObserveLimits(observe_functions, observe_faults, observe_seconds)
    whole = len(cells) == len(CELLS)
    order = rehearsing.RehearsalOrder(repo, base, head, megatron_lm, policy, cells, whole, observe)
    found, entered = rehearsing.rehearse_change(
        order,
        lambda commit, wanted, base: runner.rehearse_commit(commit, wanted, place, base),
        runner.table_rows(),
        say,
    )
    document, section = rehearsal_json(found), render_rehearsal(found)
    (out / "rehearsal.json").write_text(document)
    (out / "rehearsal.md").write_text(section)
    (out / NAME).write_bytes(cell_map_content(entered))
    # A terminal shows Markdown as it is written.
    shown = plain_section(section) if sys.stdout is not None and sys.stdout.isatty() else section
    click.echo(document if as_json else shown, nl=False)
    return {CellOutcome.FAIL: EXIT_FAIL, CellOutcome.BLOCKED: EXIT_BLOCKED}.get(found.outcome, 0)


def run_ordered(
    job: "RehearsalJob",
    job_file: Path,
    out: Path,
    work: Path | None,
    environ: Mapping[str, str],
    *,
    prepare: bool,
    of_jobs: bool,
) -> int:
    """Run an ordered rehearsal and leave its run folder, or the records of its base alone; the exit code.

    `of_jobs` says that options were given that only jobs have.
    """
    if of_jobs:
        raise click.UsageError(f"{job_file} is a rehearsal: --dry-run, --junit and --keep-caches are for jobs")
    from verl_e2e.adapters.files.folders import take_nonce
    from verl_e2e.core.model.jobs import Isolation
    from verl_e2e.core.model.record import EndReason
    from verl_e2e.wiring import rehearse as rehearsing
    from verl_e2e_runner.rehearsal import rehearse as runner
    from verl_e2e_runner.trees import fetch

    python = Path(job.python or environ.get(PYTHON_VARIABLE) or _PYTHON)
    place = runner.RehearsalPlace(
        python.absolute(),
        (work or out.parent).resolve() / "rehearsals",
        environ,
        require_cage=job.isolation is Isolation.REQUIRED,
        # Of both trees together; models and what is tried of faults come on top.
        seconds=job.time_limit_s / 2,
    )
    place.work.mkdir(parents=True, exist_ok=True)
    cells = runner.chosen_cells(job.cells)

    def pair() -> "RehearsedPair":
        return rehearsing.ordered_runs(job, cells, lambda name, commit: fetch(job, name, commit, base=environ))

    if prepare:
        runner.prepare_base(pair, place)
        return 0
    ended = runner.record_rehearsal(job, out, pair, place, order_nonce=take_nonce(job_file), say=say)
    if ended is EndReason.INTERRUPTED:
        return EXIT_INTERRUPTED
    return 0 if ended is EndReason.EXITED else EXIT_BLOCKED
