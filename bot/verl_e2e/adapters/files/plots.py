"""Draws the curves of a learning signal with matplotlib (the extra `plots`): the same bytes for the same values."""

from pathlib import Path

import matplotlib
from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from verl_e2e.core.signal.report import FORMATS, PLOT_NAME, THEMES, Panel, SignalFigure, Theme

_COLUMNS = 3
_PANEL_INCHES = (4.0, 2.7)
_DPI = 100
_BAND_ALPHA = 0.25
_SETTINGS = {
    "font.family": "DejaVu Sans",  # the one font that matplotlib brings along
    "font.size": 9.0,
    "path.simplify": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "verl-e2e",
}
# Neither a date nor a version: a plot drawn again is the same file.
_METADATA: dict[str, dict[str, str | None]] = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}


def draw(shown: SignalFigure, folder: Path) -> tuple[Path, ...]:
    """Write the figure into the folder, as SVG and PNG for light and for dark backgrounds; the files made."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for theme in THEMES:
        with style.context("default"), matplotlib.rc_context(_SETTINGS):
            figure = _figure(shown, theme)
            for form in FORMATS:
                path = folder / f"{PLOT_NAME}-{theme.name}.{form}"
                # A link that came with a run folder is replaced and not followed.
                path.unlink(missing_ok=True)
                figure.savefig(path, format=form, metadata=_METADATA[form], facecolor=theme.background)
                made.append(path)
    return tuple(made)


def _figure(shown: SignalFigure, theme: Theme) -> Figure:
    rows = max(1, -(-len(shown.panels) // _COLUMNS))
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(_COLUMNS * width, rows * height + 0.6), dpi=_DPI)
    figure.suptitle(shown.title, color=theme.text, fontsize=11)
    axes = figure.subplots(rows, _COLUMNS, squeeze=False).flat
    for panel in shown.panels:
        _draw_panel(next(axes), panel, theme)
    for empty in axes:
        empty.set_visible(False)
    # What the kinds of lines mean; colours tell quantities apart and are named in their panel.
    key: list[Artist] = [Line2D([], [], color=theme.text, linewidth=1.8, marker=".", label="this run")]
    if shown.baselines:
        several = f", median of {shown.baselines}" if shown.baselines > 1 else ""
        key.append(Line2D([], [], color=theme.text, linewidth=1.2, linestyle="--", label=f"baseline{several}"))
    if shown.baselines > 1:
        key.append(Patch(facecolor=theme.text, alpha=_BAND_ALPHA, label="lowest to highest baseline"))
    if any(line.faults for panel in shown.panels for line in panel.lines):
        key.append(Line2D([], [], color=theme.fault, linewidth=1.2, linestyle=":", label="NaN or out of range"))
    figure.legend(handles=key, loc="outside lower center", ncols=4, **_legend(theme))
    # Laid out once. A figure that has an engine is drawn twice for every file.
    ConstrainedLayoutEngine().execute(figure)
    return figure


def _legend(theme: Theme) -> dict[str, object]:
    return {"fontsize": 8, "labelcolor": theme.text, "facecolor": theme.background, "edgecolor": theme.grid}


def _draw_panel(axes: Axes, panel: Panel, theme: Theme) -> None:
    scales = [axes, axes.twinx()] if panel.apart else [axes] * len(panel.lines)
    for scale, line, color in zip(scales, panel.lines, theme.lines, strict=False):
        base, values = line.baseline, line.candidate
        if base is not None and base.runs > 1:
            scale.fill_between(base.steps, base.low, base.high, color=color, alpha=_BAND_ALPHA, linewidth=0)
        if base is not None:
            scale.plot(base.steps, base.middle, color=color, linewidth=1.2, linestyle="--")
        scale.plot(values.steps, values.values, color=color, linewidth=1.8, marker=".", label=line.title)
        for step in line.faults:
            scale.axvline(step, color=theme.fault, linewidth=1.2, linestyle=":")
    axes.set_title(panel.title, color=theme.text, fontsize=10)
    axes.set_xlabel("step", color=theme.text)
    axes.set_ylabel(panel.unit, color=theme.text)
    axes.set_facecolor(theme.background)
    axes.tick_params(which="both", colors=theme.text)
    axes.grid(visible=True, color=theme.grid, linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for scale, color in zip(scales, theme.lines, strict=False):
        if panel.logarithmic:
            scale.set_yscale("log")
        for side in scale.spines.values():
            side.set_color(theme.grid)
        if panel.apart:
            scale.tick_params(axis="y", which="both", colors=color)
        if len(panel.lines) > 1:
            # Room above the curves, so that the names hide none of them.
            scale.margins(y=0.2)
    if len(panel.lines) > 1:
        names = [Line2D([], [], color=color, marker=".") for color in theme.lines]
        titles = [line.title for line in panel.lines]
        scales[-1].legend(
            names, titles, loc="upper right", ncols=2, columnspacing=1.0, handlelength=1.2, **_legend(theme)
        )
