"""The declared patches that fit the commits of a job."""

import hashlib
from collections.abc import Iterable, Mapping

from verl_e2e.core.model.jobs import Patch
from verl_e2e.core.plan.build import PatchChoice, select_patches
from verl_e2e.ports import ChangeSource


def fit_patches(patches: Iterable[Patch], at: Mapping[str, tuple[ChangeSource, str]]) -> PatchChoice:
    """Which patches fit; `at` gives the source and the commit of each repository by its name."""

    def digest_of(patch: Patch) -> str | None:
        source, commit = at[patch.repository]
        blob = source.read_blob(commit, patch.file)
        return None if blob is None else hashlib.sha256(blob).hexdigest()

    return select_patches(patches, digest_of)
