"""The synthetic checkpoint, made from small safetensors files."""

import json
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save

from tools.synthetic_checkpoint import Recipe, RecipeError, main, make_checkpoint, scale_file, with_rope_theta

QKV = "model.layers.0.self_attn.q_proj.weight"
GATE = "model.layers.0.mlp.gate_proj.weight"
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
BIAS = "model.layers.0.self_attn.q_proj.bias"
BFLOAT16 = ml_dtypes.bfloat16.__name__


def safetensors(tensors: Mapping[str, tuple[float, ...]], kind: str = BFLOAT16) -> bytes:
    content: bytes = save({name: np.array(numbers, kind) for name, numbers in tensors.items()}, {"format": "pt"})
    return content


def tensors_of(path: Path) -> dict[str, tuple[float, ...]]:
    return {name: tuple(map(float, tensor)) for name, tensor in load_file(path).items()}


def scaled(content: bytes, recipe: Recipe, folder: Path) -> tuple[tuple[str, ...], dict[str, tuple[float, ...]]]:
    source, destination = folder / "source.safetensors", folder / "scaled.safetensors"
    source.write_bytes(content)
    names = scale_file(source, destination, recipe)
    kinds = {name: tensor.dtype for name, tensor in load_file(source).items()}
    assert {name: tensor.dtype for name, tensor in load_file(destination).items()} == kinds
    assert b'"format":"pt"' in destination.read_bytes()
    return names, tensors_of(destination)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "model-00001-of-00002.safetensors").write_bytes(safetensors({QKV: (1.0, -0.5), EMBEDDING: (3.0,)}))
    (folder / "model-00002-of-00002.safetensors").write_bytes(safetensors({GATE: (0.25,), BIAS: (1.5,)}))
    (folder / "model.safetensors.index.json").write_text("{}")
    (folder / "config.json").write_text('{"hidden_size": 2, "rope_parameters": {"rope_theta": 1e4, "x": 1}}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "pytorch_model.bin").write_text("old weights")
    return folder


@pytest.mark.parametrize("kind", [BFLOAT16, "float16", "float32"])
def test_only_the_matrices_of_attention_and_mlp_are_scaled(kind: str, tmp_path: Path) -> None:
    before = {QKV: (1.0, -0.5, 0.0), GATE: (2.0**-14,), EMBEDDING: (3.0,), BIAS: (1.5,), HEAD: (1.0,)}
    names, after = scaled(safetensors(before, kind), Recipe(4), tmp_path)
    assert set(names) == {QKV, GATE}
    assert after == before | {QKV: (4.0, -2.0, 0.0), GATE: (2.0**-12,)}


def test_the_output_layer_has_a_factor_of_its_own(tmp_path: Path) -> None:
    before = {QKV: (1.0,), EMBEDDING: (3.0,), HEAD: (1.0,)}
    assert scaled(safetensors(before), Recipe(scale=1, head_scale=8), tmp_path) == ((HEAD,), before | {HEAD: (8.0,)})


@pytest.mark.parametrize(
    ("number", "scale", "rounded"),
    [
        (1.0, 1 + 2**-8, 1.0),  # a tie goes to the even neighbour, downwards ...
        (1.0, 1 + 3 * 2**-8, 1 + 2**-6),  # ... and upwards
        (1.0, 1 + 2**-8 + 2**-20, 1 + 2**-7),
        (2.0**-133, 2, 2.0**-132),  # subnormal
    ],
)
def test_bfloat16_rounds_to_nearest_even(number: float, scale: float, rounded: float, tmp_path: Path) -> None:
    assert scaled(safetensors({QKV: (number,)}), Recipe(scale), tmp_path)[1] == {QKV: (rounded,)}


def test_the_checkpoint_is_the_source_but_for_scale_rope_and_record(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    assert main([str(source), str(made), "--scale", "2", "--rope-theta", "500000"]) == 0
    assert sorted(path.name for path in made.iterdir()) == [
        *("chat_template.jinja", "config.json", "model-00001-of-00002.safetensors"),
        *("model-00002-of-00002.safetensors", "model.safetensors.index.json", "recipe.json", "tokenizer.json"),
    ]
    assert tensors_of(made / "model-00001-of-00002.safetensors") == {QKV: (2, -1), EMBEDDING: (3,)}
    assert tensors_of(made / "model-00002-of-00002.safetensors") == {GATE: (0.5,), BIAS: (1.5,)}
    config = json.loads((made / "config.json").read_text())
    assert config == {"hidden_size": 2, "rope_parameters": {"rope_theta": 500000, "x": 1}}
    record = json.loads((made / "recipe.json").read_text())
    assert (record["scale"], record["rope_theta"], record["head_scale"]) == (2, 500000, 1)
    assert record["scaled"] == [GATE, QKV]
    assert len(record["source_sha256"]) == 3
    assert record["left_out"] == ["pytorch_model.bin"]
    assert capsys.readouterr().out == f"{made}: 2 tensors scaled; left out: pytorch_model.bin\n"


def test_the_rope_base_is_changed_wherever_it_is_written() -> None:
    both = {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e4}}
    assert with_rope_theta(both, 5e5) == {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5}}
    assert with_rope_theta({"rope_theta": 1e4}, 5e5) == {"rope_theta": 5e5}
    for without in ({}, {"rope_parameters": None}, {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}):
        with pytest.raises(RecipeError, match="names no rope_theta"):
            with_rope_theta(without, 5e5)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is not a whole safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is not a whole safetensors file"),
        (safetensors({QKV: (1.0,)})[:-1], "is not a whole safetensors file"),
        (safetensors({QKV: (1,)}, "int8"), f"{QKV} is int8; only bfloat16, float16, float32 can be scaled"),
        (safetensors({QKV: (60000.0,)}, "float16"), f"{QKV} cannot be scaled by 2"),
    ],
)
def test_weights_that_cannot_be_scaled_are_named(content: bytes, text: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=text):
        scaled(content, Recipe(2), tmp_path)


def test_a_users_mistake_is_one_line_and_leaves_nothing(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, empty, plain = tmp_path / "made", tmp_path / "empty", tmp_path / "plain"
    for folder in (empty, plain):
        folder.mkdir()
    (plain / "model.safetensors").write_bytes(safetensors({EMBEDDING: (1.0,)}))
    (plain / "config.json").write_text('{"rope_theta": 1e4}')
    mistakes = (
        ([str(source), str(source)], "exists already"),
        ([str(empty), str(made)], "holds no *.safetensors"),
        ([str(plain), str(made)], "has no matrix of attention or MLP"),
        ([str(source), str(made), "--head-scale", "4"], "leave --head-scale at 1"),
        ([str(source), str(made), "--scale", "0"], "--scale 0 is not a positive number"),
        ([str(source), str(made), "--rope-theta", "inf"], "--rope-theta inf is not a positive number"),
    )
    for argv, words in mistakes:
        assert main(argv) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert words in error
        assert error.count("\n") == 1
    for text in ("[]", "{"):
        (source / "config.json").write_text(text)
        assert main([str(source), str(made)]) == 2
    (source / "config.json").unlink()
    assert main([str(source), str(made)]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "plain", "source"]


def test_a_half_made_checkpoint_does_not_stay(source: Path, tmp_path: Path) -> None:
    (source / "model-00002-of-00002.safetensors").write_bytes(b"cut")
    with pytest.raises(RecipeError):
        make_checkpoint(source, tmp_path / "made", Recipe())
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
