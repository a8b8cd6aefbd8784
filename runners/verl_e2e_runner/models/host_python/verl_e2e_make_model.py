"""Makes a small model of a family with random weights: `python verl_e2e_make_model.py < QUESTION`.

The question is a JSON object: `recipe`, what the model is to be, and `folder`, where it is to lie. It runs in the
job's own Python, with the torch and transformers of the run. Equal recipes and equal libraries give equal files.
The last line of the output is a JSON object: what was made, or `problem`.

Other runs of the host may look for the folder and read it: it is put there whole, and by one process at a time.
"""

import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
import time
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def turn(folder):
    """Wait until no other process makes this folder; the system ends the turn with the process."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder.with_name(f".{folder.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def new_folder(folder):
    """A folder to fill, which takes the place of `folder` when it is whole.

    Where the same lies there already it stays as it is: another run may read it, and must not find it gone.
    """
    unfinished, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{word}") for word in ("unfinished", "old"))
    for rest in (unfinished, old):
        shutil.rmtree(rest, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        if contents(unfinished) != contents(folder):
            if folder.exists():
                folder.rename(old)
            unfinished.rename(folder)
    finally:
        for rest in (unfinished, old):
            shutil.rmtree(rest, ignore_errors=True)


def contents(folder):
    """The digest of every file, by its path; nothing of a folder that is not there."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


RECORD = "recipe.json"
LIBRARIES = ("torch", "transformers", "safetensors", "tokenizers")


def main():
    """Answer the question on standard input."""
    # transformers' processors import mistral_common where there is one, and fail with it where one of its own
    # dependencies is missing. No recipe needs it.
    sys.modules["mistral_common"] = None
    question = json.load(sys.stdin)
    began = time.monotonic()
    try:
        record = there(question) or make(question)
    except Exception as error:
        sys.stdout.write(json.dumps({"problem": f"{type(error).__name__}: {error}"[:1000]}) + "\n")
        return 1
    sys.stdout.write(json.dumps({**record, "seconds": round(time.monotonic() - began, 1)}) + "\n")
    return 0


def made_by(recipe):
    """What decides which model is made: the recipe, the versions of the libraries, and the scripts."""
    files = sorted(Path(__file__).resolve().parent.glob("verl_e2e_*.py"))
    scripts = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    libraries = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"recipe": recipe, "libraries": libraries, "scripts": scripts}


def there(question):
    """The record of the model that lies in the folder, if this recipe, these libraries and these scripts made it."""
    file = Path(question["folder"], RECORD)
    try:
        record = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    same = all(record.get(name) == value for name, value in made_by(question["recipe"]).items())
    return record if same and record.get("files") == without_record(file.parent) else None


def without_record(folder):
    """The digests of all files but the record."""
    return {name: digest for name, digest in contents(folder).items() if name != RECORD}


def make(question):
    """Write the model; its folder appears when it is whole."""
    folder = Path(question["folder"])
    with turn(folder):
        # Another run of this host may have made it meanwhile.
        if record := there(question):
            return record
        with new_folder(folder) as unfinished:
            made = write_model(question["recipe"], unfinished)
            record = {**made_by(question["recipe"]), **made, "files": without_record(unfinished)}
            (unfinished / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return record


def write_model(recipe, folder):
    """The configuration, the weights, the tokenizer and what prepares images and sounds; what was made is returned."""
    import torch
    import transformers
    from verl_e2e_published import publish
    from verl_e2e_random_weights import fill
    from verl_e2e_small_processor import make_tokenizer, write_processor

    torch.manual_seed(recipe["seed"])
    torch.set_num_threads(1)
    tokenizer = make_tokenizer(
        recipe["sizes"]["vocabulary"],
        list((recipe.get("tokens") or {}).values()),
        recipe.get("named_tokens") or (),
        recipe.get("texts") or {},
    )
    config, missing = small_config(recipe, tokenizer)
    model = getattr(transformers, recipe["architecture"])(config).to(torch.bfloat16)
    weights = fill(model, recipe["seed"])
    model.save_pretrained(folder)
    if hasattr(model, "load_speakers"):
        # transformers loads the class only with this file of voices; none is made.
        torch.save({}, folder / "spk_dict.pt")
    added = publish(recipe, folder)
    tokenizer.save_pretrained(folder)
    processor = write_processor(recipe, tokenizer, folder)
    text = config.get_text_config()
    return {
        "parameters": weights["parameters"] + added,
        "weights_sha256": weights["sha256"],
        "layers": text.num_hidden_layers,
        "experts": next((value for name in EXPERTS if isinstance(value := getattr(text, name, None), int)), 0),
        "vocabulary": text.vocab_size,
        "missing_kinds": missing,
        "processor": processor,
    }


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def small_config(recipe, tokenizer):
    """The configuration by the rules, then by the recipe; and the kinds of layers that it has none of."""
    from transformers import CONFIG_MAPPING
    from verl_e2e_small_config import (
        KINDS,
        merged,
        missing_kinds,
        placed,
        small,
        stated,
        with_newer_names,
        with_whole_rope,
    )

    family = CONFIG_MAPPING[recipe["model_type"]]
    own = family().to_dict()
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    tokens = {name: tokenizer.convert_tokens_to_ids(token) for name, token in (recipe.get("tokens") or {}).items()}
    given = placed({**ends, **tokens, **with_newer_names(stated(recipe), own)}, own)
    fields = with_whole_rope(merged(small(own, recipe["sizes"]), given, own), own)
    config = family(**fields, dtype="bfloat16")
    # A kind of layer that the recipe leaves out did not get lost.
    usual = family(**merged({}, placed(recipe["fields"], own), own)).get_text_config()
    text = config.get_text_config()
    missing = [kind for name in KINDS for kind in missing_kinds(getattr(text, name, None), getattr(usual, name, None))]
    return config, missing


if __name__ == "__main__":
    sys.exit(main())
