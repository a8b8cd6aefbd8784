"""Preflight: every check before a GPU hour is spent, cheap ones first and all of them reported together."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Check, Finding, Gpu, ImportLine, RunContainer
from verl_e2e_runner.findings import Emit, emit_findings, stops, untried
from verl_e2e_runner.preflight.host import (
    check_disk,
    check_gpus,
    check_image,
    check_ray_cpus,
    read_container,
    usable_processors,
)
from verl_e2e_runner.preflight.imports import Interpreter, ask_interpreter, prove_imports
from verl_e2e_runner.preflight.inputs import (
    check_data,
    check_model,
    check_readable,
    check_reward_model,
    check_stale_checkpoints,
    found_model,
    model_place,
)
from verl_e2e_runner.preflight.prepare import cache_variables, prepare
from verl_e2e_runner.preflight.wrapper import Config, WrapperCheck, check_wrapper
from verl_e2e_runner.process.environment import Session, hub_cache
from verl_e2e_runner.sharing import Devices, read_devices, visible
from verl_e2e_runner.trees import Trees
from verl_e2e_runner.verl_wrapper import Launch, launches


@dataclass(frozen=True, slots=True)
class Preflight:
    """All that preflight found out."""

    findings: tuple[Finding, ...]
    # Ready to start when nothing in `findings` blocks.
    launches: tuple[Launch, ...]
    # The composed configurations of the phases.
    configs: tuple[Config, ...] = ()
    # What the import proof saw; empty where a cheap check already blocked.
    imports: tuple[ImportLine, ...] = ()
    interpreter: Interpreter = field(default_factory=Interpreter)
    # Those that the run will see.
    gpus: tuple[Gpu, ...] = ()
    # The NVIDIA driver's version.
    driver: str = ""
    container: RunContainer | None = None

    @property
    def blocked(self) -> bool:
        """Whether the run must not start."""
        return stops(self.findings)


def preflight(
    job: Job,
    trees: Trees,
    session: Session,
    *,
    base: Mapping[str, str],
    work: Path,
    emit: Emit,
    devices: Callable[[], Devices] = read_devices,
) -> Preflight:
    """Run all checks; the expensive ones (downloads, imports) only when no cheap one blocks.

    `base` is the runner's environment, `work` a folder of the run's own, `devices` asks for the GPUs. Every finding
    goes to `emit` once, those of `trees` included.
    """
    work = work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    base = {**base, **cache_variables(job, variables_of(job, base), work)}
    with _phase(emit, "preflight"):
        wrapper, seen = _cheap(job, trees, session, devices(), base=base, work=work)
        if seen.blocked:
            known = {finding.check for finding in seen.findings}
            later = (Check.PACKAGES, Check.IMPORT_DRIVER, Check.IMPORT_WORKER)
            missing = untried(*(check for check in later if check not in known))
            seen = replace(seen, findings=(*seen.findings, *missing))
        emit_findings(emit, seen.findings)
    if seen.blocked:
        return seen
    with _phase(emit, "prepare"):
        made = _prepare(job, trees, seen.launches[0].environment, base=base, work=work)
        emit_findings(emit, made)
        seen = replace(seen, findings=(*seen.findings, *made))
        model = found_model(job, variables_of(job, base))
        seen = replace(seen, launches=launches(job, trees, session, base=base, model=model, reads=wrapper.reads))
    if seen.blocked:
        return seen
    with _phase(emit, "imports"):
        assert wrapper.driver_environment is not None
        runtime_env = lookup(wrapper.configs[0], "ray_kwargs.ray_init.runtime_env") or {}
        proof = prove_imports(job, trees, session, wrapper.driver_environment, runtime_env, work)
        emit_findings(emit, proof.findings)
    return replace(seen, findings=(*seen.findings, *proof.findings), imports=proof.lines)


def _cheap(
    job: Job, trees: Trees, session: Session, devices: Devices, *, base: Mapping[str, str], work: Path
) -> tuple[WrapperCheck, Preflight]:
    container = read_container(base).model_copy(update={"asked": job.site.image})
    wrapper = check_wrapper(job, trees, session, base=base, model=found_model(job, variables_of(job, base)), work=work)
    variables = wrapper.launches[0].environment
    interpreter = Interpreter()
    packages: tuple[Finding, ...] = ()
    if trees.cwd.is_dir():
        # Under the environment that the wrapper gives its driver, or the runner's idea of it where that is not known.
        interpreter, packages = ask_interpreter(job, trees, wrapper.driver_environment or variables)
    folders = {"hub cache": hub_cache(variables), "checkpoints": trees.cwd, "work": work}
    if job.site.scratch is not None:
        folders["scratch"] = Path(job.site.scratch)
    config = wrapper.configs[-1] if wrapper.configs else None
    readable = check_readable(job, trees, variables, config, model=model_place(job, variables_of(job, base)))
    # What cannot be read is neither there nor missing, and to look at it would be an error.
    inputs: tuple[Finding, ...] = ()
    if not stops(readable):
        inputs = (
            *check_data(job, trees.cwd, variables, prepared=False),
            *check_model(job, trees.cwd, variables, prepared=False),
            check_reward_model(job, trees.cwd, config),
            check_stale_checkpoints(trees.cwd, config),
        )
    # First what another host, or its administrator, decides: the first one that blocks is what the card begins with.
    findings = (
        *check_gpus(job, devices, variables, session.ray_address),
        *readable,
        check_ray_cpus(job, config, usable_processors()),
        *trees.findings,
        *wrapper.findings,
        *packages,
        *inputs,
        *check_disk(folders, job.site.min_free_gib),
        check_image(job, container),
    )
    shown = visible(devices.devices, variables.get("CUDA_VISIBLE_DEVICES"))
    gpus = tuple(device.gpu for device in shown)
    found = Preflight(findings, wrapper.launches, wrapper.configs, (), interpreter, gpus, devices.driver, container)
    return wrapper, found


def _prepare(
    job: Job, trees: Trees, variables: Mapping[str, str], *, base: Mapping[str, str], work: Path
) -> tuple[Finding, ...]:
    """Prepare what is missing, then check that everything is there."""
    made = prepare(job, trees, variables, base, work)
    if stops(made):
        return made
    model = model_place(job, variables_of(job, base))
    readable = check_readable(job, trees, variables, None, model=model) if made else ()
    if stops(readable):
        return (*made, *readable)
    there = (
        *readable,
        *check_data(job, trees.cwd, variables, prepared=True),
        *check_model(job, trees.cwd, variables, prepared=True),
    )
    return (*made, *(finding for finding in there if not finding.ok))


def variables_of(job: Job, base: Mapping[str, str]) -> dict[str, str]:
    """The runner's environment with what the job's site and the job set for every process."""
    return {**base, **job.site.process, **job.process}


@contextmanager
def _phase(emit: Emit, name: str) -> Iterator[None]:
    began = time.monotonic()
    emit("phase", name=name, state="begin")
    try:
        yield
    finally:
        emit("phase", name=name, state="end", seconds=round(time.monotonic() - began, 3))
