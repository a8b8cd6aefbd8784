"""Settings from the environment: what is accepted, and what each mistake reports."""

import json
import logging
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.fakes.places import ROOT
from verl_e2e.adapters.json_log import JsonLines
from verl_e2e.config.environment import settings_table, variables
from verl_e2e.config.problems import ConfigError
from verl_e2e.config.settings import Settings, load_settings

KEY = (
    generate_private_key(65537, 2048)
    .private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    .decode()
    .strip()
)
GOOD = {
    "GITHUB_APP_ID": "12345",
    "GITHUB_APP_PRIVATE_KEY": KEY,
    "GITHUB_WEBHOOK_SECRET": "hunter2hunter2hunter2",
    "VERL_E2E_TOOL": "owner/verl-e2e@" + "a" * 40,
}


def problem(**changed: str | None) -> str:
    environ = {name: value for name, value in (GOOD | changed).items() if value is not None}
    with pytest.raises(ConfigError) as refused:
        load_settings(environ)
    return str(refused.value)


def test_few_variables_are_enough() -> None:
    settings = load_settings(GOOD)
    assert settings.app_id == 12345
    assert settings.api_url == "https://api.github.com"
    assert settings.database_url == f"sqlite:///{Path('verl-e2e-data').absolute() / 'verl-e2e.sqlite3'}"
    assert (settings.host, settings.port, settings.backend) == ("127.0.0.1", 8080, "github-actions")


def test_jobs_on_this_machine_need_no_tool_of_elsewhere_and_clones_here(tmp_path: Path) -> None:
    here = {"VERL_E2E_BRIDGE": str(tmp_path), "VERL_E2E_VERL": str(tmp_path), "VERL_E2E_BACKEND": "local"}
    settings = load_settings({**GOOD, "VERL_E2E_TOOL": "", **here})
    assert (settings.tool, settings.bridge) == (("", ""), str(tmp_path))


def test_runners_are_named_by_their_gpus() -> None:
    settings = load_settings(GOOD | {"VERL_E2E_RUNNERS": "1=self-hosted,a10 8=big"})
    assert settings.runners == {1: ("self-hosted", "a10"), 8: ("big",)}


def test_the_key_may_lie_in_a_file_or_on_one_line(tmp_path: Path) -> None:
    file = tmp_path / "app.pem"
    file.write_text(KEY + "\n")
    from_file = {name: value for name, value in GOOD.items() if name != "GITHUB_APP_PRIVATE_KEY"}
    from_file["GITHUB_APP_PRIVATE_KEY_FILE"] = str(file)
    one_line = GOOD | {"GITHUB_APP_PRIVATE_KEY": KEY.replace("\n", "\\n")}
    keys = {load_settings(environ).private_key for environ in (GOOD, from_file, one_line)}
    assert keys == {KEY + "\n"}


def test_settings_show_no_secret() -> None:
    settings = load_settings(GOOD | {"DATABASE_URL": "postgresql://bot:swordfish@db/bot"})
    for secret in ("hunter2", "swordfish", "PRIVATE KEY"):
        assert secret not in repr(settings)


MISTAKES = (
    ({"GITHUB_APP_ID": None}, "GITHUB_APP_ID: it is not set; it is required"),
    ({"GITHUB_APP_ID": " "}, "GITHUB_APP_ID: it is empty; it is required"),
    ({"GITHUB_APP_ID": "Iv1.8a61f9b3a7aba766"}, "GITHUB_APP_ID: 'Iv1.8a61f9b3a7aba766' is not a whole number"),
    (
        {"GITHUB_APP_PRIVATE_KEY": None},
        "GITHUB_APP_PRIVATE_KEY: it is not set; it is required, here or in a file",
    ),
    ({"GITHUB_APP_PRIVATE_KEY_FILE": "app.pem"}, "GITHUB_APP_PRIVATE_KEY_FILE is set too; set only one of the two"),
    (
        {"GITHUB_APP_PRIVATE_KEY": None, "GITHUB_APP_PRIVATE_KEY_FILE": "/no/such.pem"},
        "GITHUB_APP_PRIVATE_KEY_FILE /no/such.pem: No such file",
    ),
    ({"GITHUB_APP_PRIVATE_KEY": "hunter2"}, "GITHUB_APP_PRIVATE_KEY: it is not PEM text"),
    ({"GITHUB_APP_PRIVATE_KEY": KEY[:200]}, "or damaged; give the whole private key"),
    ({"GITHUB_APP_PRIVATE_KEY": KEY.replace("RSA PRIVATE", "PUBLIC")}, "public key"),
    ({"GITHUB_APP_PRIVATE_KEY": KEY.replace("A", "B")}, "or damaged"),
    ({"GITHUB_WEBHOOK_SECRET": None}, "GITHUB_WEBHOOK_SECRET: it is not set"),
    ({"GITHUB_WEBHOOK_SECRET": "hunter2"}, "GITHUB_WEBHOOK_SECRET: it has 7 characters; use at least 16"),
    ({"GITHUB_WEBHOOK_SECRET_FILE": "x"}, "GITHUB_WEBHOOK_SECRET: GITHUB_WEBHOOK_SECRET_FILE is set too; set only one"),
    ({"DATABASE_URL_FILE": "/no/such"}, "DATABASE_URL: DATABASE_URL_FILE /no/such: No such file or directory; name"),
    ({"GITHUB_API_URL": "api.github.com"}, "GITHUB_API_URL: it is not an address"),
    ({"GITHUB_API_URL": "http://ghe.example/api/v3"}, "tokens unencrypted; use https"),
    ({"GITHUB_API_URL": "https://x:hunter2@ghe.example"}, "it contains a user name or a password"),
    ({"GITHUB_API_URL": "https://ghe.example:port"}, "check the host and the port"),
    ({"DATABASE_URL": "mysql://bot:hunter2@db/bot"}, "DATABASE_URL: this kind of database is not supported"),
    ({"DATABASE_URL": "sqlite://"}, "a database in memory loses"),
    ({"VERL_E2E_PUBLIC_URL": "bot.example/webhook?x=1"}, "VERL_E2E_PUBLIC_URL: it is not an address"),
    ({"VERL_E2E_PORT": "80800"}, "VERL_E2E_PORT: '80800' is not a whole number from 0 to 65535"),
    ({"VERL_E2E_HOST": "http://x/"}, "VERL_E2E_HOST: 'http://x/' is not an address to listen on"),
    ({"VERL_E2E_BACKEND": "github-action"}, "did you mean 'github-actions'?"),
    ({"VERL_E2E_WORKFLOW": ".github/workflows/verl-e2e.yml"}, "VERL_E2E_WORKFLOW"),
    ({"VERL_E2E_REPOSITORIES": "NVIDIA-NeMo"}, "VERL_E2E_REPOSITORIES: 'NVIDIA-NeMo' is not a repository"),
    ({"VERL_E2E_TOOL": None}, "VERL_E2E_TOOL: it is not set; it is required for github-actions"),
    ({"VERL_E2E_TOOL": "owner/verl-e2e@main"}, "VERL_E2E_TOOL: 'owner/verl-e2e@main' is not a commit"),
    ({"VERL_E2E_RUNNERS": "1=gpu 8:gpu"}, "VERL_E2E_RUNNERS: '8:gpu' does not have the form GPUS=LABEL,LABEL"),
    ({"VERL_E2E_FORK_RUNNERS": "forks"}, "VERL_E2E_FORK_RUNNERS: 'forks' does not have the form GPUS=LABEL,LABEL"),
    ({"VERL_E2E_QUEUE_MINUTES": "120"}, "gate.queue_deadline_s"),
    ({"VERL_E2E_ATTESTATION": "requird"}, "VERL_E2E_ATTESTATION: 'requird' is not known; did you mean 'required'?"),
    ({"VERL_E2E_VERL": "https://x:hunter2@host/o/n"}, "VERL_E2E_VERL: it contains a user name or a password"),
    ({"VERL_E2E_VERL": "/no/such/verl"}, "VERL_E2E_VERL: '/no/such/verl' is not a folder"),
    ({"VERL_E2E_BRIDGE": "/no/such/bridge"}, "VERL_E2E_BRIDGE: '/no/such/bridge' is not a folder"),
    ({"VERL_E2E_BACKEND": "local", "VERL_E2E_VERL": "/tmp"}, "VERL_E2E_BRIDGE: it names no folder; local needs"),
    ({"VERL_E2E_BACKEND": "local", "VERL_E2E_BRIDGE": "/tmp"}, "VERL_E2E_VERL: it names no folder; local needs"),
    ({"VERL_E2E_SITE_VALUES": "kit"}, "VERL_E2E_SITE_VALUES: 'kit' does not have the form name=value"),
    ({"VERL_E2E_WORKERS": "0"}, "VERL_E2E_WORKERS"),
    ({"VERL_E2E_TICK_S": "1m"}, "VERL_E2E_TICK_S"),
    ({"VERL_E2E_LIST_LAG_S": "0"}, "VERL_E2E_LIST_LAG_S"),
    ({"VERL_E2E_KEEP_DAYS": "3"}, "VERL_E2E_KEEP_DAYS"),
    ({"VERL_E2E_LOG_LEVEL": "loud"}, "VERL_E2E_LOG_LEVEL: 'loud' is not known"),
    ({"VERL_E2E_PROT": "80"}, "VERL_E2E_PROT: there is no such variable; did you mean 'VERL_E2E_PORT'?"),
    ({"GITHUB_WEBHOOK_SECRETS": "x"}, "did you mean 'GITHUB_WEBHOOK_SECRET'?"),
)


@pytest.mark.parametrize(("changed", "message"), MISTAKES)
def test_a_mistake_is_one_line_that_names_the_variable_and_the_fix(
    changed: dict[str, str | None], message: str
) -> None:
    text = problem(**changed)
    assert message in text
    assert text.count("\n") == 0
    assert text.startswith("environment: ")
    assert "; " in text
    assert "hunter2" not in text
    assert KEY[100:140] not in text


def test_every_mistake_is_told_at_once() -> None:
    assert problem(GITHUB_APP_ID="x", VERL_E2E_PORT="x").count("\n") == 1


def test_every_variable_has_a_mistake_in_the_table_above_or_takes_any_text() -> None:
    tried = {name for changed, _ in MISTAKES for name in changed}
    free = {"VERL_E2E_DATA", "VERL_E2E_IMAGE", "VERL_E2E_SITE_PROFILE", "VERL_E2E_WORKFLOW_REF"}
    free |= {"VERL_E2E_TRUSTED_ROOT"}
    assert {*variables(Settings)} <= tried | free


def test_what_belongs_to_others_is_left_alone() -> None:
    others = load_settings(
        GOOD
        | {
            "VERL_E2E_DEBUG": "1",
            "GITHUB_TOKEN": "x",
            "VERL_E2E_RUN": "x",
            "VERL_E2E_RECORDER_KEY": "k",
            "VERL_E2E_RECORD": "off",
            "VERL_E2E_EXECUTED": "/x",
            "PATH": "/bin",
        }
    )
    assert others == load_settings(GOOD)


def test_the_documented_table_is_the_one_in_the_code() -> None:
    assert settings_table(Settings) in (ROOT / "docs" / "settings.md").read_text()


def test_log_lines_are_json_and_hold_no_secret() -> None:
    record = logging.LogRecord("bot", logging.INFO, "", 0, "sent %s with %s", ("swordfish", "ghs_" + "a" * 36), None)
    record.delivery, record.seconds = "72d3", 0.25
    try:
        raise ValueError("key \nswordfish\n")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    line = JsonLines("swordfish").format(record)
    document = json.loads(line)
    assert "\n" not in line
    assert "swordfish" not in line
    assert "a" * 36 not in line
    assert (document["level"], document["delivery"], document["seconds"]) == ("info", "72d3", 0.25)
    assert document["traceback"].startswith("Traceback")
