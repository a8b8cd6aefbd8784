"""What a verdict depends on, as one digest: two jobs with one key run the same code in the same way.

Left out is what says why a job was planned and not what it does: the commit, whose files have a digest of their own,
the changed functions, the purposes, and why a Bridge test was chosen. A verdict is judged again where these differ.
"""

import hashlib
import json

from verl_e2e.core.model.execution import NO_CODE
from verl_e2e.core.model.jobs import ChosenTest, Job, WhyChosen
from verl_e2e.core.plan.reached_files import ReachedFiles
from verl_e2e.core.pulls.job_order import portable

# Raise it whenever the same key could stand for something else.
_KEY_VERSION = 1
_ANY_COMMIT = "0" * 40
# What a job has of the change that it is for.
_FOR_CHANGE = frozenset({"changed", "purposes", "chosen_tests"})
# What only judging reads of a job: it changes nothing that a run does.
ASKED_OF_RESULT = _FOR_CHANGE | {"settings", "expected", "features", "not_restored"}
# What only planning reads of a site, or people: the job itself has what follows from it.
_OF_PLANNING = frozenset({"description", "limitations", "checkpoints", "data", "cannot_run"})
# What is said for people, wherever it stands in a job.
_TEXTS = frozenset({"reason", "upstream", "condition"})


def reuse_key(job: Job, reached: ReachedFiles, program: str, *, tested_by: str = "") -> str:
    """SHA-256 of everything that a verdict on the job depends on; empty where that is not known.

    `program` names the version that runs and judges. `tested_by` is the job that must pass the same Bridge tests on the
    same head before a verdict counts for this one, empty for none: what these read is then left out of this key.
    """
    files = reached.digest_for(tests=bool(job.bridge_tests) and not tested_by)
    if not files:
        return ""
    document = _without_change(job).model_dump(mode="json", exclude={"origins"})
    text = json.dumps([_KEY_VERSION, program, files, document], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def same_but_commit(job: Job, other: Job) -> bool:
    """Whether two jobs differ in the commit of Bridge alone: they are for the same change as well."""
    return _at_any_commit(portable(job)) == _at_any_commit(portable(other))


def same_work(job: Job, other: Job) -> bool:
    """Whether two jobs do the same, whatever the change that they are for and whatever is asked of their results."""
    return differing_keys(job, other) <= ASKED_OF_RESULT


def differing_keys(job: Job, other: Job) -> frozenset[str]:
    """The keys by which two jobs differ as this version reads them, as `overrides` or `site.python`.

    Without any they mean the same: a text for people and the commit of Bridge do not count, nor does a key that another
    version did not write and this one has a default for.
    """
    found, wanted = _meaning(job), _meaning(other)
    return frozenset(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))


def is_image_pinned(job: Job) -> bool:
    """Whether the image of a job is named by its digest: what it holds is then known."""
    return "@sha256:" in job.site.image


def _meaning(job: Job) -> dict[str, object]:
    # What a job takes of a host follows from the rest; where commits come from changes nothing of what they are.
    document = _at_any_commit(portable(job)).model_dump(mode="json", exclude={"needs", "origins"})
    of_site = {f"site.{key}": value for key, value in document.pop("site").items() if key not in _OF_PLANNING}
    return {key: _without_texts(value) for key, value in {**document, **of_site}.items()}


def _without_texts(value: object) -> object:
    match value:
        case dict():
            return {key: _without_texts(entry) for key, entry in value.items() if key not in _TEXTS}
        case list():
            return [_without_texts(entry) for entry in value]
        case _:
            return value


def _at_any_commit(job: Job) -> Job:
    return job.model_copy(update={"bridge": job.bridge.model_copy(update={"commit": _ANY_COMMIT})})


def _without_change(job: Job) -> Job:
    tests = tuple(
        ChosenTest(test=chosen.test, why=WhyChosen.POLICY, reason="", gpu_count=chosen.gpu_count)
        for chosen in job.chosen_tests
    )
    return _at_any_commit(portable(job)).model_copy(update={"changed": NO_CODE, "purposes": (), "chosen_tests": tests})
