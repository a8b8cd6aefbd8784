"""Who handed a run folder over: what a verified attestation must say before the folder counts.

The GPU job never gets the right to attest. A second job, on a machine of GitHub's that never ran code under test,
checks the folder's digest, uploads it and attests the upload; the certificate of that attestation is made by Sigstore
from what GitHub itself says about the job.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class FolderFile:
    """A plain file of a run folder."""

    path: str
    """Its path below the folder, with slashes."""
    size: int
    """Its length in bytes."""
    sha256: str
    """The digest of its content, 64 hexadecimal digits."""


def folder_digest(files: Iterable[FolderFile]) -> str:
    """The folder's digest as 64 hexadecimal digits: another name, size or content anywhere gives another one."""
    rows = sorted((file.path.encode("utf-8", "surrogateescape"), file.size, file.sha256) for file in files)
    whole = hashlib.sha256()
    for path, size, sha256 in rows:
        # Lengths stand in front of names, so that no name can pass for the end of a row.
        whole.update(b"%d %s %d %s\n" % (len(path), path, size, sha256.encode("ascii")))
    return whole.hexdigest()


ISSUER = "https://token.actions.githubusercontent.com"
PREDICATE = "https://slsa.dev/provenance/v1"
HOSTED = "github-hosted"


class Attestation(StrEnum):
    """Whether a run folder counts without a verified attestation."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class UnprovenError(Exception):
    """An attestation that proves nothing: signature, certificate or log entry does not hold; the text says which."""


@dataclass(frozen=True, slots=True)
class Attested:
    """What an attestation says whose signature, certificate and log entry were verified."""

    predicate: str
    """The type of the statement, an address."""
    digests: frozenset[str]
    """The SHA-256 of each subject, 64 hexadecimal digits."""
    issuer: str
    """Who vouched for the job's identity."""
    repository: str
    """The address of the repository whose workflow ran."""
    workflow: str
    """The workflow that was started, as `ADDRESS/.github/workflows/FILE@REF`."""
    signer: str
    """The workflow whose job signed, in the same form; another one where a reusable workflow was called."""
    commit: str
    """The commit that the started workflow was taken from."""
    run: str
    """The address of the run with its attempt."""
    runner: str
    """`github-hosted` or `self-hosted`."""


@dataclass(frozen=True, slots=True)
class Handover:
    """What an attestation must say for one artifact of one workflow run."""

    digest: str
    """The SHA-256 of the artifact, 64 hexadecimal digits."""
    repository: str
    """The address of the repository that we dispatched in."""
    workflow: str
    """The workflow that we dispatched, as `ADDRESS/.github/workflows/FILE@REF`."""
    signers: tuple[str, ...]
    """The workflows whose job may sign, in the same form."""
    commit: str
    """The commit of the dispatch branch that GitHub started the run at."""
    run: str
    """The address of the run with its attempt."""


def why_not(found: Attested, asked: Handover) -> str:
    """Why an attestation does not vouch for an artifact, empty when it does."""
    message = (
        ("type", found.predicate, (PREDICATE,)),
        ("issuer", found.issuer, (ISSUER,)),
        ("repository", found.repository, (asked.repository,)),
        ("workflow", found.workflow, (asked.workflow,)),
        ("signer", found.signer, asked.signers),
        ("commit", found.commit, (asked.commit,)),
        ("run", found.run, (asked.run,)),
        ("runner", found.runner, (HOSTED,)),
    )
    for what, text, allowed in message:
        if text not in allowed:
            return f"its {what} is {text or 'not stated'}, not {' or '.join(allowed)}"
    return "" if asked.digest in found.digests else "it is about another artifact"
