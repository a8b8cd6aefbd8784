"""How people name a pull request: by the address of its page, or as OWNER/REPO#N."""

import re
from dataclasses import dataclass

from verl_e2e.core.model.errors import UserError
from verl_e2e.core.pulls.pull import PullRef

_NAME = r"(?P<repository>[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9._-]+)"
_PAGE = re.compile(rf"(?P<web>https?://[^/\s?#@]+)/{_NAME}/pull/(?P<number>\d{{1,9}})(?:[/?#]\S*)?")
_SHORT = re.compile(rf"{_NAME}#(?P<number>\d{{1,9}})")
_PUBLIC = re.compile(r"https?://(www\.)?github\.com", re.I)
PUBLIC_WEB = "https://github.com"
PUBLIC_API = "https://api.github.com"
_ENTERPRISE = "/api/v3"


class BadAddressError(UserError):
    """A text that names no pull request."""


@dataclass(frozen=True, slots=True)
class PullAddress:
    """A pull request and the site that it is on, `https://host`; empty when the text named no site."""

    ref: PullRef
    web: str = ""


def read_address(text: str) -> PullAddress:
    """What a text names; BadAddressError."""
    found = _PAGE.fullmatch(text.strip()) or _SHORT.fullmatch(text.strip())
    if found is None or found["repository"].endswith(("/.", "/..")) or int(found["number"]) == 0:
        message = f"{PUBLIC_WEB}/OWNER/REPO/pull/N or OWNER/REPO#N"
        raise BadAddressError(f"{text!r} names no pull request; give its address, {message}")
    web = found.groupdict().get("web") or ""
    return PullAddress(PullRef(found["repository"], int(found["number"])), web)


def api_of(web: str) -> str:
    """The API of a site: GitHub's own, or that of an Enterprise server."""
    return PUBLIC_API if not web or _PUBLIC.fullmatch(web) else f"{web}{_ENTERPRISE}"


def web_of(api: str) -> str:
    """The site of an API, where its repositories are cloned from."""
    return PUBLIC_WEB if api == PUBLIC_API else api.removesuffix(_ENTERPRISE)
