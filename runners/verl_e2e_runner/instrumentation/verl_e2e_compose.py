"""Composes Hydra overrides as verl's entry point would: `python3 -m verl_e2e_compose`; imports only Hydra.

Reads `[{"folder": ..., "name": ..., "overrides": [...]}, ...]` on stdin and prints a JSON list with, for each,
`{"config": {...}}` or `{"error": ...}`.
"""

import json
import sys


def _compose(request):
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(config_dir=request["folder"], version_base=None):
        config = compose(config_name=request["name"], overrides=request["overrides"])
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=False, enum_to_str=True)


def _message(error):
    lines = []
    while error is not None:
        lines += [line.strip() for line in str(error).splitlines() if line.strip()]
        error = error.__cause__
    return "; ".join(dict.fromkeys(lines))[:1500]


def main():
    """Compose every request; a fault of one is its answer, a missing Hydra ends the program with code 3."""
    try:
        import hydra  # noqa: F401
    except ImportError as error:
        print(error, file=sys.stderr)
        sys.exit(3)
    answers = []
    for request in json.load(sys.stdin):
        try:
            answers.append({"config": _compose(request)})
        except Exception as error:
            answers.append({"error": _message(error)})
    print(json.dumps(answers, default=str))


if __name__ == "__main__":
    main()
