"""The verb that runs the service: serve."""

import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from verl_e2e.config.settings import Settings
    from verl_e2e.wiring.app import Service


_SWITCH_S = 0.001


@click.command()
@click.option(
    "--check", is_flag=True, help="Check the settings, the key and the database, and do not start the service."
)
def serve(*, check: bool) -> int:
    """Run the service of the GitHub App: receive webhooks, plan pull requests, run jobs, judge and report them.

    Settings are environment variables; docs/settings.md lists them. The log is JSON lines on standard error.

    Example: GITHUB_APP_PRIVATE_KEY_FILE=app.pem ... verl-e2e serve
    """
    from verl_e2e.adapters.clock import SystemClock
    from verl_e2e.adapters.json_log import log_to_stderr
    from verl_e2e.cli.privacy import be_private, forget
    from verl_e2e.config.settings import SECRETS, load_settings
    from verl_e2e.wiring.app import open_service
    from verl_e2e.wiring.app_services import github_work

    be_private()
    settings = load_settings(os.environ)
    forget(SECRETS)
    log_to_stderr(settings.log_level, settings.webhook_secret, settings.private_key, settings.database_url)
    service = open_service(settings, SystemClock(), github_work(os.environ))
    _close_files(settings)
    if check:
        service.store.close()
        click.echo(f"settings are valid: App {settings.app_id} at {settings.api_url}, jobs on {settings.backend}")
        return 0
    listen(settings, service)
    # A thread may still wait for GitHub, and Python would wait for the thread. Work that is cut off is repeated after
    # the next start.
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


def _close_files(settings: "Settings") -> None:
    """Make files of earlier versions private: every user of the host could read them."""
    from verl_e2e.cli.privacy import close_to_others

    file = Path(settings.database_url.removeprefix("sqlite:///"))
    database_files = file.parent.glob(f"{file.stem}*") if file.parent.is_dir() else ()
    for path in close_to_others([*settings.data.iterdir(), *database_files]):
        logging.getLogger(__name__).warning("%s was readable by other users of this host; it is private now", path)


def listen(settings: "Settings", service: "Service") -> None:
    """Receive webhooks until a signal ends the process."""
    import uvicorn

    from verl_e2e.web import Door, PatientProtocol, create_app

    listener = _listener(settings)
    door = Door(settings.webhook_secret, service.keep, service.worker.wake, service.health, service.clock.now)
    config = uvicorn.Config(
        create_app(door),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        # Connections and bodies have their own limits, so that many clients cannot shut out GitHub.
        http=PatientProtocol,
        ws="none",
        timeout_graceful_shutdown=10,
    )
    # Webhooks are answered while worker threads run; each thread may hold the interpreter for this long.
    sys.setswitchinterval(_SWITCH_S)
    # uvicorn raises the signal again after its own shutdown; ignore it there, so that the worker can stop too.
    signal.signal(signal.SIGTERM, lambda *_: None)
    service.start()
    try:
        host, port = listener.getsockname()[:2]
        click.echo(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}/webhook")
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        service.stop()
        listener.close()


def _listener(settings: "Settings") -> socket.socket:
    """The bound socket, so that a port in use is reported before anything starts."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=1024)
    except OSError as error:
        what = f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}"
        raise click.UsageError(f"{what}; set VERL_E2E_HOST and VERL_E2E_PORT to a free address") from None
