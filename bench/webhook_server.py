"""The service of `bench/webhooks.py`: the process of `verl-e2e serve`, with a pause in the place of a look at GitHub.

python bench/webhook_server.py SECONDS; the settings come from the environment, as in the service.
"""

import json
import os
import sys
import time

from verl_e2e.adapters.clock import SystemClock
from verl_e2e.adapters.json_log import log_to_stderr
from verl_e2e.adapters.worker import Work
from verl_e2e.cli.serve import listen
from verl_e2e.config.settings import load_settings
from verl_e2e.core.pulls.deliveries import Posting, Received
from verl_e2e.wiring.app import open_service


def target_of(delivery: Received) -> tuple[str, ...]:
    """The pull request that a delivery names."""
    payload = json.loads(delivery.body)
    return (f"{payload['repository']['full_name']}#{payload['number']}",)


def make_work(*_: object) -> Work:
    """Work that reads deliveries and pauses for each target."""
    return Work(
        process=target_of,
        reconcile=lambda _: time.sleep(float(sys.argv[1])),
        open_targets=tuple,
        missed_targets=tuple,
        lane_of=lambda _: "",
        write=_nothing,
        announce=lambda _: None,
    )


def _nothing(message: Posting) -> None:
    """There are no messages."""
    del message


if __name__ == "__main__":
    settings = load_settings(os.environ)
    log_to_stderr("info")
    listen(settings, open_service(settings, SystemClock(), make_work))
