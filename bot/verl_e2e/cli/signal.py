"""The verb that shows how a run learned: signal."""

from pathlib import Path

import click

from verl_e2e.cli.command import FOLDER, JSON_OPTION


@click.command()
@click.argument("run", type=FOLDER)
@click.option("--baseline", "baselines", multiple=True, type=FOLDER, help="A run without the change; repeatable.")
@click.option(
    "--cap-share",
    type=click.FloatRange(0, 1),
    help="The largest share of responses that the length limit may cut, 0 to 1.",
)
@click.option("--plots", type=FOLDER, help="Write the curves into this folder, as SVG and PNG, light and dark.")
@JSON_OPTION
def signal(
    run: Path,
    baselines: tuple[Path, ...],
    cap_share: float | None,
    plots: Path | None,
    *,
    as_json: bool,
) -> int:
    """Say whether a run learned: passed, flat, unstable, or not enough steps. It never says "converged".

    RUN and the baselines are run folders or bare logs. Without --baseline, the merge base runs that the folder
    names are used. This command does not judge a level; `judge` does.

    Example: verl-e2e signal out/jobs/5-signal --baseline base/jobs/5-signal --plots plots
    """
    from verl_e2e.adapters.files.folders import draw_plots, run_folders
    from verl_e2e.adapters.files.log_facts import log_facts
    from verl_e2e.app.learning_signal import Source, signal_of, source_of
    from verl_e2e.core.report.signal_text import render_signal, signal_json

    def source(path: Path) -> Source:
        return Source(path, log_facts(str(path))) if path.is_file() else source_of(run_folders(), path)

    found = signal_of(
        source(run),
        baselines=[source(baseline) for baseline in baselines],
        max_cap_share=cap_share,
    )
    files = draw_plots(found.figure, plots) if plots else ()
    show = signal_json if as_json else render_signal
    click.echo(show(found.report, found.steps), nl=False)
    click.echo("".join(f"{path}\n" for path in files), nl=False, err=as_json)
    return 0
