"""Tracebacks: chains, remote tracebacks, interleaving, cuts."""

import pytest

from tests.core.logs import lines
from verl_e2e.core.log.scan import scan
from verl_e2e.core.model.facts import LoggedError

H = "Traceback (most recent call last):"
CAUSE = "The above exception was the direct cause of the following exception:"
DURING = "During handling of the above exception, another exception occurred:"


def frame(path: str, function: str) -> str:
    return f'  File "{path}", line 7, in {function}'


def errors(*texts: str) -> tuple[LoggedError, ...]:
    return scan(lines(*texts)).errors


def only(*texts: str) -> LoggedError:
    (error,) = errors(*texts)
    return error


def prefixed(prefix: str, *texts: str) -> list[str]:
    return [f"{prefix} {text}" for text in texts]


F, G = frame("x.py", "f"), frame("y.py", "g")
REMOTE = "ray.exceptions.RayTaskError(OSError): ray::W.run() (pid=3, ip=192.0.2.2)"
SAVED = "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0])"
FLASH = "ImportError: requires the CUDA flash attention extensions"
IMPORTS = (frame("utils.py", "<module>"), frame("vllm_flash_attn/__init__.py", "<module>"))
SILENT = (*prefixed("(A pid=1)", H, F), *(f"(B pid=2) line {n}" for n in range(400)), "(A pid=1) ValueError: late")
# Lines, then kind, message and calls of the root, and the rest of its chain.
SHAPES: dict[str, tuple[tuple[str, ...], str, str, tuple[str, ...], tuple[str, ...]]] = {
    "plain": (
        ("before", H, F, "    work()", "    ^^^^^^", "ValueError: no", "after"),
        "ValueError",
        "no",
        ("x.py:f",),
        (),
    ),
    "raise from": (
        (H, F, "OSError: one", "", CAUSE, "", H, G, "ValueError: two"),
        *("OSError", "one", ("y.py:g", "x.py:f"), ("ValueError: two",)),
    ),
    "a message of several lines": (
        (H, F, "ValueError: first", "Please do this.", "", CAUSE, "", H, G, "OSError: x"),
        *("ValueError", "first", ("y.py:g", "x.py:f"), ("OSError: x",)),
    ),
    "words of others between the links": (
        (H, F, "OSError: one", "", "other", CAUSE, "other", H, G, "ValueError"),
        *("OSError", "one", ("y.py:g", "x.py:f"), ("ValueError",)),
    ),
    "no first exception line": ((H, F, DURING, "", H, G, "OSError: two"), "OSError", "two", ("y.py:g",), ()),
    "a fallback import": (
        (H, *IMPORTS, FLASH, "", DURING, "", H, IMPORTS[0], "ModuleNotFoundError: No module named 'x'"),
        *("ImportError", FLASH[13:], ("utils.py:<module>", "vllm_flash_attn/__init__.py:<import>")),
        ("ModuleNotFoundError: No module named 'x'",),
    ),
    "the entry script is no import": (
        (H, frame("<frozen runpy>", "_run_code"), frame("main_ppo.py", "<module>"), "ValueError: no"),
        *("ValueError", "no", ("<frozen runpy>:_run_code", "main_ppo.py:<module>"), ()),
    ),
    "ranks below a checkpoint exception": (
        (H, F, SAVED, "Traceback (most recent call last): (RANK 0)", G, "EOFError: Ran out of input"),
        *("EOFError", "Ran out of input", ("x.py:f", "y.py:g"), (SAVED,)),
    ),
    "lines of others": (
        (H, F, "a warning", "", REMOTE, "", "progress of another program", G, "OSError: deep"),
        *("OSError", "deep", ("x.py:f", "ray::W.run", "y.py:g"), (REMOTE,)),
    ),
    "blank below a wrapper": (
        (REMOTE, "", "           ^^^^^^^^^", G, "OSError: deep"),
        *("OSError", "deep", ("ray::W.run", "y.py:g"), (REMOTE,)),
    ),
    "folded by Ray": ((H, F, "ValueError: no [repeated 7x across cluster]"), "ValueError", "no", ("x.py:f",), ()),
    "an indented message": (
        (H, F, "RuntimeError: Error(s) in loading:", "\tMissing key(s): 'a'", "next"),
        *("RuntimeError", "Error(s) in loading: Missing key(s): 'a'", ("x.py:f",), ()),
    ),
    "begun inside": (("    return f()", F, "ValueError: no"), "ValueError", "no", ("x.py:f",), ()),
    "cut inside": ((H, F, "    return f()"), "", "the traceback is cut before its exception", ("x.py:f",), ()),
    "silent for too long": (SILENT, "", "the traceback is cut before its exception", ("x.py:f",), ()),
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_read_of_a_traceback(name: str) -> None:
    texts, kind, message, calls, chain = SHAPES[name]
    error = only(*texts)
    assert (error.kind, error.message, error.calls, error.chain) == (kind, message, calls, chain)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("StopIteration", "StopIteration", ""),
        ("Exception: cuda rng state", "Exception", "cuda rng state"),
        ("torch.OutOfMemoryError: CUDA out of memory", "torch.OutOfMemoryError", "CUDA out of memory"),
        ("zmq.error.Again: busy", "zmq.error.Again", "busy"),
        ("queue.Empty", "queue.Empty", ""),
        ("AssertionError", "AssertionError", ""),
        ("a.b.ChildFailedError: ", "a.b.ChildFailedError", ""),
        ("ExceptionGroup: two (2 sub-exceptions)", "ExceptionGroup", "two (2 sub-exceptions)"),
    ],
)
def test_how_an_exception_line_looks(text: str, kind: str, message: str) -> None:
    error = only(H, frame("x.py", "f"), text)
    assert (error.kind, error.message) == (kind, message)


def test_a_remote_traceback_inside_a_wrapper() -> None:
    error = only(
        "Error executing job with overrides: ['a=b']",
        H,
        frame("main_ppo.py", "main"),
        "ray.exceptions.RayTaskError(KeyError): ray::TaskRunner.run() (pid=1, ip=192.0.2.2)",
        "           ^^^^^^^^^^",
        frame("ray_trainer.py", "fit"),
        "ray.exceptions.RayTaskError(KeyError): ray::WorkerDict.update_actor() (pid=2, ip=192.0.2.2)",
        "                    ^^^",
        frame("actor.py", "update_policy"),
        "KeyError: 'x'",
        "",
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
    )
    assert (error.kind, error.message, error.driver) == ("KeyError", "'x'", True)
    assert error.calls == (
        "main_ppo.py:main",
        "ray::TaskRunner.run",
        "ray_trainer.py:fit",
        "ray::WorkerDict.update_actor",
        "actor.py:update_policy",
    )


def test_a_creation_task_that_died_has_its_own_root() -> None:
    error = only(
        *prefixed(
            "(WorkerDict pid=7)",
            "Exception raised in creation task: The actor died because of an error raised in its creation task, "
            "ray::WorkerDict.__init__() (pid=7, ip=192.0.2.2)",
            frame("worker.py", "__init__"),
            "ValueError: no device",
        )
    )
    assert (error.kind, error.pid, error.secondary) == ("ValueError", 7, False)


def test_ray_prints_a_remote_call_for_the_traceback_that_an_exception_carries() -> None:
    error = only(
        H,
        "ray.exceptions.RayTaskError(CheckpointException): ray::W.save() (pid=7, ip=192.0.2.2)",
        frame("torch.py", "finalize_fn"),
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0])",
        "ray::W.save() (pid=7, ip=192.0.2.2)",
        frame("filesystem_async.py", "retrieve_write_results"),
        "RuntimeError: Worker failure: <class 'OSError'>",
    )
    assert (error.kind, error.at.line) == ("RuntimeError", 7)
    assert error.calls[-1].endswith("filesystem_async.py:retrieve_write_results")
    assert any("CheckpointException ranks" in other for other in error.chain)


def test_interleaved_workers_are_told_apart_and_folded() -> None:
    parts = [
        prefixed(f"(W pid={pid})", H, frame("x.py", "f"), "    call()", f"RuntimeError: rank {pid} failed")
        for pid in (11, 12, 13)
    ]
    error = only(*(line for row in zip(*parts, strict=True) for line in row))
    assert (error.count, error.pid, error.at.line) == (3, 11, 10)


def test_vllm_prints_a_traceback_through_its_logger() -> None:
    prefix = "(Server pid=1) (Worker pid=2) ERROR 11-20 14:54:%02d [multiproc_executor.py:898]"
    error = only(
        prefix % 29 + " WorkerProc failed to start.",
        prefix % 29 + " " + H,
        prefix % 30 + " " + frame("vllm/worker.py", "init_device"),
        prefix % 30 + " ValueError: Free memory on device",
        "(Server pid=1) something else",
    )
    assert (error.kind, error.actor, error.pid) == ("ValueError", "Worker", 2)


def test_two_tracebacks_in_a_row_are_two_errors() -> None:
    found = errors(H, frame("x.py", "f"), "ValueError: one", H, frame("y.py", "g"), "TypeError: two")
    assert [error.kind for error in found] == ["ValueError", "TypeError"]


def test_what_only_looks_like_an_error() -> None:
    assert not errors(
        "/x.py:1: UserWarning: engine is not available: ModuleNotFoundError('x')",
        "ValueError: printed without a traceback",
        'the text "a", line 7, in nothing',
        "Stack (most recent call first):",
        '  File "/worker.py", line 1039 in main_loop',
    )


def test_an_exception_that_python_ignored_is_noise() -> None:
    facts = scan(lines("Exception ignored in: <function A.__del__>", H, frame("x.py", "__del__"), "TypeError: x", "on"))
    assert not facts.errors
    assert [note.name for note in facts.noise] == ["exception-ignored-at-exit"]


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "RuntimeError: [gloo] Connection closed by peer [192.0.2.2]:1234",
    ],
)
def test_errors_that_only_report_another_death(text: str) -> None:
    assert only(H, frame("x.py", "f"), text).secondary


def test_a_stack_of_any_depth_is_bounded() -> None:
    error = only(H, *(frame(f"f{n}.py", "f") for n in range(5000)), "RecursionError: maximum recursion depth exceeded")
    assert len(error.calls) <= 40
    assert error.calls[0] == "f0.py:f"
    assert error.calls[-1] == "f4999.py:f"


def test_the_number_of_distinct_errors_is_bounded() -> None:
    texts = [
        text for n in range(500) for text in (H, frame("x.py", "f"), f"ValueError: {chr(97 + n % 26) * (n // 26 + 1)}")
    ]
    assert len(errors(*texts)) == 200


def test_an_endless_chain_is_bounded() -> None:
    rows = [text for n in range(100) for text in (H, frame("x.py", "f"), f"ValueError: {'a' * n}", "", DURING, "")]
    error = only(*rows)
    assert error.message == ""
    assert len(error.chain) < 32


def test_an_unhandled_error_of_a_task_is_an_error_of_its_own() -> None:
    head = (
        "Unhandled error (suppress with 'RAY_IGNORE_UNHANDLED_ERRORS=1'): "
        "ray::W.load_checkpoint() (pid=3, ip=192.0.2.2)"
    )
    found = errors(
        *prefixed("(T pid=1)", frame("a.py", "f"), "OSError: one", head, frame("b.py", "g"), "TypeError: two"),
        *prefixed("(T pid=1)", "gone on", head, frame("b.py", "g"), "KeyError: three"),
    )
    assert [error.kind for error in found] == ["OSError", "TypeError", "KeyError"]
    assert "ray::W.load_checkpoint" in found[1].calls
