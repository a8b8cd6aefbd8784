"""Byte code: compiled once for the private trees, kept by commit, and used without looking at the source's time."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.runners.world import World, fingerprint, make_world
from verl_e2e.core.model.jobs import Repository
from verl_e2e_runner.preflight.bytecode import compile_trees
from verl_e2e_runner.trees.worktrees import prepare_trees

CORE = "megatron/core/__pycache__"


def test_the_second_run_unpacks_what_the_first_compiled(world: World, base: dict[str, str], tmp_path: Path) -> None:
    job = world.job()
    first = prepare_trees(job, tmp_path / "one", base=base)
    made = compile_trees(job, first, base, cache=tmp_path / "cache")
    assert (made.compiled, made.cached) == (("bridge", "megatron_lm", "verl"), ())
    second = prepare_trees(job, tmp_path / "two", base=base)
    again = compile_trees(job, second, base, cache=tmp_path / "cache")
    assert (again.compiled, again.cached) == ((), ("bridge", "megatron_lm", "verl"))
    (file,) = (second.megatron_lm / CORE).iterdir()
    assert file.read_bytes() == (first.megatron_lm / CORE / file.name).read_bytes()
    before = file.stat().st_mtime_ns
    code = "import megatron.core as core; print(core.VALUE, core.__spec__.cached)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=second.megatron_lm, env=base, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", str(file)]
    assert file.stat().st_mtime_ns == before


def test_without_a_cache_it_compiles_each_time(world: World, base: dict[str, str], tmp_path: Path) -> None:
    trees = prepare_trees(world.job(), tmp_path, base=base)
    assert compile_trees(world.job(), trees, base, cache=None).compiled == ("bridge", "megatron_lm", "verl")


def test_another_commit_has_other_byte_code(base: dict[str, str], tmp_path: Path) -> None:
    from tests.runners.world import commit

    world = make_world(tmp_path / "sources")
    compile_trees(world.job(), prepare_trees(world.job(), tmp_path / "one", base=base), base, cache=tmp_path / "cache")
    newer = commit(world.verl, {"verl/more.py": "x = 1\n"})
    job = world.job(verl=Repository(path=str(world.verl), commit=newer))
    made = compile_trees(job, prepare_trees(job, tmp_path / "two", base=base), base, cache=tmp_path / "cache")
    assert (made.compiled, made.cached) == (("verl",), ("bridge", "megatron_lm"))


def test_a_file_that_does_not_compile_is_left_to_the_import_that_needs_it(
    world: World, base: dict[str, str], tmp_path: Path
) -> None:
    trees = prepare_trees(world.job(), tmp_path, base=base)
    (trees.verl / "verl/template.py").write_text("{{ not python }\n")
    made = compile_trees(world.job(), trees, base, cache=tmp_path / "cache")
    assert made.incomplete == ("verl",)
    assert (trees.verl / "verl/trainer/__pycache__").is_dir()


@pytest.mark.parametrize("link", ["verl/links/__pycache__", "verl"])
def test_no_link_of_the_head_has_byte_code_written_elsewhere(
    world: World, base: dict[str, str], tmp_path: Path, link: str
) -> None:
    """Byte code is compiled outside of the cage, and Python loads this kind of it without a look at its source."""
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "json.py").write_text("x = 1\n")
    place = trees.verl / link
    if place.is_dir():
        place.rename(tmp_path / "before")
    else:
        place.parent.mkdir(parents=True)
        (place.parent / "json.py").write_text("x = 1\n")
    place.symlink_to(elsewhere)
    made = compile_trees(world.job(), trees, base, cache=tmp_path / "cache")
    assert [path.name for path in elsewhere.rglob("*")] == ["json.py"]
    assert (made.compiled, made.incomplete) == (("bridge", "megatron_lm"), ("verl",))
    assert not list((tmp_path / "cache").glob("bytecode-verl-*"))


def test_a_link_among_the_byte_code_of_the_head_is_not_kept(world: World, base: dict[str, str], tmp_path: Path) -> None:
    for folder in ("one", "two"):
        trees = prepare_trees(world.job(), tmp_path / folder, base=base)
        (trees.verl / "verl/trainer/__pycache__").mkdir(exist_ok=True)
        (trees.verl / "verl/trainer/__pycache__/gone.pyc").symlink_to(tmp_path / "nowhere")
        made = compile_trees(world.job(), trees, base, cache=tmp_path / "cache")
    assert made.cached == ("bridge", "megatron_lm", "verl")


def test_a_cut_archive_is_compiled_again(world: World, base: dict[str, str], tmp_path: Path) -> None:
    job = world.job()
    compile_trees(job, prepare_trees(job, tmp_path / "one", base=base), base, cache=tmp_path / "cache")
    for archive in (tmp_path / "cache").iterdir():
        archive.write_bytes(archive.read_bytes()[:700])
    made = compile_trees(job, prepare_trees(job, tmp_path / "two", base=base), base, cache=tmp_path / "cache")
    assert made.compiled == ("bridge", "megatron_lm", "verl")


def test_a_checkout_in_place_gets_no_byte_code(base: dict[str, str], tmp_path: Path) -> None:
    world = make_world(tmp_path / "sources")
    job = world.job(verl=Repository(path=str(world.verl), commit=world.verl_commit, in_place=True))
    trees = prepare_trees(job, tmp_path / "work", base=base)
    before = fingerprint(world.verl)
    assert compile_trees(job, trees, base, cache=None).compiled == ("bridge", "megatron_lm")
    assert fingerprint(world.verl) == before
