"""The verb that rehearses a change on a CPU."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import click

from verl_e2e.cli.command import EXIT_BLOCKED, EXIT_FAIL, FOLDER, JSON_OPTION, POLICY_OPTION, json_text

_PYTHON = Path(".venv-rehearsal/bin/python")


@click.command()
@click.option("--cells", "list_cells", is_flag=True, help="List the cells and run nothing.")
@click.option("--repo", type=FOLDER, help="A Megatron-Bridge checkout or bare git directory.")
@click.option("--base", metavar="SHA", help="The commit that the change is based on.")
@click.option("--head", default="HEAD", show_default=True, metavar="SHA", help="The commit to rehearse.")
@click.option("--megatron-lm", type=FOLDER, help="A Megatron-LM repository that holds the submodule's commits.")
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
@POLICY_OPTION
@JSON_OPTION
def rehearse(
    repo: Path | None,
    base: str | None,
    head: str,
    megatron_lm: Path | None,
    out: Path | None,
    only: tuple[str, ...],
    python: Path,
    workers: int,
    policy: Path | None,
    *,
    list_cells: bool,
    as_json: bool,
) -> int:
    """Rehearse a change on a CPU: drive Bridge over a table of tiny models, at the base and at the head, and compare.

    Needs no GPU. An oracle that fails at the head and not at the base is a Fail; a quantity that differs is Changed,
    and the section says in which cells and which changed function they entered first; changed lines that no cell
    entered are listed. It is not a level and replaces none.

    Example: verl-e2e rehearse --repo Megatron-Bridge --base origin/main --megatron-lm Megatron-LM --out rehearsal
    """
    from verl_e2e.config.cell_maps import NAME, cell_map_content
    from verl_e2e.core.compare.cell_map import CellRow
    from verl_e2e.core.compare.rehearsal import Outcome
    from verl_e2e.core.report.rehearsal_text import rehearsal_json, render_rehearsal
    from verl_e2e.wiring import rehearse as rehearsing
    from verl_e2e_runner.rehearsal import rehearse as runner
    from verl_e2e_runner.rehearsal.cells import CELLS

    if list_cells:
        listed = {name: cell.described() for name, cell in CELLS.items()}
        click.echo(json_text(listed) if as_json else "\n".join(f"{name}: {text}" for name, text in listed.items()))
        return 0
    if repo is None or base is None or out is None:
        raise click.UsageError("--repo, --base and --out are needed, unless --cells asks for the list")
    cells = runner.chosen_cells(only)
    out.mkdir(parents=True, exist_ok=True)
    place = runner.Place(python.absolute(), out.resolve(), dict(os.environ), workers)
    runner.check_environment(place)

    folders: list[Path] = []

    def run_tree(commit: str, pin: str, megatron: Path, recipes: Mapping[str, object]) -> Path:
        folders.append(runner.rehearse(runner.Sources(repo, commit, megatron, pin), cells, recipes, place))
        return folders[-1]

    order = rehearsing.RehearsalOrder(repo, base, head, megatron_lm, policy)
    found = rehearsing.rehearse(order, run_tree, lambda text: click.echo(text, err=True))
    document, section = rehearsal_json(found), render_rehearsal(found)
    (out / "rehearsal.json").write_text(document)
    (out / "rehearsal.md").write_text(section)
    rows = [
        CellRow(name=cell.name, family=cell.family, settings=json.loads(json.dumps(cell.differing)))
        for cell in CELLS.values()
    ]
    entered = rehearsing.cell_map_of(order, folders[-1], rows, found)
    (out / NAME).write_bytes(cell_map_content(entered))
    click.echo(document if as_json else section, nl=False)
    return {Outcome.FAIL: EXIT_FAIL, Outcome.BLOCKED: EXIT_BLOCKED}.get(found.outcome, 0)
