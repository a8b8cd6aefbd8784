"""Which fields of its configuration Bridge reads of each family, and which of them the synthetic model leaves off.

    python bench/model_fields.py PYTHON BRIDGE

PYTHON is one with torch and transformers, BRIDGE a Megatron-Bridge checkout. A row for each family: the width of a head
beside hidden / heads, and the fields that the family's code reads and the model (with the features that a job can ask
for) has not, or has as null, false, zero or empty, so that a branch on them is never entered.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.plan.build import sized
from verl_e2e_runner import models

CONFIGURATION = """
import json, sys
sys.modules["mistral_common"] = None
sys.path.insert(0, sys.argv[1])
import verl_e2e_make_model, verl_e2e_published
class Tokenizer:
    eos_token_id = pad_token_id = 1
    def convert_tokens_to_ids(self, token):
        return 5
for recipe in json.load(sys.stdin):
    config, _ = verl_e2e_make_model.small_config(recipe, Tokenizer())
    fields = {**config.to_dict(), **config.get_text_config().to_dict()}
    if recipe["published"]:
        fields = verl_e2e_published.with_aliases(fields, recipe["published"])
    print(json.dumps(fields, default=str))
"""
_CONFIGS = ("hf_config", "text_config", "hf_text_config")


def fields_read(source: str) -> Iterator[str]:
    """The fields that code reads of what it calls a configuration of Hugging Face."""
    tree = ast.parse(source)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_config(node.value) and id(node) not in called:
            yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            of, name = node.args[:2]
            if _is_config(of) and isinstance(name, ast.Constant):
                yield str(name.value)


def _is_config(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in _CONFIGS


def main(python: str, bridge: str) -> None:
    """Print one row for each family."""
    families = [family for family in packaged_policy().families if family.synthetic]
    made = [family.made_for(family.features) for family in families]
    recipes = [sized(model.checkpoint, {}).synthetic.model_dump(mode="json") for model in made if model]
    argv = [python, "-c", CONFIGURATION, str(Path(models.__file__).parent / "host_python")]
    given = json.dumps(recipes)
    ran = subprocess.run(argv, input=given, capture_output=True, text=True, check=True).stdout.splitlines()
    files = [path.relative_to(bridge) for path in Path(bridge).glob("src/megatron/bridge/models/**/*.py")]
    for family, line in zip(families, ran, strict=True):
        fields = json.loads(line)
        own = [Path(bridge, path).read_text() for path in files if family.paths.match(str(path))]
        read = sorted({name for source in own for name in fields_read(source)})
        off = [f"{name}={fields[name]}" if name in fields else name for name in read if not fields.get(name)]
        quotient = fields["hidden_size"] // fields["num_attention_heads"]
        print(f"{family.name} | {fields.get('head_dim')} | {quotient} | {', '.join(off)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
