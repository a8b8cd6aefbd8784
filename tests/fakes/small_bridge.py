"""A small Bridge, with code of every kind that a change could hide behind, and what a small verl uses of it."""

from tests.fakes.trees import Files
from verl_e2e.core.reach.entries import Uses
from verl_e2e.core.reach.walk import Entry

TOP = "src/megatron/bridge/"
CORE = f"{TOP}models/conversion/model_bridge.py"
INIT = f"{TOP}__init__.py"
LORA = f"{TOP}peft/lora.py"
ASIDE = f"{TOP}diffusion/models/__init__.py"
BASE: Files = {
    "README.md": "# Bridge\n",
    ".gitignore": "*.pyc\n",
    "docs/x.md": "import os\n",
    "tools/run.py": "print(1)\n",
    "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\n\n[project]\nname = "bridge"\n'
    'dependencies = ["tqdm"]\n\n[tool.setuptools.packages.find]\nwhere = ["src"]\n\n[tool.ruff]\nline-length = 119\n',
    INIT: "import megatron.bridge.diffusion.models\nimport megatron.bridge.models\n"
    "from megatron.bridge.models.conversion.model_bridge import Bridge\nfrom megatron.bridge.peft.lora import LoRA\n",
    f"{TOP}models/__init__.py": "",
    f"{TOP}models/conversion/__init__.py": "",
    f"{TOP}peft/__init__.py": "",
    f"{TOP}diffusion/__init__.py": "",
    ASIDE: '"""Diffusion."""\n\nSTEPS = 3\n\n\ndef sample():\n    return STEPS\n',
    f"{TOP}recipes/one.py": "def recipe():\n    return 1\n",
    CORE: '''
"""The bridge."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from . import names
from .names import first, second
from .names import third as fourth

try:
    from megatron.core import fused
except ImportError:
    fused = None

if TYPE_CHECKING:
    from megatron.core import Model

logger = logging.getLogger(__name__)
LIMIT = 3


def task(x, limit=LIMIT):
    """Unused here."""
    return x


@dataclass
class Settings:
    """Settings."""

    dim: int = 8
    alpha: int = 16


class Bridge:
    """Loads weights."""

    name = "bridge"

    class Inner:
        size = 1

    @staticmethod
    def load(tasks, model: Model):
        """Load all tasks."""
        for one in tasks:
            if one is None:
                logger.info("skipped %s", one)
                continue
            with torch.no_grad():
                first(one)
            second(one)
        assert tasks, "no tasks"
        if not tasks:
            raise ValueError("nothing to load")
        settings = Settings()
        return fourth(tasks), settings.dim, names.last(os.environ)
''',
    f"{TOP}models/conversion/names.py": "def first(x):\n    return x\n\n\ndef second(x):\n    return x\n\n\n"
    "def third(x):\n    return x\n\n\ndef last(x):\n    return x\n",
    LORA: "from dataclasses import dataclass\nfrom typing import overload\n\n\n@dataclass\nclass LoRA:\n"
    "    dim: int = 8\n    scale: float = 1.0\n\n    def make(self, x: int = 1) -> int:\n        return self.dim * x\n",
}
USES = Uses(
    (
        Entry("megatron.bridge", "Bridge", "verl/a.py", 1),
        Entry("megatron.bridge.peft.lora", "LoRA", "verl/a.py", 2),
        Entry("", "load", "verl/a.py", 3),
        Entry("", "make", "verl/a.py", 4),
    ),
    (),
    "verl as the test has it",
)
