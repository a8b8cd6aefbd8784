"""What of these tests shows the coverage of core: tables do, and searches by Hypothesis do not.

Each decision has a table of its own. A search repeats what the tables run some hundred times, and measured it takes up
to fourteen times as long, so it runs as it is, without being measured.
"""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Take the tests out of the measurement that no line needs."""
    if getattr(getattr(item, "function", None), "is_hypothesis_test", False):
        item.add_marker("no_cover")
