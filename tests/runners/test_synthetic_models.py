"""How the runner makes a synthetic model: the rules, the failure, and for each family the model itself."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runners.world import World
from verl_e2e.config.policy import packaged_policy
from verl_e2e.core.model.jobs import Checkpoint, Job, SiteIsolation
from verl_e2e.core.model.record import Check
from verl_e2e.core.model.synthetic import Synthetic
from verl_e2e.core.plan.build import sized
from verl_e2e.core.plan.policy import Family
from verl_e2e_runner.by_hand import dry_run, prepare_by_hand
from verl_e2e_runner.launch.verl import wrapper_map
from verl_e2e_runner.models import HOST_PYTHON, make_model, model_there
from verl_e2e_runner.preflight.inputs import check_model
from verl_e2e_runner.preflight.preflight import prepare
from verl_e2e_runner.process.cage import Cage, Tools, hub_cache, model_folder
from verl_e2e_runner.trees import Trees

MODELS = tuple(family for family in packaged_policy().families if family.synthetic)
SIZES = {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 4, "head_size": 64, "vocabulary": 2048, "window": 128}
STAND_IN = """
import json, pathlib, sys
if sys.argv[1].endswith("verl_e2e_make_model.py"):
    question = json.load(sys.stdin)
    folder = pathlib.Path(question["folder"])
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "recipe.json").write_text(json.dumps(question["recipe"]))
    print("a library's own words")
    print(json.dumps({"parameters": 17847296, "missing_kinds": ["full"], "seconds": 3.1}))
"""


MOVED = ("HOME", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR")


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, HOST_PYTHON / f"verl_e2e_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RULES, PUBLISHED, PUT = script("small_config"), script("published"), script("make_model")


def recipe_of(family: Family) -> Synthetic:
    assert family.checkpoint is not None
    assert family.synthetic is not None
    made = sized(Checkpoint(model_id="a", synthetic=Synthetic(**dict(family.synthetic.recipe), family=family.name)), {})
    assert made.synthetic is not None
    return made.synthetic


@pytest.mark.parametrize(
    ("own", "made"),
    [
        (
            {"num_hidden_layers": 48, "hidden_size": 2048, "use_cache": True, "sliding_window": None, "eps": 1e-6},
            {"num_hidden_layers": 4, "hidden_size": 512},
        ),
        # A tower is as wide at its end as the text model.
        (
            {
                "text_config": {"num_attention_heads": 32, "vocab_size": 151936},
                "vision_config": {"depth": 32, "hidden_size": 1280, "out_hidden_size": 3584, "patch_size": 14},
            },
            {
                "text_config": {"num_attention_heads": 8, "vocab_size": 2048},
                "vision_config": {"depth": 2, "hidden_size": 256, "out_hidden_size": 512},
            },
        ),
        # Latent attention has no groups.
        (
            {"kv_lora_rank": 512, "num_attention_heads": 128, "num_key_value_heads": 128},
            {"num_attention_heads": 8, "num_key_value_heads": 8},
        ),
    ],
)
def test_fields_that_are_sizes_get_them_and_all_others_stay(own: Any, made: Any) -> None:
    assert RULES.small(own, SIZES) == made


@pytest.mark.parametrize(
    ("own", "made"),
    (
        ({"rope_theta": 10000.0, "rope_type": "default"}, {"rope_theta": 500000.0, "rope_type": "default"}),
        ({"rope_theta": 1000000.0}, None),
        (None, None),
        (
            {"sliding": {"rope_theta": 10000.0}, "full": {"rope_theta": 1000000.0}},
            {"sliding": {"rope_theta": 500000.0}, "full": {"rope_theta": 1000000.0}},
        ),
        ({"full": {"rope_theta": 1000000.0}}, None),
    ),
)
def test_the_usual_base_of_rope_gives_way_to_one_of_its_own(own: Any, made: Any) -> None:
    assert RULES.with_rope_theta(own) == made


def test_a_dot_leads_into_an_inner_field_and_the_text_models_own_go_there() -> None:
    own = {"tie_word_embeddings": False, "text_config": {"vocab_size": 1, "rope_theta": 1.0}}
    fields = {"tie_word_embeddings": True, "rope_theta": 2.0, "text_config.vocab_size": 3}
    assert RULES.merged({}, RULES.placed(fields, own)) == {
        "tie_word_embeddings": True,
        "text_config": {"rope_theta": 2.0, "vocab_size": 3},
    }
    assert RULES.placed({"new": 1}, {"vocab_size": 1}) == {"new": 1}


def test_a_field_with_a_name_that_no_rule_knows_gets_the_size_that_the_recipe_says() -> None:
    recipe = {"fields": {"route_norm": True, "head_dim": 64}, "wanted": {"head_dim": 128}, "sizes": SIZES}
    assert RULES.stated(recipe) == {"route_norm": True, "head_dim": 128}
    sized_fields = {"expert_hidden_dim": "hidden", "inner.heads": "heads"}
    assert RULES.stated({**recipe, "sized_fields": sized_fields}) == {
        "expert_hidden_dim": 512,
        "inner.heads": 8,
        "route_norm": True,
        "head_dim": 128,
    }


def test_a_kind_of_layer_that_only_the_usual_size_has_is_named() -> None:
    assert RULES.missing_kinds(["sliding"] * 4, ["sliding"] * 5 + ["full"]) == ["full"]
    assert RULES.missing_kinds(None, None) == []


def test_the_tensors_of_a_published_family_have_its_names() -> None:
    published = {
        "renamed": {
            "self_attn": "attention",
            "model.embed_tokens": "model.words",
            "attention.o_proj": "attention.dense",
        },
        "joined": {"qkv.weight": ["q_proj.weight", "k_proj.weight"]},
    }
    layer = "model.layers.0.self_attn"
    tensors = {
        "model.embed_tokens.weight": "E",
        f"{layer}.k_proj.weight": "K",
        f"{layer}.q_proj.weight": "Q",
        f"{layer}.o_proj.weight": "O",
        "model.layers.0.my_self_attn.weight": "other",
    }
    assert PUBLISHED.with_names(tensors, published, "".join) == {
        "model.words.weight": "E",
        "model.layers.0.attention.qkv.weight": "QK",
        "model.layers.0.attention.dense.weight": "O",
        "model.layers.0.my_self_attn.weight": "other",
    }


def test_the_configuration_of_a_published_family_has_its_fields_beside_those_of_the_class() -> None:
    published = {
        "architecture": "BailingMoeV2ForCausalLM",
        "model_type": None,
        "aliases": {"num_experts": "n_routed_experts", "rope_theta": "rope_parameters.rope_theta"},
        "patterns": {"layer_types": ["full", "window", "window"]},
    }
    config = {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "n_routed_experts": 8,
        "num_hidden_layers": 4,
        "rope_parameters": {"rope_theta": 5.0},
    }
    own = {"num_experts": 8, "rope_theta": 5.0, "layer_types": ["full", "window", "window", "full"]}
    made = {**config, **own, "architectures": ["BailingMoeV2ForCausalLM"]}
    assert PUBLISHED.with_aliases(config, published) == made
    plain = {**published, "model_type": "align_text_model"}
    assert PUBLISHED.with_aliases(config, plain) == {**made, "model_type": "align_text_model"}


def test_numbered_tensors_of_a_holder_become_one_in_the_order_of_their_numbers() -> None:
    layer = "model.layers.0.moe"
    tensors = {f"{layer}.{number}.up.weight": str(number) for number in (10, 2, 0)}
    kept = {f"{layer}.gate.weight": "G", "model.layers.1.up.weight": "U"}
    assert PUBLISHED.stacked({**tensors, **kept}, ["moe"], " ".join) == {**kept, f"{layer}.up.weight": "0 2 10"}
    assert PUBLISHED.stacked(tensors, [], " ".join) == tensors


def test_a_gate_for_each_head_lies_next_to_the_queries() -> None:
    class Shaped:
        shape = (64, 32)

        def new_empty(self, *shape: int) -> tuple[int, ...]:
            return shape

    tensors = {f"model.layers.{layer}.self_attn.{end}.weight": Shaped() for layer in (0, 1) for end in ("q_proj", "up")}
    assert PUBLISHED.head_gates(tensors, "g_proj", 8) == {
        f"model.layers.{layer}.self_attn.g_proj.weight": (8, 32) for layer in (0, 1)
    }
    assert PUBLISHED.head_gates(tensors, None, 8) == {}


def test_tensors_that_a_family_does_not_have_are_left_out_by_whole_parts_of_their_names() -> None:
    tensors = {"thinker.visual.proj.weight": 1, "thinker.my.visual.weight": 2, "thinker.visuals.weight": 3}
    assert PUBLISHED.kept(tensors, ["thinker.visual"]) == {"thinker.my.visual.weight": 2, "thinker.visuals.weight": 3}
    assert PUBLISHED.kept(tensors, []) == tensors


def test_written_tensors_have_the_shapes_that_the_configuration_says() -> None:
    text = {"num_hidden_layers": 3, "hidden_size": 64, "kv": 4, "width": 16, "window": [0, 1, 1]}
    config = {"vision_config": {"layers": 2}, "text_config": text}
    everywhere = {"each": "num_hidden_layers", "among": None, "around": 0.0}
    asked = [
        {**everywhere, "names": ["layers.*.v"], "shape": ["kv*width", "hidden_size"]},
        {**everywhere, "names": ["layers.*.v"], "shape": ["2*kv*width", 8], "among": "window"},
        {**everywhere, "names": ["blocks.*.a", "blocks.*.b"], "shape": [3], "each": "vision_config.layers"},
        {**everywhere, "names": ["norm"], "shape": ["hidden_size"], "around": 1.0},
    ]
    assert PUBLISHED.written(config, asked) == {
        "layers.0.v": ([64, 64], 0.0),
        "layers.1.v": ([128, 8], 0.0),
        "layers.2.v": ([128, 8], 0.0),
        **{f"blocks.{number}.{end}": ([3], 0.0) for number in (0, 1) for end in "ab"},
        "norm": ([64], 1.0),
    }
    # A model of text alone.
    assert PUBLISHED.written(text, asked[:1])["layers.0.v"] == ([64, 64], 0.0)


def test_a_text_model_lies_inside_the_configuration_of_a_family_that_sees_pictures() -> None:
    config = {"architectures": ["Text"], "hidden_size": 64, "image_token_id": 5, "tie_word_embeddings": False}
    outer = {
        "architecture": "Whole",
        "model_type": "llava",
        "fields": {"bias": False, "vision_config.width": 128, "vision_config.layers": 2},
    }
    assert PUBLISHED.with_outer(config, outer, {"image_token_id": "<im>"}) == {
        "architectures": ["Whole"],
        "model_type": "llava",
        "image_token_id": 5,
        "tie_word_embeddings": False,
        "bias": False,
        "vision_config": {"width": 128, "layers": 2},
        "text_config": {"architectures": ["Text"], "hidden_size": 64, "tie_word_embeddings": False},
    }
    assert PUBLISHED.with_outer(config, None, {"image_token_id": "<im>"}) is config


@pytest.mark.parametrize(
    ("style", "place", "norm", "joint"),
    [
        ("appended", "model.layers.2.", "shared_head.norm", "eh_proj"),
        ("appended_final", "model.layers.2.", "final_layernorm", "eh_proj"),
        ("mimo", "model.mtp_layers.0.", "final_layernorm", "input_proj"),
    ],
)
def test_an_mtp_layer_has_what_the_last_layer_has_and_its_own(style: str, place: str, norm: str, joint: str) -> None:
    names = ["model.norm.weight"]
    names += [f"model.layers.{layer}.{end}.weight" for layer in (0, 1) for end in ("input_layernorm", "mlp.up_proj")]
    made = PUBLISHED.mtp_layers(names, style, 1, 2)
    assert made[f"{place}mlp.up_proj.weight"] == ("model.layers.1.mlp.up_proj.weight", 1)
    assert made[f"{place}{norm}.weight"] == ("model.layers.1.input_layernorm.weight", 1)
    assert made[f"{place}{joint}.weight"] == ("model.layers.1.input_layernorm.weight", 2)
    assert len(made) == 6
    assert len(PUBLISHED.mtp_layers(names, style, 2, 2)) == 12
    assert PUBLISHED.mtp_layers(names, None, 0, 2) == {}


def test_an_mtp_layer_without_experts_is_like_the_first_one_and_lies_where_the_family_has_it() -> None:
    start = "model.language_model.layers."
    names = [f"{start}{layer}.{end}.weight" for layer in (0, 1) for end in ("post_attention_layernorm", f"mlp.{layer}")]
    made = PUBLISHED.mtp_layers(names, "apart_dense", 1, 2)
    norm = f"{start}0.post_attention_layernorm.weight"
    assert made == {
        "mtp.layers.0.post_attention_layernorm.weight": (norm, 1),
        "mtp.layers.0.mlp.0.weight": (f"{start}0.mlp.0.weight", 1),
        "mtp.pre_fc_norm_embedding.weight": (norm, 1),
        "mtp.pre_fc_norm_hidden.weight": (norm, 1),
        "mtp.norm.weight": (norm, 1),
        "mtp.fc.weight": (norm, 2),
    }
    names = [f"model.layers.{layer}.input_layernorm.weight" for layer in (0, 1)]
    made = PUBLISHED.mtp_layers(names, "appended_dense", 1, 2)
    assert made["model.layers.2.transformer.shared_head.norm.weight"] == (names[0], 1)


def test_an_mtp_layer_of_a_hybrid_has_a_layer_of_attention_and_one_of_experts() -> None:
    names = [f"backbone.layers.{layer}.{end}.weight" for layer in range(4) for end in ("norm", f"mixer.{layer}")]
    made = PUBLISHED.mtp_layers(names, "hybrid", 2, 4)
    assert made["mtp.layers.2.mixer.2.weight"] == ("backbone.layers.2.mixer.2.weight", 1)
    assert made["mtp.layers.3.mixer.1.weight"] == ("backbone.layers.1.mixer.1.weight", 1)
    assert made["mtp.layers.2.eh_proj.weight"] == ("backbone.layers.2.norm.weight", 2)
    assert {name for name in made if "final" in name} == {f"mtp.layers.{at}.final_layernorm.weight" for at in (1, 3)}


def test_copies_of_the_embedding_in_an_mtp_layer_are_equal_to_it() -> None:
    names = ["model.layers.0.input_layernorm.weight"]
    made = PUBLISHED.mtp_layers(names, "appended_shared", 1, 1)
    assert made["model.layers.1.embed_tokens.weight"] == ("model.embed_tokens.weight", 0)
    assert made["model.layers.1.shared_head.head.weight"] == ("lm_head.weight", 0)


RECIPE = recipe_of(next(family for family in MODELS if family.name == "qwen3_moe"))


def with_recipe(world: World, python: str) -> Job:
    checkpoint = Checkpoint(model_id="synthetic/qwen3_moe", synthetic=RECIPE)
    return world.job(site=world.site(python=python), checkpoint=checkpoint)


def stand_in(folder: Path, more: str = "") -> str:
    """A Python of our own making, which answers as the script does, and does something besides."""
    program = folder / "python"
    program.write_text(f"#!{sys.executable}\n{STAND_IN}{more}")
    program.chmod(0o755)
    return str(program)


def test_a_model_is_made_among_the_downloaded_ones_before_the_run(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    job, variables = with_recipe(world, stand_in(tmp_path)), {**base, "HF_HOME": str(tmp_path / "hf")}
    assert model_there(RECIPE, variables) is None
    (before,) = check_model(job, tmp_path, variables, prepared=False)
    assert before.ok
    (absent,) = check_model(job, tmp_path, variables, prepared=True)
    assert not absent.ok
    *_, finding = prepare(job, shared_trees, variables, base, tmp_path)
    assert finding.ok, finding
    assert finding.summary.startswith(
        "synthetic qwen3_moe: 4 layers, 8 experts, random weights, without layers of the kinds full,"
        " 17.8 million parameters, made in 3.1 s: "
    )
    folder = model_there(RECIPE, variables)
    assert folder is not None
    assert folder.is_relative_to(hub_cache(variables))
    assert json.loads((folder / "recipe.json").read_text()) == RECIPE.model_dump(mode="json")
    assert all(found.ok for found in check_model(job, tmp_path, variables, prepared=True))


def test_a_reward_model_is_made_beside_the_model_where_the_wrapper_is_told(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    scoring = packaged_policy().reward_model
    assert scoring is not None
    job = with_recipe(world, stand_in(tmp_path)).model_copy(update={"reward_model": sized(scoring, {})})
    variables = {**base, "HF_HOME": str(tmp_path / "hf")}
    found = prepare(job, shared_trees, variables, base, tmp_path)
    assert [finding.summary.partition(":")[0] for finding in found] == ["synthetic qwen3_moe", "synthetic reward_qwen2"]
    place = Path(wrapper_map(job, shared_trees, base=variables)["RM_MODEL_PATH"])
    assert (place / "config.json").is_file()


@pytest.mark.usefixtures("own_umask")
def test_the_user_of_the_cage_can_read_a_model_whose_weights_were_written_for_one_user(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    program = stand_in(tmp_path, "    (folder / 'config.json').chmod(0o600)\n")
    job, variables = with_recipe(world, program), {**base, "HF_HOME": str(tmp_path / "hf")}
    *_, finding = prepare(job, shared_trees, variables, base, tmp_path)
    assert finding.ok, finding
    folder = model_folder(RECIPE, variables)
    made = [path for path in (folder, *folder.parents, *folder.iterdir()) if path.is_relative_to(tmp_path / "hf")]
    assert [path.name for path in made if path.stat().st_mode & 0o044 != 0o044] == []
    assert [path.name for path in made if path.is_dir() and path.stat().st_mode & 0o011 != 0o011] == []


def test_what_is_made_before_the_run_leaves_nothing_in_the_home_and_caches_of_the_cage(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    """PyTorch makes the folder of Inductor's cache when it is imported; the cage's user could not write into it."""
    leave = f"    import os\n    [pathlib.Path(os.environ[name], 'left').mkdir(parents=True) for name in {MOVED}]\n"
    program = stand_in(tmp_path, leave)
    scratch = tmp_path / "suspect"
    cage = Cage(Tools("/usr/bin/bwrap"), scratch, SiteIsolation(), recorder_uid=0)
    own = {name: str(tmp_path / "own" / name) for name in MOVED}
    base = {**base, **own}
    variables = {**base, **cage.variables({**base, "TORCHINDUCTOR_CACHE_DIR": "named"})}
    *_, finding = prepare(with_recipe(world, program), replace(shared_trees, cage=cage), variables, base, tmp_path)
    assert finding.ok, finding
    assert not scratch.exists()
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == sorted(own)


@pytest.fixture
def own_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_the_commands_by_hand_name_the_model_that_is_made_for_them(
    world: World, base: dict[str, str], tmp_path: Path
) -> None:
    job, variables = with_recipe(world, stand_in(tmp_path)), {**base, "HF_HOME": str(tmp_path / "hf")}
    made = prepare_by_hand(job, tmp_path / "out", environ=variables, work=None)
    assert all(finding.ok for finding in made), made
    folder = model_there(RECIPE, variables)
    assert folder is not None
    script = dry_run(job, tmp_path / "out", environ=variables, work=None, prepare=("true",))
    assert f"export MODEL_PATH={folder}\n" in script


def test_a_python_without_the_libraries_blocks_the_run_before_it_starts(
    world: World, shared_trees: Trees, base: dict[str, str], tmp_path: Path
) -> None:
    variables = {**base, "HF_HOME": str(tmp_path / "hf")}
    job = with_recipe(world, sys.executable)
    *_, finding = prepare(job, shared_trees, variables, base, tmp_path)
    assert (finding.ok, finding.blocking, finding.check) == (False, True, Check.MODEL)
    assert "the model synthetic/qwen3_moe could not be made: ModuleNotFoundError: No module named " in finding.summary
    assert [*hub_cache(variables).rglob("*.json")] == []


def test_a_folder_takes_its_place_whole_and_only_where_another_one_lies(tmp_path: Path) -> None:
    folder = tmp_path / "models/one"

    def put(text: str) -> int:
        with PUT.turn(folder), PUT.new_folder(folder) as unfinished:
            (unfinished / "inner").mkdir()
            (unfinished / "inner/config.json").write_text(text)
        assert (folder / "inner/config.json").read_text() == text
        return folder.stat().st_ino

    first = put("a")
    assert put("a") == first, "a run that reads it keeps it"
    assert put("b") != first
    with suppress(RuntimeError), PUT.new_folder(folder) as unfinished:
        (unfinished / "config.json").write_text("half")
        raise RuntimeError("the disk is full")
    assert [path.name for path in folder.parent.iterdir() if not path.name.endswith(".lock")] == ["one"]
    assert (folder / "inner/config.json").read_text() == "b"


def test_another_recipe_is_another_folder(base: dict[str, str]) -> None:
    recipes = [recipe_of(family) for family in MODELS]
    again = [recipe.model_copy(update={"seed": 1}) for recipe in recipes]
    assert len({model_folder(recipe, base) for recipe in (*recipes, *again)}) == 2 * len(recipes)


def constant_tensors(python: str, folder: Path) -> list[str]:
    """The tensors whose numbers are all zero or all one: a program that loses one of them has the same model."""
    text = (
        "import glob, sys; from safetensors.torch import load_file\n"
        "for file in glob.glob(sys.argv[1] + '/*.safetensors'):\n"
        "    [print(name) for name, all in load_file(file).items() if (all == 0).all() or (all == 1).all()]\n"
    )
    done = subprocess.run((python, "-c", text, str(folder)), capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.models
@pytest.mark.parametrize("family", MODELS, ids=lambda family: family.name)
def test_the_model_of_a_family_is_made_and_made_the_same_again(family: Family, tmp_path: Path) -> None:
    python, recipe = os.environ["MODELS_PYTHON"], recipe_of(family)
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    records = []
    for name in ("one", "two"):
        folder = tmp_path / name
        made = make_model(recipe, folder, python=python, variables=variables, work=tmp_path)
        assert made.problem == ""
        records.append(json.loads((folder / "recipe.json").read_text()))
    assert records[0]["files"] == records[1]["files"]
    assert constant_tensors(python, tmp_path / "one") == []
    known = {token["content"] for token in json.loads((tmp_path / "one/tokenizer.json").read_text())["added_tokens"]}
    assert known.issuperset(recipe.named_tokens)
    assert records[0]["missing_kinds"] == []
    assert records[0]["layers"] == recipe.least_layers
    assert bool(records[0]["experts"]) is recipe.experts


@pytest.mark.models
@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "default"])
@pytest.mark.parametrize("name", ["qwen2", "deepseek_v3", "gemma3", "qwen3_vl"])
def test_a_model_is_made_for_a_condition_that_asks_for_a_type_of_rope_alone(
    name: str, kind: str, tmp_path: Path
) -> None:
    family = next(family for family in MODELS if family.name == name)
    recipe = recipe_of(family).model_copy(update={"wanted": {"rope_scaling.rope_type": kind}})
    variables, folder = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, tmp_path / "made"
    python = os.environ["MODELS_PYTHON"]
    made = make_model(recipe, folder, python=python, variables=variables, work=tmp_path)
    assert made.problem == ""
    config = json.loads((folder / "config.json").read_text())
    settings = config.get("text_config", config)["rope_parameters"]
    assert settings.get("full_attention", settings)["rope_type"] == kind
