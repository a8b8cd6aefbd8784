"""The service of `bench/load.py`: production's own, on the local back end, whose jobs are `bench/short_job.py`.

python bench/load_server.py; the settings come from the environment, as in the service.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from verl_e2e.adapters.clock import SystemClock
from verl_e2e.adapters.dispatch.local_backend import LocalBackend
from verl_e2e.adapters.files.logs import open_log
from verl_e2e.adapters.github.session import GitHub
from verl_e2e.adapters.json_log import log_to_stderr
from verl_e2e.cli.serve import listen
from verl_e2e.config.settings import Settings, load_settings
from verl_e2e.core.model.needs import Capacity
from verl_e2e.ports import Backend, Clock
from verl_e2e.wiring.analysis import ServiceAnalysis
from verl_e2e.wiring.app import github_work, open_service

SHORT_JOB = (sys.executable, str(Path(__file__).with_name("short_job.py")))


def short_jobs(
    settings: Settings, github: GitHub, analysis: ServiceAnalysis, clock: Clock, environ: Mapping[str, str]
) -> Backend:
    """The local back end with short jobs."""
    del github, analysis
    return LocalBackend(
        settings.data / "local",
        environ=environ,
        clock=clock,
        open_log=open_log,
        command=SHORT_JOB,
        capacity=Capacity(settings.local_slots, settings.local_gpus),
    )


if __name__ == "__main__":
    settings = load_settings(os.environ)
    log_to_stderr("info")
    listen(settings, open_service(settings, SystemClock(), github_work(os.environ, make_backend=short_jobs)))
