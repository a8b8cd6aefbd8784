"""`python -m verl_e2e` is `verl-e2e`, and so is this file started by its path.

A child process starts it by its path. Python does not know the package then: it is looked for in the folder of this
installation first, so that no other installation on PYTHONPATH takes its place.
"""

import sys
from pathlib import Path

if not __package__:
    _here = Path(__file__).resolve().parents[1]
    # In a checkout the runner lies in a folder of its own, in an installation next to the bot.
    sys.path[:0] = [str(folder) for folder in (_here, _here.parent / "runners") if folder.is_dir()]

from verl_e2e.cli import main

if __name__ == "__main__":
    main()
