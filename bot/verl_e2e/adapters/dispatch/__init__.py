"""Run jobs on this machine: for `verl-e2e check` while it waits, or for the service as its back end."""

import sys
from pathlib import Path

# How a child process calls `verl-e2e`: by the file of this installation, so that no other one on PYTHONPATH or in the
# working directory is started in its place.
COMMAND = (sys.executable, "-P", str(Path(__file__).resolve().parents[2] / "__main__.py"))
