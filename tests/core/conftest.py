"""What of these tests shows the coverage of core: tables do; searches by Hypothesis and slow tests do not.

Each decision has a table of its own. What repeats some hundred times what the tables run takes up to fourteen times as
long when it is measured, so it runs as it is, without being measured: searches, tests marked `slow`, and those that
are marked `no_cover` where they stand, for no line and no branch is run by them alone.
"""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Take the tests out of the measurement that no line needs."""
    searches = getattr(getattr(item, "function", None), "is_hypothesis_test", False)
    if searches or item.get_closest_marker("slow") is not None:
        item.add_marker("no_cover")
