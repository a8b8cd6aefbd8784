"""The engines that jobs run on, asked before the service starts."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from verl_e2e.adapters.dispatch.slurm_check import check_cluster
from verl_e2e.adapters.dispatch.slurm_commands import SlurmCommands
from verl_e2e.adapters.dispatch.slurm_settings import Container, SlurmSettings
from verl_e2e.config.settings import Settings
from verl_e2e.core.model.errors import UserError
from verl_e2e.ports import BackendError

# Its import loads Ray, an extra.
if TYPE_CHECKING:
    from verl_e2e.adapters.dispatch.ray_client import RayClient


def ray_client(settings: Settings, environ: Mapping[str, str]) -> "RayClient":
    """Who asks the Ray cluster of the settings; UserError where the extra `ray` is not installed."""
    # Ray's client needs aiohttp, which Ray alone does not bring along.
    if missing := next((name for name in ("ray", "aiohttp") if find_spec(name) is None), ""):
        fix = "pip install 'verl-e2e[ray]'"
        raise UserError(f"VERL_E2E_BACKEND=ray needs {missing}, which is not installed; {fix}")
    from verl_e2e.adapters.dispatch.ray_client import RayClient  # noqa: PLC0415

    return RayClient(settings.ray_address, settings.ray_headers, settings.ray_verify, environ)


def slurm_cluster(settings: Settings, orders: Path) -> SlurmSettings:
    """How jobs are submitted to the Slurm cluster of the settings."""
    return SlurmSettings(
        folder=orders,
        gpus=settings.slurm_gpus,
        options=settings.slurm_options,
        command=settings.slurm_command,
        setup=settings.slurm_setup,
        container=Container(settings.slurm_container),
        mounts=settings.slurm_mounts,
        token_file=settings.fetch_token_file,
    )


def check_engine(settings: Settings, environ: Mapping[str, str]) -> str:
    """What the engine says of itself, empty where none is asked; UserError where it would not run jobs."""
    if settings.backend == "slurm" and settings.slurm_folder is not None:
        commands = SlurmCommands(settings.slurm_host, environ)
        try:
            return check_cluster(slurm_cluster(settings, settings.slurm_folder), commands)
        except BackendError as error:
            raise UserError(str(error)) from error
    if settings.backend != "ray":
        return ""
    try:
        return f"Ray {ray_client(settings, environ).check()}"
    except BackendError as error:
        raise UserError(f"VERL_E2E_RAY_ADDRESS: {error}") from error
