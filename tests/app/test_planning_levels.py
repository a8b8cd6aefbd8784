"""The packaged policy on changes of provider finalization, gradient flow and optimizer settings.

The sources are a small Bridge of our own making, under the paths that the policy names.
"""

from collections.abc import Mapping

import pytest

from tests.fakes.trees import FakeTrees, planner_over
from verl_e2e.config.policy import packaged_policy

POLICY = packaged_policy()
MODELS, TRAINING = "src/megatron/bridge/models/", "src/megatron/bridge/training/"
CALLER = {
    "verl/engine.py": """
from megatron.bridge import Provider
from megatron.bridge.models.common.heads import ValueHead
from megatron.bridge.training.utils.config_utils import create_ddp_config
from megatron.bridge.training.utils.train_utils import freeze_router, prepare

provider = Provider()
provider.finalize()
provider.build()
head = ValueHead()
settings = create_ddp_config(True)
prepare(provider)
freeze_router(provider)
"""
}
BRIDGE = {
    "src/megatron/bridge/__init__.py": "from megatron.bridge.models.provider import Provider\n",
    MODELS + "__init__.py": "",
    MODELS + "provider.py": """
from megatron.bridge.models.fields import settle
from megatron.bridge.utils.grads import sync_between_ranks


class Provider:
    def __init__(self):
        self.depth = 1

    def finalize(self):
        settle(self)
        self.width = self.depth * 4

    def settle_and_finalize(self):
        self.height = 1

    def build(self):
        self.settle_and_finalize()
        sync_between_ranks(self)
        return self._ddp_wrap(self.depth)

    def _ddp_wrap(self, model):
        if self.use_megatron_fsdp:
            model = [model]
        return wrap(model, bucket=1)


def wrap(model, bucket):
    return model
""",
    MODELS + "fields.py": "def settle(provider):\n    provider.name = str(provider.depth)\n",
    MODELS + "common/__init__.py": "",
    MODELS + "common/heads.py": """
import torch


class ValueHead(torch.nn.Module):
    def forward(self, x):
        return self.project(x)

    def project(self, x):
        return x
""",
    "src/megatron/bridge/utils/__init__.py": "",
    "src/megatron/bridge/utils/grads.py": """
def sync_between_ranks(module):
    mark(module)


def mark(module):
    module.ready = 1
""",
    TRAINING + "__init__.py": "",
    TRAINING + "utils/__init__.py": "",
    TRAINING + "utils/config_utils.py": """
def create_ddp_config(shard, use_megatron_fsdp=False):
    settings = {"shard": shard}
    if use_megatron_fsdp:
        settings["strategy"] = "all"
    return checked(settings)


def checked(settings):
    return dict(settings)
""",
    TRAINING + "utils/train_utils.py": """
def prepare(model):
    out = model.run()
    if model.tensor_model_parallel_size > 1:
        out = out + 1
    save_fsdp_state(model)
    return out


def save_fsdp_state(model):
    model.flush()


def freeze_router(model):
    for layer in model.layers:
        stop(layer.router)


def stop(router):
    router.stopped = True
""",
}
PROVIDER, HEADS = MODELS + "provider.py", MODELS + "common/heads.py"
DDP, TRAIN = TRAINING + "utils/config_utils.py", TRAINING + "utils/train_utils.py"
FINALIZATION = (
    (PROVIDER, "        settle(self)\n", ""),
    (PROVIDER, "self.depth * 4", "self.depth * 2"),
    (PROVIDER, "self.height = 1", "self.height = 2"),
    (MODELS + "fields.py", "str(provider.depth)", "repr(provider.depth)"),
)
SETTINGS = (
    (DDP, '{"shard": shard}', '{"shard": False}'),
    (DDP, "    return checked(settings)", '    settings["average"] = True\n    return checked(settings)'),
    (DDP, "dict(settings)", "dict(settings, check=1)"),
    (PROVIDER, "bucket=1", "bucket=2"),
    (PROVIDER, "    return model\n", "    return [model]\n"),
    (TRAIN, "model.run()", "model.run(model.optimizer)"),
)
GRADIENTS = (
    (HEADS, "self.project(x)", "self.project(x.detach())"),
    (TRAIN, "model.layers", "model.layers[1:]"),
    (HEADS, "        return x\n", "        return x.half()\n"),
    (TRAIN, "    out = model.run()", "    with torch.no_grad():\n        out = model.run()"),
    (TRAIN, "    out = model.run()", "    with torch.inference_mode():\n        out = model.run()"),
    (TRAIN, "    out = model.run()", "    torch.set_grad_enabled(False)\n    out = model.run()"),
    (TRAIN, "    out = model.run()", "    out = model.run()\n    out.register_hook(model.clip)"),
    (TRAIN, "model.run()", "model.run() * model.loss_scale"),
    (TRAIN, "model.run()", "model.run().requires_grad_(False)"),
    (TRAIN, "    return out", "    model.weight.main_grad.zero_()\n    return out"),
    ("src/megatron/bridge/utils/grads.py", "mark(module)\n\n", "mark(module).average_gradients = 1\n\n"),
)


def levels(path: str, old: str, new: str) -> set[int]:
    """The levels of one edit."""
    assert old in BRIDGE[path]
    head: Mapping[str, str] = {**BRIDGE, path: BRIDGE[path].replace(old, new, 1)}
    repository = FakeTrees({"base": BRIDGE, "head": head, "verl": CALLER})
    return {int(level) for level in planner_over(repository, POLICY).plan("base", "head", POLICY).plan.levels}


@pytest.mark.parametrize(("path", "old", "new"), FINALIZATION)
def test_provider_finalization_and_what_it_calls_ask_for_parallelism(path: str, old: str, new: str) -> None:
    assert levels(path, old, new) == {0, 2}


@pytest.mark.parametrize(("path", "old", "new"), SETTINGS)
def test_settings_of_optimizer_and_reduction_ask_for_resume_parity_and_signal(path: str, old: str, new: str) -> None:
    # What makes the settings of the wrapper decides how gradients are reduced.
    assert levels(path, old, new) == {0, 1, 5} | ({2} if path.endswith("config_utils.py") else set())


@pytest.mark.parametrize(("path", "old", "new"), GRADIENTS)
def test_gradient_flow_asks_for_the_learning_signal(path: str, old: str, new: str) -> None:
    assert levels(path, old, new) == {0, 5}


@pytest.mark.parametrize(
    ("added", "wanted"),
    (
        ("self.pre_wrap_hook(self)", {0, 5}),
        ("self._post_wrap_hooks.append(self)", {0, 5}),
        ("self.loss = fused_cross_entropy(self)", {0, 5}),
        ("self.bias = self.bias.keep_in_fp32()", {0, 5}),
        ("self.shape = DTensor(self)", {0, 3}),
        ("self.last = self.post_process", {0, 2}),
        ("self.first = is_pp_first_stage(self)", {0, 2}),
        ("self.rows = _gather_rows(self)", {0, 2}),
        ("self.wrap(ddp_config=1)", {0, 1, 2, 5}),
        ("self.wrap(ddp_config=1, use_megatron_fsdp=True)", {0, 3}),
        ("self.wrap(bucket=2)", {0}),
    ),
)
def test_a_new_statement_asks_for_what_it_is_about(added: str, wanted: set[int]) -> None:
    line = "        sync_between_ranks(self)\n"
    assert levels(PROVIDER, line, f"{line}        {added}\n") == wanted


def test_a_function_of_megatron_fsdp_asks_for_it_whatever_its_statements_say() -> None:
    assert levels(TRAIN, "model.flush()", "model.flush(1)") == {0, 3}


def test_a_statement_is_also_about_the_conditions_around_it() -> None:
    assert levels(DDP, '"all"', '"most"') == {0, 3}
    assert levels(PROVIDER, "model = [model]", "model = (model,)") == {0, 3}
    assert levels(TRAIN, "out + 1", "out + 2") == {0, 2}


def test_what_is_none_of_these_asks_for_the_smoke_alone() -> None:
    assert levels(TRAIN, "    out = model.run()", "    out = model.run(1)") == {0}
    assert levels(PROVIDER, "self.depth = 1", "self.depth = 2") == {0}


def test_a_helper_counts_for_what_calls_it_whichever_way_it_was_reached_first() -> None:
    fields = BRIDGE[MODELS + "fields.py"] + "\n\ndef kind(text):\n    return text\n"
    shared = {
        MODELS + "fields.py": fields.replace("str(provider.depth)", "kind(str(provider.depth))"),
        MODELS + "__init__.py": "from megatron.bridge.models.fields import kind\n\nKIND = kind('bf16')\n",
    }
    base = {**BRIDGE, **shared}
    head = {**base, MODELS + "fields.py": shared[MODELS + "fields.py"].replace("return text", "return text.lower()")}
    repository = FakeTrees({"base": base, "head": head, "verl": CALLER})
    made = planner_over(repository, POLICY).plan("base", "head", POLICY).plan
    assert {int(level) for level in made.levels} == {0, 2}
