"""Whether a cluster would run jobs: its commands answer, it takes the options, and a node sees the shared folder."""

import secrets

from verl_e2e.adapters.dispatch.order_folder import disk_errors
from verl_e2e.adapters.dispatch.slurm_commands import SlurmCommands
from verl_e2e.adapters.dispatch.slurm_script import gpus_words
from verl_e2e.adapters.dispatch.slurm_settings import SlurmSettings
from verl_e2e.ports import BackendError

_SCRIPT = "#!/bin/bash\ntrue\n"
# What a node prints that has no such file.
_MISSING = "missing"


def check_cluster(settings: SlurmSettings, commands: SlurmCommands, *, free_node_s: int = 20) -> str:
    """What the cluster is, in words; BackendError with the fix for the first thing that keeps jobs from running.

    It starts one task of a second on a node, without a GPU, and waits `free_node_s` for a free node.
    """
    version = commands.ask(["sbatch", "--version"])
    if version.code:
        fix = "install Slurm's commands there, or set VERL_E2E_SLURM_HOST to a host that has them"
        raise BackendError(f"`sbatch --version` ended with {version.code}: {version.error}; {fix}")
    for words in (["squeue", "--me", "--noheader"], ["scancel", "--version"]):
        answer = commands.ask(words)
        if answer.code:
            fix = "see that slurmctld runs and can be reached (`scontrol ping`)"
            raise BackendError(f"`{' '.join(words)}` ended with {answer.code}: {answer.error}; {fix}")
    size = ["--nodes=1", "--ntasks=1", "--time=10"]
    taken = commands.ask(["sbatch", "--test-only", *size, *gpus_words(settings.gpus, 1), *settings.options], _SCRIPT)
    if taken.code:
        fix = "correct VERL_E2E_SLURM_OPTIONS or VERL_E2E_SLURM_GPUS"
        raise BackendError(f"Slurm would not take a job with one GPU: {taken.error}; {fix}")
    accounting = commands.ask(["sacct", "--noheader", "--allocations", "--starttime=now"])
    kept = "with accounting" if accounting.code == 0 else "without accounting"
    return f"{version.text.strip()[:60]}, {kept}, {_on_a_node(settings, commands, free_node_s)}"


def _on_a_node(settings: SlurmSettings, commands: SlurmCommands, free_node_s: int) -> str:
    """Whether a node reads what this machine wrote into the folder of orders."""
    mark = secrets.token_hex(8)
    file = settings.folder / f".check-{mark}"
    with disk_errors():
        file.write_text(mark)
    try:
        words = ["srun", f"--immediate={free_node_s}", "--nodes=1", "--ntasks=1", "--time=1", *settings.options]
        read = commands.ask([*words, "sh", "-c", f'cat "$1" 2>/dev/null || echo {_MISSING}', "sh", str(file)])
    finally:
        file.unlink(missing_ok=True)
    if read.text == mark:
        return "a node sees the folder of orders"
    if read.text.strip() == _MISSING:
        fix = "name a folder in VERL_E2E_SLURM_FOLDER that the nodes have at the same path"
        raise BackendError(f"a node does not see what lies in {settings.folder}; {fix}")
    return f"no node looked at the folder of orders within {free_node_s} s ({read.error})"
