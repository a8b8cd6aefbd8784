"""Reads the seal of a run folder: are its files those that the recorder sealed, and did a known recorder sign?"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import ValidationError

from verl_e2e.core.model.manifest import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    Manifest,
    ManifestSignature,
    Seal,
    differences,
    is_sealed,
)

_MAX_BYTES = 4 << 20
_MAX_FILES = 10_000


def read_seal(folder: Path, *, keys: frozenset[str] | None = None) -> Seal:
    """The seal of a folder. With `keys` (public keys in hexadecimal) only a signature by one of them is good enough."""
    raw, signed = _read(folder / MANIFEST_FILE), _read(folder / SIGNATURE_FILE)
    if raw is None:
        return Seal(state="none") if keys is None and signed is None else _broken(f"{MANIFEST_FILE} is not there")
    try:
        manifest = Manifest.model_validate_json(raw)
        signature = ManifestSignature.model_validate_json(signed) if signed is not None else None
    except ValidationError:
        return _broken(f"{MANIFEST_FILE} or {SIGNATURE_FILE} cannot be read")
    if signature is not None and not _is_signed(raw, signature):
        return _broken(f"{SIGNATURE_FILE} does not fit {MANIFEST_FILE}")
    if keys is not None and (signature is None or signature.key not in keys):
        return _broken(f"{MANIFEST_FILE} is not signed by a recorder that is known here")
    if problem := differences(manifest, dict(_files(folder))):
        return _broken(problem)
    key = signature.key if signature else ""
    return Seal(state="signed" if keys is not None else "whole", key=key)


def public_keys(file: Path) -> frozenset[str]:
    """The public keys in a file, one a line; none when it is not there."""
    raw = _read(file) or b""
    lines = (line.split("#")[0].strip() for line in raw.decode(errors="replace").splitlines())
    return frozenset(line for line in lines if line)


def _broken(problem: str) -> Seal:
    return Seal(state="broken", problem=problem)


def _is_signed(raw: bytes, signature: ManifestSignature) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.key)).verify(bytes.fromhex(signature.signature), raw)
    except (InvalidSignature, ValueError):
        return False
    return True


def _read(path: Path) -> bytes | None:
    try:
        if S_ISREG(path.lstat().st_mode):
            with path.open("rb") as file:
                return file.read(_MAX_BYTES)
    except OSError:
        pass
    return None


def _files(folder: Path) -> Iterator[tuple[str, tuple[int, str]]]:
    """Every file that a seal is about; a link or a pipe counts as one of no known content."""
    count = 0
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            relative = path.relative_to(folder).as_posix()
            if not is_sealed(relative):
                continue
            count += 1
            if count > _MAX_FILES:
                return
            found = path.lstat()
            if not S_ISREG(found.st_mode):
                yield relative, (0, "")
                continue
            with path.open("rb") as file:
                yield relative, (found.st_size, hashlib.file_digest(file, "sha256").hexdigest())
