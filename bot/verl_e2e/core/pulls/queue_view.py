"""What one target sees of our queue."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from verl_e2e.core.pulls.admission import Held
from verl_e2e.core.pulls.pause import Pause
from verl_e2e.core.pulls.queue_place import Place


@dataclass(frozen=True, slots=True)
class QueueView:
    """The queue as one target sees it; the default is that of a queue that lets everything start."""

    # Whether a waiting run may have to wait, so that it is shown as waiting before its place is known.
    limited: bool = False
    # What holds waiting runs of the target, by key.
    held: Mapping[str, Held] = field(default_factory=dict)
    # Its place, as it is shown now; None where nothing of it is in a line.
    place: Place | None = None
    # The pause of its repository, None for none.
    pause: Pause | None = None
    # In how many seconds its place may be shown again, 0 where nothing of it waits.
    again_s: float = 0.0
