"""Seals a run folder: digests of all its files, signed with a key that only the recorder can read."""

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from verl_e2e.core.model.errors import UserError
from verl_e2e.core.model.jobs import BASE_RECORDS, HEAD_RECORDS
from verl_e2e.core.model.record import (
    MANIFEST_FILE,
    SIGNATURE_FILE,
    SUSPECTS_WORD,
    Manifest,
    ManifestSignature,
    SealedFile,
    Word,
    is_sealed,
)

KEY_VARIABLE = "VERL_E2E_RECORDER_KEY"
_KEY_BYTES = 32
# What the cells of a rehearsal left.
_CELL_RECORDS = (f"{BASE_RECORDS}/", f"{HEAD_RECORDS}/")


class RecorderKeyError(UserError):
    """The recorder's key cannot be used; the message says what to do. The user's mistake."""


def key_file(environ: Mapping[str, str]) -> Path:
    """Where the recorder's key lies: as the variable says, else in the state folder of the recorder's user."""
    if given := environ.get(KEY_VARIABLE):
        return Path(given).expanduser()
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "/")) / ".local/state")
    return Path(state) / "verl-e2e" / "recorder.key"


def recorder_key(file: Path) -> Ed25519PrivateKey:
    """The recorder's key, made on first use; `FILE.pub` next to it holds the public half for those who verify."""
    if not os.path.lexists(file):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_key(file)
    raw = file.read_bytes()
    mode = file.stat().st_mode
    if len(raw) != _KEY_BYTES or mode & 0o077:
        raise RecorderKeyError(f"{file} is not a key that its owner alone may read; remove it, and a new one is made")
    key = Ed25519PrivateKey.from_private_bytes(raw)
    public = file.with_name(f"{file.name}.pub")
    text = f"{public_half(key)}\n"
    if not public.is_file() or public.read_text() != text:
        _write(public, text.encode())
    return key


def _make_key(file: Path) -> None:
    """Make a key, unless another run does: of several at the same time all have the first one's, and it whole."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(Ed25519PrivateKey.generate().private_bytes_raw())
        with suppress(FileExistsError):
            os.link(draft, file)
    finally:
        draft.unlink()


def usable_key(environ: Mapping[str, str], say: Callable[[str], None]) -> Ed25519PrivateKey | None:
    """The recorder's key, None and a sentence to `say` where there is none: the seal is then not signed."""
    file = key_file(environ)
    try:
        return recorder_key(file)
    except OSError as error:
        say(f"the run folder is not signed: {file}: {error.strerror}")
    except RecorderKeyError as error:
        say(f"the run folder is not signed: {error}")
    return None


def public_half(key: Ed25519PrivateKey) -> str:
    """The public half in hexadecimal."""
    return key.public_key().public_bytes_raw().hex()


def seal(folder: Path, manifest: Manifest, key: Ed25519PrivateKey | None) -> None:
    """Write the manifest with every file of the folder, and its signature where there is a key."""
    listed = manifest.model_copy(update={"files": tuple(_files(folder))})
    text = (json.dumps(listed.model_dump(mode="json"), indent=2) + "\n").encode()
    _write(folder / MANIFEST_FILE, text)
    if key is None:
        (folder / SIGNATURE_FILE).unlink(missing_ok=True)
        return
    signature = ManifestSignature(key=public_half(key), signature=key.sign(text).hex())
    _write(folder / SIGNATURE_FILE, (signature.model_dump_json(indent=2) + "\n").encode())


def seal_again(folder: Path, key: Ed25519PrivateKey | None) -> None:
    """Seal a folder once more after related runs were added; nothing where it has no seal yet."""
    with suppress(FileNotFoundError):
        manifest = Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
        seal(folder, manifest, key)


def _files(folder: Path) -> Iterator[SealedFile]:
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            relative = path.relative_to(folder).as_posix()
            if is_sealed(relative) and path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                suspect = path.name in SUSPECTS_WORD or relative.startswith(_CELL_RECORDS)
                word: Word = "suspect" if suspect else "recorder"
                yield SealedFile(path=relative, size=path.stat().st_size, sha256=digest, word=word)


def _write(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    draft.write_bytes(content)
    draft.replace(path)
