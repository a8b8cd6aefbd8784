"""What prepares images and sounds for a small model: the family's own classes, with small pictures."""

import inspect

import transformers
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES
from verl_e2e_small_config import merged

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
    attributes = {name.removesuffix("_id").removesuffix("_index"): token for name, token in _tokens(recipe)}
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


def _tokens(recipe):
    return (recipe.get("tokens") or {}).items()


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
