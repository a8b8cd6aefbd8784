"""A whole check, and the runs that follow one, with the real adapters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from verl_e2e.adapters.dispatch.local import LocalDispatcher
from verl_e2e.adapters.files.baselines import BaselineCache
from verl_e2e.app.check import CheckRequest, CheckServices, check_change
from verl_e2e.app.fit_patches import fit_patches
from verl_e2e.app.follow_up_runs import FollowUpServices, follow_up
from verl_e2e.config.bands import load_bands, read_bands
from verl_e2e.config.profiles import load_profile
from verl_e2e.config.settings_values import pairs
from verl_e2e.core.judge.followups import AS_ASKED, Allowed, MergeBase, without_base
from verl_e2e.core.judge.verdict_document import Verdict
from verl_e2e.core.model.bands import Bands
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import Job, Repository
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.related import Role
from verl_e2e.core.model.validated import UnfitError
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.report.run_card import Card
from verl_e2e.git.repository import GitRepository, UnknownRevisionError
from verl_e2e.wiring.folders import run_folders
from verl_e2e.wiring.planning import PlanRequest, planner_of, policy_of, repository_named_by


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
    no_baseline: bool = False
    parity: bool = False
    baseline_repeats: int = 1


def check(
    order: LocalCheck, environ: Mapping[str, str], say: Callable[[str], None], *, reseal: Callable[[Path], None]
) -> Card:
    """Plan, run and judge; writes everything below `order.out`. `reseal` seals a run with those that followed it."""
    if order.out.exists() and any(order.out.iterdir()):
        raise UserError(f"{order.out}: not empty; give --out a new folder or remove this one")
    bridge, verl = GitRepository(order.bridge), GitRepository(order.verl)
    policy = policy_of(bridge, order.base, order.policy)
    verl_commit, notes = _verl_commit(verl, order.verl_ref, policy)
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
        site=load_profile(order.site, _site_values(order.values), {"home": environ.get("HOME", "/")}),
        megatron_lm=_megatron_lm(bridge, head, order.megatron_lm),
        asked=tuple(Level(level) for level in order.levels),
        notes=notes,
        beside=_check_follow_ups(order, bridge, verl, head, verl_commit, policy),
    )
    blobs = {"bridge": bridge, "verl": verl}
    named = PlanRequest(order.bridge, order.verl, verl_commit, cache=order.work)
    with repository_named_by(named, policy):
        planner = planner_of(bridge, named, policy, order.base, order.head)
    folders = run_folders(_policy_bands(bridge, order, policy), reseal=reseal)
    services = CheckServices(
        bridge, LocalDispatcher(order.work), folders, blobs, planner, baselines=BaselineCache(order.work)
    )
    return check_change(request, services, say)


def _policy_bands(bridge: GitRepository, order: LocalCheck, policy: Policy) -> Bands | None:
    """The bands that the policy names: next to a policy file on disk, else in the commit that the policy is from."""
    if not policy.bands:
        return None
    if order.policy is not None:
        return read_bands(order.policy.parent / policy.bands)
    text = bridge.read_blob(bridge.resolve(order.base), policy.bands)
    if text is None:
        raise UserError(f"{policy.source}: bands: {policy.bands} is not in the base commit; add it or drop the key")
    return load_bands(text, policy.bands)


def _check_follow_ups(
    order: LocalCheck, bridge: GitRepository, verl: GitRepository, head: str, verl_commit: str, policy: Policy
) -> Allowed:
    """The runs that may follow a job of a check."""
    roles = AS_ASKED.roles | ({Role.UNSHARDED} if order.parity else set())
    allowed = Allowed(roles=roles, baselines=order.baseline_repeats)
    if order.no_baseline:
        return without_base(allowed, "--no-baseline was given")
    commit = bridge.merge_base(bridge.resolve(order.base), head)
    if commit is None:
        return without_base(allowed, "base and head have no common ancestor in this repository")
    core = _megatron_lm(bridge, commit, order.megatron_lm)
    patches = fit_patches(policy.patches, {"bridge": (bridge, commit), "verl": (verl, verl_commit)}).chosen
    return replace(allowed, merge_base=MergeBase(commit, core, patches))


def job_follow_ups(job: Job, baseline: str | None, *, lenient: bool = False) -> Allowed:
    """The runs that may follow a single job, with a commit of its Bridge repository as its merge base.

    Of the patches that the job declares those are taken that fit the commit. A `lenient` caller, a machine that was
    sent here with the commit, goes on without one that the repository does not have, and the card says so.
    """
    if baseline is None:
        return without_base(AS_ASKED, "no --baseline was given")
    bridge, verl = GitRepository(job.bridge.path), GitRepository(job.verl.path)
    try:
        commit = bridge.resolve(baseline)
    except UnknownRevisionError:
        if not lenient:
            raise
        return without_base(AS_ASKED, f"{baseline[:12]} is not in the repository of the job")
    core = _megatron_lm(bridge, commit, Path(job.megatron_lm.path)) if job.megatron_lm else None
    patches = fit_patches(job.patches, {"bridge": (bridge, commit), "verl": (verl, job.verl.commit)}).chosen
    return replace(AS_ASKED, merge_base=MergeBase(commit, core, patches))


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


def _verl_commit(verl: GitRepository, asked: str | None, policy: Policy) -> tuple[str, tuple[str, ...]]:
    """The verl commit to test with: the one asked for, else the policy's pin, else the checkout's HEAD, said so."""
    if asked:
        return verl.resolve(asked), ()
    try:
        return verl.resolve(policy.verl.commit), ()
    except UnknownRevisionError:
        head = verl.resolve("HEAD")
        return head, (f"verl {head[:12]} was used: the policy's pin {policy.verl.commit[:12]} is not in {verl.path}.",)


def _megatron_lm(bridge: GitRepository, head: str, path: Path | None) -> Repository | None:
    if path is None:
        return None
    GitRepository(path)
    commit = bridge.submodule_commit(head, "3rdparty/Megatron-LM")
    if commit is None:
        raise UserError(f"{bridge.path}: {head[:12]} has no submodule 3rdparty/Megatron-LM; leave --megatron-lm out")
    return Repository(path=str(path.resolve()), commit=commit)


def _site_values(values: tuple[str, ...]) -> dict[str, str]:
    try:
        return pairs(values)
    except UnfitError as error:
        raise UserError(f"--set: {error}") from None
