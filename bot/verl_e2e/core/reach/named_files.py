"""What a source tells besides its code: which files its texts name."""

# Every byte that is not part of a file's path becomes a blank, and either quote the same one.
_PATHS_ALONE = bytes(
    byte if chr(byte).isascii() and (chr(byte).isalnum() or chr(byte) in "_./-") else 34 if byte in b"'\"" else 32
    for byte in range(256)
)


def named_files(source: bytes) -> tuple[str, ...]:
    """The names of files with which a text in a source ends, each with the folder that it is in where that is named.

    Comments and what documentation says of a file are left out: there no quote follows the name.
    """
    words = set(source.translate(_PATHS_ALONE).split())
    quoted = (part for word in words if b'"' in word and b"." in word for part in word.split(b'"')[:-1])
    names = (name.decode("ascii").strip("./") for name in quoted if b"." in name)
    return tuple(sorted({name_tails(name)[1] for name in names}))


def name_tails(path: str) -> tuple[str, str]:
    """The name of a file, by itself and with the folder that it is in."""
    parts = path.rsplit("/", 2)
    return parts[-1], "/".join(parts[-2:])
