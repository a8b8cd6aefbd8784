"""Names the concrete classes: the one place that knows which adapter serves which port."""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from pydantic import ValidationError

from bot.adapters import folder as disk
from bot.adapters.demo_repository import build_demo_repository
from bot.adapters.dispatch.local import LocalDispatcher
from bot.adapters.git import GitRepository, UnknownRevisionError
from bot.adapters.logs import LogError, open_log
from bot.adapters.prefilter import fastest_prefilter
from bot.config.policy import load_policy, policy_at
from bot.config.profiles import load_profile
from bot.core.card import Card
from bot.core.facts import LogFacts
from bot.core.jobs import Job, Repository
from bot.core.levels import Level
from bot.core.plan import Plan, plan
from bot.core.record import CheckNotes, Record
from bot.core.rules import Policy
from bot.core.scan import literal_bytes, scan
from bot.handlers.checking import CheckRequest, Rooms, check_change
from bot.handlers.demonstrating import Demonstration, demonstrate
from bot.ports import UnreadableLogError

DEMO_JOB = "0-lora-ddp"


class UsageError(Exception):
    """The user's mistake, in one sentence with the mend."""

    user_mistake = True


class _Folders:
    """Run folders on this machine's disk."""

    def find(self, folder: Path) -> tuple[Path, ...]:
        return disk.find_jobs(folder)

    def record(self, folder: Path) -> Record:
        return disk.read_record(folder)

    def facts(self, folder: Path) -> LogFacts | None:
        log = disk.find_log(folder)
        try:
            return None if log is None else log_facts(str(log))
        except LogError as error:
            raise UnreadableLogError(f"{log.name if log else folder}: {error.problem}") from None

    def planned(self, folder: Path) -> Mapping[str, Level]:
        return disk.planned_jobs(folder)

    def notes(self, folder: Path) -> CheckNotes:
        return disk.check_notes(folder)

    def write(self, folder: Path, files: Mapping[str, str]) -> None:
        disk.write_files(folder, files)


def run_folders() -> _Folders:
    """Run folders on this machine's disk."""
    return _Folders()


def log_facts(name: str) -> LogFacts:
    """The facts of a log on disk, or of standard input for `-`."""
    return scan(open_log(name), fastest_prefilter(literal_bytes()))


def read_job(path: Path) -> Job:
    """A job file, validated; raises UsageError with file, key and value."""
    try:
        return Job.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a job file as `verl-e2e check` writes it") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the document"
        shown = repr(first["input"])[:80]
        raise UsageError(f"{path}: {key}: {first['msg']}, got {shown}; mend the file and run again") from None


def plan_change(repo: Path, base: str, head: str, policy: Path | None) -> Plan:
    """The plan of base..head by the base commit's policy, or by a policy file."""
    repository = GitRepository(repo)
    return plan(repository.change(base, head), _policy(repository, base, policy))


def _policy(repository: GitRepository, base: str, file: Path | None) -> Policy:
    if file is None:
        return policy_at(repository, repository.resolve(base))
    try:
        return load_policy(file.read_bytes(), str(file))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; give a readable policy file") from None


@dataclass(frozen=True, slots=True)
class CheckOrder:
    """What the user asked `check` for, as typed."""

    bridge: Path
    base: str
    head: str
    verl: Path
    verl_ref: str | None
    megatron_lm: Path | None
    out: Path
    site: str
    values: tuple[str, ...]
    levels: tuple[int, ...]
    work: Path | None
    policy: Path | None


def check(order: CheckOrder, environ: Mapping[str, str], say: Callable[[str], None]) -> Card:
    """Plan, run and judge; writes everything below `order.out`."""
    if order.out.exists() and any(order.out.iterdir()):
        raise UsageError(f"{order.out}: not empty; give --out a new folder or remove this one")
    bridge, verl = GitRepository(order.bridge), GitRepository(order.verl)
    policy = _policy(bridge, order.base, order.policy)
    verl_commit, remarks = _verl_commit(verl, order.verl_ref, policy)
    if bridge.dirty_files():
        say(f"{order.bridge} has uncommitted changes; {order.head} is tested without them")
    head = bridge.resolve(order.head)
    request = CheckRequest(
        bridge=order.bridge,
        verl=order.verl,
        verl_commit=verl_commit,
        base=bridge.resolve(order.base),
        head=head,
        out=order.out,
        policy=policy,
        site=load_profile(order.site, _pairs(order.values), {"home": environ.get("HOME", "/")}),
        megatron_lm=_megatron_lm(bridge, head, order.megatron_lm),
        asked=tuple(Level(level) for level in order.levels),
        remarks=remarks,
    )
    blobs = {"bridge": bridge, "verl": verl}
    rooms = Rooms(bridge, LocalDispatcher(order.work), run_folders(), blobs)
    return check_change(request, rooms, say)


def _verl_commit(verl: GitRepository, asked: str | None, policy: Policy) -> tuple[str, tuple[str, ...]]:
    """The verl commit to test with: the one asked for, else the policy's pin, else the checkout's HEAD, said so."""
    if asked:
        return verl.resolve(asked), ()
    try:
        return verl.resolve(policy.verl_commit), ()
    except UnknownRevisionError:
        head = verl.resolve("HEAD")
        return head, (f"verl {head[:12]} was used: the policy's pin {policy.verl_commit[:12]} is not in {verl.path}.",)


def _megatron_lm(bridge: GitRepository, head: str, path: Path | None) -> Repository | None:
    if path is None:
        return None
    GitRepository(path)
    commit = bridge.submodule_commit(head, "3rdparty/Megatron-LM")
    if commit is None:
        raise UsageError(f"{bridge.path}: {head[:12]} has no submodule 3rdparty/Megatron-LM; leave --megatron-lm out")
    return Repository(path=str(path.resolve()), commit=commit)


def _pairs(values: tuple[str, ...]) -> dict[str, str]:
    pairs = dict(value.partition("=")[::2] for value in values)
    wrong = next((value for value in values if "=" not in value), None)
    if wrong is not None:
        raise UsageError(f"--set {wrong}: no value; write --set NAME=VALUE")
    return pairs


def demonstration(out: Path | None) -> Demonstration:
    """Build the demonstration's repository, lay the recording beside it, plan and judge; `out` keeps the files."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="verl-e2e-demo-") as folder:
            return _demonstrate(Path(folder) / "demo")
    if out.exists():
        raise UsageError(f"{out}: exists already; give --out a new folder")
    return _demonstrate(out)


def _demonstrate(folder: Path) -> Demonstration:
    repository = build_demo_repository(folder / "bridge")
    with as_file(files("bot").joinpath("demo", "recording")) as recording:
        shutil.copytree(recording, folder / "jobs" / DEMO_JOB)
    changes = GitRepository(repository.path)
    policy = policy_at(changes, repository.base)
    return demonstrate(
        run_folders(), folder, changes=changes, base=repository.base, head=repository.head, policy=policy
    )
