"""The verbs of the service and of workflows: serve, doctor, action."""

import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import click

from verl_e2e.cli.command import JSON_OPTION, indented_json

if TYPE_CHECKING:
    from verl_e2e.config.settings import Settings
    from verl_e2e.core.pulls.checkup import SetupFinding
    from verl_e2e.web import PageSources
    from verl_e2e.wiring.app import Service


_PR_SET_DUMPABLE = 4
_OTHERS = 0o077


def be_private() -> None:
    """Create files for this user only from now on, and let no other process of the user read our memory.

    Only root can then read `/proc/PID/environ` (which keeps the environment at the start) and `/proc/PID/mem`, or
    attach a debugger. Programs that this process starts are not affected.
    """
    os.umask(_OTHERS)
    # Where the C library has no such call, as on macOS, the files alone are private.
    call = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if call is not None and call(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE) was refused")


def forget(names: Iterable[str]) -> None:
    """Remove variables from the environment, so that programs started by this process do not get them."""
    for name in names:
        os.environ.pop(name, None)


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

    Example: verl-e2e serve --check
    """
    from verl_e2e.adapters.clock import SystemClock
    from verl_e2e.adapters.json_log import log_to_stderr
    from verl_e2e.config.settings import SECRETS, load_settings
    from verl_e2e.wiring.app import github_work, open_service
    from verl_e2e.wiring.engines import check_installation, check_sources

    be_private()
    settings = load_settings(os.environ)
    forget(SECRETS)
    secret_texts = (settings.webhook_secret, settings.private_key, settings.database_url, settings.metrics_token)
    tokens = (value.split()[-1] for value in settings.ray_headers.values())
    log_to_stderr(settings.log_level, *secret_texts, settings.client_secret, *tokens, form=settings.log_format)
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

    from verl_e2e.web import Door, PatientProtocol, Probes, create_app, page_routes

    # Bound before anything starts, so that a port in use is reported: for webhooks, and for metrics if apart.
    listeners = [_listener(settings.host, settings.port, "set VERL_E2E_HOST and VERL_E2E_PORT to a free address")]
    if settings.metrics_address is not None:
        listeners.append(_listener(*settings.metrics_address, "set VERL_E2E_METRICS_ADDRESS to a free one"))
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
        create_app(door, () if settings.pages == "none" else page_routes(page_sources(settings, service))),
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


def page_sources(settings: "Settings", service: "Service") -> "PageSources":
    """What the pages of a service are made from."""
    from verl_e2e.adapters.github.visitors import GithubVisitors
    from verl_e2e.adapters.store import SqlLedger, SqlRunLists
    from verl_e2e.core.pulls.forge import web_of
    from verl_e2e.web import PageLogin, PageSources

    visitors = GithubVisitors(settings.api_url, settings.client_id, settings.client_secret)
    login = PageLogin(
        settings.client_id,
        settings.client_secret,
        web_of(settings.api_url),
        settings.public_url,
        visitors.token,
        partial(service.monitoring.views.reads, visitors),
        service.clock.now,
    )
    shown = service.monitoring.views.is_public if settings.pages == "public" else lambda _: True
    return PageSources(
        SqlRunLists(service.store),
        SqlLedger(service.store).snapshot,
        settings.slots,
        shown,
        service.monitoring.views.policy,
        web_of(settings.api_url),
        service.clock.now,
        service.monitoring.views.glance,
        login if settings.client_id and settings.pages == "public" else None,
    )


def _web(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _listener(host: str, port: int, fix: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        what = f"cannot listen on {host}:{port}: {error.strerror or error}"
        raise click.UsageError(f"{what}; {fix}") from None


EXIT_FINDINGS = 1
_MARKS = {"ok": "ok", "note": "note", "error": "FIX"}


@click.command()
@click.argument("repositories", nargs=-1, metavar="[OWNER/REPO]...")
@click.option(
    "--branch", default="", metavar="NAME", help="The branch to check; default: the repository's default branch."
)
@click.option(
    "--redeliver", is_flag=True, help="Ask GitHub to send the webhooks again that this service did not accept."
)
@JSON_OPTION
def doctor(repositories: tuple[str, ...], branch: str, *, redeliver: bool, as_json: bool) -> int:
    """Check the setup of the App, its repositories and this service. Each problem is shown with its fix.

    It reads the settings of serve. Without OWNER/REPO it checks the repositories of VERL_E2E_REPOSITORIES. The exit
    code is 1 when you must fix something.

    Example: verl-e2e doctor NVIDIA-NeMo/Megatron-Bridge --redeliver
    """
    from verl_e2e.app.doctor import NETWORK
    from verl_e2e.config.settings import SECRETS, load_settings
    from verl_e2e.core.pulls.checkup import Health
    from verl_e2e.wiring.engines import check_up

    be_private()
    settings, environ = load_settings(os.environ), dict(os.environ)
    forget(SECRETS)
    chosen = repositories or settings.repositories
    if not chosen:
        raise click.UsageError("name a repository, OWNER/REPO, or set VERL_E2E_REPOSITORIES")
    now = datetime.now(UTC)
    found: dict[str, tuple[SetupFinding, ...]] = {}
    for name in chosen:
        found[name] = check_up(settings, name, branch, now, redeliver=redeliver, environ=environ)
        if any(finding.about == NETWORK for finding in found[name]):
            # Each other repository would wait for the same answer.
            break
    if as_json:
        click.echo(
            indented_json(
                {"schema": 2, "repositories": {name: [asdict(item) for item in each] for name, each in found.items()}}
            )
        )
    else:
        blocks = []
        for name, findings in found.items():
            lines = [name]
            for finding in findings:
                lines.append(f"  {_MARKS[finding.state]:4}  {finding.about}: {finding.sentence}")
                if finding.fix:
                    lines.append(f"        -> {finding.fix}")
            blocks.append("\n".join(lines))
        click.echo("\n\n".join(blocks))
    return EXIT_FINDINGS if any(item.state is Health.ERROR for findings in found.values() for item in findings) else 0


_STEPS = ("event", "sweep", "order", "digest", "check-digest")


@click.command()
@click.argument("command", type=click.Choice(_STEPS))
def action(command: str) -> int:
    """Run one step of a workflow. action.yml calls this; all settings are environment variables.

    `event` handles the event that started the workflow, `sweep` updates pull requests with running jobs, `order`
    prepares a job on a GPU host, `digest` prints the digest of the run folder, `check-digest` compares it elsewhere.

    Example: verl-e2e action event
    """
    from verl_e2e.action import act

    be_private()
    return act(command, os.environ, lambda sentence: click.echo(sentence, err=True))
