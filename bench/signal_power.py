"""How often level 5 says "learning-signal passed" of simulated rewards: without a rise, and with one of a known size.

    python bench/signal_power.py [--runs 10000]

Prints the tables of bench/results/learning-signal.md. Noise has standard deviation 1 at every strength of
autocorrelation.
"""

import argparse
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verl_e2e.core.signal.report import SignalOutcome, signal_report

LENGTHS = (10, 14, 20, 50, 100)
SIZES = (4, 6, 8, 10, 12)
Draw = Callable[[random.Random], float]


@dataclass(frozen=True, slots=True)
class Step:
    step: int
    values: dict[str, float]


def outcome(rewards: Sequence[float]) -> SignalOutcome:
    steps = [Step(at, {"critic/score/mean": reward}) for at, reward in enumerate(rewards, start=1)]
    return signal_report(steps).outcome


def gauss(source: random.Random) -> float:
    return source.gauss(0, 1)


def heavy(source: random.Random) -> float:
    """Student's t with three degrees of freedom, scaled to variance 1."""
    return gauss(source) / math.sqrt(sum(gauss(source) ** 2 for _ in range(3)) / 3) / math.sqrt(3)


def carried(source: random.Random, count: int, strength: float, draw: Draw = gauss) -> list[float]:
    """Autoregressive noise of order one."""
    values, kept = [], math.sqrt(1 - strength**2)
    last = draw(source)
    for _ in range(count):
        values.append(last)
        last = strength * last + kept * draw(source)
    return values


def wandering(source: random.Random, count: int) -> list[float]:
    values, at = [], 0.0
    for _ in range(count):
        at += gauss(source)
        values.append(at)
    return values


def rare(source: random.Random, count: int) -> list[float]:
    """The mean of 64 rewards that are 1 once in a hundred and else 0."""
    return [sum(source.random() < 0.01 for _ in range(64)) / 64 for _ in range(count)]


FLAT: dict[str, Callable[[random.Random, int], list[float]]] = {
    "independent, normal": lambda source, count: carried(source, count, 0),
    "independent, heavy tails (t, 3 degrees)": lambda source, count: carried(source, count, 0, heavy),
    "rare successes, many ties": rare,
    "autocorrelation 0.3": lambda source, count: carried(source, count, 0.3),
    "autocorrelation 0.5": lambda source, count: carried(source, count, 0.5),
    "autocorrelation 0.7": lambda source, count: carried(source, count, 0.7),
    "a random walk": wandering,
}
RISES: dict[str, Callable[[float], float]] = {
    "even": lambda part: part,
    "fast, then level": lambda part: (1 - math.exp(-4 * part)) / (1 - math.exp(-4)),
    "level, then fast": lambda part: max(0.0, 2 * part - 1),
    "ever faster": lambda part: math.expm1(4 * part) / math.expm1(4),
    "S-shaped": lambda part: 1 / (1 + math.exp(-10 * (part - 0.5))),
    "one jump half-way": lambda part: float(part > 0.5),
}


def share(make: Callable[[random.Random], list[float]], runs: int, wanted: SignalOutcome) -> float:
    source = random.Random(20)
    return sum(outcome(make(source)) is wanted for _ in range(runs)) / runs


def of_flat(name: str, count: int, runs: int, wanted: SignalOutcome = SignalOutcome.PASSED) -> float:
    return share(lambda source: FLAT[name](source, count), runs, wanted)


def of_rise(name: str, count: int, size: float, runs: int, strength: float = 0.0) -> float:
    def make(source: random.Random) -> list[float]:
        noise = carried(source, count, strength)
        return [size * RISES[name](at / (count - 1)) + error for at, error in enumerate(noise)]

    return share(make, runs, SignalOutcome.PASSED)


def table(title: str, heads: Sequence[object], rows: dict[str, list[float]], digits: int) -> None:
    print(f"| {title} | {' | '.join(map(str, heads))} |")
    print(f"|---{'|---:' * len(heads)}|")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(f'{100 * cell:.{digits}f} %' for cell in cells)} |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="simulated runs of 20 steps for each cell")
    runs = parser.parse_args().runs
    each = {count: max(1, min(runs, runs * 20 // count)) for count in LENGTHS}
    heads = [f"{count} steps" for count in LENGTHS]
    table("no rise: called passed", heads, {n: [of_flat(n, c, each[c]) for c in LENGTHS] for n in FLAT}, 2)
    fell = {n: [of_flat(n, c, each[c], SignalOutcome.UNSTABLE) for c in LENGTHS] for n in FLAT}
    table("no fall: called unstable", heads, fell, 2)
    for count in (20, 50):
        rows = {n: [of_rise(n, count, size, each[count] // 5) for size in SIZES] for n in RISES}
        rows["even, autocorrelation 0.5"] = [of_rise("even", count, size, each[count] // 5, 0.5) for size in SIZES]
        table(f"rise in {count} steps, in units of the noise: found", SIZES, rows, 1)


if __name__ == "__main__":
    main()
