"""SkyRL: the command of each phase of a job, and what SkyRL's own parser makes of it before a run.

There is no script: `python -m skyrl.train.entrypoints.main_base KEY=VALUE...` hands over to the instrumentation's
`verl_e2e_skyrl`, which adds an environment and says the metrics in full.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_e2e.core.consumer.skyrl import ENTRY_KEY, SKYRL, command
from verl_e2e.core.model.jobs import Job
from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.launch.launcher import (
    INSTRUMENTATION,
    Config,
    Launch,
    LaunchCheck,
    Launcher,
    data_texts,
    launch_of,
    mismatch,
    run_variables,
)
from verl_e2e_runner.process.cage import IMPORTS_VARIABLE, Cage, Session, inherited
from verl_e2e_runner.process.processes import FinishedProgram, run_program, with_own_scratch
from verl_e2e_runner.reporting import blocked, good, stops, untried
from verl_e2e_runner.trees import Trees

# Its workers' and engine's output in its own log, and the path of the checkouts in workers of an existing cluster.
_VARIABLES = {
    "VERL_E2E_CONSUMER": SKYRL.package,
    "SKYRL_DUMP_INFRA_LOG_TO_STDOUT": "1",
    "SKYRL_PYTHONPATH_EXPORT": "1",
    "NVTE_FLASH_ATTN": "0",
}
_MODULE = INSTRUMENTATION / "verl_e2e_skyrl.py"
_CANNOT_IMPORT = 3
_START_S, _EACH_S = 180, 5


def _places(job: Job, trees: Trees, base: Mapping[str, str], model: str | None) -> tuple[str, ...]:
    """The keys that say where model, data and results of a run lie."""
    files = data_texts(job, {**base, **job.site.process, **job.process})
    path = job.checkpoint.model_path or model or job.checkpoint.model_id
    # Not "skyrl": in a cage that is a link to the package, which a run may not write into.
    made = trees.cwd / "outputs"
    return (
        f"{ENTRY_KEY}={_MODULE.stem}",
        f"trainer.policy.model.path={path}",
        f"data.train_data=['{files['train_files']}']",
        f"data.val_data=['{files['val_files']}']",
        f"trainer.log_path={made / 'log'}",
        f"trainer.ckpt_path={trees.cwd / 'checkpoints'}",
        f"trainer.export_path={made / 'exports'}",
    )


def skyrl_launches(
    job: Job,
    trees: Trees,
    session: Session,
    *,
    base: Mapping[str, str],
    model: str | None = None,
    reads: Collection[str] | None = None,
) -> tuple[Launch, ...]:
    """One start for each phase; nothing reads a variable of the job, so `reads` plays no part."""
    del reads
    kept = inherited(base, wrapper_reads=())
    variables = {**_VARIABLES, **run_variables(job, trees, session)}
    made = []
    for phase in SKYRL.phases(job):
        places = _places(job, trees, base, model)
        arguments = command({**job.wrapper, **phase.wrapper}, (*places, *job.overrides, *phase.overrides))
        argv = (job.site.python, "-m", SKYRL.entry_point, *arguments)
        made.append(launch_of(job, trees, phase, argv, kept=kept, variables=variables, base=base))
    return tuple(made)


def parsed_configs(
    asked: Sequence[Sequence[str]], python: str, *, env: Mapping[str, str], cwd: Path, cage: Cage | None = None
) -> list[dict[str, Any]] | FinishedProgram:
    """What SkyRL's parser and checks say to each list of arguments; how the program ended where it gave no answer."""
    finished = run_program(
        (python, "-m", _MODULE.stem),
        env=env,
        cwd=cwd,
        timeout_s=_START_S + _EACH_S * len(asked),
        stdin=json.dumps([{"arguments": list(arguments)} for arguments in asked]),
        cage=cage,
    )
    if finished.code != 0:
        return finished
    answers: list[dict[str, Any]] = json.loads(finished.stdout.strip().rpartition("\n")[2])
    return answers


def check_launches(
    job: Job, trees: Trees, session: Session, *, base: Mapping[str, str], model: str | None, work: Path
) -> LaunchCheck:
    """Ask SkyRL's parser about every phase, and hold the last configuration against the job."""
    del work
    starts = skyrl_launches(job, trees, session, base=base, model=model)
    if not trees.has("verl"):
        return LaunchCheck(starts, untried(Check.WRAPPER, Check.HYDRA))
    if job.checkpoint.dummy_config is not None:
        fix = "name a folder with random weights, or a recipe of a synthetic model"
        found = blocked(Check.WRAPPER, "SkyRL has no switch for a model without weights", fix)
        return LaunchCheck(starts, (found, *untried(Check.HYDRA)))
    env = {name: value for name, value in starts[0].environment.items() if name != IMPORTS_VARIABLE}
    answers = parsed_configs(
        [start.argv[3:] for start in starts],
        job.site.python,
        env=env,
        cwd=trees.cwd,
        cage=with_own_scratch(trees.cage, "composition"),
    )
    findings, configs = _judged(job, answers)
    if not stops(findings):
        findings = (good(Check.WRAPPER, f"SkyRL's own parser takes all {len(starts[0].argv) - 3} keys"), *findings)
    return LaunchCheck(starts, findings, configs=configs, driver_environment=starts[0].environment)


def _judged(
    job: Job, answers: list[dict[str, Any]] | FinishedProgram
) -> tuple[tuple[Finding, ...], tuple[Config, ...]]:
    python = job.site.python
    if isinstance(answers, FinishedProgram):
        if answers.code == _CANNOT_IMPORT:
            summary = f"SkyRL's configuration cannot be imported: {answers.last_error}"
            fix = f"install what it names for {python}, or choose a SkyRL commit that imports with these packages"
        else:
            summary = f"{python} could not ask SkyRL's parser ({answers.ending}): {answers.last_error}"
            fix = "fix the `python` of the site profile"
        return (blocked(Check.HYDRA, summary, fix),), ()
    configs = tuple(answer["config"] for answer in answers if "config" in answer)
    if errors := dict.fromkeys(answer["error"] for answer in answers if "error" in answer):
        fix = "correct the key or its value, or choose a SkyRL commit that has the key"
        refused = (f"SkyRL refuses the configuration: {error}" for error in errors)
        return tuple(blocked(Check.HYDRA, summary, fix) for summary in refused), configs
    wrong = [mismatch(configs[-1], key, value) for key, value in sorted(job.expected.items())]
    fix = "correct what sets it; otherwise the run does not test what the job claims"
    found = tuple(blocked(Check.HYDRA, summary, fix) for summary in wrong if summary)
    return found or (good(Check.HYDRA, f"the configuration has all {len(wrong)} expected values"),), configs


SKYRL_LAUNCHER = Launcher(
    launches=skyrl_launches,
    check=check_launches,
    reads=lambda _text: frozenset(),
    data=lambda job, trees, folder: (
        (job.site.python, str(trees.verl / "examples/train/gsm8k/gsm8k_dataset.py"), "--output_dir", str(folder)),
        {"train_files": folder / "train.parquet", "val_files": folder / "validation.parquet"},
    ),
    variables=lambda _job, _trees, _base: _VARIABLES,
)
