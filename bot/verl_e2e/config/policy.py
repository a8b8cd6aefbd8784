"""The repository's policy file: `.github/verl-e2e.yml`, read from the base commit, never from the pull request."""

from importlib.resources import files

from verl_e2e.config.validation import validate
from verl_e2e.config.yaml_text import load_yaml
from verl_e2e.core.plan.policy import Policy, PolicyFile
from verl_e2e.ports import ChangeSource

POLICY_PATH = ".github/verl-e2e.yml"
_PACKAGED = "policy/megatron-bridge.yml"


def load_policy(text: str | bytes, source: str, digest: str = "") -> Policy:
    """Read the text of a policy file; `source` names it in errors, `digest` is that of the text. Raises ConfigError."""
    file = validate(load_yaml(text, source), PolicyFile)
    return Policy(**dict(file), source=source, text_digest=digest)


def packaged_policy() -> Policy:
    """The policy for a repository without a policy file, written for Megatron-Bridge."""
    text = files("verl_e2e").joinpath(_PACKAGED).read_bytes()
    return load_policy(text, f"packaged default ({_PACKAGED})")


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
