"""What excuses changed code from being executed, and what looks like an excuse and does something."""

import pytest

from tests.core.reach.changed_text import changed

# A statement of a function that is new, and whether a run must execute it.
STATEMENTS = (
    ("logger.info('a %s', x)", "!logging 3"),
    ("logger.info(f'{x.y} {x[0]} {len(x)} {x.size(0)}', extra={'a': 1})", "!logging 3"),
    ("print(x if x else -x, sep='')", "!logging 3"),
    ("logger.info(f'{x.pop()}')", "3"),
    ("logger.info('%s', next(x))", "3"),
    ("logger.info('%s', [item for item in x])", "3"),
    ("logger.info('%s', extra=x.pop())", "3"),
    ("logger.info((y := x))", "3"),
    ("print(*x)", "3"),
    ("print((yield))", "3"),
    ("raise ValueError(x)", "!error path 3"),
    ("raise", "!error path 3"),
    ("raise StopIteration", "3"),
    ("raise module.StopIteration(x)", "3"),
    ("assert x.pop()", "3"),
    ("pass", ""),
)


@pytest.mark.parametrize(("statement", "found"), STATEMENTS)
def test_a_statement(statement: str, found: str) -> None:
    old = "def f(x):\n    if x:\n        b()\n    return (yield)\n"
    new = f"def f(x):\n    if x:\n        {statement}\n        b()\n    return (yield)\n"
    assert changed(old, new) == ([f"f: {found}"] if found else [])


# A `try` around an error, and whether a run must execute the error.
CAUGHT = (
    ("try:", "except KeyError:\n        b()", "KeyError", True),
    ("try:", "except KeyError:\n        b()", "LookupError", False),
    ("try:", "except LookupError:\n        b()", "KeyError", True),
    ("try:", "except (OSError, KeyError):\n        b()", "KeyError('a')", True),
    ("try:", "except Exception:\n        b()", "KeyError", True),
    ("try:", "except:\n        b()", "KeyError", True),
    ("try:", "except x.errors():\n        b()", "KeyError", False),
    ("try:", "except x[0].Error:\n        b()", "KeyError", False),
    ("try:", "except f'':\n        b()", "KeyError", True),
    ("try:", "except OSError:\n        b()", "Own", True),
    ("try:", "except KeyError:\n        b()", "", True),
    # It does not go on.
    ("try:", "except KeyError as error:\n        raise A from error", "KeyError", False),
    ("try:", "finally:\n        b()", "KeyError", False),
    ("try:", "except* KeyError:\n        b()", "KeyError", True),
    ("with suppress(KeyError):", "b()", "KeyError", True),
    ("with contextlib.suppress(OSError, KeyError):", "b()", "KeyError", True),
    ("with suppressed(KeyError):", "b()", "KeyError", False),
    ("with x:", "b()", "KeyError", False),
)


@pytest.mark.parametrize(("head", "tail", "error", "demanded"), CAUGHT)
def test_an_error_that_is_caught_where_the_run_goes_on_is_no_error_path(
    head: str, tail: str, error: str, demanded: bool
) -> None:
    old = f"def f(x):\n    {head}\n        a(x)\n        c()\n    {tail}\n"
    for new, line in (
        (old.replace("a(x)\n", f"a(x)\n        raise {error}\n"), "4"),
        (old.replace("a(x)\n", f"a(x)\n        if x:\n            raise {error}\n"), "5"),
    ):
        test = " 4" if line == "5" else ""
        assert changed(old, new) == [f"f:{test} {line}" if demanded else f"f:{test} !error path {line}"]


def test_an_error_of_the_file_s_own_that_another_function_catches_is_no_error_path() -> None:
    catching = "def g(x):\n    try:\n        f(x)\n    except Skip:\n        return 1\n"
    raising = "def f(x):\n    if x:\n        raise Skip(x)\n    return 2\n"
    assert changed(catching, catching + raising) == ["f: 7 8 9"]
    assert changed("", raising.replace("Skip", "ValueError")) == ["f: 2 4 !error path 3"]
    always = "def f(x):\n    text = x\n    raise Skip(text)\n"
    assert changed(catching, catching + always) == ["f: 7 8"]
    assert changed("", always) == ["f: !error path 1,2,3"]


@pytest.mark.parametrize(
    ("call", "error", "demanded"),
    [
        ("f(x)", "KeyError", True),
        ("self.f(x)", "KeyError", True),
        ("f(x)", "OSError", False),
        ("f", "KeyError", False),
        ("A(x)", "KeyError", False),
    ],
)
def test_an_error_that_a_caller_of_the_file_catches_is_an_answer(call: str, error: str, demanded: bool) -> None:
    calling = f"def g(x):\n    try:\n        return {call}\n    except LookupError:\n        return 1\n"
    old = f"{calling}def f(x):\n    if x:\n        b()\n    return 2\n"
    row = "9" if demanded else "!error path 9"
    assert changed(old, old.replace("b()", f"b()\n        raise {error}")) == [f"f: {row}"]


def test_what_makes_an_object_is_called_by_the_name_of_its_class() -> None:
    calling = "def g(x):\n    try:\n        return A(x)\n    except ValueError:\n        return 1\n"
    old = f"{calling}class A:\n    def __init__(self, x):\n        b()\n"
    assert changed(old, old.replace("b()", "b()\n        if x:\n            raise ValueError")) == ["A.__init__: 9 10"]


def test_a_handler_and_a_case_that_raise_for_control_must_run() -> None:
    old = "def f(x):\n    a()\n"
    handler = "def f(x):\n    try:\n        a()\n    except KeyError:\n        raise StopIteration\n"
    assert changed(old, handler)[0] == "f: 3 4 5"
    assert changed(old, handler.replace("StopIteration", "A"))[0] == "f: 3 !error path 4,5"
    case = "def f(x):\n    a()\n    match x:\n        case 1:\n            raise StopIteration\n"
    assert changed(old, case) == ["f: 3 4 5"]


@pytest.mark.parametrize("name", ["__getattr__", "__getitem__", "__missing__", "__next__"])
def test_a_method_that_answers_python_with_an_error_must_run(name: str) -> None:
    source = f"class A:\n    def {name}(self, key):\n        found = self.load(key)\n        raise KeyError(found)\n"
    assert f"A.{name}: 3 4" in changed("", source)
    assert "A.other: !error path 2,3,4" in changed("", source.replace(name, "other"))


ABSTRACT = (
    ("@abstractmethod", "'''Doc.'''", "!abstract"),
    ("@abstractmethod", "raise NotImplementedError", "!abstract"),
    # A subclass may call it.
    ("@abstractmethod", "return self.x", ""),
    ("@overload", "return self.x", "!abstract"),
    ("@property", "raise NotImplementedError('a')", "!abstract"),
    ("@property", "...", "!idle"),
)


@pytest.mark.parametrize(("decorator", "body", "found"), ABSTRACT)
def test_an_abstract_body_is_one_that_does_nothing(decorator: str, body: str, found: str) -> None:
    source = f"class A(B):\n    {decorator}\n    def f(self):\n        {body}\n"
    (row,) = [row for row in changed("", source) if row.startswith("A.f")]
    assert row.startswith(f"A.f: {found}" if found else "A.f: 4")


def test_a_protocol_s_method_with_a_body_must_run() -> None:
    source = "class P(Protocol[T]):\n    def f(self):\n        return 1\n    def g(self): ...\n"
    assert changed("", source) == ["(module): 1", "P.f: 3", "P.g: !abstract 4"]


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("TYPE_CHECKING", "!type checking 1,2"),
        ("typing.TYPE_CHECKING", "!type checking 1,2"),
        ("not TYPE_CHECKING", "1 2"),
        ("TYPE_CHECKING()", "1 2"),
        ("self.x.TYPE_CHECKING", "1 2"),
    ],
)
def test_only_the_bare_constant_is_for_type_checkers_alone(test: str, found: str) -> None:
    assert changed("", f"if {test}:\n    X = 1\n") == [f"(module): {found}"]


def test_a_field_of_a_class_is_read_by_what_makes_the_class() -> None:
    source = "@dataclass\nclass A:\n    x: int\n"
    assert changed(source, source + "    y: int\n") == ["(module): 4"]
    assert changed(source, source.replace("int", "InitVar")) == ["(module): 3"]
