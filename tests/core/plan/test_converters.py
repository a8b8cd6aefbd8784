"""Which classes of Bridge a file registers, and families whose model none of them converts."""

import pytest

from tests.core.plan.test_lint import PATHS, SYMBOLS, WORDS, policy
from verl_e2e.core.plan.lint import Converter, lint_policy, registered

KIMI, QWEN = "src/kimi.py", "src/qwen.py"
DECORATED = """
@MegatronModelBridge.register_bridge(source="KimiForCausalLM", target=GPTModel)
class KimiBridge(MegatronModelBridge):
    pass
"""
IMPORTED = "@other\n@Base.register_bridge(source=KimiForCausalLM)\nclass KimiBridge: ...\n"
NAMED = 'NAME = "KimiForCausalLM"\n@Base.register_bridge(source=NAME)\nclass KimiBridge: ...\n'
CALLED = (
    'class KimiBridge: ...\nif known:\n    KimiBridge = Base.register_bridge(source="KimiForCausalLM")(KimiBridge)\n'
)
FOUND = Converter("KimiForCausalLM", "KimiBridge", KIMI)


@pytest.mark.parametrize("text", (DECORATED, IMPORTED, NAMED, CALLED))
def test_a_class_is_registered_by_a_decorator_or_a_call(text: str) -> None:
    assert list(registered(KIMI, text.encode())) == [FOUND]


@pytest.mark.parametrize(
    "text",
    (
        "class KimiBridge: ...",
        "class KimiBridge: ...  # register_bridge",
        "@Base.register_bridge\nclass KimiBridge: ...",
        "@Base.register_bridge(target=GPTModel)\nclass KimiBridge: ...",
        "@Base.register_bridge(source=names[0])\nclass KimiBridge: ...",
        "register_bridge(",
    ),
)
def test_a_file_without_a_registration_that_can_be_read_has_none(text: str) -> None:
    assert not list(registered(KIMI, text.encode()))


def family(name: str, path: str, architecture: str, published: str = "") -> str:
    more = f", published: {published}" if published else ""
    made = f"{{model_type: a, architecture: {architecture}{more}}}"
    return f"{{family: {name}, paths: [{path}], synthetic: {made}}}"


def findings(families: str, *converters: Converter) -> list[str]:
    found = lint_policy(policy(families=families), (*PATHS, KIMI, QWEN), SYMBOLS, WORDS, converters)
    return [line.removeprefix("policy.yml: ") for line in found if "synthetic model" in line or "converts" in line]


def test_the_model_of_a_family_is_one_that_its_own_class_converts() -> None:
    own = family("kimi", KIMI, "KimiForCausalLM")
    assert not findings(own, FOUND)
    # Where nothing is known of a tree, nothing is said of it.
    assert not findings(own)
    assert findings(own, Converter("QwenForCausalLM", "QwenBridge", QWEN)) == [
        "family kimi: its synthetic model is a KimiForCausalLM, for which no class of Bridge is registered"
    ]


def test_a_class_of_another_family_with_the_name_in_its_own_does_not_show_a_family() -> None:
    both = f"{family('kimi', KIMI, 'KimiVLForCausalLM')}, {{family: kimi_vl, paths: [{QWEN}]}}"
    assert findings(both, Converter("KimiVLForCausalLM", "KimiVLBridge", QWEN)) == [
        "family kimi: its synthetic model is a KimiVLForCausalLM, which KimiVLBridge of src/qwen.py converts, which "
        "belongs to family kimi_vl: its runs show none of its own files"
    ]
    assert findings(
        family("kimi", KIMI, "KimiVLForCausalLM"), Converter("KimiVLForCausalLM", "KimiVLBridge", "src/x.py")
    ) == [
        "family kimi: its synthetic model is a KimiVLForCausalLM, which KimiVLBridge of src/x.py converts: its runs "
        "show none of its own files"
    ]
    # Its file runs code of the family.
    assert not findings(both, Converter("KimiVLForCausalLM", "KimiVLBridge", QWEN, frozenset({KIMI})))


def test_a_class_among_the_files_of_a_family_that_no_model_of_it_is_for_asks_for_a_family_of_its_own() -> None:
    third = Converter("KimiK3ForCausalLM", "KimiK3Bridge", "src/b.py")
    own = family("kimi", "src/", "KimiForCausalLM")
    assert findings(own, FOUND, third) == [
        "family kimi: KimiK3Bridge of src/b.py converts a KimiK3ForCausalLM, which no model of the family is: give its "
        "files a family of their own"
    ]
    # What lies in the file of the model's own class runs in part, and a named checkpoint may be any of them.
    assert not findings(own, FOUND, Converter("KimiK3ForCausalLM", "KimiK3Bridge", KIMI))
    assert not findings(own, Converter("KimiForCausalLM", "KimiBridge", KIMI, frozenset({"src/b.py"})), third)
    named = own.replace("synthetic:", "checkpoint: {model_id: a/b, weights_gib: 1, features: []}, synthetic:")
    assert not findings(named, FOUND, third)


def test_a_published_name_is_the_one_that_counts() -> None:
    assert not findings(family("kimi", KIMI, "QwenForCausalLM", "{architecture: KimiForCausalLM}"), FOUND)
    outer = "{architecture: Text, outer: {architecture: KimiForCausalLM, model_type: llava}}"
    assert not findings(family("kimi", KIMI, "QwenForCausalLM", outer), FOUND)


def test_a_file_that_nests_too_deeply_has_no_registration() -> None:
    assert list(registered(KIMI, DECORATED.encode() + b"x = " + b"-" * 200_000 + b"1\n")) == []
