"""Which requirements of a run a change of pyproject.toml alters."""

import pytest

from verl_e2e.core.reach.other_paths import changed_requirements, same_build

BASE = """
[project]
dependencies = ["torch>=2.6", "Transformer_Engine==2", "tqdm", "@ no name"]
version = "1"
[dependency-groups]
docs = ["sphinx"]
[tool.uv]
override-dependencies = ["torch==2.7"]
[tool.uv.sources]
megatron-core = {path = "3rdparty/x"}
"""
WATCHED = ("torch", "transformer-engine", "megatron-core")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    (
        ("sphinx", "sphinx>9", ()),
        ("tqdm", "tqdm<9", ()),
        ("torch>=2.6", "torch>=2.8", ("torch",)),
        ("torch==2.7", "torch==2.8", ("torch",)),
        ("torch>=2.6", " torch>=2.8", ("torch",)),
        ("Transformer_Engine==2", "transformer-engine==3", ("transformer-engine",)),
        ("3rdparty/x", "3rdparty/y", ("megatron-core",)),
    ),
)
def test_only_watched_requirements_count(old: str, new: str, expected: tuple[str, ...]) -> None:
    assert changed_requirements(BASE.encode(), BASE.replace(old, new).encode(), WATCHED) == expected


HUGE = b"x = " + b"9" * 5_000
# No text can be made of a number with so many digits.
HUGE_SOURCE = b"[tool.uv.sources]\ntorch = 0x" + b"f" * 5_000


@pytest.mark.parametrize(
    "text", (b"[", b"\xff", b"project = 3", b"[project]\ndependencies = 3", HUGE, HUGE_SOURCE, b"a = " + b"[" * 5_000)
)
def test_a_side_that_cannot_be_read_is_unknown(text: bytes) -> None:
    assert changed_requirements(BASE.encode(), text, WATCHED) is None
    assert not same_build(BASE.encode(), text)


def test_a_file_that_comes_or_goes_changes_all_it_names() -> None:
    assert changed_requirements(None, BASE.encode(), WATCHED) == tuple(sorted(WATCHED))


@pytest.mark.parametrize(
    ("old", "new", "same"),
    (
        ("tqdm", "tqdm<9", True),
        ("[project]", '[project]\ndescription = "a library"', True),
        ("[dependency-groups]", "[tool.ruff]\nline-length = 9\n[dependency-groups]", True),
        ("sphinx", "furo", True),
        ('version = "1"', 'version = "2"', False),
        ("[dependency-groups]", "[tool.setuptools]\nzip-safe = true\n[dependency-groups]", False),
        ("[dependency-groups]", "[build-system]\nrequires = []\n[dependency-groups]", False),
        ("[project]", "[", False),
    ),
)
def test_what_describes_or_checks_the_project_does_not_change_how_it_is_built(old: str, new: str, same: bool) -> None:
    assert same_build(BASE.encode(), BASE.replace(old, new).encode()) == same


def test_a_project_of_another_shape_is_compared_as_a_whole() -> None:
    assert same_build(b"project = 3", b"project = 3")
    assert not same_build(b"project = 3", b"project = 4")
    assert not same_build(None, b"tool = 3")


LOCK = """
[[package]]
name = "torch"
version = "2.7.0"
source = {registry = "somewhere"}
[[package]]
name = "transformer-engine"
source = {git = "here?rev=1"}
[[package]]
name = "sphinx"
version = "8"
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    (
        ('"8"', '"9"', ()),
        ("2.7.0", "2.7.1", ("torch",)),
        ("rev=1", "rev=2", ("transformer-engine",)),
    ),
)
def test_a_lock_file_counts_by_what_it_pins(old: str, new: str, expected: tuple[str, ...]) -> None:
    assert changed_requirements(LOCK.encode(), LOCK.replace(old, new).encode(), WATCHED) == expected


@pytest.mark.parametrize("text", (b"package = 3", b"[[package]]\nname = 3"))
def test_a_lock_file_of_another_shape_is_unknown(text: bytes) -> None:
    assert changed_requirements(LOCK.encode(), text, WATCHED) is None


PROJECT = """
[project]
name = "x"
[project.optional-dependencies]
te = ["transformer-engine"]
[dependency-groups]
build = ["torch", {include-group = "te"}]
[[tool.uv.index]]
url = "https://one.example"
[tool.uv]
no-build-isolation-package = ["torch"]
constraint-dependencies = ["torch<3"]
"""
LOCKED = """
version = 1
revision = 2
[manifest]
overrides = [{name = "torch", specifier = "<3"}, {name = "sphinx"}]
[[package]]
name = "torch"
version = "2.7.0"
source = {registry = "https://one.example"}
dependencies = [{name = "numpy"}]
sdist = {url = "https://one.example/torch.tar.gz", hash = "sha256:aa", upload-time = "2026-01-01"}
wheels = [{url = "https://one.example/torch.whl", hash = "sha256:bb"}]
"""


@pytest.mark.parametrize(
    ("text", "old", "new", "same"),
    (
        (PROJECT, "https://one.example", "https://two.example", False),
        (PROJECT, 'te = ["transformer-engine"]', 'te = ["transformer-engine>9"]', False),
        (PROJECT, 'te = ["transformer-engine"]', 'all = ["transformer-engine"]', False),
        (PROJECT, 'te = ["transformer-engine"]', 'te = ["transformer-engine", "tqdm"]', True),
        (PROJECT, 'build = ["torch"', 'build = ["torch>9"', False),
        (PROJECT, 'include-group = "te"', 'include-group = "docs"', False),
        (PROJECT, 'no-build-isolation-package = ["torch"]', "no-build-isolation-package = []", False),
        (PROJECT, "torch<3", "torch<4", False),
        (LOCKED, "torch.whl", "other.whl", False),
        (LOCKED, "sha256:bb", "sha256:cc", False),
        (LOCKED, "sha256:aa", "sha256:cc", False),
        (LOCKED, 'registry = "https://one', 'registry = "https://two', False),
        (LOCKED, 'name = "numpy"', 'name = "number"', False),
        (LOCKED, '"<3"', '"<4"', False),
        (LOCKED, 'name = "sphinx"', 'name = "furo"', True),
        (LOCKED, "version = 1\n", 'version = 1\nrequires-python = ">=4"\n', False),
        (LOCKED, "2026-01-01", "2026-01-02", True),
        (LOCKED, "revision = 2", "revision = 3", True),
    ),
)
def test_nothing_that_decides_what_is_installed_may_differ(text: str, old: str, new: str, *, same: bool) -> None:
    assert old in text
    before, after = text.encode(), text.replace(old, new, 1).encode()
    assert (same_build(before, after) and changed_requirements(before, after, WATCHED) == ()) is same


def test_a_group_of_another_shape_is_not_the_same() -> None:
    assert not same_build(b"[dependency-groups]\nx = 3", b"[dependency-groups]\nx = 3")
