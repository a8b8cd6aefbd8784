"""What a commit of verl makes of the settings of a job, found without a GPU."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SettingsCheck:
    """What verl makes of the settings of one job."""

    # The job.
    job_id: str
    # Why the wrapper, Hydra or verl refuses them; empty when they are accepted.
    refused: str = ""
    # What the composed configuration has that the job does not expect, a sentence each.
    mismatches: tuple[str, ...] = ()
    # What of verl's own checks was not made, and why; empty when all were.
    unchecked: str = ""

    @property
    def accepted(self) -> bool:
        """Whether verl takes the settings as the job means them."""
        return not self.refused and not self.mismatches
