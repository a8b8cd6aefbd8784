"""Gives each run that states its need a part of the host's memory, by notes in locked files and without a service.

A note says what its run may have and what it holds now. What a run has not taken yet counts as taken for those that
begin after it, so runs that begin together do not count on the same memory. The system releases the locks when a runner
has ended, however it ended.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import psutil
from pydantic import ValidationError

from verl_e2e.core.model.host_memory import Bound, Claim, FreeMemory, least_free
from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.findings import blocked, good
from verl_e2e_runner.process.memory import held_gib
from verl_e2e_runner.sharing.locks import held_notes, hold_lock, lock_within, write_note

ReadBounds = Callable[[], Sequence[Bound]]

_LOCK = "memory.lock"
_TURN_S = 10.0
_WRITE_S = 5.0
_FIX = (
    "wait until other runs end, end what else holds memory, or use a host with more of it; "
    "if runs take less than they state, lower `needs.memory_gib` of the site profile"
)


def check_memory(need_gib: float | None, read: ReadBounds) -> Finding | None:
    """Whether the host has the memory that a run without others needs; None where it states no need."""
    return None if need_gib is None else _finding(need_gib, least_free(read(), (), need_gib))


def claim_memory(
    held: ExitStack, folder: Path, need_gib: float | None, read: ReadBounds, *, write_s: float = _WRITE_S
) -> Finding | None:
    """Whether the host has the memory that a run among others needs; it is then the run's own as long as `held`.

    None where the site states no need: such a run claims nothing, and no one waits for it. Every `write_s` seconds the
    note says again how much the run holds.
    """
    if need_gib is None:
        return None
    with lock_within(folder / _LOCK, _TURN_S) as turn:
        if not turn:
            return blocked(Check.HOST_MEMORY, f"{folder / _LOCK}: the lock cannot be had", _FIX)
        bounds = read()
        finding = _finding(need_gib, least_free(bounds, _claims(folder), need_gib))
        if not finding.ok:
            return finding
        claim = Claim(need_gib=need_gib, held_gib=0.0, groups=tuple(bound.group for bound in bounds if bound.group))
        descriptor = _own_note(held, folder)
        if descriptor is None:
            return blocked(Check.HOST_MEMORY, f"{folder} has no place for a note on the run's memory", _FIX)
        write_note(descriptor, claim.model_dump_json())
    held.enter_context(_keeping_note(folder, descriptor, claim, write_s))
    return finding


def _finding(need_gib: float, free: FreeMemory) -> Finding:
    bound = free.bound
    of_group = " below the limit of its control group" if bound.group else ""
    left = f"{bound.available_gib:.1f} of {bound.total_gib:.1f} GiB{of_group} are available"
    if free.runs:
        left += f", and other runs ({free.runs}) may still take {free.promised_gib:.1f} of them"
    if free.missing_gib(need_gib) <= 0:
        return good(Check.HOST_MEMORY, f"{need_gib:g} GiB of host memory needed: {left}")
    summary = f"the job needs {need_gib:g} GiB of host memory, and {free.free_gib:.1f} GiB are free for it: {left}"
    return blocked(Check.HOST_MEMORY, summary, _FIX)


def _claims(folder: Path) -> Iterator[Claim]:
    for note in held_notes(sorted(folder.glob("memory.*.*"))):
        # A note that is none claims nothing.
        with suppress(ValidationError):
            yield Claim.model_validate_json(note)


def _own_note(held: ExitStack, folder: Path) -> int | None:
    """The locked file for this run's note; one of another user can be locked, but not written."""
    number = 0
    while (file := folder / f"memory.{os.getuid()}.{number}").exists():
        descriptor = hold_lock(held, file)
        if descriptor is not None:
            return descriptor
        number += 1
    return hold_lock(held, file)


@contextmanager
def _keeping_note(folder: Path, descriptor: int, claim: Claim, every_s: float) -> Iterator[None]:
    """Keep the note up to date, from a thread of its own: programs run long before and after the wrapper too."""
    stop = Event()
    thread = Thread(target=_keep_note, args=(folder, descriptor, claim, every_s, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _keep_note(folder: Path, descriptor: int, claim: Claim, every_s: float, stop: Event) -> None:
    while not stop.wait(every_s):
        with suppress(psutil.Error, OSError):
            held = held_gib(process.pid for process in psutil.Process().children(recursive=True))
            # Read and written under the lock alone, so that no one reads half a note; next time will do as well.
            with lock_within(folder / _LOCK, 0) as turn:
                if turn:
                    write_note(descriptor, claim.model_copy(update={"held_gib": round(held, 2)}).model_dump_json())
