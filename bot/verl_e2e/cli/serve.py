"""The verb that stays: serve."""

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
    "--check", is_flag=True, help="Read the settings, open the database and the key, say so, and start nothing."
)
def serve(*, check: bool) -> int:
    """Serve a GitHub App: take its webhooks, keep pull requests planned, run, judged and reported.

    Settings come from the environment; docs/settings.md lists them. Log lines are JSON on standard error.

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
        click.echo(f"settings are good: App {settings.app_id} at {settings.api_url}, jobs on {settings.backend}")
        return 0
    listen(settings, service)
    # A look may still wait for GitHub, and Python would wait for it; what is cut off is done again after a start.
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


def _close_files(settings: "Settings") -> None:
    """Files of earlier versions lay open to every user of the host."""
    from verl_e2e.cli.privacy import close_to_others

    file = Path(settings.database_url.removeprefix("sqlite:///"))
    beside = file.parent.glob(f"{file.stem}*") if file.parent.is_dir() else ()
    for path in close_to_others([*settings.data.iterdir(), *beside]):
        logging.getLogger(__name__).warning("%s was open to other users of this host and is no more", path)


def listen(settings: "Settings", service: "Service") -> None:
    """Take webhooks until a signal ends it."""
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
        # Connections and bodies have limits of their own, so that no one is refused because others talk.
        http=PatientProtocol,
        ws="none",
        timeout_graceful_shutdown=10,
    )
    # A webhook is answered beside several working threads; each may hold the interpreter for this long.
    sys.setswitchinterval(_SWITCH_S)
    # uvicorn sends itself the signal again once it has ended, and the worker has to end in order too.
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
    """The bound socket, so that a port in use is told before anything is started."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=1024)
    except OSError as error:
        what = f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}"
        raise click.UsageError(f"{what}; set VERL_E2E_HOST and VERL_E2E_PORT") from None
