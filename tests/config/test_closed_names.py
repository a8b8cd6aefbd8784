"""Names of closed sets in policies and site profiles: each misspelt one is refused with the nearest."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from verl_e2e.config import load_policy, load_profile, packaged_policy
from verl_e2e.config.validation import ConfigError

POLICY: dict[str, Any] = {
    "schema": 1,
    "verl": {"commit": "a" * 40},
    "image": {"name": "org/image", "tag": "1"},
    "checkpoint": {"model_id": "a/b", "features": ["moe"]},
    "rules": [
        {"name": "r", "paths": ["src/"], "levels": [4], "reason": "x", "features": ["moe"], "variants": ["2-cp"]}
    ],
    "reach": {
        "package": "lib",
        "roots": ["src/"],
        "rules": [{"name": "s", "levels": [4], "reason": "x", "features": ["sound"], "kinds": ["added"]}],
    },
    "families": [
        {
            "family": "small",
            "paths": ["src/small"],
            "features": ["mla", "sound"],
            "checkpoint": {"model_id": "s", "features": ["mla"]},
        }
    ],
    "features": [{"feature": "sound", "reason": "x", "script": None, "read_of": ["small"], "data": "audio"}],
    "capabilities": {"run": {"roles": ["write"]}},
    "gate": {"none": "open", "start": "automatic", "unexecuted": "block"},
    "isolation": "required",
    "patches": [
        {
            "name": "p",
            "repository": "verl",
            "file": "a.py",
            "substitutions": [{"old": "a", "new": "b"}],
            "before": "a" * 64,
            "after": "b" * 64,
            "reason": "x",
        }
    ],
}
SITE: dict[str, Any] = {
    "name": "here",
    "image": "org/image:1",
    "stall_s": {"train_step": 5, "default": 6},
    "cannot_run": {"fp8": "x"},
    "isolation": {"network": "none"},
    "data": {"train_files": "a", "val_files": "b", "prepare": "gsm8k"},
}
# Free text: what a person calls a thing, or a name of something that the program does not know.
FREE = {"name", "reason", "package", "model_id", "tag", "commit", "file", "old", "new", "before", "after", "family"}
FREE |= {"train_files", "val_files", "paths", "roots", "image", "feature"}


def misspelt(value: Any, above: str = "") -> Iterator[Any]:
    """The document with one name of a closed set misspelt, at each place that has one: keys and values."""
    if isinstance(value, dict):
        for key, inner in value.items():
            for changed in misspelt(inner, key):
                yield {**value, key: changed}
            if above not in FREE:
                yield {(f"{key[:-1]}{key[-1]}x" if name == key else name): other for name, other in value.items()}
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            for changed in misspelt(inner, above):
                yield [*value[:number], changed, *value[number + 1 :]]
    elif isinstance(value, str) and above not in FREE and value != "x":
        yield f"{value}x"


def test_the_documents_themselves_are_fine(tmp_path: Path) -> None:
    load_policy(yaml.safe_dump(POLICY), "p.yml")
    (tmp_path / "s.yml").write_text(yaml.safe_dump(SITE))
    load_profile(str(tmp_path / "s.yml"), {})


@pytest.mark.parametrize("document", list(misspelt(POLICY)), ids=lambda _: "policy")
def test_a_misspelt_name_of_a_policy_is_refused_with_file_and_line(document: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"p\.yml:\d+: \S+: ") as refused:
        load_policy(yaml.safe_dump(document), "p.yml")
    assert "did you mean" in str(refused.value) or "use " in str(refused.value), str(refused.value)


@pytest.mark.parametrize("document", list(misspelt(SITE)), ids=lambda _: "site")
def test_a_misspelt_name_of_a_site_is_refused_with_file_and_line(document: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "s.yml").write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match=r"s\.yml:\d+: \S+: ") as refused:
        load_profile(str(tmp_path / "s.yml"), {})
    assert "did you mean" in str(refused.value) or "use " in str(refused.value), str(refused.value)


@pytest.mark.parametrize("image", ["a b", "a\tb", " a", "a\n"])
def test_an_image_with_a_blank_is_refused(image: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds a blank"):
        load_policy(yaml.safe_dump({**POLICY, "image": {"name": image, "tag": "1"}}), "p.yml")
    (tmp_path / "s.yml").write_text(yaml.safe_dump({**SITE, "image": image}))
    with pytest.raises(ConfigError, match="holds a blank"):
        load_profile(str(tmp_path / "s.yml"), {})


def test_an_empty_policy_lists_the_keys_that_are_needed() -> None:
    with pytest.raises(ConfigError, match=r"write these keys: schema, verl, image, checkpoint, rules$"):
        load_policy("", "p.yml")


def test_the_packaged_policy_names_what_there_is() -> None:
    assert packaged_policy().features
