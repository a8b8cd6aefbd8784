"""The rows of a card's evidence that say what was run, on what, and by which command."""

import shlex
from collections import Counter

from verl_e2e.core.model.record import Environment, Record, RepositoryState

_SHOWN_ID = 12
# The packages of the image on which a result depends most.
_SHOWN_PACKAGES = ("torch", "vllm", "sglang", "ray", "transformers", "transformer-engine", "nvidia-modelopt", "triton")
_REPOSITORY = {"bridge": "Bridge repo", "verl": "verl repo", "megatron_lm": "Megatron-LM"}


def origin(record: Record) -> tuple[str, ...]:
    """All rows about what was run: the repositories, the host, and our instrumentation."""
    return (*repositories(record), *host(record), *instrumentation(record))


def repositories(record: Record) -> tuple[str, ...]:
    """`Bridge repo: <commit> plus dirty files` and its like; what the job asked for where no tree was recorded."""
    states = {state.name: state for state in record.environment.repositories} if record.environment else {}
    asked = {"bridge": record.job.bridge.commit, "verl": record.job.verl.commit} if record.job else {}
    rows = []
    for name, title in _REPOSITORY.items():
        if name in states:
            rows.append(f"{title}: {_state(states[name])}")
        elif name != "megatron_lm":
            commit = f"{asked[name]} asked for" if name in asked else "unknown"
            rows.append(f"{title}: {commit}, the tree and its dirty files are not recorded")
    return tuple(rows)


def _state(state: RepositoryState) -> str:
    dirty = f"dirty files: {', '.join(state.dirty)}" if state.dirty else "no dirty files"
    patches = f"; declared patches: {', '.join(state.patches)}" if state.patches else ""
    return f"{state.commit} plus {dirty}{patches}"


def host(record: Record) -> tuple[str, ...]:
    """What the run ran on and what was installed by hand, or nothing when nothing is recorded."""
    environment = record.environment
    if environment is None:
        return ()
    names = Counter(gpu.name for gpu in environment.gpus)
    parts = [f"{count} x {name}" for name, count in sorted(names.items())]
    parts += [*_container(environment), *([f"site {environment.site}"] if environment.site else [])]
    rows = [f"Host: {', '.join(parts)}"] if parts else []
    versions = [f"{name} {environment.packages[name]}" for name in _SHOWN_PACKAGES if name in environment.packages]
    if versions:
        rows.append(f"Packages: {', '.join(versions)}")
    if environment.hand_installed:
        by_hand = (f"{name} {environment.packages.get(name, '')}".strip() for name in environment.hand_installed)
        rows.append(f"Installed by hand: {', '.join(by_hand)}")
    if environment.kernel_caches is not None:
        rows.append(f"Kernel caches: {environment.kernel_caches.text}")
    return tuple(rows)


def instrumentation(record: Record) -> tuple[str, ...]:
    """What of ours ran inside the processes of the run, so that no one takes it for a part of verl or Bridge."""
    parts = []
    if record.executed is not None and record.executed.processes:
        parts.append(f"execution record ({_counted(len(record.executed.processes), 'process', 'processes')})")
    if record.fingerprints is not None:
        wrapped = {hook.target for hook in record.fingerprints.hooks if hook.installed}
        taken = _counted(len(record.fingerprints.snapshots), "snapshot", "snapshots")
        parts.append(f"state fingerprints ({_counted(len(wrapped), 'hook', 'hooks')}, {taken})")
    return (f"Instrumentation: {', '.join(parts)}",) if parts else ()


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _container(environment: Environment) -> tuple[str, ...]:
    """What is known of the container and its image; what is not is said to be not recorded."""
    found = environment.container
    if found is None:
        message = f", {environment.image} by the runner's settings" if environment.image else ""
        return (f"image not recorded{message}",)
    engine = f" ({found.engine})" if found.engine else ""
    container = f"container {found.id[:_SHOWN_ID]}{engine}" if found.id else f"container not recorded{engine}"
    digest = found.digests[0] if found.digests else ""
    if not found.image and not digest:
        asked = f", {found.asked} was asked for" if found.asked else ""
        return container, f"image not recorded{asked}"
    named = found.image if not digest or digest in found.image else f"{found.image}@{digest}".lstrip("@")
    missing = "" if digest else ", its digest not recorded"
    return container, f"image {named}{missing} (by {found.image_from})"


def command(record: Record, *, started: bool) -> str:
    """The exact command as one shell line, with the variables that were set for it, or what it would have been."""
    if record.environment and record.environment.command:
        never = "" if started else " (never started)"
        variables = [f"{name}={value}" for name, value in sorted(record.environment.process.items())]
        words = [*(["env", *variables] if variables else []), *record.environment.command]
        return f"{shlex.join(words)}{never}"
    if record.job is None:
        return "unknown"
    return f"bash {record.job.script} ({'exact arguments not recorded' if started else 'never started'})"
