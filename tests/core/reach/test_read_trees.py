"""Trees that several questions share."""

import ast

from verl_e2e.core.reach.read_trees import ReadTrees


def test_one_content_is_parsed_once_and_a_problem_is_kept_too() -> None:
    trees = ReadTrees()
    found = trees.get(b"x = 1\n")
    assert isinstance(found, ast.Module)
    assert trees.get(b"".join([b"x = ", b"1\n"])) is found
    assert trees.get(b"x = (\n") == trees.get(b"x = (\n") == "line 1 is not Python ('(' was never closed)"


def test_what_was_asked_for_last_is_kept_within_so_many_bytes() -> None:
    trees = ReadTrees(most_bytes=12)
    first, second = trees.get(b"a = 1\n"), trees.get(b"b = 1\n")
    assert trees.get(b"a = 1\n") is first
    trees.get(b"c = 1\n")
    assert trees.get(b"a = 1\n") is first
    assert trees.get(b"b = 1\n") is not second
    large = trees.get(b"large = 123456\n")
    assert trees.get(b"large = 123456\n") is not large
