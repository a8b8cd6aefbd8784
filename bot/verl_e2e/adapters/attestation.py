"""Verifies GitHub's artifact attestations: Sigstore's own library checks signature, certificate and log entry."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from sigstore.errors import Error as SigstoreError
from sigstore.models import Bundle, TrustedRoot
from sigstore.verify import Verifier

from verl_e2e.core.pulls.forge import Attested, UnprovenError

# Fulcio's names for what it says of a workflow's job, each a DER-encoded UTF-8 text; see its docs/oid-info.md.
_FULCIO = "1.3.6.1.4.1.57264.1."
_CLAIMS = {
    "issuer": "8",
    "signer": "9",
    "runner": "11",
    "repository": "12",
    "commit": "13",
    "workflow": "18",
    "run": "21",
}
_UTF8 = 0x0C
_IN_TOTO = "application/vnd.in-toto+json"


class _Claims:
    """Takes what the certificate says, for the library asks a policy of ours only after it trusts the certificate."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def verify(self, cert: Any) -> None:
        """Keep every claim; whether they are the ones we want is decided elsewhere."""
        raw = {
            extension.oid.dotted_string: extension.value
            for extension in cert.extensions
            if extension.oid.dotted_string.startswith(_FULCIO)
        }
        values = {name: raw.get(_FULCIO + number) for name, number in _CLAIMS.items()}
        self.found = {name: _text(value.public_bytes()) if value else "" for name, value in values.items()}


def _text(raw: bytes) -> str:
    """A claim's text; empty in a form that Fulcio does not write."""
    start = 2 if len(raw) > 1 and raw[1] < 0x80 else 3
    length = raw[start - 1] if len(raw) >= start else -1
    if raw[:1] != bytes((_UTF8,)) or length != len(raw) - start or (start == 3 and raw[1] != 0x81):
        return ""
    return raw[start:].decode("utf-8", "replace")


def verifier(trusted_root: Path | None = None) -> Callable[[str], Attested]:
    """Verifies a bundle of JSON, without the network, by a file of Sigstore's trust root or the library's own."""
    # It warns of being offline, which is what we ask for.
    logging.getLogger("sigstore").setLevel(logging.ERROR)
    root = TrustedRoot.from_file(str(trusted_root)) if trusted_root else None
    library = Verifier(trusted_root=root) if root else Verifier.production(offline=True)

    def verify(text: str) -> Attested:
        claims = _Claims()
        try:
            kind, payload = library.verify_dsse(Bundle.from_json(text), claims)
            statement = json.loads(payload)
            if kind != _IN_TOTO:
                raise UnprovenError(f"it holds {kind}, and no statement")
            digests = frozenset(str(subject["digest"].get("sha256", "")) for subject in statement["subject"])
            return Attested(predicate=str(statement["predicateType"]), digests=digests, **claims.found)
        except (SigstoreError, ValidationError, ValueError, KeyError, TypeError) as error:
            raise UnprovenError(next(iter(str(error).splitlines()), type(error).__name__)[:300]) from error

    return verify
