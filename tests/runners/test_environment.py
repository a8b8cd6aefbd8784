"""Which variables of the runner a run inherits."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_e2e.core.text.redact import is_secret, is_secret_name, redactor
from verl_e2e_runner.folder.recorder import host_redactor
from verl_e2e_runner.process.cage import inherited

VALUE = "tuna-Sandwich!99"
SECRET_NAMES = (
    *("HF_TOKEN", "GITHUB_TOKEN", "TOKEN", "API_TOKENS", "github_token", "hf_token", "apiKey", "dbPassword"),
    *("DB_PASSWORD", "PGPASSWORD", "MYSQL_PWD_PASSWD", "KEY_PASSPHRASE", "PGPASSFILE", "DB_PASS", "smtp_pass", "PASS"),
    *("MY_SECRET", "SECRETS_JSON", "client_secret", "GCP_CREDENTIALS", "GOOGLE_APPLICATION_CREDENTIALS"),
    *("WANDB_API_KEY", "APIKEY", "SIGNING_KEY", "encryption_key", "SSH_KEY", "KEY", "AWS_ACCESS_KEY_ID"),
    *(
        "SIGNING_KEYS",
        "APP_PRIVATE_KEY_PEM",
        "SENTRY_DSN",
        "SLACK_WEBHOOK",
        "SLACK_WEBHOOK_URL",
        "SESSION_COOKIE",
        "cookie",
    ),
    *("BASIC_AUTH", "NPM_AUTH", "npm_config__auth", "AUTH", "GH_PAT", "gh_pat", "PAT", "CI_JOB_JWT", "AWS_SESSION"),
    *("AZURE_STORAGE_CONNECTION_STRING", "DOCKER_AUTH_CONFIG", "VAULT_ADDR"),
)
HARMLESS_NAMES = (
    *("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "MAX_NUM_BATCHED_TOKENS", "KEYBOARD", "EOS_TOKEN", "eos_token"),
    *("PPO_MAX_TOKEN_LEN", "max_tokens", "reward_fn_key", "prompt_key", "PROMPT_KEY", "IMAGE_KEY", "missing_keys"),
    *("MONKEY", "BYPASS", "forward_pass", "FORWARD_PASS", "COMPASS", "PATH", "PATTERN", "AUTHOR", "passed"),
    *("SECOND_PASS", "OAUTHLIB_RELAX", "compat", "KV_RETRIEVE_KEYS", "KEYS"),
)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_what_is_withheld_is_redacted(name: str) -> None:
    assert is_secret_name(name)
    assert inherited({name: VALUE}) == {}
    assert VALUE not in host_redactor({name: VALUE}, {}).redact_text(f"printed {VALUE} by hand")
    opaque = "k3J9-x82Lq-00aZ7-pQ"
    for text in (f"{name}={opaque}", f"export {name}={opaque} && x", f"{name}='{opaque}'"):
        assert opaque not in redactor().redact_text(text)
    assert opaque not in str(redactor().redact_document({name: opaque}))


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_what_is_harmless_is_neither_withheld_nor_redacted(name: str) -> None:
    assert not is_secret_name(name)
    assert inherited({name: VALUE}, wrapper_reads=()) == {name: VALUE}
    assert host_redactor({name: VALUE}, {}).redact_text(f"{name}={VALUE}") == f"{name}={VALUE}"
    assert redactor().redact_document({name: VALUE}) == {name: VALUE}


words = st.sampled_from(
    [
        *("DB", "EOS", "MAX", "API", "GH", "KEY", "TOKEN", "TOKENS", "PASS", "PAT", "AUTH", "SECRET", "COOKIE", "DSN"),
        *("URL", "ID", "NAME", "PROMPT", "HF", "SIGNING", "WEBHOOK"),
    ]
)


@given(st.lists(words, min_size=1, max_size=4), st.sampled_from((str.upper, str.lower, str.title)))
def test_of_any_name_both_say_the_same(parts: list[str], case: Callable[[str], str]) -> None:
    name = case("_".join(parts))
    if name.startswith(("GH_", "PG")):
        return
    assert (inherited({name: VALUE}) == {}) is (VALUE not in host_redactor({name: VALUE}, {}).redact_text(VALUE))


@pytest.mark.parametrize("name", ["GITHUB_SHA", "RUNNER_TEMP", "CI_COMMIT_SHA", "KUBERNETES_SERVICE_HOST", "SSH_TTY"])
def test_what_is_of_a_service_is_withheld_and_still_readable(name: str) -> None:
    assert inherited({name: VALUE}) == {}
    assert host_redactor({name: VALUE}, {}).redact_text(VALUE) == VALUE


def test_a_web_address_with_a_user_is_secret_whatever_its_name() -> None:
    base = {"INDEX": "https://me:t0ken-of-mine@host/simple"}
    assert inherited(base) == {}
    text = host_redactor(base, {}).redact_text("first https://me:t0ken-of-mine@host/simple then t0ken-of-mine alone")
    assert "t0ken-of-mine" not in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "postgresql://me:pw@db/x"),
        ("INDEX", "https://t0ken@host/simple"),
        ("github_token", "x"),
        ("TOKEN", "x"),
    ],
)
def test_a_secret_is_dropped(name: str, value: str) -> None:
    assert is_secret(name, value)
    assert inherited({name: value}) == {}


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "CUDA_VISIBLE_DEVICES", "NCCL_IB_HCA", "LD_LIBRARY_PATH", "TOKENIZERS_PARALLELISM"),
        *("PPO_MAX_TOKEN_LEN", "HF_HOME", "TRITON_CACHE_DIR", "UCX_TLS", "HTTPS_PROXY", "VLLM_USE_V1", "KEYBOARD"),
    ],
)
def test_what_the_stack_needs_stays(name: str) -> None:
    assert inherited({name: "http://proxy:3128"}) == {name: "http://proxy:3128"}


def test_what_the_wrapper_would_read_is_dropped_but_for_the_hosts_own() -> None:
    base = {"LORA_RANK": "8", "HOME": "/h", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert inherited(base, wrapper_reads=base) == {"HOME": "/h", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
