"""Names the concrete classes: the one place that knows which adapter serves which port."""

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path

from pydantic import ValidationError

from bot.adapters import folder as disk
from bot.adapters.baselines import BaselineCache
from bot.adapters.demo_repository import build_demo_repository
from bot.adapters.dispatch.local import LocalDispatcher
from bot.adapters.git import GitRepository, NotARepositoryError, UnknownRevisionError
from bot.adapters.logs import LogError, open_log
from bot.adapters.prefilter import fastest_prefilter
from bot.adapters.reach_cache import SummaryCache
from bot.config.bands import bands_text, load_bands, packaged_bands, read_bands
from bot.config.callers import packaged_uses, uses_json
from bot.config.labels import load_labels
from bot.config.policy import load_policy, packaged_policy, policy_at
from bot.config.problems import ConfigError
from bot.config.profiles import load_profile
from bot.core.backtest import Case, Outcome, Usage, usage
from bot.core.bands import BANDS_FILE, Bands, merged, only_of
from bot.core.build import select_patches
from bot.core.card import Card
from bot.core.explain import Explanation
from bot.core.facts import LogFacts
from bot.core.followups import AS_ASKED, Allowed, MergeBase, without_base
from bot.core.jobs import Job, Patch, Repository
from bot.core.junit import JunitError, read_junit, stating_commit
from bot.core.junit_writing import COMMIT_PROPERTY
from bot.core.levels import Level
from bot.core.policy_lint import lint_features
from bot.core.reach.entries import Uses, uses_of
from bot.core.record import VERDICT_FILE, CheckNotes, Record
from bot.core.related import Role
from bot.core.rules import Policy, ReachPolicy
from bot.core.scan import literal_bytes, scan
from bot.core.signal.figure import PLOTS_FOLDER, SignalFigure
from bot.core.stages import Stage
from bot.core.verdict import Verdict
from bot.handlers.checking import CheckRequest, Rooms, check_change
from bot.handlers.demonstrating import Demonstration, demonstrate
from bot.handlers.learning import Source, source_of
from bot.handlers.planning import Planned, Planner, uses_at, with_bumps, with_verl_files
from bot.handlers.rerunning import Beside, follow_up
from bot.ports import UnreadableLogError

DEMO_JOB = "0-lora-ddp"
_PLOTTING = "matplotlib"


class UsageError(Exception):
    """The user's mistake, in one sentence with the mend."""

    user_mistake = True


@dataclass(frozen=True, slots=True)
class _Folders:
    """Run folders on this machine's disk, judged by a folder's own bands where it has some, else by these.

    With `keep` true the bands that a folder was judged by are written beside its verdict.
    """

    bands: Bands
    keep: bool

    def find(self, folder: Path) -> tuple[Path, ...]:
        return disk.find_jobs(folder)

    def record(self, folder: Path) -> Record:
        record = disk.read_record(folder)
        own = folder / BANDS_FILE
        try:
            bands = read_bands(own) if own.is_file() and not self.keep else self.bands
        except ConfigError as error:
            missing = (*record.missing, f"{BANDS_FILE}: {error.problems[0].what}")
            return record.model_copy(update={"missing": missing, "bands": self.bands})
        return record.model_copy(update={"bands": bands})

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
        disk.write_files(folder, {**files, **self._bands_of(folder, files)})

    def draw(self, folder: Path, figure: SignalFigure) -> None:
        if find_spec(_PLOTTING):
            draw_plots(figure, folder / PLOTS_FOLDER)

    def _bands_of(self, folder: Path, files: Mapping[str, str]) -> dict[str, str]:
        """The bands to keep beside a verdict, so that it is the same wherever the folder is judged again."""
        job = disk.read_record(folder).job if self.keep and VERDICT_FILE in files else None
        if job is None:
            return {}
        return {BANDS_FILE: only_of(self.bands, job).model_dump_json(indent=2) + "\n"}


def run_folders(bands: Bands | Path | None = None) -> _Folders:
    """Run folders on this machine's disk; measurements of one's own count beside the packaged ones."""
    if bands is None:
        return _Folders(packaged_bands(), keep=False)
    own = read_bands(bands) if isinstance(bands, Path) else bands
    return _Folders(merged(packaged_bands(), own), keep=True)


def keep_bands(bands: Bands, file: Path) -> None:
    """Write a bands file, whole or not at all."""
    disk.write_files(file.parent, {file.name: bands_text(bands)})


def own_bands(file: Path) -> Bands:
    """The bands file that a user keeps, empty when it is not there yet."""
    return read_bands(file) if file.exists() else Bands()


def draw_plots(figure: SignalFigure, folder: Path) -> tuple[Path, ...]:
    """Draw curves into a folder; UsageError where the plotting library is not installed."""
    if not find_spec(_PLOTTING):
        raise UsageError(f"plots need {_PLOTTING}, which is not installed; pip install 'verl-e2e[plots]'")
    # Only here: it takes longer to load than everything else together, and is not everywhere.
    from bot.adapters.plots import draw  # noqa: PLC0415

    return draw(figure, folder)


def signal_source(path: Path) -> Source:
    """The metrics of a run folder or of a bare log."""
    return Source(path, log_facts(str(path))) if path.is_file() else source_of(run_folders(), path)


def log_facts(name: str) -> LogFacts:
    """The facts of a log on disk, or of standard input for `-`."""
    return scan(open_log(name), fastest_prefilter(literal_bytes()))


def log_with_times(name: str) -> tuple[LogFacts, Mapping[Stage, float]]:
    """The facts of a log or of a run folder's log, and when its run entered each stage, where the folder says so.

    Raises UsageError for a folder without a log.
    """
    path = Path(name)
    log = disk.find_log(path) if path.is_dir() else path
    if log is None:
        raise UsageError(f"{name}: no log in this folder; give a log file or a run folder")
    return log_facts(name if name == "-" else str(log)), disk.stage_times(log.parent)


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


def read_junit_file(path: Path, job: Job, commit: str | None) -> bytes:
    """A JUnit file from another environment, stating the job's Bridge commit; raises UsageError for any other.

    `commit` is what the caller says of a file that does not say it itself.
    """
    wanted = job.bridge.commit
    try:
        raw = path.read_bytes()
        stated = read_junit(raw).commit or (commit or "").lower()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give a readable JUnit file") from None
    except JunitError as error:
        raise UsageError(f"{path}: not readable as JUnit ({error}); bring the whole file as pytest wrote it") from None
    if not stated:
        raise UsageError(f"{path}: no property {COMMIT_PROPERTY}; name the commit of the tests with --junit-commit SHA")
    if stated != wanted:
        told = f"{COMMIT_PROPERTY}: {stated}, and the job tests {wanted}"
        raise UsageError(f"{path}: {told}; run the tests on the job's commit")
    return stating_commit(raw, wanted)


@dataclass(frozen=True, slots=True)
class PlanOrder:
    """What the user asked `plan` and its kin for. `verl` is a checkout, a bare git directory or a plain folder."""

    repo: Path
    verl: Path | None = None
    verl_ref: str | None = None
    policy: Path | None = None
    cache: Path | None = None
    megatron_lm: Path | None = None


def plan_change(order: PlanOrder, base: str, head: str) -> Planned:
    """The plan of base..head by the base commit's policy, or by a policy file."""
    repository = GitRepository(order.repo)
    policy = _policy(repository, base, order.policy)
    planned = _planner(repository, order, policy).plan(base, head, policy)
    if order.verl is not None:
        planned = with_verl_files(planned, *_verl_files(order.verl, order.verl_ref))
    if order.megatron_lm is None:
        return planned
    return with_bumps(planned, GitRepository(order.megatron_lm))


def explain(order: PlanOrder, revision: str, targets: Sequence[str]) -> tuple[Explanation, ...]:
    """What the plan would make of `PATH[:SYMBOL]` targets at a revision, were they changed."""
    repository = GitRepository(order.repo)
    policy = _policy(repository, revision, order.policy)
    if policy.reach is None:
        raise UsageError(f"{policy.source}: reach: missing; without this key paths are judged by their names alone")
    pairs = [(path, symbol) for path, _, symbol in (target.partition(":") for target in targets)]
    return _planner(repository, order, policy).explain(repository.resolve(revision), policy, pairs)


def lint_policy(order: PlanOrder, revision: str) -> tuple[str, ...]:
    """What of the policy says nothing about a revision, and with verl which files of it the policy lacks there."""
    repository = GitRepository(order.repo)
    policy = _policy(repository, revision, order.policy)
    findings = _planner(repository, order, policy).lint(repository.resolve(revision), policy)
    if order.verl is None:
        return findings
    return (*findings, *lint_features(policy, *_verl_files(order.verl, order.verl_ref)))


def backtest(order: PlanOrder, labels: Path) -> tuple[Outcome, ...]:
    """Plan every labelled change, by the policy file or by the packaged policy."""
    try:
        cases = load_labels(labels.read_bytes(), str(labels))
    except OSError as error:
        raise UsageError(f"{labels}: {error.strerror}; give a readable file of labels") from None
    repository = GitRepository(order.repo)
    policy = _policy_file(order.policy) if order.policy else packaged_policy()
    planner = _planner(repository, order, policy)
    return tuple(_outcome(planner, case, policy) for case in cases)


def _outcome(planner: Planner, case: Case, policy: Policy) -> Outcome:
    try:
        return Outcome(case, planner.plan(case.base, case.head, policy).plan)
    except UnknownRevisionError as error:
        return Outcome(case, None, str(error))


def replay(order: PlanOrder, count: int, head: str) -> Usage:
    """Plan the last first-parent commits up to a head, by the policy file or by the packaged policy."""
    repository = GitRepository(order.repo)
    policy = _policy_file(order.policy) if order.policy else packaged_policy()
    planner = _planner(repository, order, policy)
    commits = repository.first_parents(head, count)
    return usage(planner.plan(parent, commit, policy).plan for commit, parent in commits)


def verl_uses(verl: Path, verl_ref: str | None) -> str:
    """verl's uses of Megatron-Bridge at a revision (HEAD), in the form of the packaged list."""
    policy, repository = packaged_policy(), GitRepository(verl)
    assert policy.reach is not None
    commit = repository.resolve(verl_ref or "HEAD")
    return uses_json(uses_at(repository, commit, policy.reach, ""), commit)


def _planner(repository: GitRepository, order: PlanOrder, policy: Policy) -> Planner:
    return Planner(repository, _uses(order, policy), SummaryCache(order.cache))


def _uses(order: PlanOrder, policy: Policy) -> Uses:
    if order.verl is None or policy.reach is None:
        return packaged_uses()
    try:
        verl = GitRepository(order.verl)
    except NotARepositoryError:
        return _plain_uses(order.verl, policy.reach)
    commit = verl.resolve(order.verl_ref or "HEAD")
    return uses_at(verl, commit, policy.reach, f"verl {commit[:12]}")


def _plain_uses(folder: Path, reach: ReachPolicy) -> Uses:
    """The uses of an unpacked copy without git."""
    sources = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted((folder / reach.callers).rglob("*.py"))
        if path.is_file() and not path.is_symlink()
    }
    if not sources:
        raise UsageError(f"{folder}: no Python file below {reach.callers}; give a verl checkout")
    return uses_of(sources, reach.package, f"the folder {folder.name}, which is no git checkout")


def _verl_files(verl: Path, verl_ref: str | None) -> tuple[frozenset[str], str]:
    """Every file of verl at a revision (HEAD), or of an unpacked copy, and how to name it."""
    try:
        repository = GitRepository(verl)
    except NotARepositoryError:
        found = (path for path in verl.rglob("*") if path.is_file())
        return frozenset(path.relative_to(verl).as_posix() for path in found), f"the folder {verl.name}"
    commit = repository.resolve(verl_ref or "HEAD")
    return frozenset(repository.tree(commit)), f"verl {commit[:12]}"


def _policy(repository: GitRepository, base: str, file: Path | None) -> Policy:
    return policy_at(repository, repository.resolve(base)) if file is None else _policy_file(file)


def _policy_file(file: Path) -> Policy:
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
    no_baseline: bool = False
    parity: bool = False
    baseline_repeats: int = 1


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
        beside=_beside_check(order, bridge, verl, head, verl_commit, policy),
    )
    blobs = {"bridge": bridge, "verl": verl}
    planner = _planner(bridge, PlanOrder(order.bridge, order.verl, verl_commit, cache=order.work), policy)
    folders = run_folders(_policy_bands(bridge, order, policy))
    rooms = Rooms(bridge, LocalDispatcher(order.work), folders, blobs, planner, baselines=BaselineCache(order.work))
    return check_change(request, rooms, say)


def _policy_bands(bridge: GitRepository, order: CheckOrder, policy: Policy) -> Bands | None:
    """The bands that the policy names: beside a policy file on disk, else in the commit that the policy is from."""
    if not policy.bands:
        return None
    if order.policy is not None:
        return read_bands(order.policy.parent / policy.bands)
    text = bridge.read_blob(bridge.resolve(order.base), policy.bands)
    if text is None:
        raise UsageError(f"{policy.source}: bands: {policy.bands} is not in the base commit; add it or drop the key")
    return load_bands(text, policy.bands)


def _beside_check(
    order: CheckOrder, bridge: GitRepository, verl: GitRepository, head: str, verl_commit: str, policy: Policy
) -> Allowed:
    """The runs that may follow a job of a check."""
    roles = AS_ASKED.roles | ({Role.TRIVIAL_SIZES} if order.parity else set())
    allowed = Allowed(roles=roles, baselines=order.baseline_repeats)
    if order.no_baseline:
        return without_base(allowed, "--no-baseline was given")
    commit = bridge.merge_base(bridge.resolve(order.base), head)
    if commit is None:
        return without_base(allowed, "base and head have no common ancestor in this repository")
    core = _megatron_lm(bridge, commit, order.megatron_lm)
    patches = _fitting(policy.patches, {"bridge": (bridge, commit), "verl": (verl, verl_commit)})
    return replace(allowed, merge_base=MergeBase(commit, core, patches))


def beside_job(job: Job, baseline: str | None) -> Allowed:
    """The runs that may follow a single job, with a commit of its Bridge repository as its merge base.

    Of the patches that the job declares those are taken that fit the commit.
    """
    if baseline is None:
        return without_base(AS_ASKED, "no --baseline was given")
    bridge, verl = GitRepository(job.bridge.path), GitRepository(job.verl.path)
    commit = bridge.resolve(baseline)
    core = _megatron_lm(bridge, commit, Path(job.megatron_lm.path)) if job.megatron_lm else None
    patches = _fitting(job.patches, {"bridge": (bridge, commit), "verl": (verl, job.verl.commit)})
    return replace(AS_ASKED, merge_base=MergeBase(commit, core, patches))


def _fitting(patches: tuple[Patch, ...], at: Mapping[str, tuple[GitRepository, str]]) -> tuple[Patch, ...]:
    def digest_of(patch: Patch) -> str | None:
        repository, commit = at[patch.repository]
        return repository.digest(commit, patch.file)

    return select_patches(patches, digest_of).chosen


def follow_up_run(job: Job, out: Path, allowed: Allowed, work: Path | None, say: Callable[[str], None]) -> Verdict:
    """Make the runs that the job in `out` asks for, and judge it with them."""
    rooms = Beside(LocalDispatcher(work), run_folders(), BaselineCache(work))
    return follow_up(job, out, allowed, rooms, say)


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
