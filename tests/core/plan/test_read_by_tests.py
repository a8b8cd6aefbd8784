"""What Bridge tests can read of a tree: each import, whatever runs it, and the data next to them."""

from collections.abc import Mapping

import pytest

from verl_e2e.core.plan.reached_files import UnreadTestError, read_by_tests
from verl_e2e.core.reach.program import Summary
from verl_e2e.core.reach.reader import summarize

TEST = "tests/unit/models/test_a.py"
FILES = {
    TEST: "import torch\nimport nearby\nfrom tests.helpers import tool\n\n\ndef test():\n    import lib.deep\n",
    "tests/unit/models/nearby.py": "",
    "tests/unit/models/conftest.py": "from lib import made\nfrom .near import x\n",
    "tests/unit/models/near.py": "",
    "tests/unit/models/golden.json": "{}",
    "tests/unit/other/golden.json": "{}",
    "tests/unit/other/test_b.py": "import lib.other\n",
    "tests/other/golden.json": "{}",
    "tests/conftest.py": "import helper_scripts\n",
    "tests/pytest.ini": "",
    "tests/helpers/__init__.py": "",
    "tests/helpers/tool.py": "LAZY = 'lib.lazy'\n",
    "scripts/helper_scripts.py": "",
    "scripts/torch.py": "",
    "scripts/yaml.py": "",
    "src/lib/__init__.py": "import yaml\n",
    "src/lib/deep/__init__.py": "from ..base import x\n",
    "src/lib/base.py": "",
    "src/lib/made.py": "",
    "src/lib/lazy.py": "",
    "src/lib/other.py": "",
    "setup.cfg": "",
}
LEFT_OUT = {
    "tests/unit/other/test_b.py",
    "tests/other/golden.json",
    "src/lib/other.py",
    "setup.cfg",
    # A source's `import yaml` is another package; a test may have put the folder of scripts on the search path.
    "scripts/yaml.py",
}


def read(files: Mapping[str, str], *tests: str, roots: tuple[str, ...] = ("src/",)) -> frozenset[str]:
    def load(paths: frozenset[str]) -> Mapping[str, Summary]:
        return {path: summarize(files[path].encode()) for path in paths}

    return read_by_tests(tests, files, roots, load)


def test_everything_that_a_test_may_import_or_open_counts() -> None:
    assert read(FILES, TEST, "tests/gone.py") == FILES.keys() - LEFT_OUT


@pytest.mark.parametrize(
    ("path", "counts"),
    (
        # What pytest runs on the way to a test, and what it puts first on the search path.
        ("tests/__init__.py", True),
        ("tests/unit/models/__init__.py", True),
        ("tests/unit/models/json.py", True),
        ("tests/unit/models/json/__init__.py", True),
        # A `conftest.py` lies there.
        ("tests/json.py", True),
        ("tests/unit/json.py", False),
        ("json.py", True),
        ("json/__init__.py", True),
        ("tests/unit/models/json/deep/__init__.py", False),
        ("tests/unit/models/test_c.py", False),
        ("tests/unit/models/c_test.py", False),
        ("tests/unit/other/json.py", False),
        ("tests/unit/other/__init__.py", False),
        ("scripts/__init__.py", True),
        ("src/__init__.py", True),
        ("src/json.py", False),
    ),
)
def test_what_pytest_runs_or_finds_first_counts(path: str, counts: bool) -> None:
    assert (path in read({**FILES, path: ""}, TEST)) is counts


def test_a_package_of_tests_is_found_from_the_folder_around_it() -> None:
    inside, around = "tests/unit/models/json.py", "tests/unit/json.py"
    files = {**FILES, "tests/unit/models/__init__.py": "import lib.other\n", inside: "", around: ""}
    assert {around, "src/lib/other.py"} <= read(files, TEST)
    assert inside not in read(files, TEST)


def test_a_source_that_a_text_of_a_test_names_counts_wherever_it_lies() -> None:
    files = {
        TEST: "SCRIPT = ROOT / 'examples' / 'convert.py'\nNAMES = ['__init__.py', 'data.json', 'gone.py']\n",
        "examples/convert.py": "import lib.other\nrun(HERE.with_name('worker.py'))\n",
        "examples/worker.py": "",
        "src/lib/convert.py": "import lib.base\nrun('later.py')\n",
        "src/lib/other.py": "",
        "src/lib/base.py": "",
        "examples/later.py": "",
        "src/own/__init__.py": "",
        "examples/data.json": "",
    }
    left_out = {"examples/later.py", "src/own/__init__.py", "examples/data.json"}
    assert read(files, TEST) == files.keys() - left_out


def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(UnreadTestError, match=r"src/lib/base\.py: line 1 is not Python"):
        read({**FILES, "src/lib/base.py": "def\n"}, TEST)


def test_without_roots_sources_are_found_from_the_top() -> None:
    files = {"tests/test_a.py": "import lib.a\n", "lib/a.py": "import b\n", "lib/b.py": "", "lib/__init__.py": ""}
    assert read(files, "tests/test_a.py", roots=()) == files.keys()
