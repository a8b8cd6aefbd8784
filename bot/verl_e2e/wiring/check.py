"""A whole check, and the runs that follow one, with the real adapters."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from verl_e2e.adapters.demo_repository import build_demo_repository
from verl_e2e.adapters.dispatch.local_backend import LocalDispatcher
from verl_e2e.adapters.files.folders import BaselineCache, run_folders
from verl_e2e.app.check import (
    Checkouts,
    CheckRequest,
    CheckServices,
    Demonstration,
    FollowUpServices,
    check_change,
    check_follow_ups,
    commit_of_consumer,
    demonstrate,
    follow_up,
    follow_ups_of_job,
    patches_of,
)
from verl_e2e.config.maps import policy_bands
from verl_e2e.config.policy import policy_at
from verl_e2e.config.profiles import load_profile
from verl_e2e.config.settings_values import name_values
from verl_e2e.core.consumer.consumers import CONSUMERS
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.judge.related_runs import AS_ASKED, Allowed, without_base
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.document import UnfitError
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import Checkpoint, Job
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.needs import unable
from verl_e2e.core.plan.build import without_data
from verl_e2e.core.pulls import commands
from verl_e2e.core.report.plan_text import READING
from verl_e2e.core.report.run_card import Card
from verl_e2e.git.repository import GitRepository
from verl_e2e.wiring.planning import PlanRequest, commits_between, planner_of, policy_of, repository_named_by


@dataclass(frozen=True, slots=True)
class LocalCheck:
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
    cache: Path | None = None
    no_baseline: bool = False
    parity: bool = False
    # Its name in `core/consumer`; `verl` is its checkout.
    consumer: str = VERL.name
    model: str | None = None
    steps: str | None = None
    only: tuple[str, ...] = ()
    baseline_repeats: int = 1
    # `sys.platform` of this machine.
    system: str = "linux"
    # Why this machine has no GPU; empty where it has one.
    no_gpu: str = ""
    # Whether the runs print no progress.
    quiet: bool = False


def check_here(
    order: LocalCheck, environ: Mapping[str, str], say: Callable[[str], None], *, reseal: Callable[[Path], None]
) -> Card:
    """Plan, run and judge; writes everything below `order.out`. `reseal` seals a run with those that followed it."""
    if order.out.exists() and any(order.out.iterdir()):
        raise UserError(f"{order.out}: not empty; give --out a new folder or remove this one")
    bridge, verl = GitRepository(order.bridge), GitRepository(order.verl)
    places = Checkouts(bridge, verl, GitRepository(order.megatron_lm) if order.megatron_lm else None)
    policy = policy_of(bridge, order.base, order.policy)
    consumer = CONSUMERS[order.consumer]
    verl_commit, notes = commit_of_consumer(verl, order.verl_ref, policy, consumer)
    pin = "" if consumer is VERL else policy.pin_of(consumer)
    # One consumer is checked at a time, whichever the policy names.
    policy = policy.model_copy(update={"consumers": {}})
    if consumer is not VERL and policy.reach is not None:
        # The change is read by what this consumer runs of the package.
        reach = policy.reach.model_copy(update={"callers": consumer.callers})
        policy = policy.model_copy(update={"reach": reach})
    try:
        values = name_values(order.values)
    except UnfitError as error:
        raise UserError(f"--set: {error}") from None
    site = load_profile(order.site, values, {"home": environ.get("HOME", "/")})
    if site.data is None:
        raise UserError(without_data(site))
    if order.no_gpu and not unable(order.system):
        say(f"No GPU on this machine ({order.no_gpu}): the change is planned, and a job that it needs is Blocked.")
    if bridge.dirty_files():
        say(f"{order.bridge} has uncommitted changes; {order.head} is tested without them")
    # Levels that are asked for by hand run on unchanged code too.
    base, head = commits_between(bridge, order.base, order.head, may_be_equal=bool(order.levels) or order.parity)
    request = CheckRequest(
        bridge=order.bridge,
        verl=order.verl,
        verl_commit=verl_commit,
        base=base,
        head=head,
        out=order.out,
        policy=policy,
        site=site,
        megatron_lm=places.megatron_lm_at(head),
        asked=tuple(Level(level) for level in order.levels),
        parity=order.parity,
        consumer=consumer,
        checkpoint=_checkpoint(order.model),
        steps=int(_word("--steps", order.steps, commands.steps) or 0),
        only=order.only,
        notes=notes,
        unable=unable(order.system),
        quiet=bool(order.no_gpu),
        related=check_follow_ups(
            places,
            (base, head, verl_commit),
            patches_of(consumer, policy),
            repeats=order.baseline_repeats,
            baseline=not order.no_baseline,
        ),
    )
    blobs = {"bridge": bridge, "verl": verl}
    named = PlanRequest(order.bridge, order.verl, verl_commit, cache=order.cache, megatron_lm=order.megatron_lm)
    named = replace(named, trainer=consumer.title, pin=pin)
    if request.unable:
        say(f"No job is run: {request.unable}.")
    say(READING.format(consumer.title))
    with repository_named_by(named, policy):
        planner = planner_of(bridge, named, policy, order.base, order.head)
    folders = run_folders(policy_bands(policy, order.policy, bridge, base), reseal=reseal)
    services = CheckServices(
        bridge,
        LocalDispatcher(order.work, quiet=order.quiet or bool(order.no_gpu)),
        folders,
        blobs,
        planner,
        baselines=BaselineCache(order.work),
    )
    return check_change(request, services, say)


def _word(option: str, given: str | None, read: commands.WordReader) -> str | None:
    """What an option names, read as in a command of a pull request; UserError."""
    found = None if given is None else read(given)
    if isinstance(found, commands.Unreadable):
        raise UserError(f"{option} {given}: {found.what}; {found.fix}")
    return found


def _checkpoint(model: str | None) -> Checkpoint | None:
    """The checkpoint that --model names: a folder of this machine, else a model of the hub; UserError."""
    folder = Path(model or "")
    if model and (folder / "config.json").is_file():
        return Checkpoint(model_id=f"local/{folder.resolve().name}", model_path=str(folder.resolve()))
    if model and (folder.is_dir() or model[0] in "/.~"):
        raise UserError(f"--model {model}: no config.json in it; name the folder of a Hugging Face model")
    named = _word("--model", model, commands.model)
    return Checkpoint(model_id=named) if named else None


def job_follow_ups(job: Job, baseline: str | None, missing: str = "", *, lenient: bool = False) -> Allowed:
    """The runs that may follow a single job, in the repositories that it names; `missing` says why one is not there."""
    if baseline is None or missing:
        return without_base(AS_ASKED, missing or "no --baseline was given")
    core = GitRepository(job.megatron_lm.path) if job.megatron_lm and not job.has_core_of_bridge else None
    places = Checkouts(GitRepository(job.bridge.path), GitRepository(job.verl.path), core)
    return follow_ups_of_job(job, baseline, places, lenient=lenient)


def follow_up_run(
    job: Job,
    out: Path,
    allowed: Allowed,
    work: Path | None,
    say: Callable[[str], None],
    *,
    reseal: Callable[[Path], None],
) -> Verdict:
    """Make the runs that the job in `out` asks for, and judge it with them; `reseal` seals it with them."""
    services = FollowUpServices(LocalDispatcher(work), run_folders(reseal=reseal), BaselineCache(work))
    return follow_up(job, out, allowed, services, say)


DEMO_JOB = "0-lora-ddp"
# The packaged run folders: of the change, and of its fix.
_FAILED, RECORDING = (Path(__file__).resolve().parents[1] / "demo" / name for name in ("failed", "recording"))


def demonstration(folder: Path) -> tuple[Demonstration, Demonstration]:
    """Build the demonstration's repository in a new folder, and plan and judge its change and the fix of it there."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: exists already; give --out a new folder")
    repository = build_demo_repository(folder / "bridge")
    changes = GitRepository(repository.path)
    policy = policy_at(changes, repository.base)

    def shown(name: str, recording: Path, head: str) -> Demonstration:
        shutil.copytree(recording, folder / name / "jobs" / DEMO_JOB)
        return demonstrate(
            run_folders(), folder / name, changes=changes, base=repository.base, head=head, policy=policy
        )

    return shown("failed", _FAILED, repository.head), shown("fixed", RECORDING, repository.fixed)
