"""The kernels that the operator of a host compiled beforehand: where they come from, and what a run took of them."""

from typing import Annotated, Literal

from pydantic import Field

from verl_e2e.core.model.document import Document
from verl_e2e.core.model.jobs import Digest

# In the folder that `kernel_caches` of a site profile names.
ORIGIN_FILE = "kernel-caches.json"


class CachesOrigin(Document):
    """`kernel-caches.json`: the run that filled a folder of kernel caches."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    # When the run ended, as ISO 8601 in UTC.
    filled: str
    # The id of its job.
    job: str
    # The commits that it ran, by repository.
    commits: dict[str, str]
    # Those of the repositories that had changes beyond the commit: dirty files, or declared patches.
    changed: tuple[str, ...] = ()
    # Versions of the packages on which compiled kernels depend, by distribution name.
    packages: dict[str, str]
    # Names of its GPUs.
    gpus: tuple[str, ...]
    # The GPU driver's version.
    driver: str = ""
    # The image of its container, as far as known.
    image: str = ""

    model_config = Document.model_config | {"populate_by_name": True, "serialize_by_alias": True}


class KernelCaches(Document):
    """What one run took of the operator's kernel caches."""

    # The caches, by the names of their folders.
    folders: tuple[str, ...]
    # How many files they have.
    files: Annotated[int, Field(ge=0)]
    # The size of these files together.
    size_bytes: Annotated[int, Field(ge=0)]
    # SHA-256 of the names and contents of these files.
    digest: Digest
    # None where the folder does not say who filled it.
    origin: CachesOrigin | None = None

    @property
    def text(self) -> str:
        """`triton, vllm: 812 files, 34.1 MiB, sha256 0123456789ab`, and which commit of Bridge filled them."""
        size = f"{self.files} files, {self.size_bytes / (1 << 20):.1f} MiB, sha256 {self.digest[:12]}"
        bridge = self.origin.commits.get("bridge") if self.origin else None
        filled = f"filled by a run of Bridge {bridge[:12]}" if bridge else "not known which run filled them"
        return f"{', '.join(self.folders)}: {size}; {filled}"
