"""Links of a page that lead out of docs, for the site: to the file in the repository. Loaded by `tools/site.yml`."""

import re
from posixpath import dirname, join, normpath
from typing import Any

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s]+)(?=\))")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The page with addresses in the place of relative paths above docs, and of files that the site leaves out."""

    def outside(link: re.Match[str]) -> str:
        path = normpath(join("docs", dirname(page.file.src_uri), link[1]))
        inside = path.startswith("docs/") and not path.endswith(".yml")
        return link[1] if inside else f"{config.repo_url.rstrip('/')}/blob/main/{path}"

    return _LINK.sub(outside, markdown)
