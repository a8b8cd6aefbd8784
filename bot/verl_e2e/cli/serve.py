"""The verb that runs the service: serve."""

import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from verl_e2e.config.settings import Settings
    from verl_e2e.wiring.app import Service


_SWITCH_S = 0.001


@click.command()
@click.option(
    "--check",
    is_flag=True,
    help="Check the settings, the key, the database and the engine, and do not start the service.",
)
def serve(*, check: bool) -> int:
    """Run the service of the GitHub App: receive webhooks, plan pull requests, run jobs, judge and report them.

    Settings are environment variables; `--check` names each one that is missing or wrong. The log is on standard error.

    Example: GITHUB_APP_PRIVATE_KEY_FILE=app.pem ... verl-e2e serve
    """
    from verl_e2e.adapters.clock import SystemClock
    from verl_e2e.adapters.json_log import log_to_stderr
    from verl_e2e.cli.privacy import be_private, forget
    from verl_e2e.config.settings import SECRETS, load_settings
    from verl_e2e.wiring.app import open_service
    from verl_e2e.wiring.app_services import github_work
    from verl_e2e.wiring.engines import check_installation, check_sources

    be_private()
    settings = load_settings(os.environ)
    forget(SECRETS)
    secret_texts = (settings.webhook_secret, settings.private_key, settings.database_url, settings.metrics_token)
    tokens = (value.split()[-1] for value in settings.ray_headers.values())
    log_to_stderr(settings.log_level, *secret_texts, *tokens, form=settings.log_format)
    service = open_service(settings, SystemClock(), github_work(os.environ))
    if check:
        service.store.close()
        engine = check_installation(settings, os.environ)
        check_sources(settings, os.environ)
        jobs = f"{settings.backend} ({engine})" if engine else settings.backend
        click.echo(f"settings are valid: App {settings.app_id} at {settings.api_url}, jobs on {jobs}")
        return 0
    listen(settings, service)
    # A thread may still wait for GitHub, and Python would wait for the thread. Work that is cut off is repeated after
    # the next start.
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


def listen(settings: "Settings", service: "Service") -> None:
    """Receive webhooks until a signal ends the process."""
    import uvicorn

    from verl_e2e.web import Door, PatientProtocol, Probes, create_app

    listeners = _listeners(settings)
    metrics = service.monitoring.metrics
    probes = Probes(
        service.stalled,
        service.readiness,
        metrics.text,
        listeners[1].getsockname()[1] if len(listeners) > 1 else None,
        settings.metrics_token,
    )
    door = Door(settings.webhook_secret, service.keep, service.worker.wake, service.clock.now, metrics.answered, probes)
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
        click.echo(f"listening on {_web(listeners[0])}/webhook")
        for listener in listeners[1:]:
            click.echo(f"metrics on {_web(listener)}/metrics")
        uvicorn.Server(config).run(sockets=listeners)
    finally:
        service.stop()
        for listener in listeners:
            listener.close()


def _web(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _listeners(settings: "Settings") -> list[socket.socket]:
    """The bound sockets, so that a port in use is reported before anything starts: webhooks, and metrics if apart."""
    listeners = [_listener(settings.host, settings.port, "set VERL_E2E_HOST and VERL_E2E_PORT to a free address")]
    if settings.metrics_address is not None:
        listeners.append(_listener(*settings.metrics_address, "set VERL_E2E_METRICS_ADDRESS to a free one"))
    return listeners


def _listener(host: str, port: int, fix: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        what = f"cannot listen on {host}:{port}: {error.strerror or error}"
        raise click.UsageError(f"{what}; {fix}") from None
