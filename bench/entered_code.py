"""Write tests/fixtures/reach/entered.json.xz: what of Megatron-Bridge leads to all that measured runs entered.

python bench/entered_code.py --bridge DIR

DIR is a checkout or a bare git directory with the commit of the packaged execution maps. The file holds the sources of
the modules on the chains to these functions, without comments, docstrings and the bodies of functions on no chain, so
that `tests/app/test_entered_code.py` can follow them again wherever the tests run.
"""

import argparse
import ast
import json
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bot"))

from verl_e2e.app.plan_change import entered_by_runs  # noqa: E402  (this checkout)
from verl_e2e.config.maps import packaged_maps, packaged_uses  # noqa: E402
from verl_e2e.config.policy import packaged_policy  # noqa: E402
from verl_e2e.core.reach.program import Node, Program, module_name  # noqa: E402
from verl_e2e.core.reach.reader import summarize  # noqa: E402
from verl_e2e.core.reach.walk import Reach  # noqa: E402
from verl_e2e.git.repository import GitRepository  # noqa: E402

OUT = ROOT / "tests" / "fixtures" / "reach" / "entered.json.xz"


class Kept(ast.NodeTransformer):
    """Takes out docstrings, and the bodies of the functions of a module that are not kept."""

    def __init__(self, symbols: frozenset[str]) -> None:
        self.symbols = symbols
        self.outer = ""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        outer, self.outer = self.outer, f"{node.name}."
        self.generic_visit(node)
        self.outer = outer
        return without_docstring(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if not {f"{self.outer}{node.name}", f":{node.name}"} & self.symbols:
            node.body = [ast.Expr(ast.Constant(...))]
        return without_docstring(node)


def without_docstring(node: ast.ClassDef | ast.FunctionDef | ast.Module) -> ast.AST:
    """The node without its docstring."""
    if ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:] or [ast.Expr(ast.Constant(...))]
    return node


def on_chains(reach: Reach, wanted: set[Node]) -> set[Node]:
    """The nodes and the modules on the chains to some nodes, to the classes of these, and to what imports each."""
    found: set[Node] = set()
    waiting = list(wanted)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        steps = [table.get(node) for table in (reach.steps, reach.live)] + [reach.imported.get(node.module)]
        waiting.extend(step.source for step in steps if step is not None and isinstance(step.source, Node))
        waiting.extend(around(node))
    return found


def around(node: Node) -> Iterator[Node]:
    """The class of a method and the packages of a module."""
    if "." in node.symbol:
        yield Node(node.module, node.symbol.partition(".")[0])
    outer = node.module.rpartition(".")[0]
    if outer:
        yield Node(outer, "")


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bridge", type=Path, required=True)
    repository, policy = GitRepository(parser.parse_args().bridge), packaged_policy().reach
    assert policy is not None
    (commit,) = {measured.bridge for measured in packaged_maps().maps}
    blobs = {path: blob for path, blob in repository.tree(commit).items() if module_name(path, policy.roots)}
    contents = repository.read_objects(list(blobs.values()))
    texts = {path: contents[blob] or b"" for path, blob in blobs.items()}
    program = Program({module_name(path, policy.roots) or "": path for path in texts}, lambda p: summarize(texts[p]))
    reach = Reach(program, packaged_uses().entries)
    entered = {Node(entry.module, entry.attribute or "") for entry in entered_by_runs(policy.package, policy.roots)}
    chains = on_chains(reach, {node for node in entered if program.symbol(node) is not None})
    kept = {}
    for module in sorted({node.module for node in chains} & program.paths.keys()):
        symbols = frozenset(node.symbol for node in chains if node.module == module)
        tree = ast.parse(texts[program.paths[module]])
        kept[program.paths[module]] = ast.unparse(Kept(symbols).visit(without_docstring(tree)))
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_bytes(lzma.compress(json.dumps({"commit": commit, "files": kept}).encode(), preset=9))
    sys.stdout.write(f"{OUT}: {len(kept)} files, {OUT.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
