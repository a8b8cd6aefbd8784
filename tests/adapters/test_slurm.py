"""What is asked of Slurm and how its answers are read, and the parts of its back end that no other engine has."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.fakes.engines import SlurmEngine, engine, order, own_host, runners_of, unending, until
from tests.fakes.patience import HANG_S
from tests.fakes.slurm_accounting import accounted_cluster
from tests.fakes.slurm_cluster import SlurmCluster, slurm_cluster
from tests.runners.world import World
from verl_e2e.adapters.dispatch.order_folder import OrderFolder
from verl_e2e.adapters.dispatch.shared_disk import ClusterJob, JobPhase
from verl_e2e.adapters.dispatch.slurm_backend import (
    SLURM_FAILURES,
    SlurmBackend,
    SlurmCommands,
    SlurmSettings,
    batch_script,
    check_cluster,
    container_words,
    read_jobs,
    read_submitted,
    sbatch_words,
)
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.pulls.ledger import RunState
from verl_e2e.ports import BackendError

__all__ = ["engine"]


def test_a_listing_is_read_by_its_numbers() -> None:
    text = (
        "12|PENDING|Resources|N/A|N/A\n"
        "9|CANCELLED by 1000|None|2026-01-02T03:04:05|2026-01-02T03:05:05\n"
        "slurm_load_jobs error: Unexpected message received\n"
        "9.batch|FAILED|None|N/A|N/A\n"
        "\n"
    )
    begun = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert read_jobs(text) == (
        ClusterJob("9", "CANCELLED", JobPhase.CANCELLED, "None", None, begun, begun + timedelta(minutes=1)),
        ClusterJob("12", "PENDING", JobPhase.WAITING, "Resources"),
    )


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("PENDING", JobPhase.WAITING),
        ("COMPLETING", JobPhase.RUNNING),
        ("FAILED", JobPhase.ENDED),
        ("CANCELLED", JobPhase.CANCELLED),
        ("OF_A_LATER_VERSION", None),
        *((state, JobPhase.BROKEN) for state in SLURM_FAILURES),
    ],
)
def test_a_state_that_is_not_known_is_no_end(state: str, phase: JobPhase | None) -> None:
    (job,) = read_jobs(f"1|{state}|None|N/A|N/A")
    assert job.phase is phase
    assert (job.broken is not None) == (phase is JobPhase.BROKEN)


@pytest.mark.parametrize(
    ("printed", "number"), [("12\n", "12"), ("12;north\n", "12"), ("warning\n12\n", "12"), ("", ""), ("soon", "")]
)
def test_the_number_of_a_submitted_job(printed: str, number: str) -> None:
    assert read_submitted(printed) == number


def test_the_options_of_a_job(world: World, tmp_path: Path) -> None:
    run = order(world.job())
    assert run.job is not None
    settings = SlurmSettings(tmp_path, gpus="--gres=gpu:N100:N", options=("--partition=gpu",), warn_s=120)
    words = sbatch_words(run, OrderFolder.of(tmp_path, run.key), settings)
    asked = (3 * run.job.time_limit_s + run.job.bridge_tests_limit_s + 3600) // 60 + 2
    assert words == [
        *("sbatch", "--parsable", f"--job-name={run.key}", f"--comment={run.key}", "--no-requeue"),
        *("--open-mode=append", f"--output={tmp_path / run.key / 'runner.log'}", f"--chdir={tmp_path / run.key}"),
        *("--nodes=1", "--ntasks=1", "--ntasks-per-node=1", f"--gres=gpu:N100:{run.job.gpu_count}", f"--time={asked}"),
        *("--signal=B:TERM@120", "--partition=gpu"),
    ]


@pytest.mark.parametrize(
    ("image", "named"),
    [
        ("verlai/verl:vllm", "verlai/verl:vllm"),
        ("nvcr.io/nvidia/pytorch:26.01-py3", "nvcr.io#nvidia/pytorch:26.01-py3"),
        ("localhost:5000/verl", "localhost:5000#verl"),
        ("/images/verl.sqsh", "/images/verl.sqsh"),
    ],
)
def test_a_container_has_the_image_of_the_job_and_the_folder_of_orders(
    world: World, tmp_path: Path, image: str, named: str
) -> None:
    settings = SlurmSettings(tmp_path, pyxis=True, mounts=("/models:/models:ro",))
    job = world.job(site=world.site(image=image))
    mounts = f"--container-mounts={tmp_path}:{tmp_path},/models:/models:ro"
    assert container_words(job, settings) == [f"--container-image={named}", mounts]
    script = batch_script(order(job), OrderFolder.of(tmp_path, "a" * 64), settings)
    assert f" {mounts} bash -c" in script
    assert container_words(job, SlurmSettings(tmp_path)) == []
    with pytest.raises(BackendError, match="no container image is named"):
        container_words(world.job(site=world.site(image="")), settings)


def test_a_job_of_several_nodes_asks_for_the_gpus_of_each(world: World, tmp_path: Path) -> None:
    run = order(world.job(gpu_count=16, site=world.site(gpus_per_node=8)))
    folder = OrderFolder.of(tmp_path, run.key)
    asked = [
        sbatch_words(run, folder, SlurmSettings(tmp_path, gpus=option))
        for option in ("--gpus-per-node=N", "--gres=gpu:h100:N", "--gpus=h100:N")
    ]
    assert all({"--nodes=2", "--ntasks=2", "--ntasks-per-node=1"} <= set(words) for words in asked)
    gpus = [word for words in asked for word in words if "gpu" in word]
    assert gpus == ["--gpus-per-node=8", "--gres=gpu:h100:8", "--gpus=h100:16"]


def test_a_script_of_any_folder_is_one_that_bash_reads(world: World, tmp_path: Path) -> None:
    """A folder whose name a shell would take for a command runs nothing: the script only goes there."""
    root = tmp_path / "with space; touch $(date) 'quoted'"
    run = order(world.job())
    folder = OrderFolder.of(root, run.key)
    folder.write_order(run)
    settings = SlurmSettings(root, command=("/bin/sh", "-c", 'echo "$@" > called', "sh"))
    script = batch_script(run, folder, settings)
    (tmp_path / "srun").write_text('#!/bin/bash\nshift 3\nexec "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    answers = [
        subprocess.run(["bash"], input=script, env=environ, capture_output=True, text=True, check=False)
        for _ in range(2)
    ]
    assert [answer.returncode for answer in answers] == [0, 76], answers
    assert folder.read("claim").split()[::2] == ["begun", "7"]
    asked = f"run --job {folder.job_file} --out {folder.run_folder} --work {root / 'work'} --follow-ups\n"
    assert folder.read("called") == asked
    again = subprocess.run(["bash"], input=script, env=environ | {"SLURM_RESTART_COUNT": "1"}, text=True, check=False)
    assert again.returncode == 75
    assert {path.name for path in root.iterdir()} == {run.key}


@pytest.mark.parametrize("note", ["cancelled", "overdue"])
def test_a_second_job_of_a_run_that_is_over_begins_nothing(world: World, tmp_path: Path, note: str) -> None:
    """After a lost answer two jobs can wait; the one that was found is cancelled, and the other begins later."""
    run = order(world.job())
    folder = OrderFolder.of(tmp_path / "orders", run.key)
    folder.write_order(run)
    folder.write("claim", note)
    script = batch_script(run, folder, SlurmSettings(tmp_path / "orders"))
    (tmp_path / "srun").write_text("#!/bin/bash\ntouch begun\n")
    (tmp_path / "srun").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    answer = subprocess.run(["bash"], input=script, env=environ, capture_output=True, text=True, check=False)
    assert answer.returncode == 76
    assert answer.stderr.endswith("another job has this order, or it was cancelled\n")
    assert not folder.has("begun")


def test_no_secret_and_no_default_of_the_user_reaches_the_commands() -> None:
    environ = {"PATH": os.environ["PATH"], "HF_TOKEN": "not-for-jobs", "GITHUB_APP_ID": "1", "SBATCH_WCKEY": "x"}
    printed = SlurmCommands(environ=environ | {"SLURM_CONF": "/conf"}).ask(["env"]).text
    assert "SLURM_CONF=/conf" in printed
    for name in ("not-for-jobs", "GITHUB_APP_ID", "SBATCH_WCKEY"):
        assert name not in printed


def test_commands_that_cannot_be_run_say_so() -> None:
    environ = {"PATH": os.environ["PATH"]}
    with pytest.raises(BackendError, match="cannot be started: No such file or directory; install Slurm's commands"):
        SlurmCommands(environ=environ).ask(["squeue-of-nowhere"])
    with pytest.raises(BackendError, match=r"sleep gave no answer within 0.2 s") as silent:
        SlurmCommands(environ=environ, time_s=0.2).ask(["sleep", "60"])
    assert silent.value.uncertain
    assert not silent.value.final
    with pytest.raises(BackendError, match="did not reach login") as unreached:
        SlurmCommands("login", environ, ssh=("sh", "-c", "exit 255")).ask(["squeue"])
    assert unreached.value.uncertain


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def slow(world: World, tmp_path: Path) -> Job:
    return unending(world, tmp_path)


def taken_away_by_a_job_of_more_weight(engine: SlurmEngine, number: str) -> None:  # noqa: ARG001  (one of a table)
    engine.cluster.ask("sbatch", "--partition=urgent", "--exclusive", "--time=1", "--wrap=true", "--output=/dev/null")


def put_back_into_the_queue(engine: SlurmEngine, number: str) -> None:
    engine.cluster.ask("scontrol", "update", f"JobId={number}", "Requeue=1")
    engine.cluster.ask("scontrol", "requeue", number)


def cancelled_by_someone(engine: SlurmEngine, number: str) -> None:
    engine.cluster.ask("scancel", number)


def on_a_node_whose_daemon_died(engine: SlurmEngine, number: str) -> None:  # noqa: ARG001  (one of a table)
    engine.cluster.stop(engine.cluster.node, signal.SIGKILL)
    # The controller would find out after minutes.
    engine.cluster.ask("scontrol", "update", f"NodeName={engine.cluster.node}", "State=DOWN", "Reason=silent")


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "state", "says"),
    [
        (taken_away_by_a_job_of_more_weight, RunState.LOST, "another job took its node"),
        (put_back_into_the_queue, RunState.LOST, "put it back into the queue"),
        (cancelled_by_someone, RunState.CANCELLED, "someone cancelled"),
        (on_a_node_whose_daemon_died, RunState.LOST, "its node failed"),
    ],
)
def test_what_slurm_does_to_a_run_is_named_and_is_no_fail(
    slow: Job, engine: SlurmEngine, fault: Callable[[SlurmEngine, str], None], state: RunState, says: str
) -> None:
    backend, run = engine.make(), order(slow)
    number = backend.submit(run)
    until(lambda: "phase" in backend.poll(run).note)
    fault(engine, number)
    until(lambda: backend.poll(run).state.final)
    assert (backend.poll(run).state, says in backend.poll(run).note) == (state, True), backend.poll(run)


@pytest.mark.slurm
def test_what_the_controller_will_never_take_is_refused(slow: Job, engine: SlurmEngine) -> None:
    settings = SlurmSettings(engine.root, command=own_host(engine.root), options=("--partition=none-such",))
    commands = SlurmCommands(environ=engine.cluster.environ)
    backend = SlurmBackend(settings, commands, clock=engine.clock, open_log=open_log)
    with pytest.raises(BackendError, match=r"sbatch did not take the job: .*partition") as refused:
        backend.submit(order(slow))
    assert refused.value.final


@pytest.mark.slurm
def test_a_cluster_is_checked_before_a_job_needs_it(engine: SlurmEngine, tmp_path: Path) -> None:
    commands = SlurmCommands(environ=engine.cluster.environ)
    found = check_cluster(SlurmSettings(engine.root), commands)
    assert found.startswith("slurm")
    assert found.endswith(", without accounting, a node sees the folder of orders")
    assert list(engine.root.iterdir()) == []
    for settings, says in (
        (
            SlurmSettings(engine.root, options=("--partition=none-such",)),
            "would not take a job with one GPU: .*partition",
        ),
        (SlurmSettings(engine.root, gpus="--gres=gpu:h100:N"), "would not take a job with one GPU: "),
    ):
        with pytest.raises(BackendError, match=says):
            check_cluster(settings, commands)
    # A node that sees another folder at the path.
    hidden = tmp_path / "bin"
    hidden.mkdir()
    (hidden / "srun").write_text("#!/bin/sh\necho missing\n")
    (hidden / "srun").chmod(0o755)
    environ = engine.cluster.environ
    blind = SlurmCommands(environ={**environ, "PATH": f"{hidden}:{environ['PATH']}"})
    with pytest.raises(BackendError, match="a node does not see what lies in"):
        check_cluster(SlurmSettings(engine.root), blind)
    # A file without a cluster. For one that is not there Slurm's commands look again and again for a minute.
    (tmp_path / "slurm.conf").touch()
    broken = SlurmCommands(environ={**environ, "SLURM_CONF": str(tmp_path / "slurm.conf")})
    with pytest.raises(BackendError, match="`sbatch --version` ended with 1"):
        check_cluster(SlurmSettings(engine.root), broken)
    engine.cluster.ask("sbatch", "--exclusive", "--wrap=sleep 600", "--output=/dev/null")
    engine.cluster.wait_until("squeue", "--noheader", "--format=%T", shows="RUNNING")
    assert "no node looked at the folder of orders" in check_cluster(
        SlurmSettings(engine.root, options=("--exclusive",)), commands, free_node_s=1
    )


@pytest.mark.slurm
def test_a_run_that_no_node_takes_in_time_is_lost(slow: Job, engine: SlurmEngine) -> None:
    backend, run = engine.make(), order(slow).model_copy(update={"queue_deadline_s": 60})
    engine.cluster.ask("scontrol", "update", f"NodeName={engine.cluster.node}", "State=DRAIN", "Reason=full")
    backend.submit(run)
    assert backend.poll(run).state is RunState.SUBMITTED
    engine.clock.pass_s(61)
    late = backend.poll(run)
    assert (late.state, "no node" in late.note) == (RunState.LOST, True)
    engine.cluster.wait_until("squeue", "--noheader", "--states=PENDING", shows="")
    assert backend.poll(run) == late


@pytest.mark.slurm
@pytest.mark.accounting
@pytest.mark.slow
def test_a_job_that_the_controller_forgot_is_known_by_the_accounting(slow: Job, world: World, tmp_path: Path) -> None:
    (tmp_path / "slurm").mkdir()
    (tmp_path / "orders").mkdir()
    with accounted_cluster(tmp_path / "slurm", forgets_after_s=2) as cluster:
        engine = SlurmEngine(tmp_path / "orders", cluster)
        backend, cancelled, whole = engine.make(), order(slow), order(world.job())
        engine.cluster.ask("scancel", backend.submit(cancelled))
        backend.submit(whole)
        until(lambda: backend.poll(whole).state.final)
        cluster.wait_until("squeue", "--noheader", "--states=all", shows="")
        assert backend.poll(whole).state is RunState.FINISHED
        took = backend.poll(whole).took
        assert took is not None
        assert took.started is not None
        # Only the accounting still has it, and the folder of the order does not say it.
        assert backend.poll(cancelled).state is RunState.CANCELLED
        assert "someone cancelled job" in backend.poll(cancelled).note


@pytest.mark.slurm
def test_a_cluster_is_reached_by_ssh(world: World, engine: SlurmEngine, tmp_path: Path) -> None:
    """The words of a command arrive as they were sent, through a real sshd with a key of its own."""
    with real_sshd(tmp_path, engine.cluster) as ssh:
        commands = SlurmCommands("login", engine.cluster.environ, ssh=ssh)
        assert commands.ask(["printf", "%s\n", "$(id) ; 'a b' &"]).text == "$(id) ; 'a b' &\n"
        settings = SlurmSettings(engine.root, command=own_host(engine.root))
        backend = SlurmBackend(settings, commands, clock=engine.clock, open_log=open_log)
        run = order(world.job())
        assert backend.submit(run) == backend.submit(run)
        until(lambda: backend.poll(run).state is RunState.FINISHED)
        assert runners_of(run) == []


# The last one, for Slurm looks at time limits every 30 s from the start of its controller on.
@pytest.mark.slurm
@pytest.mark.slow
def test_a_run_that_reaches_its_time_limit_completes_its_folder_and_is_no_fail(
    slow: Job, engine: SlurmEngine, tmp_path: Path
) -> None:
    backend, run = engine.make(), order(slow)
    number = backend.submit(run)
    until(lambda: "phase" in backend.poll(run).note)
    engine.cluster.ask("scontrol", "update", f"JobId={number}", "TimeLimit=1")
    until(lambda: backend.poll(run).state.final)
    assert backend.poll(run).state is RunState.LOST
    assert "time limit" in backend.poll(run).note
    assert backend.artifacts(run, tmp_path / "home")
    assert "interrupted" in (tmp_path / "home" / "events.jsonl").read_text()


class real_sshd:  # noqa: N801  (a context manager)
    """An sshd of one host, `login`, and the words that start ssh to it."""

    def __init__(self, folder: Path, cluster: SlurmCluster) -> None:
        self._folder, self._cluster = folder, cluster

    def __enter__(self) -> tuple[str, ...]:
        folder = self._folder / "ssh"
        folder.mkdir(mode=0o700)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environ = self._cluster.environ
        (folder / "sshd_config").write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
            f"StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n"
            f"SetEnv SLURM_CONF={environ['SLURM_CONF']} PATH={environ['PATH']}\n"
        )
        (folder / "config").write_text(
            f"Host login\nHostName 127.0.0.1\nPort {port}\nIdentityFile {folder}/user\n"
            f"UserKnownHostsFile {folder}/known\nStrictHostKeyChecking accept-new\nLogLevel ERROR\n"
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        words = [shutil.which("sshd", path=environ["PATH"]) or "sshd", "-D", "-e", "-f", str(folder / "sshd_config")]
        with (folder / "out").open("wb") as out:
            self._process = subprocess.Popen(words, stdout=out, stderr=out)
        deadline = time.monotonic() + HANG_S
        while b"listening" not in (folder / "out").read_bytes():
            assert self._process.poll() is None, (folder / "out").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return ("ssh", "-F", str(folder / "config"), "-o", "BatchMode=yes")

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
