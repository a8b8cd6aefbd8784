"""The files to copy and the commands of the page on operating: they name what is there, and do what the page says."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import sqlalchemy as sa
import yaml

from tests.adapters.databases import fresh_database, server
from tests.core.pulls.entries import SMOKE, run
from tests.fakes.places import ROOT
from verl_e2e.adapters.store import SqlLedger, open_store
from verl_e2e.config.environment import variables
from verl_e2e.config.settings import Settings
from verl_e2e.core.pulls.ledger import Run
from verl_e2e.web.app import HEAD_S

__all__ = ["server"]

DEPLOY = ROOT / "deploy"
OPERATING = (ROOT / "docs" / "operating.md").read_text()
RUNS = tuple(run(SMOKE, attempt=attempt) for attempt in range(1, 21))


def block(name: str) -> str:
    return OPERATING.split(f"<!-- begin {name} -->\n```sh\n")[1].split("```")[0]


def test_every_setting_that_is_named_is_one() -> None:
    texts = [*(path.read_text() for path in DEPLOY.iterdir()), (ROOT / "Containerfile").read_text(), OPERATING]
    texts.append((ROOT / "docs" / "metrics.md").read_text())
    named = set(re.findall(r"\b(?:VERL_E2E|GITHUB_APP|GITHUB_WEBHOOK|DATABASE_URL)[A-Z_0-9]*", "\n".join(texts)))
    known = {*variables(Settings), "VERL_E2E_DEBUG"}
    assert {name.removesuffix("_FILE") for name in named} <= known


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.rehearsal"])
def test_an_image_copies_what_is_there_and_what_is_sent_to_its_build(name: str) -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / name).read_text(), re.M)
    sources = [source for line in copied for source in line.split()]
    sent = {line.removeprefix("!") for line in (ROOT / ".containerignore").read_text().splitlines()}
    assert "pyproject.toml" in sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert [source for source in sources if not {source, source.split("/")[0]} & sent] == []


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.rehearsal"])
def test_an_image_copies_what_the_wheel_takes_from_outside_its_packages(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    taken = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert ".github/workflows/verl-e2e.yml" in taken
    for path in taken:
        assert f"COPY {path} {path}\n" in (ROOT / name).read_text()


def test_the_compose_file_builds_what_is_there_and_mounts_what_init_writes() -> None:
    document = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    (service,) = document["services"].values()
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    known = {"image", "build", "init", "restart", "read_only", "tmpfs", "cap_drop", "security_opt", "ports"}
    assert set(service) == {*known, "env_file", "environment", "volumes"}
    assert set(service["environment"]) <= set(variables(Settings))
    (data, site), (secrets,) = service["volumes"], service["env_file"]
    assert data.split(":")[0] in document["volumes"]
    # The names that `init` gives its files: tests/e2e/test_init.py.
    assert [text.split("}/")[-1].split(":")[0] for text in (secrets, site)] == ["verl-e2e.env", "site.yml"]
    assert site.split(":")[-2] == service["environment"]["VERL_E2E_SITE_PROFILE"]
    assert service["environment"]["VERL_E2E_DATA"].startswith(data.split(":")[1])


def test_the_image_of_rehearsals_has_what_the_command_asks_for() -> None:
    text = (ROOT / "Containerfile.rehearsal").read_text()
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    (target, folder) = re.findall(r"make (\S+) REHEARSAL=(\S+)", text)[0]
    assert target in targets
    assert f'"{folder}/bin/python"' in text
    # The cage needs one, and reading the commits the other.
    assert "bubblewrap git" in text


def test_each_alert_has_its_metric_on_the_page_and_each_name_on_the_page_is_an_alert() -> None:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    alerts = {rule["alert"] for rule in group["rules"]}
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in group["rules"])
    assert set(re.findall(r"VerlE2E\w+", (ROOT / "docs" / "metrics.md").read_text())) == alerts - {"VerlE2EDown"}


def test_the_proxy_passes_on_webhooks_alone() -> None:
    text = (DEPLOY / "nginx.conf").read_text()
    assert re.findall(r"location (.+) \{", text) == ["/", "= /webhook"]
    # nginx gives up a silent connection before the service closes it under a delivery.
    (silent_s,) = re.findall(r"^    keepalive_timeout (\d+)s;$", text, re.M)
    assert int(silent_s) < HEAD_S
    # Without the path nginx passes on //webhook and /x/../webhook as they came.
    assert re.findall(r"proxy_pass (.+);", text) == ["http://verl_e2e/webhook"]
    assert "client_header_timeout 5s;" in text
    # nginx takes a process out by default. Restarted one after the other both would be, and it would answer 502 itself.
    servers = re.findall(r"^    server (.+);$", text, re.M)
    assert len(servers) == 2
    assert all(server.endswith(" max_fails=0") for server in servers)
    # A delivery is answered before GitHub gives up, also by the second process.
    seconds = {name: int(value) for name, value in re.findall(r"proxy_(\w+_timeout) (\d+)s;", text)}
    assert 2 * (seconds["connect_timeout"] + seconds["read_timeout"]) <= 10 > seconds["next_upstream_timeout"]


def test_the_unit_starts_whatever_else_is_down_and_never_gives_up() -> None:
    text = (DEPLOY / "verl-e2e.service").read_text()
    # `serve --check` asks the engine; deliveries must be taken while that is down.
    assert "ExecStartPre" not in text
    assert re.search(r"^\[Unit\][^\[]*^StartLimitIntervalSec=0$", text, re.M)
    assert "\nRestart=always\n" in text


def test_runs_on_the_host_of_the_service_outlive_it_and_have_what_they_need() -> None:
    unit, runs = ((DEPLOY / name).read_text() for name in ("verl-e2e.service", "local-runs.conf"))
    reset = dict(re.findall(r"^(\w+)=(.*)$", runs, re.M))
    assert (reset["KillMode"], reset["PrivateTmp"], reset["SystemCallFilter"]) == ("process", "no", "")
    # Shared memory of runs outlives a stop; and what systemd makes read-only holds /tmp where it is the host's.
    assert (reset["RemoveIPC"], reset["ReadWritePaths"]) == ("no", "/tmp /var/tmp")
    assert set(reset) - {"TasksMax", "ReadWritePaths"} <= set(re.findall(r"^(\w+)=", unit, re.M)), (
        "it changes what the unit says"
    )
    assert "deploy/local-runs.conf" in OPERATING


def kept(database: str) -> tuple[Run, ...]:
    store = open_store(database)
    try:
        return SqlLedger(store).runs("octo/bridge")
    finally:
        store.close()


@pytest.mark.sqlite
def test_the_backup_of_sqlite_is_whole_though_the_service_writes(tmp_path: Path) -> None:
    script = (
        block("backup-sqlite").replace("/var/lib/verl-e2e/", f"{tmp_path}/").replace("/var/backups/", f"{tmp_path}/b-")
    )
    store = open_store(f"sqlite:///{tmp_path / 'verl-e2e.sqlite3'}")
    ledger = SqlLedger(store)
    for item in RUNS[:10]:
        ledger.put_run(item)
    with store.write() as connection:
        connection.execute(sa.text("DELETE FROM runs"))
        done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)
    store.close()
    assert done.stdout == "ok\n"
    assert kept(f"sqlite:///{tmp_path / 'b-verl-e2e.sqlite3'}") == RUNS[:10]
    assert not (tmp_path / "b-verl-e2e.sqlite3").stat().st_mode & 0o077, "others of the host can read it"


def owned_database(server: str) -> str:
    """What the page's `createdb` makes, as a user without rights of its own connects to it."""
    (create,) = re.findall(r"^createdb .*$", OPERATING, re.MULTILINE)
    words = re.fullmatch(r"createdb( --owner=USER)? verl_e2e_restored", create)
    assert words is not None
    engine = sa.create_engine(sa.make_url(server).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE ROLE restorer LOGIN")
        connection.exec_driver_sql("CREATE DATABASE restored" + (" OWNER restorer" if words[1] else ""))
    engine.dispose()
    return sa.make_url(server).set(username="restorer", database="restored").render_as_string()


@pytest.mark.postgres
def test_the_backup_of_postgresql_is_restored_as_the_page_says(tmp_path: Path, server: str) -> None:
    script = block("backup-postgresql").replace("/var/backups/", f"{tmp_path}/")
    (restore,) = re.findall(r"^pg_restore .*$", OPERATING, re.MULTILINE)
    source, target = fresh_database(server), owned_database(server)
    store = open_store(source)
    ledger = SqlLedger(store)
    for item in RUNS:
        ledger.put_run(item)
    restore = restore.replace("postgresql://USER@HOST/verl_e2e_restored", target).replace(
        "/var/backups/", f"{tmp_path}/"
    )
    for command in (script, restore):
        subprocess.run(["sh", "-euc", command], env={**os.environ, "DATABASE_URL": source}, check=True)
    store.close()
    assert kept(target) == RUNS
    assert not (tmp_path / "verl-e2e.dump").stat().st_mode & 0o077, "others of the host can read it"
