"""Tries whether the cells would notice a fault in a changed function: what is tried, in which cells, and what shows it.

Each function that cells entered gets points (`fault_points`). A cell that runs with all of them and no fault must give
the record that it had: else nothing is said by it. Then one fault at a time is switched on, in the cheapest of the
function's cells first, until one is noticed by more than an error.
"""

import json
import time
from pathlib import Path

import cells
import fault_points

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
            file = out / f"{name}.json"
            record = json.loads(file.read_text()) if file.exists() else {"error": "missing"}
            if not record["error"]:
                self.functions[name] = frozenset(record["entered"]["functions"])
                self.costs[name] = record["cpu_s"]

    def record(self, name):
        """The whole record of a cell."""
        return json.loads((self.out / f"{name}.json").read_text())

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
    points = fault_points.Points()
    unjudged |= with_points(functions, request["roots"], points)
    functions = [function for function in functions if function.name not in unjudged]
    attempt = Attempt(out, healthy, points, run, until)
    for place in range(_MOST_CELLS):
        attempt.in_cells(functions, place, limits["faults"])
    for function in functions:
        problem = "" if function.noticed() else attempt.problem(function)
        unjudged |= {function.name: problem} if problem else {}
    return {"trials": [trial for function in functions for trial in function.trials], "unjudged": unjudged}


def with_points(functions, roots, points):
    """Put points into the functions, file by file; those that cannot have any, with the reason."""
    by_file, problems = {}, {}
    for function in functions:
        path, _, symbol = function.name.partition(":")
        root, short = next((root, short) for root, short in roots.items() if path.startswith(short))
        by_file.setdefault(Path(root, path.removeprefix(short)), {})[symbol] = function.name
    for file, wanted in by_file.items():
        found = fault_points.put_points(file, wanted, points)
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
            counters.append(fault_points.counters())
            limit_s = max(_LEAST_S, _TIMES * self.healthy.costs[cell])
            tasks.append((label, cell, files[-1], self.switch(alone, number, counters[-1]), limit_s))
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

        def prepare():
            if alone is not None:
                self.points.leave_only(alone)
            self.points.active, self.points.counters = number, counters

        return prepare

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

    def problem(self, function):
        """Why nothing is said of a function that showed no fault; empty where all faults were tried."""
        if function in self.late:
            return ELAPSED
        if not function.trials:
            failed = [name for name in function.cells if self.controls.get((name, function.name)) is FAILED]
            if failed:
                return f"with points for faults in it, and no fault, {failed[0]} is not what it was"
            return "no fault could be put into what it gets and gives"
        return ""
