"""Which variables of the runner a run inherits."""

import pytest

from runners.surroundings import inherited, is_secret


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("GITHUB_TOKEN", "x"), ("HF_TOKEN", "x"), ("WANDB_API_KEY", "x"), ("AWS_SESSION", "x"), ("MY_SECRET", "x")),
        *(("DB_PASSWORD", "x"), ("CI_JOB_JWT", "x"), ("ACTIONS_RUNTIME_URL", "x"), ("SSH_AUTH_SOCK", "x")),
        *(
            ("DATABASE_URL", "postgresql://me:pw@db/x"),
            ("INDEX", "https://t0ken@host/simple"),
            ("github_token", "x"),
            ("NPM_AUTH", "x"),
            ("TOKEN", "x"),
        ),
    ],
)
def test_what_opens_a_door_is_dropped(name: str, value: str) -> None:
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
