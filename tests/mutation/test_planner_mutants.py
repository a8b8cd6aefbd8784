"""No mutant of reached or imported code is planned as nothing: on a small package here, on a released Bridge online."""

import hashlib
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.fakes.small_bridge import BASE, USES
from tests.fakes.trees import FakeSummaries, FakeTrees, Files
from tests.mutation.campaign import Campaign, run
from tests.mutation.overlay import Overlay
from verl_e2e.app.plan_change import Planner
from verl_e2e.config.maps import packaged_uses
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.reach.entries import Uses

RELEASE = "megatron-bridge==0.3.1"
WHEEL = "sha256:4d9a9ad679bd927a84f923e5239512d72af7fa47331b749a8f275592c2920616"


def campaign(files: Files, uses: Uses) -> Campaign:
    policy = packaged_policy().model_copy(update={"bridge_test_choice": None})
    overlay = Overlay(FakeTrees({"base": files}), "base")
    return Campaign(overlay, Planner(overlay, uses, FakeSummaries()), policy)


def test_no_mutant_of_a_small_package_is_planned_as_nothing_and_no_harmless_edit_as_something() -> None:
    found, quiet = run(campaign(BASE, USES), count=150, seconds=60, seed=7, harmless=40)
    assert found.survivors == []
    assert quiet.survivors == []
    assert sum(found.tried.values()) >= 100
    assert sum(quiet.tried.values()) >= 30


@pytest.mark.online
def test_no_mutant_of_a_released_bridge_is_planned_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "pins.txt").write_text(f"{RELEASE} --hash={WHEEL}\n")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--dest",
        str(tmp_path),
    ]
    subprocess.run([*command, "-r", str(tmp_path / "pins.txt")], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == WHEEL.removeprefix("sha256:")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("megatron/") and name.endswith(".py")]
        files: Files = {f"src/{name}": archive.read(name) for name in names}
    seed = int(os.environ.get("MUTANTS_SEED", str(random.SystemRandom().randrange(10**6))))
    seconds = float(os.environ.get("MUTANTS_SECONDS", "600"))
    found, quiet = run(campaign(files, packaged_uses()), count=2000, seconds=seconds, seed=seed, harmless=200)
    assert found.survivors == [], f"seed {seed}"
    assert len(quiet.survivors) <= 0.05 * sum(quiet.tried.values()), f"seed {seed}"
