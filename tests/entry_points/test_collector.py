"""How often a process that plans looks for cycles."""

import subprocess
import sys

from tests.fakes.patience import HANG_S

# What is registered first runs last.
PROGRAM = """
import atexit, gc
atexit.register(lambda: print(len(gc.get_objects()) < 1000, gc.get_threshold()[0] > 1_000_000))
from verl_e2e.wiring.planning import collect_seldom
collect_seldom()
kept = [[number] for number in range(10_000)]
"""


def test_what_is_left_when_python_ends_is_not_looked_at() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=HANG_S)
    assert done.stdout == "True True\n"
