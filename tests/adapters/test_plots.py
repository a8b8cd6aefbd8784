"""The drawn plots: all files there, whole, and the same bytes each time."""

import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.core.signal.series import noisy, run_of, with_value
from verl_e2e.core.signal.report import THEMES, BaselineRun, SignalFigure, signal_figure

pytestmark = pytest.mark.plots

STEPS = run_of(noisy(0, 0.3))
BASES = tuple(BaselineRun(f"base-{seed}", run_of(noisy(seed, 0.3), seed=seed)) for seed in (1, 2, 3))


def drawn(figure: SignalFigure, folder: Path) -> dict[str, bytes]:
    from verl_e2e.adapters.files.plots import draw

    return {path.name: path.read_bytes() for path in draw(figure, folder)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return drawn(signal_figure("5-signal", STEPS, BASES), tmp_path_factory.mktemp("first") / "new" / "plots")


def test_there_is_one_of_each_kind(files: dict[str, bytes]) -> None:
    assert sorted(files) == ["signal-dark.png", "signal-dark.svg", "signal-light.png", "signal-light.svg"]
    assert all(content.startswith(b"\x89PNG\r\n") for name, content in files.items() if name.endswith("png"))
    assert all(len(content) < 400_000 for content in files.values())


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_an_svg_shows_the_colours_of_its_theme(files: dict[str, bytes], theme: object) -> None:
    (found,) = [item for item in THEMES if item is theme]
    text = files[f"signal-{found.name}.svg"].decode()
    ElementTree.fromstring(text)
    assert all(color in text for color in (found.background, found.text, *found.lines))


def test_the_same_values_give_the_same_bytes_and_a_link_in_the_place_of_a_plot_is_not_followed(
    files: dict[str, bytes], tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("kept")
    (tmp_path / "signal-dark.svg").symlink_to(theirs)
    assert drawn(signal_figure("5-signal", STEPS, BASES), tmp_path) == files
    assert theirs.read_text() == "kept"


def test_no_date_and_no_version_is_in_them(files: dict[str, bytes]) -> None:
    for content in files.values():
        assert not re.search(rb"20\d\d-\d\d-\d\d|matplotlib v|Matplotlib version", content)


@pytest.mark.parametrize(
    "steps",
    [
        with_value(STEPS, 7, actor__pg_loss=math.nan),
        run_of([0.5] * 20, actor__grad_norm=0.0, actor__kl_loss=math.inf),
        run_of([0.1]),
        with_value(STEPS, 9, actor__grad_norm=1e300),
        (),
    ],
    ids=["a NaN", "constants", "one step", "huge", "nothing"],
)
def test_every_run_can_be_drawn(steps: tuple[object, ...], tmp_path: Path) -> None:
    assert len(drawn(signal_figure("odd", steps), tmp_path)) == 4  # type: ignore[arg-type]
