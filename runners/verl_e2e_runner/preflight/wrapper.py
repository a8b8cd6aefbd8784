"""Preflight of the wrapper: its contract with the job, its real command line, and verl's configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.findings import note, stops
from verl_e2e_runner.preflight.compose import Config, compose
from verl_e2e_runner.preflight.contract import check_contract
from verl_e2e_runner.preflight.dry_call import DryCall, check_dry_call, dry_call
from verl_e2e_runner.process.session import Session
from verl_e2e_runner.trees.worktrees import Trees
from verl_e2e_runner.verl_wrapper import DROPPABLE, Launch, launches, wrapper_map


@dataclass(frozen=True, slots=True)
class WrapperCheck:
    """The results of the wrapper's checks."""

    launches: tuple[Launch, ...]
    findings: tuple[Finding, ...]
    # The variables that the script reads; None when it could not be read.
    reads: frozenset[str] | None = None
    # The composed configuration of each phase in order; empty when the call or the composition failed.
    configs: tuple[Config, ...] = ()
    # What the wrapper exports to verl's entry point in the first phase; None when the call failed.
    driver_environment: Mapping[str, str] | None = None


def check_wrapper(
    job: Job, trees: Trees, session: Session, *, base: Mapping[str, str], model: str | None, work: Path
) -> WrapperCheck:
    """Read the wrapper, call every phase dry and compose what verl would get; each part needs the one before."""
    starts = launches(job, trees, session, base=base, model=model)
    script = trees.verl / job.script
    if not trees.has("verl") or not script.is_file():
        return WrapperCheck(starts, _untried(Check.WRAPPER, Check.HYDRA))
    variables = {name: value for start in starts for name, value in start.phase.wrapper.items()}
    variables = {**wrapper_map(job, trees, base=base, model=model), **variables}
    text = script.read_text(errors="replace")
    reads, findings = check_contract(text, job.script, variables, droppable=DROPPABLE)
    if stops(findings):
        return WrapperCheck(starts, (*findings, *_untried(Check.HYDRA)))
    starts = launches(job, trees, session, base=base, model=model, reads=reads)
    called = [dry_call(start, work, cage=trees.cage) for start in starts]
    calls = [result for result in called if isinstance(result, DryCall)]
    findings = (*findings, *(result for result in called if isinstance(result, Finding)))
    for start, call in zip(starts, calls, strict=False):
        findings = (*findings, *check_dry_call(call, start))
    if stops(findings):
        return WrapperCheck(starts, (*findings, *_untried(Check.HYDRA)), reads)
    composed = compose(job, trees, calls)
    configs = tuple(config for config in composed.configs if config is not None)
    return WrapperCheck(starts, (*findings, *composed.findings), reads, configs, calls[0].environment)


def _untried(*checks: Check) -> tuple[Finding, ...]:
    return tuple(note(check, f"{check} was not checked, because an earlier check blocks the run") for check in checks)
