"""A job as it travels to another machine: without paths, small enough for the inputs of a workflow.

GitHub takes at most 25 inputs of 65,535 characters in all. A job of today is 9 KB of JSON and 3.4 KB packed, so the
whole document travels and nothing is planned twice: what runs is byte for byte what was decided.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from pydantic import ValidationError

from verl_e2e.core.consumer.consumer import Consumer
from verl_e2e.core.consumer.verl import VERL
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import RehearsalJob, Repository, RepositoryOrigin, RunOrder, read_order
from verl_e2e.core.plan.build import Sources
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.text import packed

MAX_INPUTS = 25
MAX_INPUT_CHARS = 65_535
# More than any job; an order that unpacks to more is none of ours.
_MAX_JOB_BYTES = 4 * 1024 * 1024

# Seconds for checkouts, the image, preflight and the upload, in addition to the time limit of the job.
_AROUND_S = 3600
# The same of a rehearsal: checkouts and its environment.
_AROUND_REHEARSAL_S = 1200
# The run itself, the run on the merge base and one repetition.
_RUNS = 3

# Names a file on the host of a job: the token for fetching its repositories.
TOKEN_VARIABLE = "VERL_E2E_FETCH_TOKEN_FILE"
# Names the file of the key by which the recorder on that host signs run folders.
RECORDER_KEY_VARIABLE = "VERL_E2E_RECORDER_KEY"

# Next to a job's file on the machine that runs it: what the run must return.
NONCE_FILE = "order-nonce"

# What redaction leaves in the place of a path, a secret, a host or an address.
_PLACEHOLDER = re.compile(r"(\$[A-Z][A-Z0-9_]*|<redacted:[a-z-]+>|(?:host|ip)-[0-9]+)")
_HIDDEN_PATH = re.compile(r"/[^\s,;:'\"=]*")
# As the redactor knows a secret by its value: long enough, and no plain word or number.
_HIDDEN_SECRET = re.compile(r"(?![A-Za-z]{1,11}$)(?![0-9]{1,11}$)\S{8,}")
# A word alone, as the name of a strategy, is taken for no host.
_HIDDEN_HOST = re.compile(r"(?=[A-Za-z-]*[0-9.:])[A-Za-z0-9][A-Za-z0-9.:-]*")

# Where the job's repositories are checked out on the machine that runs it, below one folder.
BRIDGE_FOLDER = "bridge"
VERL_FOLDER = "verl"
_MEGATRON_LM_FOLDER = "bridge/3rdparty/Megatron-LM"
_MEGATRON_LM: Literal["megatron_lm"] = "megatron_lm"


# A job or a rehearsal stays what it is.
Ordered = TypeVar("Ordered", bound=RunOrder)


class OrderError(UserError, ValueError):
    """An order that cannot be sent or understood; the text says why and what to do."""


def portable_sources(bridge_commit: str, verl_commit: str, megatron_lm: str = "") -> Sources:
    """The repositories by folder names: the back end checks them out where the job runs.

    `megatron_lm` is a commit in the place of the one that Bridge names.
    """
    return Sources(
        bridge=Repository(path=BRIDGE_FOLDER, commit=bridge_commit),
        verl=Repository(path=VERL_FOLDER, commit=verl_commit),
        megatron_lm=Repository(path=_MEGATRON_LM_FOLDER, commit=megatron_lm) if megatron_lm else None,
    )


def origins_of(
    repository: str, ref: str, policy: Policy, web_url: str, consumer: Consumer = VERL
) -> dict[str, RepositoryOrigin]:
    """Where a runner fetches what jobs of a repository at the site `web_url` need; `ref` leads to the head.

    Without a site the back end checks Bridge and verl out itself. No address is one that the head could change.
    """
    core: dict[str, RepositoryOrigin] = {_MEGATRON_LM: RepositoryOrigin(url=policy.megatron_lm.repository)}
    if not web_url:
        return core
    return {
        BRIDGE_FOLDER: RepositoryOrigin(url=f"{web_url}/{repository}.git", ref=ref),
        VERL_FOLDER: RepositoryOrigin(url=policy.verl.repository if consumer is VERL else consumer.address),
        **core,
    }


def megatron_lm_of(job: RunOrder) -> str:
    """Where the Megatron-LM that Bridge names is fetched from, empty where the job does not say."""
    origin = job.origins.get(_MEGATRON_LM)
    return origin.url if origin is not None else ""


def takes_token(url: str, own: RepositoryOrigin | None) -> bool:
    """Whether a host's token is for this address: it is for the server of the repository under test, `own`, alone."""
    return own is not None and url.split("/")[:3] == own.url.split("/")[:3]


def portable(job: Ordered) -> Ordered:
    """The job with folder names in the place of this machine's paths; equal for all machines that plan it."""
    return _at(job, {name: name for name in (BRIDGE_FOLDER, VERL_FOLDER, _MEGATRON_LM_FOLDER)})


def placed(job: Ordered, root: str) -> Ordered:
    """A portable job on a machine that has the repositories below the absolute folder `root`."""
    folder = root.rstrip("/")
    return _at(job, {name: f"{folder}/{name}" for name in (BRIDGE_FOLDER, VERL_FOLDER, _MEGATRON_LM_FOLDER)})


def _at(job: Ordered, paths: Mapping[str, str]) -> Ordered:
    def moved(repository: Repository, folder: str) -> Repository:
        return repository.model_copy(update={"path": paths[folder], "in_place": False})

    if isinstance(job, RehearsalJob):
        return job.model_copy(update={"bridge": moved(job.bridge, BRIDGE_FOLDER), "origins": {}})
    core = moved(job.megatron_lm, _MEGATRON_LM_FOLDER) if job.megatron_lm else None
    places: dict[str, object] = {
        "bridge": moved(job.bridge, BRIDGE_FOLDER),
        "verl": moved(job.verl, VERL_FOLDER),
        "megatron_lm": core,
        "origins": {},
    }
    return job.model_copy(update=places)


def minutes_of(job: RunOrder) -> int:
    """The minutes that a back end gives an order, with its follow-up runs and all that is done around them."""
    if isinstance(job, RehearsalJob):
        return (job.time_limit_s + _AROUND_REHEARSAL_S) // 60
    return (_RUNS * job.time_limit_s + job.bridge_tests_limit_s + _AROUND_S) // 60


def pack_order(job: Ordered, merge_base: str = "", nonce: str = "") -> str:
    """A job, made portable, as one line of text, with the commit that a failure is compared with and the nonce."""
    # The workflow that checks the rest out reads no policy.
    kept = {name: origin for name, origin in job.origins.items() if name == _MEGATRON_LM}
    text = portable(job).model_copy(update={"origins": kept}).model_dump_json()
    return f"{packed.pack_text(text)}.{merge_base}.{nonce}".rstrip(".")


def merge_base_of(text: str) -> str:
    """The merge base that a packed text names, empty for none; OrderError for what is not a commit."""
    commit = text.strip().partition(".")[2].partition(".")[0]
    if commit and not re.fullmatch("[0-9a-f]{40}", commit):
        raise OrderError(f"the job's merge base is {commit[:60]!r}, which is not a commit; dispatch it again")
    return commit


def nonce_of(text: str) -> str:
    """The nonce that a packed text holds, empty for none; OrderError for text that is not a nonce of ours."""
    nonce = text.strip().partition(".")[2].partition(".")[2]
    if nonce and not re.fullmatch("[0-9a-f]{32}", nonce):
        raise OrderError(f"the job's nonce is {nonce[:60]!r}, which verl-e2e never makes; dispatch it again")
    return nonce


def unpack_order(text: str) -> RunOrder:
    """The portable job or rehearsal of a packed text; OrderError for anything else."""
    try:
        return read_order(packed.unpack_text(text.partition(".")[0], _MAX_JOB_BYTES))
    except packed.UnpackError as error:
        raise OrderError(f"the job is not one that verl-e2e packed: {error}; dispatch it again") from None
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "the document"
        what = f"the job is of another version of verl-e2e: {key}: {first['msg']}"
        raise OrderError(f"{what}; let the workflow use the version that dispatches") from None


def same_job(found: RunOrder, sent: RunOrder) -> bool:
    """Whether the job that a run folder names is the one that was sent, wherever its repositories lie.

    A run folder is redacted: a placeholder in it stands for a text of its kind, and everything else is the very job
    that was sent. So to judge by the folder's document is to judge by the order, in the words of the redacted log.
    """
    return _same(portable(found).model_dump(mode="json"), portable(sent).model_dump(mode="json"))


def _same(found: object, sent: object) -> bool:
    match found, sent:
        case str(), str():
            return found == sent or _may_be(found, sent)
        case dict(), dict():
            # A redacted key, which a path would give, is not a key of a job.
            return found.keys() == sent.keys() and all(_same(found[key], sent[key]) for key in found)
        case list(), list():
            return len(found) == len(sent) and all(map(_same, found, sent))
        case _:
            return type(found) is type(sent) and found == sent


def _may_be(hidden: str, text: str) -> bool:
    """Whether a text reads like the hidden one with something of its kind in the place of each placeholder.

    A name stands for a path and a secret for one long word, so that what is neither, as a number, a switch or a model,
    is never hidden. In linear steps.
    """
    first, *others = _PLACEHOLDER.split(hidden)
    if not others or not text.startswith(first):
        return False
    at, end = len(first), len(text) - len(others[-1])
    for place in range(0, len(others), 2):
        following, is_last = others[place + 1], place == len(others) - 2
        stop = end if is_last else text.find(following, at + 1, max(end, 0)) if following else -1
        hidden_by = others[place]
        kind = _HIDDEN_PATH if hidden_by[0] == "$" else _HIDDEN_SECRET if hidden_by[0] == "<" else _HIDDEN_HOST
        if stop <= at or kind.fullmatch(text, at, stop) is None:
            return False
        at = stop + len(following)
    return text.endswith(others[-1])


@dataclass(frozen=True, slots=True)
class OrderTarget:
    """The head that a run is for, and its pull request; None for a merge group."""

    head_sha: str
    number: int | None

    def __str__(self) -> str:
        return f"{'' if self.number is None else self.number}@{self.head_sha}"


def read_target(text: str) -> OrderTarget:
    """`NUMBER@SHA`, or `@SHA` for a merge group; OrderError."""
    found = re.fullmatch(r"([1-9][0-9]{0,9})?@([0-9a-f]{40})", text)
    if found is None:
        raise OrderError(f"target: {text[:60]!r} is not NUMBER@SHA; dispatch the job again")
    return OrderTarget(found[2], int(found[1]) if found[1] else None)


def check_inputs(inputs: Mapping[str, str]) -> None:
    """OrderError for inputs that GitHub would refuse."""
    total = sum(len(name) + len(value) for name, value in inputs.items())
    if len(inputs) > MAX_INPUTS:
        raise OrderError(f"{len(inputs)} workflow inputs, and GitHub takes {MAX_INPUTS}; name fewer")
    if total > MAX_INPUT_CHARS:
        largest = max(inputs, key=lambda name: len(inputs[name]))
        what = f"the workflow's inputs take {total:,} characters, and GitHub takes {MAX_INPUT_CHARS:,}"
        fix = "shorten the policy's patches or overrides, or run this job with the local back end"
        raise OrderError(f"{what}; `{largest}` alone is {len(inputs[largest]):,}: {fix}")
