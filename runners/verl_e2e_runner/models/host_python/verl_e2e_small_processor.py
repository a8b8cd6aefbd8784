"""A small tokenizer, and what prepares images and sounds for a small model.

The tokenizer is the same wherever it is made: bytes, merged into common words of short exercises. Images and sounds are
prepared by the family's own classes, with small pictures.
"""

import inspect
import itertools
from pathlib import Path

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
from verl_e2e_small_config import merged

_END = "<|endoftext|>"
TURN = "<|im_start|>"
TURN_END = "<|im_end|>"
# Whole words, written with the blank before them: what exercises in arithmetic say most often.
WORDS = Path(__file__).with_name("words.txt").read_text().split()
CHAT = """
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['content'] is string %}
{{- message['content'] }}
{%- else %}
{%- for part in message['content'] %}
{%- if part['type'] == 'image' or 'image' in part or 'image_url' in part %}
{{- IMAGE }}
{%- elif part['type'] == 'video' or 'video' in part %}
{{- VIDEO }}
{%- elif part['type'] == 'audio' or 'audio' in part or 'audio_url' in part %}
{{- AUDIO }}
{%- elif 'text' in part %}
{{- part['text'] }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def make_tokenizer(size, special, named, texts):
    """A tokenizer of exactly `size` tokens: bytes, common words, `special` tokens, and tokens that no text holds.

    `named` are tokens that programs look up by their text. `texts` says what stands in a chat in the place of other
    parts than text: `image`, `video` and `audio`.
    """
    special = [_END, TURN, TURN_END, *(token for token in special if token not in (_END, TURN, TURN_END))]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = _merges(size - len(special) - len(named) - len(alphabet))
    vocabulary = {token: place for place, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=_END,
        additional_special_tokens=[token for token in special if token not in (_END, TURN_END)],
        clean_up_tokenization_spaces=False,
    )
    fast.add_tokens(list(named))
    fast.add_tokens([f"<|unused_{place}|>" for place in range(size - len(fast))])
    fast.chat_template = chat_template(texts)
    return fast


def chat_template(texts):
    """The template of a chat, with what stands for an image, a video and a sound in it."""
    filled = CHAT.strip()
    for kind in ("image", "video", "audio"):
        filled = filled.replace(kind.upper(), repr(texts.get(kind, "")))
    return filled


def _merges(most):
    """At most so many merges, from left to right through every word; a merge that two words share counts once."""
    written = list(dict.fromkeys(itertools.chain.from_iterable((f"\u0120{word}", word) for word in WORDS)))
    made = {}
    for word in [*(f"{tens}{ones}" for tens in range(1, 10) for ones in range(10)), *written]:
        for end in range(1, len(word)):
            made.setdefault((word[:end], word[end]))
    return list(made)[: max(0, most)]


# Classes of the parts, by the name under which a processor takes them.
AUTO = {
    "image_processor": "image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES",
    "video_processor": "video_processing_auto.VIDEO_PROCESSOR_MAPPING_NAMES",
    "feature_extractor": "feature_extraction_auto.FEATURE_EXTRACTOR_MAPPING_NAMES",
}


def write_processor(recipe, tokenizer, folder):
    """Write the family's processor next to the weights, and give its class; empty where the family reads text alone."""
    kind = PROCESSOR_MAPPING_NAMES.get(recipe["model_type"])
    if kind is None or not recipe.get("texts"):
        return ""
    processor = getattr(transformers, kind)
    wanted = inspect.signature(processor.__init__).parameters
    parts = {name: _part(recipe, name) for name in AUTO if name in wanted}
    # Processors ask their tokenizer for such tokens by the name that ends their configuration's field. Only as special
    # tokens of the model are they written with the tokenizer, so that any program that loads the processor finds them.
    attributes = {
        name.removesuffix("_id").removesuffix("_index"): token for name, token in (recipe.get("tokens") or {}).items()
    }
    own = {name: token for name, token in attributes.items() if not hasattr(tokenizer, name)}
    tokenizer._set_model_specific_special_tokens(own)
    made = processor(
        **{name: part for name, part in parts.items() if part is not None},
        **{name: value for name, value in (recipe.get("processor") or {}).items() if "." not in name},
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )
    made.save_pretrained(folder)
    return kind


def _part(recipe, name):
    module, _, table = AUTO[name].partition(".")
    known, kind = getattr(getattr(transformers.models.auto, module), table), recipe["model_type"]
    # A family with experts prepares images as the one without does.
    names = known.get(kind) or known.get(kind.removesuffix("_moe"))
    if isinstance(names, dict):
        names = names.get("torchvision") or names.get("pil") or next(iter(names.values()))
    if isinstance(names, (tuple, list)):
        names = next((found for found in names if found), None)
    given = merged({}, recipe.get("processor") or {}).get(name) or {}
    return getattr(transformers, names)(**given) if names else None
