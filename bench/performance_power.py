"""How often a slow-down is found, and how often a healthy run is called slow, by runs that only simulate noise.

    python bench/performance_power.py [--cases 20000]

Prints the tables of bench/results/comparisons.md. Noise between runs is normal on a logarithmic scale, or has heavy
tails (Student's t with 3 degrees of freedom) of the same spread.
"""

import argparse
import math
import random
from collections.abc import Callable

from verl_e2e.core.compare.performance import compare_performance
from verl_e2e.core.model.related import Performance

COUNTS = (3, 4, 5, 10, 20)
# The spread of healthy runs: a quiet host, and one full of other runs.
SPREADS = (0.05, 0.25)
FACTORS = {0.05: (1.1, 1.2, 1.3, 1.5, 2.0), 0.25: (1.5, 2.0, 3.0, 5.0)}
Draw = Callable[[random.Random], float]


def gauss(source: random.Random) -> float:
    return source.gauss(0, 1)


def heavy(source: random.Random) -> float:
    return gauss(source) / math.sqrt(sum(gauss(source) ** 2 for _ in range(3)) / 3) / math.sqrt(3)


def took(seconds: float) -> Performance:
    """A run that takes so long for a step of 1,000 tokens."""
    return Performance(
        settings="0" * 64, stack="0" * 64, host="", other_runs=0, step_s=seconds, tokens_per_s=1000 / seconds
    )


def found(count: int, spread: float, factor: float, cases: int, draw: Draw = gauss, *, base: bool = False) -> float:
    """The share of cases in which a run that takes `factor` times as long is called slower."""
    source, hits = random.Random(28), 0
    for _ in range(cases):
        runs = [took(math.exp(spread * draw(source))) for _ in range(count)]
        bases = [took(math.exp(spread * draw(source)))] if base else []
        own = took(factor * math.exp(spread * draw(source)))
        hits += bool(compare_performance(own, runs, bases).findings)
    return hits / cases


def row(name: str, cells: list[float], digits: int) -> None:
    print(f"| {name} | {' | '.join(f'{100 * cell:.{digits}f} %' for cell in cells)} |")


def table(title: str, heads: list[str]) -> None:
    print(f"\n| {title} | {' | '.join(heads)} |")
    print(f"|---{'|---:' * len(heads)}|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000, help="simulated cases for each cell")
    cases = parser.parse_args().cases
    heads = [f"{count} runs" for count in COUNTS]
    table("no change: called slower", heads)
    row("normal noise of 5 %", [found(count, 0.05, 1.0, cases) for count in COUNTS], 2)
    row("normal noise of 25 %", [found(count, 0.25, 1.0, cases) for count in COUNTS], 2)
    row("heavy tails of 25 %", [found(count, 0.25, 1.0, cases, heavy) for count in COUNTS], 2)
    row("normal, 25 %, beside one run on the merge base", [found(c, 0.25, 1.0, cases, base=True) for c in COUNTS], 2)
    for spread in SPREADS:
        table(f"noise of {spread:.0%}, a step takes: found".replace("%", " %"), heads)
        for factor in FACTORS[spread]:
            row(f"{factor:g} times as long", [found(count, spread, factor, cases // 4) for count in COUNTS], 1)


if __name__ == "__main__":
    main()
