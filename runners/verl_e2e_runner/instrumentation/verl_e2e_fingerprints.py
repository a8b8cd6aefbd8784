"""Fingerprints of weights and optimizer state, taken at public methods of verl, SkyRL and Megatron-Bridge.

`watch` is called at the start of every Python process of a run. When one of the modules below has been imported, its
methods and functions are wrapped: each still does what it did and returns what it returned, and what is read before or
after it is written as a line into the folder that VERL_E2E_FINGERPRINTS names. A fault of ours is written down too and
never reaches the run.

For each method there is a hook in `verl_e2e_hooks`, or `verl_e2e_skyrl_hooks`, a generator: what comes before its
`yield` happens before the method, what comes after it afterwards, and what it returns, if anything, takes the place of
the method's result.
"""

import contextlib
from collections import namedtuple

ENGINE = "verl.workers.engine.megatron.transformer_impl"
BRIDGE = "megatron.bridge.models.conversion.auto_bridge"
ROLLOUT = "verl.workers.rollout.vllm_rollout.utils"
SCHEDULES = "megatron.core.pipeline_parallel.schedules"
_SKYRL_HOOKS = "verl_e2e_skyrl_hooks"
# By module rows of a class, none for functions of the module itself, and of its methods with their hooks. A class with
# a module before it is wrapped when the module of the row has been imported.
TARGETS = {
    ENGINE: (
        (
            "MegatronEngine",
            {
                "initialize": "initialize",
                "optimizer_step": "optimizer_step",
                "get_per_tensor_param": "get_per_tensor_param",
                "save_checkpoint": "save_checkpoint",
                "load_checkpoint": "load_checkpoint",
            },
        ),
    ),
    BRIDGE: (
        (
            "AutoBridge",
            {"load_hf_weights": "load_hf_weights", "export_hf_weights": "export", "export_adapter_weights": "export"},
        ),
    ),
    ROLLOUT: (
        (
            "vLLMColocateWorkerExtension",
            {"update_weights_from_ipc": "update_weights_from_ipc", "_update_weights": "update_weights"},
        ),
    ),
    SCHEDULES: (
        (
            "",
            {
                "forward_backward_no_pipelining": "schedule",
                "forward_backward_pipelining_without_interleaving": "schedule",
                "forward_backward_pipelining_with_interleaving": "schedule",
            },
        ),
    ),
}


_wrapped = {}


def watch(folder, watch_imports):
    """Wrap the methods as soon as their modules are imported, which the function sees; lines go into this folder."""
    import verl_e2e_skyrl

    _wrapped.update({**TARGETS, **verl_e2e_skyrl.TARGETS})

    def observe(name, spec):
        load = getattr(spec.loader, "exec_module", None)
        if load is None:
            return

        def exec_module(module):
            result = load(module)
            for class_name, methods in _wrapped.get(name, ()):
                with contextlib.suppress(Exception):
                    _wrap_all(name, module, class_name, methods, folder)
            return result

        spec.loader.exec_module = exec_module

    watch_imports(tuple(_wrapped), observe)


def wrap_nothing():
    """Leave what this process imports from now on as it is.

    For one that only sends classes to Ray's workers: a class that Ray took before its method was wrapped has the old
    one, which no worker finds under its name, so that Ray sends it with all that it refers to.
    """
    _wrapped.clear()


def _wrap_all(name, module, class_name, methods, folder):
    import importlib

    hooks = importlib.import_module(_SKYRL_HOOKS if name.startswith("skyrl.") else "verl_e2e_hooks")
    elsewhere, _, class_name = class_name.rpartition(":")
    name, module = (elsewhere, importlib.import_module(elsewhere)) if elsewhere else (name, module)
    owner = getattr(module, class_name, None) if class_name else module
    for method, hook in methods.items():
        target = f"{name}:{class_name}.{method}" if class_name else f"{name}:{method}"
        _wrap(owner, method, target, folder, getattr(hooks, hook))


_Call = namedtuple("_Call", ("folder", "method", "arguments"))


def _wrap(owner, method, target, folder, around):
    """Wrap the method on its class, where subclasses find it too; say why not where it cannot be."""
    import functools
    import inspect

    calls = 0

    def say(problem="", *, installed=True):
        import verl_e2e_snapshots

        line = {"kind": "hook", "target": target, "installed": installed, "calls": calls, "problem": problem}
        with contextlib.suppress(Exception):
            verl_e2e_snapshots.write_line(folder, line)

    original = None if owner is None else vars(owner).get(method)
    if not inspect.isfunction(original) or inspect.iscoroutinefunction(original):
        say("it is not there" if original is None else "it is not a plain method", installed=False)
        return

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        nonlocal calls
        calls += 1
        steps, problem = None, ""
        try:
            # By the names that the method gives them, with its defaults.
            bound = inspect.signature(original).bind(*args, **kwargs)
            bound.apply_defaults()
            begun = around(_Call(folder, original.__name__, dict(bound.arguments)))
            next(begun)
            steps = begun
        except Exception as error:
            problem = _explained(error)
        try:
            result = original(*args, **kwargs)
        except BaseException:
            if steps is not None:
                with contextlib.suppress(Exception):
                    steps.close()
            say(problem)
            raise
        if steps is not None:
            try:
                steps.send(result)
                problem = "the hook did not end"
            except StopIteration as stop:
                # In the hook's place where it gives one.
                result = result if stop.value is None else stop.value
            except Exception as error:
                problem = _explained(error)
        say(problem)
        return result

    setattr(owner, method, wrapped)
    say()


def _explained(error):
    import verl_e2e_snapshots

    return verl_e2e_snapshots.explained(error)
