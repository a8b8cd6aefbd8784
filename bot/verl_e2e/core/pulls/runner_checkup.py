"""What a check-up finds about runners: whether what one job leaves behind can reach another job."""

from collections.abc import Collection, Iterator, Mapping

from verl_e2e.core.pulls.checkup import Finding, error_finding, note, ok_finding
from verl_e2e.core.pulls.forge import Machine

Labels = Mapping[int, tuple[str, ...]]
_FORKS = "runners for forks"
_SETTING = "VERL_E2E_FORK_RUNNERS"
_EPHEMERAL = "register it with --ephemeral or --jitconfig, so that it serves one job and is gone"


def of_fork_pool(machines: Collection[Machine], runners: Labels, forks: Labels) -> Iterator[Finding]:
    """The pool of forks: there, of runners that serve one job, and apart from the other runners."""
    if not forks:
        message = "no runners are named for the jobs of forks, so these share the runners of everyone's jobs"
        yield error_finding(
            _FORKS, message, f"give forks ephemeral runners with labels of their own, and name them in {_SETTING}"
        )
        return
    pool = [machine for machine in machines if _takes(machine, forks)]
    both = [machine for machine in machines if _takes(machine, forks) and _takes(machine, runners)]
    kept = [machine for machine in pool if machine.ephemeral is False]
    unknown = [machine for machine in pool if machine.ephemeral is None]
    if both:
        message = f"{_names(both)} would take jobs of forks and other jobs"
        yield error_finding(
            _FORKS, message, f"give it the labels of one pool alone; {_SETTING} and VERL_E2E_RUNNERS name them"
        )
    if kept:
        message = f"{_names(kept)} takes jobs of forks and stays: what one leaves behind reaches the next"
        yield error_finding(_FORKS, message, _EPHEMERAL)
    if unknown:
        yield note(_FORKS, f"GitHub does not tell whether {_names(unknown)} serves one job only", _EPHEMERAL)
    if not (both or kept or unknown):
        # Just-in-time runners are registered when a job waits, so an empty pool is nothing to fix.
        there = f"{_names(pool)}: one job each" if pool else "none is registered now; a job waits until one is"
        yield ok_finding(_FORKS, f"forks have a pool of their own: {there}")


def of_kept_runners(machines: Collection[Machine], runners: Labels) -> Iterator[Finding]:
    """Runners of other jobs that stay: their owners know them, and we report them anyway."""
    kept = [machine for machine in machines if _takes(machine, runners) and machine.ephemeral is False]
    if kept:
        yield note("runners that stay", f"{_names(kept)} serves one job after another on the same disk", _EPHEMERAL)


def _takes(machine: Machine, runners: Labels) -> bool:
    own = {label.lower() for label in machine.labels}
    return any({label.lower() for label in labels} <= own for labels in runners.values())


def _names(machines: Collection[Machine]) -> str:
    return ", ".join(sorted(machine.name for machine in machines))
