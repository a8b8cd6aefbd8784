"""Rehearses Bridge commits with their Megatron-LM, in the Python of `make rehearsal-env`.

The trees are private checkouts of what is imported. Records of a commit are kept and used again: they depend on the two
commits, the cells, the scripts and the libraries alone. An ordered rehearsal leaves a whole run folder, with the order,
the records of the cells of both commits and the events of any run, and is judged elsewhere.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from verl_e2e.core.compare.cell_map import AskedCells, CellRow
from verl_e2e.core.compare.rehearsal import (
    IMPORTS,
    MOST_RECORD_BYTES,
    CellRecord,
    DifferingFiles,
    FaultTargets,
    RehearsedCommit,
    RehearsedPair,
    RunNote,
    Wanted,
)
from verl_e2e.core.compare.unaffected import carried_code, unaffected_cells
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import ASKED_FILE, BASE_RECORDS, HEAD_RECORDS, RehearsalJob
from verl_e2e.core.model.record import EndReason
from verl_e2e_runner.folder.recorder import Recorder, host_redactor, record_end, usable_key
from verl_e2e_runner.place import current_mode, lock_within, rehearsal_number
from verl_e2e_runner.process.processes import Ended, HostClock, received_signals, run_program, utc_now
from verl_e2e_runner.rehearsal.apart import REQUEST, collect_records, limits_of, open_apart, run_apart
from verl_e2e_runner.rehearsal.cells import CELLS
from verl_e2e_runner.run import run_recorded
from verl_e2e_runner.trees import SUBMODULE, UnfitRepositoryError, borrow, check_out, open_repository

_Document = TypeVar("_Document", RunNote, CellRecord)
PROGRAMS = Path(__file__).resolve().parent / "host_python"
_MAKERS = Path(__file__).resolve().parents[1] / "models" / "host_python"
# What the driver's process imports besides Bridge and Megatron-LM, by the name of the module.
NEEDED = (
    *("torch", "transformers", "safetensors", "tokenizers", "numpy", "einops", "omegaconf", "hydra", "accelerate"),
    *("yaml", "pydantic", "typing_extensions"),
)
COMPLETE = "complete.json"
_MAKE = "make rehearsal-env"
_MODELS_S, _CELL_S = 1_800.0, 120
# Besides the records: what was tried of faults, what was to be tried, and how the driver ran.
OBSERVED, _TRIED, _RUN_NOTE = "observed.json", "observed.of", "run.json"
_LOOK = "import importlib.util, sys; print(*[n for n in sys.argv[1:] if importlib.util.find_spec(n) is None])"


@dataclass(frozen=True, slots=True)
class RehearsalPlace:
    """Where a rehearsal runs."""

    # The Python with PyTorch and transformers.
    python: Path
    # The folder for models, trees and kept records.
    work: Path
    # The environment of the caller, of which PATH is used.
    environ: Mapping[str, str]
    # How many processes may train at a time.
    workers: int = 2
    # Whether the code under test runs in a cage or not at all.
    require_cage: bool = False
    # Seconds that a driver may take.
    seconds: float = 1_800.0
    # verl's file that describes adapters to the rollout engine; None where verl is not at hand.
    verl: Path | None = None


def chosen_cells(patterns: Sequence[str]) -> tuple[str, ...]:
    """The names of the cells that a pattern names, with those that they must agree with; all without a pattern."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in CELLS):
            raise UserError(f"--only {pattern}: no cell has this name; `verl-e2e rehearse --cells` lists them")
    named = [name for name in CELLS if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]
    wanted = {*named, *(CELLS[name].agrees_with for name in named)}
    return tuple(name for name in CELLS if name in wanted)


def table_rows() -> tuple[CellRow, ...]:
    """The rows of the table of cells."""
    return tuple(
        CellRow(name=cell.name, family=cell.family, settings=json.loads(json.dumps(cell.differing)))
        for cell in CELLS.values()
    )


def check_environment(place: RehearsalPlace) -> None:
    """Raise UserError where the Python is missing or does not have what a rehearsal imports."""
    if not place.python.exists():
        raise UserError(f"{place.python} does not exist; run `{_MAKE}`, or name a Python by --python")
    asked = run_program(
        (str(place.python), "-c", _LOOK, *NEEDED), env=_environment(place), cwd=place.work, timeout_s=60
    )
    if asked.code != 0:
        raise UserError(f"{place.python} cannot be used ({asked.ending}: {asked.last_error}); run `{_MAKE}`")
    if missing := asked.stdout.split():
        raise UserError(f"{place.python} does not have {', '.join(missing)}; run `{_MAKE}`")


def rehearse_commit(sources: RehearsedCommit, wanted: Wanted, place: RehearsalPlace, base: Path | None = None) -> Path:
    """Run the cells and give the folder with their records.

    `base` is the folder with the records of its base; with it only the cells run that enter something that differs.
    UserError where the trees cannot be made, and where another rehearsal has the folder for longer than one may take.
    """
    with lock_within(place.work / "lock", 2 * place.seconds) as alone:
        if not alone:
            raise UserError(f"another rehearsal uses {place.work}; wait for its end, or give another folder by --out")
        out = place.work / "records" / _digest(sources, wanted, place)
        if not is_kept(out, wanted, place):
            bridge = _tree(sources.bridge, sources.commit, "src", "bridge", place)
            megatron = _tree(sources.megatron_lm, sources.megatron_lm_commit, "megatron", "megatron_lm", place)
            carried: dict[str, str] = {}
            if base is not None and wanted.differing is not None and not _has_records(out, place):
                carried = _carried(base, wanted, wanted.differing)
            run_driver({bridge / "src": "src/", megatron: f"{SUBMODULE}/"}, wanted, out, place, carried)
        return out


def _carried(base: Path, wanted: Wanted, differing: DifferingFiles) -> dict[str, str]:
    """The records of the base's cells that the head does not affect, as the head's own, by cell."""
    files = {name: base / f"{name}.json" for name in (IMPORTS, *wanted.cells)}
    records = {name: record for name, file in files.items() if (record := _read(file, CellRecord))}
    made = {}
    for name in unaffected_cells(records, differing, {name: CELLS[name].agrees_with for name in wanted.cells}):
        entered = carried_code(records[name].entered, differing).model_dump(mode="json")
        # All else as it was written: a number that is none has no form in a model's own text.
        text = json.dumps({**json.loads(files[name].read_bytes()), "entered": entered, "carried": True})
        if len(text) <= MOST_RECORD_BYTES:
            made[name] = text
    return made


def run_driver(
    roots: Mapping[Path, str], wanted: Wanted, out: Path, place: RehearsalPlace, carried: Mapping[str, str] = {}
) -> None:
    """Run the cells over source trees that are there: their folders, and what stands for each in the records.

    The cells of `carried` do not run: these are their records. Where `out` has the records of all cells, only the
    faults are tried.
    """
    models = make_models(wanted, place)
    reads = (*roots, models, PROGRAMS.parent)
    own, may = place.work / "running" / out.name, limits_of(place.workers, place.seconds)
    with rehearsal_number(place.environ) as number:
        apart = open_apart(own, place.python, reads, place.environ, may, require_cage=place.require_cage, number=number)
        runs = [name for name in wanted.cells if name not in carried]
        names = [f"{name}.json" for name in (IMPORTS, "complete", *runs)]
        whole = _has_records(out, place)
        for file in out.glob("*.json"):
            if whole and file.name in names:
                shutil.copy(file, apart.scratch / "out")
            else:
                file.unlink()
        out.mkdir(parents=True, exist_ok=True)
        faults, verl = wanted.faults, place.verl and apart.scratch / place.verl.name
        if place.verl and verl:
            # A file of the user's where the code may read it, without a change of its own mode.
            shutil.copyfile(place.verl, verl)
            verl.chmod(0o644)
        request = {
            **_models_request(wanted, models, place),
            "cells": runs,
            "run": not whole,
            "imports": list(wanted.imports),
            "roots": {str(root): short for root, short in roots.items()},
            "out": str(apart.scratch / "out"),
            "limit_s": _CELL_S,
            "verl": str(verl or ""),
            "faults": faults and _faults_request(faults),
        }
        (apart.scratch / REQUEST).write_text(json.dumps(request))
        variables = {**_environment(place), "PYTHONPATH": os.pathsep.join(map(str, roots))}
        argv = (str(place.python), str(PROGRAMS / "driver.py"), str(apart.scratch / REQUEST))
        finished, note = run_apart(apart, argv, variables, may)
        collect_records(apart, [*([] if whole else names), *([OBSERVED] if faults else [])], out)
        for name, text in carried.items():
            (out / f"{name}.json").write_text(text)
        (out / "driver.log").write_text(f"{finished.stdout}\n{finished.stderr}\n{finished.ending}\n")
        (out / _RUN_NOTE).write_text(note.model_dump_json())
        if faults:
            (out / _TRIED).write_text(json.dumps(_faults_request(faults)))
        shutil.rmtree(own, ignore_errors=True)


def _faults_request(faults: FaultTargets) -> dict[str, object]:
    limits = faults.limits
    at_most = {"functions_at_most": limits.functions, "faults": limits.faults, "seconds": limits.seconds}
    return {"functions": {name: list(lines) for name, lines in faults.functions.items()}, **at_most}


def make_models(wanted: Wanted, place: RehearsalPlace) -> Path:
    """Make the cells' models, and compute what transformers says of them, without any code under test; their folder."""
    models = place.work / "models"
    asked = json.dumps([list(wanted.cells), dict(wanted.recipes)], sort_keys=True)
    folders = (PROGRAMS.parent, PROGRAMS, _MAKERS)
    scripts = b"".join(file.read_bytes() for folder in folders for file in sorted(folder.glob("*.py")))
    marker = models / f"{hashlib.sha256(asked.encode() + scripts).hexdigest()[:24]}.made"
    if not marker.exists():
        models.mkdir(parents=True, exist_ok=True)
        file = models / "request.json"
        file.write_text(json.dumps(_models_request(wanted, models, place)))
        argv = (str(place.python), str(PROGRAMS / "make_models.py"), str(file))
        made = run_program(argv, env=_environment(place), cwd=models, timeout_s=_MODELS_S)
        if made.code != 0:
            raise UserError(f"the models cannot be made ({made.ending}: {made.last_error}); run `{_MAKE}` again")
        marker.touch()
    return models


def _models_request(wanted: Wanted, models: Path, place: RehearsalPlace) -> dict[str, object]:
    return {
        "cells": list(wanted.cells),
        "recipes": dict(wanted.recipes),
        "models": str(models),
        "workers": place.workers,
    }


def is_kept(out: Path, wanted: Wanted, place: RehearsalPlace) -> bool:
    """Whether a folder has all that is wanted, from a run that was as well kept apart as is asked for now."""
    if not _has_records(out, place):
        return False
    tried = out / _TRIED
    return wanted.faults is None or (tried.exists() and json.loads(tried.read_text()) == _faults_request(wanted.faults))


def _has_records(out: Path, place: RehearsalPlace) -> bool:
    note = _run_note(out)
    return note is not None and (out / COMPLETE).exists() and (note.isolated or not place.require_cage)


def _run_note(out: Path) -> RunNote | None:
    return _read(out / _RUN_NOTE, RunNote)


def _read(file: Path, kind: type[_Document]) -> _Document | None:
    try:
        return kind.model_validate_json(file.read_bytes())
    except (OSError, ValueError):
        return None


def _environment(place: RehearsalPlace) -> dict[str, str]:
    # Megatron-LM goes through sets of names, in an order that must be the same for both commits.
    fixed = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    return {"PATH": place.environ.get("PATH", os.defpath), "HOME": str(place.work), **fixed}


def _tree(source: str, commit: str, folder: str, name: str, place: RehearsalPlace) -> Path:
    """One folder of a commit, checked out; a tree that was made before is used again."""
    target = place.work / "trees" / f"{name}-{commit}"
    marker = target / ".git" / "verl-e2e-whole"
    if not marker.exists():
        try:
            objects = open_repository(Path(source), base=place.environ).objects_folder()
            check_out(borrow(target, objects, base=place.environ), commit, [f"/{folder}/"])
        except UnfitRepositoryError as error:
            raise UserError(f"{error.summary}; {error.fix}") from None
        marker.touch()
    return target


def _digest(sources: RehearsedCommit, wanted: Wanted, place: RehearsalPlace) -> str:
    """What the records of a commit follow from."""
    files = sorted((*PROGRAMS.glob("*.py"), Path(__file__).with_name("cells.py")))
    scripts = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    asked = [list(wanted.cells), dict(wanted.recipes), [dict(item) for item in wanted.imports]]
    commits = (sources.commit, sources.megatron_lm_commit)
    verl = place.verl.read_text() if place.verl else ""
    text = json.dumps([commits, asked, scripts, str(place.python.resolve()), verl], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def prepare_base(pair: Callable[[], RehearsedPair], place: RehearsalPlace) -> None:
    """Run the cells over the base alone; its records are kept in the place and used by the run. UserError."""
    check_environment(place)
    try:
        base, _ = pair()
    except UnfitRepositoryError as error:
        raise UserError(f"{error.summary}; {error.fix}") from None
    rehearse_commit(*base, place)


def record_rehearsal(
    job: RehearsalJob,
    out: Path,
    pair: Callable[[], RehearsedPair],
    place: RehearsalPlace,
    *,
    order_nonce: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> EndReason:
    """Run the cells over both commits and leave the run folder `out`; how it ended.

    `pair` fetches the commits and says what is to run; UserError and UnfitRepositoryError of it are an end that the
    folder tells. Raises FolderInUseError when `out` already holds a run.
    """
    began, clock = utc_now(), HostClock()
    hide = host_redactor(place.environ, {"$WORK": place.work, "$OUT": out.resolve(), "$BRIDGE": job.bridge.path})
    notes: list[RunNote | None] = []

    def work() -> Ended:
        try:
            check_environment(place)
            commits = pair()
            cells, base = commits[1][1].cells, None
            recorder.document(ASKED_FILE, AskedCells(cells=cells, whole=len(cells) == len(CELLS)))
            for name, (commit, wanted) in zip((BASE_RECORDS, HEAD_RECORDS), commits, strict=True):
                say(f"rehearsing the {name}, Bridge {commit.commit[:12]}")
                recorder.event("phase", name=name, state="begin")
                records = rehearse_commit(commit, wanted, place, base)
                base = base or records
                notes.append(_run_note(records))
                (recorder.folder / name).mkdir()
                for file in (file for file in sorted(records.glob("*.json")) if file.name != COMPLETE):
                    with suppress(ValueError, OSError):
                        document = recorder.redactor.redact_document(json.loads(file.read_bytes()))
                        # The two of a whole table are some 70 MB without blanks.
                        recorder.text(f"{name}/{file.name}", f"{json.dumps(document, separators=(',', ':'))}\n")
                recorder.event("phase", name=name, state="end", reason=EndReason.EXITED.value, exit_code=0)
            ended = Ended(EndReason.EXITED, 0)
        except UnfitRepositoryError as error:
            ended = Ended(EndReason.NOT_STARTED, None, f"{error}; {error.fix}")
        except UserError as error:
            ended = Ended(EndReason.NOT_STARTED, None, str(error))
        record_end(recorder, ended)
        return ended

    with received_signals() as signals, Recorder(out, redactor=hide, monotonic=clock.monotonic) as recorder:
        recorder.begin(job, began, order_nonce)
        ended = run_recorded(recorder, signals, work)
        isolated = ended.reason is EndReason.EXITED and all(note is not None and note.isolated for note in notes)
        recorder.seal(job, began, utc_now(), current_mode() if isolated else "none", usable_key(place.environ, say))
    return ended.reason
