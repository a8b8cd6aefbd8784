"""The fixture repositories, built once, and the proof that no test changed a byte of them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runners.world import World, fingerprint, make_world
from verl_e2e_runner.process.cage import Session
from verl_e2e_runner.trees import Trees, prepare_trees

BASE = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = make_world(tmp_path_factory.mktemp("world"))
    before = fingerprint(made.root)
    yield made
    assert fingerprint(made.root) == before, "a test changed the user's repositories"


@pytest.fixture
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a whole run has of its runner; nothing of it lies in `tmp_path`."""
    return {**BASE, "VERL_E2E_RECORDER_KEY": str(tmp_path_factory.mktemp("key") / "recorder.key")}


@pytest.fixture
def base() -> dict[str, str]:
    return dict(BASE)


@pytest.fixture(scope="session")
def shared_trees(world: World, tmp_path_factory: pytest.TempPathFactory) -> Trees:
    """Private trees of the standard job, for tests that only read them."""
    return prepare_trees(world.job(), tmp_path_factory.mktemp("trees"), base=BASE)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session("0123456789abcdef", tmp_path / "ray", tmp_path / "imports.jsonl")
