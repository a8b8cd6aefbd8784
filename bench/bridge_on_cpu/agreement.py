"""Compares the model that Bridge makes with the one of transformers: `python agreement.py FOLDER...`.

Runs like round_trip.py, both models in single precision on the CPU. For each model a line of JSON: the correlation of
the probabilities of sampled tokens, as verl compares trainer and rollout, and the greatest difference of one.
"""

import os
import sys

import stand_in

os.environ["TORCHDYNAMO_DISABLE"] = "1"
stand_in.install()

import torch
import transformers
from megatron.bridge import AutoBridge
from round_trip import build, each_apart

stand_in.use_cpu()
TOKENS, ROWS = 128, 8


def agreement(folder):
    """The correlation of a model's two forms."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(folder)
    rows = torch.randint(300, config.get_text_config().vocab_size - 100, (ROWS, TOKENS))
    family = getattr(transformers, config.architectures[0])
    found = {}
    with torch.no_grad():
        own = _probabilities(family.from_pretrained(folder, dtype=torch.float32)(input_ids=rows).logits)
        sampled = torch.multinomial(own.reshape(-1, own.shape[-1]), 1).reshape(ROWS, TOKENS, 1)
        rounded = _probabilities(family.from_pretrained(folder, dtype=torch.bfloat16)(input_ids=rows).logits)
        found["transformers_bf16"] = _compared(own, rounded, sampled)
        bridge = AutoBridge.from_hf_pretrained(folder)
        model = build(bridge.to_megatron_provider(load_weights=False), torch.float32, folder)
        bridge.load_hf_weights(model)
        model[0].eval()
        positions = torch.arange(TOKENS).expand(ROWS, TOKENS)
        given = model[0](input_ids=rows, position_ids=positions, attention_mask=None)
        found["bridge"] = _compared(own, _probabilities(given), sampled)
    return found


def _probabilities(logits):
    return (logits[0] if isinstance(logits, tuple) else logits).float().softmax(-1)


def _compared(own, other, sampled):
    one, two = (probabilities.gather(-1, sampled).flatten() for probabilities in (own, other))
    correlation = torch.corrcoef(torch.stack([one, two]))[0, 1]
    return {"correlation": round(float(correlation), 6), "most": round(float((one - two).abs().max()), 6)}


if __name__ == "__main__":
    each_apart(sys.argv[1:], agreement)
