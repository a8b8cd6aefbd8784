"""How long a test waits, on a machine that may be busy with other work.

HANG_S only bounds a hang: a test that passes never waits for it. What is measured against a limit of ours by the wall
clock is given more time by `slowness` where other processes want the machine too.
"""

import os

HANG_S = 900.0


def slowness() -> float:
    """By how much this machine is slower than an idle one, from 1: processes that want to run for each core."""
    return max(1.0, max(os.getloadavg()[:2]) / (os.cpu_count() or 1))
