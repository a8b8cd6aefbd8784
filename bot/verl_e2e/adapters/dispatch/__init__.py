"""Where jobs run; every back end satisfies `verl_e2e.ports.Dispatcher`."""

import sys
from pathlib import Path

# How a child process calls `verl-e2e`: by the file of this installation, so that a stray package `bot` in the working
# directory or on PYTHONPATH is not started in its place.
COMMAND = (sys.executable, "-P", str(Path(__file__).resolve().parents[3] / "verl_e2e_command.py"))
