"""The recorder's seal on a run folder: a list of its files with their digests, and a signature on the list.

The files of a judgement are not in the list: they are made from the others and may be made again at any time.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from verl_e2e.core.model.document import Document
from verl_e2e.core.model.jobs import Digest

MANIFEST_FILE = "manifest.json"
SIGNATURE_FILE = "manifest.sig.json"

Word = Literal["recorder", "suspect"]
# Another user in namespaces of its own, the recorder's own user in a user namespace, or no isolation.
Mode = Literal["other_user", "user_namespace", "none"]

_JUDGEMENT = frozenset(
    {"evidence.json", "verdict.json", "card.txt", "card.md", "bands.json", "parity.md", "parity.json", "check.json"}
)
_JUDGEMENT_FOLDER = "plots"
_SHOWN = 3


class SealedFile(Document):
    """One file of a run folder."""

    # Its path in the folder, with forward slashes.
    path: str
    # In bytes.
    size: int
    # SHA-256 of its content.
    sha256: Digest
    # Whose word it is: the recorder's own observation, or what the code under test printed or wrote.
    word: Word


class Manifest(Document):
    """`manifest.json`: what the recorder left, written after every process of the run had ended."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    # The id of the job.
    job: str
    # The digest of the job as it was given, before its paths were redacted.
    job_digest: Digest
    # What the sender of the order asked to be repeated, empty when nothing.
    order: str = ""
    # The recorder's wall clock in UTC when the folder was opened and when it was sealed, ISO 8601.
    began: str
    ended: str
    # Seconds between the two on a clock that no one can set.
    seconds: float
    # How code under test was kept apart, as in `environment.json`; `none` when it could reach the recorder.
    isolation: Mode
    files: tuple[SealedFile, ...]

    model_config = Document.model_config | {"populate_by_name": True, "serialize_by_alias": True}


class ManifestSignature(Document):
    """`manifest.sig.json`: the recorder's signature over the bytes of `manifest.json`."""

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    algorithm: Literal["ed25519"] = "ed25519"
    # The public key, 32 bytes in hexadecimal.
    key: Digest
    # 64 bytes in hexadecimal.
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]

    model_config = Document.model_config | {"populate_by_name": True, "serialize_by_alias": True}


class Seal(Document):
    """What a reader of the folder found out about its seal.

    `none`: the folder has none. `whole`: every file is as sealed, and no one that the
    reader knows has signed. `signed`: by a key that the reader knows. `broken`: the record is not the recorder's.
    """

    state: Literal["none", "whole", "signed", "broken"]
    # What is wrong with it, empty unless broken.
    problem: str = ""
    # The public key that signed, empty without a signature.
    key: str = ""


def is_sealed(path: str) -> bool:
    """Whether a file of the folder belongs into its manifest."""
    parts = path.split("/")
    if parts[-1] in (MANIFEST_FILE, SIGNATURE_FILE) or parts[-1] in _JUDGEMENT or parts[-1].startswith("."):
        return False
    return _JUDGEMENT_FOLDER not in parts[:-1]


def differences(manifest: Manifest, found: Mapping[str, tuple[int, str]]) -> str:
    """How the files that are there (path to size and digest) differ from the sealed ones; empty when they do not."""
    sealed = {entry.path: (entry.size, entry.sha256) for entry in manifest.files}
    changed = sorted(path for path in sealed.keys() & found.keys() if sealed[path] != found[path])
    text = [f"{path} was changed" for path in changed]
    text += [f"{path} is gone" for path in sorted(sealed.keys() - found.keys())]
    text += [f"{path} was added" for path in sorted(found.keys() - sealed.keys())]
    more = f" and {len(text) - _SHOWN} more" if len(text) > _SHOWN else ""
    return ", ".join(text[:_SHOWN]) + more
