"""The execution record of real processes: a Python of 3.12 or later runs code of small trees under test."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.runners.recorded import FILES, MLM, SOURCE, Place, lines, names
from verl_e2e.core.model.execution import ProcessRole
from verl_e2e_runner.launch.launcher import INSTRUMENTATION

pytestmark = [pytest.mark.monitoring]

CALLS = """
import asyncio
from megatron.bridge.peft import Adapter, merged
from megatron.core.layers import Linear
merged(2), Adapter().size, asyncio.run(Adapter().export()), list(Adapter().weights()), Linear().forward()
"""


LONG = """def f(a):
    x = (
        a
        + 1
    )
    match (
        x
    ):
        case 2:
            return 1
        case _:
            return 0
"""


@pytest.fixture
def make_place(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    """Make trees under test with their record; `changed` are the files that the change touches."""
    with ExitStack() as stack:

        def make(changed: tuple[str, ...] = ()) -> Place:
            place = Place(tmp_path, changed)
            stack.enter_context(place.recorder)
            return place

        yield make


def _line(text: str) -> int:
    """The number of the only line of the fixture that begins so."""
    (number,) = [at for at, line in enumerate(FILES[SOURCE].splitlines(), 1) if line.strip().startswith(text)]
    return number


def test_functions_that_ran_are_named_as_python_names_them(
    monitoring_python: str, make_place: Callable[..., Place]
) -> None:
    place = make_place()
    done = place.run(monitoring_python, CALLS)
    assert (done.returncode, done.stderr) == (0, "")
    executed = place.executed()
    assert (executed.problem, executed.cut, len(executed.processes)) == ("", (), 1)
    assert names(executed, SOURCE) == {
        *("traced", "traced.<locals>.inner", "merged"),
        *("Adapter.size", "Adapter.export", "Adapter.weights", "Adapter.weights.<locals>.<lambda>"),
    }
    assert names(executed, MLM) == {"Linear.forward"}
    found = {function.symbol: function.line for file in executed.files for function in file.functions}
    assert found["merged"] == _line("@traced"), "the line of the first decorator"
    assert not any(file.lines for file in executed.files), "no line where the change touches nothing"


def test_an_import_runs_no_function_but_the_process_is_there(
    monitoring_python: str, make_place: Callable[..., Place]
) -> None:
    place = make_place()
    place.run(monitoring_python, "import megatron.core.layers, megatron.bridge")
    executed = place.executed()
    # Of Megatron-LM, whose commit is always the same, no module is listed.
    listed = [file.path for file in executed.files]
    assert (listed, len(executed.processes), executed.problem) == (["src/megatron/bridge/__init__.py"], 1, "")
    assert not any(file.functions or file.lines for file in executed.files)


def test_a_module_that_is_imported_by_a_name_of_the_run_is_there(
    monitoring_python: str, make_place: Callable[..., Place]
) -> None:
    place = make_place()
    (place.root / "bridge/src/megatron/bridge/table_b.py").write_text("TABLE = {}\n")
    place.run(
        monitoring_python, "import importlib\n[importlib.import_module(f'megatron.bridge.table_{x}') for x in 'b']"
    )
    assert {file.path for file in place.executed().files} >= {"src/megatron/bridge/table_b.py"}


def test_a_generator_and_a_coroutine_that_no_one_runs_have_not_run(
    monitoring_python: str, make_place: Callable[..., Place]
) -> None:
    place = make_place()
    place.run(
        monitoring_python,
        "from megatron.bridge.peft import Adapter\nAdapter().weights()\nAdapter().export().close()\nAdapter().size",
    )
    assert names(place.executed(), SOURCE) == {"traced", "Adapter.size"}


def test_lines_are_recorded_of_changed_files_and_a_branch_that_is_not_taken_is_absent(
    monitoring_python: str, make_place: Callable[..., Place]
) -> None:
    place = make_place(changed=(SOURCE,))
    place.run(monitoring_python, CALLS)
    executed = place.executed()
    ran = lines(executed, SOURCE)
    assert {_line("total = sum("), _line("number"), _line("return total"), _line("if (")} <= ran
    assert {_line("class Adapter"), _line("rank = 4"), _line("def never")} <= ran, "bodies that ran at import"
    assert not {_line('return "large"'), _line('return "never"')} & ran
    assert lines(executed, MLM) == set()


def test_the_first_line_of_a_statement_counts_where_only_its_others_have_code(
    monitoring_python: str, tmp_path: Path, make_place: Callable[..., Place]
) -> None:
    place = make_place(changed=("src/megatron/bridge/long.py",))
    (tmp_path / "bridge/src/megatron/bridge/long.py").write_text(LONG)
    place.run(monitoring_python, "from megatron.bridge.long import f\nf(1)")
    ran = lines(place.executed(), "src/megatron/bridge/long.py")
    assert {1, 2, 3, 4, 6, 7, 9, 10} <= ran
    assert not {11, 12} & ran


def test_what_was_seen_survives_sigkill(monitoring_python: str, make_place: Callable[..., Place]) -> None:
    place = make_place()
    code = f"{CALLS}\nimport os\nos.kill(os.getpid(), {signal.SIGKILL:d})"
    assert place.run(monitoring_python, code).returncode == -signal.SIGKILL
    assert {"merged", "Adapter.weights"} <= names(place.executed(), SOURCE)


def test_a_process_that_could_not_write_all_of_it_says_so(
    monitoring_python: str, make_place: Callable[..., Place]
) -> None:
    """As on a full disk: a file may not grow further."""
    place = make_place()
    code = """
import os, resource, signal
from megatron.bridge.peft import Adapter, merged, never
merged(2)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
(record,) = os.scandir(os.environ["FOLDER"])
resource.setrlimit(resource.RLIMIT_FSIZE, (record.stat().st_size + 20, resource.RLIM_INFINITY))
never()
Adapter().size
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
list(Adapter().weights())
"""
    assert place.run(monitoring_python, code, FOLDER=str(place.folder)).stderr == ""
    executed = place.executed()
    assert {"merged", "Adapter.weights"} <= names(executed, SOURCE)
    assert [process.problem for process in executed.processes] == [
        "some of it could not be written, as on a disk that is full"
    ]


def test_what_ran_before_a_record_could_be_opened_is_missing(
    monitoring_python: str, make_place: Callable[..., Place]
) -> None:
    place = make_place()
    code = """
import os
from megatron.bridge.peft import Adapter, merged, never
os.rename(os.environ["FOLDER"], os.environ["FOLDER"] + "-away")
pid = os.fork()
if pid == 0:
    merged(2)
    os.rename(os.environ["FOLDER"] + "-away", os.environ["FOLDER"])
    never()
    os._exit(0)
os.wait()
"""
    assert place.run(monitoring_python, code, FOLDER=str(place.folder)).stderr == ""
    executed = place.executed()
    problems = [process.problem for process in executed.processes]
    assert [bool(problem) for problem in problems] == [False, True]
    assert problems[1].endswith("entries before this one could not be written")
    assert "never" in names(executed, SOURCE, process=1)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_has_a_record_of_its_own(monitoring_python: str, method: str, make_place: Callable[..., Place]) -> None:
    place = make_place()
    code = f"""
import multiprocessing, os
from megatron.bridge.peft import Adapter, merged
def child():
    Adapter().size
    merged(4)
    os._exit(0)
if __name__ == "__main__":
    merged(3)
    process = multiprocessing.get_context("{method}").Process(target=child)
    process.start()
    process.join()
"""
    assert place.run(monitoring_python, code).stderr == ""
    executed = place.executed()
    assert len({process.pid for process in executed.processes}) == len(executed.processes)
    children = [index for index in range(2) if "Adapter.size" in names(executed, SOURCE, process=index)]
    assert len(children) == 1
    assert {"merged", "Adapter.size"} <= names(executed, SOURCE, process=children[0])
    assert "Adapter.size" not in names(executed, SOURCE, process=1 - children[0])


def test_a_child_of_a_library_that_forks_by_itself_is_seen(
    monitoring_python: str, make_place: Callable[..., Place]
) -> None:
    place = make_place()
    code = """
import ctypes, os
from megatron.bridge.peft import Adapter, merged
merged(3)
if ctypes.CDLL(None).fork() == 0:
    Adapter().size
    os._exit(0)
os.wait()
"""
    place.run(monitoring_python, code)
    executed = place.executed()
    assert [names(executed, SOURCE, process=index) >= {"Adapter.size"} for index in range(2)] == [False, True]


def test_threads_record_into_one_file(monitoring_python: str, tmp_path: Path, make_place: Callable[..., Place]) -> None:
    place = make_place()
    functions = "".join(f"def f{number}():\n    return {number}\n" for number in range(400))
    (tmp_path / "bridge/src/megatron/bridge/many.py").write_text(functions)
    code = """
import sys, threading
sys.setswitchinterval(1e-6)
from megatron.bridge import many
def work():
    for number in range(400):
        getattr(many, f"f{number}")()
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    place.run(monitoring_python, code)
    executed = place.executed()
    assert (len(executed.processes), executed.cut) == (1, ())
    assert names(executed, "src/megatron/bridge/many.py") == {f"f{number}" for number in range(400)}


TRACER = """
class Translator:
    def __init__(self, code):
        self.f_code = code

    def starts_line(self, lineno):
        self.lineno = lineno
"""


def test_what_torch_compile_traces_through_counts_although_python_does_not_run_it(
    monitoring_python: str, tmp_path: Path, make_place: Callable[..., Place]
) -> None:
    """A stand-in in the place of PyTorch's tracer, which calls its method `starts_line` for each line."""
    place = make_place(changed=(SOURCE,))
    tracer = tmp_path / "site/torch/_dynamo/symbolic_convert.py"
    tracer.parent.mkdir(parents=True)
    tracer.write_text(TRACER)
    code = f"""
from megatron.bridge import peft
from torch._dynamo.symbolic_convert import Translator
compiled = Translator(peft.never.__code__)
compiled.starts_line({_line("def never")})
compiled.starts_line({_line('return "never"')})
Translator((lambda: 0).__code__).starts_line(1)
rest = peft.Adapter.export.__code__.replace(co_name="torch_dynamo_resume_in_export_at_3")
Translator(rest).starts_line({_line("return 1")})
"""
    path = f"{place.environment()['PYTHONPATH']}:{tmp_path / 'site'}"
    done = place.run(monitoring_python, code, PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (0, "")
    executed = place.executed()
    assert names(executed, SOURCE) == {"traced", "never"}
    assert {_line('return "never"'), _line("return 1")} <= lines(executed, SOURCE)
    assert executed.cut == ()


def test_what_could_not_be_noted_is_noted_when_it_runs_again(
    monitoring_python: str, make_place: Callable[..., Place]
) -> None:
    place = make_place((SOURCE,))
    code = """
import json
from megatron.bridge import peft
dumps, json.dumps = json.dumps, None
peft.never(), peft.merged(2)
json.dumps = dumps
peft.never()
"""
    place.run(monitoring_python, code)
    executed = place.executed()
    assert names(executed, SOURCE) == {"traced", "never"}
    assert _line('return "never"') in lines(executed, SOURCE)


def test_each_phase_has_its_own_processes(monitoring_python: str, make_place: Callable[..., Place]) -> None:
    place = make_place()
    place.run(monitoring_python, "from megatron.bridge.peft import merged\nmerged(1)")
    place.executed("save")
    place.run(monitoring_python, "from megatron.bridge.peft import never\nnever()")
    executed = place.executed("resume")
    assert [process.phase for process in executed.processes] == ["save", "resume"]
    assert "merged" in names(executed, SOURCE, process=0)
    assert names(executed, SOURCE, process=1) == {"traced", "never"}
    starts = [process.began_s for process in executed.processes]
    assert 0 <= starts[0] <= starts[1] <= place.recorder.elapsed()


def test_a_tree_that_is_reached_by_a_link_is_the_same_tree(
    monitoring_python: str, tmp_path: Path, make_place: Callable[..., Place]
) -> None:
    place = make_place()
    (tmp_path / "linked").symlink_to(tmp_path / "bridge/src")
    code = "import sys\nsys.path.insert(0, sys.argv[0].replace('program.py', 'linked'))\n"
    place.run(monitoring_python, f"{code}from megatron.bridge.peft import never\nnever()")
    assert "never" in names(place.executed(), SOURCE)


def test_a_title_that_changes_is_recorded_with_the_rank(
    monitoring_python: str, make_place: Callable[..., Place]
) -> None:
    """As Ray does it: what `ps` shows is overwritten in the process's own memory."""
    place = make_place()
    code = """
import ctypes, os, time
from megatron.bridge.peft import Adapter, never
never()
title = b"ray::xYz1WorkerDict_0:1:WorkerDict.update_actor(1)"
prctl, start = ctypes.CDLL(None).prctl, int(open("/proc/self/stat").read().rpartition(")")[2].split()[45])
ctypes.memmove(start, title + bytes(4), len(title) + 4)
os.environ["RANK"] = "1"
time.sleep(1.1)
Adapter().size
"""
    place.run(monitoring_python, code, FILLER="x" * 200)
    (process,) = place.executed().processes
    assert (process.role, process.title, process.rank) == (ProcessRole.TRAINER, "ray::WorkerDict", 1)


def test_where_other_tools_hold_every_id_the_record_says_so(
    monitoring_python: str, tmp_path: Path, make_place: Callable[..., Place]
) -> None:
    place = make_place()
    (tmp_path / "first").mkdir()
    # Our file runs the `sitecustomize` that it hides, which is this one again.
    (tmp_path / "first/sitecustomize.py").write_text(
        "import runpy, sys\nif sys.monitoring.get_tool(3) is None:\n"
        "    [sys.monitoring.use_tool_id(tool, 'other') for tool in (3, 4)]\n"
        f"    runpy.run_path({str(INSTRUMENTATION / 'sitecustomize.py')!r})\n"
    )
    path = f"{tmp_path / 'first'}:{place.environment()['PYTHONPATH']}"
    imports = tmp_path / "imports.jsonl"
    code = "from megatron.bridge.peft import never\nimport megatron.core\nnever()"
    done = place.run(monitoring_python, code, PYTHONPATH=path, VERL_E2E_IMPORTS=str(imports))
    assert (done.returncode, done.stderr) == (0, "")
    executed = place.executed()
    assert (executed.files, len(executed.processes)) == ((), 1)
    assert "no id of a tool is free" in executed.problem
    assert [json.loads(line)["module"] for line in imports.read_text().splitlines()] == [
        "megatron.bridge",
        "megatron.core",
    ], "the import instrumentation sees as much as without it"


def test_the_tests_own_python_records_where_it_can_and_says_why_where_not(make_place: Callable[..., Place]) -> None:
    place = make_place()
    place.run(sys.executable, CALLS)
    executed = place.executed()
    if hasattr(sys, "monitoring"):
        assert "merged" in names(executed, SOURCE)
    else:
        version = ".".join(map(str, sys.version_info[:3]))
        assert executed.problem == f"Python {version}: it has no sys.monitoring, which came with Python 3.12"


def test_the_record_costs_no_program_that_has_nothing_to_do_with_the_trees_a_file(
    monitoring_python: str, make_place: Callable[..., Place]
) -> None:
    place = make_place()
    place.run(monitoring_python, "import json, subprocess")
    assert list(place.folder.iterdir()) == []


@pytest.mark.parametrize(
    "settings", ["", "{", '{"folder": 3}', '{"folder": "/nowhere", "roots": ["/"], "changed": []}']
)
def test_a_record_that_cannot_be_written_changes_nothing(
    monitoring_python: str, settings: str, make_place: Callable[..., Place]
) -> None:
    place = make_place()
    place.settings.write_text(settings)
    done = place.run(monitoring_python, f"{CALLS}\nprint('fine')")
    assert (done.stdout, done.stderr, done.returncode) == ("fine\n", "", 0)
