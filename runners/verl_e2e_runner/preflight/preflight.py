"""Preflight: every check before a GPU hour is spent, cheap ones first and all of them reported together.

What is missing and can be made, data, model and cache folders, is prepared once, before any worker starts.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.log.printed import lookup
from verl_e2e.core.model.jobs import Checkpoint, Job
from verl_e2e.core.model.outcome import Stage
from verl_e2e.core.model.record import Check, Finding, Gpu, ImportLine, RunContainer
from verl_e2e_runner.launch.launcher import Config, Launch, LaunchCheck, pictures_folder
from verl_e2e_runner.launch.launchers import launcher_of
from verl_e2e_runner.models import make_images, make_model
from verl_e2e_runner.preflight.host import (
    Interpreter,
    ask_interpreter,
    check_disk,
    check_gpus,
    check_image,
    check_ray_cpus,
    free_gib,
    read_container,
    usable_processors,
)
from verl_e2e_runner.preflight.imports import prove_imports
from verl_e2e_runner.preflight.inputs import (
    check_data,
    check_model,
    check_processor,
    check_readable,
    check_reward_model,
    check_stale_checkpoints,
    data_files,
    found_model,
    model_path,
    model_place,
)
from verl_e2e_runner.process.cage import (
    OWN_PLACES,
    Session,
    cached_snapshot,
    hub_cache,
    hub_home,
    is_offline,
    model_folder,
)
from verl_e2e_runner.process.processes import FinishedProgram, run_program
from verl_e2e_runner.reporting import Emit, blocked, emit_findings, good, stops, untried
from verl_e2e_runner.samplers import Devices, read_devices, visible
from verl_e2e_runner.trees import Trees

# A model made from a dummy config needs the tokenizer and configuration of its base model, not the weights.
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx")

# For a download, and for a script that makes data.
_PREPARE_S = 1800.0

_DOWNLOAD = """
import json, sys
from huggingface_hub import snapshot_download
model, ignored = json.load(sys.stdin)
print(snapshot_download(model, ignore_patterns=ignored or None))
"""

# Caches that would otherwise fill the home folder: variable, and folder below the chosen root.
_CACHES = {
    "HF_HOME": "huggingface",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "VLLM_CACHE_ROOT": "vllm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}


def cache_variables(job: Job, variables: Mapping[str, str], work: Path) -> dict[str, str]:
    """Cache folders on a disk with enough space: none when the default has it, else below the site's scratch or `work`.

    What the job or the host sets already stays as it is; with the hub offline HF_HOME does too.
    """
    if free_gib(hub_home(variables)) >= job.site.min_free_gib:
        return {}
    root = Path(job.site.scratch) if job.site.scratch else work / "cache"
    if free_gib(root) < job.site.min_free_gib:
        return {}
    chosen = {name: str(root / folder) for name, folder in _CACHES.items() if name not in variables}
    if is_offline(variables):
        chosen.pop("HF_HOME", None)
    return chosen


def prepare(
    job: Job, trees: Trees, variables: Mapping[str, str], base: Mapping[str, str], work: Path
) -> tuple[Finding, ...]:
    """Prepare missing data and download a missing model, and see whether its processor can be loaded.

    Existing files are not changed.

    `variables` is the run's environment. Downloads run without the code under test on PYTHONPATH, and may
    therefore use the hub token of `base`, which the run never sees.
    """
    trusted = {name: value for name, value in variables.items() if name not in ("PYTHONPATH", "VERL_E2E_PATH")}
    if trees.cage is not None:
        # These programs run as the runner: what one makes in the home or the caches of the cage, as PyTorch makes a
        # folder when it is imported, the cage's user could not write.
        kept = {name: value for name, value in trusted.items() if name not in OWN_PLACES}
        trusted = {**kept, **{name: base[name] for name in OWN_PLACES if name in base}}
    trusted["PYTHONPATH"] = os.pathsep.join(job.site.python_path)
    trusted.update({name: base[name] for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if name in base})
    findings = _prepare_data(job, trees, trusted, work)
    if not stops(findings):
        known = model_path(job)
        findings = (*findings, *_prepare_model(job, job.checkpoint, known, trusted, work))
    if job.reward_model and not stops(findings):
        known = job.reward_model.model_path
        findings = (*findings, *_prepare_model(job, job.reward_model, known, trusted, work))
    if not stops(findings):
        findings = (*findings, *check_processor(job, trees.cwd, trusted, work))
    return findings


def _prepare_data(job: Job, trees: Trees, variables: Mapping[str, str], work: Path) -> tuple[Finding, ...]:
    if job.data.prepare == "images":
        folder = pictures_folder(variables)
        pictures = make_images(folder, python=job.site.python, variables=variables, work=work)
        if not pictures.problem:
            return (good(Check.DATA, pictures.summary),)
        fix = "look at the `datasets` and the Pillow of the job's Python: verl reads such data with them"
        return (blocked(Check.DATA, f"the pictures could not be made: {pictures.problem}", fix, stage=Stage.DATA),)
    files = data_files(job, trees.cwd, variables)
    absent = [file for group in files.values() for file in group if not file.is_file()]
    if not absent or job.data.prepare != "gsm8k":
        return ()
    made = work / "gsm8k"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    argv, results = launcher_of(job).data(job, trees, made)
    script = f"{consumer_of(job).title}'s GSM8K script"
    # It may import the consumer; that is the pinned one, not the pull request.
    path = os.pathsep.join((str(trees.verl), *job.site.python_path))
    finished = run_program(argv, env={**variables, "PYTHONPATH": path}, cwd=work, timeout_s=_PREPARE_S)
    if finished.code != 0 or not all(result.is_file() for result in results.values()):
        return (_failed(Check.DATA, script, finished, Stage.DATA),)
    for key, group in files.items():
        for file in group:
            if not file.is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                # Another run of this host may read it now: it is there whole or not at all.
                partial = file.with_name(f".{file.name}.{os.getpid()}")
                shutil.copyfile(results[key], partial)
                partial.replace(file)
    return (good(Check.DATA, f"made by {script} in {finished.seconds:.0f} s: {', '.join(map(str, absent))}"),)


def _prepare_model(
    job: Job, checkpoint: Checkpoint, known: str | None, variables: Mapping[str, str], work: Path
) -> tuple[Finding, ...]:
    """Make or download one of the job's models, unless it lies at the path that is known of it."""
    if recipe := checkpoint.synthetic:
        folder = model_folder(recipe, variables)
        made = make_model(recipe, folder, python=job.site.python, variables=variables, work=work)
        if not made.problem:
            return (good(Check.MODEL, made.summary),)
        fix = "look at the recipe of the family in the policy, and at the transformers of the job's Python"
        summary = f"the model {checkpoint.model_id} could not be made: {made.problem}"
        return (blocked(Check.MODEL, summary, fix, stage=Stage.MODEL_DOWNLOAD),)
    if known or cached_snapshot(checkpoint.model_id, variables) is not None or is_offline(variables):
        return ()
    ignored = _WEIGHTS if checkpoint.dummy_config is not None else ()
    question = json.dumps([checkpoint.model_id, ignored])
    argv = (job.site.python, "-c", _DOWNLOAD)
    finished = run_program(argv, env=variables, cwd=work, timeout_s=_PREPARE_S, stdin=question)
    if finished.code != 0:
        return (_failed(Check.MODEL, f"the download of {checkpoint.model_id}", finished, Stage.MODEL_DOWNLOAD),)
    place = finished.stdout.strip().splitlines()[-1]
    return (good(Check.MODEL, f"{checkpoint.model_id} downloaded in {finished.seconds:.0f} s: {place}"),)


def _failed(check: Check, what: str, finished: FinishedProgram, stage: Stage) -> Finding:
    """The finding for a failed program: a full disk, else the last line of its output."""
    if "No space left on device" in finished.stderr + finished.stdout or "Disk quota exceeded" in finished.stderr:
        fix = "free space, or point HF_HOME and `scratch` of the site profile to a larger disk"
        return blocked(check, f"{what} failed: No space left on device", fix, stage=stage)
    fix = "check the network, the token and the packages of the job's Python, or name existing files in the job"
    return blocked(check, f"{what} failed ({finished.ending}): {finished.last_error}", fix, stage=stage)


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
    base = {**base, **cache_variables(job, {**base, **job.site.process, **job.process}, work)}
    known = {**base, **job.site.process, **job.process}
    with _phase(emit, "preflight"):
        wrapper, seen = _cheap(job, trees, session, devices(), known, base=base, work=work)
        if seen.blocked:
            checked = {finding.check for finding in seen.findings}
            later = (Check.PACKAGES, Check.IMPORT_DRIVER, Check.IMPORT_WORKER)
            missing = untried(*(check for check in later if check not in checked))
            seen = replace(seen, findings=(*seen.findings, *missing))
        emit_findings(emit, seen.findings)
    if seen.blocked:
        return seen
    with _phase(emit, "prepare"):
        environment = seen.launches[0].environment
        made = prepare(job, trees, environment, base, work)
        if made and not stops(made):
            readable = check_readable(job, trees, environment, None, model=model_place(job, known))
            made = (*made, *(finding for finding in readable if not finding.ok))
        if not stops(made):
            data = check_data(job, trees.cwd, environment, prepared=True)
            model_files = check_model(job, trees.cwd, environment, prepared=True)
            made = (*made, *(finding for finding in (*data, *model_files) if not finding.ok))
        emit_findings(emit, made)
        seen = replace(seen, findings=(*seen.findings, *made))
        model = found_model(job, known)
        seen = replace(
            seen, launches=launcher_of(job).launches(job, trees, session, base=base, model=model, reads=wrapper.reads)
        )
    if seen.blocked:
        return seen
    with _phase(emit, "imports"):
        assert wrapper.driver_environment is not None
        runtime_env = lookup(wrapper.configs[0], "ray_kwargs.ray_init.runtime_env") or {}
        proof = prove_imports(job, trees, session, wrapper.driver_environment, runtime_env, work)
        emit_findings(emit, proof.findings)
    return replace(seen, findings=(*seen.findings, *proof.findings), imports=proof.lines)


def _cheap(
    job: Job,
    trees: Trees,
    session: Session,
    devices: Devices,
    known: Mapping[str, str],
    *,
    base: Mapping[str, str],
    work: Path,
) -> tuple[LaunchCheck, Preflight]:
    """What costs seconds; `known` are the variables of the runner, the site and the job."""
    container = read_container(base).model_copy(update={"asked": job.site.image})
    wrapper = launcher_of(job).check(job, trees, session, base=base, model=found_model(job, known), work=work)
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
    readable = check_readable(job, trees, variables, config, model=model_place(job, known))
    # What cannot be read is neither there nor missing, and to look at it would be an error.
    inputs: tuple[Finding, ...] = ()
    if not stops(readable):
        inputs = (
            *check_data(job, trees.cwd, variables, prepared=False),
            *check_model(job, trees.cwd, variables, prepared=False),
            check_reward_model(job, trees.cwd, variables, config),
            check_stale_checkpoints(job, trees.cwd, config),
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


@contextmanager
def _phase(emit: Emit, name: str) -> Iterator[None]:
    began = time.monotonic()
    emit("phase", name=name, state="begin")
    try:
        yield
    finally:
        emit("phase", name=name, state="end", seconds=round(time.monotonic() - began, 3))
