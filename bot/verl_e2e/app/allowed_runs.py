"""Which commits a check on this machine takes, and which runs may follow its jobs."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from verl_e2e.app.fit_patches import fit_patches
from verl_e2e.core.judge.related_runs import AS_ASKED, Allowed, MergeBase, without_base
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import Job, Patch, Repository
from verl_e2e.core.model.related import Role
from verl_e2e.core.plan.policy import Policy
from verl_e2e.ports import Checkout

_MEGATRON_LM = "3rdparty/Megatron-LM"


@dataclass(frozen=True, slots=True)
class Checkouts:
    """The repositories on this machine that jobs are run from."""

    bridge: Checkout
    verl: Checkout
    megatron_lm: Checkout | None = None

    def megatron_lm_at(self, commit: str) -> Repository | None:
        """Megatron-LM at the commit that a commit of Bridge names, None where Bridge's own submodule is used."""
        if self.megatron_lm is None:
            return None
        found = self.bridge.submodule_commit(commit, _MEGATRON_LM)
        if found is None:
            missing = f"{self.bridge.path}: {commit[:12]} has no submodule {_MEGATRON_LM}"
            raise UserError(f"{missing}; leave --megatron-lm out")
        return Repository(path=str(self.megatron_lm.path.resolve()), commit=found)

    def merge_base(self, commit: str, verl_commit: str, patches: Iterable[Patch]) -> MergeBase:
        """A commit of Bridge as a merge base, with the patches that fit it."""
        fitting = fit_patches(patches, {"bridge": (self.bridge, commit), "verl": (self.verl, verl_commit)}).chosen
        return MergeBase(commit, self.megatron_lm_at(commit), fitting)


def verl_commit_of(verl: Checkout, asked: str | None, policy: Policy) -> tuple[str, tuple[str, ...]]:
    """The verl commit to test with: the one asked for, else the policy's pin, else the checkout's HEAD, said so."""
    if asked:
        return verl.resolve(asked), ()
    pinned = verl.find(policy.verl.commit)
    if pinned:
        return pinned, ()
    head = verl.resolve("HEAD")
    return head, (f"verl {head[:12]} was used: the policy's pin {policy.verl.commit[:12]} is not in {verl.path}.",)


def check_follow_ups(
    places: Checkouts,
    commits: tuple[str, str, str],
    patches: Iterable[Patch],
    *,
    parity: bool,
    repeats: int,
    baseline: bool,
) -> Allowed:
    """The runs that may follow a job of a check of `commits`: base and head of Bridge, and verl's."""
    base, head, verl_commit = commits
    roles = AS_ASKED.roles | ({Role.UNSHARDED} if parity else set())
    allowed = Allowed(roles=roles, baselines=repeats)
    if not baseline:
        return without_base(allowed, "--no-baseline was given")
    commit = places.bridge.merge_base(base, head)
    if commit is None:
        return without_base(allowed, "base and head do not have exactly one merge base in this repository")
    return replace(allowed, merge_base=places.merge_base(commit, verl_commit, patches))


def follow_ups_of_job(job: Job, baseline: str, places: Checkouts, *, lenient: bool) -> Allowed:
    """The runs that may follow a single job, with a commit of its Bridge repository as its merge base.

    Of the patches that the job declares those are taken that fit the commit. A `lenient` caller, a machine that was
    sent here with the commit, goes on without one that the repository does not have, and the card says so.
    """
    commit = places.bridge.find(baseline) if lenient else places.bridge.resolve(baseline)
    if commit is None:
        return without_base(AS_ASKED, f"{baseline[:12]} is not in the repository of the job")
    return replace(AS_ASKED, merge_base=places.merge_base(commit, job.verl.commit, job.patches))
