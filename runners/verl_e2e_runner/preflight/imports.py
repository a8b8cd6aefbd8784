"""The import proof: imports the modules under test in a driver and in a Ray worker, at the same time.

Where an import fails, the process that imports says which file imported what; whether the trees have it is read here,
from their own files, so that the fault is known to lie on the host, in the trees under test, or in either. A name that
a module binds only under a condition, and a module whose folder holds sources to be compiled, may be missing because of
the host.
"""

import io
import json
import os
import tokenize
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.outcome import Attribution, Stage
from verl_e2e.core.model.record import Check, Finding, ImportLine
from verl_e2e.core.triage.origin import is_compiled
from verl_e2e_runner.preflight.host import wrong_place
from verl_e2e_runner.process.cage import (
    EXECUTED_VARIABLE,
    FINGERPRINTS_VARIABLE,
    IMPORTS_VARIABLE,
    Session,
    names_below,
    read_below,
)
from verl_e2e_runner.process.processes import (
    RUN_VARIABLE,
    HostClock,
    MonotonicClock,
    WrapperProcess,
    start,
    with_own_scratch,
)
from verl_e2e_runner.reporting import blocked, good, note
from verl_e2e_runner.trees import Trees

# Twice the largest source of Megatron-LM; the tokenizer takes some hundred times as much memory.
_MAX_SOURCE = 512 << 10
_TO_COMPILE = frozenset({".c", ".cc", ".cpp", ".cu", ".pyx", ".rs"})
_INSTALLED = frozenset({"site-packages", "dist-packages", ".."})
_PACKAGE = "__init__.py"
_DYNAMIC = frozenset({"__getattr__", "globals", "setattr", "exec"})


ProverRole = Literal["driver", "ray_worker"]


class ImportRecord(BaseModel):
    """A line of the import proof, as `instrumentation/verl_e2e_imports.py` writes it; code under test can forge one."""

    model_config = ConfigDict(frozen=True)

    # Ray's name stands for a fault of Ray itself.
    module: Literal["megatron.core", "megatron.bridge", "verl", "skyrl", "ray"]
    # Empty when the import failed.
    file: str
    role: ProverRole
    pid: int
    process: str
    # Why it failed, the first error of the chain, and the packages that the two did not find.
    error: str | None = None
    root: str | None = None
    missing: str | None = None
    root_missing: str | None = None
    is_import_error: bool = False
    # The line of code, as text, and the file whose import failed.
    where: str | None = None
    importer: str | None = None
    # What that file asked for.
    asked_module: str | None = None
    asked_name: str | None = None
    asked_file: str | None = None
    # Those of the traceback.
    files: tuple[str, ...] | None = None

    def is_from(self, root: str) -> bool:
        """Whether the module was imported, and from below this folder."""
        return self.error is None and Path(self.file).is_relative_to(root)


@dataclass(frozen=True, slots=True)
class ImportFault:
    """Where the fault of a failed import lies."""

    attribution: Attribution
    # What identifies it in another run of the same job, without the folders of this one; empty for a fault of the host.
    fingerprint: str = ""


# A root of the trees, and the path of a file or folder below it.
_Place = tuple[Path, PurePath]


def import_fault(record: ImportRecord, trees: Trees) -> ImportFault:
    """Where the fault lies that a line of the import proof tells of."""
    roots = (trees.bridge / "src", trees.megatron_lm)

    def place(file: str) -> _Place | None:
        """Where a file lies in the trees; None for one elsewhere, or of a package that is installed in one of them."""
        path = PurePath(file)
        own = (root for root in roots if path.is_relative_to(root))
        below = ((root, path.relative_to(root)) for root in own)
        return next(((root, inner) for root, inner in below if not _INSTALLED & set(inner.parts)), None)

    module, name = record.asked_module or "", record.asked_name or ""
    importer, file = place(record.importer or ""), place(record.asked_file or "")
    # The folder that the module should be in, if a regular package of the trees holds it: `megatron` itself is shared
    # with packages of the host.
    package: _Place | None = None
    parts = module.split(".")[:-1]
    if all(part.isidentifier() for part in parts):
        above = [PurePath(*parts[:count]) for count in range(2, len(parts) + 1)]
        holding = (root for root in roots if any(_PACKAGE in names_below(root, folder) for folder in above))
        package = next(((root, PurePath(*parts)) for root in holding), None)
    if not (importer or file or package or any(place(path) for path in record.files or ())):
        return ImportFault(Attribution.HOST)
    gone = importer is not None and not is_compiled(name or module)
    gone = gone and (_has_no_name(file, name) if name else _has_no_module(package))
    asked = ".".join(part for part in (module, name) if part) or str(record.root or record.error)
    where = importer[1] if importer is not None else PurePath(record.importer or "").name
    return ImportFault(Attribution.TREES if gone else Attribution.UNDECIDED, f"{where} imports {asked}")


def _has_no_module(package: _Place | None) -> bool:
    """Whether only the trees can have a module of this folder: nothing in it is to be compiled."""
    return package is not None and not any(PurePath(name).suffix in _TO_COMPILE for name in names_below(*package))


def _has_no_name(file: _Place | None, name: str) -> bool:
    """Whether a module of the trees does not have a name, whatever the host has: no condition decides if it binds it.

    It does not name it at all, or binds it at its top level: then modules import each other.
    """
    if file is None:
        return False
    root, path = file
    if path.name == _PACKAGE:
        folder = (root, path.parent)
        if not _has_no_module(folder) or f"{name}.py" in names_below(*folder):
            return False
    source = read_below(root, path, limit=_MAX_SOURCE)
    if source is None or len(source) == _MAX_SOURCE:
        return False
    named: set[str] = set()
    # The logical lines: names and operators without texts and comments, and the column where they begin.
    words: list[str] = []
    column = 0
    bound = star = False
    try:
        for token in tokenize.tokenize(io.BytesIO(source).readline):
            if token.type in (tokenize.NAME, tokenize.OP):
                column = column if words else token.start[1]
                words.append(token.string)
            elif token.type == tokenize.NEWLINE and words:
                named.update(words)
                bound = bound or (column == 0 and _binds(words, name))
                star = star or (words[0] == "from" and words[-1] == "*")
                words = []
    except (tokenize.TokenError, SyntaxError, ValueError):
        return False
    return bound or not (star or named & {name, *_DYNAMIC})


def _binds(words: list[str], name: str) -> bool:
    if words[0] in ("from", "import"):
        return "import" in words and name in words[words.index("import") :]
    if words[0] in ("def", "class"):
        return words[1:2] == [name]
    return words[0] == name and words[1:2] in (["="], [":"])


_CHECKS: Mapping[ProverRole, Check] = {"driver": Check.IMPORT_DRIVER, "ray_worker": Check.IMPORT_WORKER}
_PLACES: Mapping[ProverRole, str] = {"driver": "the driver", "ray_worker": "a Ray worker"}
_FIX_TREES = "correct the import, or restore what it names: both files lie in the trees under test"
_LOOK_S = 0.1
_OBSERVE_S = 2.0
_GRACE_S = 3.0
# What its two processes do is not what the run did.
_RECORDS = (IMPORTS_VARIABLE, EXECUTED_VARIABLE, FINGERPRINTS_VARIABLE)
_KEPT_OUTPUT = 64 * 1024
_MOST_BYTES = 1 << 20
_MOST_LINES = 100


@dataclass(frozen=True, slots=True)
class ImportProof:
    """The result of the import proof."""

    # Of both processes.
    lines: tuple[ImportLine, ...]
    findings: tuple[Finding, ...]


@dataclass(slots=True)
class _Prover:
    """One of the two processes; `code` is its exit code when it ended by itself."""

    role: ProverRole
    process: WrapperProcess
    file: Path
    output: bytes = b""
    code: int | None = None

    def records(self) -> list[ImportRecord]:
        """The lines so far; a malformed one, which only the code under test can write, is ignored."""
        raw = read_below(self.file.parent, self.file.name, limit=_MOST_BYTES) or b""
        found = []
        for line in raw[: raw.rfind(b"\n") + 1].splitlines()[:_MOST_LINES]:
            with suppress(ValidationError):
                found.append(ImportRecord.model_validate_json(line))
        # Of Ray only an error is told.
        return [record for record in found if record.module != "ray" or record.error is not None]

    def drain(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self.process.output, 65536):
                self.output = (self.output + data)[-_KEPT_OUTPUT:]


def prove_imports(
    job: Job,
    trees: Trees,
    session: Session,
    environment: Mapping[str, str],
    runtime_env: Mapping[str, Any],
    work: Path,
    *,
    timeout_s: float = 300,
) -> ImportProof:
    """Import in both processes at once, under the environment that the wrapper gives its driver.

    `runtime_env` is Ray's, from the composed configuration. The first wrong path or failed import ends both,
    and so does `timeout_s`. No process of either, or of the private Ray, is left running.
    """
    clock, cage = HostClock(), with_own_scratch(trees.cage, "import-proof")
    until = clock.monotonic() + timeout_s
    plain = {name: value for name, value in environment.items() if name not in _RECORDS}
    # Ray's environment without the marks that belong to the run itself, and without nulls.
    asked = {name: value for name, value in runtime_env.items() if value is not None}
    variables = {
        name: str(value)
        for name, value in (asked.get("env_vars") or {}).items()
        if name not in (RUN_VARIABLE, *_RECORDS)
    }
    # The proof asks Ray for no GPU, and a training worker imports with its GPUs in sight: Ray must not hide them.
    variables["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"
    own = {"driver": {}, "ray_worker": {"VERL_E2E_RUNTIME_ENV": json.dumps({**asked, "env_vars": variables})}}
    own["ray_worker"]["RAY_USAGE_STATS_ENABLED"] = "0"
    provers: list[_Prover] = []
    try:
        for role in _CHECKS:
            given = (cage.outbox if cage else work) / f"imports-{role}.jsonl"
            file = cage.outside(given) if cage else given
            file.unlink(missing_ok=True)
            argv, nonce = (job.site.python, "-m", "verl_e2e_imports", role, str(given)), f"{session.nonce}-{role}"
            process = start(argv, env={**plain, **own[role]}, cwd=trees.cwd, nonce=nonce, cage=cage)
            os.set_blocking(process.output, False)
            provers.append(_Prover(role, process, file))
        timed_out = not _watch(provers, trees, clock, until=until)
    finally:
        for prover in provers:
            prover.code = prover.process.poll()
            prover.process.end(grace_s=_GRACE_S, clock=clock)
            prover.drain()
            prover.process.close()
    findings = tuple(_judge(prover, trees, timeout_s if timed_out else None) for prover in provers)
    lines = tuple(
        ImportLine(
            module=record.module,
            file=record.file,
            role=record.role,
            pid=record.pid,
            process=record.process,
            error=record.error or "",
        )
        for prover in provers
        for record in prover.records()
        if record.module != "ray"
    )
    return ImportProof(lines, findings)


def _watch(provers: Sequence[_Prover], trees: Trees, clock: MonotonicClock, *, until: float) -> bool:
    """Wait until both have ended or one has failed; false when the time is over first."""
    looked = clock.monotonic()
    while clock.monotonic() < until:
        if clock.monotonic() - looked > _OBSERVE_S:
            looked = clock.monotonic()
            for prover in provers:
                prover.process.observe()
        ended = [prover.process.poll() is not None for prover in provers]
        for prover in provers:
            prover.drain()
        if all(ended):
            return True
        for prover, has_ended in zip(provers, ended, strict=True):
            records, roots = prover.records(), trees.import_roots
            # A wrong path, a failed import, or an end before every module has its line.
            if has_ended and len(records) < len(roots):
                return True
            if not all(record.module != "ray" and record.is_from(roots[record.module]) for record in records):
                return True
        clock.wait(None, _LOOK_S)
    return False


def _judge(prover: _Prover, trees: Trees, timeout_s: float | None) -> Finding:
    check, place = _CHECKS[prover.role], _PLACES[prover.role]
    records = prover.records()
    for record in records:
        if record.error is not None:
            return _failed(check, record, record.error, place, trees)
        root = trees.import_roots[record.module]
        if not record.is_from(root):
            return wrong_place(check, record.module, record.file, root, place)
    if len(records) == len(trees.import_roots):
        return good(check, f"{', '.join(trees.import_roots)} are imported from the trees under test in {place}")
    if prover.code is None and timeout_s is None:
        return note(check, f"not proved in {place}: it was ended early, because the other process failed")
    text = prover.output.decode(errors="replace")
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")[:300]
    how = f"no end within {timeout_s:.0f} s" if prover.code is None else f"exit code {prover.code}"
    ray = prover.role == "ray_worker"
    fix = "start a local Ray with the same Python to see why it hangs" if ray else "run the import by hand to see why"
    stage = Stage.RAY if ray else Stage.IMPORT
    return blocked(check, f"the import in {place} did not finish ({how}): {last}", fix, stage=stage)


def _failed(check: Check, record: ImportRecord, error: str, place: str, trees: Trees) -> Finding:
    """What a failed import is put down to: Ray, a package that is missing or broken, or the code under test."""
    root, module = record.root or error, record.module
    message = error if error == root else f"{error}; first error: {root}"
    where = f" (at {record.where})" if record.where else ""
    if module == "ray" and not record.missing:
        fix = "start a local Ray by hand with the same Python; free its memory, disk or ports"
        return blocked(check, f"Ray does not start a worker: {message}"[:900], fix, stage=Stage.RAY)
    missing = record.root_missing or record.missing
    ours = missing is not None and missing.partition(".")[0] in ("megatron", "verl", "skyrl")
    fault = import_fault(record, trees)
    stage, fix = Stage.IMPORT, _FIX_TREES
    if fault.attribution is not Attribution.TREES:
        fix = "give versions of Bridge, Megatron-LM and verl that fit, with the tree under test first on PYTHONPATH"
        if record.is_import_error and not ours:
            name = f"package {missing}" if missing else "the package that it names"
            stage, fix = Stage.ENVIRONMENT, f"install or fix {name}"
    finding = blocked(check, f"import {module} fails in {place}: {message}{where}"[:900], fix, stage=stage)
    marks = {"fingerprint": fault.fingerprint[:300], "place": (record.where or "")[:300]}
    return finding.model_copy(update={"attribution": fault.attribution, **marks})
