"""Commits that are small to send and huge to read, written object by object."""

import hashlib
import zlib
from collections.abc import Callable

from tests.fakes.github_standin.repository import BareRepository

# A module that verl imports.
ENTRY = "src/megatron/bridge/__init__.py"
# The policy of a base onto which they are proposed.
POLICY_TEXT = b"""\
schema: 1
verl: {commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a}
image: {name: verlai/verl, tag: vllm024.dev2}
checkpoint: {model_id: Qwen/Qwen2.5-0.5B}
exempt: [{name: documentation, paths: [docs/], reason: nothing runs it}]
reach:
  package: megatron.bridge
  roots: [src/]
  callers: verl/
  rules: [{name: reached code, levels: [0], reason: verl runs this code}]
rules: [{name: source, paths: [src/], levels: [0], reason: verl runs it}]
"""


class Bombs:
    """Makes commits in a bare repository; each verb gives the SHA of a commit on top of `parent`."""

    def __init__(self, repository: BareRepository, parent: str) -> None:
        self._repository = repository
        self._parent = parent

    def wide(self, under: str = "docs", levels: int = 9) -> str:
        """10^levels names below a folder, by a dozen objects: each tree holds the one before ten times."""
        entry = ("100644", "blob", self._blob(b"x"))
        for _ in range(levels):
            tree = self._tree([(*entry, f"n{number}") for number in range(10)])
            entry = ("040000", "tree", tree)
        return self._commit(under, entry)

    def deep(self, under: str = "docs", levels: int = 5_000) -> str:
        """One file below that many folders."""
        mode, sha = b"100644", self._blob(b"x")
        for _ in range(levels):
            sha = self._loose(b"tree", mode + b" d\0" + bytes.fromhex(sha))
            mode = b"40000"
        return self._commit(under, ("040000", "tree", sha))

    def long_name(self, under: str = "src", length: int = 60_000) -> str:
        """One file with a long name."""
        return self._commit(under, ("040000", "tree", self._tree([("100644", "blob", self._blob(b"x"), "n" * length)])))

    def many(self, under: str = "src", count: int = 30_000) -> str:
        """That many changed files, all with one content."""
        blob = self._blob(b"x = 1\n")
        tree = self._tree([("100644", "blob", blob, f"n{number:06}.py") for number in range(count)])
        return self._commit(under, ("040000", "tree", tree))

    def file(self, path: str, content: bytes) -> str:
        """One file of any content."""
        *folders, name = path.split("/")
        entry = ("100644", "blob", self._blob(content))
        for inner in (name, *reversed(folders[1:])):
            entry = ("040000", "tree", self._tree([(*entry, inner)]))
        return self._commit(folders[0], entry)

    def _loose(self, kind: bytes, content: bytes) -> str:
        """Write an object without a process for it."""
        raw = kind + b" %d\0" % len(content) + content
        sha = hashlib.sha1(raw, usedforsecurity=False).hexdigest()
        file = self._repository.path / "objects" / sha[:2] / sha[2:]
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(zlib.compress(raw))
        return sha

    def _blob(self, content: bytes) -> str:
        return self._repository.git("hash-object", "-w", "--stdin", data=content).decode().strip()

    def _tree(self, entries: list[tuple[str, str, str, str]]) -> str:
        rows = "".join(f"{mode} {kind} {sha}\t{name}\n" for mode, kind, sha, name in entries)
        return self._repository.git("mktree", data=rows.encode()).decode().strip()

    def _commit(self, name: str, entry: tuple[str, str, str]) -> str:
        """A commit that replaces one name at the top of the parent's tree."""
        listed = self._repository.git("ls-tree", self._parent).decode().splitlines()
        kept = [row for row in listed if row.split("\t")[1] != name]
        mode, kind, sha = entry
        tree = self._repository.git("mktree", data="\n".join([*kept, f"{mode} {kind} {sha}\t{name}", ""]).encode())
        return self._repository.commit_tree(tree.decode().strip(), (self._parent,), "A small change")


# What planning must refuse or survive, by name; all are a few kilobytes to push.
COMMITS: dict[str, Callable[[Bombs], str]] = {
    "a billion names": lambda bombs: bombs.wide(),
    "a billion names of source": lambda bombs: bombs.wide("src"),
    "a deep tree": lambda bombs: bombs.deep(),
    "a long name": lambda bombs: bombs.long_name(),
    "many changed files": lambda bombs: bombs.many(),
    "a large file": lambda bombs: bombs.file("src/large.py", b"#" * (64 << 20)),
    "a dotted name": lambda bombs: bombs.file(ENTRY, b"import " + b"a." * 150_000 + b"a\n"),
    "a dotted name over lines": lambda bombs: bombs.file(ENTRY, b"import " + b"a \\\n . " * 80_000 + b"a\n"),
    "many statements": lambda bombs: bombs.file(ENTRY, b"a\n" * (4 << 20)),
    "a long expression": lambda bombs: bombs.file(ENTRY, b"x = " + b"a+" * 400_000 + b"a\n"),
    "brackets": lambda bombs: bombs.file(ENTRY, b"x = " + b"(" * 100_000 + b")" * 100_000 + b"\n"),
    "unary minus": lambda bombs: bombs.file(ENTRY, b"x = " + b"-" * 500_000 + b"1\n"),
    "attributes": lambda bombs: bombs.file(ENTRY, b"x = a" + b".b" * 300_000 + b"\n"),
    "calls": lambda bombs: bombs.file(ENTRY, b"x = a" + b"()" * 300_000 + b"\n"),
    "branches": lambda bombs: bombs.file(ENTRY, b"if a: pass\n" + b"elif a: pass\n" * 60_000),
    "lambdas": lambda bombs: bombs.file(ENTRY, b"x = " + b"lambda:" * 100_000 + b"1\n"),
    "a number": lambda bombs: bombs.file(ENTRY, b"x = " + b"1" * 1_000_000 + b"\n"),
    "null bytes": lambda bombs: bombs.file(ENTRY, b"\0" * 1_000_000),
    "nested f-strings": lambda bombs: bombs.file(ENTRY, b"x = f'" + b"{a:" * 50_000 + b"}" * 50_000 + b"'\n"),
}
