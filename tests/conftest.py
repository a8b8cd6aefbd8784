"""Leaves out the tests whose need is absent on this machine, and says at the end how many and why.

With REQUIRE_ALL=1 a test that cannot run fails instead, but for those that are opt-in (`OPT_IN`) and those of a
marker that LEAVE_OUT names.
"""

import fcntl
import gc
import importlib.util
import os
import random
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

_PROBE_KEPT_S, _IT_RUNS = 3600.0, "it runs"

# A limit in seconds for each example fails on a busy machine; tests that are about time say so themselves.
# The same examples in every run, so that a change fails by what it changes; `--search-seconds` looks for new ones.
settings.register_profile("verl-e2e", deadline=None, derandomize=True)
settings.load_profile("verl-e2e")


def _program(*names: str) -> Callable[[], str]:
    def absent() -> str:
        return "" if any(shutil.which(name) for name in names) else f"none of {', '.join(names)} on PATH"

    return absent


def _every_program(*names: str) -> Callable[[], str]:
    def absent() -> str:
        missing = [name for name in names if shutil.which(name) is None]
        return f"not on PATH: {', '.join(missing)}" if missing else ""

    return absent


def _postgres() -> str:
    packaged = any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return "" if packaged or shutil.which("initdb") else "no initdb on PATH or below /usr/lib/postgresql"


def _slurm() -> str:
    if missing := _every_program("slurmctld", "slurmd", "munged", "sshd")():
        return missing
    from tests.fakes import slurm_cluster

    # That its programs are there does not mean that they start. What was found is kept for an hour.
    kept = Path(tempfile.gettempdir()) / f"verl-e2e-slurm-{os.getuid()}.txt"
    with kept.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if time.time() - kept.stat().st_mtime > _PROBE_KEPT_S or not (known := file.read()):
            known = slurm_cluster.why_not() or _IT_RUNS
            file.truncate(0)
            file.write(known)
    return "" if known == _IT_RUNS else known


def _ray() -> str:
    missing = [name for name in ("ray", "aiohttp", "hydra") if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)} (make test-all REQUIRE_ALL=1 installs all)" if missing else ""


def _plots() -> str:
    found = importlib.util.find_spec("matplotlib") is not None
    return "" if found else "not installed: matplotlib (make test installs it)"


@cache
def monitoring_pythons() -> tuple[str, ...]:
    """The interpreters of this machine that have `sys.monitoring` and really start, each once by its own name."""
    names = [f"python3.{minor}" for minor in range(12, 20)]
    found = [*map(shutil.which, names), *map(str, sorted(Path.home().glob(".pyenv/versions/*/bin/python3.1[2-9]")))]
    argv = ("-c", "import sys; print(sys.monitoring and sys.executable)")
    asked = [subprocess.run([path, *argv], capture_output=True, text=True, check=False) for path in found if path]
    return tuple(dict.fromkeys(answer.stdout.strip() for answer in asked if answer.returncode == 0))


def _monitoring() -> str:
    return "" if monitoring_pythons() else "no Python of version 3.12 or later on PATH or below ~/.pyenv/versions"


@pytest.fixture(params=monitoring_pythons() or ("",), ids=lambda path: Path(path).name)
def monitoring_python(request: pytest.FixtureRequest) -> str:
    """Each interpreter that has `sys.monitoring`, for tests with the marker of that name."""
    return str(request.param)


@pytest.fixture
def one_monitoring_python() -> str:
    """The first of them."""
    return next(iter(monitoring_pythons()), "")


def _gpu() -> str:
    if os.environ.get("WITH_GPU") != "1":
        return "opt in with WITH_GPU=1"
    return "" if Path("/dev/nvidia0").exists() else "no NVIDIA GPU"


def _online() -> str:
    return "" if os.environ.get("WITH_ONLINE") == "1" else "opt in with WITH_ONLINE=1"


def _accounting() -> str:
    if os.environ.get("WITH_ACCOUNTING") != "1":
        return "opt in with WITH_ACCOUNTING=1"
    return _every_program("slurmdbd", "mariadbd", "mariadb-install-db")()


def _opted_in(*names: str, words: str) -> Callable[[], str]:
    """A need for what these variables of the environment name; `words` say what to give them."""
    return lambda: "" if all(os.environ.get(name) for name in names) else f"opt in with {words}"


# What `make released-bridge` sets up.
REHEARSAL = Path(os.environ.get("REHEARSAL") or Path(__file__).parents[1] / ".venv-rehearsal").absolute()


def _rehearsal() -> str:
    there = (REHEARSAL / "released" / ".ready").exists()
    return "" if there else "no released Megatron-Bridge to drive on a CPU (make released-bridge)"


# Fixtures are data, the Python files among them too.
collect_ignore = ["fixtures"]

# One function for each marker of pyproject.toml that names a need: why its tests cannot run here, empty when they can.
NEEDS: Mapping[str, Callable[[], str]] = {
    "accounting": _accounting,
    "bwrap": _program("bwrap"),
    "chromium": _program("chromium", "chromium-browser", "google-chrome"),
    "gpu": _gpu,
    "labelled": _opted_in("LABELS", "BRIDGE_REPO", "VERL_REPO", words="LABELS=FILE BRIDGE_REPO=DIR VERL_REPO=DIR"),
    "models": _opted_in("MODELS_PYTHON", words="MODELS_PYTHON=FILE, a Python with torch and transformers"),
    "monitoring": _monitoring,
    "nemo_rl": _opted_in(
        "NEMO_RL", "NEMO_RL_PYTHON", words="NEMO_RL=DIR NEMO_RL_PYTHON=FILE, a checkout and a Python with hydra-core"
    ),
    "node": _every_program("node", "npm"),
    "online": _online,
    "plots": _plots,
    "postgres": _postgres,
    "ray": _ray,
    "rehearsal": _rehearsal,
    "skyrl": _opted_in(
        "SKYRL", "SKYRL_PYTHON", words="SKYRL=DIR SKYRL_PYTHON=FILE, a checkout and a Python that imports it"
    ),
    "skyrl_trainer": _opted_in(
        *("SKYRL", "SKYRL_PYTHON", "BRIDGE_REPO", "MEGATRON_LM", "KIT"),
        words="SKYRL=DIR SKYRL_PYTHON=FILE BRIDGE_REPO=DIR MEGATRON_LM=DIR KIT=DIR",
    ),
    "slurm": _slurm,
    "sqlite": _program("sqlite3"),
}
TESTS = Path(__file__).parent
# What `make test` leaves to `make test-all`: each starts many programs, a browser, Node or a whole service, and what it
# decides has quicker tests as well. A single slow test is marked where it stands.
SLOW = frozenset(
    {"contract", "mutation", "pages", "workflows"}
    | {f"adapters/test_{name}.py" for name in ("bombs", "github_faults", "plots", "retention")}
    | {f"e2e/test_{name}.py" for name in ("action_order", "action_story", "card_page", "doctor", "hostile_pulls")}
    | {f"e2e/test_serve_{name}.py" for name in ("database", "kills", "lanes", "lost")}
    | {"entry_points/test_page_looks.py", "runners/test_released_bridge.py"}
    | {f"e2e/test_{name}.py" for name in ("plan_pull", "planning_repository", "stray_packages")}
    | {f"stories/test_{name}.py" for name in ("base", "lag", "machine", "queue", "troubles")}
)
# A worker takes whole files, but all files whose tests have the host to themselves go to one worker: others that took
# some would wait for each other. Those that have it for a few of their tests are not worth that.
_HAVE_THE_HOST = re.compile(r"^pytestmark = .*\bmark\.host\b", re.MULTILINE)
# These files take more than 20 s on two cores; the longest begins.
LONGEST = (
    "stories/test_troubles.py",
    "e2e/test_cli.py",
    "runners/test_released_bridge.py",
    "pages/test_every_command.py",
    "entry_points/test_page_looks.py",
    "e2e/test_action_story.py",
    "runners/test_ordered_rehearsal.py",
    "stories/test_rehearsals.py",
    "runners/test_ray_demands.py",
    "stories/test_lag.py",
    "stories/test_machine.py",
    "contract/test_ray_backend.py",
    "runners/test_by_hand.py",
    "project/test_house.py",
    "e2e/test_serve_kills.py",
    "stories/test_people.py",
    "e2e/test_plan_pull.py",
    "stories/test_pull.py",
    "e2e/test_doctor.py",
    "runners/test_trees.py",
    "stories/test_slots.py",
    "e2e/test_stray_packages.py",
    "app/test_entered_code.py",
    "entry_points/test_pages.py",
    "app/test_rerunning.py",
    "runners/test_rehearsal_hangs.py",
    "runners/test_kernel_caches.py",
    "stories/test_upgrade.py",
    "adapters/test_worker.py",
    "e2e/test_serve.py",
    "e2e/test_init.py",
    "stories/test_base.py",
    "e2e/test_serve_story.py",
    "e2e/test_plan_claims.py",
    "stories/test_queue.py",
    "runners/test_imports.py",
    "project/test_adding.py",
    "adapters/test_mirror.py",
    "adapters/test_slurm_nodes.py",
    "adapters/test_ledger.py",
    "contract/test_local_backend.py",
    "contract/test_slurm_backend.py",
    "e2e/test_serve_lanes.py",
    "adapters/test_plots.py",
    "adapters/test_bombs.py",
    "stories/test_parity.py",
    "project/test_shape.py",
    "runners/test_skyrl_hooks.py",
    "adapters/test_slurm.py",
    "e2e/test_serve_database.py",
)
OPT_IN = frozenset({"accounting", "gpu", "labelled", "models", "nemo_rl", "online", "skyrl", "skyrl_trainer"})

REASONS = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    # A recorder of the tests signs with a key of its own, not with the user's.
    os.environ.setdefault("VERL_E2E_RECORDER_KEY", str(Path(tempfile.mkdtemp(prefix="verl-e2e-key-")) / "recorder.key"))
    if config.option.search_seed is None:
        config.option.search_seed = random.SystemRandom().randrange(10**6)
    config.stash[REASONS] = {marker: absent() for marker, absent in NEEDS.items()}


@cache
def _place(path: Path) -> tuple[str, str]:
    """A file of tests, below the folder of all tests where it lies there, and the first part of that."""
    place = path.relative_to(TESTS) if path.is_relative_to(TESTS) else path
    return place.as_posix(), place.parts[0]


@cache
def _has_the_host(file: Path) -> bool:
    return _HAVE_THE_HOST.search(file.read_text(encoding="utf-8")) is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that it is not left for a single worker at the end."""
    order = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (not _has_the_host(item.path), order.get(_place(item.path)[0], len(order))))


def pytest_collection_finish() -> None:
    """What was collected stays to the end, so no collection of garbage need look at it again."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Hand out whole files, and those whose tests have the host to themselves together."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class ByFile(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "host" if _has_the_host(config.rootpath / file) else file

    return ByFile(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    reasons = item.config.stash[REASONS]
    unmet = [(mark.name, reasons[mark.name]) for mark in item.iter_markers() if reasons.get(mark.name)]
    if not unmet:
        return
    marker, reason = unmet[0]
    left_out = OPT_IN | {*os.environ.get("LEAVE_OUT", "").split()}
    if os.environ.get("REQUIRE_ALL") == "1" and not any(name in left_out for name, _ in unmet):
        pytest.fail(f"REQUIRE_ALL=1, and this `{marker}` test cannot run: {reason}", pytrace=False)
    pytest.skip(f"{marker}: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test marked `host` has the host to itself, for most runs are refused while another is there."""
    if item.get_closest_marker("host") is None:
        return (yield)
    with (Path(tempfile.gettempdir()) / f"verl-e2e-tests-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return (yield)


def _skipped(config: pytest.Config) -> Counter[str]:
    """Why tests were skipped and how often, those of the worker processes included."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", ()) if reporter else ()
    return Counter(str(report.longrepr[-1]).removeprefix("Skipped: ") for report in reports)


def _named(config: pytest.Config) -> set[str]:
    return {f"{marker}: {reason}" for marker, reason in config.stash[REASONS].items() if reason}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a complete run that skipped a test for any reason that no marker names."""
    unnamed = set(_skipped(session.config)) - _named(session.config)
    if os.environ.get("REQUIRE_ALL") == "1" and unnamed and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    named = _named(config)
    left_out = {why: count for why, count in sorted(_skipped(config).items()) if why in named}
    terminalreporter.section(f"left out: {sum(left_out.values())}")
    for why, count in left_out.items():
        marker, _, reason = why.partition(": ")
        terminalreporter.line(f"{marker}: {count} ({reason})")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", default="", help="how often tests/e2e/test_serve_kills.py kills the service")
    parser.addoption("--search-seconds", type=float, default=30, help="how long each state machine is searched again")
    parser.addoption("--search-seed", type=int, help="where such a search begins; by default anywhere")
    parser.addoption("--search-shrink", action="store_true", help="shorten what such a search finds, for some minutes")


def pytest_report_header(config: pytest.Config) -> str:
    return f"searches: --search-seed={config.option.search_seed} --search-seconds={config.option.search_seconds:g}"


def pytest_itemcollected(item: pytest.Item) -> None:
    if not SLOW.isdisjoint(_place(item.path)):
        item.add_marker("slow")
