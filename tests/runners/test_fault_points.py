"""Faults that are switched on in functions of a running process, in the Python of rehearsals."""

import json
import os
import subprocess
from typing import Any

import pytest

from tests.conftest import REHEARSAL
from verl_e2e_runner.rehearsal.rehearse import PROGRAMS

pytestmark = pytest.mark.rehearsal

SOURCE = '''
import contextlib
import functools

import torch

KEPT = {}


def kept(function):
    @functools.wraps(function)
    def wrapper(*values, **options):
        return function(*values, **options)

    KEPT[function.__name__] = function
    return wrapper


@kept
def product(left, right):
    """The product."""
    return left @ right


def outer(scale):
    def inner(value):
        return value * scale

    return inner


ALIVE = outer(3.0)


class Base:
    def size(self):
        return 3


class Thing(Base):
    def size(self, more=0):
        if more > 1:
            return super().size() + more
        return super().size()

    @property
    def name(self):
        return "name"

    @staticmethod
    def difference(one, other):
        return one - other

    def fill(self, place):
        place.append(1)

    def freeze(self, place):
        place[0] = 5
        place[1] += 1
        print("frozen", end="")
        return self


def pairs(values):
    for value in values:
        yield value, 1.0


def chosen(flag):
    return "yes" if flag else "no"


@contextlib.contextmanager
def opened(box):
    box.append("in")
    yield box
    box.append("out")


def nothing():
    pass


def apart(items, mapping):
    return [items, mapping]


unnamed = lambda value: value
'''

SCRIPT = """
import json, sys
from pathlib import Path
sys.path[:0] = [str(Path(sys.argv[2]).parent), sys.argv[1], str(Path(sys.argv[1]).parent)]
import faults, torch, sample
names = json.loads(sys.argv[3])
points = faults.Points()
problems = faults.put_points(Path(sample.__file__), {name: "sample.py:" + name for name in names}, points)

def plain(value):
    if torch.is_tensor(value):
        return value.tolist()
    return list(map(plain, value)) if isinstance(value, (list, tuple)) else value

def opened():
    box = []
    with sample.opened(box) as inside:
        inside.append("body")
    return box

def filled():
    place = []
    sample.Thing().fill(place)
    return place

def frozen():
    place = [1, 2]
    sample.Thing().freeze(place)
    return place

calls = {
    "freeze": frozen,
    "product": lambda: sample.product(torch.tensor([[1., 2.], [3., 4.]]), torch.tensor([[0., 1.], [1., 1.]])),
    "registered": lambda: sample.KEPT["product"](torch.eye(2), torch.tensor([[0., 1.], [2., 3.]])),
    "alive": lambda: sample.ALIVE(2.0), "new": lambda: sample.outer(3.0)(2.0),
    "size": lambda: sample.Thing().size(), "more": lambda: sample.Thing().size(2),
    "name": lambda: sample.Thing().name, "difference": lambda: sample.Thing.difference(5.0, 3.0),
    "fill": filled, "pairs": lambda: list(sample.pairs([1, 2])), "chosen": lambda: sample.chosen(True),
    "opened": opened, "apart": lambda: sample.apart([1, 2, 3], {"a": 1.0, "b": 2.0}),
}
healthy = {name: plain(call()) for name, call in calls.items()}
applicable = [fault.number for fault in points.faults if points.counters[fault.number]]
found = []
for fault in points.faults:
    points.active = fault.number
    seen = {}
    for name, call in calls.items():
        try:
            seen[name] = plain(call())
        except Exception as error:
            seen[name] = type(error).__name__
    changed = {name: value for name, value in seen.items() if value != healthy[name]}
    found.append([fault.function.partition(":")[2], fault.kind, fault.number in applicable, changed])
points.active = None
points.leave_only("sample.py:Thing.difference")
print(flush=True)
print(json.dumps({"problems": problems, "healthy": healthy, "found": found,
                  "left": sample.product.__wrapped__.__code__.co_names,
                  "kept": sample.Thing.difference.__code__.co_names}))
"""

FUNCTIONS = (
    *(
        "product",
        "outer.<locals>.inner",
        "Thing.size",
        "Thing.name",
        "Thing.difference",
        "Thing.fill",
        "Thing.freeze",
        "pairs",
    ),
    *("chosen", "opened", "nothing", "apart", "missing", "unnamed"),
)


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    sample = tmp_path_factory.mktemp("sample") / "sample.py"
    sample.write_text(SOURCE)
    argv = (str(REHEARSAL / "bin/python"), "-c", SCRIPT, str(PROGRAMS), str(sample), json.dumps(FUNCTIONS))
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={"PATH": os.defpath})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def changes(tried: dict[str, Any], function: str, kind: str) -> Any:
    """What a fault changed, by the call that shows it; those of one kind together."""
    rows = [changed for name, of_kind, _applicable, changed in tried["found"] if (name, of_kind) == (function, kind)]
    return rows[0] if len(rows) == 1 else rows


def test_without_a_fault_every_function_gives_what_it_gave(tried: dict[str, Any]) -> None:
    assert tried["healthy"] == {
        "product": [[2.0, 3.0], [4.0, 7.0]],
        "registered": [[0.0, 1.0], [2.0, 3.0]],
        "alive": 6.0,
        "new": 6.0,
        "size": 3,
        "more": 5,
        "name": "name",
        "difference": 2.0,
        "fill": [1],
        "freeze": [5, 3],
        "pairs": [[1, 1.0], [2, 1.0]],
        "chosen": "yes",
        "opened": ["in", "body", "out"],
        "apart": [[1, 2, 3], {"a": 1.0, "b": 2.0}],
    }


def test_what_cannot_have_points_is_named(tried: dict[str, Any]) -> None:
    reason = "its source does not have it under this name"
    assert tried["problems"] == {"missing": reason, "unnamed": reason}


def test_faults_reach_decorated_registered_and_living_inner_functions(tried: dict[str, Any]) -> None:
    assert changes(tried, "product", "scaled")["product"] == [[3.0, 4.5], [6.0, 10.5]]
    assert "registered" in changes(tried, "product", "scaled")
    assert changes(tried, "product", "swapped")["product"] == [[3.0, 4.0], [4.0, 6.0]]
    assert changes(tried, "product", "permuted")["product"] == [[2.0, 4.0], [3.0, 7.0]]
    assert changes(tried, "product", "moved")["product"] == [[3.0, 4.0], [4.0, 6.0]]
    assert changes(tried, "outer.<locals>.inner", "scaled") == {"alive": 9.0, "new": 9.0}


def test_faults_in_methods_properties_generators_and_branches(tried: dict[str, Any]) -> None:
    assert changes(tried, "Thing.size", "scaled") == {"size": 4, "more": 6}
    assert changes(tried, "Thing.size", "inverted") == {"more": 3}
    assert changes(tried, "Thing.difference", "swapped") == {"difference": -2.0}
    assert changes(tried, "Thing.fill", "skipped") == {"fill": []}
    assert changes(tried, "pairs", "scaled") == {"pairs": [[2, 1.5], [3, 1.5]]}
    # What is printed is not left out: nothing could notice it.
    assert changes(tried, "Thing.freeze", "omitted") == [{"freeze": [1, 3]}, {"freeze": [5, 2]}]
    assert changes(tried, "chosen", "inverted") == {"chosen": "no"}
    assert changes(tried, "apart", "permuted") == {"apart": [[2, 3, 1], {"a": 2.0, "b": 1.0}]}
    assert changes(tried, "opened", "skipped") == []


def test_a_fault_that_has_nothing_to_change_is_not_called_tried(tried: dict[str, Any]) -> None:
    applicable = {(name, kind) for name, kind, counted, _changed in tried["found"] if counted}
    changed = {(name, kind) for name, kind, _counted, changed in tried["found"] if changed}
    assert changed <= applicable
    # A name is text, and nothing calls `nothing`.
    assert ("Thing.name", "scaled") not in applicable
    assert ("nothing", "skipped") not in applicable


def test_a_function_alone_keeps_its_points(tried: dict[str, Any]) -> None:
    assert "verl_e2e_points" in tried["kept"]
    assert "verl_e2e_points" not in tried["left"]
