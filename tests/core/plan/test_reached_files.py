"""Which files of a tree count as read by a run: everything but what policy and imports leave out."""

from collections.abc import Collection

import pytest

from verl_e2e.config import load_policy
from verl_e2e.core.plan.policy import Policy
from verl_e2e.core.plan.reached_files import NOT_KNOWN, FilesOfTree, ReachedFiles, digest_of
from verl_e2e.core.reach.users import named_files

_WITHOUT = """
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image: {name: verlai/verl, tag: latest}
checkpoint: {model_id: tiny/dense}
exempt:
  - {name: documentation, paths: [/docs/, "*.md"], reason: nothing imports it}
  - {name: recipes, paths: [src/lib/recipes/], reason: verl imports no recipe}
  - {name: loop, paths: [/loop.py], reason: verl has its own, unless_reached: true}
rules: []
"""
POLICY = load_policy(_WITHOUT + "reach: {package: lib, roots: [src/], callers: app/, rules: []}\n", "policy.yml")


def files_of(files: Collection[str], policy: Policy) -> FilesOfTree:
    aside = [exemption.paths for exemption in policy.exempt if not exemption.unless_reached]
    return FilesOfTree(files, policy, lambda path: any(patterns.match(path) for patterns in aside))


IMPORTED = frozenset({"src/lib/__init__.py", "src/lib/recipes/base.py"})


@pytest.mark.parametrize(
    ("path", "counts"),
    (
        ("src/lib/__init__.py", True),
        ("src/lib/recipes/base.py", True),
        ("src/lib/spare.py", False),
        ("src/lib/recipes/one.py", False),
        ("src/lib/spare.json", True),
        ("src/lib/recipes/one.md", True),
        ("src/lib/__pycache__/spare.cpython-312.pyc", True),
        # What shadows another package, or what Python imports by itself.
        ("src/sitecustomize.py", True),
        ("src/libs/__init__.py", True),
        ("src/lib.py", True),
        ("setup.py", True),
        (".gitattributes", True),
        ("3rdparty/core", True),
        ("loop.py", True),
        ("docs/a.py", False),
        ("docs/guide.md", False),
        ("docs/table.json", True),
        ("docs/other/table.json", True),
        # Named, and others have the same name.
        ("docs/common.json", False),
        ("docs/data/common.json", True),
        ("common.md", False),
        ("docs/tools/read.py", True),
        ("docs/read.py", False),
    ),
)
def test_what_counts(path: str, counts: bool) -> None:
    texts = b'open(ROOT / "docs" / "table.json"); run("../tools/read.py"); open("data/common.json"); open("common.md")'
    others = {f"docs/{folder}/common.{ending}" for folder in "xy" for ending in ("json", "md")}
    found = files_of({path, *others}, POLICY).read_by_run(IMPORTED, named_files(texts))
    assert found == ({path} if counts else set())


def test_without_reach_everything_counts_that_is_not_set_aside() -> None:
    policy = load_policy(_WITHOUT, "policy.yml")
    files = ["src/lib/spare.py", "docs/a.py"]
    assert files_of(files, policy).read_by_run(frozenset(), ()) == {"src/lib/spare.py"}


def test_names_of_files_are_found_at_the_end_of_texts() -> None:
    found = named_files(
        b"f('far/data/a.json', 'x\\b.txt', \xff\xfe\"c.yml\")  # see z.json\nf'{d}/./d/e.f.toml', 'none', \"\""
    )
    assert found == ("b.txt", "c.yml", "d/e.f.toml", "data/a.json")


def test_a_digest_depends_on_paths_and_contents_alone() -> None:
    files = {"a": "1", "b": "2", "c": "3"}
    assert digest_of(files, ["b", "a", "a"]) == digest_of({"a": "1", "b": "2"}, ["a", "b"])
    assert len({digest_of(files, paths) for paths in ([], ["a"], ["a", "b"], ["a", "c"])}) == 4
    assert digest_of({"a": "2"}, ["a"]) != digest_of({"a": "1"}, ["a"])
    assert digest_of({"\udc80": "2"}, ["\udc80"])


def test_a_source_that_ran_and_is_not_covered_is_named() -> None:
    reached = ReachedFiles("d", sources=frozenset({"src/lib/a.py"}), roots=("src/",))
    assert reached.outside(["src/lib/a.py", "tests/test_a.py"]) == ""
    assert reached.outside(["src/lib/z.py", "src/lib/a.py", "src/lib/y.py"]) == "src/lib/y.py"
    assert NOT_KNOWN.outside(["src/lib/z.py"]) == ""


def test_each_job_has_digests_by_whether_it_has_tests() -> None:
    reached = ReachedFiles("d", "t")
    assert [reached.digest_for(tests=tests) for tests in (False, True)] == ["d", "t"]
