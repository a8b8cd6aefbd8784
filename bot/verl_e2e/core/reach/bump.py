"""A bump of Megatron-LM: which of the code that differs between two commits runs of verl are known to enter.

verl reaches Megatron-LM through Bridge, at names that are made at run time, so its calls are not followed: what jobs
entered of it is known by their execution maps. Of code that no job was measured with (Megatron-FSDP, state-space
layers) the rules of the policy speak by its place.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from verl_e2e.core.model.execution import MEGATRON_LM_FOLDER, ExecutionMaps
from verl_e2e.core.reach.changed_functions import TouchedFunction, symbol_of_effect
from verl_e2e.core.reach.diff import FileDifference
from verl_e2e.core.reach.effects import UNPARSED, UNREACHED, UNREAD, Effect, Effects, Inside
from verl_e2e.core.reach.program import BODY, Node, Program, module_name
from verl_e2e.core.reach.walk import Entry, Reach

_UNREACHED = "no measured job entered what differs, and no rule of the policy names its place"
_NO_JOB = "no job was measured with it"
_NOT_FOLLOWED = "what it imports of Megatron-LM could not be followed"
_NOTHING: Mapping[str, str] = MappingProxyType({})
# The package of Megatron-LM, in its own tree.
MEGATRON_CODE = "megatron/"


def other_files(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """What differs of what a run has of Megatron-LM, the package and the files beside it, and is no source of it."""
    names = sorted(path for path in {**old, **new} if old.get(path) != new.get(path))
    here = (path for path in names if path.startswith(MEGATRON_CODE) or "/" not in path)
    return tuple(path for path in here if not (path.startswith(MEGATRON_CODE) and path.endswith(".py")))


# Of a changed symbol, by its path and name, and whether an import alone runs it.
OwnWay = Callable[[str, str, bool], str]


def own_way(program: Program, core: Iterable[Entry], verls: Iterable[Entry], unreadable: Collection[str]) -> OwnWay:
    """The import of a consumer that verl has not and that names a symbol or alone leads there; empty where none does.

    `program` is one commit of Megatron-LM, `core` and `verls` are what the two import of it; of modules that are
    `unreadable` nothing is known.
    """
    known, core, named = {entry.target for entry in verls}, tuple(core), dict[Entry, Node]()
    for entry in (entry for entry in core if entry.target not in known):
        found = None if entry.attribute is None else program.lookup(entry.module, entry.attribute)
        named[entry] = found.node if found else Node(entry.target, BODY)
    try:
        own, shared = Reach(program, named), Reach(program, [entry for entry in core if entry.target in known])
        lost = bool(own.imported.keys() & {*unreadable})
    except RecursionError:
        lost = True

    def start(path: str, symbol: str, at_import: bool) -> str:
        node = Node(module_name(path, ("",)) or "", BODY if at_import else symbol)
        for entry, to in named.items():
            if node.module == to.module and (not to.symbol or f"{symbol}.".startswith(f"{to.symbol}.")):
                return str(entry)
        chain = () if lost or shared.chain(node) else own.chain(node)
        return _NOT_FOLLOWED if lost else str(chain[0].source) if chain else ""

    return start


def with_bump(
    effects: Effects,
    differences: Mapping[str, FileDifference],
    maps: ExecutionMaps,
    commits: tuple[str, str],
    others: Mapping[str, str] = _NOTHING,
    ways: Collection[OwnWay] = (),
) -> Effects:
    """The effects with those of a bump; `differences` are those of its files, by the path in Megatron-LM.

    `others` are files that no comparison looks into, each with the reason: they are judged by their place. `ways` are
    those of another consumer than verl through both commits; what cannot be read may be on them.
    """
    paths, unread, functions = dict(effects.paths), dict(effects.unread), list(effects.functions)
    entered: dict[str, tuple[str, ...]] = {}
    unknown = {inner: FileDifference((), why) for inner, why in others.items()}
    for inner, difference in {**differences, **unknown}.items():
        path = f"{MEGATRON_LM_FOLDER}/{inner}"
        # The jobs that entered anything of the file; of one that they do not know, of its folder.
        known = any(path in item.files for item in maps.maps)
        near = path if known else f"{path.rpartition('/')[0]}/"
        beside = tuple(item.job for item in maps.maps if any(name.startswith(near) for name in item.files))
        if difference.problem:
            # Any of its functions may differ.
            unread[path] = difference.problem
            # What is no source of Python has no function that a rule may name.
            kind = UNPARSED if inner in others else UNREAD
            why = (difference.problem,)
            paths[path] = Inside((Effect(path, "", kind, (), why, sure=False, jobs=beside, own=bool(ways)),))
            continue
        found = []
        bodies = {function.symbol for function in difference.functions.changed if function.symbol}
        symbols = {change.symbol for change in difference.changes}
        # What only an import runs differs as well, a relative or conditional import among it.
        imported = (change for change in difference.import_time if change.symbol not in symbols)
        for change in (*difference.changes, *imported):
            own = tuple(item.job for item in maps.entered_by(path, change.symbol))
            # What is new, and what belongs to a class or module, may take part in whatever else runs there.
            joins = change.kind == "added" or change.symbol not in bodies
            jobs = own or (beside if joins else ())
            how = "entered by" if own else "beside code that was entered by"
            at_import = change.symbol not in symbols
            starts = (way(inner, change.symbol, at_import) for way in ways)
            start = next(filter(None, starts), "")
            via = (start or (f"{how} {', '.join(jobs)}" if jobs else _NO_JOB),)
            # A rule of Megatron-LM asks about its code in one way, whether an import or a call runs it.
            kind = "added" if change.kind == "added" else "changed"
            places = (path, change.symbol, kind, change.statements, via)
            found.append(Effect(*places, sure=bool(own), jobs=jobs, own=bool(start)))
        paths[path] = Inside(tuple(found), UNREACHED, _UNREACHED)
        for earlier, both in enumerate((difference.functions.changed, difference.functions.earlier)):
            for function in both:
                jobs = tuple(item.job for item in maps.entered_by(path, function.symbol))
                if not earlier:
                    entered[f"{path}:{function.symbol}"] = jobs
                # A job was measured by functions, so it must enter the function and no certain line of it.
                update = {"path": path, "reached": bool(jobs), "lines": (), "excused": ()}
                named = function.model_copy(update=update)
                functions.append(TouchedFunction(named, path, symbol_of_effect(function.symbol), bool(earlier)))
    note = (
        f"Compared Megatron-LM {commits[0][:12]} with {commits[1][:12]}: {len(entered)} functions in "
        f"{len(differences)} files differ, and measured jobs entered {sum(map(bool, entered.values()))} of them. "
        "Other folders than megatron/ are in no run."
    )
    problems = {inner: item.problem for inner, item in differences.items() if item.problem}
    lost = tuple(f"{MEGATRON_LM_FOLDER}/{inner} could not be compared: {why}." for inner, why in problems.items())
    return replace(
        effects,
        paths=paths,
        unread=unread,
        functions=tuple(functions),
        notes=(*effects.notes, note),
        incomplete=(*effects.incomplete, *lost),
        bumped=commits,
        entered=entered,
    )
