"""The house rules that no tool checks by itself: imports between packages, what is imported, locked and shipped."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.fakes.patience import HANG_S
from tests.fakes.places import ROOT
from verl_e2e.cli import cli
from verl_e2e.core.consumer.consumers import VARIANTS
from verl_e2e.core.judge.criteria.table import Criterion

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = ("run", "dev", "all")
# What another Python runs: its imports are that Python's.
IN_OTHER_PROGRAMS = {"instrumentation", "host_python"}
HEAVY = {"hydra", "matplotlib", "numpy", "pandas", "ray", "torch", "verl_e2e_runner"}


def call(*argv: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    ours = ("LEAVE_OUT", "PYTEST_ADDOPTS", "PYTHONPATH", "REQUIRE_ALL")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    words = [str(word) for word in argv]
    variables = inherited | environment
    return subprocess.run(words, check=False, cwd=cwd, env=variables, capture_output=True, text=True, timeout=HANG_S)


def our_sources(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from (path for path in (ROOT / package).rglob("*.py") if not {*path.parts} & IN_OTHER_PROGRAMS)


def imported_roots(path: Path) -> set[str]:
    """Top-level names that a file imports, at any depth of nesting; `backports` keeps its second part."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {_root(name) for name in names}


def _root(name: str) -> str:
    """The top-level name; of a namespace that several distributions share, as much as tells them apart."""
    return ".".join(name.split(".")[: 2 if name.startswith("backports.") else 1])


def third_party(*packages: str) -> set[str]:
    found = {name for path in our_sources(*packages) for name in imported_roots(path)}
    # `compression.zstd` is the standard library's from Python 3.14 on, and backports.zstd before.
    return found - set(sys.stdlib_module_names) - {"verl_e2e", "verl_e2e_runner", "compression"}


def locked(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return {
        canonicalize_name(found[1]): found[2] for found in re.finditer(r"^([A-Za-z0-9._-]+)==([^\s;]+)", text, re.M)
    }


# Each line would break one arrow: where it is planted, what it says, and the contract that must notice.
PLANTED = (
    ("bot/verl_e2e/core/model/outcome.py", "import os", "verl_e2e.core is pure"),
    ("bot/verl_e2e/app/planted.py", "import verl_e2e.adapters.planted", "Imports point down through the layers"),
    ("bot/verl_e2e/attic.py", "", "Imports point down through the layers"),
    ("bot/verl_e2e/core/model/outcome.py", "import verl_e2e.core.judge.decide", "Imports point down inside core"),
    ("bot/verl_e2e/adapters/planted.py", "import verl_e2e.adapters.other", "Adapters never import each other"),
    (
        "runners/verl_e2e_runner/planted.py",
        "import verl_e2e.ports",
        "The runner knows verl_e2e.core, verl_e2e.git and nothing else of verl_e2e",
    ),
    ("runners/verl_e2e_runner/trees.py", "import verl_e2e_runner.place", "Imports point down inside the runner"),
    ("runners/verl_e2e_runner/attic.py", "", "Imports point down inside the runner"),
    ("bot/verl_e2e/core/pulls/ledger.py", "import verl_e2e.core.pulls.decide", "No circles inside any package"),
    ("bot/verl_e2e/app/planted.py", "import verl_e2e.git.program", "Only the adapters, the wiring and the runner use"),
    ("bot/verl_e2e/wiring/check.py", "import verl_e2e_runner", "Only the command line starts the runner"),
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of our packages, with the ones that a planted line needs made where they do not exist yet."""
    copy = tmp_path_factory.mktemp("packages")
    for package in ("bot", "runners"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("bot/verl_e2e/adapters", "bot/verl_e2e/app", "runners/verl_e2e_runner"):
        (copy / folder).mkdir(exist_ok=True)
        (copy / folder / "__init__.py").touch()
    for module in (
        "bot/verl_e2e/ports",
        "bot/verl_e2e/wiring",
        "bot/verl_e2e/cli",
        "bot/verl_e2e/adapters/planted",
        "bot/verl_e2e/adapters/other",
    ):
        (copy / f"{module}.py").touch()
    shutil.copy(ROOT / "pyproject.toml", copy)
    return copy


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(folder / "bot"), str(folder / "runners")))
    return call(Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache", cwd=folder, PYTHONPATH=path)


def test_the_arrows_hold() -> None:
    answer = lint_imports(ROOT)
    assert answer.returncode == 0, answer.stdout


@pytest.mark.parametrize(("file", "line", "contract"), PLANTED)
def test_a_planted_arrow_is_refused(packages: Path, file: str, line: str, contract: str) -> None:
    path = packages / file
    before = path.read_text() if path.exists() else None
    path.write_text(f"{before or ''}\n{line}\n")
    answer = lint_imports(packages)
    path.unlink() if before is None else path.write_text(before)
    assert answer.returncode == 1
    assert re.search(rf"^{re.escape(contract)}.* BROKEN", answer.stdout, re.M), answer.stdout


def test_core_needs_two_libraries_and_git_nothing_beside_the_standard_library() -> None:
    assert third_party("bot/verl_e2e/core") <= {"pathspec", "pydantic"}
    assert third_party("bot/verl_e2e/git") == set()


# Each starts programs for a reason of its own, which docs/design.md gives.
STARTS_PROGRAMS = {
    "bot/verl_e2e/adapters/dispatch/local_backend.py",
    "bot/verl_e2e/adapters/dispatch/slurm_backend.py",
    "bot/verl_e2e/adapters/limited/processes.py",
    "bot/verl_e2e/git/program.py",
    "runners/verl_e2e_runner/process/processes.py",
    "runners/verl_e2e_runner/process/deadline.py",
}


def test_programs_are_started_in_few_places() -> None:
    started = re.compile(r"subprocess\.(Popen|run|call|check_\w+)\(|os\.(exec|spawn|posix_spawn|fork|system|popen)")
    found = {
        path.relative_to(ROOT).as_posix() for path in our_sources("bot", "runners") if started.search(path.read_text())
    }
    assert found == STARTS_PROGRAMS


def _git_commands(path: Path) -> list[int]:
    """The lines where a file writes a command that begins with `git`."""
    commands = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.List | ast.Tuple))
    first = ((node.lineno, node.elts[0]) for node in commands if node.elts)
    return [line for line, word in first if isinstance(word, ast.Constant) and word.value == "git"]


def test_git_is_started_in_one_place() -> None:
    """So that one list of settings, one environment and one set of limits holds for every git."""
    found = {path.relative_to(ROOT).as_posix() for path in our_sources("bot", "runners") if _git_commands(path)}
    assert found == {"bot/verl_e2e/git/program.py"}


def test_every_dependency_is_used_and_every_import_declared() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    # What the extra `gpu` has is for another Python: see the next test.
    lines = [*PROJECT["project"]["dependencies"], *chain(*(extras[name] for name in extras if name != "gpu"))]
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    distributions = importlib.metadata.packages_distributions()
    used = set()
    for name in third_party("bot", "runners"):
        # `backports` is a namespace of several distributions, named after the module.
        owners = [name] if name.startswith("backports.") else distributions.get(name, [name])
        used |= {canonicalize_name(owner) for owner in owners}
    # pydantic-core is pydantic's other half: each release of pydantic asks for exactly one of it.
    assert sorted(used - {"pydantic-core"}) == sorted(declared)


def test_the_extra_for_gpu_hosts_has_what_our_programs_in_its_python_import() -> None:
    programs = [path for path in (ROOT / "runners").rglob("*.py") if {*path.parts} & IN_OTHER_PROGRAMS]
    ours = [path for path in programs if "rehearsal" not in path.parts]
    imported = {root for path in ours for root in imported_roots(path)} - {path.stem for path in ours}
    requirements = [Requirement(line) for line in PROJECT["project"]["optional-dependencies"]["gpu"]]
    there = {canonicalize_name(requirement.name) for requirement in requirements}
    named = {"PIL": "pillow", "hydra": "hydra-core"}
    # A run imports a consumer from the checkout of its job; a package of that name, or Bridge's, could take its place.
    of_consumers = {"verl", "skyrl", "skyrl_gym"}
    assert {named.get(name, name) for name in imported - {*sys.stdlib_module_names}} - of_consumers <= there
    assert there.isdisjoint({*of_consumers, "megatron-bridge", "megatron-core"})
    # The stack of the measured runs is Python 3.12's; the service runs on 3.11 too, and gets none of it there.
    assert {str(requirement.marker) for requirement in requirements} == {'python_version >= "3.12"'}


def test_the_python_of_rehearsals_has_what_our_programs_in_it_import() -> None:
    folder = ROOT / "runners" / "verl_e2e_runner" / "rehearsal"
    imported = {root for path in (folder / "host_python").glob("*.py") for root in imported_roots(path)}
    ours = {path.stem for path in folder.rglob("*.py")} | {
        path.stem for path in (ROOT / "runners").rglob("verl_e2e_*.py")
    }
    there = locked("rehearsal").keys()
    named = {"yaml": "pyyaml", "typing_extensions": "typing-extensions"}
    # PyTorch's CPU build is in no lock; Bridge and Megatron-LM are what is rehearsed.
    assert {named.get(name, name) for name in imported - ours - {*sys.stdlib_module_names}} - {
        "megatron",
        "torch",
    } <= there


@pytest.mark.parametrize("module", ["verl_e2e", "verl_e2e.cli"])
def test_importing_the_package_stays_light(module: str, tmp_path: Path) -> None:
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    answer = call(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=f"{ROOT}/bot:{ROOT}/runners")
    assert answer.returncode == 0, answer.stderr
    assert HEAVY.isdisjoint(answer.stdout.split())


@pytest.mark.parametrize("lock", [*LOCKS, "bridge-checks", "release", "site"])
def test_a_lock_names_digests_and_no_registry(lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    entries = re.split(r"^(?=\S)", text, flags=re.M)[1:]
    assert entries
    for entry in entries:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[^\n]+( \\\n +--hash=sha256:[0-9a-f]{64})+\n", entry), entry


def test_the_locks_agree() -> None:
    run, dev, everything = (locked(name) for name in LOCKS)
    assert run.items() <= dev.items() <= everything.items()


def grouped(name: str) -> Iterator[Requirement]:
    for entry in PROJECT["dependency-groups"][name]:
        if isinstance(entry, str):
            yield Requirement(entry)
        else:
            yield from grouped(entry["include-group"])


def test_the_locks_hold_what_the_project_asks_for() -> None:
    dependencies = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
    for lock, group in (("run", "build"), ("dev", "dev"), ("all", "all")):
        pins = locked(lock)
        for requirement in (*dependencies, *grouped(group)):
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), (lock, requirement)
    pins = locked("release")
    assert all(item.specifier.contains(pins[canonicalize_name(item.name)]) for item in grouped("release"))
    pins = locked("bridge-checks")
    assert all(item.specifier.contains(pins[canonicalize_name(item.name)]) for item in grouped("bridge-checks"))
    # PyTorch and what comes with it are the image's.
    assert not [name for name in pins if name.startswith(("torch", "nvidia-c", "triton"))]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    answer = call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    assert answer.returncode == 0, answer.stderr
    (built,) = folder.glob("verl_e2e-*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def test_the_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    shipped = {str(path.relative_to(wheel)) for path in wheel.rglob("*") if path.is_file()}
    listing = call("git", "ls-files", "bot", "runners")
    if listing.returncode == 0:
        present = {name.partition("/")[2] for name in listing.stdout.splitlines() if (ROOT / name).exists()}
    else:  # an unpacked archive has no git
        files = (path for package in ("bot", "runners") for path in (ROOT / package).rglob("*") if path.is_file())
        present = {str(path.relative_to(ROOT)).partition("/")[2] for path in files if "__pycache__" not in path.parts}
    assert present <= shipped


def test_the_wheel_holds_the_workflow_of_this_version(wheel: Path) -> None:
    ours = ROOT / ".github" / "workflows" / "verl-e2e.yml"
    assert (wheel / "verl_e2e" / "workflows" / "verl-e2e.yml").read_bytes() == ours.read_bytes()


def test_the_wheel_runs_by_itself(wheel: Path, tmp_path: Path) -> None:
    code = "import verl_e2e, sys; from verl_e2e.cli import main; print(verl_e2e.__file__, file=sys.stderr); main()"
    answer = call(sys.executable, "-P", "-c", code, "--help", cwd=tmp_path, PYTHONPATH=str(wheel))
    assert answer.returncode == 0, answer.stderr
    assert str(wheel) in answer.stderr
    assert "Usage" in answer.stdout


def test_every_verb_is_documented() -> None:
    docs = "\n".join(path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))))
    assert [verb for verb in cli.commands if f"verl-e2e {verb}" not in docs] == []


def test_every_job_and_criterion_is_documented() -> None:
    text = (ROOT / "docs" / "levels.md").read_text()
    rows = [f"| `{variant.job_id}` | {variant.gpu_count} | {variant.gpu_minutes} |" for variant in VARIANTS]
    rows += [f"| `{criterion}` |" for criterion in Criterion]
    assert [row for row in rows if row not in text] == []


def test_every_document_that_is_named_exists() -> None:
    texts = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md"), *our_sources("bot", "runners")]
    named = {name for text in texts for name in re.findall(r"`(docs/[\w/-]+\.md)`", text.read_text())}
    for text in (ROOT / "docs").rglob("*.md"):
        links = re.findall(r"\]\(([^)#:]+)\)", text.read_text())
        named |= {os.path.relpath(text.parent / link, ROOT) for link in links}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_people_and_ci_call_the_same_commands() -> None:
    for file in ("README.md", ".github/workflows/ci.yml"):
        assert "make run" in (ROOT / file).read_text()
    assert "make test" in (ROOT / "README.md").read_text()
    assert ".ci/run" in (ROOT / ".github/workflows/ci.yml").read_text()
    assert "make --jobs=2 test-all REQUIRE_ALL=1" in (ROOT / ".ci/run").read_text()


def test_every_action_is_pinned_by_commit() -> None:
    used = [
        line.strip()
        for path in (ROOT / ".github/workflows").glob("*.yml")
        for line in path.read_text().splitlines()
        if re.match(r"\s*-?\s*uses:", line)
    ]
    assert used
    for line in used:
        assert re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line) or "uses: ./" in line, line


MARKED = """
import pytest

@pytest.mark.online
def test_opt_in(): pass

@pytest.mark.slurm
def test_needs_daemons(): pass
"""
UNMARKED = "import pytest\ndef test_gives_up(): pytest.skip('for a reason that no marker names')\n"


def run_probe(folder: Path, source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run other tests under our conftest and configuration, on a PATH without any daemon."""
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    (folder / "tests" / "test_probe.py").write_text(source)
    variables = {"WITH_ONLINE": "0", "PATH": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environment
    return call(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", cwd=folder, **variables)


def test_a_run_counts_what_it_leaves_out(tmp_path: Path) -> None:
    answer = run_probe(tmp_path, MARKED)
    assert answer.returncode == 0, answer.stdout
    assert "left out: 2" in answer.stdout
    assert "online: 1 (opt in with WITH_ONLINE=1)" in answer.stdout
    assert "slurm: 1 (not on PATH: slurmctld, slurmd, munged, sshd)" in answer.stdout


def test_a_complete_run_fails_on_what_it_cannot_run(tmp_path: Path) -> None:
    answer = run_probe(tmp_path, MARKED, REQUIRE_ALL="1")
    assert answer.returncode == 1
    assert "this `slurm` test cannot run" in answer.stdout
    assert "1 skipped, 1 error" in answer.stdout


def test_a_complete_run_leaves_out_the_markers_that_ci_names(tmp_path: Path) -> None:
    answer = run_probe(tmp_path, MARKED, REQUIRE_ALL="1", LEAVE_OUT="slurm")
    assert answer.returncode == 0, answer.stdout
    assert "slurm: 1 (not on PATH: slurmctld, slurmd, munged, sshd)" in answer.stdout


@pytest.mark.parametrize(("require_all", "code"), [("0", 0), ("1", 1)])
def test_a_complete_run_fails_on_a_skip_without_a_marker(tmp_path: Path, require_all: str, code: int) -> None:
    assert run_probe(tmp_path, UNMARKED, REQUIRE_ALL=require_all).returncode == code


def _hasty(tree: ast.AST) -> Iterator[int]:
    """Lines that bound a wait by fewer seconds, written as a number, than a busy machine may need."""
    for node in ast.walk(tree):
        bounds: list[ast.expr] = []
        if isinstance(node, ast.Call):
            bounds = [keyword.value for keyword in node.keywords if keyword.arg == "timeout"]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and "time.monotonic()" in ast.unparse(node):
            bounds = [node.right]
        for bound in bounds:
            if isinstance(bound, ast.Constant) and isinstance(bound.value, int | float) and bound.value < 600:
                yield bound.lineno


def test_a_busy_machine_breaks_no_test() -> None:
    """A wait that only bounds a hang is given HANG_S of tests/fakes/patience.py."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if "fixtures" not in path.parts]
    found = {f"{path.relative_to(ROOT)}:{line}" for path in files for line in _hasty(ast.parse(path.read_text()))}
    assert found == set()
    assert list(_hasty(ast.parse("run(timeout=120); until = time.monotonic() + 30; run(timeout=HANG_S)"))) == [1, 1]


def test_the_tests_of_core_lie_as_core_does() -> None:
    core, tests = ROOT / "bot" / "verl_e2e" / "core", ROOT / "tests" / "core"
    files = [path.relative_to(tests) for path in tests.rglob("test_*.py")]
    assert [str(path) for path in files if len(path.parts) == 1] == []
    assert [str(path) for path in files if not (core / path.parent / "__init__.py").exists()] == []


def test_what_is_left_out_as_slow_exists() -> None:
    text = (ROOT / "tests" / "conftest.py").read_text()
    namespace: dict[str, frozenset[str]] = {}
    (slow,) = (
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "SLOW"
    )
    exec(compile(ast.Module([slow], []), "conftest", "exec"), namespace)
    assert [name for name in namespace["SLOW"] if not (ROOT / "tests" / name).exists()] == []


def test_every_marker_has_a_need() -> None:
    text = (ROOT / "tests" / "conftest.py").read_text()
    (needs,) = (
        node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "NEEDS"
    )
    assert isinstance(needs, ast.Dict)
    keys = [key.value for key in needs.keys if isinstance(key, ast.Constant)]
    markers = [marker.partition(":")[0] for marker in PROJECT["tool"]["pytest"]["markers"]]
    assert keys == [marker for marker in markers if marker not in {"host", "slow"}]


def fake_python(folder: Path, *, version_ok: bool) -> str:
    """An interpreter that answers the version question, but has neither venv nor ensurepip."""
    path = folder / "python-without-ensurepip"
    path.write_text(f'#!/bin/sh\ncase "$2" in *version_info*) exit {0 if version_ok else 1};; esac\nexit 1\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(("version_ok", "text"), [(True, "ensurepip is missing"), (False, "No Python 3.11 or later")])
def test_setup_without_a_usable_python_is_one_sentence(tmp_path: Path, version_ok: bool, text: str) -> None:
    python = fake_python(tmp_path, version_ok=version_ok)
    answer = call(ROOT / "scripts" / "create-venv.sh", tmp_path / "venv", python)
    assert answer.returncode == 2
    assert text in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize("proxy", [False, True], ids=["index", "proxy"])
def test_an_index_that_cannot_be_reached_is_told_as_that(tmp_path: Path, proxy: bool) -> None:
    (tmp_path / "lock.txt").write_text(f"not-on-this-machine==1 --hash=sha256:{'0' * 64}\n")
    dead = "http://127.0.0.1:9"
    index = (
        {"PIP_PROXY": dead, "PIP_INDEX_URL": "https://index.invalid"} if proxy else {"PIP_INDEX_URL": f"{dead}/simple"}
    )
    pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1", "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
    answer = call(ROOT / "scripts" / "install.sh", sys.executable, tmp_path / "lock.txt", cwd=ROOT, **(pip | index))
    assert answer.returncode == 1
    assert answer.stderr.startswith("pip cannot reach the package index: Connection refused\n")
    assert "matching distribution" not in answer.stderr


def test_what_else_pip_refuses_is_told_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_text("not-on-this-machine==1 --hash=sha256:0\n")
    answer = call(ROOT / "scripts" / "install.sh", sys.executable, tmp_path / "lock.txt")
    assert (answer.returncode, "ERROR: " in answer.stderr, "cannot reach" in answer.stderr) == (1, True, False)


# Stands in for the Python of an image: of packages it has those below IMAGE, and its pip keeps what it is asked for.
IMAGE_PYTHON = """#!/bin/sh
case "$*" in
    *"-m pip"*) echo "$*" >>"$ASKED"; for word; do last=$word; done; cat "$last" >>"$ASKED"; exit "$REFUSED";;
esac
exec env PYTHONPATH="$IMAGE" "$REAL" -S "$@"
"""
CHECKS = ("nvidia-modelopt", "pytest", "pytest-mock", "pytest-timeout")


@pytest.mark.parametrize("there", [(), ("pytest",), ("PyTest_Mock", "pytest.timeout"), CHECKS, None])
@pytest.mark.parametrize("refused", ["0", "1"])
def test_the_bridge_checks_get_what_an_image_has_not(
    tmp_path: Path, there: tuple[str, ...] | None, refused: str
) -> None:
    """By their digests alone; what the image has stays, whatever its version. None: it has all of them."""
    wanted = locked("bridge-checks")
    assert set(CHECKS) <= wanted.keys()
    for name in wanted if there is None else there:
        fill(tmp_path / "image", f"{name}-0.dist-info/METADATA")
        (tmp_path / f"image/{name}-0.dist-info/METADATA").write_text(f"Name: {name}\nVersion: 0\n")
    python = tmp_path / "python3"
    python.write_text(IMAGE_PYTHON)
    python.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    places = {"TMPDIR": str(tmp_path / "tmp"), "IMAGE": str(tmp_path / "image"), "ASKED": str(tmp_path / "asked")}
    script = ROOT / "scripts" / "install-bridge-checks.sh"
    answer = call(script, python, cwd=tmp_path, REFUSED=refused, REAL=sys.executable, **places)
    command, *rows = (tmp_path / "asked").read_text().splitlines() if there is not None else ("",)
    assert (answer.returncode, list((tmp_path / "tmp").iterdir())) == (int(refused) if command else 0, [])
    named = {canonicalize_name(re.split("[=; ]", row)[0]) for row in rows if row[:1].strip()}
    assert named == (wanted.keys() - set(map(canonicalize_name, there)) if there is not None else set())
    if command:
        assert {"--no-deps", "--require-hashes", "--only-binary"} <= set(command.split())
        assert "index" not in command
        assert sum("--hash=sha256:" in row for row in rows) >= len(named)


def fill(folder: Path, *names: str) -> None:
    """A folder with files in it."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine\n")


@pytest.mark.parametrize(
    "names", [("README.md",), (".git/config",), (".hidden",), ("bin/python", "a b"), ("pyvenv.cfg", ".git/config")]
)
def test_a_folder_that_is_no_virtual_environment_is_never_emptied(tmp_path: Path, names: tuple[str, ...]) -> None:
    fill(tmp_path / "checkout", *names)
    (tmp_path / "link").symlink_to(tmp_path / "checkout")
    for place in ("checkout", "link", "checkout/../checkout"):
        answer = call(ROOT / "scripts" / "create-venv.sh", tmp_path / place, sys.executable)
        assert answer.returncode == 2
        assert "would be deleted" in answer.stderr
    assert all((tmp_path / "checkout" / name).read_text() == "mine\n" for name in names)


def test_a_file_in_the_place_of_the_environment_is_left_alone(tmp_path: Path) -> None:
    fill(tmp_path, "file")
    assert call(ROOT / "scripts" / "create-venv.sh", tmp_path / "file", sys.executable).returncode == 2
    assert (tmp_path / "file").read_text() == "mine\n"


def test_an_empty_folder_and_an_old_environment_are_made_one(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    # Without pip, which takes longest; tests/pages/test_every_command.py has an environment with it.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" != -m ] || set -- "$@" --without-pip\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for _ in range(2):
        answer = call(ROOT / "scripts" / "create-venv.sh", tmp_path / "empty", python)
        assert answer.returncode == 0, answer.stderr
        assert (tmp_path / "empty" / "pyvenv.cfg").is_file()
        assert not (tmp_path / "empty" / "of the old one").exists()
        fill(tmp_path / "empty", "of the old one")
