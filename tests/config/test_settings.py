"""Settings from the environment: what is accepted, and what each mistake reports."""

import json
import logging
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.fakes.places import ROOT
from verl_e2e.adapters.json_log import LogLines
from verl_e2e.config.environment import variables
from verl_e2e.config.settings import Settings, load_settings
from verl_e2e.config.validation import ConfigError
from verl_e2e.core.pulls.queue import Pool

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


def test_jobs_on_this_machine_need_neither_a_tool_of_elsewhere_nor_a_clone() -> None:
    settings = load_settings({**GOOD, "VERL_E2E_TOOL": "", "VERL_E2E_BACKEND": "local"})
    assert (settings.tool, settings.fetches, settings.fetch_token_file) == (("", ""), True, "")
    assert not load_settings(GOOD).fetches
    assert load_settings({**GOOD, "VERL_E2E_FETCH_TOKEN_FILE": "/etc/token"}).fetch_token_file == "/etc/token"


def test_slots_are_runs_or_gpus_by_the_size_of_jobs_and_apart_for_forks() -> None:
    assert load_settings(GOOD).slots == ()
    assert load_settings({**GOOD, "VERL_E2E_SLOTS": "1=4 2,4=16gpus fork:all=1"}).slots == (
        Pool("1", 4, frozenset({1})),
        Pool("2,4", 16, frozenset({2, 4}), counts_gpus=True),
        Pool("fork:all", 1, for_forks=True),
    )


def test_a_cluster_is_described_by_its_options_and_its_folder(tmp_path: Path) -> None:
    here = {"VERL_E2E_SLURM_FOLDER": str(tmp_path)}
    cluster = {
        "VERL_E2E_BACKEND": "slurm",
        "VERL_E2E_SLURM_HOST": "bot@login-1.example",
        "VERL_E2E_SLURM_OPTIONS": "--partition=gpu,big --exclusive --constraint=h100&nvlink",
        "VERL_E2E_SLURM_GPUS": "--gres=gpu:h100:N",
        "VERL_E2E_SLURM_COMMAND": "/opt/venv/bin/python -m verl_e2e",
        "VERL_E2E_SLURM_MOUNTS": "/models:/models:ro /clones:/clones",
    }
    settings = load_settings({**GOOD, "VERL_E2E_TOOL": "", **here, **cluster})
    assert (settings.slurm_folder, settings.fetches) == (tmp_path, True)
    assert settings.slurm_options == ("--partition=gpu,big", "--exclusive", "--constraint=h100&nvlink")
    assert settings.slurm_command == ("/opt/venv/bin/python", "-m", "verl_e2e")
    assert settings.slurm_mounts == ("/models:/models:ro", "/clones:/clones")
    assert (settings.slurm_host, settings.slurm_gpus) == ("bot@login-1.example", "--gres=gpu:h100:N")


def test_a_ray_cluster_is_described_by_its_dashboard_and_its_folder(tmp_path: Path) -> None:
    here = {"VERL_E2E_RAY_FOLDER": str(tmp_path)}
    (tmp_path / "headers").write_text("Authorization: Bearer s3cret\n\nX-Team: rl\n")
    cluster = {
        "VERL_E2E_BACKEND": "ray",
        "VERL_E2E_RAY_ADDRESS": "https://ray.example/team/",
        "VERL_E2E_RAY_HEADERS_FILE": str(tmp_path / "headers"),
        "VERL_E2E_RAY_VERIFY": str(tmp_path / "headers"),
        "VERL_E2E_RAY_RESOURCES": "h100=0.001 node:10.0.0.1=1",
        "VERL_E2E_RAY_COMMAND": "python -m verl_e2e",
    }
    settings = load_settings({**GOOD, "VERL_E2E_TOOL": "", **here, **cluster})
    assert (settings.ray_folder, settings.fetches) == (tmp_path, True)
    assert settings.ray_headers == {"Authorization": "Bearer s3cret", "X-Team": "rl"}
    assert "s3cret" not in repr(settings)
    assert settings.ray_resources == {"h100": 0.001, "node:10.0.0.1": 1.0}
    assert (settings.ray_command, settings.ray_verify) == (("python", "-m", "verl_e2e"), str(tmp_path / "headers"))
    assert load_settings(GOOD | {"VERL_E2E_RAY_VERIFY": "No"}).ray_verify is False


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
    ({"GITHUB_APP_CLIENT_ID": "Iv1 x"}, "GITHUB_APP_CLIENT_ID: 'Iv1 x' is not a client ID"),
    ({"GITHUB_APP_CLIENT_ID": "Iv1.x"}, "GITHUB_APP_CLIENT_SECRET: it goes with GITHUB_APP_CLIENT_ID; set both"),
    ({"GITHUB_APP_CLIENT_SECRET": "s" * 40}, "GITHUB_APP_CLIENT_SECRET: it goes with GITHUB_APP_CLIENT_ID; set both"),
    (
        {"GITHUB_APP_CLIENT_ID": "Iv1.x", "GITHUB_APP_CLIENT_SECRET": "s"},
        "GITHUB_APP_CLIENT_SECRET: it has 1 characters",
    ),
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
    ({"VERL_E2E_LOG_FORMAT": "jsonl"}, "VERL_E2E_LOG_FORMAT: 'jsonl' is not known"),
    ({"VERL_E2E_METRICS_ADDRESS": "9464"}, "VERL_E2E_METRICS_ADDRESS: '9464' is not an address to listen on; write"),
    ({"VERL_E2E_METRICS_ADDRESS": "::1:9464"}, "'::1:9464' is not an address to listen on"),
    ({"VERL_E2E_METRICS_ADDRESS": "localhost:94640"}, "94640 is not a port"),
    ({"VERL_E2E_PAGES": "private"}, "VERL_E2E_PAGES: 'private' is not known; known here: all, none, public"),
    ({"VERL_E2E_METRICS_TOKEN": "hunter2"}, "VERL_E2E_METRICS_TOKEN: it has 7 characters; use at least 16"),
    ({"VERL_E2E_HOST": "http://x/"}, "VERL_E2E_HOST: 'http://x/' is not an address to listen on"),
    ({"VERL_E2E_BACKEND": "github-action"}, "did you mean 'github-actions'?"),
    ({"VERL_E2E_WORKFLOW": ".github/workflows/verl-e2e.yml"}, "VERL_E2E_WORKFLOW"),
    ({"VERL_E2E_REPOSITORIES": "NVIDIA-NeMo"}, "VERL_E2E_REPOSITORIES: 'NVIDIA-NeMo' is not a repository"),
    ({"VERL_E2E_TOOL": None}, "VERL_E2E_TOOL: it is not set; it is required for github-actions"),
    ({"VERL_E2E_TOOL": "owner/verl-e2e@main"}, "VERL_E2E_TOOL: 'owner/verl-e2e@main' is not a commit"),
    ({"VERL_E2E_RUNNERS": "1=gpu 8:gpu"}, "VERL_E2E_RUNNERS: '8:gpu' does not have the form GPUS=LABEL,LABEL"),
    ({"VERL_E2E_FORK_RUNNERS": "forks"}, "VERL_E2E_FORK_RUNNERS: 'forks' does not have the form GPUS=LABEL,LABEL"),
    ({"VERL_E2E_SLOTS": "1:4"}, "VERL_E2E_SLOTS: '1:4' does not have the form GPUS=RUNS"),
    ({"VERL_E2E_SLOTS": "1=4 1,2=4"}, "VERL_E2E_SLOTS: '1,2=4' names a number of GPUs that a word before it names"),
    ({"VERL_E2E_SLOTS": "fork:all=4 fork:2=4"}, "VERL_E2E_SLOTS: 'fork:2=4' names a number of GPUs"),
    ({"VERL_E2E_SLOTS": "8=4gpus"}, "VERL_E2E_SLOTS: '8=4gpus' is less than one job of 8 GPUs"),
    ({"VERL_E2E_ATTESTATION": "requird"}, "VERL_E2E_ATTESTATION: 'requird' is not known; did you mean 'required'?"),
    ({"VERL_E2E_VERL": "https://x:hunter2@host/o/n"}, "VERL_E2E_VERL: it contains a user name or a password"),
    ({"VERL_E2E_VERL": "/no/such/verl"}, "VERL_E2E_VERL: '/no/such/verl' is not a folder"),
    ({"VERL_E2E_FETCH_TOKEN_FILE": "token"}, "VERL_E2E_FETCH_TOKEN_FILE: 'token' is not an absolute path"),
    ({"VERL_E2E_BACKEND": "slurm"}, "VERL_E2E_SLURM_FOLDER: it is not set; it is required for slurm"),
    ({"VERL_E2E_LOCAL_SLOTS": "0"}, "VERL_E2E_LOCAL_SLOTS: '0' is not a whole number from 1 to 64"),
    ({"VERL_E2E_LOCAL_GPUS": "all"}, "VERL_E2E_LOCAL_GPUS: 'all' is not a whole number from 0 to 64"),
    ({"VERL_E2E_SLURM_FOLDER": "shared/orders"}, "VERL_E2E_SLURM_FOLDER: 'shared/orders' is not an absolute path"),
    ({"VERL_E2E_SLURM_HOST": "-oProxyCommand=sh"}, "VERL_E2E_SLURM_HOST: '-oProxyCommand=sh' is not a host"),
    ({"VERL_E2E_SLURM_HOST": "login; id"}, "VERL_E2E_SLURM_HOST: 'login; id' is not a host"),
    ({"VERL_E2E_SLURM_GPUS": "--gres=gpu:8"}, "VERL_E2E_SLURM_GPUS: '--gres=gpu:8' does not ask for N GPUs"),
    ({"VERL_E2E_SLURM_OPTIONS": "--wrap=id"}, "VERL_E2E_SLURM_OPTIONS: '--wrap=id' is not an option that may be set"),
    ({"VERL_E2E_SLURM_OPTIONS": "--requeue"}, "VERL_E2E_SLURM_OPTIONS: '--requeue' is not an option that may be set"),
    ({"VERL_E2E_SLURM_COMMAND": "'verl-e2e"}, 'VERL_E2E_SLURM_COMMAND: "\'verl-e2e": No closing quotation'),
    ({"VERL_E2E_SLURM_SETUP": "setup.sh"}, "VERL_E2E_SLURM_SETUP: 'setup.sh' is not an absolute path"),
    ({"VERL_E2E_SLURM_CONTAINER": "pixys"}, "VERL_E2E_SLURM_CONTAINER: 'pixys' is not known; did you mean 'pyxis'?"),
    ({"VERL_E2E_SLURM_MOUNTS": "/models"}, "VERL_E2E_SLURM_MOUNTS: '/models' is not a mount; write /SOURCE:/TARGET"),
    (
        {"VERL_E2E_BACKEND": "ray", "VERL_E2E_RAY_FOLDER": "/tmp"},
        "VERL_E2E_RAY_ADDRESS: it is not set; it is required for ray",
    ),
    ({"VERL_E2E_RAY_ADDRESS": "ray://head:10001"}, "VERL_E2E_RAY_ADDRESS: it is not an address of the form https://"),
    ({"VERL_E2E_RAY_FOLDER": "shared/orders"}, "VERL_E2E_RAY_FOLDER: 'shared/orders' is not an absolute path"),
    ({"VERL_E2E_RAY_HEADERS": "hunter2"}, "VERL_E2E_RAY_HEADERS: line 1 is not a header; write NAME: VALUE"),
    ({"VERL_E2E_RAY_VERIFY": "maybe"}, "VERL_E2E_RAY_VERIFY: it is not yes, no or the path of a file"),
    ({"VERL_E2E_RAY_RESOURCES": "GPU=8"}, "VERL_E2E_RAY_RESOURCES: 'GPU=8' is not an amount of one of the cluster's"),
    ({"VERL_E2E_RAY_COMMAND": " ' "}, "VERL_E2E_RAY_COMMAND"),
    ({"VERL_E2E_RAY_SETUP": "setup.sh"}, "VERL_E2E_RAY_SETUP: 'setup.sh' is not an absolute path"),
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
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in sorted(variables(Settings).items(), key=lambda item: not item[1].is_required()):
        assert isinstance(field.json_schema_extra, dict)
        rows.append(f"| `{name}` | {field.json_schema_extra['shown']} | {field.description} |")
    assert "\n".join(rows) + "\n" in (ROOT / "docs" / "settings.md").read_text()


def test_log_lines_are_json_and_hold_no_secret() -> None:
    record = logging.LogRecord("bot", logging.INFO, "", 0, "sent %s with %s", ("swordfish", "ghs_" + "a" * 36), None)
    record.delivery, record.seconds = "72d3", 0.25
    try:
        raise ValueError("key \nswordfish\n")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    line = LogLines("swordfish").format(record)
    document = json.loads(line)
    assert "\n" not in line
    assert "swordfish" not in line
    assert "a" * 36 not in line
    assert (document["level"], document["delivery"], document["seconds"]) == ("info", "72d3", 0.25)
    assert document["traceback"].startswith("Traceback")
