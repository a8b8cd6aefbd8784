"""Makes the synthetic model of every family and prints what its next tokens look like.

    python bench/synthetic_models.py PYTHON FOLDER [FAMILY ...]

PYTHON is one with torch and transformers; it loads each model that it made with the family's own class and runs it
forward on the CPU over one chat. Printed: parameters, seconds to make it, mean entropy of the next token in nats, and
how far that distribution moves at the last token (in nats) when ten tokens of the chat change places.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.plan.build import sized
from verl_e2e.core.plan.synthetic_models import synthetic_checkpoint
from verl_e2e_runner.models import make_model

FORWARD = """
import json, sys, torch, transformers
folder, architecture = sys.argv[1:]
torch.set_num_threads(1)
family = getattr(transformers, architecture)
model, loaded = family.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
text = "Janet has 16 eggs and sells 3 of them for 2 dollars each. How much money does she make every week?"
chat = [{"role": "user", "content": text}]
asked = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
ids = tokenizer.apply_chat_template(chat, **asked)["input_ids"]
moved = ids.clone()
moved[0, 5:15] = ids[0, 5:15].flip(0)
model = getattr(model, "thinker", model)
with torch.no_grad():
    before, after = (model(input_ids=given).logits[0].float().log_softmax(-1) for given in (ids, moved))
entropy = -(before.exp() * before).sum(-1)
moves = (before[-1].exp() * (before[-1] - after[-1])).sum()
wrong = sum(len(names) for names in loaded.values())
whole = tokenizer.decode(ids[0]).count(text)
print(json.dumps([ids.shape[1], float(entropy.mean()), float(entropy.min()), float(moves), wrong, whole]))
"""


def main(python: str, folder: str, *wanted: str) -> None:
    """Print one row for each family."""
    work = Path(folder)
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    for family in packaged_policy().families:
        if family.synthetic is None or (wanted and family.name not in wanted):
            continue
        recipe = sized(synthetic_checkpoint(family.synthetic.recipe, family.name), {}).synthetic
        place = work / family.name
        made = make_model(recipe, place, python=python, variables=variables, work=work, timeout_s=600)
        if made.problem:
            print(f"{family.name} | {made.problem}", flush=True)
            continue
        record = json.loads((place / "recipe.json").read_text())
        argv = [python, "-c", FORWARD, str(place), recipe.architecture]
        ran = subprocess.run(argv, capture_output=True, text=True, env=variables, check=False)
        numbers = ran.stdout.strip().rpartition("\n")[2] or ran.stderr.strip().rpartition("\n")[2]
        size = f"{record['parameters'] / 1e6:.1f}"
        shape = (record["layers"], record["experts"], record["processor"] or "text")
        print(" | ".join(map(str, (family.name, size, *shape, numbers))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
