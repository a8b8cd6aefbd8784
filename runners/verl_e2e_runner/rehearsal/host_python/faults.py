"""Tries whether the cells would notice a fault in a changed function: what is tried, in which cells, and what shows it.

Each function that cells entered gets points at which a fault can be switched on, one at a time. It gets them from its
source: its arguments and its results pass through `Points`, and so does the test of each of its branches. Its code
object is compiled with the rest of its module and put into the functions that live in the process, so that decorators,
closures and tables keep the functions that they have.

A cell that runs with all points and no fault must give the record that it had: else nothing is said by it. Then one
fault at a time is switched on, in the cheapest of the function's cells first, until one is noticed by more than an
error.
"""

import ast
import builtins
import functools
import gc
import itertools
import json
import mmap
import time
import types
import typing
from pathlib import Path

import cells
import torch

NAME = "verl_e2e_points"
_SCALE = 1.5
# How many faults the counters can tell apart.
MOST_FAULTS = 1 << 15


class Fault(typing.NamedTuple):
    """A kind of fault at one point of one function."""

    number: int
    function: str
    kind: str
    words: str
    # The lines of the source that it is in.
    lines: typing.Sequence[int] = ()


class Points:
    """What the points of all functions call."""

    def __init__(self):
        # The number of the fault that is switched on; None: they are counted alone.
        self.faults, self.active = [], None
        # Shared with the processes of ranks: a byte for each fault that had something to change.
        self.counters = new_counters()
        # Functions that got other code: the function, the code that it had, and whose points the new one has.
        self.patched = []

    def add(self, function, kind, words, lines=()):
        """A new fault; its number."""
        if len(self.faults) >= MOST_FAULTS:
            raise ValueError("there are too many faults")
        self.faults.append(Fault(len(self.faults), function, kind, words, lines))
        return self.faults[-1].number

    def pass_on(self, value, *numbers):
        """A point: the value, or what the fault that is switched on makes of it."""
        for number in numbers:
            if self.active == number or (self.active is None and not self.counters[number]):
                changed = _CHANGES[self.faults[number].kind](value)
                if changed is not _NOTHING:
                    self.counters[number] = 1
                    if self.active == number:
                        return changed
        return value

    def leave_only(self, name):
        """Give back its own code to every function that has no points of the function of this name."""
        for function, code, names in self.patched:
            if name not in names:
                function.__code__ = code

    def left_out(self, number):
        """A point in front of statements: whether they are left out."""
        if self.active is None or self.active == number:
            self.counters[number] = 1
        return self.active == number


def new_counters():
    """New counters, which processes that are forked later share with this one."""
    return mmap.mmap(-1, MOST_FAULTS)


# What a change gives for a value that it has nothing to change in.
_NOTHING = object()


def scaled(value):
    """Numbers and tensors of numbers half as large again, whole numbers one more, truth values the opposite."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * _SCALE if value else value + 1.0
    if torch.is_tensor(value) and value.is_floating_point() and value.numel() and not value.is_meta:
        return value * _SCALE
    return _of_parts(value, scaled)


def permuted(value):
    """Tensors transposed or rolled by one, sequences and values of dictionaries in another order."""
    if torch.is_tensor(value):
        if value.is_meta or not value.numel():
            return _NOTHING
        if value.dim() > 1 and value.shape[-1] == value.shape[-2] and value.shape[-1] > 1:
            return value.transpose(-1, -2).contiguous()
        axis = next((axis for axis, size in enumerate(value.shape) if size > 1), None)
        return _NOTHING if axis is None else value.roll(1, axis)
    if type(value) in (list, tuple) and len(value) > 1 and len({type(item) for item in value}) == 1:
        turned = value[1:] + value[:1]
        if not _same(turned, value):
            return turned
    if type(value) is dict and len(value) > 1:
        values = list(value.values())
        return dict(zip(value, values[1:] + values[:1], strict=True))
    return _of_parts(value, permuted)


def _of_parts(value, change):
    """A tuple, list or dictionary with all parts changed in which there is something to change."""
    if type(value) not in (list, tuple, dict):
        return _NOTHING
    old = list(value.values()) if type(value) is dict else value
    new = [change(item) for item in old]
    if all(part is _NOTHING for part in new):
        return _NOTHING
    made = [before if after is _NOTHING else after for before, after in zip(old, new, strict=True)]
    return dict(zip(value, made, strict=True)) if type(value) is dict else type(value)(made)


def swapped(values):
    """The first two arguments of one kind that differ, exchanged."""
    for (place, first), (other_place, other) in itertools.combinations(enumerate(values), 2):
        if first is not None and type(first) is type(other) and not _same(first, other):
            found = list(values)
            found[place], found[other_place] = other, first
            return tuple(found)
    return _NOTHING


def moved(values):
    """The first argument with an order of its own, in another one."""
    for place, value in enumerate(values):
        changed = permuted(value) if torch.is_tensor(value) or type(value) in (list, tuple, dict) else _NOTHING
        if changed is not _NOTHING:
            return (*values[:place], changed, *values[place + 1 :])
    return _NOTHING


def _same(one, other):
    if one is other:
        return True
    if torch.is_tensor(one):
        return (
            torch.is_tensor(other) and one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)
        )
    try:
        return bool(one == other)
    except Exception:
        return False


def inverted(value):
    """The opposite truth value."""
    return not value


_CHANGES = {"scaled": scaled, "permuted": permuted, "swapped": swapped, "moved": moved, "inverted": inverted}


class _Finder(ast.NodeTransformer):
    """Puts points into the wanted functions of a module's tree, which it knows by their qualified names."""

    def __init__(self, wanted, points):
        self.wanted, self.points = wanted, points
        self.names, self.found = [], set()

    def visit_ClassDef(self, node):
        return self._inside(node, node.name)

    def visit_FunctionDef(self, node):
        name = ".".join([*self.names, node.name])
        self._inside(node, node.name, "<locals>")
        if name in self.wanted:
            self.found.add(name)
            _Inside(self.wanted[name], node, self.points).put()
        return node

    def visit_AsyncFunctionDef(self, node):
        return self._inside(node, node.name, "<locals>")

    def visit_Lambda(self, node):
        return self._inside(node, "<lambda>", "<locals>")

    def _inside(self, node, *names):
        self.names += names
        self.generic_visit(node)
        del self.names[len(self.names) - len(names) :]
        return node


class _Inside(ast.NodeTransformer):
    """Puts points into one function, not into those that it defines."""

    def __init__(self, function, node, points):
        self.function, self.node, self.points = function, node, points
        self.result_points = None

    def put(self):
        own, start = list(_own_nodes(self.node)), []
        given = [node.value for node in own if isinstance(node, (ast.Return, ast.Yield)) and node.value]
        if any(not (isinstance(value, ast.Constant) and value.value is None) for value in given):
            self.result_points = [
                self.points.add(self.function, "scaled", "its result scaled"),
                self.points.add(self.function, "permuted", "its result in another order"),
            ]
        elif not any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in own):
            number = self.points.add(self.function, "skipped", "its body left out")
            test = _call("left_out", ast.Constant(number))
            start.append(ast.If(test=test, body=[ast.Return(value=None)], orelse=[]))
        arguments = self.node.args
        names = [item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        names = [name for name in names if name not in ("self", "cls")]
        if names:
            numbers = [self.points.add(self.function, "moved", "an argument in another order")]
            if len(names) > 1:
                numbers.insert(0, self.points.add(self.function, "swapped", "two arguments of one kind swapped"))
            load = ast.Tuple([ast.Name(name, ast.Load()) for name in names], ast.Load())
            target = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
            start.append(ast.Assign(targets=[target], value=_call("pass_on", load, *map(ast.Constant, numbers))))
        self.node.body = [self.visit(statement) for statement in self.node.body]
        place = 1 if ast.get_docstring(self.node, clean=False) is not None else 0
        self.node.body[place:place] = [ast.fix_missing_locations(ast.copy_location(new, self.node)) for new in start]

    def _statement(self, node):
        """Let a statement be left out that binds no name."""
        self.generic_visit(node)
        words = f"the statement at line {node.lineno} left out"
        number = self.points.add(self.function, "omitted", words, range(node.lineno, node.end_lineno + 1))
        test = ast.UnaryOp(op=ast.Not(), operand=_call("left_out", ast.Constant(number)))
        return ast.fix_missing_locations(ast.copy_location(ast.If(test=test, body=[node], orelse=[]), node))

    def visit_Expr(self, node):
        words = ast.unparse(node.value.func).lower() if isinstance(node.value, ast.Call) else ""
        # What writes something for people alone shows nothing.
        if words in ("", "print") or any(part in words for part in ("log", "warn")):
            return self.generic_visit(node)
        return self._statement(node)

    def visit_Assign(self, node):
        binds = any(not isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
        return self.generic_visit(node) if binds else self._statement(node)

    def visit_AugAssign(self, node):
        return self._statement(node)

    def visit_If(self, node):
        self.generic_visit(node)
        words = f"the branch at line {node.lineno} inverted"
        number = self.points.add(self.function, "inverted", words, (node.lineno,))
        node.test = ast.copy_location(_call("pass_on", node.test, ast.Constant(number)), node.test)
        return ast.fix_missing_locations(node)

    visit_IfExp = visit_If  # noqa: N815

    def visit_Return(self, node):
        self.generic_visit(node)
        if node.value is not None and self.result_points:
            passed = _call("pass_on", node.value, *map(ast.Constant, self.result_points))
            node.value = ast.copy_location(passed, node.value)
        return ast.fix_missing_locations(node)

    visit_Yield = visit_Return  # noqa: N815

    def visit_FunctionDef(self, node):
        return node

    visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = visit_FunctionDef  # noqa: N815


def _own_nodes(function):
    """The nodes of a function without those of what it defines."""
    waiting = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)


def _call(method, *values):
    function = ast.Attribute(ast.Name(NAME, ast.Load()), method, ast.Load())
    return ast.Call(func=function, args=list(values), keywords=[])


def put_points(file, wanted, points):
    """Put points into functions of a source file, by qualified name; what cannot have any, with the reason.

    `wanted` gives for each qualified name what the function is called in the faults.
    """
    setattr(builtins, NAME, points)
    try:
        finder = _Finder(wanted, points)
        tree = finder.visit(ast.parse(file.read_bytes()))
        compiled = compile(tree, str(file), "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        return dict.fromkeys(wanted, f"its source cannot be compiled again ({type(error).__name__})")
    problems = dict.fromkeys(wanted.keys() - finder.found, "its source does not have it under this name")
    # A function that is defined inside another one lies in the code of that one.
    affected = {
        name: {name.rsplit(".<locals>.", count)[0] for count in range(name.count(".<locals>.") + 1)}
        for name in finder.found
    }
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(compiled)}
    patched = set()
    for function in gc.get_objects():
        if not isinstance(function, types.FunctionType) or function.__code__.co_filename != str(file):
            continue
        code = function.__code__
        touched = {name for name, parts in affected.items() if code.co_qualname in parts}
        new = codes.get((code.co_qualname, code.co_firstlineno))
        if touched and new is not None and len(new.co_freevars) == len(code.co_freevars):
            points.patched.append((function, code, {wanted[name] for name in touched}))
            function.__code__ = new
            patched |= touched
    reason = "no function of this name lives in the process: it is made in another way, or compiled"
    return problems | dict.fromkeys(finder.found - patched, reason)


def _codes(code):
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _codes(part)


# A function's faults are tried in so many of its cells: the cheapest, then the cheapest of other kinds.
_MOST_CELLS = 3
MOST_DIFFERING = 5
# The order in which they are tried; a branch on a changed line comes before all others.
_ORDER = ("skipped", "scaled", "swapped", "permuted", "moved", "omitted", "inverted")
_LEAST_S, _TIMES = 15.0, 3.0
ELAPSED = "there was no time left for it"
FAILED = "failed"


class Function:
    """One changed function and what is known of it."""

    def __init__(self, name, lines, entering):
        self.name, self.lines, self.cells = name, set(lines), chosen(entering)
        self.faults, self.trials = [], []

    def noticed(self):
        """Whether more than an error or a warning showed one of its faults."""
        return any(trial["oracles"] or any(map(_is_number, trial["differing"])) for trial in self.trials)

    def shown(self):
        """The faults that more than a warning showed."""
        return {t["fault"] for t in self.trials if t["oracles"] or t["error"] or any(map(_is_number, t["differing"]))}


def _is_number(quantity):
    return not quantity.startswith("warnings@")


class Healthy:
    """The records of the cells without faults, of which as little as possible is kept."""

    def __init__(self, out, names):
        self.out, self.functions, self.costs = out, {}, {}
        for name in names:
            record = self.record(name)
            if record and not record["error"]:
                self.functions[name] = frozenset(record["entered"]["functions"])
                self.costs[name] = record["cpu_s"]

    def record(self, name):
        """The whole record of a cell; None where there is none."""
        file = self.out / f"{name}.json"
        return json.loads(file.read_text()) if file.exists() else None

    def entering(self, function):
        """The cells that entered a function, the cheapest first."""
        return sorted((name for name, found in self.functions.items() if function in found), key=self.costs.get)


def chosen(entering):
    """Of cells, the cheapest first, those in which a function's faults are tried."""
    kinds = {}
    for name in entering:
        cell = cells.CELLS[name]
        kinds.setdefault((bool(cell.adapter), cell.ranks > 1, cell.resumed), name)
    first = list(kinds.values())
    return [*first, *(name for name in entering if name not in first)][:_MOST_CELLS]


def observe(request, out, run):
    """Try the faults; the document of what was tried. `run` runs tasks and starts none after a time."""
    limits = request["faults"]
    until = time.monotonic() + limits["seconds"]
    healthy = Healthy(out, request["cells"])
    entered = {name: found for name in limits["functions"] if (found := healthy.entering(name))}
    functions = [Function(name, limits["functions"][name], found) for name, found in entered.items()]
    beyond = f"faults are put into {limits['functions_at_most']} functions at most"
    unjudged = {function.name: beyond for function in functions[limits["functions_at_most"] :]}
    del functions[limits["functions_at_most"] :]
    points = Points()
    unjudged |= with_points(functions, request["roots"], points)
    functions = [function for function in functions if function.name not in unjudged]
    attempt = Attempt(out, healthy, points, run, until)
    for place in range(_MOST_CELLS):
        attempt.in_cells(functions, place, limits["faults"])
    for function in functions:
        if function.noticed():
            continue
        failed = [name for name in function.cells if attempt.controls.get((name, function.name)) is FAILED]
        if function in attempt.late:
            unjudged[function.name] = ELAPSED
        elif not function.trials and failed:
            unjudged[function.name] = f"with points for faults in it, and no fault, {failed[0]} is not what it was"
        elif not function.trials:
            unjudged[function.name] = "no fault could be put into what it gets and gives"
    return {"trials": [trial for function in functions for trial in function.trials], "unjudged": unjudged}


def with_points(functions, roots, points):
    """Put points into the functions, file by file; those that cannot have any, with the reason."""
    by_file, problems = {}, {}
    for function in functions:
        path, _, symbol = function.name.partition(":")
        root, short = next((root, short) for root, short in roots.items() if path.startswith(short))
        by_file.setdefault(Path(root, path.removeprefix(short)), {})[symbol] = function.name
    for file, wanted in by_file.items():
        found = put_points(file, wanted, points)
        problems |= {wanted[symbol]: reason for symbol, reason in found.items()}
    named = {function.name: function for function in functions}
    for fault in points.faults:
        named[fault.function].faults.append(fault)
    for function in functions:
        function.faults.sort(key=lambda fault: (not function.lines & set(fault.lines), _ORDER.index(fault.kind)))
    return problems


class Attempt:
    """All that is tried, round by round: each function gets its turn before one gets its second."""

    def __init__(self, out, healthy, points, run, until):
        self.out, self.healthy, self.points, self.run, self.until = out / "observed", healthy, points, run, until
        self.out.mkdir(exist_ok=True)
        # By cell and function (None: all of them have their points), the numbers of the faults that have something to
        # change there; FAILED where the cell is not what it was.
        self.controls = {}
        self.count, self.late = 0, set()

    def in_cells(self, functions, place, most):
        """Try the faults of each function in the cell at this place of its list."""
        waiting = {f: f.cells[place] for f in functions if not f.noticed() and place < len(f.cells)}
        self.control(dict.fromkeys((cell, None) for cell in waiting.values()))
        # Where the points of all functions together change something, each is tried with its own alone.
        self.control((cell, f.name) for f, cell in waiting.items() if self.controls.get((cell, None)) is FAILED)
        turns = {}
        for function, cell in waiting.items():
            applicable = self.controls.get(self.alone(function, cell))
            if applicable is None:
                self.late.add(function)
            elif applicable is not FAILED:
                first = [fault for fault in function.faults if fault.number in applicable][:most]
                turns[function] = [fault for fault in first if fault.words not in function.shown()]
        while turns := {function: faults for function, faults in turns.items() if faults and not function.noticed()}:
            order = [(function, waiting[function], faults.pop(0)) for function, faults in turns.items()]
            given = self.records([(*self.alone(function, cell), fault.number) for function, cell, fault in order])
            for (function, cell, fault), (record, _counted) in zip(order, given, strict=True):
                if record is None:
                    self.late.add(function)
                else:
                    trial = {"function": function.name, "fault": fault.words, "cell": cell}
                    function.trials.append(trial | self.compared(record, cell))

    def alone(self, function, cell):
        """A cell, with the function whose points alone it has; None where it has those of all."""
        return cell, function.name if self.controls.get((cell, None)) is FAILED else None

    def control(self, wanted):
        """Run cells with points and no fault, each once."""
        keys = [key for key in wanted if key not in self.controls]
        for key, (record, counted) in zip(keys, self.records([(*key, None) for key in keys]), strict=True):
            if record is not None:
                shown = self.compared(record, key[0])
                same = not (shown["oracles"] or shown["differing"] or shown["error"])
                self.controls[key] = counted if same else FAILED

    def records(self, wanted):
        """Run cells, each with the function whose points alone it has or None, and the number of a fault or None.

        Gives for each its record, and the numbers of the faults that had something to change.
        The record is None where there was no time left for it.
        """
        tasks, files, counters = [], [], []
        for cell, alone, number in wanted:
            self.count += 1
            label = f"faults-{self.count}"
            files.append(self.out / f"{label}.json")
            counters.append(new_counters())
            limit_s = max(_LEAST_S, _TIMES * self.healthy.costs[cell])
            prepare = functools.partial(self.switch, alone, number, counters[-1])
            tasks.append((label, cell, files[-1], prepare, limit_s))
        self.run(tasks, self.until)
        found = []
        for file, counted in zip(files, counters, strict=True):
            record = json.loads(file.read_text()) if file.exists() else None
            file.unlink(missing_ok=True)
            found.append((record, {number for number in range(len(self.points.faults)) if counted[number]}))
            counted.close()
        return found

    def switch(self, alone, number, counters):
        """What the process of a cell does first: switch a fault on."""
        if alone is not None:
            self.points.leave_only(alone)
        self.points.active, self.points.counters = number, counters

    def compared(self, record, name):
        """What of a cell's record shows a fault."""
        import oracles

        if record["error"]:
            return {"oracles": [], "differing": [], "error": record["error"]["type"]}
        before, cell = self.healthy.record(name), cells.CELLS[name]
        if cell.agrees_with in self.healthy.functions:
            reference = self.healthy.record(cell.agrees_with)
            record["oracles"].append(oracles.agreement(record["quantities"], reference["quantities"]))
        held = {finding["oracle"] for finding in before["oracles"] if finding["passed"]}
        failing = [finding["oracle"] for finding in record["oracles"] if not finding["passed"]]
        one, other = before["quantities"], record["quantities"]
        differing = [key for key in {**other, **one} if json.dumps(one.get(key, ())) != json.dumps(other.get(key, ()))]
        return {
            "oracles": [oracle for oracle in failing if oracle in held],
            "differing": sorted(differing, key=lambda key: not _is_number(key))[:MOST_DIFFERING],
            "error": "",
        }
