"""The declared patches that fit the commits of a job."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from verl_e2e.core.model.jobs import Patch
from verl_e2e.core.plan.build import PatchChoice, select_patches
from verl_e2e.core.plan.hidden_changes import replaced_lines
from verl_e2e.ports import ChangeSource


def fit_patches(patches: Iterable[Patch], at: Mapping[str, tuple[ChangeSource, str]]) -> PatchChoice:
    """Which patches fit; `at` gives the source and the commit of each repository by its name."""

    contents: dict[Patch, bytes] = {}

    def digest_of(patch: Patch) -> str | None:
        source, commit = at[patch.repository]
        blob = source.read_blob(commit, patch.file)
        if blob is None:
            return None
        contents[patch] = blob
        return hashlib.sha256(blob).hexdigest()

    choice = select_patches(patches, digest_of)
    return replace(choice, lines={patch: replaced_lines(patch, contents[patch]) for patch in choice.chosen})
