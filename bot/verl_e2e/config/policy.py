"""What a repository keeps for us below `.github`: the policy file, read from the base commit, never from the pull
request; and the workflow that runs a job.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from pydantic_core import to_jsonable_python

from verl_e2e.config.validation import ConfigError, Problem, YamlDocument, load_yaml, validate
from verl_e2e.core.plan.policy import EXTENDED, Policy, PolicyFile, PolicyValue
from verl_e2e.ports import ChangeSource

POLICY_PATH = ".github/verl-e2e.yml"
_PACKAGED = "policy/megatron-bridge.yml"
_ROOT = Path(__file__).resolve().parents[3]


def load_policy(text: str | bytes, source: str, digest: str = "") -> Policy:
    """Read the text of a policy file; `source` names it in errors, `digest` is that of the text. Raises ConfigError."""
    return _policy(load_yaml(text, source), digest)


def _policy(document: YamlDocument, digest: str = "") -> Policy:
    own = document.value
    extends = isinstance(own, Mapping) and own.get("extends") == EXTENDED
    if extends:
        document = replace(document, value={**_packaged().value, **own})
    try:
        read = validate(document, PolicyFile)
    except ConfigError as error:
        if not extends:
            raise
        raise ConfigError(_of_packaged(problem, own) for problem in error.problems) from None
    return Policy(**dict(read), source=document.source, text_digest=digest)


def _of_packaged(problem: Problem, own: Mapping[str, object]) -> Problem:
    """A mistake in a key that an extending file does not have: what it has no longer fits the packaged policy."""
    key = problem.key.partition(".")[0]
    if not key or key in own:
        return problem
    what = f"{problem.what}, and `{key}` is the packaged policy's"
    return replace(problem, what=what, fix=problem.fix or f"write `{key}` into this file too")


@cache
def _packaged() -> YamlDocument:
    text = files("verl_e2e").joinpath(_PACKAGED).read_bytes()
    return load_yaml(text, f"packaged default ({_PACKAGED})", packaged=True)


@cache
def packaged_policy() -> Policy:
    """The policy for a repository without a policy file, written for Megatron-Bridge."""
    return _policy(_packaged())


def policy_schema() -> dict[str, object]:
    """The JSON schema of the policy file, for editors and checkers."""
    schema = PolicyFile.model_json_schema()
    extending = {"required": ["schema", "extends"], "properties": {"extends": {"const": EXTENDED}}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{POLICY_PATH}: which changes need which coverage",
        **schema,
        "required": ["schema"],
        "anyOf": [{"required": schema["required"]}, extending],
    }


def policy_at(repository: ChangeSource, commit: str) -> Policy:
    """The policy at a commit, or the packaged one when that commit has none. Give the base commit, never the head."""
    text = repository.read_blob(commit, POLICY_PATH)
    return packaged_policy() if text is None else load_policy(text, f"{commit[:12]}:{POLICY_PATH}")


def policy_values(text: bytes | None, source: str) -> tuple[PolicyValue, ...]:
    """Every key of the policy that a file gives, or of the packaged one where there is none. Raises ConfigError."""
    policy = packaged_policy() if text is None else load_policy(text, source)
    packaged = _packaged().value if text is None or policy.extends else {}
    given = {} if text is None else load_yaml(text, source).value
    fields = {field.alias or name: field for name, field in PolicyFile.model_fields.items()}
    # One that is required is in the file or in the packaged policy.
    defaults = {
        key: field.get_default(call_default_factory=True) for key, field in fields.items() if not field.is_required()
    }
    places = ((source, given), ("packaged policy", packaged), ("default of the key", defaults))
    found = (
        next((key, origin, values[key]) for origin, values in places if isinstance(values, Mapping) and key in values)
        for key in fields
    )
    return tuple(
        PolicyValue(key, json.dumps(to_jsonable_python(value, by_alias=True), indent=2, ensure_ascii=False), origin)
        for key, origin, value in found
    )


def shipped(packaged: str, in_checkout: str) -> bytes:
    """A file of this version: packaged under one name in a wheel, a file of the repository in a checkout."""
    found = files("verl_e2e").joinpath(packaged)
    return found.read_bytes() if found.is_file() else (_ROOT / in_checkout).read_bytes()


def workflow_text() -> bytes:
    """The workflow that runs a job, of this version."""
    return shipped("workflows/verl-e2e.yml", ".github/workflows/verl-e2e.yml")
