"""Declared patches: exact substitutions in a private worktree, proved by digests before and after."""

import hashlib
from dataclasses import replace
from pathlib import Path

from verl_e2e.core.model.jobs import Job, Patch
from verl_e2e.core.model.record import Check, Finding
from verl_e2e_runner.findings import blocked, good, note
from verl_e2e_runner.trees.worktrees import Trees


def apply_patches(job: Job, trees: Trees) -> Trees:
    """Apply every patch of the job to its private tree; the trees come back with the findings and names added."""
    findings: list[Finding] = [] if job.patches else [good(Check.PATCHES, "the job declares none")]
    applied: dict[str, list[str]] = {}
    for patch in job.patches:
        finding = _apply(patch, trees)
        findings.append(finding)
        if finding.ok:
            applied.setdefault(patch.repository, []).append(patch.name)
    states = tuple(
        state.model_copy(update={"patches": (*state.patches, *applied.get(state.name, ()))}) for state in trees.states
    )
    return replace(trees, states=states, findings=(*trees.findings, *findings))


def _apply(patch: Patch, trees: Trees) -> Finding:
    root = trees.root(patch.repository)
    place = f"patch {patch.name}: {patch.repository} {patch.file}"
    if not trees.has(patch.repository):
        return note(Check.PATCHES, f"{place}: not tried, because the repository is not as the job needs it")
    if patch.repository not in trees.private:
        return blocked(
            Check.PATCHES,
            f"{place}: {root} is used in place and is never changed",
            f"drop in_place of {patch.repository}, or remove the patch from the job",
        )
    file = root / patch.file
    if not file.resolve().is_relative_to(root) or not file.is_file():
        return blocked(Check.PATCHES, f"{place}: no such file in {root}", "declare the patch for a file of the commit")
    text = file.read_bytes()
    if _digest(text) == patch.after:
        return good(Check.PATCHES, f"{place}: already as patched ({patch.after[:12]})")
    if _digest(text) != patch.before:
        return blocked(
            Check.PATCHES,
            f"{place}: digest {_digest(text)} is neither the one before ({patch.before}) nor the one after"
            f" ({patch.after})",
            "declare the patch again for this commit, or remove it if the commit no longer needs it",
        )
    return _write(patch, file, text, place)


def _write(patch: Patch, file: Path, text: bytes, place: str) -> Finding:
    for position, change in enumerate(patch.substitutions, 1):
        found = text.count(change.old.encode())
        if found != change.count:
            return blocked(
                Check.PATCHES,
                f"{place}: substitution {position} occurs {found} times, {change.count} declared",
                "declare the substitution again for this commit",
            )
        text = text.replace(change.old.encode(), change.new.encode())
    if _digest(text) != patch.after:
        return blocked(
            Check.PATCHES,
            f"{place}: the substitutions give digest {_digest(text)}, declared is {patch.after}",
            "correct `after` or the substitutions",
        )
    file.write_bytes(text)
    return good(Check.PATCHES, f"{place}: applied, {patch.before[:12]} -> {patch.after[:12]}; {patch.reason}")


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
