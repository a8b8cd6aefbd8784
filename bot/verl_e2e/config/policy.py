"""What a repository keeps for us below `.github`: the policy file, read from the base commit, never from the pull
request; and the workflow that runs a job.
"""

from functools import cache
from importlib.resources import files
from pathlib import Path

from verl_e2e.config.validation import YamlDocument, load_yaml, validate
from verl_e2e.core.plan.policy import Policy, PolicyFile
from verl_e2e.ports import ChangeSource

POLICY_PATH = ".github/verl-e2e.yml"
_PACKAGED = "policy/megatron-bridge.yml"


def load_policy(text: str | bytes, source: str, digest: str = "") -> Policy:
    """Read the text of a policy file; `source` names it in errors, `digest` is that of the text. Raises ConfigError."""
    return _policy(load_yaml(text, source), digest)


def _policy(document: YamlDocument, digest: str = "") -> Policy:
    return Policy(**dict(validate(document, PolicyFile)), source=document.source, text_digest=digest)


@cache
def packaged_policy() -> Policy:
    """The policy for a repository without a policy file, written for Megatron-Bridge."""
    text = files("verl_e2e").joinpath(_PACKAGED).read_bytes()
    return _policy(load_yaml(text, f"packaged default ({_PACKAGED})", packaged=True))


def policy_schema() -> dict[str, object]:
    """The JSON schema of the policy file, for editors and checkers."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{POLICY_PATH}: which changes need which coverage",
        **PolicyFile.model_json_schema(),
    }


def policy_at(repository: ChangeSource, commit: str) -> Policy:
    """The policy at a commit, or the packaged one when that commit has none. Give the base commit, never the head."""
    text = repository.read_blob(commit, POLICY_PATH)
    return packaged_policy() if text is None else load_policy(text, f"{commit[:12]}:{POLICY_PATH}")


def workflow_text() -> bytes:
    """The workflow that runs a job, of this version: packaged in a wheel, a file of the repository in a checkout."""
    packaged = files("verl_e2e").joinpath("workflows/verl-e2e.yml")
    if packaged.is_file():
        return packaged.read_bytes()
    return (Path(__file__).resolve().parents[3] / ".github/workflows/verl-e2e.yml").read_bytes()
