"""Preflight of the wrapper: its contract with the job, its real command line, and verl's configuration.

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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.findings import blocked, good, note, stops
from verl_e2e_runner.folder.suspect_files import names_below, read_below
from verl_e2e_runner.process.cage import Cage
from verl_e2e_runner.process.confined import Finished, hand_folder_over, let_everyone_read, run, with_own_scratch
from verl_e2e_runner.process.session import IMPORTS_VARIABLE, Session
from verl_e2e_runner.trees import Trees
from verl_e2e_runner.verl_wrapper import DROPPABLE, Launch, launches, wrapper_map

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
            findings.append(_unread(name, variable, wrapper[variable], known))
    if not any(finding.blocking for finding in findings):
        findings.append(good(Check.WRAPPER, f"{name} reads all {len(set(wrapper) & known)} variables of the job"))
    return known, tuple(findings)


def _unread(name: str, variable: str, value: str, known: Iterable[str]) -> Finding:
    close = difflib.get_close_matches(variable, sorted(known), n=3)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return blocked(
        Check.WRAPPER,
        f"{name} does not read {variable} (the job sets {variable}={value}): the run would test too little",
        f"{hint}correct the name in the job's `wrapper` map, or choose a verl commit that reads it",
    )


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
    _make_stand_ins(folder, given)
    if cage:
        hand_folder_over(folder, cage)
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
    return _never_called(launch, finished)


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


def _make_stand_ins(folder: Path, given: Path) -> None:
    """The stand-ins in a folder that they know as `given`."""
    shims = folder / "bin"
    shims.mkdir(parents=True)
    script = shims / _STAND_INS[0]
    script.write_text(_SCRIPT.format(folder=shlex.quote(str(given))))
    script.chmod(0o755)
    for name in _STAND_INS[1:]:
        (shims / name).symlink_to(script.name)
    # Where the user of a cage cannot read them, a shell goes on to the real programs.
    let_everyone_read(shims)


def _zero_separated(folder: Path, name: str) -> list[str]:
    raw = read_below(folder, name, limit=_MOST_BYTES)
    return (raw or b"").decode(errors="surrogateescape").split("\0")[:-1]


def _never_called(launch: Launch, finished: Finished) -> Finding:
    lines = (finished.stdout + "\n" + finished.stderr).splitlines()
    spoken = [line.strip() for line in lines if line.strip() and not line.startswith("+")]
    last = f": {spoken[-1][:300]}" if spoken else ""
    return blocked(
        Check.WRAPPER,
        f"{Path(launch.argv[1]).name} ended ({finished.ending}) without starting {ENTRY_POINT}{last}",
        "run the command of `--dry-run` by hand to see why, then set the variables or the verl commit that it needs",
    )


# The exit code of the composing program where Hydra cannot be imported.
NO_HYDRA = 3

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Composition:
    """The composed configuration of each phase (None where it does not compose) and the findings."""

    configs: tuple[Config | None, ...]
    findings: tuple[Finding, ...]


def compose(job: Job, trees: Trees, calls: Sequence[DryCall], *, timeout_s: float = 120) -> Composition:
    """Compose the overrides of every phase in the job's Python, which imports Hydra and nothing of the stack."""
    requests = [composition_request(trees.verl, call) for call in calls]
    finished = run(
        (job.site.python, "-m", "verl_e2e_compose"),
        env={name: value for name, value in calls[0].environment.items() if name != IMPORTS_VARIABLE},
        cwd=trees.cwd,
        timeout_s=timeout_s,
        stdin=json.dumps(requests),
        cage=with_own_scratch(trees.cage, "composition"),
    )
    nothing = (None,) * len(requests)
    if finished.code == NO_HYDRA:
        fix = f"install hydra-core for {job.site.python}"
        return Composition(nothing, (blocked(Check.HYDRA, f"Hydra cannot be imported: {finished.last_error}", fix),))
    if finished.code != 0:
        summary = f"{job.site.python} could not compose the configuration ({finished.ending}): {finished.last_error}"
        return Composition(nothing, (blocked(Check.HYDRA, summary, "fix the `python` of the site profile"),))
    answers: list[dict[str, Any]] = json.loads(finished.stdout.strip().splitlines()[-1])
    configs = tuple(answer.get("config") for answer in answers)
    return Composition(configs, _judge(job, answers))


def _judge(job: Job, answers: Sequence[Mapping[str, Any]]) -> tuple[Finding, ...]:
    errors = list(dict.fromkeys(answer["error"] for answer in answers if "error" in answer))
    if errors:
        fix = "correct the override, or choose a verl commit whose configuration has the key"
        return tuple(
            blocked(Check.HYDRA, f"verl's configuration refuses the overrides: {error}", fix) for error in errors
        )
    wrong = [mismatch(answers[-1]["config"], key, value) for key, value in sorted(job.expected.items())]
    fix = "correct the variable or override that sets it; otherwise the run does not test what the job claims"
    findings = tuple(blocked(Check.HYDRA, summary, fix) for summary in wrong if summary)
    return findings or (good(Check.HYDRA, f"the overrides compose; {len(wrong)} expected values are set"),)


def mismatch(config: Config, key: str, expected: bool | int | float | str | None) -> str:
    """How a composed configuration differs from an expected value, a sentence; empty when it does not."""
    missing = object()
    value: Any = config
    for part in key.split("."):
        value = value.get(part, missing) if isinstance(value, Mapping) else missing
    if value is not missing and _same(value, expected):
        return ""
    shown = "is missing" if value is missing else f"is {value!r}"
    return f"{key} {shown} in the composed configuration, the job expects {expected!r}"


def _same(value: object, expected: object) -> bool:
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    return value == expected


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
        return WrapperCheck(starts, _untried(Check.WRAPPER, Check.HYDRA))
    variables = {name: value for start in starts for name, value in start.phase.wrapper.items()}
    variables = {**wrapper_map(job, trees, base=base, model=model), **variables}
    text = script.read_text(errors="replace")
    reads, findings = check_contract(text, job.script, variables, droppable=DROPPABLE)
    if stops(findings):
        return WrapperCheck(starts, (*findings, *_untried(Check.HYDRA)))
    starts = launches(job, trees, session, base=base, model=model, reads=reads)
    called = [dry_call(start, work, cage=trees.cage) for start in starts]
    calls = [result for result in called if isinstance(result, DryCall)]
    findings = (*findings, *(result for result in called if isinstance(result, Finding)))
    for start, call in zip(starts, calls, strict=False):
        findings = (*findings, *check_dry_call(call, start))
    if stops(findings):
        return WrapperCheck(starts, (*findings, *_untried(Check.HYDRA)), reads)
    composed = compose(job, trees, calls)
    configs = tuple(config for config in composed.configs if config is not None)
    return WrapperCheck(starts, (*findings, *composed.findings), reads, configs, calls[0].environment)


def _untried(*checks: Check) -> tuple[Finding, ...]:
    return tuple(note(check, f"{check} was not checked, because an earlier check blocks the run") for check in checks)
