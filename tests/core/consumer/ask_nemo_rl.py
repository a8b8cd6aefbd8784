"""What NeMo-RL's loader and models make of overrides: its packages are imported where the rest of them is absent.

`python ask_nemo_rl.py CHECKOUT < LISTS`, with hydra-core and pydantic. A name that no package has stands for any type.
"""

import importlib.abc
import importlib.machinery
import json
import pprint
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

import pydantic  # noqa: F401
import typing_extensions
from hydra._internal import config_loader_impl  # noqa: F401
from omegaconf import OmegaConf

# What OmegaConf, Hydra and pydantic try to import and do without.
OPTIONAL = {"attr", "attrs", "antlr4", "email_validator", "pydevd", "yaml"}


class AnyType(type):
    """A class whose attributes are such classes, and which decorates by doing nothing."""

    def __getattr__(cls, name: str) -> "AnyType":
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyType(name, (), {"__class_getitem__": classmethod(lambda owner, _item: owner)})

    def __call__(cls, *given: Any, **_named: Any) -> Any:
        def unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
            return function

        return given[0] if len(given) == 1 and callable(given[0]) else unchanged

    def __or__(cls, _other: object) -> Any:
        return object

    def __ror__(cls, _other: object) -> Any:
        return object


class AnyModule(types.ModuleType):
    """A module that has every name, of a version that NeMo-RL takes."""

    __version__ = "5.5.0"

    def __getattr__(self, name: str) -> AnyType:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, AnyType(name, (), {"__class_getitem__": classmethod(lambda owner, _item: owner)}))
        return typing.cast("AnyType", self.__dict__[name])


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what no one else does."""

    def find_spec(self, name: str, _path: object, _target: object = None) -> importlib.machinery.ModuleSpec | None:
        own = {"nemo_rl", "hydra", "omegaconf", "pydantic", *OPTIONAL, *sys.stdlib_module_names}
        return None if name.partition(".")[0] in own else importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return AnyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def main() -> None:
    checkout = sys.argv[1]
    sys.path.insert(0, checkout)
    # pydantic asks for that below Python 3.12.
    typing.TypedDict = typing_extensions.TypedDict
    sys.meta_path.append(Absent())
    from nemo_rl.algorithms.grpo import MasterConfig  # type: ignore[import-not-found]
    from nemo_rl.utils import config as loader  # type: ignore[import-not-found]

    loader.register_omegaconf_resolvers()
    answers = []
    for item in json.load(sys.stdin):
        try:
            composed = loader.parse_hydra_overrides(loader.load_config(f"{checkout}/{item[0]}"), item[1:])
            values: Any = OmegaConf.to_container(composed, resolve=True)
            read = MasterConfig(**values)
            answers.append({"shown": pprint.pformat(read), "config": read.model_dump(mode="json")})
        except Exception as error:
            answers.append({"error": f"{type(error).__name__}: {error}"})
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main()
