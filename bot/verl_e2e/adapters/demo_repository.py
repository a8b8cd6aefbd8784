"""A small git repository in Megatron-Bridge's shape, of our own making, with one change to plan, and its fix.

The change is of a kind that is merged often: another version of a package that Bridge needs, with a line of
documentation. Its fix asks for yet another one. Author, dates and contents are fixed, so the commits are the same on
every machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_e2e.git.program import Git, GitLimits
from verl_e2e.git.repository import GitFailedError

_PYPROJECT = '[project]\nname = "model-bridge"\nversion = "0.1.0"\ndependencies = ["transformers>={}"]\n'
_FILES: Mapping[str, str] = {
    "README.md": "# A model bridge\n\nA stand-in with the layout of Megatron-Bridge, for the demonstration only.\n",
    "pyproject.toml": _PYPROJECT.format("5.11"),
    ".gitmodules": '[submodule "3rdparty/Megatron-LM"]\n\tpath = 3rdparty/Megatron-LM\n'
    "\turl = https://github.com/NVIDIA/Megatron-LM.git\n",
    "docs/changes.md": "# Changes\n",
    "src/megatron/bridge/__init__.py": "from megatron.bridge.models.conversion.auto_bridge import AutoBridge\n\n"
    '__all__ = ["AutoBridge"]\n',
    "src/megatron/bridge/models/conversion/auto_bridge.py": "class AutoBridge:\n"
    '    """Finds the bridge of a model family."""\n',
}
_CHANGED: Mapping[str, str] = {
    "pyproject.toml": _PYPROJECT.format("5.12"),
    "docs/changes.md": "# Changes\n\n- transformers 5.12 is needed.\n",
}
_FIXED: Mapping[str, str] = {"pyproject.toml": _PYPROJECT.format("5.12.1")}
_SUBMODULE = "3rdparty/Megatron-LM"
_CORE = "2a75ac12c54ba6a42b34024756820bf819a2e25f"
_LIMITS = GitLimits(time_s=60)
_AUTHOR = {
    "GIT_AUTHOR_NAME": "demo",
    "GIT_AUTHOR_EMAIL": "demo@example.invalid",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "demo",
    "GIT_COMMITTER_EMAIL": "demo@example.invalid",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}


@dataclass(frozen=True, slots=True)
class DemoRepository:
    """The repository's folder, the two commits of the change, and the one that fixes it."""

    path: Path
    base: str
    head: str
    fixed: str


def build_demo_repository(path: Path) -> DemoRepository:
    """Make the repository in a new folder; OSError or GitFailedError when the disk or git fails."""
    path.mkdir(parents=True)
    _git(path, "init", "--quiet", "--initial-branch=main")
    base = _commit(path, _FILES, "Start the bridge")
    head = _commit(path, _CHANGED, "Need transformers 5.12")
    fixed = _commit(path, _FIXED, "Need transformers 5.12.1")
    # The change is what lies checked out, as before the fix.
    _git(path, "branch", "--quiet", "fixed", fixed)
    _git(path, "reset", "--quiet", "--hard", head)
    return DemoRepository(path, base, head, fixed)


def _commit(path: Path, files: Mapping[str, str], subject: str) -> str:
    for name, text in files.items():
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        _git(path, "add", "--", name)
    _git(path, "update-index", "--add", "--cacheinfo", f"160000,{_CORE},{_SUBMODULE}")
    _git(path, "commit", "--quiet", "--no-verify", "--message", subject)
    return _git(path, "rev-parse", "HEAD").strip()


def _git(path: Path, *arguments: str) -> str:
    finished = Git(path / ".git", path, limits=_LIMITS).run(*arguments, variables=_AUTHOR)
    if not finished.ok:
        raise GitFailedError(finished)
    return finished.output.decode()
