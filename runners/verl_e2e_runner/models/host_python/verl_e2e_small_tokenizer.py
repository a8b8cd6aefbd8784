"""A small tokenizer, the same wherever it is made: bytes, merged into common words of short exercises."""

import itertools
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"
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
    special = [END, TURN, TURN_END, *(token for token in special if token not in (END, TURN, TURN_END))]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = _merges(size - len(special) - len(named) - len(alphabet))
    vocabulary = {token: place for place, token in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END,
        additional_special_tokens=[token for token in special if token not in (END, TURN_END)],
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
