"""Where our documents can be read, for messages that name a page: the reader may have no checkout of verl-e2e."""

import re

HOME = "https://github.com/verl-project/verl-e2e"
# The pages that messages name; another text with such a name is of the repository that is tested.
PAGES = ("install", "levels", "parity", "policy", "runners/ray", "space", "triage")
_PAGE = rf"docs/(?:{'|'.join(PAGES)})\.md(?:#[\w-]{{1,100}})?"
_NAMED = re.compile(rf"(?<![\w./`-]){_PAGE}")
_CODE = re.compile(rf"`({_PAGE})`")


def with_addresses(text: str) -> str:
    """A text for a terminal, each page as an address that opens."""
    return _NAMED.sub(lambda page: f"{HOME}/blob/main/{page[0]}", text)


def as_code(text: str) -> str:
    """A text with each page as code, for `with_links` after it was made Markdown."""
    return _NAMED.sub(r"`\g<0>`", text)


def with_links(markdown: str) -> str:
    """Markdown with a link from each page that is code in it."""
    return _CODE.sub(lambda page: f"[{page[0]}]({HOME}/blob/main/{page[1]})", markdown)
