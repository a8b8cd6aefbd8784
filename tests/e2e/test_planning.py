"""The planning verbs as a user types them, on git repositories of our own making; and, opt-in, on the real ones."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.fakes import command_server
from tests.fakes.patience import HANG_S

GIT = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}
MAPPING = "src/megatron/bridge/models/conversion/auto_bridge.py"
BRIDGE = {
    "src/megatron/bridge/__init__.py": "from megatron.bridge.models.conversion.auto_bridge import AutoBridge\n",
    MAPPING: "class AutoBridge:\n    @classmethod\n    def from_hf_pretrained(cls, path):\n        return cls()\n\n"
    "    def export_hf_weights(self, model):\n        return []\n\n    def push(self):\n        return 0\n",
}
VERL = {
    "verl/models/engine.py": "from megatron.bridge import AutoBridge\n\nbridge = AutoBridge.from_hf_pretrained('x')\n"
    "bridge.export_hf_weights(model=1)\n"
}


def repository(path: Path, files: dict[str, str]) -> str:
    """Write and commit files; returns the commit."""
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "c")):
        subprocess.run(["git", *command], cwd=path, env=GIT, check=True, capture_output=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=path, env=GIT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def verl_e2e(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [*command_server.verl_e2e(), *map(str, arguments)]
    clean = {"PATH": os.environ["PATH"]}
    return subprocess.run(command, capture_output=True, text=True, env=clean, cwd=cwd, timeout=HANG_S, check=False)


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path, str, str]:
    """Bridge and verl, and a change of Bridge: base and head."""
    bridge, verl = tmp_path / "bridge", tmp_path / "verl"
    repository(verl, VERL)
    base = repository(bridge, BRIDGE)
    changed = BRIDGE[MAPPING].replace("return []", "return [model]").replace("return 0", "return 1")
    return bridge, verl, base, repository(bridge, {MAPPING: changed})


def test_a_plan_with_verl_shows_the_chain_and_a_second_one_uses_the_cache(
    trees: tuple[Path, Path, str, str], tmp_path: Path
) -> None:
    bridge, verl, base, head = trees
    arguments = ("plan", "--repo", bridge, "--base", base, "--head", head, "--verl", verl, "--cache", tmp_path / "c")
    first, second = verl_e2e(*arguments, "--json"), verl_e2e(*arguments, "--json")
    plan = json.loads(first.stdout)
    assert plan == json.loads(second.stdout)
    assert plan["levels"] == [0, 1]
    assert {reason["symbol"] for reason in plan["reasons"]} == {"AutoBridge.export_hf_weights"}
    assert plan["reasons"][0]["via"][0] == "verl/models/engine.py:4 uses .export_hf_weights (uncertain)"
    assert "Reach starts from verl" in first.stderr
    assert list((tmp_path / "c").iterdir())


def test_ends_between_which_nothing_lies_are_named(trees: tuple[Path, Path, str, str], tmp_path: Path) -> None:
    bridge, verl, base, head = trees
    check = ("check", "--verl", verl, "--out", tmp_path / "out")
    for command in (("plan",), check):
        for ends, words in (
            ((head, base), f"{base[:12]} is in the history of {head[:12]}, so it changes nothing; swap the two"),
            (("HEAD", head), f"--base HEAD and --head {head} are the same commit, {head[:12]}"),
        ):
            done = verl_e2e(*command, "--repo", bridge, "--base", ends[0], "--head", ends[1])
            assert (done.returncode, words in done.stderr, done.stdout) == (2, True, ""), done.stderr


def test_a_plan_in_a_checkout_is_that_of_its_head_against_the_remotes_default_branch(
    trees: tuple[Path, Path, str, str], tmp_path: Path
) -> None:
    bridge, verl, base, head = trees
    alone = verl_e2e("plan", "--repo", bridge)
    assert (alone.returncode, "does not know the default branch of its remote" in alone.stderr) == (2, True)
    clone = tmp_path / "clone"
    for command in (("branch", "-f", "main", base), ("checkout", "-q", "main"), ("clone", "-q", bridge, clone)):
        subprocess.run(["git", *map(str, command)], cwd=bridge, env=GIT, check=True, capture_output=True)
    subprocess.run(["git", "checkout", "-q", head], cwd=clone, env=GIT, check=True, capture_output=True)
    planning = [*command_server.verl_e2e(), "plan", "--full", "--verl", str(verl)]
    clean = {"PATH": os.environ["PATH"]}
    done = subprocess.run(planning, capture_output=True, text=True, env=clean, cwd=clone, timeout=HANG_S, check=False)
    first, second, *_ = done.stdout.splitlines()
    assert first == f"Plan for {base[:12]}..{head[:12]}: level 0, 1"
    # Which verl that is, and that it is another one than the policy's, comes first.
    assert second.startswith("Reach starts from verl ")
    assert "and not from 9097cc4d4c9c, which the policy pins" in second


def test_what_does_not_exist_is_not_explained(trees: tuple[Path, Path, str, str]) -> None:
    bridge, *_ = trees
    done = verl_e2e("explain", "--repo", bridge, f"{MAPPING}:AutoBridge.nothing")
    assert (done.returncode, "has no symbol AutoBridge.nothing; did you mean" in done.stderr) == (2, True)


def test_a_plan_without_verl_says_so_and_a_plain_folder_serves(trees: tuple[Path, Path, str, str]) -> None:
    bridge, verl, base, head = trees
    plain = verl_e2e("plan", "--repo", bridge, "--base", base, "--head", head)
    assert len(plain.stdout.splitlines()) <= 25
    assert "no verl checkout was given" in plain.stdout
    missing = verl_e2e("plan", "--full", "--repo", bridge, "--base", base, "--head", head, "--verl", verl)
    assert "has no tests/special_e2e/run_ppo_trainer_megatron.sh, so these jobs cannot run: 0-" in missing.stdout
    assert "cannot run" not in plain.stdout
    (verl / ".git").rename(verl.parent / "elsewhere")
    unpacked = verl_e2e("plan", "--full", "--repo", bridge, "--base", base, "--head", head, "--verl", verl)
    assert "AutoBridge.export_hf_weights, from verl/models/engine.py:4" in unpacked.stdout


def test_a_broken_contract_is_told_with_verls_line(trees: tuple[Path, Path, str, str]) -> None:
    bridge, verl, base, _ = trees
    head = repository(bridge, {MAPPING: BRIDGE[MAPPING].replace("(self, model)", "(self, models)")})
    done = verl_e2e("plan", "--repo", bridge, "--base", base, "--head", head, "--verl", verl)
    assert "break: verl/models/engine.py:4" in done.stdout
    assert "no parameter 'model'" in " ".join(done.stdout.split())


def test_explain_lint_schema_and_imports(trees: tuple[Path, Path, str, str]) -> None:
    bridge, verl, _, _ = trees
    shown = verl_e2e("explain", f"{MAPPING}:AutoBridge.push", MAPPING, "--repo", bridge, "--verl", verl)
    assert "AutoBridge.push: asks for nothing, verl does not reach it" in shown.stdout
    assert "AutoBridge.export_hf_weights: level 0, 1" in shown.stdout
    findings = json.loads(verl_e2e("policy", "check", "--repo", bridge, "--verl", verl, "--json").stdout)
    assert any("multi-LoRA: its paths meet no file" in finding for finding in findings)
    assert any("feature moe: script: verl" in finding and "has no tests/" in finding for finding in findings)
    alone = json.loads(verl_e2e("policy", "check", "--repo", bridge, "--json").stdout)
    assert not any("feature moe" in finding for finding in alone)
    assert "reach" in json.loads(verl_e2e("policy", "schema").stdout)["properties"]
    listed = json.loads(verl_e2e("policy", "imports", "--verl", verl).stdout)
    assert {(load["module"], load["attribute"]) for load in listed["entries"]} >= {("megatron.bridge", "AutoBridge")}


def test_backtest_of_labels_and_of_history(trees: tuple[Path, Path, str, str], tmp_path: Path) -> None:
    bridge, verl, base, head = trees
    rows = [
        {"pr": 1, "title": "right", "base": base, "head": head, "required": [0], "optional": [1], "why": ["note"]},
        {"pr": 2, "title": "lost", "base": "0" * 40, "head": head, "required": [0], "optional": []},
    ]
    (tmp_path / "labels.json").write_text(json.dumps(rows))
    done = verl_e2e("backtest", tmp_path / "labels.json", "--repo", bridge, "--verl", verl, "--json")
    report = json.loads(done.stdout)
    assert (report["recall"], report["precision"], report["exact"]) == (0.5, 1.0, 0.5)
    assert "is not in" in report["prs"][1]["problem"]
    replayed = json.loads(verl_e2e("backtest", "--history", 9, "--repo", bridge, "--verl", verl, "--json").stdout)
    assert (replayed["commits"], replayed["runs"]["0"]) == (1, 1)
    assert verl_e2e("backtest", "--repo", bridge).returncode == 2
    (tmp_path / "labels.json").write_text('[{"pr": 1, "base": "x"}]')
    wrong = verl_e2e("backtest", tmp_path / "labels.json", "--repo", bridge)
    assert (wrong.returncode, "0.base" in wrong.stderr, "Traceback" in wrong.stderr) == (2, True, False)


@pytest.mark.labelled
def test_the_figures_and_the_speed_on_the_real_repositories(tmp_path: Path) -> None:
    labels, bridge, verl = (os.environ[name] for name in ("LABELS", "BRIDGE_REPO", "VERL_REPO"))
    started = time.monotonic()
    done = verl_e2e("backtest", labels, "--repo", bridge, "--verl", verl, "--cache", tmp_path, "--json")
    assert time.monotonic() - started <= 90
    report = json.loads(done.stdout)
    assert report["recall"] >= 0.97
    assert report["precision"] >= 0.90
    assert report["safe"] >= 0.96
    assert report["exact"] >= 0.85
