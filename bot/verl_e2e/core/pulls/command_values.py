"""The values of commands: each is read by one function, bounded, and free of anything that a shell would act on."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from verl_e2e.core.model.levels import VARIANTS, Level
from verl_e2e.core.text.escape import suggest

_MAX_STEPS = 1_000
MIN_REASON, MAX_REASON = 10, 500
_MODEL = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}")
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._/-]{0,199}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?")
_SHA = re.compile(r"[0-9a-f]{40}")
_LEVELS = re.compile(r"level(\d)(?:-(?:level)?(\d))?")
# What a path of a repository never needs, and a shell or Markdown would act on.
_PATH = re.compile(r"[\w.+@/:-]{1,400}")


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a word cannot be read, and the fix."""

    what: str
    fix: str = ""


Reader = Callable[[str], str | Problem]


def level_words(word: str) -> tuple[int, ...] | None:
    """The levels that `level2`, `level0-2` or `all` names; empty where there are none such, None for another word."""
    if word == "all":
        return tuple(int(item) for item in Level)
    found = _LEVELS.fullmatch(word)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2] or found[1])
    return tuple(range(first, last + 1)) if last <= max(Level) else ()


def one_of(*words: str) -> Reader:
    """A reader of closed choices."""

    def read(text: str) -> str | Problem:
        return text.lower() if text.lower() in words else Problem("not known here", suggest(text.lower(), words))

    return read


def model(text: str) -> str | Problem:
    """A Hugging Face model, `organisation/name`."""
    if _MODEL.fullmatch(text) and ".." not in text:
        return text
    return Problem("no model id", "write it as on the Hugging Face Hub, such as model=Qwen/Qwen3-0.6B")


def variant(text: str) -> str | Problem:
    """A variant by its job id."""
    known = {item.job_id for item in VARIANTS}
    return text if text in known else Problem("no such variant", suggest(text, known))


def steps(text: str) -> str | Problem:
    """A number of training steps."""
    if text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= _MAX_STEPS:
        return str(int(text))
    return Problem("no number of steps", f"write a whole number from 1 to {_MAX_STEPS}, such as steps=20")


def verl_ref(text: str) -> str | Problem:
    """A commit, branch or tag of verl."""
    bad = ".." in text or "//" in text or "/." in text or text.endswith(("/", ".", ".lock"))
    if _REF.fullmatch(text) and not bad:
        return text
    return Problem("no commit, branch or tag name", "write a SHA or a name, such as verl_ref=main")


def image(text: str) -> str | Problem:
    """A container image with its tag or digest."""
    if _IMAGE.fullmatch(text) and ".." not in text and "//" not in text:
        return text
    return Problem("no image name", "write name:tag or name@sha256:digest, such as image=verlai/verl:vllm024.dev2")


def full_sha(text: str) -> str | Problem:
    """A whole commit id: a short one could name another commit tomorrow."""
    if _SHA.fullmatch(text.lower()):
        return text.lower()
    return Problem("no full commit SHA", "write all 40 hexadecimal digits of the head, as the card shows them")


def level(text: str) -> str | Problem:
    """One level, `2` or `level2`."""
    found = level_words(text.lower() if text.lower().startswith("level") else f"level{text}")
    if found is None or len(found) != 1:
        return Problem("not a level", "write one number from 0 to 5")
    return str(found[0])


def path(text: str) -> str | Problem:
    """A file of the repository, with a symbol after a colon if wanted."""
    if _PATH.fullmatch(text) and not text.startswith("/") and ".." not in text.split("/"):
        return text
    return Problem(
        "no path of the repository", "write it from the top folder, such as src/megatron/bridge/peft/lora.py"
    )


def reason(text: str) -> str | Problem:
    """A reason that someone can read later."""
    if len(text) < MIN_REASON or len(text.split()) < 2:
        return Problem("no reason that says something", "write why in a few words")
    if len(text) > MAX_REASON:
        return Problem(f"longer than {MAX_REASON} characters", "write it shorter")
    return text
