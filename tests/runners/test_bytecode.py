"""Byte code: compiled once for the private trees, kept by commit, and used without looking at the source's time."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runners.world import World, fingerprint, make_world
from verl_e2e.core.model.jobs import Job, Repository
from verl_e2e_runner.isolation import find_isolation, open_cage
from verl_e2e_runner.preflight.bytecode import compile_trees
from verl_e2e_runner.trees import prepare_trees

CORE = "megatron/core/__pycache__"
# Small sources that a compiler takes very much memory or depth for.
HOSTILE = {
    "a long chain of names": "import " + ".".join("a" * 30_000),
    "a long chain of names from": "from " + ".".join("a" * 30_000) + " import x",
    "deep parentheses": "(" * 190 + "1" + ")" * 190,
    "too deep": "(" * 100_000,
    "many signs": "x = " + "-" * 100_000 + "1",
    "a long sum": "x = " + " + ".join("a" * 100_000),
    "a huge number": "x = " + "9" * 400_000,
    "many decorators": "@a\n" * 50_000 + "def f(): pass\n",
    "not a text": "x = '\0'",
}
# The job's Python, which leaves the most memory that it took, in KiB.
MEASURED = """\
#!{python}
import resource, subprocess, sys
code = subprocess.run([{python!r}, *sys.argv[1:]]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=open({kept!r}, "a"))
sys.exit(code if code >= 0 else 1)
"""


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


def with_python(job: Job, folder: Path) -> Job:
    """The job with a Python that says how much memory it took, in the file `memory` of the folder."""
    python = folder / "python"
    python.write_text(MEASURED.format(python=sys.executable, kept=str(folder / "memory")))
    python.chmod(0o755)
    return job.model_copy(update={"site": job.site.model_copy(update={"python": str(python)})})


def test_a_small_file_of_the_head_takes_no_more_memory_than_the_limit(
    world: World, base: dict[str, str], tmp_path: Path
) -> None:
    job = with_python(world.job(), tmp_path)
    trees = replace(prepare_trees(job, tmp_path / "trees", base=base), private=frozenset({"verl"}))
    whole = []
    for name, text in HOSTILE.items():
        (trees.verl / "verl/a_big.py").write_text(text)
        made = compile_trees(job, trees, base, cache=None)
        assert made.compiled == ("verl",)
        if not made.incomplete:
            whole.append(name)
    assert max(map(int, (tmp_path / "memory").read_text().split())) < 600 << 10
    assert "a long chain of names" not in whole
    assert list((trees.verl / "verl/trainer/__pycache__").glob("*.pyc"))


def test_the_time_limit_is_for_all_trees_together(world: World, base: dict[str, str], tmp_path: Path) -> None:
    job = with_python(world.job(), tmp_path)
    trees = prepare_trees(job, tmp_path / "trees", base=base)
    (tmp_path / "python").write_text(f"#!/bin/sh\necho >> {tmp_path}/memory\nexec sleep 60\n")
    made = compile_trees(job, trees, base, cache=None, timeout_s=0.5)
    assert made.incomplete == ("bridge", "megatron_lm", "verl")
    assert (tmp_path / "memory").read_text() == "\n"


@pytest.mark.bwrap
def test_byte_code_is_compiled_in_the_cage(world: World, base: dict[str, str], tmp_path: Path) -> None:
    """A job's Python that writes next to the sources can do so only outside of the cage; the byte code arrives."""
    job, own = world.job(), tmp_path / "own"
    own.mkdir()
    tools = find_isolation(job, base).tools
    assert tools is not None
    trees = prepare_trees(job, own, base=base, caged=True)
    caged = replace(trees, cage=open_cage(job, trees, tools, own, tmp_path / "out", base))
    (trees.verl / "verl/a_big.py").write_text(HOSTILE["a long chain of names"])
    made = compile_trees(job, caged, base, cache=None)
    assert (made.compiled, made.incomplete) == (("bridge", "megatron_lm", "verl"), ("verl",))
    assert list((trees.megatron_lm / CORE).glob("*.pyc"))
    assert list((trees.verl / "verl/trainer/__pycache__").glob("*.pyc"))
    compile_trees(with_python(job, tmp_path), caged, base, cache=None)
    assert not (tmp_path / "memory").exists()


@pytest.mark.parametrize("link", ["verl/links/__pycache__", "verl"])
def test_no_link_of_the_head_has_byte_code_written_elsewhere(
    world: World, base: dict[str, str], tmp_path: Path, link: str
) -> None:
    """The recorder puts byte code next to its source, and Python loads this kind of it without a look at that."""
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


@pytest.mark.parametrize("kind", ["link", "folder", "file"])
def test_what_the_head_put_in_the_place_of_byte_code_is_never_followed(
    world: World, base: dict[str, str], tmp_path: Path, kind: str
) -> None:
    trees = prepare_trees(world.job(), tmp_path / "trees", base=base)
    elsewhere = tmp_path / "elsewhere.pyc"
    elsewhere.write_text("kept")
    (trees.verl / "verl/own.py").write_text("x = 1\n")
    place = trees.verl / "verl/__pycache__"
    name = f"own.{sys.implementation.cache_tag}.pyc"
    if kind == "file":
        place.write_text("no folder")
    else:
        place.mkdir(exist_ok=True)
        (place / name).mkdir() if kind == "folder" else (place / name).symlink_to(elsewhere)
    made = compile_trees(world.job(), trees, base, cache=None)
    assert made.compiled == ("bridge", "megatron_lm", "verl")
    assert elsewhere.read_text() == "kept"
    assert (place / name).is_file() is (kind == "link")


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
