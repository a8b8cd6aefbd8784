"""The rewards that are known not to depend on the length of an answer.

Where no response can end by itself, all of them are cut at one length: with such a reward that says nothing against a
rise, with any other, or an unknown one, the rise may be one of the length alone.
"""

from collections.abc import Mapping

from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.variant import OWN_FILES

# Where the recorder's redaction puts the files of verl-e2e itself; a run folder is redacted.
# The second is where it lay when the packages were called `bot` and `runners`: older folders are still judged.
_OURS = frozenset({f"{OWN_FILES}/verl_e2e_runner/rewards.py", f"{OWN_FILES}/runners/rewards.py"})
# As `verl_e2e_runner/rewards.py` declares them, which verl loads by its path.
LENGTH_FREE = frozenset({"digit_share"})
_PATH, _NAME = "reward.custom_reward_function.path", "reward.custom_reward_function.name"


def length_free_reward(job: Job) -> str:
    """The name of the job's reward where it is one that does not depend on the length, empty for any other."""
    given = _given((*job.site.overrides, *job.overrides))
    name = given.get(_NAME, "")
    return name if given.get(_PATH) in _OURS and name in LENGTH_FREE and not job.reward_model else ""


def _given(overrides: tuple[str, ...]) -> Mapping[str, str]:
    """The overrides as keys and values; the last one counts."""
    pairs = (override.lstrip("+").partition("=") for override in overrides)
    return {key: value for key, _, value in pairs}
