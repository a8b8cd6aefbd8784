"""What a test file says of itself: whether it holds tests, and whether all of them need GPUs."""

import pytest

from verl_e2e.core.plan.reached_files import Marks, read_marks

MARKS = ("gpu", "run_only_on")


@pytest.mark.parametrize(
    ("source", "tests", "gpu_count"),
    [
        ("", 0, 0),
        ("def helper(): pass\nclass Thing:\n    def test_x(self): pass\n", 0, 0),
        ("def test_a(): pass\n", 1, 0),
        ("async def test_a(): pass\n", 1, 0),
        ("class TestA:\n    def test_a(self): pass\n    def other(self): pass\n", 1, 0),
        ("class Cases(TestCase):\n    def test_a(self): pass\n", 1, 0),
        ("if X:\n    def test_a(): pass\nelse:\n    def test_b(): pass\n", 2, 0),
        ("def test_broken(:\n", 1, 0),
        ("@pytest.mark.gpu\ndef test_a(): pass\n", 1, 1),
        ("@mark.gpu\ndef test_a(): pass\n", 1, 1),
        ("@gpu\ndef test_a(): pass\n", 1, 0),
        ("@pytest.mark.run_only_on('GPU')\ndef test_a(): pass\n", 1, 1),
        ("@pytest.mark.run_only_on('CPU')\ndef test_a(): pass\n", 1, 0),
        ("@pytest.mark.run_only_on(device='gpu')\ndef test_a(): pass\n", 1, 1),
        ("@pytest.mark.gpu\ndef test_a(): pass\ndef test_b(): pass\n", 2, 0),
        ("@pytest.mark.gpu\nclass TestA:\n    def test_a(self): pass\n", 1, 1),
        ("class TestA:\n    @pytest.mark.gpu\n    def test_a(self): pass\n", 1, 1),
        ("pytestmark = pytest.mark.gpu\ndef test_a(): pass\n", 1, 1),
        ("pytestmark = [pytest.mark.unit, pytest.mark.gpu]\ndef test_a(): pass\n", 1, 1),
        ("pytestmark = pytest.mark.unit\ndef test_a(): pass\n", 1, 0),
        ("@pytest.mark.skipif(not torch.cuda.is_available(), reason='x')\ndef test_a(): pass\n", 1, 1),
        ("@pytest.mark.skipif(torch.cuda.device_count() < 2, reason='x')\ndef test_a(): pass\n", 1, 1),
        ("@pytest.mark.skipif(torch.cuda.is_available(), reason='x')\ndef test_a(): pass\n", 1, 0),
        ("@pytest.mark.skipif(not HAS_NEMO, reason='no cuda')\ndef test_a(): pass\n", 1, 0),
        ("@pytest.mark.gpu\ndef test_a():\n    run('--nproc_per_node=2')\n    run('--nproc-per-node', '4')\n", 1, 4),
        ("def test_a():\n    run('--nproc_per_node=2')\n", 1, 0),
    ],
)
def test_what_a_file_says_of_itself(source: str, tests: int, gpu_count: int) -> None:
    assert read_marks(source.encode(), MARKS) == Marks(tests, gpu_count)
