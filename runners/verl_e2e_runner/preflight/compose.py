"""Checks that verl's Hydra configuration accepts the run's overrides and has the values that the job expects."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.findings import blocked, good
from verl_e2e_runner.preflight.dry_call import DryCall
from verl_e2e_runner.process.confined import with_own_scratch
from verl_e2e_runner.process.program import run
from verl_e2e_runner.process.session import IMPORTS_VARIABLE
from verl_e2e_runner.trees.worktrees import Trees

# The exit code of the composing program where Hydra cannot be imported.
NO_HYDRA = 3

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Composition:
    """The composed configuration of each phase (None where it does not compose) and the findings."""

    configs: tuple[Config | None, ...]
    findings: tuple[Finding, ...]


def compose(job: Job, trees: Trees, calls: Sequence[DryCall], *, timeout_s: float = 120) -> Composition:
    """Compose the overrides of every phase in the job's Python, which imports Hydra and nothing of the stack."""
    requests = [composition_request(trees.verl, call) for call in calls]
    finished = run(
        (job.site.python, "-m", "verl_e2e_compose"),
        env={name: value for name, value in calls[0].environment.items() if name != IMPORTS_VARIABLE},
        cwd=trees.cwd,
        timeout_s=timeout_s,
        stdin=json.dumps(requests),
        cage=with_own_scratch(trees.cage, "composition"),
    )
    nothing = (None,) * len(requests)
    if finished.code == NO_HYDRA:
        fix = f"install hydra-core for {job.site.python}"
        return Composition(nothing, (blocked(Check.HYDRA, f"Hydra cannot be imported: {finished.last_error}", fix),))
    if finished.code != 0:
        summary = f"{job.site.python} could not compose the configuration ({finished.ending}): {finished.last_error}"
        return Composition(nothing, (blocked(Check.HYDRA, summary, "fix the `python` of the site profile"),))
    answers: list[dict[str, Any]] = json.loads(finished.stdout.strip().splitlines()[-1])
    configs = tuple(answer.get("config") for answer in answers)
    return Composition(configs, _judge(job, answers))


def _judge(job: Job, answers: Sequence[Mapping[str, Any]]) -> tuple[Finding, ...]:
    errors = list(dict.fromkeys(answer["error"] for answer in answers if "error" in answer))
    if errors:
        fix = "correct the override, or choose a verl commit whose configuration has the key"
        return tuple(
            blocked(Check.HYDRA, f"verl's configuration refuses the overrides: {error}", fix) for error in errors
        )
    wrong = [mismatch(answers[-1]["config"], key, value) for key, value in sorted(job.expected.items())]
    fix = "correct the variable or override that sets it; otherwise the run does not test what the job claims"
    findings = tuple(blocked(Check.HYDRA, summary, fix) for summary in wrong if summary)
    return findings or (good(Check.HYDRA, f"the overrides compose; {len(wrong)} expected values are set"),)


def mismatch(config: Config, key: str, expected: bool | int | float | str | None) -> str:
    """How a composed configuration differs from an expected value, a sentence; empty when it does not."""
    missing = object()
    value: Any = config
    for part in key.split("."):
        value = value.get(part, missing) if isinstance(value, Mapping) else missing
    if value is not missing and _same(value, expected):
        return ""
    shown = "is missing" if value is missing else f"is {value!r}"
    return f"{key} {shown} in the composed configuration, the job expects {expected!r}"


def _same(value: object, expected: object) -> bool:
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    return value == expected


def composition_request(verl: Path, call: DryCall) -> dict[str, object]:
    """What the composing program is asked for one call of verl's entry point, in the tree `verl`."""
    path = Path(call.option("config-path") or "config")
    folder = path if path.is_absolute() else verl / "verl" / "trainer" / path
    name = call.option("config-name") or "ppo_trainer"
    return {"folder": str(folder), "name": name, "overrides": list(call.overrides)}
