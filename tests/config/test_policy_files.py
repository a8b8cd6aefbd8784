"""Policy files and site profiles as people write them, and the sentences that their mistakes get."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from tests.fakes.places import ROOT
from verl_e2e.config import (
    POLICY_PATH,
    ConfigError,
    load_policy,
    load_profile,
    load_yaml,
    packaged_policy,
    packaged_profiles,
    policy_at,
)
from verl_e2e.config.maps import load_bands
from verl_e2e.config.profiles import checked_for_slots
from verl_e2e.config.settings import load_settings
from verl_e2e.core.model.change import Change
from verl_e2e.core.model.jobs import Network, SiteIsolation, SiteProfile
from verl_e2e.core.model.levels import Level
from verl_e2e.core.model.needs import SiteNeeds
from verl_e2e.core.plan.policy import PolicyFile

GOOD = """\
schema: 1
verl:
  commit: 9097cc4d4c9cf77e3fe88c34badd7d7549534e4a
image: {name: verlai/verl, tag: latest}
checkpoint: {model_id: Qwen/Qwen2.5-0.5B}
rules:
  - name: adapters
    paths: [src/peft/]
    levels: [0, 1]
    reason: verl trains adapters
"""


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_policy(text, "p.yml")
    return str(caught.value).splitlines()


def test_a_good_policy_has_its_defaults() -> None:
    policy = load_policy(GOOD, "p.yml")
    assert policy.source == "p.yml"
    assert policy.rules[0].levels == (Level.SMOKE, Level.SAVE_RESUME)
    assert policy.unknown.level is Level.SMOKE
    assert policy.require_bridge_checks
    assert str(policy.image) == "verlai/verl:latest"


def test_a_policy_that_extends_the_packaged_one_replaces_whole_keys() -> None:
    text = "schema: 1\nextends: default\nimage: {name: own/verl, tag: one}\nfamily_jobs: 2\n"
    policy, packaged = load_policy(text, "p.yml"), packaged_policy()
    assert (str(policy.image), policy.family_jobs) == ("own/verl:one", 2)
    assert (policy.rules, policy.families, policy.verl) == (packaged.rules, packaged.families, packaged.verl)
    assert policy.source == "p.yml"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("image: {name: own/verl}", "p.yml:3: image.tag: missing; this key is required"),
        ("family_job: 2", "p.yml:3: family_job: unknown key; did you mean 'family_jobs'?"),
        ("family_jobs: 0", "p.yml:3: family_jobs: 0 is not allowed; write at least 1"),
    ],
)
def test_mistakes_of_an_extending_policy_are_those_of_its_own_lines(line: str, shown: str) -> None:
    assert problems(f"schema: 1\nextends: default\n{line}\n") == [shown]


def test_what_no_longer_fits_the_packaged_policy_says_whose_key_it_is() -> None:
    found = problems("schema: 1\nextends: default\nfamilies: []\n")
    assert found
    assert all("the packaged policy's" in line and line.startswith("p.yml:1: ") for line in found), found


def test_only_the_packaged_policy_can_be_extended() -> None:
    assert problems("schema: 1\nextends: mine\n")[0].startswith('p.yml:2: extends: "mine" is not allowed')


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    (
        ("reason:", "raeson:", "p.yml:10: rules.0.raeson: unknown key; did you mean 'reason'?"),
        ("rules:", "rule:", "p.yml:6: rule: unknown key; did you mean 'rules'?"),
        ("levels: [0, 1]", "levels: [0, 9]", "p.yml:9: rules.0.levels.1: 9 is not a level; use 0 to 5"),
        ("levels: [0, 1]", "levels: [true]", "p.yml:9: rules.0.levels.0: true is not allowed; write a whole"),
        ("levels: [0, 1]", "levels: []", "p.yml:9: rules.0.levels: [] is not allowed"),
        ("levels: [0, 1]", "levels: x", 'p.yml:9: rules.0.levels: "x" is not allowed; write a list'),
        ("levels: [0, 1]", "levels: [0]\n    features: [moes]", "p.yml:10: rules.0.features.0: 'moes' is not a"),
        (
            "schema: 1",
            "schema: 1\nconsumers: {skyrl: show}",
            'p.yml:2: consumers.skyrl: "show" is not allowed; write a mapping with some of the keys level, pin, when',
        ),
        ("schema: 1", "schema: 1\nconsumers:", "p.yml:2: consumers: null is not allowed; write a mapping"),
        (
            "schema: 1",
            "schema: 1\nconsumers: {skryl: {level: show}}",
            "p.yml:2: consumers.skryl: 'skryl' is not a trainer whose jobs can be planned; did you mean 'skyrl'?",
        ),
        ("schema: 1", "schema: 1\nmost_gpus: a", 'p.yml:2: most_gpus: "a" is not allowed; write a whole number'),
        ("schema: 1", "schema: 1\nmost_gpus: 0", "p.yml:2: most_gpus: 0 is not allowed; write at least 1"),
        ("schema: 1", "schema: 1\ngate: {none: opn}", "p.yml:2: gate.none: \"opn\" is not allowed; use 'open',"),
        ("    reason: verl trains adapters\n", "", "p.yml:7: rules.0.reason: missing; this key is required"),
        ("verl trains adapters", "''", 'p.yml:10: rules.0.reason: "" is not allowed'),
        ("schema: 1", "schema: 2", "p.yml:1: schema: 2 is not allowed"),
        (
            "9097cc4d4c9cf77e3fe88c34badd7d7549534e4a",
            "9097cc4",
            'p.yml:3: verl.commit: "9097cc4" has the wrong form; ',
        ),
        (
            "9097cc4d4c9cf77e3fe88c34badd7d7549534e4a",
            "123",
            'p.yml:3: verl.commit: 123 is not text; put it in quotes: "123"',
        ),
        ("[src/peft/]", '["!"]', "p.yml:8: rules.0.paths.0: '!' is not a path pattern; write it as in a .gitignore"),
        ("[src/peft/]", '["#x"]', "p.yml:8: rules.0.paths.0: '#x' is not a path pattern"),
        ("[src/peft/]", '["/"]', "p.yml:8: rules.0.paths.0: '/' is not a path pattern"),
        ("schema: 1", "schema: 1\nschema: 1", "p.yml:2: schema: line 1 has this key already; keep one of them"),
        ("schema: 1", "schema: *one", "p.yml:1: not valid YAML: aliases are not allowed; repeat the value"),
        ("schema: 1", "schema: !!python/name:os.system x", "p.yml:1: schema: 'x' with tag"),
        ("schema: 1", "schema: [1", "p.yml:2: not valid YAML:"),
        ("image:", "? [a]\n: 1\nimage:", "p.yml:4: a key must be plain text; use a word"),
    ),
)
def test_a_mistake_is_one_sentence_with_file_line_key_value_and_fix(old: str, new: str, sentence: str) -> None:
    assert old in GOOD
    assert any(line.startswith(sentence) for line in problems(GOOD.replace(old, new))), problems(GOOD.replace(old, new))


FAMILY = """\
families:
  - family: one
    paths: [src/one/]
    features: [moe]
    synthetic: {model_type: one, architecture: OneForCausalLM}
not_restored:
  - {name: head, model: critic, parameters: [output_layer.weight], reason: never saved}
"""


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    (
        ("[output_layer.weight]", "[]", "p.yml:17: not_restored.0.parameters: [] is not allowed"),
        ("[output_layer.weight]", "['']", 'p.yml:17: not_restored.0.parameters.0: "" is not allowed'),
        ("name: head", "name: ''", 'p.yml:17: not_restored.0.name: "" is not allowed'),
        ("never saved", "''", 'p.yml:17: not_restored.0.reason: "" is not allowed'),
        (
            "OneForCausalLM}",
            "OneForCausalLM, without: [mtp]}",
            "p.yml:12: families.0: synthetic.without: the family's features: do not list mtp; remove it,",
        ),
        (
            "OneForCausalLM}",
            "OneForCausalLM, switched: {mtp: {layers: 1}}}",
            "p.yml:12: families.0: synthetic.switched: the family's features: do not list mtp; remove it,",
        ),
        (
            "OneForCausalLM}",
            "OneForCausalLM}\n    no_synthetic: none",
            "p.yml:12: families.0: synthetic: and no_synthetic: are both given; keep one of them",
        ),
        (
            "OneForCausalLM}",
            "OneForCausalLM, fields: {a: {b: 1}}}",
            'p.yml:15: families.0.synthetic.fields.a: {"b": 1} is not allowed; '
            "use one of: true or false, a whole number, a number, text, a list",
        ),
    ),
)
def test_a_mistake_in_a_family_or_a_known_defect_is_one_line(old: str, new: str, sentence: str) -> None:
    load_policy(GOOD + FAMILY, "p.yml")
    assert old in FAMILY
    (line,) = problems(GOOD + FAMILY.replace(old, new))
    assert line.startswith(sentence)


def test_every_mistake_is_told_not_only_the_first() -> None:
    assert len(problems(GOOD.replace("reason:", "raeson:").replace("[0, 1]", "[7]"))) == 3


def test_variants_are_checked_with_a_suggestion() -> None:
    text = GOOD + "    variants: [2-expart]\n"
    assert problems(text) == ["p.yml:11: rules.0.variants.0: '2-expart' is not a variant; did you mean '2-expert'?"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    (
        ("", "p.yml: the file is empty; write these keys: schema, verl"),
        ("- a\n", "p.yml:1: the file is not a mapping of keys to values; write these keys: schema, verl"),
        (b"a: \xff\n", "p.yml:1: a byte that is not UTF-8; save the file as UTF-8"),
        ("a: 1\nb: \x07\n", "p.yml:2: not valid YAML:"),
        ("#" * (1 << 20) + "\n", "p.yml: 1048577 bytes are too many; the limit is 1048576"),
        ("a: " + "[" * 5000 + "]" * 5000, "p.yml:1: nested too deeply; use fewer levels"),
        ("\n".join(f"{' ' * depth}a:" for depth in range(900)), "p.yml:"),
        ("a: 1\nb: &b [1]\nc: *b\n", "p.yml:3: not valid YAML: aliases are not allowed; repeat the value"),
        ('a: 1\nb: "\\U0011ffff"\n', "p.yml:2: not valid YAML: the number of an escape"),
        ('a: 1\nb: "\\Uffffffff"\n', "p.yml:2: not valid YAML: the number of an escape"),
        (f"%YAML 1.{'9' * 5000}\n---\na: 1\n", "p.yml:1: not valid YAML: the number of an escape or a directive"),
    ),
)
def test_what_is_no_settings_file_at_all(text: str | bytes, sentence: str) -> None:
    (line,) = problems(text)
    assert line.startswith(sentence)


ODD_VALUES = {
    "base 60": ":".join(["1"] * 50_000),
    "base 60 with a fraction": ":".join(["1"] * 50_000) + ".5",
    "a short one of base 60": "1:30",
    "many digits": "9" * 5_000,
    "hexadecimal": "0x" + "f" * 5_000,
    "binary": "0b" + "1" * 20_000,
    "octal": "0" + "7" * 6_000,
    "infinite": ".inf",
    "no number": ".nan",
    "too large": "1.0e+400",
    "no date": "2001-99-99",
    "half a pair": '"\\ud800"',
    "tag of Python": "!!python/object/apply:os.system [x]",
    "tag of Python on a mapping": "!!python/name:os.system {}",
    "tag of a number": '!!int ""',
    "tag of a fraction": '!!float ""',
    "tag of a bool": '!!bool "x"',
    "tag of a date": '!!timestamp "x"',
    "tag of bytes": '!!binary "x"',
    "tag of a set": "!!set {a, b}",
    "tag of a list": "!!omap [a: 1]",
    "tag of one's own": "!x 1",
    "default": "=",
}


@pytest.mark.parametrize("value", ODD_VALUES.values(), ids=ODD_VALUES.keys())
@pytest.mark.parametrize("load", [load_policy, load_bands], ids=["policy", "bands"])
def test_a_value_that_is_none_is_named_with_its_line_and_key(load: Callable[..., object], value: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(f"schema: 1\nverl:\n  commit: {value}\n", "p.yml")
    (line,) = str(raised.value).splitlines()
    assert re.fullmatch(
        r"p\.yml:3: verl\.commit: .{1,60} with tag '\S{1,60}' is not a plain value; put it in quotes", line
    )
    assert line.isascii()


@pytest.mark.parametrize("key", ["? [a]\n", "? {a: 1}\n", '"\\ud800"'], ids=["list", "mapping", "half a pair"])
def test_a_key_that_is_no_text_is_refused(key: str) -> None:
    assert problems(f"schema: 1\n{key}: 1\n") == ["p.yml:2: a key must be plain text; use a word"]


def test_a_file_in_which_everything_is_wrong_is_not_quoted_whole() -> None:
    lines = problems(GOOD.replace("rules:\n", "rules:\n" + "  - 1\n" * 5_000))
    assert (len(lines), lines[-1]) == (101, "and 4900 more")


@pytest.mark.parametrize("name", ["VERL_E2E_VERL", "VERL_E2E_SLURM_FOLDER", "VERL_E2E_RAY_FOLDER"])
def test_a_setting_that_no_system_takes_for_a_path_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load_settings({name: "/" + "a" * 5_000})


def test_lines_are_found_for_keys_and_the_things_around_them() -> None:
    document = load_yaml("a:\n  - b: 1\n    c: 2\n", "x.yml")
    assert document.line_of(("a", 0, "c")) == 3
    assert document.line_of(("a", 0, "missing")) == 2
    assert document.line_of(("nowhere",)) == 1


@pytest.mark.parametrize("file", sorted(ROOT.glob("bot/verl_e2e/p*/*.yml")), ids=lambda file: file.stem)
def test_a_packaged_file_reads_the_same_by_the_fast_loader(file: Path) -> None:
    text = file.read_bytes()
    assert load_yaml(text, file.name, packaged=True) == load_yaml(text, file.name)


def test_the_fast_loader_refuses_aliases_too() -> None:
    with pytest.raises(ConfigError, match=r"x.yml:2: not valid YAML: aliases are not allowed"):
        load_yaml("a: &x 1\nb: *x\n", "x.yml", packaged=True)


class Shelf:
    """A change source with files by commit and path."""

    def __init__(self, files: dict[tuple[str, str], bytes]) -> None:
        self.files = files

    def change(self, base: str, head: str) -> Change:
        return Change(base, head, base, ())

    def read_blob(self, revision: str, path: str) -> bytes | None:
        return self.files.get((revision, path))


def test_the_policy_is_read_from_the_base_and_the_packaged_one_serves_where_there_is_none() -> None:
    base, head = "a" * 40, "b" * 40
    shelf = Shelf({(base, POLICY_PATH): GOOD.encode(), (head, POLICY_PATH): b"nonsense"})
    assert policy_at(shelf, base).source == f"aaaaaaaaaaaa:{POLICY_PATH}"
    assert policy_at(Shelf({}), base) == packaged_policy()


def test_the_packaged_policy_pins_verl_and_its_patch_does_what_it_declares() -> None:
    policy = packaged_policy()
    assert policy.verl.commit == "9097cc4d4c9cf77e3fe88c34badd7d7549534e4a"
    (patch,) = policy.patches
    assert patch.file == "verl/utils/megatron_utils.py"
    assert [substitution.new.replace("ParallelV1", "Parallel") for substitution in patch.substitutions] == [
        substitution.old for substitution in patch.substitutions
    ]
    assert patch.before != patch.after


def test_packaged_profiles_load_with_their_values_alone() -> None:
    assert packaged_profiles() == ("default", "hopper-offline")
    site = load_profile("hopper-offline", {"kit": "/data/kit"})
    assert site.name == "hopper-offline"
    assert site.python_path == ("/data/kit/site",)
    assert load_profile("default", {}, {"home": "/home/me"}).name == "default"


def test_the_users_value_wins_over_a_default_and_needs_not_be_set_twice() -> None:
    site = load_profile("default", {"home": "/mine"}, {"home": "/home/me", "unused": "x"})
    assert site.data is not None
    assert site.data.train_files == "/mine/data/gsm8k/train.parquet"


def profile_problems(name: str, **values: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_profile(name, values)
    return str(caught.value)


def test_a_profile_mistake_names_file_line_key_and_fix(tmp_path: Path) -> None:
    assert "packaged hopper-offline.yml:" in profile_problems("hopper-offline")
    assert "python_path.0: ${kit} has no value; add --set kit=..." in profile_problems("hopper-offline")
    assert "did you mean 'kit'?" in profile_problems("hopper-offline", kit="/k", kitt="/k")
    assert "did you mean 'hopper-offline'?" in profile_problems("hoper-offline")
    assert "cannot be read: No such file" in profile_problems("./none.yml")
    mine = tmp_path / "mine.yml"
    mine.write_text("name: mine\nwrapper:\n  MAX_PROMPT_LENGTH: 256\nray_cpu: 4\nprocess: {A: '$${x}', B: '${y}'}\n")
    assert profile_problems(str(mine)) == f"{mine}:5: process.B: ${{y}} has no value; add --set y=..."
    assert profile_problems(str(mine), y="1").splitlines() == [
        f'{mine}:3: wrapper.MAX_PROMPT_LENGTH: 256 is not text; put it in quotes: "256"',
        f"{mine}:4: ray_cpu: unknown key; did you mean 'ray_cpus'?",
    ]


def documented(page: str, first_key: str) -> dict[str, object]:
    """The YAML block of a page of docs/ that begins with this key."""
    blocks = (ROOT / "docs" / page).read_text().split("```yaml\n")[1:]
    block = next(block.split("```")[0] for block in blocks if block.startswith(first_key))
    value = load_yaml(block, page).value
    assert isinstance(value, dict)
    return value


def keys_shown(schema: dict[str, Any], value: object, kinds: dict[str, Any]) -> set[str]:
    """The keys that a documented value shows, at any depth, each below the title of what it is a key of."""
    found: set[str] = set()
    for choice in (schema, *schema.get("anyOf", ())):
        kind = kinds[choice["$ref"].rpartition("/")[2]] if "$ref" in choice else choice
        if "items" in kind and isinstance(value, list):
            found.update(*(keys_shown(kind["items"], item, kinds) for item in value))
        of_any = kind.get("additionalProperties")
        if isinstance(of_any, dict) and isinstance(value, dict):
            found.update(*(keys_shown(of_any, item, kinds) for item in value.values()))
        if "properties" in kind and isinstance(value, dict):
            inner = [(key, about) for key, about in kind["properties"].items() if key in value]
            found.update(f"{kind['title']}.{key}" for key, _ in inner)
            found.update(*(keys_shown(about, value[key], kinds) for key, about in inner))
    return found


@pytest.mark.parametrize("model", (PolicyFile, SiteProfile))
def test_every_key_is_described_at_its_field_and_shown_in_the_documentation(model: type[BaseModel]) -> None:
    schema = model.model_json_schema()
    kinds = {schema["title"]: schema, **schema["$defs"]}
    keys = {(f"{name}.{key}", about.get("description")) for name, kind in kinds.items() for key, about in _keys(kind)}
    assert [key for key, description in keys if not description] == []
    documents = ("schema", "patches", "not_restored", "defects")
    pages = (*(("policy.md", name) for name in documents), ("site-profiles.md", "name"))
    shown = set().union(*(keys_shown(schema, documented(*page), kinds) for page in pages))
    # One capability serves as the example; the site's documents are described as documents of the job too.
    # `policy schema` describes the keys of a recipe of a model.
    recipes = ("ModelSizes.", "Outer.", "Published.", "Synthetic.", "SyntheticModel.", "WrittenTensor.")
    free = ("Access.", "Checkpoint.", "Data.", "DeselectedTest.", *recipes)
    assert {key for key, _ in keys if not key.startswith(free)} - shown == set()


def _keys(kind: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list(kind.get("properties", {}).items())


def test_what_the_page_marks_as_a_default_is_the_default() -> None:
    """In the example of the policy `# =` follows each value that a file may leave out with the same effect."""
    schema = PolicyFile.model_json_schema()
    example = (ROOT / "docs" / "policy.md").read_text().split("```yaml\n")[1].split("```")[0]
    above: list[tuple[int, str]] = []
    marked = wrong = 0
    for indent, item, key, rest in re.findall(r'(?m)^( *)(- )?"?(\w+)"?:(.*)$', example):
        depth = len(indent) + len(item)
        above = [*(entry for entry in above if entry[0] < depth), (depth, key)]
        if not re.search(r"# =( |$)", rest):
            continue
        kind = schema
        for _, name in above[:-1]:
            kind = _kind(schema, kind)
            kind = kind["properties"].get(name) if name in kind.get("properties", {}) else kind["additionalProperties"]
        marked += 1
        default = _kind(schema, kind)["properties"][key].get("default", {})
        wrong += default != yaml.safe_load(f"value:{rest}")["value"]
    assert (marked > 40, wrong) == (True, 0)


def _kind(schema: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """The document that a key of the schema holds, or that each item of its list is."""
    while "properties" not in about and "additionalProperties" not in about:
        if "$ref" in about:
            about = schema["$defs"][about["$ref"].rpartition("/")[2]]
        elif "anyOf" in about:
            about = next(kind for kind in about["anyOf"] if kind.get("type") != "null")
        else:
            about = about["items"]
    return about


def test_the_documented_site_shows_the_defaults() -> None:
    site = documented("site-profiles.md", "name")
    # These keys are in the document of a job only where they are set.
    usual = SiteNeeds().model_dump(mode="json")
    unset: dict[str, Any] = {"needs": usual, "gpus_per_node": None, "cannot_run": {}}
    unset |= {"kernel_caches": None, "ray_cpus": None, "rehearsal_python": ""}
    assert site | {"name": "mine"} == SiteProfile(name="mine").model_dump(mode="json") | unset


def test_no_documented_key_is_unknown() -> None:
    text = (ROOT / "docs" / "policy.md").read_text().split("```yaml\n")[1].split("```")[0]
    assert [line for line in problems(text) if "unknown key" in line] == []


def test_a_doubled_dollar_stays_one(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yml"
    mine.write_text("name: mine\nprocess: {A: '$${x}/$x', B: '${y}'}\n")
    assert load_profile(str(mine), {"y": "${z}"}).process == {"A": "${x}/$x", "B": "${z}"}


def test_several_runs_on_a_host_need_a_network_of_their_own() -> None:
    site = load_profile("default", {}, {"home": "/home/me"})
    assert checked_for_slots(site, 1) is site
    with pytest.raises(ConfigError, match=r"VERL_E2E_LOCAL_SLOTS: .* default .*isolation.network: none"):
        checked_for_slots(site, 2)
    apart = site.model_copy(update={"isolation": SiteIsolation(network=Network.NONE)})
    assert checked_for_slots(apart, 4) is apart
