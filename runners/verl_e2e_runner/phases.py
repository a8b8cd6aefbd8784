"""The phases of one run in their order: each is recorded, and the first that fails ends the run.

The order is that of trust and cost: repositories and patches, preflight, byte code and import proof, the
focused Bridge tests, and only then the GPU hour.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from verl_e2e.core.judge.case import wants_save
from verl_e2e.core.log.printed import lookup
from verl_e2e.core.log.scan import Scanner
from verl_e2e.core.model.execution import EXECUTED_FILE
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import (
    BEGIN,
    END,
    ENVIRONMENT_FILE,
    JUNIT_FILE,
    RUN_PHASE,
    SUSPECTS_WORD,
    TESTS_PHASE,
    Check,
    EndReason,
    Environment,
    Finding,
)
from verl_e2e_runner.bridge_tests import BridgeTests, run_bridge_tests, take_bridge_tests
from verl_e2e_runner.clock import SystemClock
from verl_e2e_runner.folder.collect import CheckpointLister, collect, record_end
from verl_e2e_runner.folder.process_records import BRIDGE_TESTS_PHASE, ExecutionRecord, FingerprintLines, begin_record
from verl_e2e_runner.folder.recorder import Recorder
from verl_e2e_runner.isolation import (
    Host,
    isolation_finding,
    open_cage,
    state_of,
)
from verl_e2e_runner.models import RECIPE_FILE, made_model
from verl_e2e_runner.preflight.host import read_container
from verl_e2e_runner.preflight.kernel_caches import TakenCaches, check_fit, keep_caches, origin_of, take_caches
from verl_e2e_runner.preflight.preflight import Preflight, preflight
from verl_e2e_runner.process.confined import with_own_scratch
from verl_e2e_runner.process.deadline import MARGIN_S, deadline
from verl_e2e_runner.process.processes import Ended, received_signals, start
from verl_e2e_runner.process.session import FINGERPRINTS_VARIABLE, Session
from verl_e2e_runner.sharing import Devices, Place
from verl_e2e_runner.trees import Trees, apply_patches, prepare_trees
from verl_e2e_runner.verl_wrapper import Launch
from verl_e2e_runner.watch.samplers import open_memory_sampler, open_sampler
from verl_e2e_runner.watch.watch import Limits, Progress, watch


@dataclass(frozen=True, slots=True)
class Run:
    """What every phase of one run shares."""

    job: Job
    # The runner's own environment.
    environ: Mapping[str, str]
    # The run folder.
    out: Path
    # The run's own folder, with its private trees; it is removed at the end.
    work: Path
    # What is kept between runs; None: nothing.
    cache: Path | None
    # What this host can do to isolate the code under test.
    host: Host
    session: Session
    recorder: Recorder
    progress: Progress
    # Reads the GPUs.
    devices: Callable[[], Devices]
    # What the run has of this host.
    place: Place
    # Results of the Bridge tests from elsewhere; None: they are run here.
    junit: bytes | None = None
    # Where the run leaves its kernel caches; None: nowhere.
    keep_caches: Path | None = None

    def emit(self, kind: str, **data: object) -> None:
        """Record an event, and show the beginning of a phase."""
        self.recorder.event(kind, **data)
        if kind == "phase" and data.get("state") == "begin":
            self.progress.phase(str(data["name"]))
        if kind == "finding" and not data.get("ok"):
            self.progress.note(f"{data['check']}: {data['summary']}")


def run_phases(run: Run) -> Ended:
    """Everything from the repositories to the end of the wrapper; how it ended is recorded too."""
    run.emit("phase", name="repositories", state="begin")
    trees = prepare_trees(run.job, run.work, base=run.environ, caged=run.host.tools is not None)
    trees = apply_patches(run.job, trees)
    trees = _caged(
        run, replace(trees, findings=(*trees.findings, *run.place.findings, isolation_finding(run.job, run.host)))
    )
    if any(finding.check is Check.ISOLATION and finding.blocking and not finding.ok for finding in trees.findings):
        return _refused(run, trees)
    caches = take_caches(run.job.site, run.session, run.work, keep=run.keep_caches)
    trees = replace(trees, findings=(*trees.findings, *caches.findings))
    executed = begin_record(run.job.changed, trees, run.session.executed, run.session.imports.with_name("executed"))
    tested = replace(trees, cage=with_own_scratch(trees.cage, "bridge-tests"))
    seen = preflight(
        run.job,
        trees,
        run.session,
        base=run.environ,
        work=run.work / "prepared",
        emit=run.emit,
        cache=run.cache,
        devices=run.devices,
    )
    seen = replace(seen, findings=(*seen.findings, *_misfits(run, seen, caches)))
    _write_environment(run, trees, seen, caches)
    if seen.blocked:
        return _not_started(run, "preflight found what blocks the run")
    _record_recipe(run, seen)
    tests = _bridge_tests(run, tested, seen)
    executed.take(BRIDGE_TESTS_PHASE, run.recorder, tested.cage)
    _write_environment(run, trees, seen, caches, tests)
    if reason := _stopping(tests):
        run.recorder.document(EXECUTED_FILE, executed.joined(run.job.bridge.commit))
        return _not_started(run, reason)
    caches.give(trees.cage)
    ended = _train(run, trees, seen, executed)
    _keep_caches(run, trees, seen, ended)
    return ended


def _misfits(run: Run, seen: Preflight, caches: TakenCaches) -> tuple[Finding, ...]:
    """The finding for caches that were filled on another kind of host, recorded."""
    found = check_fit(caches.caches, seen.interpreter.versions, seen.gpus)
    for finding in found:
        run.emit("finding", **finding.model_dump(mode="json"))
    return found


def _keep_caches(run: Run, trees: Trees, seen: Preflight, ended: Ended) -> None:
    """Leave the kernel caches of the run where its operator asked for them."""
    if run.keep_caches is None:
        return
    if run.session.caches is None:
        run.progress.note("no kernel caches kept: the workers belong to a Ray cluster that was there before the run")
        return
    if ended.reason is not EndReason.EXITED or ended.exit_code != 0:
        run.progress.note("no kernel caches kept: the run did not come to its end")
        return
    container = seen.container.image or seen.container.asked if seen.container else ""
    origin = origin_of(run.job, trees.states, seen.interpreter.versions, seen.gpus, driver=seen.driver, image=container)
    run.progress.note(keep_caches(run.session.caches, run.keep_caches, origin))


def _record_recipe(run: Run, seen: Preflight) -> None:
    """Keep what a synthetic model was made from, and the digests of what was made."""
    recipe = run.job.checkpoint.synthetic
    made = made_model(recipe, seen.launches[0].environment) if recipe else None
    if made:
        run.recorder.text(RECIPE_FILE, (made / RECIPE_FILE).read_text(encoding="utf-8"))


def _stopping(tests: BridgeTests) -> str:
    """Why the wrapper is not started after the Bridge tests, empty where it is."""
    if tests.outcome == "failed":
        return "a focused Bridge test failed"
    if any(finding.blocking and not finding.ok for finding in tests.findings):
        return "the job requires the Bridge checks, and they could not run"
    return ""


def _caged(run: Run, trees: Trees) -> Trees:
    """The trees with the cage that their code is started in."""
    if run.host.tools is None:
        return trees
    cage = open_cage(run.job, trees, run.host.tools, run.work, run.out, run.environ, number=run.place.number)
    return replace(trees, cage=cage)


def _refused(run: Run, trees: Trees) -> Ended:
    """Nothing of the code under test has been started, and nothing is."""
    for finding in trees.findings:
        run.emit("finding", **finding.model_dump(mode="json"))
    _write_environment(run, trees, Preflight(trees.findings, ()))
    return _not_started(run, "the code under test cannot be isolated on this host")


def _not_started(run: Run, why: str) -> Ended:
    ended = Ended(EndReason.NOT_STARTED, None, why, ended_s=run.recorder.elapsed())
    record_end(run.recorder, ended)
    return ended


def _bridge_tests(run: Run, trees: Trees, seen: Preflight) -> BridgeTests:
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
    for finding in tests.findings:
        run.emit("finding", **finding.model_dump(mode="json"))
    data = {"seconds": round(tests.seconds, 3), "outcome": tests.outcome, "argv": list(tests.command)}
    run.emit("phase", name=TESTS_PHASE, state="end", **data)
    written = folder / JUNIT_FILE
    if written.is_file():
        run.recorder.text(JUNIT_FILE, written.read_text(encoding="utf-8", errors="replace"))
    return tests


def _train(run: Run, trees: Trees, seen: Preflight, executed: ExecutionRecord) -> Ended:
    """Start the wrapper for each phase of the job and watch it to its end; from here on the watch minds the signals."""
    scanner = Scanner()
    ended = Ended(EndReason.NOT_STARTED, None, "the job has no phase")
    checkpoints = _checkpoints(run, trees, seen)
    fingerprints = FingerprintLines(run.session.fingerprints)
    with received_signals() as signals:
        for launch in seen.launches:
            begun = ended.stages
            ended = _watch(run, trees, launch, scanner, signals)
            ended = replace(ended, stages=(*begun, *ended.stages))
            executed.take(launch.phase.name, run.recorder)
            fingerprints.take(launch.phase.name)
            code = ended.exit_code
            run.emit(
                "phase", name=RUN_PHASE, state=END, step=launch.phase.name, reason=ended.reason.value, exit_code=code
            )
            if checkpoints:
                checkpoints.list_after(launch.phase.name)
            if ended.reason is not EndReason.EXITED or ended.exit_code != 0:
                break
        run.emit("phase", name="collect", state="begin")
        run.recorder.document(EXECUTED_FILE, executed.joined(run.job.bridge.commit))
        fingerprints.write(run.recorder)
        collect(run.recorder, scanner.finish(), imports_file=run.session.imports, ended=ended)
    return ended


def _checkpoints(run: Run, trees: Trees, seen: Preflight) -> CheckpointLister | None:
    """Who lists what the job saves, with what lies there before it; None for a job that saves nothing."""
    if not wants_save(run.job):
        return None
    config = seen.configs[-1] if seen.configs else None
    folder = str(lookup(config, "trainer.default_local_dir") or "checkpoints")
    lister = CheckpointLister(run.recorder, trees.cwd, folder, trees.cage.scratch if trees.cage else None)
    lister.list_after("")
    return lister


def _watch(run: Run, trees: Trees, launch: Launch, scanner: Scanner, signals: list[str]) -> Ended:
    run.emit("phase", name=RUN_PHASE, state=BEGIN, step=launch.phase.name, line=run.recorder.next_line)
    run.emit("command", argv=list(launch.argv), cwd=str(launch.cwd), set=dict(sorted(launch.set_here.items())))
    clock = SystemClock()
    try:
        process = start(launch.argv, env=launch.environment, cwd=launch.cwd, nonce=run.session.nonce, cage=trees.cage)
    except OSError as error:
        return Ended(EndReason.NOT_STARTED, None, f"{launch.argv[0]}: {error.strerror}")
    with closing(process), deadline(process.pid, run.job.time_limit_s + MARGIN_S):
        return watch(
            process,
            scanner,
            run.recorder,
            limits=Limits.of(run.job),
            imports_file=run.session.imports,
            expected_roots=trees.import_roots,
            gpu_sampler=open_sampler(launch.environment.get("CUDA_VISIBLE_DEVICES"), own=process.numbers),
            memory_sampler=open_memory_sampler(process.numbers, run.job.site.needs.memory_gib),
            clock=clock,
            progress=run.progress,
            total_steps=launch.phase.last_step,
            signals=signals,
        )


def _write_environment(
    run: Run, trees: Trees, seen: Preflight, caches: TakenCaches | None = None, tests: BridgeTests | None = None
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
