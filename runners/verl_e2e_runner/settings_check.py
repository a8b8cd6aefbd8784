"""What verl makes of the settings of jobs: the wrapper's real call, its composed configuration and verl's own checks.

Needs a checkout of verl and a Python with hydra-core, and no GPU. Where that Python can import verl as well, verl's
`validate_config` is asked too, as its entry point does before it starts anything.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from verl_e2e.core.judge.case import PlannedPhase
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import WRAPPER_SCRIPT
from verl_e2e.core.model.levels import Variant
from verl_e2e.core.model.record import Finding
from verl_e2e.core.model.settings import BASE_WRAPPER, SettingsCheck, Value, expected_config
from verl_e2e_runner.preflight.wrapper import NO_HYDRA, DryCall, composition_request, dry_call, mismatch, reads
from verl_e2e_runner.process.confined import run
from verl_e2e_runner.process.environment import inherited
from verl_e2e_runner.verl_wrapper import INSTRUMENTATION, Launch

# No reward model, as in every job.
_COMMON = ("reward.reward_model.enable=False",)

# verl's checks open the model's configuration and tokenizer; no weights are read.
_MODEL_FILES: Mapping[str, object] = {
    "config.json": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 8,
        "num_hidden_layers": 8,
        "num_key_value_heads": 8,
        "vocab_size": 64,
    },
    "tokenizer.json": {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "<end>": 1}, "unk_token": "<unk>"},
    },
    "tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<end>",
        "pad_token": "<end>",
        "unk_token": "<unk>",
    },
}
_START_S, _EACH_S = 120, 10
_TOGETHER = 50


def check_settings(
    variants: Sequence[Variant], *, verl: Path, python: str, work: Path, base: Mapping[str, str]
) -> tuple[SettingsCheck, ...]:
    """Make a dry call of the wrapper for each job and compose what verl would get, in one process of `python`.

    `work` is a folder of the caller's own, `base` the environment that programs inherit from. Raises UserError where
    the wrapper is missing or `python` has no hydra-core.
    """
    script = verl / WRAPPER_SCRIPT
    if not script.is_file():
        raise UserError(f"{verl} has no {WRAPPER_SCRIPT}: give a checkout of verl")
    kept = inherited(base, wrapper_reads=reads(script.read_text(errors="replace")))
    model = _write_model(work / "model")
    called = [dry_call(_launch(variant, verl, {**kept, **model}), work) for variant in variants]
    pairs = list(zip(variants, called, strict=True))
    requests = [
        {**composition_request(verl, call), "keys": sorted(_expected(variant)), "validate": True}
        for variant, call in pairs
        if isinstance(call, DryCall)
    ]
    answers = iter(_composed(requests, verl, python, kept))
    return tuple(_checked(variant, call, answers) for variant, call in pairs)


def _write_model(folder: Path) -> dict[str, str]:
    """The wrapper's variables for a model that verl's checks can open."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _MODEL_FILES.items():
        (folder / name).write_text(json.dumps(content))
    return {"MODEL_ID": "checks/model", "MODEL_PATH": str(folder.resolve())}


def _variables(variant: Variant) -> dict[str, str]:
    counts = {"NUM_GPUS": str(variant.gpu_count), "TOTAL_TRAIN_STEPS": str(variant.steps)}
    return {**BASE_WRAPPER, **variant.wrapper, **counts}


def _expected(variant: Variant) -> dict[str, Value]:
    return expected_config(_variables(variant), variant.overrides)


def _launch(variant: Variant, verl: Path, kept: Mapping[str, str]) -> Launch:
    phase = PlannedPhase(variant.job_id, 1, variant.steps)
    ours = _variables(variant)
    argv = ("bash", str(verl / WRAPPER_SCRIPT), *_COMMON, *variant.overrides)
    return Launch(phase, argv, {**kept, **ours}, ours, verl)


def _composed(
    requests: Sequence[Mapping[str, object]], verl: Path, python: str, kept: Mapping[str, str]
) -> list[Mapping[str, object]]:
    """The answers of the composing program; it is asked in parts, because only the end of its output is kept."""
    parts = (requests[start : start + _TOGETHER] for start in range(0, len(requests), _TOGETHER))
    return [answer for part in parts for answer in _answers(part, verl, python, kept)]


def _answers(
    requests: Sequence[Mapping[str, object]], verl: Path, python: str, kept: Mapping[str, str]
) -> list[Mapping[str, object]]:
    finished = run(
        (python, "-m", "verl_e2e_compose"),
        env={**kept, "PYTHONPATH": f"{INSTRUMENTATION}:{verl}", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=verl,
        timeout_s=_START_S + _EACH_S * len(requests),
        stdin=json.dumps(requests),
    )
    if finished.code == NO_HYDRA:
        raise UserError(f"{python} has no hydra-core: install it there, or name another Python with --python")
    if finished.code != 0:
        raise UserError(f"{python} could not compose the configuration ({finished.ending}): {finished.last_error}")
    answers: list[Mapping[str, object]] = json.loads(finished.stdout.strip().rpartition("\n")[2])
    return answers


def _checked(variant: Variant, call: DryCall | Finding, answers: Iterator[Mapping[str, object]]) -> SettingsCheck:
    if isinstance(call, Finding):
        return SettingsCheck(variant.job_id, call.summary)
    answer = next(answers)
    lost = [override for override in variant.overrides if override not in call.arguments]
    if lost:
        return SettingsCheck(variant.job_id, f"the wrapper changes the override {lost[0]}")
    config = answer.get("config")
    if not isinstance(config, dict):
        return SettingsCheck(variant.job_id, str(answer.get("error")))
    found = (mismatch(config, key, value) for key, value in sorted(_expected(variant).items()))
    return SettingsCheck(
        variant.job_id,
        str(answer.get("refused", "")),
        tuple(text for text in found if text),
        str(answer.get("unchecked", "")),
    )
