"""Mutants of whole files: what a tree can do to a module besides editing its code."""

import ast
import random
from collections.abc import Iterator

from tests.fakes.trees import LinkTo
from tests.mutation.mutants import EVIL
from tests.mutation.overlay import Edit

_RAISES = f"{EVIL}\n".encode()


def file_mutants(path: str, text: bytes, choose: random.Random) -> Iterator[tuple[str, str, str, Edit]]:
    """Two of the mutants of one imported file: kind, path, no symbol, and the paths that differ."""
    for kind, edit in choose.sample(sorted(_edits(path, text).items()), 2):
        yield f"file: {kind}", path, "", edit


def _edits(path: str, text: bytes) -> dict[str, Edit]:
    folder, _, name = path.rpartition("/")
    stem = path.removesuffix(".py")
    found: dict[str, Edit] = {
        "removed": {path: None},
        "a link": {path: LinkTo("../" * path.count("/") + "docs/index.md")},
        "a link with the content moved to an exempt folder": {
            path: LinkTo("../" * path.count("/") + "tools/moved.py"),
            "tools/moved.py": text,
        },
        "moved to an exempt folder": {path: None, f"examples/{name}": text},
        "not Python": {path: text + b"\ndef f(:\n"},
        "not text": {path: b"\xff\xfe\x00" + text},
        "another encoding": {path: b"# -*- coding: utf-16 -*-\n" + text},
        "an encoding that no one knows": {path: b"# -*- coding: nonsense -*-\n" + text},
        "a null byte": {path: text + b"\nx = '\0'\n"},
        "too deep": {path: text + b"\nx = " + b"+".join([b"a"] * 5000) + b"\n"},
        "compiled": {f"{folder}/__pycache__/{name.removesuffix('.py')}.cpython-312.pyc": b"\x00"},
        "compiled next to it": {f"{stem}.so": b"\x7fELF"},
        "compiled for one machine": {f"{stem}.cpython-312-x86_64-linux-gnu.so": b"\x7fELF"},
        "a module outside of the roots": {"src/torch.py": _RAISES},
        "a site customization": {"src/sitecustomize.py": _RAISES},
        "a user customization": {"src/usercustomize.py": _RAISES},
        "a path file": {"src/evil.pth": b"import os; os.abort()\n"},
        "a package around": {"src/megatron/__init__.py": b""},
        "another package in the namespace": {"src/megatron/core/__init__.py": b""},
        "attributes": {".gitattributes": b"*.py working-tree-encoding=UTF-16\n"},
        "attributes in a folder": {f"{folder}/.gitattributes": b"*.py text eol=crlf\n"},
        "submodules": {".gitmodules": b'[submodule "x"]\n\tpath = src\n\turl = https://evil.example/x\n'},
        "build settings": {"setup.cfg": b"[options]\npackage_dir = =evil\n"},
        "a package of tests inside": {
            f"{folder}/tests/__init__.py": _RAISES,
            path: b"from .tests import *\n" + text
            if b"from __future__" not in text
            else text + b"\nfrom .tests import *\n",
        },
    }
    if any(not _is_text(item) for item in ast.parse(text).body):
        found["emptied"] = {path: b""}
    if name != "__init__.py":
        found["a package of the same name"] = {f"{stem}/__init__.py": _RAISES}
        found["a link of the same name"] = {f"{stem}/__init__.py": LinkTo("../" * (path.count("/") + 1) + "docs/a.md")}
        found["a linked folder of the same name"] = {stem: LinkTo("../" * path.count("/") + "docs")}
    return found


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
