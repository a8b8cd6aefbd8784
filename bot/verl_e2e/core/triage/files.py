"""Whether a file that cannot be read or written is the machine's or the program's.

A model's published files are brought to a run, which only reads them: one that is damaged or missing is the
machine's. A checkpoint is written by the run itself: what is wrong with it is the program's.
"""

import re
from collections.abc import Sequence

from verl_e2e.core.triage.codes import Origin

# What readers say of a file that is cut, empty, or something else than its name says.
_READER = re.compile(
    r"PytorchStreamReader failed|Error while deserializing|SafetensorsParsingError|cannot mmap an empty file"
    r"|truncated file|file signature not found"
    r"|The file might be corrupted|unexpected EOF, expected \d+ more bytes|storage has wrong byte size"
    r"|(?i:checksum|sha-?256|md5|\bCRC(?:32)?\b).{0,60}(?:mismatch|does not match|do not match|failed|incorrect)"
)
_READER_CLASS = re.compile(
    r"BadZipFile$|BadGzipFile$|^zlib\.error$|^lzma\.LZMAError$|^tarfile\.ReadError$|SafetensorsParsingError$"
)
_UNPICKLING = re.compile(r"(?:^|\.)(?:_pickle|pickle)\.(?:UnpicklingError|PickleError)$|^UnpicklingError$")
# The reader refuses a class: the file is whole.
_REFUSED = re.compile(r"Unsupported (?:global|class)|not an allowed global|persistent_load|persistent id")
_ENDED = re.compile(r"^EOFError$|JSONDecodeError$|^UnicodeDecodeError$|^struct\.error$")
_READING = re.compile(
    r"torch/serialization\.py:|json/__init__\.py:load$|safetensors/|numpy/lib/\S*:load|pickle\.py:load$"
    r"|(?:^|/)(?:gzip|bz2|lzma|tarfile|_compression)\.py:",
    re.MULTILINE,
)
_WRITER = re.compile(r"PytorchStreamWriter failed|inline_container\.cc:\d+\] \. unexpected pos")
_CLOSING = re.compile(r"torch/serialization\.py:__exit__$")
_NO_TEMPORARY = re.compile(r"tempfile\.py:_get_default_tempdir$")
_PUBLISHED = re.compile(
    r"(?:-\d{5}-of-\d{5}\.(?:safetensors|bin)|(?:^|/)(?:model\.safetensors(?:\.index\.json)?|pytorch_model\.bin\S*"
    r"|config\.json|generation_config\.json|tokenizer\S*\.(?:json|model)|vocab\.(?:json|txt)|merges\.txt))'?$"
)
# What a run writes itself, by the path or by the frames.
_OWN_PATH = re.compile(r"global_step_\d|/iter_\d{7}|latest_checkpointed_iteration|dist_ckpt")
_OWN_FRAME = re.compile(
    r"dist_checkpointing/|torch/distributed/checkpoint/|:_?(?:save|load)_(?:\w*_)?checkpoint$|checkpoint_manager\.py:"
    r"|:save_\w+$|:export_\w+$|:load_megatron_model$|training/checkpointing\.py:",
    re.MULTILINE,
)
# A path that the run was given and that is not what it should be, no matter who found that out.
_GIVEN = re.compile(
    r"(?i)\b(?:path|director(?:y|ies)|folder|checkpoint|ckpt|snapshot|tokenizer|run[_ ]config|metadata|weights?"
    r"|model)\b"
)
_AMISS = re.compile(
    r"(?i)\binvalid\b|\bno such\b|\bnot (?:a |an |the )?(?:valid |existing )?(?:\w+ )?(?:found|exist\w*"
    r"|director\w*|folder|checkpoint|path|file)"
    r"|\b(?:does|do|did) ?n[o']t (?:exist|contain|point|have)|\bcould ?n[o']t (?:be )?(?:found|find|open|locate)"
    r"|\bcannot (?:find|open|locate|access)"
    r"|\bmissing\b|\bis empty\b|\bunable to (?:find|open|locate|read)|\bmust (?:exist"
    r"|be an? (?:existing )?(?:director|path|folder|file|checkpoint))"
    r"|\bno (?:\w+ ){0,3}(?:found|present|exists?|available) (?:in|at|under)|\bnot (?:in|at|under) /"
    r"|\bfailed to (?:find|open|locate)"
)
_PATH = re.compile(r"(?:^|[\s'\"(=:`<\[])((?:/|~/|\.{1,2}/|[a-z][a-z0-9]{1,6}://)[\w.@%+~-]+(?:/[\w.@%+=~-]*)*)")
_OF_CODE = re.compile(r"/(?:megatron|verl|(?:site|dist)-packages)/|\.(?:py|so|cu|cpp|h)$")
_WRITES = re.compile(r":_?(?:async_)?(?:save|export|write|dump)\w*$")
_CHECKS = frozenset(
    {"ValueError", "AssertionError", "RuntimeError", "OSError", "Exception", "NotADirectoryError", "IsADirectoryError"}
)
_CACHE = re.compile(r"/\.?(?:triton|torchinductor\w*|cache|__pycache__)/|/tmp/(?:ray|torchinductor)|/dev/shm/|'/proc/")
# Libraries that read and write files, and raise a bare OSError when that fails.
_IO = re.compile(r"(?:^|/)(?:numpy|h5py|pyarrow|zarr|diskcache)/\S+$")
_ERRNO = re.compile(r"\[Errno \d")
_SQLITE = re.compile(r"^sqlite3\.\w*Error$")
_SQLITE_DISK = re.compile(
    r"disk I/O error|database is locked|unable to open database|disk is full|readonly database|disk image is malformed"
)


def of_file(kind: str, message: str, calls: Sequence[str], below: Sequence[str]) -> Origin | None:
    """What an exception says of a file; `calls` are all frames, `below` those below the last one of the projects."""
    innermost = calls[-1] if calls else ""
    if _WRITER.search(message) or (kind == "RuntimeError" and _CLOSING.search(innermost)):
        return Origin.SPACE
    if kind.endswith("FileNotFoundError"):
        return Origin.STORAGE if _NO_TEMPORARY.search(innermost) else _missing(message, calls)
    if _SQLITE.match(kind):
        return Origin.STORAGE if _SQLITE_DISK.search(message) else None
    if _damaged(kind, message, below):
        return None if _own(message, calls) else Origin.DAMAGED_FILE
    if kind in _CHECKS and _amiss(message, calls):
        return Origin.GIVEN_PATH
    bare = kind == "OSError" and not _ERRNO.search(message)
    return Origin.STORAGE if bare and _IO.search(innermost) else None


def _amiss(message: str, calls: Sequence[str]) -> bool:
    """Whether a message complains of a path that was given to the run."""
    return bool(_GIVEN.search(message) and _AMISS.search(message)) and _names_given_path(message, calls)


def _names_given_path(message: str, calls: Sequence[str]) -> bool:
    """Whether a message names a path that is neither one of the code nor one that the run writes itself."""
    if _OWN_PATH.search(message) or any(_WRITES.search(call) for call in calls):
        return False
    found = _PATH.search(message)
    return found is not None and _OF_CODE.search(found[1]) is None


def _damaged(kind: str, message: str, below: Sequence[str]) -> bool:
    if _READER_CLASS.search(kind) or _READER.search(message):
        return True
    if _UNPICKLING.search(kind):
        return _REFUSED.search(message) is None
    return _ENDED.search(kind) is not None and _READING.search("\n".join(below)) is not None


def _missing(message: str, calls: Sequence[str]) -> Origin | None:
    """A file that is not there: the run's own, one of a published model, or one of a cache."""
    if _own(message, calls):
        return Origin.PROGRAM
    if _PUBLISHED.search(message):
        return Origin.DAMAGED_FILE
    if _CACHE.search(message):
        return Origin.STORAGE
    return Origin.GIVEN_PATH if _names_given_path(message, calls) else None


def _own(message: str, calls: Sequence[str]) -> bool:
    return _OWN_PATH.search(message) is not None or _OWN_FRAME.search("\n".join(calls)) is not None
