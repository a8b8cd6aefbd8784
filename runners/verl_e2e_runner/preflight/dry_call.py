"""The wrapper's real command line and environment, from the wrapper itself, without a GPU or an import.

The real script runs with stand-ins first on PATH. `python3` and similar programs only record how they are called, and
the wrapper's device query is answered with `cuda`. So Hydra's arguments and the exported environment are those of the
run, after every default, expansion and word split of the script.
"""

import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.findings import blocked
from verl_e2e_runner.folder.suspect_files import names_below, read_below
from verl_e2e_runner.process.cage import Cage
from verl_e2e_runner.process.confined import hand_folder_over, let_everyone_read, with_own_scratch
from verl_e2e_runner.process.program import Finished, run
from verl_e2e_runner.verl_wrapper import Launch

ENTRY_POINT = "verl.trainer.main_ppo"
_MOST_BYTES = 4 << 20

# Interpreters and launchers, and whatever else in a wrapper would reach the network, a cluster or a package.
_STAND_INS = (
    *("python3", "python", "uv", "torchrun", "ray", "nsys", "accelerate"),
    *("pip", "pip3", "hf", "huggingface-cli", "git", "wget", "curl", "docker"),
)

_SCRIPT = """#!/bin/sh
folder={folder}
printf '%s\\0' "${{0##*/}}" "$@" > "$folder/$$.argv"
env -0 > "$folder/$$.env"
for word in "$@"; do
  case $word in
    -) cat > /dev/null; echo cuda; exit 0 ;;
    -c) echo cuda; exit 0 ;;
  esac
done
exit 0
"""


@dataclass(frozen=True, slots=True)
class DryCall:
    """The call of verl's entry point, as the wrapper makes it."""

    # `python3`, or the launcher before it.
    program: str
    # What follows `-m verl.trainer.main_ppo`.
    arguments: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def overrides(self) -> tuple[str, ...]:
        """The Hydra overrides among the arguments."""
        return tuple(item for item in self.arguments if not item.startswith("-"))

    def option(self, name: str) -> str | None:
        """The value of `--name=value`, None when the wrapper does not pass it."""
        prefix = f"--{name}="
        return next((item.removeprefix(prefix) for item in self.arguments if item.startswith(prefix)), None)


def dry_call(launch: Launch, work: Path, *, timeout_s: float = 60, cage: Cage | None = None) -> DryCall | Finding:
    """Run the wrapper of `launch` against stand-ins below `work`; a finding when it never called the entry point."""
    name = f"dry-call-{launch.phase.name}"
    cage = with_own_scratch(cage, name)
    given = (cage.outbox if cage else work) / name
    folder = cage.outside(given) if cage else given
    shutil.rmtree(folder, ignore_errors=True)
    _make_stand_ins(folder, given)
    if cage:
        hand_folder_over(folder, cage)
    shims = given / "bin"
    path = f"{shims}{os.pathsep}{launch.environment.get('PATH', '')}"
    finished = run(
        launch.argv, env={**launch.environment, "PATH": path}, cwd=launch.cwd, timeout_s=timeout_s, cage=cage
    )
    for name in names_below(folder):
        words = _zero_separated(folder, name) if name.endswith(".argv") else []
        if ENTRY_POINT in words:
            position = words.index(ENTRY_POINT)
            variables = _zero_separated(folder, f"{name.removesuffix('.argv')}.env")
            environment = dict(item.split("=", 1) for item in variables if "=" in item)
            environment["PATH"] = environment.get("PATH", "").replace(f"{shims}{os.pathsep}", "")
            return DryCall(words[0], tuple(words[position + 1 :]), environment)
    return _never_called(launch, finished)


def check_dry_call(call: DryCall, launch: Launch) -> tuple[Finding, ...]:
    """Findings for overrides that the entry point does not get, and for `uv`."""
    findings = []
    if call.program == "uv":
        findings.append(
            blocked(
                Check.WRAPPER,
                "the wrapper starts verl through `uv run`, with the packages of verl's lock file and not those of this"
                " host's Python: the checks of preflight would not be valid for the run",
                "set VERL_USE_UV=0 in the job's `wrapper` map, or choose a verl commit whose wrapper reads it",
            )
        )
    given = launch.argv[2:]
    lost = [item for item in given if item not in call.arguments]
    if lost:
        findings.append(
            blocked(
                Check.WRAPPER,
                f"the wrapper changes this override: {lost[0]} (it splits at white space and expands file name"
                " patterns)",
                "use paths and values without white space and without file name patterns",
            )
        )
    return tuple(findings)


def _make_stand_ins(folder: Path, given: Path) -> None:
    """The stand-ins in a folder that they know as `given`."""
    shims = folder / "bin"
    shims.mkdir(parents=True)
    script = shims / _STAND_INS[0]
    script.write_text(_SCRIPT.format(folder=shlex.quote(str(given))))
    script.chmod(0o755)
    for name in _STAND_INS[1:]:
        (shims / name).symlink_to(script.name)
    # Where the user of a cage cannot read them, a shell goes on to the real programs.
    let_everyone_read(shims)


def _zero_separated(folder: Path, name: str) -> list[str]:
    raw = read_below(folder, name, limit=_MOST_BYTES)
    return (raw or b"").decode(errors="surrogateescape").split("\0")[:-1]


def _never_called(launch: Launch, finished: Finished) -> Finding:
    lines = (finished.stdout + "\n" + finished.stderr).splitlines()
    spoken = [line.strip() for line in lines if line.strip() and not line.startswith("+")]
    last = f": {spoken[-1][:300]}" if spoken else ""
    return blocked(
        Check.WRAPPER,
        f"{Path(launch.argv[1]).name} ended ({finished.ending}) without starting {ENTRY_POINT}{last}",
        "run the command of `--dry-run` by hand to see why, then set the variables or the verl commit that it needs",
    )
