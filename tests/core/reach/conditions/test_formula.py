"""Tests of conditions in normal form."""

import ast

import pytest

from verl_e2e.core.reach.conditions.formula import (
    NOTHING,
    Any,
    Formula,
    Literal,
    all_of,
    any_of,
    as_healthy,
    expression_of,
    formula,
    impossible,
    literals,
    negation,
    text_of,
)


def _formula(text: str, *, holds: bool = True) -> Formula:
    return formula(ast.parse(text, mode="eval").body, {}, holds=holds)


@pytest.mark.parametrize(
    ("test", "text"),
    [
        ("a", "a"),
        ("not a", "not a"),
        ("not not a", "a"),
        ("a and b", "a and b"),
        ("not (a and b)", "not a or not b"),
        ("not (a or not b)", "not a and b"),
        ("a and (b or c)", "a and (b or c)"),
        ("a or b and c", "a or (b and c)"),
        ("not a == 1", "a != 1"),
        ("not a is None", "a is not None"),
        ("not x in y", "x not in y"),
        ("not 1 < a", "1 >= a"),
        ("1 < a < 4", "1 < a and a < 4"),
        ("not 1 < a < 4", "1 >= a or a >= 4"),
        ("(n := size()) > 1", "(n := size()) > 1"),
        ("(n := size())", "size()"),
        ("bool(a)", "a"),
        ("a if c else b", "(c and a) or (not c and b)"),
        ("a if c else False", "c and a"),
        ("False if c else True", "not c"),
        ("False if c else False", "False"),
        ("x if (a if b else c) else y", "x if (a if b else c) else y"),
        ("True", ""),
        ("a and True", "a"),
        ("a and a", "a"),
        ("a or True", ""),
        ("(a or b) and a", "a"),
        ("(a or b) and not a", "not a and b"),
        # A name may get another value in between, so what seems impossible stays as it is written.
        ("a and not a", "a and not a"),
        ("(not a or not b) and a and b", "a and b and (not a or not b)"),
        ("False", "False"),
        ("a and False", "a and False"),
    ],
)
def test_a_test_has_one_normal_form(test: str, text: str) -> None:
    assert text_of(_formula(test)) == text


@pytest.mark.parametrize("test", ["a", "a and b", "a or b", "not a", "a and (b or c)", "a < b"])
def test_a_negation_is_what_the_negated_test_says_and_twice_it_is_the_test(test: str) -> None:
    assert negation(_formula(test)) == _formula(test, holds=False)
    assert negation(negation(_formula(test))) == _formula(test)


def test_what_never_holds_has_no_way_and_what_is_no_test_is_negated_in_words() -> None:
    assert _formula("False") == Any(())
    assert text_of(negation(Literal("except ImportError"))) == "not (except ImportError)"


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("a and b", False),
        ("a and not a", True),
        ("a and (b or not b)", False),
        ("a and not b and (b or not a)", True),
        ("a and not b and (not a and c or b)", True),
        ("a and False", True),
        ("False", True),
        ("a", False),
    ],
)
def test_a_condition_is_impossible_where_its_parts_contradict_each_other(test: str, *, expected: bool) -> None:
    assert impossible(_formula(test)) is expected


def test_what_holds_anyway_demands_nothing() -> None:
    assert all_of(()) == NOTHING
    assert any_of((_formula("a"), NOTHING)) == NOTHING


def test_every_literal_of_a_healthy_condition_is_healthy() -> None:
    assert [item.healthy for item in literals(as_healthy(_formula("a and (b or c)")))] == [True, True, True]


@pytest.mark.parametrize("text", ["a", "a and (b or not c)", "not a or (b and c)"])
def test_a_condition_can_be_one_expression(text: str) -> None:
    found = expression_of(_formula(text))
    assert found is not None
    assert formula(found, {}) == _formula(text)


def test_what_demands_nothing_or_is_caught_is_no_expression() -> None:
    assert expression_of(NOTHING) is None
    assert expression_of(all_of((_formula("a"), Literal("except E")))) is None
