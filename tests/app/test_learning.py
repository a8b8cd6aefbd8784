"""The learning signal of run folders on request, and the figure that a judgement leaves."""

from pathlib import Path
from typing import Any

import pytest

from tests.core.builders import make_facts, make_record
from tests.core.judge.criteria.test_signal import base, facts, job
from tests.core.signal.series import noisy, run_of
from tests.fakes.run_folders import FakeFolders
from verl_e2e.app.judge_folder import NoSignalError, Source, judge_folders, signal_of, source_of, write_judgement
from verl_e2e.core.model.facts import LogFacts
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.record import Record
from verl_e2e.core.model.related import RELATED_FILE, Related
from verl_e2e.core.signal.report import SignalOutcome

RISING, LEVEL = run_of(noisy(0, 0.3)), run_of(noisy(3))
MAIN = Path("out/jobs/5-signal")


def folders(*runs: tuple[str, Record, LogFacts | None]) -> FakeFolders:
    made = FakeFolders()
    for name, record, seen in runs:
        made.records[Path(name)] = record
        if seen is not None:
            made.logs[Path(name)] = seen
    return made


def signal_run(steps: Any = RISING) -> tuple[str, Record, LogFacts]:
    return str(MAIN), make_record(job=job()), facts(steps)


def bare(name: str, steps: Any) -> Source:
    return Source(Path(name), make_facts(steps=steps))


def test_a_folder_is_judged_as_its_job_asks() -> None:
    services = folders(signal_run())
    found = signal_of(source_of(services, MAIN))
    assert found.report.outcome is SignalOutcome.PASSED
    assert found.figure.title == f"5-signal, Bridge {'a' * 12}: learning-signal passed"
    assert signal_of(source_of(folders(signal_run(RISING[:14])), MAIN)).report.cause == "the run stops at step 14 of 20"


def test_the_level_5_folder_of_a_whole_check_is_found() -> None:
    services = folders(signal_run(), ("out/jobs/0-lora-ddp", make_record(), make_facts()))
    assert source_of(services, Path("out")).path == MAIN


def test_the_baselines_of_the_folder_count_unless_others_are_given() -> None:
    services = folders(signal_run(LEVEL))
    services.files[MAIN] = {RELATED_FILE: Related(runs=(base(RISING),)).model_dump_json()}
    source = source_of(services, MAIN)
    assert signal_of(source).report.failed
    assert signal_of(source).figure.baselines == 1
    other = signal_of(source, baselines=[bare("a.log", LEVEL), bare("b.log", LEVEL)])
    assert (other.report.failed, [baseline.name for baseline in other.report.baselines]) == (False, ["a.log", "b.log"])


def test_a_bare_log_has_no_job_and_the_common_limits() -> None:
    steps = run_of(noisy(0, 0.3), response_length__clip_ratio=0.7)
    assert signal_of(bare("run.log", steps)).figure.title == "run.log: weak evidence"
    assert signal_of(bare("run.log", steps), max_cap_share=0.8).report.outcome is SignalOutcome.PASSED


def test_nothing_to_compare_is_the_users_mistake() -> None:
    with pytest.raises(NoSignalError, match=r"^b\.log: its log shows no training step; give a run that trained$"):
        signal_of(bare("a", RISING), baselines=[bare("b.log", ())])


@pytest.mark.parametrize(
    ("services", "text"),
    [
        (folders(), "holds 0 run folders of level 5; name the folder of one run"),
        (folders((str(MAIN), make_record(job=job()), None)), "no log in it; give the folder of a run, or a log"),
    ],
)
def test_a_folder_without_a_signal_is_the_users_mistake(services: FakeFolders, text: str) -> None:
    with pytest.raises(NoSignalError, match=text):
        source_of(services, MAIN)


@pytest.mark.parametrize(("level", "drawn"), [(Level.LEARNING_SIGNAL, True), (Level.SMOKE, False)])
def test_a_judgement_of_level_5_leaves_its_figure(level: Level, drawn: bool) -> None:
    services = folders(signal_run() if level is Level.LEARNING_SIGNAL else (str(MAIN), make_record(), make_facts()))
    write_judgement(services, MAIN, judge_folders(services, MAIN))
    assert (MAIN in services.figures) is drawn
    assert "figure" not in services.files[MAIN]["verdict.json"]
