"""What the plots of a learning signal show, as plain values: panels, lines, bands and colours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from verl_e2e.core.signal.compare import Band, Run, band
from verl_e2e.core.signal.curves import (
    ACTOR_GRADIENT,
    CRITIC_GRADIENT,
    ENTROPY,
    KL,
    LENGTH,
    POLICY_LOSS,
    REWARD,
    VALUE_LOSS,
    Curve,
    Quantity,
    Step,
    curve,
    train_steps,
)

PLOTS_FOLDER = "plots"
PLOT_NAME = "signal"
FORMATS = ("svg", "png")
# From this ratio between the largest and the smallest value on, equal steps of an axis stand for equal factors.
LOGARITHMIC_FROM = 1000.0
# From this ratio between the sizes of two quantities on, each has an axis of its own: next to the critic's gradient
# the actor's would be a line at zero.
APART_FROM = 10.0
# No axis can be laid out much beyond this.
LARGEST = 1e100


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours for one background, as hexadecimal RGB; `lines` are for the first and the second quantity."""

    name: str
    background: str
    text: str
    grid: str
    lines: tuple[str, str]
    fault: str


# Text reaches a contrast of 7:1 on its background and lines 4.5:1; the grid only has to be seen.
THEMES: tuple[Theme, ...] = (
    Theme("light", "#ffffff", "#24292f", "#d0d7de", ("#0550ae", "#a04100"), "#a40e26"),
    Theme("dark", "#0d1117", "#e6edf3", "#30363d", ("#6cb6ff", "#ffa657"), "#ff7b72"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity of the candidate, the baselines below it, and the steps with no number or too large a one."""

    title: str
    candidate: Curve
    baseline: Band | None
    faults: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes; `unit` says what the values are. Where `apart`, the second line has its axis on the right."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    logarithmic: bool
    apart: bool = False


@dataclass(frozen=True, slots=True)
class SignalFigure:
    """A figure: its title, its panels, and how many baselines stand behind the candidate."""

    title: str
    panels: tuple[Panel, ...]
    baselines: int


_PANELS: Mapping[str, tuple[str, tuple[Quantity, ...]]] = MappingProxyType(
    {
        "Reward": ("mean score of the responses", (REWARD,)),
        "Losses": ("loss", (POLICY_LOSS, VALUE_LOSS)),
        "Gradient norms": ("norm", (ACTOR_GRADIENT, CRITIC_GRADIENT)),
        "KL to the reference": ("nats a token", (KL,)),
        "Entropy": ("nats a token", (ENTROPY,)),
        "Response length": ("tokens", (LENGTH,)),
    }
)


def signal_figure(title: str, steps: Sequence[Step], baselines: Sequence[Run] = ()) -> SignalFigure:
    """The figure of a run and its baselines; panels without any value are left out."""
    trained = train_steps(steps)
    made = (_panel(name, unit, quantities, trained, baselines) for name, (unit, quantities) in _PANELS.items())
    return SignalFigure(title, tuple(panel for panel in made if panel.lines), len(baselines))


def _panel(
    title: str, unit: str, quantities: Sequence[Quantity], trained: Sequence[Step], baselines: Sequence[Run]
) -> Panel:
    lines = tuple(line for line in (_line(quantity, trained, baselines) for quantity in quantities) if line is not None)
    apart = _are_apart(lines)
    if apart:
        positive = all(min(line.candidate.values) > 0 for line in lines)
        return Panel(title, unit, lines, positive and any(_spans_factors((line,)) for line in lines), apart)
    return Panel(title, unit, lines, _spans_factors(lines))


def _line(quantity: Quantity, trained: Sequence[Step], baselines: Sequence[Run]) -> Line | None:
    found = curve(trained, quantity)
    if found is None:
        return None
    # NaN is not smaller than anything.
    shown = {step: value for step, value in found.at().items() if abs(value) < LARGEST}
    faults = tuple(step for step in found.steps if step not in shown)
    kept = Curve(found.name, tuple(shown), tuple(shown.values()))
    return Line(quantity.title, kept, band(baselines, quantity), faults)


def _are_apart(lines: Sequence[Line]) -> bool:
    sizes = sorted(max((abs(value) for value in line.candidate.values), default=0.0) for line in lines)
    return len(sizes) > 1 and sizes[0] > 0 and sizes[-1] / sizes[0] >= APART_FROM


def _spans_factors(lines: Sequence[Line]) -> bool:
    values = [value for line in lines for value in line.candidate.values]
    return bool(values) and min(values) > 0 and max(values) / min(values) >= LOGARITHMIC_FROM
