"""Parity in the gate: a job that is compared with its unsharded run, and the command that asks for every one."""

import re

import pytest
from backports import zstd

from tests.fakes.places import FIXTURES
from tests.stories.conftest import Story
from tests.stories.furnished import POLICY, POLICY_FILE
from tests.stories.recordings import SMOKE, job_of, left_by
from verl_e2e.adapters.files.folders import run_folders
from verl_e2e.app.judge_folder import judge_folders
from verl_e2e.core.compare.jobs import unsharded
from verl_e2e.core.judge.related_runs import related_run_of
from verl_e2e.core.model.record import LOG_FILE
from verl_e2e.core.model.related import RELATED_FILE, Related, Role

RUNS = FIXTURES / "runs"
# Hosts of two GPUs: parity stands for the default job of level 2.
OF_TWO_GPUS = f"""{POLICY}  - {{name: reduced, paths: [src/reduced/], levels: [2], reason: it reduces gradients}}
most_gpus: 2
stand_ins:
  - {{level: 2, settings: {{data: 2, adapter: none, parity: true}}}}
"""
TIED = f"""{POLICY}families:
  - family: qwen2
    paths: [src/qwen2/]
    synthetic: {{model_type: qwen2, architecture: Qwen2ForCausalLM}}
"""
# The recorded runs had a share of their GPUs, and say when they began.
SHARE, WHOLE = b"gpu_memory_utilization=0.096", b"gpu_memory_utilization=0.3"
BEGAN = re.compile(rb', "unix_s": [\d.]+')


def compared(story: Story, recording: str, reference: str) -> None:
    """The parity job ends as a recording did, and its unsharded run as another; an empty name for none."""
    (run,) = story.world.live_runs()
    left = {name: _of_today(name, text) for name, text in left_by(run, RUNS / recording).items()}
    if reference:
        folders, folder = run_folders(), RUNS / reference
        (verdict,), record, facts = judge_folders(folders, folder), folders.record(folder), folders.facts(folder)
        job = unsharded(job_of(run))
        made = related_run_of(Role.UNSHARDED, job, verdict, record, facts, folder="related/unsharded")
        left[RELATED_FILE] = Related(runs=(made,)).model_dump_json().encode()
    story.world.finish_run(left, run, artifact=f"verl-e2e-{run.inputs['key']}")
    story.service.settle()


def _of_today(name: str, content: bytes) -> bytes:
    text = zstd.decompress(content) if name == LOG_FILE else content
    for separator in (b"=", b'": ', b"': "):
        text = text.replace(SHARE.replace(b"=", separator), WHOLE.replace(b"=", separator))
    return zstd.compress(text) if name == LOG_FILE else BEGAN.sub(b"", text)


@pytest.mark.parametrize(
    ("recording", "reference", "gate", "text"),
    [
        ("level2-dp2", "level2-unsharded", "success", "All 2 required jobs passed"),
        ("level2-dp2-unaveraged", "level2-unsharded", "failure", "2.0876 against 1.7332 at step 1"),
        ("level2-dp2", "", "action_required", "there is no unsharded reference run"),
        ("level2-dp2", "level0-lora-exception", "action_required", "the unsharded reference run ended as Fail"),
    ],
)
def test_the_gate_is_what_the_comparison_with_the_unsharded_run_says(
    story: Story, recording: str, reference: str, gate: str, text: str
) -> None:
    world = story.world
    world.commit({POLICY_FILE: OF_TWO_GPUS}, "Compare")
    number = story.open("src/reduced/ddp.py")
    story.finish(SMOKE)
    assert [job for job, _ in story.live()] == ["2-dp2-adapter-none-steps3-parity"]
    compared(story, recording, reference)
    story.service.go_on()
    assert world.gate(number) == gate
    # Within the first lines, before any detail.
    assert text in world.card(number).partition("<details>")[0]


def test_one_command_asks_for_every_job_of_parity(story: Story) -> None:
    world = story.world
    world.commit({POLICY_FILE: TIED}, "Tie")
    number = story.open()
    story.say("alice", "/verl-e2e level2 parity")
    story.finish(SMOKE)
    jobs = {job_of(run).variant: job_of(run) for run in world.live_runs()}
    assert jobs.keys() == {"dp2-parity", "tp2-parity", "pp2-tied-parity"}
    assert {job.gpu_count for job in jobs.values()} == {2}
    assert len({unsharded(job).digest() for job in jobs.values()}) == 1
    assert world.gate(number) == "success"
