"""One job on this host, from private trees to a whole run folder; judged elsewhere.

Its phases are in the order of trust and cost: repositories and patches, preflight and import proof, the
focused Bridge tests, and only then the GPU hour. Each is recorded, and the first that fails ends the run. Whatever ends
it, the folder says how, and nothing of the run is left on the host.
"""

import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TextIO

from verl_e2e.core.consumer.consumer import ConfigKey
from verl_e2e.core.consumer.consumers import consumer_of
from verl_e2e.core.log.scan import LogScanner
from verl_e2e.core.model.execution import EXECUTED_FILE
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import OWN_FILES
from verl_e2e.core.model.record import (
    BEGIN,
    END,
    ENVIRONMENT_FILE,
    JUNIT_FILE,
    RUN_PHASE,
    SUSPECTS_WORD,
    TESTS_PHASE,
    EndReason,
    Environment,
)
from verl_e2e_runner.bridge_tests import BridgeTests, run_bridge_tests, take_bridge_tests
from verl_e2e_runner.folder.process_records import BRIDGE_TESTS_PHASE, ExecutionRecord, FingerprintLines, begin_record
from verl_e2e_runner.folder.recorder import (
    CheckpointLister,
    Recorder,
    collect_run,
    host_redactor,
    record_end,
    usable_key,
)
from verl_e2e_runner.launch.launcher import PACKAGE_FOLDER, cluster_of
from verl_e2e_runner.models import RECIPE_FILE, model_there
from verl_e2e_runner.place import (
    Host,
    HostPlace,
    find_isolation,
    isolation_finding,
    mode_of,
    open_cage,
    state_of,
    take_place,
)
from verl_e2e_runner.preflight.host import read_container
from verl_e2e_runner.preflight.inputs import said_by
from verl_e2e_runner.preflight.kernel_caches import TakenCaches, caches_origin, keep_caches, take_caches
from verl_e2e_runner.preflight.preflight import Preflight, preflight
from verl_e2e_runner.process.cage import (
    EXECUTED,
    FINGERPRINTS,
    FINGERPRINTS_VARIABLE,
    Session,
    ray_folder,
    wanted_records,
)
from verl_e2e_runner.process.deadline import MARGIN_S, deadline
from verl_e2e_runner.process.processes import (
    Ended,
    HostClock,
    interruptible,
    received_signals,
    start,
    utc_now,
    with_own_scratch,
)
from verl_e2e_runner.reporting import ProgressLine, emit_findings, stops
from verl_e2e_runner.samplers import Devices, GpuSampler, open_memory_sampler, read_devices
from verl_e2e_runner.trees import Trees, apply_patches, prepare_trees
from verl_e2e_runner.watch import WatchLimits, watch

TakePlace = Callable[[Job, str, Mapping[str, str], Callable[[], Devices]], AbstractContextManager[HostPlace]]


@dataclass(frozen=True, slots=True)
class OpenRun:
    """What every phase of one run shares."""

    job: Job
    # The runner's own environment.
    environ: Mapping[str, str]
    # The run folder.
    out: Path
    # The run's own folder, with its private trees; it is removed at the end.
    work: Path
    # What this host can do to isolate the code under test.
    host: Host
    session: Session
    recorder: Recorder
    progress: ProgressLine
    # Reads the GPUs.
    devices: Callable[[], Devices]
    # What the run has of this host.
    place: HostPlace
    # Results of the Bridge tests from elsewhere; None: they are run here.
    junit: bytes | None
    # Where the run leaves its kernel caches; None: nowhere.
    keep_caches: Path | None

    def emit(self, kind: str, **data: object) -> None:
        """Record an event, and show the beginning of a phase."""
        self.recorder.event(kind, **data)
        if kind == "phase" and data.get("state") == "begin":
            self.progress.phase(str(data["name"]))
        if kind == "finding" and not data.get("ok"):
            self.progress.note(f"{data['check']}: {data['summary']}")

    def not_started(self, why: str) -> Ended:
        """The end of a run whose wrapper is not started, recorded."""
        ended = Ended(EndReason.NOT_STARTED, None, why)
        record_end(self.recorder, ended)
        return ended


def run_job(
    job: Job,
    out: Path,
    *,
    environ: Mapping[str, str],
    work: Path | None,
    stream: TextIO,
    devices: Callable[[], Devices] = read_devices,
    place: TakePlace = take_place,
    isolation: Callable[[Job, Mapping[str, str]], Host] = find_isolation,
    junit: bytes | None = None,
    now: Callable[[], datetime] = utc_now,
    order_nonce: str = "",
    keep_caches: Path | None = None,
) -> bool:
    """Run a job to its end and leave its folder in `out`; true when it was interrupted.

    Private trees lie below `work`, or next to `out` without it, and are removed at the end. Progress goes to `stream`,
    `devices` reads the GPUs, `place` gives the run its place on this host meanwhile, `isolation` finds out whether it
    can keep the code under test apart. `junit` is a JUnit file that states the job's commit; then the Bridge tests are
    not run here. `order_nonce` is what the order held, and is returned with the end of the run. With `keep_caches` the
    run begins with empty kernel caches and leaves what it compiled in that folder, which does not exist or is empty.
    Raises FolderInUseError when `out` already holds a run.
    """
    clock, began = HostClock(), now()
    nonce = secrets.token_hex(16)
    own = own_folder(out, work, nonce)
    progress = ProgressLine(stream, clock.monotonic, moving=stream.isatty(), label=job.id)
    recorded = wanted_records(environ)
    host = isolation(job, environ)
    caged = host.tools is not None
    # Code in a cage writes below `suspect/out`, and may not write what lies next to that.
    suspect = own / "suspect" if caged else own
    written = suspect / "out" if caged else own
    address = cluster_of(job, environ)
    cached = bool(keep_caches or job.site.kernel_caches is not None)
    session = Session(
        nonce,
        ray_folder(nonce, caged=caged),
        written / "imports.jsonl",
        executed=suspect / "recording.json" if EXECUTED in recorded else None,
        fingerprints=written / "fingerprints" if FINGERPRINTS in recorded else None,
        ray_address=address,
        # The workers of another cluster have their caches by variables of its own.
        caches=suspect / "cache" if cached and not (address or job.site.ray_address) else None,
    )
    places = {"$WORK": own, "$OUT": out.resolve(), "$BRIDGE": Path(job.bridge.path), "$VERL": Path(job.verl.path)}
    places[OWN_FILES] = PACKAGE_FOLDER
    if job.megatron_lm:
        places["$MEGATRON_LM"] = Path(job.megatron_lm.path)
    hide = host_redactor({**environ, **job.site.process, **job.process}, places)
    with (
        received_signals() as signals,
        Recorder(out, redactor=hide, monotonic=clock.monotonic) as recorder,
        ExitStack() as held,
    ):
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        held.callback(shutil.rmtree, own, ignore_errors=True)
        if not caged:
            # In a cage Ray's folder is gone with the cage.
            session.ray_folder.mkdir(mode=0o700, parents=True)
            held.callback(shutil.rmtree, session.ray_folder, ignore_errors=True)
        taken = held.enter_context(place(job, host.problem, environ, devices))
        session = replace(session, gpus=taken.gpus)
        run = OpenRun(job, environ, out, own, host, session, recorder, progress, devices, taken, junit, keep_caches)
        recorder.begin(job, began, order_nonce)
        try:
            ended = run_recorded(
                recorder, signals, lambda: _run_phases(run), interrupted=" before the wrapper was started"
            )
        finally:
            progress.close()
        recorder.seal(job, began, now(), mode_of(host), usable_key(environ, progress.note))
    return ended.reason is EndReason.INTERRUPTED


def run_recorded(
    recorder: Recorder, signals: Sequence[str], work: Callable[[], Ended], *, interrupted: str = ""
) -> Ended:
    """Do the work, which records its end; so does this for an interruption, and for an error before it is raised.

    `signals` are those that came before; `interrupted` says when an interruption came.
    """
    try:
        with interruptible():
            if signals:
                raise KeyboardInterrupt(signals[0])
            return work()
    except KeyboardInterrupt as interruption:
        by = f" by {interruption}" if str(interruption) else ""
        ended = Ended(EndReason.INTERRUPTED, None, f"Interrupted{by}{interrupted}.")
        record_end(recorder, ended)
        return ended
    except Exception as error:
        # A full disk may be what ended us; the error itself must come through.
        with suppress(OSError):
            note = f"The runner itself failed: {type(error).__name__}: {error}"
            record_end(recorder, Ended(EndReason.RUNNER_FAULT, None, note))
        raise


def own_folder(out: Path, work: Path | None, nonce: str) -> Path:
    """Where the private trees of a run lie, resolved: below `work`, or next to `out` without it."""
    whole = out.resolve()
    return (work / f"run-{nonce[:12]}" if work else whole.with_name(f".{whole.name}.work-{nonce[:12]}")).resolve()


def _run_phases(run: OpenRun) -> Ended:
    """Everything from the repositories to the end of the wrapper; how it ended is recorded too."""
    job, tools = run.job, run.host.tools
    run.emit("phase", name="repositories", state="begin")
    trees = apply_patches(job, prepare_trees(job, run.work, base=run.environ, caged=tools is not None))
    isolated = isolation_finding(job, run.host)
    trees = replace(trees, findings=(*trees.findings, *run.place.findings, isolated))
    if tools is not None:
        cage = open_cage(job, trees, tools, run.work, run.out, run.environ, number=run.place.number)
        trees = replace(trees, cage=cage)
    if stops([isolated]):
        # Nothing of the code under test has been started, and nothing is.
        emit_findings(run.emit, trees.findings)
        _write_environment(run, trees, Preflight(trees.findings, ()))
        return run.not_started("the code under test cannot be isolated on this host")
    caches = TakenCaches()
    if job.site.kernel_caches is not None:
        caches = take_caches(job.site.kernel_caches, run.session, run.work, keep=run.keep_caches)
        trees = replace(trees, findings=(*trees.findings, *caches.findings))
    executed = begin_record(job.changed, trees, run.session.executed, run.session.imports.with_name("executed"))
    tested = replace(trees, cage=with_own_scratch(trees.cage, "bridge-tests"))
    prepared = run.work / "prepared"
    seen = preflight(job, trees, run.session, base=run.environ, work=prepared, emit=run.emit, devices=run.devices)
    _write_environment(run, trees, seen, caches)
    if seen.blocked:
        return run.not_started("preflight found what blocks the run")
    recipe = job.checkpoint.synthetic
    if recipe and (made := model_there(recipe, seen.launches[0].environment)):
        # What a synthetic model was made from, and the digests of what was made.
        run.recorder.text(RECIPE_FILE, (made / RECIPE_FILE).read_text(encoding="utf-8"))
    tests = _bridge_tests(run, tested, seen)
    executed.take(BRIDGE_TESTS_PHASE, run.recorder, tested.cage)
    _write_environment(run, trees, seen, caches, tests)
    failed = tests.outcome == "failed"
    if failed or stops(tests.findings):
        run.recorder.document(EXECUTED_FILE, executed.joined(job.bridge.commit))
        required = "the job requires the Bridge checks, and they could not run"
        return run.not_started("a focused Bridge test failed" if failed else required)
    caches.give(trees.cage)
    ended = _train(run, trees, seen, executed)
    if run.keep_caches is None:
        return ended
    if run.session.caches is None:
        kept = "no kernel caches kept: the workers belong to a Ray cluster that was there before the run"
    elif ended.reason is not EndReason.EXITED or ended.exit_code != 0:
        kept = "no kernel caches kept: the run did not come to its end"
    else:
        image = seen.container.image or seen.container.asked if seen.container else ""
        origin = caches_origin(job, trees.states, seen.interpreter.versions, seen.gpus, driver=seen.driver, image=image)
        kept = keep_caches(run.session.caches, run.keep_caches, origin)
    run.progress.note(kept)
    return ended


def _bridge_tests(run: OpenRun, trees: Trees, seen: Preflight) -> BridgeTests:
    """The focused tests; their JUnit file goes through redaction like everything else."""
    run.emit("phase", name=TESTS_PHASE, state="begin")
    folder = run.work / "bridge-tests"
    folder.mkdir()
    if run.junit is None:
        environment = dict(seen.launches[0].environment)
        # Weights of a test are not those of the run.
        environment.pop(FINGERPRINTS_VARIABLE, None)
        tests = run_bridge_tests(run.job, trees, environment, folder)
    else:
        tests = take_bridge_tests(run.job, run.junit, folder)
    emit_findings(run.emit, tests.findings)
    data = {"seconds": round(tests.seconds, 3), "outcome": tests.outcome, "argv": list(tests.command)}
    run.emit("phase", name=TESTS_PHASE, state="end", **data)
    written = folder / JUNIT_FILE
    if written.is_file():
        run.recorder.text(JUNIT_FILE, written.read_text(encoding="utf-8", errors="replace"))
    return tests


def _train(run: OpenRun, trees: Trees, seen: Preflight, executed: ExecutionRecord) -> Ended:
    """Start the wrapper for each phase of the job and watch it to its end; from here on the watch minds the signals."""
    scanner = LogScanner()
    ended = Ended(EndReason.NOT_STARTED, None, "the job has no phase")
    checkpoints = None
    if consumer_of(run.job).saves(run.job):
        saved = said_by(run.job, seen.configs[-1] if seen.configs else None, ConfigKey.CHECKPOINTS) or "checkpoints"
        checkpoints = CheckpointLister(run.recorder, trees.cwd, str(saved), trees.cage.scratch if trees.cage else None)
        checkpoints.list_after("")
    fingerprints = FingerprintLines(run.session.fingerprints)
    with received_signals() as signals:
        for launch in seen.launches:
            name = launch.phase.name
            run.emit("phase", name=RUN_PHASE, state=BEGIN, step=name, line=run.recorder.next_line)
            run.emit("command", argv=list(launch.argv), cwd=str(launch.cwd), set=dict(sorted(launch.set_here.items())))
            environment, nonce = launch.environment, run.session.nonce
            try:
                process = start(launch.argv, env=environment, cwd=launch.cwd, nonce=nonce, cage=trees.cage)
            except OSError as error:
                ended = Ended(EndReason.NOT_STARTED, None, f"{launch.argv[0]}: {error.strerror}")
            else:
                with closing(process), deadline(process.pid, run.job.time_limit_s + MARGIN_S):
                    ended = watch(
                        process,
                        scanner,
                        run.recorder,
                        limits=WatchLimits.of(run.job),
                        imports_file=run.session.imports,
                        expected_roots=trees.import_roots,
                        gpu_sampler=GpuSampler(run.devices, environment.get("CUDA_VISIBLE_DEVICES"), process.numbers),
                        memory_sampler=open_memory_sampler(
                            process.numbers, run.place.others, run.job.site.needs.memory_gib
                        ),
                        clock=HostClock(),
                        progress=run.progress,
                        total_steps=launch.phase.last_step,
                        signals=signals,
                    )
            executed.take(name, run.recorder)
            fingerprints.take(name)
            end = {"reason": ended.reason.value, "exit_code": ended.exit_code}
            run.emit("phase", name=RUN_PHASE, state=END, step=name, **end)
            if checkpoints:
                checkpoints.list_after(name)
            if ended.reason is not EndReason.EXITED or ended.exit_code != 0:
                break
        run.emit("phase", name="collect", state="begin")
        run.recorder.document(EXECUTED_FILE, executed.joined(run.job.bridge.commit))
        fingerprints.write(run.recorder)
        collect_run(run.recorder, scanner.finish(), imports_file=run.session.imports, ended=ended)
    return ended


def _write_environment(
    run: OpenRun, trees: Trees, seen: Preflight, caches: TakenCaches | None = None, tests: BridgeTests | None = None
) -> None:
    launch = seen.launches[0] if seen.launches else None
    document = Environment(
        repositories=trees.states,
        import_roots=trees.import_roots,
        imports=seen.imports,
        findings=(*seen.findings, *(tests.findings if tests else ())),
        python=seen.interpreter.version,
        packages=dict(seen.interpreter.versions),
        hand_installed=seen.interpreter.hand_installed,
        gpus=seen.gpus,
        driver=seen.driver,
        cpu_count=os.cpu_count() or 0,
        container=seen.container or read_container(run.environ).model_copy(update={"asked": run.job.site.image}),
        command=launch.argv if launch else (),
        process=dict(sorted(launch.set_here.items())) if launch else {},
        site=run.job.site.name,
        absent_tests=tests.absent if tests else (),
        tests_not_run=tests.not_run if tests else "",
        isolation=state_of(trees.cage, run.host),
        kernel_caches=caches.caches if caches else None,
        suspects_word=SUSPECTS_WORD,
    )
    run.recorder.document(ENVIRONMENT_FILE, document)
