"""Preflight of the wrapper: its contract with the job, its real command line, and verl's configuration.

What verl makes of the settings of all jobs is found out in the same way, for any checkout of verl and a Python with
hydra-core, without a GPU. Where that Python can import verl, verl's `validate_config` is asked too, as its entry point
does before it starts anything.

The wrapper's text is searched for the variables that it reads; nothing is executed. What it makes of a variable is
shown by the call and by the composed configuration, which preflight holds against the job. The search finds what
neither of them can show: a name that the wrapper does not know, and the names that a stray variable of the host must
not set.

The call comes from the wrapper itself, without a GPU or an import: the real script runs with stand-ins first on PATH.
`python3` and similar programs only record how they are called, and the wrapper's device query is answered with `cuda`.
So Hydra's arguments and the exported environment are those of the run, after every default, expansion and word split of
the script. With them verl's Hydra configuration must accept the overrides, and have the values that the job expects.
"""

import difflib
import json
import os
import re
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_e2e.core.judge.case import PlannedPhase
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import WRAPPER_SCRIPT, Job
from verl_e2e.core.model.levels import Variant
from verl_e2e.core.model.record import Check, Finding
from verl_e2e.core.model.settings import BASE_WRAPPER, SettingsCheck, Value, expected_config
from verl_e2e_runner.findings import blocked, good, note, stops, untried
from verl_e2e_runner.folder.suspect_files import names_below, read_below
from verl_e2e_runner.process.cage import Cage
from verl_e2e_runner.process.confined import Finished, hand_path_over, let_everyone_read, run, with_own_scratch
from verl_e2e_runner.process.environment import IMPORTS_VARIABLE, Session, inherited
from verl_e2e_runner.trees import Trees
from verl_e2e_runner.verl_wrapper import DROPPABLE, INSTRUMENTATION, Launch, launches, wrapper_map

_COMMENT = re.compile(r"^\s*#.*|\s#[^\"']*$")
_EXPANSION = re.compile(r"\$\{?[!#]?([A-Za-z_]\w*)")
# A statement of its own, not indented, and so under no condition: `NAME=x command` holds for that command only.
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(?:\"[^\"]*\"|'[^']*'|[^\s\"'])*\s*")


def reads(script: str) -> frozenset[str]:
    """The variables that some line expands (`$NAME`, `${NAME...}`) before an unconditional assignment hides them.

    `NAME=${NAME:-x}` reads, `NAME=x` hides whatever the environment says from there on. Quotes are not understood: an
    expansion between single quotes counts.
    """
    found: set[str] = set()
    assigned: set[str] = set()
    for line in script.splitlines():
        code = _COMMENT.sub("", line)
        found.update(set(_EXPANSION.findall(code)) - assigned)
        if assignment := _ASSIGNMENT.fullmatch(code):
            assigned.add(assignment[1])
    return frozenset(found)


def check_contract(
    script: str, name: str, wrapper: Mapping[str, str], *, droppable: Collection[str]
) -> tuple[frozenset[str], tuple[Finding, ...]]:
    """The names that the script reads, and whether it reads every one of `wrapper`.

    An unread name of `droppable` gives a note. Any other unread name blocks, with the closest names that are read.
    """
    known = reads(script)
    findings = []
    for variable in sorted(set(wrapper) - known):
        if variable in droppable:
            findings.append(note(Check.WRAPPER, f"{name} does not read {variable} at this commit, so it is not passed"))
        else:
            close = difflib.get_close_matches(variable, sorted(known), n=3)
            hint = f"did you mean {' or '.join(close)}? " if close else ""
            value = wrapper[variable]
            unread = f"{name} does not read {variable} (the job sets {variable}={value}): the run would test too little"
            fix = f"{hint}correct the name in the job's `wrapper` map, or choose a verl commit that reads it"
            findings.append(blocked(Check.WRAPPER, unread, fix))
    if not any(finding.blocking for finding in findings):
        findings.append(good(Check.WRAPPER, f"{name} reads all {len(set(wrapper) & known)} variables of the job"))
    return known, tuple(findings)


ENTRY_POINT = "verl.trainer.main_ppo"
_MOST_BYTES = 4 << 20

# Interpreters and launchers, and whatever else in a wrapper would reach the network, a cluster or a package.
_STAND_INS = (
    *("python3", "python", "uv", "torchrun", "ray", "nsys", "accelerate"),
    *("pip", "pip3", "hf", "huggingface-cli", "git", "wget", "curl", "docker"),
)

_SCRIPT = """#!/bin/sh
folder={folder}
printf '%s\\0' "${{0##*/}}" "$@" > "$folder/$$.argv"
env -0 > "$folder/$$.env"
for word in "$@"; do
  case $word in
    -) cat > /dev/null; echo cuda; exit 0 ;;
    -c) echo cuda; exit 0 ;;
  esac
done
exit 0
"""


@dataclass(frozen=True, slots=True)
class DryCall:
    """The call of verl's entry point, as the wrapper makes it."""

    # `python3`, or the launcher before it.
    program: str
    # What follows `-m verl.trainer.main_ppo`.
    arguments: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def overrides(self) -> tuple[str, ...]:
        """The Hydra overrides among the arguments."""
        return tuple(item for item in self.arguments if not item.startswith("-"))

    def option(self, name: str) -> str | None:
        """The value of `--name=value`, None when the wrapper does not pass it."""
        prefix = f"--{name}="
        return next((item.removeprefix(prefix) for item in self.arguments if item.startswith(prefix)), None)


def dry_call(launch: Launch, work: Path, *, timeout_s: float = 60, cage: Cage | None = None) -> DryCall | Finding:
    """Run the wrapper of `launch` against stand-ins below `work`; a finding when it never called the entry point."""
    name = f"dry-call-{launch.phase.name}"
    cage = with_own_scratch(cage, name)
    given = (cage.outbox if cage else work) / name
    folder = cage.outside(given) if cage else given
    shutil.rmtree(folder, ignore_errors=True)
    shims = folder / "bin"
    shims.mkdir(parents=True)
    script = shims / _STAND_INS[0]
    script.write_text(_SCRIPT.format(folder=shlex.quote(str(given))))
    script.chmod(0o755)
    for name in _STAND_INS[1:]:
        (shims / name).symlink_to(script.name)
    # Where the user of a cage cannot read them, a shell goes on to the real programs.
    let_everyone_read(shims)
    if cage:
        hand_path_over(folder, cage)
    shims = given / "bin"
    path = f"{shims}{os.pathsep}{launch.environment.get('PATH', '')}"
    finished = run(
        launch.argv, env={**launch.environment, "PATH": path}, cwd=launch.cwd, timeout_s=timeout_s, cage=cage
    )
    for name in names_below(folder):
        words = _zero_separated(folder, name) if name.endswith(".argv") else []
        if ENTRY_POINT in words:
            position = words.index(ENTRY_POINT)
            variables = _zero_separated(folder, f"{name.removesuffix('.argv')}.env")
            environment = dict(item.split("=", 1) for item in variables if "=" in item)
            environment["PATH"] = environment.get("PATH", "").replace(f"{shims}{os.pathsep}", "")
            return DryCall(words[0], tuple(words[position + 1 :]), environment)
    lines = (finished.stdout + "\n" + finished.stderr).splitlines()
    spoken = [line.strip() for line in lines if line.strip() and not line.startswith("+")]
    last = f": {spoken[-1][:300]}" if spoken else ""
    return blocked(
        Check.WRAPPER,
        f"{Path(launch.argv[1]).name} ended ({finished.ending}) without starting {ENTRY_POINT}{last}",
        "run the command of `--dry-run` by hand to see why, then set the variables or the verl commit that it needs",
    )


def check_dry_call(call: DryCall, launch: Launch) -> tuple[Finding, ...]:
    """Findings for overrides that the entry point does not get, and for `uv`."""
    findings = []
    if call.program == "uv":
        findings.append(
            blocked(
                Check.WRAPPER,
                "the wrapper starts verl through `uv run`, with the packages of verl's lock file and not those of this"
                " host's Python: the checks of preflight would not be valid for the run",
                "set VERL_USE_UV=0 in the job's `wrapper` map, or choose a verl commit whose wrapper reads it",
            )
        )
    given = launch.argv[2:]
    lost = [item for item in given if item not in call.arguments]
    if lost:
        findings.append(
            blocked(
                Check.WRAPPER,
                f"the wrapper changes this override: {lost[0]} (it splits at white space and expands file name"
                " patterns)",
                "use paths and values without white space and without file name patterns",
            )
        )
    return tuple(findings)


def _zero_separated(folder: Path, name: str) -> list[str]:
    raw = read_below(folder, name, limit=_MOST_BYTES)
    return (raw or b"").decode(errors="surrogateescape").split("\0")[:-1]


# The exit code of the composing program where Hydra cannot be imported.
NO_HYDRA = 3

Config = Mapping[str, Any]


def composed(
    requests: Sequence[Mapping[str, object]],
    python: str,
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout_s: float,
    cage: Cage | None = None,
) -> list[dict[str, Any]] | Finished:
    """The answers of the composing program to `composition_request`s; how it ended where it gave none."""
    argv = (python, "-m", "verl_e2e_compose")
    finished = run(argv, env=env, cwd=cwd, timeout_s=timeout_s, stdin=json.dumps(requests), cage=cage)
    if finished.code != 0:
        return finished
    answers: list[dict[str, Any]] = json.loads(finished.stdout.strip().rpartition("\n")[2])
    return answers


def compose(
    job: Job, trees: Trees, calls: Sequence[DryCall], *, timeout_s: float = 120
) -> tuple[tuple[Config, ...], tuple[Finding, ...]]:
    """The composed configurations and the findings; the job's Python imports Hydra and nothing of the stack."""
    answers = composed(
        [composition_request(trees.verl, call) for call in calls],
        job.site.python,
        env={name: value for name, value in calls[0].environment.items() if name != IMPORTS_VARIABLE},
        cwd=trees.cwd,
        timeout_s=timeout_s,
        cage=with_own_scratch(trees.cage, "composition"),
    )
    if isinstance(answers, Finished):
        summary = f"{job.site.python} could not compose the configuration ({answers.ending}): {answers.last_error}"
        fix = "fix the `python` of the site profile"
        if answers.code == NO_HYDRA:
            summary, fix = (
                f"Hydra cannot be imported: {answers.last_error}",
                f"install hydra-core for {job.site.python}",
            )
        return (), (blocked(Check.HYDRA, summary, fix),)
    configs = tuple(answer["config"] for answer in answers if answer.get("config") is not None)
    if errors := list(dict.fromkeys(answer["error"] for answer in answers if "error" in answer)):
        fix = "correct the override, or choose a verl commit whose configuration has the key"
        refused = [
            blocked(Check.HYDRA, f"verl's configuration refuses the overrides: {error}", fix) for error in errors
        ]
        return configs, tuple(refused)
    wrong = [mismatch(configs[-1], key, value) for key, value in sorted(job.expected.items())]
    fix = "correct the variable or override that sets it; otherwise the run does not test what the job claims"
    findings = tuple(blocked(Check.HYDRA, summary, fix) for summary in wrong if summary)
    set_here = f"the overrides compose; {len(wrong)} expected values are set"
    return configs, findings or (good(Check.HYDRA, set_here),)


def mismatch(config: Config, key: str, expected: bool | int | float | str | None) -> str:
    """How a composed configuration differs from an expected value, a sentence; empty when it does not."""
    missing = object()
    value: Any = config
    for part in key.split("."):
        value = value.get(part, missing) if isinstance(value, Mapping) else missing
    either_is_bool = isinstance(value, bool) or isinstance(expected, bool)
    if value is not missing and (value is expected if either_is_bool else value == expected):
        return ""
    shown = "is missing" if value is missing else f"is {value!r}"
    return f"{key} {shown} in the composed configuration, the job expects {expected!r}"


def composition_request(verl: Path, call: DryCall) -> dict[str, object]:
    """What the composing program is asked for one call of verl's entry point, in the tree `verl`."""
    path = Path(call.option("config-path") or "config")
    folder = path if path.is_absolute() else verl / "verl" / "trainer" / path
    name = call.option("config-name") or "ppo_trainer"
    return {"folder": str(folder), "name": name, "overrides": list(call.overrides)}


@dataclass(frozen=True, slots=True)
class WrapperCheck:
    """The results of the wrapper's checks."""

    launches: tuple[Launch, ...]
    findings: tuple[Finding, ...]
    # The variables that the script reads; None when it could not be read.
    reads: frozenset[str] | None = None
    # The composed configuration of each phase in order; empty when the call or the composition failed.
    configs: tuple[Config, ...] = ()
    # What the wrapper exports to verl's entry point in the first phase; None when the call failed.
    driver_environment: Mapping[str, str] | None = None


def check_wrapper(
    job: Job, trees: Trees, session: Session, *, base: Mapping[str, str], model: str | None, work: Path
) -> WrapperCheck:
    """Read the wrapper, call every phase dry and compose what verl would get; each part needs the one before."""
    starts = launches(job, trees, session, base=base, model=model)
    script = trees.verl / job.script
    if not trees.has("verl") or not script.is_file():
        return WrapperCheck(starts, untried(Check.WRAPPER, Check.HYDRA))
    variables = {name: value for start in starts for name, value in start.phase.wrapper.items()}
    variables = {**wrapper_map(job, trees, base=base, model=model), **variables}
    text = script.read_text(errors="replace")
    reads, findings = check_contract(text, job.script, variables, droppable=DROPPABLE)
    if stops(findings):
        return WrapperCheck(starts, (*findings, *untried(Check.HYDRA)))
    starts = launches(job, trees, session, base=base, model=model, reads=reads)
    called = [dry_call(start, work, cage=trees.cage) for start in starts]
    calls = [result for result in called if isinstance(result, DryCall)]
    findings = (*findings, *(result for result in called if isinstance(result, Finding)))
    for start, call in zip(starts, calls, strict=False):
        findings = (*findings, *check_dry_call(call, start))
    if stops(findings):
        return WrapperCheck(starts, (*findings, *untried(Check.HYDRA)), reads)
    configs, judged = compose(job, trees, calls)
    return WrapperCheck(starts, (*findings, *judged), reads, configs, calls[0].environment)


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
    model = work / "model"
    model.mkdir(parents=True, exist_ok=True)
    for name, content in _MODEL_FILES.items():
        (model / name).write_text(json.dumps(content))
    given = {**kept, "MODEL_ID": "checks/model", "MODEL_PATH": str(model.resolve())}
    pairs = []
    for variant in variants:
        argv = ("bash", str(script), *_COMMON, *variant.overrides)
        ours, phase = _variables(variant), PlannedPhase(variant.job_id, 1, variant.steps)
        pairs.append((variant, dry_call(Launch(phase, argv, {**given, **ours}, ours, verl), work)))
    requests = [
        {**composition_request(verl, call), "keys": sorted(_expected(variant)), "validate": True}
        for variant, call in pairs
        if isinstance(call, DryCall)
    ]
    variables = {**kept, "PYTHONPATH": f"{INSTRUMENTATION}:{verl}", "PYTHONDONTWRITEBYTECODE": "1"}
    answers: list[dict[str, Any]] = []
    for start in range(0, len(requests), _TOGETHER):
        # Only the end of the program's output is kept, so it is asked in parts.
        part = requests[start : start + _TOGETHER]
        found = composed(part, python, env=variables, cwd=verl, timeout_s=_START_S + _EACH_S * len(part))
        if isinstance(found, Finished):
            if found.code == NO_HYDRA:
                raise UserError(f"{python} has no hydra-core: install it there, or name another Python with --python")
            raise UserError(f"{python} could not compose the configuration ({found.ending}): {found.last_error}")
        answers += found
    left = iter(answers)
    return tuple(_checked(variant, call, left) for variant, call in pairs)


def _variables(variant: Variant) -> dict[str, str]:
    counts = {"NUM_GPUS": str(variant.gpu_count), "TOTAL_TRAIN_STEPS": str(variant.steps)}
    return {**BASE_WRAPPER, **variant.wrapper, **counts}


def _expected(variant: Variant) -> dict[str, Value]:
    return expected_config(_variables(variant), variant.overrides)


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
