"""Which of the runner's own environment variables a run may see.

The code under test is a pull request of anyone, so no secret is handed to it: what `verl_e2e.core.text.secret_names`
knows, which is what the redactor hides. The lists name what is dropped and keep the rest: the stack reads hundreds of
variables of CUDA, NCCL, UCX, Triton, vLLM and the site's fabric, and a list of the kept ones would silently weaken a
site that sets one more.
"""

from collections.abc import Iterable, Mapping

from verl_e2e.core.text.secret_names import is_secret

# What belongs to the machine's services and to this service: none of a run's business, and no secret by itself.
_OF_A_SERVICE = (
    "GITHUB_", "GH_", "GITLAB_", "ACTIONS_", "RUNNER_", "CI_", "SSH_", "GPG_", "DOCKER_", "KUBERNETES_", "PG", "DBOS_",
    "VERL_E2E_",
)  # fmt: skip

# These would change how bash, Python or Ray start, whatever the job says.
_INTERFERING = frozenset(
    {
        *("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "CDPATH", "GLOBIGNORE", "POSIXLY_CORRECT", "IFS"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONSAFEPATH", "PYTHONINSPECT", "PYTHONPYCACHEPREFIX"),
        *("RAY_ADDRESS", "RAY_TMPDIR", "RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_JOB_CONFIG_JSON_ENV_VAR"),
        *("PYTEST_ADDOPTS", "OLDPWD", "PWD", "SHLVL", "_"),
    }
)
_INTERFERING_PREFIXES = ("BASH_FUNC_", "GIT_")

# A wrapper may read these too; they belong to the host and stay.
_OF_THE_HOST = frozenset(
    {"HOME", "PATH", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "TZ", "HOSTNAME", "LD_LIBRARY_PATH", "LD_PRELOAD"}
)
_PREFIXES_OF_THE_HOST = ("CUDA_", "NVIDIA_", "NCCL_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "LC_", "UCX_", "XDG_")


def inherited(base: Mapping[str, str], *, wrapper_reads: Iterable[str] = ()) -> dict[str, str]:
    """The part of `base` that a run inherits.

    Dropped are secrets, what belongs to the machine's services, what would change how bash, Python or Ray start, and
    the variables that the wrapper reads (a stray COMMON_TP in the runner's shell must not alter a job), but for those
    of the host.
    """
    shadowed = {
        name for name in wrapper_reads if name not in _OF_THE_HOST and not name.startswith(_PREFIXES_OF_THE_HOST)
    }
    return {
        name: value
        for name, value in base.items()
        if name not in _INTERFERING
        and name not in shadowed
        and not name.startswith((*_INTERFERING_PREFIXES, *_OF_A_SERVICE))
        and not is_secret(name, value)
    }
