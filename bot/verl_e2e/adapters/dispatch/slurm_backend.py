"""Run jobs on a Slurm cluster: one `sbatch` for each run, found again by the run's key, which is the job's name.

No other module starts Slurm's commands. The handle is the number of Slurm's job. A lost answer never starts a run
twice: `submit` first looks for a job with the name, and of two jobs with one name only the one with the claim runs
anything.
"""

import re
import secrets
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from verl_e2e.adapters.dispatch.order_folder import (
    EXIT_CODE,
    ORDER_VARIABLE,
    RECORDER_KEY,
    RUNNER_LOG,
    OpenLog,
    OrderFolder,
    disk_errors,
    follow_ups,
    ordered_job,
    safe_environment,
)
from verl_e2e.adapters.dispatch.shared_disk import (
    BEGUN,
    CLAIM,
    CLAIMING,
    ClusterBackend,
    ClusterJob,
    EngineFailure,
    JobPhase,
)
from verl_e2e.core.judge.criteria.run_record import BackendTimes
from verl_e2e.core.model.jobs import REHEARSAL_CORES, Isolation, Job
from verl_e2e.core.model.outcome import EngineEnd
from verl_e2e.core.pulls.job_order import RECORDER_KEY_VARIABLE, TOKEN_VARIABLE, minutes_of
from verl_e2e.core.pulls.ledger import Run, RunState
from verl_e2e.core.pulls.ray_nodes import LOST_FILE, STOP_FILE, end_script, node_script
from verl_e2e.ports import BackendError, Clock, Progress

# ssh's own exit code where the connection, and not the command, failed.
_NO_CONNECTION = 255
# Variables by which a user changes what the commands do and print.
_DEFAULTS_OF_SLURM = ("SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SLURM_JOB")
_ANSWER_BYTES = 4 << 20
_REACH_FIX = "see that slurmctld runs and can be reached (`scontrol ping`)"


class CommandAnswer(NamedTuple):
    """How a command ended: exit code, standard output, the last line of standard error."""

    code: int
    text: str
    error: str


@dataclass(frozen=True, slots=True)
class SlurmCommands:
    """The commands of one cluster."""

    host: str = ""
    """The host where they are run, by ssh; empty: this machine."""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment, of which secrets and the service's own settings are not handed down."""
    ssh: tuple[str, ...] = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15")
    """How ssh is called: it never asks for a password."""
    time_s: float = 60.0
    """Seconds that a command may take."""

    def ask(self, words: Sequence[str], stdin: str = "") -> CommandAnswer:
        """Run one command to its end; BackendError where it cannot be run or gives no answer.

        Such an error is `uncertain`, for the command may have done its work.
        """
        # ssh hands one text to a shell of the other host.
        command = [*self.ssh, self.host, "--", shlex.join(words)] if self.host else [*words]
        environment = {
            name: value
            for name, value in safe_environment(self.environ).items()
            if not name.startswith(_DEFAULTS_OF_SLURM)
        }
        try:
            ended = subprocess.run(
                command,
                input=stdin.encode(),
                env=environment,
                cwd="/",
                capture_output=True,
                timeout=self.time_s,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            what = f"{command[0]} gave no answer within {self.time_s:g} s"
            raise BackendError(f"{what}; {_REACH_FIX}", uncertain=True) from None
        except OSError as error:
            what = f"{command[0]} cannot be started: {error.strerror}"
            raise BackendError(f"{what}; install Slurm's commands, or name a host in VERL_E2E_SLURM_HOST") from error
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        said = lines[-1][:300] if lines else "no message"
        if self.host and ended.returncode == _NO_CONNECTION:
            raise BackendError(f"{command[0]} did not reach {self.host}: {said}; {_REACH_FIX}", uncertain=True)
        return CommandAnswer(ended.returncode, ended.stdout[:_ANSWER_BYTES].decode(errors="replace"), said)


# Both programs print the time of their own zone, in a format that a user may change.
_IN_UTC = ("env", "TZ=UTC", "LC_ALL=C", "SLURM_TIME_FORMAT=standard")
# One line for each job, with the same five fields in the same order.
_SQUEUE = (*_IN_UTC, "squeue", "--me", "--states=all", "--noheader", "--format=%i|%T|%r|%S|%e")
_SACCT = (*_IN_UTC, "sacct", "--allocations", "--noheader", "--parsable2", "--format=JobIDRaw,State,Reason,Start,End")
_FIELDS = 5

_PHASES = {
    state: phase
    for phase, states in {
        JobPhase.WAITING: "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT "
        "RESV_DEL_HOLD POWER_UP_NODE",
        JobPhase.RUNNING: "RUNNING SUSPENDED STOPPED COMPLETING RESIZING SIGNALING STAGE_OUT",
        JobPhase.ENDED: "COMPLETED FAILED",
        JobPhase.CANCELLED: "CANCELLED",
    }.items()
    for state in states.split()
}

# States in which Slurm ended a job, or could not run it.
SLURM_FAILURES: Mapping[str, EngineFailure] = {
    "BOOT_FAIL": EngineFailure("its node did not boot; have the node checked, and rerun", EngineEnd.NODE_NOT_READY),
    "DEADLINE": EngineFailure("it reached its deadline before it ended; rerun with a later one", EngineEnd.TIME_LIMIT),
    "LAUNCH_FAILED": EngineFailure(
        "its node could not start it; look at the log of slurmd there, and rerun", EngineEnd.NODE_NOT_READY
    ),
    "NODE_FAIL": EngineFailure("its node failed; have the node checked, and rerun", EngineEnd.NODE_FAILED),
    "OUT_OF_MEMORY": EngineFailure(
        "it used more host memory than it was given; raise `--mem` in VERL_E2E_SLURM_OPTIONS, and rerun",
        EngineEnd.HOST_MEMORY,
    ),
    "PREEMPTED": EngineFailure(
        "another job took its node; use a partition or QOS that is not preempted, or rerun", EngineEnd.PREEMPTED
    ),
    "RECONFIG_FAIL": EngineFailure(
        "its node could not be prepared; have the node checked, and rerun", EngineEnd.NODE_NOT_READY
    ),
    "REVOKED": EngineFailure(
        "another cluster of the federation took it; name one cluster, and rerun", EngineEnd.PREEMPTED
    ),
    "TIMEOUT": EngineFailure(
        "it reached its time limit; raise the job's `time_limit_s`, and rerun", EngineEnd.TIME_LIMIT
    ),
}
_PUT_BACK = (
    "Slurm ended its job and put it back into the queue, as `scontrol requeue` does or a restart of the controller, "
    "and a run is never continued; rerun"
)


def read_jobs(text: str) -> tuple[ClusterJob, ...]:
    """The jobs of a listing, oldest first; a line of another form is left out."""
    jobs = []
    for row in (line.strip().split("|") for line in text.splitlines()):
        if len(row) == _FIELDS and row[0].isdecimal() and row[0].isascii():
            number, state, reason, began, ended = row
            # sacct writes `CANCELLED by 1000`, and `TIMEOUT+` where a column is too narrow.
            word = state.split()[0].rstrip("+") if state.split() else ""
            broken = SLURM_FAILURES.get(word)
            phase = JobPhase.BROKEN if broken else _PHASES.get(word)
            jobs.append(ClusterJob(number, word, phase, reason[:80], broken, _time(began), _time(ended)))
    return tuple(sorted(jobs, key=lambda job: int(job.id)))


def _time(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def read_submitted(text: str) -> str:
    """The number in what `sbatch --parsable` prints, `NUMBER` or `NUMBER;CLUSTER`; empty for anything else."""
    lines = text.strip().splitlines()
    number = lines[-1].partition(";")[0].strip() if lines else ""
    return number if number.isascii() and number.isdecimal() else ""


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """How jobs are submitted to a cluster."""

    folder: Path
    """The folder of orders, at the same path here and on the nodes."""
    gpus: str = "--gpus-per-node=N"
    """The option that asks for GPUs; `N` stands for their number."""
    options: tuple[str, ...] = ()
    """More options of `sbatch`."""
    command: tuple[str, ...] = ("verl-e2e",)
    """How `verl-e2e` is called on a node, in the container where there is one."""
    setup: str = ""
    """A bash script that is read before that, in the same step; empty for none."""
    pyxis: bool = False
    """Whether pyxis starts a container with the image of the job."""
    mounts: tuple[str, ...] = ()
    """More mounts, `SOURCE:TARGET` or `SOURCE:TARGET:FLAGS`; the folder of orders is mounted always."""
    token_file: str = ""
    """The file on the nodes with the token for fetching repositories; empty for none."""
    warn_s: int = 300
    """Seconds before the time limit at which the run is asked to end."""


def container_words(job: Job, settings: SlurmSettings) -> list[str]:
    """pyxis' options of `srun` for the job's image; none without pyxis. BackendError without an image."""
    if not settings.pyxis:
        return []
    if not job.site.image:
        fix = "set `image` in the policy or in the site profile"
        raise BackendError(f"no container image is named for {job.id}; {fix}", final=True)
    # pyxis writes `REGISTRY#NAME` where Docker writes `REGISTRY/NAME`; a file stays as it is.
    registry, slash, name = job.site.image.partition("/")
    image = f"{registry}#{name}" if slash and re.search(r"[.:]", registry) else job.site.image
    mounts = ",".join((f"{settings.folder}:{settings.folder}", *settings.mounts))
    return [f"--container-image={image}", f"--container-mounts={mounts}"]


# Runs in one step, in the container where there is one, once on each node. It alone ends the runner: a signal of Slurm
# would reach the programs under test as well, and the runner ends those itself.
_STEP = """\
if [ -n "$1" ]; then . "$1" || exit 78; fi
folder=$2
shift 2
{nodes}"$@" &
runner=$!
while kill -0 "$runner" 2>/dev/null; do
    if [ -e "$folder/{stop}" ]; then kill -TERM "$runner" 2>/dev/null; break; fi
    sleep 1
done
wait "$runner"
code=$?
echo "$code" > "$folder/{exit_code}"
{end}exit "$code"
"""

_SCRIPT = """\
#!/bin/bash
if [ "${{SLURM_RESTART_COUNT:-0}}" != 0 ]; then
    : > {folder}/requeued
    echo "Slurm started this job again, and a run is never continued" >&2
    exit 75
fi
set -- {folder} "$SLURM_JOB_ID" {digest}
{claiming}trap ': > {stop}' TERM
export {order}={key} {key_variable}={recorder_key} {token_variable}={token_file}
if [ -n "${{SLURM_CPUS_PER_TASK:-}}" ]; then export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi
{srun} &
child=$!
while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
done
exit "$code"
"""


def batch_script(run: Run, folder: OrderFolder, settings: SlurmSettings) -> str:
    """The script that Slurm runs on the first node of the job."""
    called = folder.call(settings.command, follow_ups(run))
    if run.rehearsal is not None:
        # Its Python lies on the host, and no container is made for it.
        srun, nodes, end = ["srun", "--nodes=1", "--ntasks=1", "--kill-on-bad-exit=1"], "", ""
    else:
        job = _job_of(run)
        srun = ["srun", f"--nodes={job.node_count}", f"--ntasks={job.node_count}", "--kill-on-bad-exit=1"]
        srun += [*container_words(job, settings)]
        nodes, end = (node_script(job), end_script()) if job.node_count > 1 else ("", "")
    step = _STEP.format(nodes=nodes, stop=STOP_FILE, exit_code=EXIT_CODE, end=end)
    srun += ["bash", "-c", step, "step", settings.setup, str(folder.path), *called]
    return _SCRIPT.format(
        claiming=CLAIMING,
        folder=shlex.quote(str(folder.path)),
        digest=shlex.quote(folder.digest_line(run)),
        stop=STOP_FILE,
        order=ORDER_VARIABLE,
        key=run.key,
        key_variable=RECORDER_KEY_VARIABLE,
        recorder_key=shlex.quote(str(folder.path.parent / RECORDER_KEY)),
        token_variable=TOKEN_VARIABLE,
        token_file=shlex.quote(settings.token_file),
        srun=shlex.join(srun),
    )


def _job_of(run: Run) -> Job:
    """The job of a run; BackendError, final, where there is none, or one that cannot run on several nodes."""
    job = ordered_job(run)
    if job.node_count > 1 and job.isolation is Isolation.REQUIRED:
        what = f"{job.id} needs {job.node_count} nodes, and code under test can be isolated on one node only"
        fix = "set `isolation: preferred` in the policy, which does not hold for a fork's code"
        raise BackendError(f"{what}; {fix}", final=True)
    return job


def gpus_words(option: str, of_node: int, nodes: int = 1) -> list[str]:
    """The option that asks for GPUs: `--gpus` counts those of all nodes, the others those of one."""
    count = of_node * nodes if option.startswith("--gpus=") else of_node
    return [re.sub(r"(?<=[=:])N$", str(count), option)]


def sbatch_words(run: Run, folder: OrderFolder, settings: SlurmSettings) -> list[str]:
    """The command that submits the script on its standard input; the run's key is the job's name."""
    if run.rehearsal is not None:
        nodes, minutes = 1, minutes_of(run.rehearsal)
        asked = [f"--cpus-per-task={REHEARSAL_CORES}"]
    else:
        job = _job_of(run)
        nodes, minutes = job.node_count, minutes_of(job)
        asked = gpus_words(settings.gpus, job.gpus_of_node, nodes)
    # The warning must come after the start and before the end.
    minutes += settings.warn_s // 60
    return [
        *("sbatch", "--parsable", f"--job-name={run.key}", f"--comment={run.key}"),
        *("--no-requeue", "--open-mode=append", f"--output={folder.path / RUNNER_LOG}", f"--chdir={folder.path}"),
        *(f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
        *asked,
        *(f"--time={minutes}", f"--signal=B:TERM@{settings.warn_s}"),
        *settings.options,
    ]


def check_cluster(settings: SlurmSettings, commands: SlurmCommands, *, free_node_s: int = 20) -> str:
    """What the cluster is, in words; BackendError with the fix for the first thing that keeps jobs from running.

    It starts one task of a second on a node, without a GPU, and waits `free_node_s` for a free node.
    """
    version = commands.ask(["sbatch", "--version"])
    if version.code:
        fix = "install Slurm's commands there, or set VERL_E2E_SLURM_HOST to a host that has them"
        raise BackendError(f"`sbatch --version` ended with {version.code}: {version.error}; {fix}")
    for words in (["squeue", "--me", "--noheader"], ["scancel", "--version"]):
        answer = commands.ask(words)
        if answer.code:
            raise BackendError(f"`{' '.join(words)}` ended with {answer.code}: {answer.error}; {_REACH_FIX}")
    words = ["sbatch", "--test-only", "--nodes=1", "--ntasks=1", "--time=10"]
    taken = commands.ask([*words, *gpus_words(settings.gpus, 1), *settings.options], "#!/bin/bash\ntrue\n")
    if taken.code:
        fix = "correct VERL_E2E_SLURM_OPTIONS or VERL_E2E_SLURM_GPUS"
        raise BackendError(f"Slurm would not take a job with one GPU: {taken.error}; {fix}")
    accounting = commands.ask(["sacct", "--noheader", "--allocations", "--starttime=now"])
    kept = "with accounting" if accounting.code == 0 else "without accounting"
    # Does a node read what this machine wrote into the folder of orders?
    mark = secrets.token_hex(8)
    file = settings.folder / f".check-{mark}"
    with disk_errors():
        file.write_text(mark)
    try:
        words = ["srun", f"--immediate={free_node_s}", "--nodes=1", "--ntasks=1", "--time=1", *settings.options]
        read = commands.ask([*words, "sh", "-c", 'cat "$1" 2>/dev/null || echo missing', "sh", str(file)])
    finally:
        file.unlink(missing_ok=True)
    if read.text.strip() == "missing":
        fix = "name a folder in VERL_E2E_SLURM_FOLDER that the nodes have at the same path"
        raise BackendError(f"a node does not see what lies in {settings.folder}; {fix}")
    seen = f"no node looked at the folder of orders within {free_node_s} s ({read.error})"
    seen = "a node sees the folder of orders" if read.text == mark else seen
    return f"{version.text.strip()[:60]}, {kept}, {seen}"


# A note in an order: begun, and put back into the queue by Slurm.
_REQUEUED = "requeued"


class SlurmBackend(ClusterBackend):
    """The nodes of one Slurm cluster."""

    engine, shows_job, shows_nodes = "Slurm", "scontrol show job", "sinfo"

    def __init__(self, settings: SlurmSettings, commands: SlurmCommands, *, clock: Clock, open_log: OpenLog) -> None:
        super().__init__(settings.folder, clock=clock, open_log=open_log)
        self._settings, self._commands = settings, commands

    def end_doubles(self, run: Run) -> None:
        """Cancel every other job with the run's key; none of them ran anything, for one has the order."""
        jobs = self._listed(run)
        own = _own(jobs, self._folder(run))
        for job in jobs:
            if own is not None and job.id != own.id and job.phase in (JobPhase.WAITING, JobPhase.RUNNING):
                self._commands.ask(["scancel", job.id])

    def _job(self, run: Run, folder: OrderFolder) -> ClusterJob | None:
        return _own(self._listed(run), folder)

    def _listed(self, run: Run) -> tuple[ClusterJob, ...]:
        """Our jobs with the run's key; BackendError where Slurm does not say."""
        answer = self._commands.ask([*_SQUEUE, f"--name={run.key}"])
        if answer.code:
            raise BackendError(f"squeue ended with {answer.code}: {answer.error}; {_REACH_FIX}", uncertain=True)
        if jobs := read_jobs(answer.text):
            return jobs
        # The controller forgets a job some minutes after its end. Not every cluster has accounting: without it the
        # files say how the run ended.
        since = run.created.astimezone(UTC) - timedelta(days=1)
        kept = self._commands.ask([*_SACCT, f"--name={run.key}", f"--starttime={since:%Y-%m-%dT%H:%M:%S}"])
        return read_jobs(kept.text) if kept.code == 0 else ()

    def _start(self, run: Run, folder: OrderFolder) -> str:
        script, words = batch_script(run, folder, self._settings), sbatch_words(run, folder, self._settings)
        answer = self._commands.ask(words, script)
        if answer.code == 0:
            return read_submitted(answer.text)
        # It may have been taken all the same.
        if found := self.find(run):
            return found
        # What the controller refuses on a second look as well, and only as a test, it will never take.
        final = self._commands.ask([words[0], "--test-only", *words[1:]], script).code != 0
        fix = "correct VERL_E2E_SLURM_OPTIONS or VERL_E2E_SLURM_GPUS, and run the job again"
        raise BackendError(f"sbatch did not take the job: {answer.error}; {fix}", final=final, uncertain=not final)

    def _going(self, run: Run, folder: OrderFolder, job: ClusterJob) -> Progress:
        if job.phase is JobPhase.WAITING and folder.has(CLAIM) and not folder.cancelled:
            # Its script would only find that it is not the first.
            with disk_errors():
                folder.write(_REQUEUED, job.id)
            self._commands.ask(["scancel", job.id])
            return Progress(RunState.CANCELLING, _PUT_BACK)
        return super()._going(run, folder, job)

    def _ended(self, folder: OrderFolder, job: ClusterJob | None) -> Progress:
        if folder.has(_REQUEUED) and not folder.cancelled:
            return Progress(RunState.LOST, _PUT_BACK, end=EngineEnd.PREEMPTED)
        return super()._ended(folder, job)

    def _ended_by_script(self, folder: OrderFolder) -> Progress | None:
        if folder.has(STOP_FILE):
            limit = SLURM_FAILURES["TIMEOUT"]
            return Progress(RunState.LOST, f"Slurm asked it to end: {limit.what}", end=limit.end)
        if folder.has(LOST_FILE):
            what = "a node could not join its Ray cluster, or left it before the end"
            note = f"{what}; look at {RUNNER_LOG} in its order, and rerun"
            return Progress(RunState.LOST, note, end=EngineEnd.NODE_FAILED)
        return None

    def _send_end(self, job: ClusterJob) -> bool:
        # In this order, for a job may begin between the two.
        waiting = self._commands.ask(["scancel", "--state=PENDING", job.id])
        begun = self._commands.ask(["scancel", "--batch", "--signal=TERM", job.id])
        return waiting.code == 0 and (begun.code == 0 or job.phase is JobPhase.WAITING)

    def _end_by_force(self, job: ClusterJob) -> None:
        self._commands.ask(["scancel", job.id])

    def _took(self, folder: OrderFolder, job: ClusterJob | None) -> BackendTimes:  # noqa: ARG002  (Slurm knows)
        if job is None:
            return BackendTimes(who="Slurm")
        return BackendTimes(who=f"Slurm's job {job.id}", started=job.began, ended=job.ended)


def _own(jobs: tuple[ClusterJob, ...], folder: OrderFolder) -> ClusterJob | None:
    """Of the jobs with one key that which has the order, else the first."""
    claim = folder.read(CLAIM).split()
    claimed = claim[2] if len(claim) == 3 and claim[0] == BEGUN else ""
    return next((job for job in jobs if job.id == claimed), jobs[0] if jobs else None)
