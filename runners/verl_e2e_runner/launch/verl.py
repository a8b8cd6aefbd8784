"""verl's wrapper: its exact command for each phase of a job, and its preflight.

The wrapper's text is searched for the variables that it reads; nothing is executed. What it makes of a variable is
shown by the call and by the composed configuration, which preflight holds against the job. The search finds what
neither of them can show: a name that the wrapper does not know, and the names that a stray variable of the host must
not set.

The call comes from the wrapper itself, without a GPU or an import: the real script runs with stand-ins first on PATH.
`python3` and similar programs only record how they are called, and the wrapper's device query is answered with `cuda`.
So Hydra's arguments and the exported environment are those of the run, after every default, expansion and word split of
the script. With them verl's Hydra configuration must accept the overrides, and have the values that the job expects.

What verl makes of the settings of all jobs is found out in the same way, for any checkout of verl and a Python with
hydra-core. Where that Python can import verl, verl's `validate_config` is asked too, as its entry point does before it
starts anything.
"""

import difflib
import json
import os
import re
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_e2e.core.consumer.consumer import PlannedPhase
from verl_e2e.core.consumer.verl import BASE_WRAPPER, VERL, expected_config, host_overrides
from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.levels import OWN_FILES, Variant
from verl_e2e.core.model.record import Check, Finding
from verl_e2e.core.model.settings import SettingsCheck
from verl_e2e_runner.launch.launcher import (
    INSTRUMENTATION,
    PACKAGE_FOLDER,
    Config,
    Launch,
    LaunchCheck,
    Launcher,
    data_texts,
    launch_of,
    marks,
    mismatch,
    python_path,
    reward_model_place,
    run_variables,
)
from verl_e2e_runner.process.cage import IMPORTS_VARIABLE, Cage, Session, inherited, names_below, read_below
from verl_e2e_runner.process.processes import (
    FinishedProgram,
    hand_path_over,
    let_everyone_read,
    run_program,
    with_own_scratch,
)
from verl_e2e_runner.reporting import blocked, good, note, stops, untried
from verl_e2e_runner.trees import Trees

# A run is not weaker without these: when the wrapper does not read them, they are dropped with a note.
_DROPPABLE = frozenset({"VERL_USE_UV", "DUMMY_MODEL_PATH"})


def wrapper_map(job: Job, trees: Trees, *, base: Mapping[str, str], model: str | None = None) -> dict[str, str]:
    """Every wrapper variable of the job, but for what a phase adds; the job's own entries win over derived ones.

    `base` is the runner's environment, `model` the local snapshot of a hub model, once it is known.
    """
    checkpoint = job.checkpoint
    files = data_texts(job, {**base, **job.site.process, **job.process})
    derived = {
        "NUM_GPUS": str(job.gpus_of_node),
        "MODEL_ID": checkpoint.model_id,
        "MODEL_PATH": checkpoint.model_path or model or checkpoint.model_id,
        "TRAIN_FILES": files["train_files"],
        "VAL_FILES": files["val_files"],
        "TOTAL_TRAIN_STEPS": str(job.steps),
    }
    if job.reward_model:
        derived["RM_MODEL_PATH"] = reward_model_place(job.reward_model, {**base, **job.site.process, **job.process})
    if checkpoint.dummy_config is not None:
        place = trees.cage.scratch / "home" if trees.cage else trees.cwd.parent
        derived["USE_DUMMY_MODEL"] = "True"
        derived["DUMMY_MODEL_CONFIG_PATH"] = checkpoint.dummy_config
        derived["DUMMY_MODEL_PATH"] = str(place / "dummy-model")
    return {**derived, **job.site.wrapper, **job.wrapper}


def overrides(job: Job, trees: Trees, session: Session) -> tuple[str, ...]:
    """The Hydra overrides after the script's name: the site's, the job's, and what the runner needs."""

    def key(override: str) -> str:
        return override.lstrip("+~").partition("=")[0]

    given = [item for item in job.site.overrides if item not in job.overrides] + list(job.overrides)
    keys = {key(item) for item in given}
    common = host_overrides(
        job.site, reward_model=bool(job.reward_model), gpus_of_node=job.gpus_of_node, nodes=job.node_count
    )
    given += [item for item in common if key(item) not in keys]
    forwarded = {"PYTHONPATH": python_path(job, trees), **marks(job, trees, session)}
    given += [f"++ray_kwargs.ray_init.runtime_env.env_vars.{name}={quoted(value)}" for name, value in forwarded.items()]
    return tuple(item.replace(f"={OWN_FILES}/", f"={PACKAGE_FOLDER}/") for item in given)


def quoted(value: str) -> str:
    """A Hydra string that survives whatever the value holds (white space apart: the wrapper splits at it)."""
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value)
    return f"'{escaped}'"


def launches(
    job: Job,
    trees: Trees,
    session: Session,
    *,
    base: Mapping[str, str],
    model: str | None = None,
    reads: Collection[str] | None = None,
) -> tuple[Launch, ...]:
    """The complete starts of the wrapper, one for each phase.

    `base` is what the environment may be inherited from, `model` the local snapshot of a hub model, `reads` what the
    wrapper reads (None: unknown): of the droppable variables only those that it reads are set.
    """
    kept = inherited(base, wrapper_reads=reads or ())
    process = run_variables(job, trees, session)
    argv = ("bash", str(trees.verl / job.script), *overrides(job, trees, session))
    made = []
    for phase in VERL.phases(job):
        wrapper = {**wrapper_map(job, trees, base=base, model=model), **phase.wrapper}
        if reads is not None:
            wrapper = {name: value for name, value in wrapper.items() if name in reads or name not in _DROPPABLE}
        variables = {**process, **wrapper}
        made.append(launch_of(job, trees, phase, argv, kept=kept, variables=variables, base=base))
    return tuple(made)


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


def check_variables(script: str, name: str, wrapper: Mapping[str, str]) -> tuple[frozenset[str], tuple[Finding, ...]]:
    """The names that the script reads, and whether it reads every one of `wrapper`.

    An unread name that can be dropped gives a note. Any other blocks, with the closest names that are read.
    """
    known = reads(script)
    findings = []
    for variable in sorted(set(wrapper) - known):
        if variable in _DROPPABLE:
            findings.append(note(Check.WRAPPER, f"{name} does not read {variable} at this commit, so it is not passed"))
        else:
            close = difflib.get_close_matches(variable, sorted(known), n=3)
            hint = f"did you mean {' or '.join(close)}? " if close else ""
            value = wrapper[variable]
            unread = f"{name} does not read {variable} (the job sets {variable}={value}): the run would test too little"
            fix = f"{hint}correct the name in the job's `wrapper` map, or choose a verl commit that reads it"
            findings.append(blocked(Check.WRAPPER, unread, fix))
    if not stops(findings):
        findings.append(good(Check.WRAPPER, f"{name} reads all {len(set(wrapper) & known)} variables of the job"))
    return known, tuple(findings)


_MOST_BYTES = 4 << 20

# Interpreters and launchers, and whatever else in a wrapper would reach the network, a cluster or a package.
_STAND_INS = (
    *("python3", "python", "uv", "torchrun", "ray", "nsys", "accelerate"),
    *("pip", "pip3", "hf", "huggingface-cli", "git", "wget", "curl", "docker"),
)

_STAND_IN = """#!/bin/sh
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
    made = folder / "bin"
    made.mkdir(parents=True)
    for program in _STAND_INS:
        (made / program).write_text(_STAND_IN.format(folder=shlex.quote(str(given))))
        (made / program).chmod(0o755)
    # Where the user of a cage cannot read them, a shell goes on to the real programs.
    let_everyone_read(made)
    if cage:
        hand_path_over(folder, cage)
    first = f"{given / 'bin'}{os.pathsep}"
    variables = {**launch.environment, "PATH": f"{first}{launch.environment.get('PATH', '')}"}
    finished = run_program(launch.argv, env=variables, cwd=launch.cwd, timeout_s=timeout_s, cage=cage)

    def recorded(name: str) -> list[str]:
        raw = read_below(folder, name, limit=_MOST_BYTES) or b""
        return raw.decode(errors="surrogateescape").split("\0")[:-1]

    for name in names_below(folder):
        words = recorded(name) if name.endswith(".argv") else []
        if VERL.entry_point in words:
            exported = recorded(f"{name.removesuffix('.argv')}.env")
            environment = dict(item.split("=", 1) for item in exported if "=" in item)
            environment["PATH"] = environment.get("PATH", "").replace(first, "")
            return DryCall(words[0], tuple(words[words.index(VERL.entry_point) + 1 :]), environment)
    lines = (finished.stdout + "\n" + finished.stderr).splitlines()
    spoken = [line.strip() for line in lines if line.strip() and not line.startswith("+")]
    last = f": {spoken[-1][:300]}" if spoken else ""
    return blocked(
        Check.WRAPPER,
        f"{Path(launch.argv[1]).name} ended ({finished.ending}) without starting {VERL.entry_point}{last}",
        "run the command of `--dry-run` by hand to see why, then set the variables or the verl commit that it needs",
    )


def check_dry_call(call: DryCall, launch: Launch) -> tuple[Finding, ...]:
    """Findings for overrides that the entry point does not get, and for `uv`."""
    findings = []
    if call.program == "uv":
        summary = (
            "the wrapper starts verl through `uv run`, with the packages of verl's lock file and not those of this"
            " host's Python: the checks of preflight would not be valid for the run"
        )
        fix = "set VERL_USE_UV=0 in the job's `wrapper` map, or choose a verl commit whose wrapper reads it"
        findings.append(blocked(Check.WRAPPER, summary, fix))
    lost = [item for item in launch.argv[2:] if item not in call.arguments]
    if lost:
        how = "it splits at white space and expands file name patterns"
        fix = "use paths and values without white space and without file name patterns"
        findings.append(blocked(Check.WRAPPER, f"the wrapper changes this override: {lost[0]} ({how})", fix))
    return tuple(findings)


# The exit code of the composing program where Hydra cannot be imported.
_NO_HYDRA = 3


def composition_request(verl: Path, call: DryCall) -> dict[str, object]:
    """What the composing program is asked for one call of verl's entry point, in the tree `verl`."""
    path = Path(call.option("config-path") or "config")
    folder = path if path.is_absolute() else verl / "verl" / "trainer" / path
    name = call.option("config-name") or "ppo_trainer"
    return {"folder": str(folder), "name": name, "overrides": list(call.overrides)}


def composed(
    requests: Sequence[Mapping[str, object]],
    python: str,
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout_s: float = 120,
    cage: Cage | None = None,
) -> list[dict[str, Any]] | FinishedProgram:
    """The answers of the composing program to `composition_request`s; how it ended where it gave none."""
    argv = (python, "-m", "verl_e2e_compose")
    finished = run_program(argv, env=env, cwd=cwd, timeout_s=timeout_s, stdin=json.dumps(requests), cage=cage)
    if finished.code != 0:
        return finished
    answers: list[dict[str, Any]] = json.loads(finished.stdout.strip().rpartition("\n")[2])
    return answers


def compose(job: Job, trees: Trees, calls: Sequence[DryCall]) -> tuple[tuple[Config, ...], tuple[Finding, ...]]:
    """The composed configurations and the findings; the job's Python imports Hydra and nothing of the stack."""
    python = job.site.python
    answers = composed(
        [composition_request(trees.verl, call) for call in calls],
        python,
        env={name: value for name, value in calls[0].environment.items() if name != IMPORTS_VARIABLE},
        cwd=trees.cwd,
        cage=with_own_scratch(trees.cage, "composition"),
    )
    if isinstance(answers, FinishedProgram):
        if answers.code == _NO_HYDRA:
            summary, fix = f"Hydra cannot be imported: {answers.last_error}", f"install hydra-core for {python}"
        else:
            summary = f"{python} could not compose the configuration ({answers.ending}): {answers.last_error}"
            fix = "fix the `python` of the site profile"
        return (), (blocked(Check.HYDRA, summary, fix),)
    configs = tuple(answer["config"] for answer in answers if answer.get("config") is not None)
    if errors := dict.fromkeys(answer["error"] for answer in answers if "error" in answer):
        fix = "correct the override, or choose a verl commit whose configuration has the key"
        refused = (f"verl's configuration refuses the overrides: {error}" for error in errors)
        return configs, tuple(blocked(Check.HYDRA, summary, fix) for summary in refused)
    wrong = [mismatch(configs[-1], key, value) for key, value in sorted(job.expected.items())]
    fix = "correct the variable or override that sets it; otherwise the run does not test what the job claims"
    findings = tuple(blocked(Check.HYDRA, summary, fix) for summary in wrong if summary)
    set_here = f"the overrides compose; {len(wrong)} expected values are set"
    return configs, findings or (good(Check.HYDRA, set_here),)


def check_wrapper(
    job: Job, trees: Trees, session: Session, *, base: Mapping[str, str], model: str | None, work: Path
) -> LaunchCheck:
    """Read the wrapper, call every phase dry and compose what verl would get; each part needs the one before."""
    starts = launches(job, trees, session, base=base, model=model)
    script = trees.verl / job.script
    if not trees.has("verl") or not script.is_file():
        return LaunchCheck(starts, untried(Check.WRAPPER, Check.HYDRA))
    variables = wrapper_map(job, trees, base=base, model=model)
    for start in starts:
        variables |= start.phase.wrapper
    known, findings = check_variables(script.read_text(errors="replace"), job.script, variables)
    if stops(findings):
        return LaunchCheck(starts, (*findings, *untried(Check.HYDRA)))
    starts = launches(job, trees, session, base=base, model=model, reads=known)
    calls = []
    for start in starts:
        call = dry_call(start, work, cage=trees.cage)
        if isinstance(call, DryCall):
            calls.append(call)
            findings = (*findings, *check_dry_call(call, start))
        else:
            findings = (*findings, call)
    if stops(findings):
        return LaunchCheck(starts, (*findings, *untried(Check.HYDRA)), known)
    configs, judged = compose(job, trees, calls)
    return LaunchCheck(starts, (*findings, *judged), known, configs, calls[0].environment)


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
    variants: Sequence[Variant], *, tree: Path, python: str, work: Path, base: Mapping[str, str]
) -> tuple[SettingsCheck, ...]:
    """Make a dry call of the wrapper for each job and compose what verl would get, in one process of `python`.

    `work` is a folder of the caller's own, `base` the environment that programs inherit from. Raises UserError where
    the wrapper is missing or `python` has no hydra-core.
    """
    script = tree / VERL.script
    if not script.is_file():
        raise UserError(f"{tree} has no {VERL.script}: give a checkout of verl")
    kept = inherited(base, wrapper_reads=reads(script.read_text(errors="replace")))
    model = work / "model"
    model.mkdir(parents=True, exist_ok=True)
    for name, content in _MODEL_FILES.items():
        (model / name).write_text(json.dumps(content))
    given = {**kept, "MODEL_ID": "checks/model", "MODEL_PATH": str(model.resolve())}
    asked = []
    requests: list[dict[str, object]] = []
    for variant in variants:
        # No reward model, as in every job.
        argv = ("bash", str(script), "reward.reward_model.enable=False", *variant.overrides)
        counts = {"NUM_GPUS": str(variant.gpu_count), "TOTAL_TRAIN_STEPS": str(variant.steps)}
        ours, phase = {**BASE_WRAPPER, **variant.wrapper, **counts}, PlannedPhase(variant.job_id, 1, variant.steps)
        call = dry_call(Launch(phase, argv, {**given, **ours}, ours, tree), work)
        expected = sorted(expected_config(ours, variant.overrides).items())
        asked.append((variant, call, expected))
        if isinstance(call, DryCall):
            keys = [key for key, _ in expected]
            requests.append({**composition_request(tree, call), "keys": keys, "validate": True})
    variables = {**kept, "PYTHONPATH": f"{INSTRUMENTATION}:{tree}", "PYTHONDONTWRITEBYTECODE": "1"}
    answers: list[dict[str, Any]] = []
    for start in range(0, len(requests), _TOGETHER):
        # Only the end of the program's output is kept, so it is asked in parts.
        part = requests[start : start + _TOGETHER]
        found = composed(part, python, env=variables, cwd=tree, timeout_s=_START_S + _EACH_S * len(part))
        if isinstance(found, FinishedProgram):
            if found.code == _NO_HYDRA:
                raise UserError(f"{python} has no hydra-core: install it there, or name another Python with --python")
            raise UserError(f"{python} could not compose the configuration ({found.ending}): {found.last_error}")
        answers += found
    left = iter(answers)
    checks = []
    for variant, call, expected in asked:
        refused = unchecked = ""
        mismatches: tuple[str, ...] = ()
        if isinstance(call, Finding):
            refused = call.summary
        else:
            answer = next(left)
            config = answer.get("config")
            if lost := [override for override in variant.overrides if override not in call.arguments]:
                refused = f"the wrapper changes the override {lost[0]}"
            elif not isinstance(config, dict):
                refused = str(answer.get("error"))
            else:
                refused, unchecked = str(answer.get("refused", "")), str(answer.get("unchecked", ""))
                mismatches = tuple(text for key, value in expected if (text := mismatch(config, key, value)))
        checks.append(SettingsCheck(variant.job_id, refused, mismatches, unchecked))
    return tuple(checks)


_GSM8K_SCRIPT = "examples/data_preprocess/gsm8k.py"


def gsm8k(job: Job, trees: Trees, folder: Path) -> tuple[tuple[str, ...], Mapping[str, Path]]:
    """verl's script for GSM8K, and the files that it makes."""
    raw = ("--local_dataset_path", job.data.local_dataset) if job.data.local_dataset else ()
    argv = (job.site.python, str(trees.verl / _GSM8K_SCRIPT), "--local_save_dir", str(folder), *raw)
    return argv, {"train_files": folder / "train.parquet", "val_files": folder / "test.parquet"}


VERL_LAUNCHER = Launcher(
    launches=launches,
    check=check_wrapper,
    reads=reads,
    data=gsm8k,
    variables=lambda job, trees, base: wrapper_map(job, trees, base=base),
)
