"""Composes Hydra overrides as verl's entry point would: `python3 -m verl_e2e_compose`; imports only Hydra.

Reads `[{"folder": ..., "name": ..., "overrides": [...]}, ...]` on stdin and prints a JSON list with, for each,
`{"config": {...}}` or `{"error": ...}`. With `"keys": [...]` the configuration has these
dotted keys only. With `"validate": true` verl is imported too and its own checks are made, as
its entry point makes them: the answer then has `refused`, what they say, or `unchecked`, why they were not made.
"""

import importlib.util
import json
import sys


def _part(config, keys):
    part = {}
    for key in keys:
        source, target = config, part
        *parents, last = key.split(".")
        for name in parents:
            source = source.get(name) if isinstance(source, dict) else None
            target = target.setdefault(name, {})
        if isinstance(source, dict) and last in source:
            target[last] = source[last]
    return part


def _validate(config):
    try:
        from verl.trainer.ppo.utils import need_critic, need_reference_policy
        from verl.utils.config import validate_config
    except Exception as error:
        return {"unchecked": f"verl cannot be imported: {_message(error)}"}
    config = config.copy()
    part = {}
    if importlib.util.find_spec("vllm") is None:
        # The only check that needs the rollout engine is that of the adapter's rank, and it asks for this name.
        config.actor_rollout_ref.rollout.name = "not installed"
        part = {"unchecked": "vLLM is not installed, so the rank of the adapter was not checked"}
    try:
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
    except Exception as error:
        return {"refused": _message(error) or type(error).__name__}
    return part


def _message(error):
    lines = []
    while error is not None:
        lines += [line.strip() for line in str(error).splitlines() if line.strip()]
        error = error.__cause__
    return "; ".join(dict.fromkeys(lines))[:1500]


def main():
    """Compose every request; a fault of one is its answer, a missing Hydra ends the program with code 3."""
    try:
        from hydra import compose, initialize_config_dir
        from omegaconf import OmegaConf
    except ImportError as error:
        print(error, file=sys.stderr)
        sys.exit(3)
    answers = []
    for request in json.load(sys.stdin):
        try:
            with initialize_config_dir(config_dir=request["folder"], version_base=None):
                config = compose(config_name=request["name"], overrides=request["overrides"])
                checked = _validate(config) if request.get("validate") else {}
                plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=False, enum_to_str=True)
            answers.append({"config": _part(plain, request["keys"]) if "keys" in request else plain, **checked})
        except Exception as error:
            answers.append({"error": _message(error)})
    print(json.dumps(answers, default=str))


if __name__ == "__main__":
    main()
