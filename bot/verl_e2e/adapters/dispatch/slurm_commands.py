"""Starts the commands of Slurm, on this machine or by ssh. No other module does."""

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from verl_e2e.adapters.dispatch.order_folder import safe_environment
from verl_e2e.ports import BackendError

# ssh's own exit code where the connection, and not the command, failed.
_NO_CONNECTION = 255
# Variables by which a user changes what the commands do and print.
_DEFAULTS_OF_SLURM = ("SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SLURM_JOB")
_ANSWER_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended."""

    code: int
    """Its exit code."""
    text: str
    """Its standard output."""
    error: str
    """The last line of its standard error, at most 300 characters."""


@dataclass(frozen=True, slots=True)
class SlurmCommands:
    """The commands of one cluster."""

    host: str = ""
    """The host where they are run, by ssh; empty: this machine."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment, of which secrets and the service's own settings are not handed down."""
    ssh: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
    """How ssh is called: it never asks for a password."""
    time_s: float = 60.0
    """Seconds that a command may take."""

    def ask(self, words: Sequence[str], stdin: str = "") -> Answer:
        """Run one command to its end; BackendError where it cannot be run or gives no answer.

        Such an error is `uncertain`, for the command may have done its work.
        """
        command = self._command(words)
        try:
            ended = subprocess.run(
                command,
                input=stdin.encode(),
                env=self._environment(),
                cwd="/",
                capture_output=True,
                timeout=self.time_s,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise self._silent(command, f"gave no answer within {self.time_s:g} s") from None
        except OSError as error:
            what = f"{command[0]} cannot be started: {error.strerror}"
            raise BackendError(f"{what}; install Slurm's commands, or name a host in VERL_E2E_SLURM_HOST") from error
        answer = Answer(ended.returncode, ended.stdout[:_ANSWER_BYTES].decode(errors="replace"), _last(ended.stderr))
        if self.host and answer.code == _NO_CONNECTION:
            raise self._silent(command, f"did not reach {self.host}: {answer.error}")
        return answer

    def _command(self, words: Sequence[str]) -> list[str]:
        # ssh hands one text to a shell of the other host.
        return [*self.ssh, self.host, "--", shlex.join(words)] if self.host else [*words]

    def _environment(self) -> dict[str, str]:
        kept = safe_environment(self.environ)
        return {name: value for name, value in kept.items() if not name.startswith(_DEFAULTS_OF_SLURM)}

    def _silent(self, command: Sequence[str], what: str) -> BackendError:
        fix = "see that slurmctld runs and can be reached (`scontrol ping`)"
        return BackendError(f"{command[0]} {what}; {fix}", uncertain=True)


def _last(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "no message"
