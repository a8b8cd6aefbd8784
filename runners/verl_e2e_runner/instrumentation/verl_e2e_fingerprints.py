"""Fingerprints of weights and optimizer state, taken at public methods of verl and Megatron-Bridge.

`watch` is called at the start of every Python process of a run. When one of the modules below has been imported, its
methods are wrapped: each still does what it did and returns what it returned, and what is read before or after it is
written as a line into the folder that VERL_E2E_FINGERPRINTS names. A fault of ours is written down too and never
reaches the run.

For each method there is a hook in `verl_e2e_hooks`, a generator: what comes before
its `yield` happens before the method, what comes after it afterwards, and what it returns, if anything, takes the place
of the method's result.
"""

import contextlib
from collections import namedtuple

ENGINE = "verl.workers.engine.megatron.transformer_impl"
BRIDGE = "megatron.bridge.models.conversion.auto_bridge"
ROLLOUT = "verl.workers.rollout.vllm_rollout.utils"
TARGETS = {
    ENGINE: (
        "MegatronEngine",
        ("initialize", "optimizer_step", "get_per_tensor_param", "save_checkpoint", "load_checkpoint"),
    ),
    BRIDGE: ("AutoBridge", ("load_hf_weights", "export_hf_weights", "export_adapter_weights")),
    ROLLOUT: ("vLLMColocateWorkerExtension", ("update_weights_from_ipc", "_update_weights")),
}


def watch(folder, watch_imports):
    """Wrap the methods as soon as their modules are imported, which the function sees; lines go into this folder."""
    watch_imports(TARGETS, lambda name, spec: _wrap_when_loaded(name, spec, folder))


def _wrap_when_loaded(name, spec, folder):
    load = getattr(spec.loader, "exec_module", None)
    if load is None:
        return

    def exec_module(module):
        result = load(module)
        _install(module, name, folder)
        return result

    spec.loader.exec_module = exec_module


def _install(module, name, folder):
    try:
        from verl_e2e_hooks import HOOKS

        class_name, methods = TARGETS[name]
        owner = getattr(module, class_name, None)
        for method in methods:
            _Hook(f"{name}:{class_name}.{method}", folder, HOOKS[method]).install(owner, method)
    except Exception:
        pass


_Call = namedtuple("_Call", ("folder", "method", "arguments"))


class _Hook:
    """One wrapped method, with how often it was called."""

    def __init__(self, target, folder, around):
        self._target = target
        self._folder = folder
        self._around = around
        self._calls = 0

    def install(self, owner, method):
        """Wrap the method on its class, where subclasses find it too; say why not where it cannot be."""
        import inspect

        original = None if owner is None else vars(owner).get(method)
        if not inspect.isfunction(original) or inspect.iscoroutinefunction(original):
            found = "it is not there" if original is None else "it is not a plain method"
            self._say(installed=False, problem=found)
            return
        setattr(owner, method, self._wrapped(original))
        self._say(installed=True)

    def _wrapped(self, original):
        import functools

        @functools.wraps(original)
        def method(*args, **kwargs):
            self._calls += 1
            steps, problem = self._begin(original, args, kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException:
                if steps is not None:
                    with contextlib.suppress(Exception):
                        steps.close()
                self._say(installed=True, problem=problem)
                raise
            if steps is not None:
                result, problem = self._end(steps, result)
            self._say(installed=True, problem=problem)
            return result

        return method

    def _begin(self, original, args, kwargs):
        import inspect

        try:
            # By the names that the method gives them, with its defaults.
            bound = inspect.signature(original).bind(*args, **kwargs)
            bound.apply_defaults()
            steps = self._around(_Call(self._folder, original.__name__, dict(bound.arguments)))
            next(steps)
            return steps, ""
        except Exception as error:
            return None, _explained(error)

    def _end(self, steps, result):
        """What the method returns, in the hook's place where it gives one."""
        try:
            steps.send(result)
        except StopIteration as stop:
            return result if stop.value is None else stop.value, ""
        except Exception as error:
            return result, _explained(error)
        return result, "the hook did not end"

    def _say(self, installed, problem=""):
        import verl_e2e_snapshots

        line = {"kind": "hook", "target": self._target, "installed": installed, "calls": self._calls}
        with contextlib.suppress(Exception):
            verl_e2e_snapshots.write_line(self._folder, {**line, "problem": problem})


def _explained(error):
    import verl_e2e_snapshots

    return verl_e2e_snapshots.explained(error)
