"""What a piece of work is about, for its log lines: carried by a context variable, so by the thread that does the work.

Code that begins a piece of work (a delivery, a reconciliation, a call about a run) says what it is about; each line
that is logged inside has these values, from any module.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from verl_e2e.core.pulls.forge import Branch, PullRef, read_reference

_NOTHING: Mapping[str, str | int] = MappingProxyType({})
_ABOUT: ContextVar[Mapping[str, str | int]] = ContextVar("about", default=_NOTHING)


@contextmanager
def log_context(**about: str | int | None) -> Iterator[None]:
    """Log lines inside also say this; a value that is None says nothing. What was said outside stays."""
    token = _ABOUT.set(_with(about))
    try:
        yield
    finally:
        _ABOUT.reset(token)


def add_to_log_context(**about: str | int | None) -> None:
    """The same from here to the end of the block of `log_context` that is open; without one it says nothing."""
    if _ABOUT.get() is _NOTHING:
        return
    _ABOUT.set(_with(about))


@contextmanager
def log_context_of(target: str) -> Iterator[None]:
    """Log lines inside say which pull request or merge group is worked on; `target` is its reference as text."""
    try:
        reference = read_reference(target)
    except ValueError:
        with log_context(target=target):
            yield
        return
    if isinstance(reference, PullRef):
        about = log_context(repository=reference.repository, pull_request=reference.number)
    elif isinstance(reference, Branch):
        about = log_context(repository=reference.repository, branch=reference.name)
    else:
        about = log_context(repository=reference.repository, head=reference.head_sha, merge_group=reference.base_branch)
    with about:
        yield


def current_log_context() -> Mapping[str, str | int]:
    """What is being worked on here."""
    return _ABOUT.get()


def _with(about: Mapping[str, str | int | None]) -> Mapping[str, str | int]:
    return MappingProxyType({**_ABOUT.get(), **{name: value for name, value in about.items() if value is not None}})
