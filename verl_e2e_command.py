"""Where the command `verl-e2e` and the processes that it starts begin: our packages come from this installation.

Our packages are called `bot` and `runners`, and other people's are, too: one that lies on PYTHONPATH or in the working
directory must not take the place of ours. This module has a name that no one else uses and imports neither before
`prefer_own_packages` was called.
"""

import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

INSTALLATION = Path(__file__).resolve().parent
OWN_PACKAGES = frozenset({"bot", "runners"})


class _OwnPackages(MetaPathFinder):
    """Finds our packages beside this file and nothing else anywhere."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  (importlib's signature)
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The spec of one of our top-level packages, None for every other name."""
        return PathFinder.find_spec(fullname, [str(INSTALLATION)]) if fullname in OWN_PACKAGES else None


def prefer_own_packages() -> None:
    """From here on `bot` and `runners` are those of this installation, whatever is first on `sys.path`."""
    if not any(isinstance(finder, _OwnPackages) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OwnPackages())


def run_module(name: str) -> None:
    """Run one of our modules as `python -m NAME` does; its arguments are those in `sys.argv`."""
    prefer_own_packages()
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def main() -> None:
    """Run the command `verl-e2e` and exit with its code."""
    prefer_own_packages()
    from verl_e2e.cli import main as command  # noqa: PLC0415  (after the packages are ours)

    command()


if __name__ == "__main__":
    main()
