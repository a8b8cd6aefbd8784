"""The command as a user types it: whole processes, exit codes, one sentence for a mistake."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.fakes.command_server import verl_e2e
from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from tests.runners.world import World, make_world
from verl_e2e.adapters.demo_repository import build_demo_repository

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

RECORDING = ROOT / "bot" / "verl_e2e" / "demo" / "recording"
RUNS = ROOT / "tests" / "fixtures" / "runs"

# Our own GPU runs: the verdict, where it was decided, and a word that the card must show.
RECORDED = {
    # Of runs with an execution record and fingerprints (bench/results/planted-faults.md).
    "level0-branch-not-taken": ("Blocked", "train_step", "entered, but none of its changed lines ran"),
    "level0-export-writes-live": ("Fail", "export_weight_sync", "changed by 'after export'"),
    "level0-adapter-half-trained": ("Fail", "train_step", "weight decay alone moved it"),
    "level0-partly-executed": ("Pass", None, "1 of 2 functions, 1 of 3 lines"),
    "level0-stale-adapter-export": ("Fail", "export_weight_sync", "a stale copy"),
    "level1-head-not-restored": ("Fail", "checkpoint_load", "output_layer.weight: a stale copy"),
    "level1-moments-lost": ("Fail", "checkpoint_load", "exp_avg"),
    "level1-adapters-not-saved": ("Fail", "checkpoint_load", "linear_fc2.adapter.linear_in.weight (and 7 more)"),
    "level2-cp": ("Pass", None, "cp=2"),
    # Megatron-LM's finalize_model_grads does nothing: of the critic's whole weights each rank moves its copy.
    "level2-tp2-unaveraged": ("Fail", "train_step", "copies of a parameter of the critic differ"),
    # Whole-model training with distinct samples, and the same fault: on data-parallel ranks nothing but the gradient
    # norm shows it, which is compared with the unsharded run (tests/core/compare/test_steps.py).
    "level2-dp2": ("Blocked", "train_step", "there is no unsharded reference run: parity is not shown"),
    "level2-dp2-unaveraged": ("Blocked", "train_step", "there is no unsharded reference run: parity is not shown"),
    "level2-unsharded": ("Pass", None, "3 training steps"),
    "level2-pp2-tied-unaveraged": ("Fail", "train_step", "embedding.word_embeddings.weight: rank 1 holds other values"),
    "level3-full-two-ranks": ("Pass", None, "Megatron-FSDP"),
    "level1-fsdp-resume": ("Pass", None, "Megatron-FSDP"),
    "level3-adapter-export": ("Fail", "export_weight_sync", "mixed torch.Tensor and DTensor"),
    "level3-adapter-export-two-ranks": ("Fail", "export_weight_sync", "not enough values to unpack"),
    "level3-fsdp-two-ranks": ("Pass", None, "63 parameters are shared out over data-parallel ranks"),
    "level2-expert": ("Pass", None, "tp=2 ep=2"),
    "level0-bridge-not-on-path": ("Blocked", "import", "src does not exist"),
    "level0-bridge-test-failed": ("Fail", "bridge_provider", "1 of 62 focused Bridge tests failed"),
    "level0-dataset-missing": ("Blocked", "data", "does not exist"),
    "level0-image-tree-first": ("Pass", None, "Training Progress: 100%"),
    "level0-isolated": ("Pass", None, "Level 0"),
    "level0-isolated-hostile": ("Fail", "peft", "the adapter of this head is broken"),
    "level0-isolated-no-network": ("Pass", None, "Level 0"),
    # Nothing in a forged folder shows the forgery; where recorders are known, it is refused: no signature.
    "level0-not-isolated-forged": ("Pass", None, "Level 0"),
    "level0-lora-exception": ("Fail", "peft", "the input size is unknown"),
    "level0-lora-matches-nothing": ("Fail", "peft", "the adapter has 0 parameters"),
    "level0-no-modelopt": ("Blocked", "environment", "modelopt cannot be found"),
    "level0-other-bridge-on-path": ("Blocked", "import", "expected below"),
    "level0-swapped-export": ("Fail", "export_weight_sync", "correlate at 0.44393, below 0.995"),
    "level1-resume": ("Pass", None, "saved after step 1 and resumed from there"),
    "level1-uninterrupted": ("Pass", None, "2 training steps"),
    "level2-dense": ("Pass", None, "(tensor, pipeline) ranks (0, 0), (0, 1), (1, 0), (1, 1)"),
    # Its samples were copies of each other, so that the fault planted in it cannot show (docs/parity.md).
    "level2-dp-gradients-unfinalized": ("Pass", None, "data-parallel size 4"),
    # Of models made on the host; execution record or fingerprints are left out where the size asks for it.
    "level2-pp2-tied": ("Pass", None, "pp=2 (Level 2, pp2-tied)"),
    "level2-tp2-derived": ("Pass", None, "Changed code executed: 5 of 22 functions"),
    "level4-llama": ("Pass", None, "family llama active"),
    "level4-gemma3": ("Pass", None, "family gemma3 active"),
    # Started with three others at once, on a GPU that eleven runs and a neighbour shared.
    "level0-shared-gpu": ("Pass", None, "LoRA rank 4 and Megatron DDP"),
    # Defects of Bridge at this pin: packed adapters are saved without their process groups, and the attention of
    # Gemma 2 takes the padding mask for one of scores.
    "level1-shared-outer-not-saved": ("Fail", "checkpoint_save", "'pg_collection'"),
    "level4-mask-not-understood": ("Fail", "train_step", "must match the size of tensor b"),
    "level4-normalized-experts": ("Pass", None, "moe, family qwen3_moe active"),
    # Bridge takes the sigmoid of the router's scores, transformers and vLLM the softmax.
    "level4-ernie-router-score": ("Fail", "export_weight_sync", "correlate at 0.65569, below 0.995"),
    "level5-learning-rate-zero": ("Blocked", "learning_signal", "the learning rate is 0 at every step"),
    "level5-rising-cut-at-11": ("Blocked", "train_step", "the log ends at step 11 of 16"),
    "level5-signal": ("Pass", None, "learning-signal passed"),
}


def _verl_e2e(*arguments: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    clean = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    command = [*verl_e2e(), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=clean, timeout=HANG_S, input=stdin, check=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def test_every_recorded_run_is_known() -> None:
    assert {path.name for path in RUNS.iterdir()} == set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_our_own_gpu_runs_are_judged_right(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(RUNS / name, tmp_path / name)
    result, stage, word = RECORDED[name]
    done = _verl_e2e("judge", folder, "--json")
    assert done.returncode == {"Pass": 0, "Fail": 1, "Blocked": 4}[result], done.stderr
    verdict = json.loads((folder / "verdict.json").read_text())
    assert (verdict["result"], verdict["stage"]) == (result, stage)
    assert word in (folder / "card.txt").read_text()
    assert json.loads(done.stdout)["result"] == result


def test_the_same_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    judged = []
    for name in ("one", "another name"):
        folder = shutil.copytree(RECORDING, tmp_path / name)
        _verl_e2e("judge", folder)
        files = ("verdict.json", "evidence.json", "card.md", "card.txt")
        judged.append({file: (folder / file).read_bytes() for file in files})
    assert judged[0] == judged[1]


def test_the_demo_tells_a_story_from_the_plan_by_a_fail_with_its_line_to_green(tmp_path: Path) -> None:
    done = _verl_e2e("demo", "--out", tmp_path / "demo")
    assert (done.returncode, done.stderr) == (0, "")
    told = [
        *("Planning a change", "1. A pull request", "0-lora-ddp", "nothing was run here", "Result: Fail - "),
        *("peft/lora.py:189 in transform\n", 'raise ValueError(f"LoRA', "failed/jobs/0-lora-ddp/report.html\n"),
        *("3. The fix is pushed", "Result: Pass - ", "fixed/jobs/0-lora-ddp/report.html\n", "Try next:"),
    ]
    order = [done.stdout.index(text) for text in told]
    assert order == sorted(order)
    assert len(done.stdout.splitlines()) <= 40
    for name, result in (("failed", "Fail"), ("fixed", "Pass")):
        folder = tmp_path / "demo" / name
        assert json.loads((folder / "plan.json").read_text())["levels"] == [0]
        assert result in (folder / "jobs/0-lora-ddp/report.html").read_text()
    # Its last lines are commands that work as they stand.
    typed = [line.strip() for line in done.stdout.split("Try next:")[1].splitlines() if line[2:3] != " " and line]
    assert len(typed) == 3
    for line in typed:
        ended = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, check=False, timeout=HANG_S)
        assert ended.returncode == 0, f"{line}: {ended.stderr!r}"


def test_the_demo_as_json_is_the_card_of_the_run_that_passed() -> None:
    done = _verl_e2e("demo", "--json")
    assert json.loads(done.stdout)["result"] == "Pass"
    assert "Result: Fail - " in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        (b"actor/grad_norm:", b"actor/grad_norm:nan - x:", "Fail"),
        (b"training/rollout_actor_probs_pearson_corr:0.99", b"training/rollout_actor_probs_pearson_corr:0.91", "Fail"),
        (b"'vanilla_mbridge': False", b"'vanilla_mbridge': True", "Blocked"),
        (b"Training Progress: 100%", b"Training Progress:  50%", "Blocked"),
        (b"Adapter parameters:   106,496", b"Adapter parameters:   0", "Fail"),
    ],
)
def test_an_altered_log_changes_the_card(old: bytes, new: bytes, result: str, tmp_path: Path) -> None:
    folder = tmp_path / "demo/fixed"
    _verl_e2e("demo", "--out", folder.parent)
    before = _verl_e2e("card", folder).stdout
    log = folder / "jobs/0-lora-ddp/log.txt.zst"
    text = zstd.decompress(log.read_bytes())
    assert old in text
    log.write_bytes(zstd.compress(text.replace(old, new)))
    after = _verl_e2e("card", folder).stdout
    assert before.startswith("Result: Pass")
    assert after.startswith(f"Result: {result}")


def test_a_nan_in_a_real_learning_run_is_unstable(tmp_path: Path) -> None:
    # One metric through the whole command; tests/core/triage/test_silent.py puts a NaN into each.
    metric = "actor/grad_norm"
    folder = shutil.copytree(RUNS / "level5-signal", tmp_path / "run")
    log = folder / "log.txt.zst"
    text = zstd.decompress(log.read_bytes()).decode()
    lines = text.split("\n")
    (at,) = [number for number, line in enumerate(lines) if "step:12 - " in line]
    lines[at], count = re.subn(rf"{metric}:[^ ]+", f"{metric}:nan", lines[at])
    assert count == 1
    log.write_bytes(zstd.compress("\n".join(lines).encode()))
    done = _verl_e2e("judge", folder, "--json")
    assert done.returncode == 1, done.stderr
    verdict = json.loads((folder / "verdict.json").read_text())
    assert verdict["result"] == "Fail"
    assert f"{metric} is nan" in (folder / "card.txt").read_text()


def test_a_damaged_log_is_missing_evidence_and_no_mistake_of_the_users(tmp_path: Path) -> None:
    folder = shutil.copytree(RECORDING, tmp_path / "run")
    raw = bytearray((folder / "log.txt.zst").read_bytes())
    raw[len(raw) // 2 : len(raw) // 2 + 40] = bytes(40)
    (folder / "log.txt.zst").write_bytes(raw)
    done = _verl_e2e("judge", folder)
    assert done.returncode == 4, done.stderr
    assert "log.txt.zst" in (folder / "card.txt").read_text()


def test_plan_of_git_objects_as_json(tmp_path: Path) -> None:
    made = build_demo_repository(tmp_path / "bridge")
    done = _verl_e2e("plan", "--repo", made.path / ".git", "--base", made.base, "--head", made.head, "--json")
    plan = json.loads(done.stdout)
    assert (done.returncode, plan["schema"], plan["base"], plan["head"]) == (0, 2, made.base, made.head)
    keys = {"schema", "base", "head", "levels", "jobs", "reasons", "not_required", "families", "features"}
    keys |= {"minutes_to_answer"}
    also = {"bridge_tests", "incomplete", "notes", "looked_at", "changed", "not_covered", "not_entered", "unshown"}
    assert set(plan) == {*keys, *also}
    assert set(plan["reasons"][0]) == {"level", "path", "symbol", "reason", "via"}


def test_check_without_a_gpu_is_blocked_with_every_fix_and_the_whole_plan(world: World, tmp_path: Path) -> None:
    site = tmp_path / "site.yml"
    data = f"{{train_files: {world.root}/data/train.parquet, val_files: {world.root}/data/test.parquet, prepare: none}}"
    site.write_text(
        f"name: here\npython: {sys.executable}\nrequired_packages: [pydantic]\nmin_free_gib: 0\n"
        f"checkpoints:\n  Qwen/Qwen2.5-0.5B: {{model_id: org/tiny, model_path: {world.root}/model}}\ndata: {data}\n"
    )
    sha = world.bridge_commit
    done = _verl_e2e(
        *("check", "--repo", world.bridge, "--base", sha, "--head", sha, "--verl", world.verl, "--level", 0),
        *("--level", 1, "--site", site, "--out", tmp_path / "out"),
    )
    assert done.returncode == 4, done.stderr
    assert done.stdout.startswith("Result: Blocked - Level 0 blocked at environment: no GPU")
    rows = done.stdout.splitlines()
    assert max(map(len, rows)) <= 100
    told = done.stderr.splitlines()
    assert told[0].startswith("No GPU on this machine (")
    assert len(told) + len(rows) <= 15
    (first,) = [row for row in rows if row.startswith("1. ")]
    assert first.startswith("1. Run on a host with an NVIDIA driver")
    assert "Found: no GPU" in done.stdout
    assert "Level 1" in done.stdout
    order = [done.stderr.index(text) for text in ("Reading what verl", "Planning", "plan: levels 0, 1")]
    assert order == sorted(order)
    assert {job["id"] for job in json.loads((tmp_path / "out/plan.json").read_text())["jobs"]} >= {"0-lora-ddp"}
    assert _verl_e2e("card", tmp_path / "out").stdout.startswith("Result: Blocked")


def test_a_megatron_lm_that_is_no_repository_is_told_before_anything_runs(world: World, tmp_path: Path) -> None:
    sha = world.bridge_commit
    done = _verl_e2e(
        *("check", "--repo", world.bridge, "--base", sha, "--verl", world.verl, "--level", 0),
        *("--megatron-lm", tmp_path / "nowhere", "--out", tmp_path / "out"),
    )
    assert (done.returncode, "nowhere" in done.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--model", "../tiny", "--model ../tiny: no config.json in it; name the folder of a Hugging Face model"),
        ("--model", "tiny", "--model tiny: no model id; write it as on the Hugging Face Hub"),
        ("--steps", "0", "--steps 0: no number of steps; write a whole number from 1 to 1000"),
        ("--only", "7-*", "--only 7-*: no job of the plan has this id; its jobs: 0-lora-ddp"),
    ],
)
def test_a_check_of_what_there_is_not_is_one_error(
    world: World, tmp_path: Path, option: str, value: str, said: str
) -> None:
    sha = world.bridge_commit
    done = _verl_e2e(
        *("check", "--repo", world.bridge, "--base", sha, "--verl", world.verl, "--level", 0, option, value),
        *("--out", tmp_path / "out"),
    )
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("verl-e2e: ")]
    assert (done.returncode, said in error, (tmp_path / "out").exists()) == (2, True, False)


def test_triage_reads_standard_input_and_compressed_files() -> None:
    log = ROOT / "tests/fixtures/logs/level0-pass.log.xz"
    done = _verl_e2e("triage", log, "-", stdin="nothing\n")
    first, second = map(json.loads, done.stdout.splitlines())
    assert (done.returncode, first["verdict"], second["verdict"]) == (0, "pass", "blocked")
    keys = {"file", "verdict", "stage", "cause", "line", "excerpt", "residual_noise"}
    assert set(first) == keys | {"frame", "message", "run", "other_runs"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("judge", "nowhere"), "nowhere: not a folder"),
        (("card", "nowhere"), "nowhere: not a folder"),
        (("triage", "nowhere.log"), "nowhere.log"),
        (("run", "--job", "nowhere.json", "--out", "x"), "nowhere.json"),
        (("plan", "--repo", "nowhere", "--base", "a", "--head", "b"), "nowhere"),
        (("check", "--repo", "nowhere", "--base", "a", "--verl", "nowhere", "--out", "x"), "nowhere"),
        (("plan",), ". is not a git repository"),
        (("explain", "a.py"), ". is not a git repository"),
        (("run", "--job", "job.json", "--out", ""), "the path is empty"),
        (("run", "--job", "j", "--out", "x", "--keep-caches", "k", "--dry-run"), "--keep-caches needs a run"),
        (
            ("run", "--job", "j", "--out", "x", "--keep-caches", "/"),
            "--keep-caches / exists and is not an empty folder",
        ),
        (("judge", ""), "the path is empty"),
        (("frobnicate",), "No such command"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_2(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    clean = {"PATH": os.environ["PATH"]}
    command = [*verl_e2e(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=clean, cwd=tmp_path, timeout=HANG_S, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [("judge",), ("card",), ("signal",), ("parity", "{run}"), ("bands", "add", "--bands", "{bands}")],
    ids=lambda words: words[0],
)
def test_a_folder_without_a_run_is_a_mistake_and_stays_as_it_is(words: tuple[str, ...], tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "jobs" / "lint").mkdir(parents=True)
    (other / "jobs" / "lint" / "config.json").write_text("{}\n")
    (other / "notes.md").write_text("not ours\n")
    before = {str(path): path.stat().st_mtime_ns for path in other.rglob("*")}
    bands = tmp_path / "bands.yml"
    done = _verl_e2e(*(word.format(run=RUNS / "level0-isolated", bands=bands) for word in words), other)
    assert (done.returncode, "no run" in done.stderr) == (2, True), done.stderr
    assert {str(path): path.stat().st_mtime_ns for path in other.rglob("*")} == before
    assert not bands.exists()


@pytest.mark.parametrize("verb", ["plan", "run", "judge", "triage", "card", "check", "demo"])
def test_every_verb_has_help_with_an_example_and_json(verb: str) -> None:
    done = _verl_e2e(verb, "--help")
    assert done.returncode == 0
    assert "Example: verl-e2e" in done.stdout
    assert "--json" in done.stdout


def _piped(arguments: tuple[object, ...], **settings: object) -> subprocess.CompletedProcess[bytes]:
    clean = {"PATH": os.environ["PATH"], **settings.pop("env", {})}  # type: ignore[dict-item]
    command = [sys.executable, "-m", "verl_e2e", *map(str, arguments)]
    return subprocess.run(command, stderr=subprocess.PIPE, env=clean, timeout=HANG_S, check=False, **settings)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("verb", ["card", "triage"])
def test_a_reader_that_went_away_is_no_fail(verb: str) -> None:
    read, write = os.pipe()
    os.close(read)
    target = RECORDING if verb == "card" else RECORDING / "log.txt.zst"
    done = _piped((verb, target), stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_is_told_in_a_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        done = _piped(("card", RECORDING), stdout=full)
    assert done.returncode == 2
    assert b"No space left on device; free space" in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_knows_few_letters_gets_the_card_all_the_same(encoding: str) -> None:
    done = _piped(("card", RECORDING), stdout=subprocess.PIPE, env={"PYTHONIOENCODING": encoding})
    assert done.returncode == 0, done.stderr
    assert b"Training Progress: 100%|" in done.stdout


def test_a_closed_standard_input_is_the_users_mistake() -> None:
    done = _piped(("triage", "-"), stdout=subprocess.PIPE, preexec_fn=lambda: os.close(0))
    assert (done.returncode, b"standard input is closed" in done.stderr) == (2, True)


def _slow_job(world: World, tmp_path: Path) -> tuple[Path, str]:
    """A job whose preflight waits for a Python that never answers, and a word of that Python's command line."""
    word = f"sleep 61{os.getpid()}"
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{word}\n")
    python.chmod(0o755)
    job = tmp_path / "job.json"
    job.write_text(world.job(site=world.site(python=str(python))).model_dump_json())
    return job, word


def _wait_for(word: str, starter: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + HANG_S
    while not _running(word):
        assert starter.poll() is None, starter.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _running(word: str) -> list[str]:
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if word in line]


@pytest.mark.host
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_preflight_leaves_a_whole_folder_and_no_process(
    number: signal.Signals, world: World, tmp_path: Path
) -> None:
    job, word = _slow_job(world, tmp_path)
    command = [sys.executable, "-m", "verl_e2e", "run", "--job", str(job), "--out", str(tmp_path / "out")]
    clean = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": f"{tmp_path}-state",
    }
    # What starts the tests may ignore a signal, as nohup does with SIGHUP, and a child inherits that.
    before = signal.signal(number, signal.SIG_DFL)
    runner = subprocess.Popen(command, env=clean, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(number, before)
    _wait_for(word, runner)
    runner.send_signal(number)
    shown, words = runner.communicate(timeout=HANG_S)
    assert (runner.returncode, "Traceback" in words) == (130, False)
    assert f"Interrupted by {number.name} before" in shown
    events = [json.loads(line) for line in (tmp_path / "out/events.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events[-2:]] == ["ended", "left_running"]
    assert {path.name for path in tmp_path.iterdir()} == {"out", "python3", "job.json"}
    assert not _running(word)


@pytest.mark.host
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_check_ends_its_runner_and_keeps_the_folder(
    number: signal.Signals, world: World, tmp_path: Path
) -> None:
    _, word = _slow_job(world, tmp_path)
    site = tmp_path / "site.yml"
    data = f"{{train_files: {world.root}/data/train.parquet, val_files: {world.root}/data/test.parquet, prepare: none}}"
    site.write_text(f"name: here\npython: {tmp_path}/python3\nmin_free_gib: 0\ndata: {data}\n")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "verl_e2e", "check", "--repo", str(world.bridge), "--base", world.bridge_commit]
    command += ["--verl", str(world.verl), "--level", "0", "--site", str(site), "--out", str(out)]
    clean = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": f"{tmp_path}-state",
    }
    # A shell starts what runs in its background with SIGINT ignored, and the tests may run there.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    check = subprocess.Popen(command, env=clean, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    _wait_for(word, check)
    check.send_signal(number)
    _, words = check.communicate(timeout=HANG_S)
    assert (check.returncode, "Traceback" in words) == (130, False)
    assert not _running(word)
    assert f"Interrupted by {number.name}" in (out / "jobs/0-lora-ddp/card.txt").read_text()
