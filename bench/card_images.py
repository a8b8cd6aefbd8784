"""Draw docs/images/card-light.png and card-dark.png: a card and a gate of recorded GPU runs, as a page shows them.

    python bench/card_images.py

It needs Chromium, and fonts with the signs that the card uses (DejaVu, Noto Color Emoji).
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fakes.browser_pipe import started  # noqa: E402  (the checkout that this file lies in)
from tests.fakes.github_page import THEMES, page  # noqa: E402
from tests.fakes.shown_pull import FAILED, PASSED, shown_card, shown_checks  # noqa: E402

WIDTH = 960
OPENED = ("Deliverables of 1-", "Why level 1")


def main() -> None:
    """Write both pictures."""
    gate = shown_checks(*FAILED)[0]
    parts = {"verl-e2e, on a pull request that passed": shown_card(*PASSED)}
    parts["verl-e2e, the gate of one that failed"] = f"### {gate.title}\n\n{gate.summary}"
    with started() as browser:
        for theme in THEMES:
            html = page(parts, theme, opened=OPENED)
            height = browser.measure(html, WIDTH, "return page.body.scrollHeight")
            target = ROOT / "docs" / "images" / f"card-{theme.name}.png"
            with browser.showing(html, size=(WIDTH, height)) as shown:
                target.write_bytes(shown.picture())
            print(f"{target.relative_to(ROOT)}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
