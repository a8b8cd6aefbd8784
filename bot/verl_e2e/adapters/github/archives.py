"""Unpacks archives without trusting the sizes and names in them."""

import io
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from lzma import LZMAError
from pathlib import Path, PurePosixPath

from verl_e2e.ports import ForgeError

_CHUNK = 1 << 16
_MOST_FILES = 10_000
# Of the central directory, all entries together: 10,000 entries with the longest names that a run folder has.
_MOST_DIRECTORY_BYTES = 8 << 20


class _BoundedFile(io.FileIO):
    """A file of which no one reads much at once: `zipfile` reads the whole directory, as long as the archive says."""

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = os.fstat(self.fileno()).st_size - self.tell() if size is None or size < 0 else size
        if wanted > _MOST_DIRECTORY_BYTES:
            raise ForgeError(f"The archive's directory is too long; the limit is {_MOST_FILES:,} files")
        return super().read(wanted) or b""


def unpack(archive: Path, into: Path, *, limit: int) -> None:
    """Unpack a zip archive into the new folder `into`, whole or not at all; ForgeError for anything odd in it."""
    part = Path(tempfile.mkdtemp(prefix=f".{into.name}.", dir=into.parent))
    try:
        with _BoundedFile(archive) as file, zipfile.ZipFile(file) as packed:
            members = [member for member in packed.infolist() if not member.is_dir()]
            _check_members(members, limit)
            left = limit
            for member in members:
                left -= _extract(packed, member, part, left)
        part.rename(into)
    except (zipfile.BadZipFile, zlib.error, LZMAError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise ForgeError(f"The archive cannot be unpacked: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def safe_member(name: str) -> PurePosixPath | None:
    """An archive member's name as a path below the target, None when it could lead out or is not a plain name."""
    path = PurePosixPath(name)
    odd = not path.parts or "\\" in name or "\0" in name or not name.isprintable() or ":" in path.parts[0]
    return None if odd or path.is_absolute() or ".." in path.parts else path


def _check_members(members: list[zipfile.ZipInfo], limit: int) -> None:
    names = [member.filename for member in members]
    if len(members) > _MOST_FILES:
        raise ForgeError(f"The archive holds {len(members):,} files; the limit is {_MOST_FILES:,}")
    if len({name.casefold() for name in names}) != len(names):
        raise ForgeError("The archive holds a file twice")
    if sum(member.file_size for member in members) > limit:
        raise ForgeError(f"The archive unpacks to more than {limit:,} bytes")
    for member in members:
        kind = stat.S_IFMT(member.external_attr >> 16)
        if safe_member(member.filename) is None or kind not in (0, stat.S_IFREG) or member.flag_bits & 1:
            raise ForgeError(f"The archive holds {member.filename!a}, which is not a regular file below its folder")


def _extract(packed: zipfile.ZipFile, member: zipfile.ZipInfo, part: Path, left: int) -> int:
    """Write one member and give its size: what it says of its size is not believed."""
    target = part.joinpath(*PurePosixPath(member.filename).parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with packed.open(member) as source, target.open("xb") as out:
        while chunk := source.read(_CHUNK):
            size += len(chunk)
            if size > left:
                raise ForgeError("The archive unpacks to more bytes than it says")
            out.write(chunk)
    return size
