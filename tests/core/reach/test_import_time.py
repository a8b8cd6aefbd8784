"""What an import executes is reached: each module here is really imported, and a profile says whether `helper` ran."""

import sys
from types import FrameType, ModuleType

import pytest

from tests.core.reach.programs import reach, runs

OTHERS = """
import abc
import contextlib
import functools
from dataclasses import dataclass


def helper(*args, **kwargs):
    return lambda *more: more[0] if more else None


def ctx():
    return contextlib.nullcontext()


"""
# Each executes `helper` when it is imported.
RUN: dict[str, str] = {
    "a statement": "helper()",
    "a decorator": "@helper\ndef f(): ...",
    "a made decorator": "@helper(1)\ndef f(): ...",
    "a decorator of a class": "@helper\nclass A: ...",
    "a decorator of a method": "class A:\n    @helper\n    def f(self): ...",
    "a made decorator of a method": "class A:\n    @helper(1)\n    def f(self): ...",
    "a decorator below a plain one": "class A:\n    @property\n    @helper\n    def f(self): ...",
    "a decorator of an async method": "class A:\n    @helper\n    async def f(self): ...",
    "what a decorator calls": "def mark(f): return f()\n@mark\ndef f(): helper()",
    "what a decorator of the name of Python's own calls": "def cache(f): return f()\n@cache\ndef f(): helper()",
    "what a rebound decorator calls": "functools = type('x', (), {'cache': lambda f: f()})\n"
    "@functools.cache\ndef f(): helper()",
    "what the decorator of a method calls": "def mark(f): return f(0)\nclass A:\n    @mark\n    def f(self): helper()",
    "a registration": "class D:\n    def impl(self, *kinds):\n        helper()\n        return lambda f: f\n"
    "def dispatch(f): return D()\n@dispatch\ndef call(x): ...\n@call.impl(int)\ndef _call(x): ...",
    "the argument of a registration": "class D:\n    def register(self, *kinds): return lambda f: f\n"
    "call = D()\n@call.register(helper())\ndef _call(x): ...",
    "the registration of a class": "class R:\n    @classmethod\n    def register(cls, name):\n        helper()\n"
    "        return lambda f: f\n@R.register('x')\ndef f(): ...",
    "the registration of an alias": "class R:\n    @staticmethod\n    def impl(name):\n        helper()\n"
    "        return lambda f: f\nS = R\n@S.impl('x')\ndef f(): ...",
    "a registration in a function that runs": "def call(x): ...\ncall.impl = helper\ndef make():\n"
    "    @call.impl(helper())\n    def _call(x): ...\nmake()",
    "a default": "def f(x=helper()): ...",
    "a default by keyword": "def f(*, x=helper()): ...",
    "a default of a method": "class A:\n    def f(self, x=helper()): ...",
    "a default of a lambda": "f = lambda x=helper(): x",
    "a default of a lambda in a class": "class A:\n    f = lambda x=helper(): x",
    "an annotation": "def f(x: helper()): ...",
    "an annotation of the rest": "def f(*x: helper(), **y: int): ...",
    "the annotation of a result": "def f() -> helper(): ...",
    "the annotation of a method": "class A:\n    def f(self, x: helper()): ...",
    "the annotation of a variable": "x: helper()",
    "the annotation of a variable with a value": "x: helper() = 1",
    "the annotation of a field": "class A:\n    x: helper() = 1",
    "an annotation of a function in one that runs": "def f():\n    def g(x: helper()): ...\nf()",
    "a base": "class A(helper() and object): ...",
    "a keyword of a class": "class A(metaclass=helper() and type): ...",
    "a hook of a base": "class B:\n    def __init_subclass__(cls): helper()\nclass A(B): ...",
    "a method that a hook calls": "class B:\n    def __init_subclass__(cls): cls.setup()\n"
    "class A(B):\n    @classmethod\n    def setup(cls): helper()",
    "a metaclass": "class M(type):\n    def __init__(cls, *a): helper()\nclass A(metaclass=M): ...",
    "a metaclass of a base": "class M(type):\n    def __new__(m, *a):\n        helper()\n"
    "        return type.__new__(m, *a)\nclass B(metaclass=M): ...\nclass A(B): ...",
    "a metaclass that asks the class": "class M(type):\n    def __init__(cls, *a): cls.setup()\n"
    "class A(metaclass=M):\n    @classmethod\n    def setup(cls): helper()",
    "a name of a descriptor": "class D:\n    def __set_name__(self, o, n): helper()\nclass A:\n    x = D()",
    "a subscript of a class": "class B:\n    def __class_getitem__(cls, x): helper()\nx = B[int]",
    "an annotation with a subscript": "class B:\n    def __class_getitem__(cls, x): helper()\ndef f(x: B[int]): ...",
    "a property": "class B:\n    @property\n    def x(self): helper()\nb = B()\ny = b.x",
    "a property as a default": "class B:\n    @property\n    def x(self): helper()\nb = B()\ndef f(y=b.x): ...",
    "an operator": "class B:\n    def __add__(self, o): helper()\nb = B()\nx = b + 1",
    "a format": "class B:\n    def __format__(self, s): return str(helper())\nb = B()\nx = f'{b}'",
    "a comparison": "class B:\n    def __lt__(self, o): helper()\nb = B()\nif b < 1: pass",
    "a truth": "class B:\n    def __bool__(self): return bool(helper())\nb = B()\nx = 1 if b else 2",
    "an iteration": "class B:\n    def __iter__(self): return iter([helper()])\nb = B()\nx = [*b]",
    "a comprehension": "x = [helper() for _ in (1,)]",
    "a comprehension in a class": "class A:\n    x = {helper() for _ in (1,)}",
    "a walrus": "(x := helper())",
    "a walrus in a test": "if (x := helper()): pass",
    "star arguments": "print(*[helper()][1:])",
    "a formatted text": "x = f'{helper()}'",
    "a width": "x = f'{1:{len(str(helper()))}}'",
    "an assertion": "assert helper()",
    "a deletion": "x = {None: 1, 1: 1}\ndel x[len([helper()])]",
    "a loop": "for x in [helper()]: pass",
    "a loop that is not entered": "while not helper(): pass",
    "a block": "with ctx() as x: helper()",
    "what a block is for": "with contextlib.nullcontext(helper()): pass",
    "a try": "try:\n    helper()\nfinally:\n    pass",
    "a handler": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    helper()",
    "what a handler is for": "try:\n    1 / 0\nexcept (helper() and ZeroDivisionError): pass",
    "an else": "try:\n    pass\nexcept ValueError:\n    pass\nelse:\n    helper()",
    "a match": "match helper():\n    case _: pass",
    "a case": "match 1:\n    case 1 if helper(): pass",
    "an item": "x = {}\nx[helper()] = 1",
    "an attribute": "class A: ...\nA.x = helper()",
    "a function of a class body": "class A:\n    def make(): helper()\n    x = make()",
    "a decorator of a class body": "class A:\n    def mark(f): helper()\n    @mark\n    def f(self): ...",
    "an alias in a class body": "class A:\n    make = helper\n    x = make()",
    "a function of a nested class body": "class A:\n    class B:\n        def make(): helper()\n        x = make()",
    "a field": "class A:\n    x: int = helper()",
    "a field of its own": "def field(**given): return given['default_factory']()\n"
    "class A:\n    x: int = field(default_factory=helper)",
    "a table of functions": "for f in [helper]: f()",
    "a lambda that is called": "(lambda: helper())()",
    "a global": "def f():\n    global x\n    x = helper()\nf()",
    "a generator that is gone through": "x = list(helper() for _ in (1,))",
    "a condition": "x = helper() if True else 1",
    "an augmented assignment": "x = []\nx += [helper()]",
    "several targets": "x, y = helper(), 1",
    "what a partial holds": "functools.partial(helper)()",
}


def entered(text: str) -> set[str]:
    """The functions that importing a module enters."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == "tried":
            found.add(frame.f_code.co_name)

    before = sys.getprofile()
    code = compile(text, "tried", "exec", dont_inherit=True)
    sys.setprofile(note)
    try:
        exec(code, ModuleType("tried").__dict__)
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize("what", RUN)
def test_what_an_import_executes_is_reached(what: str) -> None:
    text = f"{OTHERS}{RUN[what]}\n"
    assert "helper" in entered(text)
    files = {"src/p/__init__.py": "", "src/p/a.py": text}
    assert runs(reach(files, ("p.a", None)), "p.a", "helper") == [True]


@pytest.mark.parametrize(
    "text",
    (
        "def f(): helper()",
        "class A:\n    def f(self): helper()",
        "class A:\n    f = lambda self: helper()",
        "@functools.cache\ndef f(): helper()",
        "@dataclass\nclass A:\n    x: int = 1\n    def f(self): helper()",
        "class A(abc.ABC):\n    @property\n    def x(self): helper()\n    @x.setter\n    def x(self, y): helper()",
        "from __future__ import annotations\ndef f(x: helper()): ...\nclass A:\n    x: helper() = 1",
    ),
)
def test_what_an_import_leaves_for_later_is_not_reached(text: str) -> None:
    future, _, rest = text.rpartition("annotations\n")
    whole = (f"{future}annotations\n" if future else "") + OTHERS + rest + "\n"
    assert "helper" not in entered(whole)
    assert runs(reach({"src/p/__init__.py": "", "src/p/a.py": whole}, ("p.a", None)), "p.a", "helper") == [False]
