"""The probe checkpoint, made from small safetensors files written here by hand."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from verl_e2e_runner.probe_checkpoint import ProbeError, Recipe, main, make_probe, scale_tensors, with_rope_theta

QKV = "model.layers.0.self_attn.q_proj.weight"
GATE = "model.layers.0.mlp.gate_proj.weight"
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
BIAS = "model.layers.0.self_attn.q_proj.bias"
WORDS = {"F32": "f", "F16": "e", "I8": "b"}


def encode(kind: str, numbers: tuple[float, ...]) -> bytes:
    if kind == "BF16":
        return b"".join(struct.pack("<f", number)[2:] for number in numbers)
    return struct.pack(f"<{len(numbers)}{WORDS[kind]}", *numbers)


def decode(kind: str, data: bytes) -> tuple[float, ...]:
    if kind == "BF16":
        data = b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))
        kind = "F32"
    return struct.unpack(f"<{len(data) // struct.calcsize(WORDS[kind])}{WORDS[kind]}", data)


def safetensors(tensors: Mapping[str, tuple[float, ...]], kind: str = "BF16") -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, numbers in tensors.items():
        data = encode(kind, numbers)
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": kind, "shape": [len(numbers)], "data_offsets": offsets}
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def tensors_of(content: bytes) -> dict[str, tuple[float, ...]]:
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__")
    return {
        name: decode(entry["dtype"], content[8 + length :][slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


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


@pytest.mark.parametrize("kind", ["BF16", "F16", "F32"])
def test_only_the_matrices_of_attention_and_mlp_are_scaled(kind: str) -> None:
    before = {QKV: (1.0, -0.5, 0.0), GATE: (2.0**-14,), EMBEDDING: (3.0,), BIAS: (1.5,), HEAD: (1.0,)}
    content, names = scale_tensors(safetensors(before, kind), Recipe(4), Path("model.safetensors"))
    assert names == (QKV, GATE)
    assert tensors_of(content) == before | {QKV: (4.0, -2.0, 0.0), GATE: (2.0**-12,)}


def test_the_output_layer_has_a_factor_of_its_own() -> None:
    before = {QKV: (1.0,), EMBEDDING: (3.0,), HEAD: (1.0,)}
    content, names = scale_tensors(safetensors(before), Recipe(scale=1, head_scale=8), Path("model.safetensors"))
    assert names == (HEAD,)
    assert tensors_of(content) == before | {HEAD: (8.0,)}


@pytest.mark.parametrize(
    ("number", "scale", "scaled"),
    [
        (1.0, 1 + 2**-8, 1.0),  # a tie goes to the even neighbour, downwards ...
        (1.0, 1 + 3 * 2**-8, 1 + 2**-6),  # ... and upwards
        (1.0, 1 + 2**-8 + 2**-20, 1 + 2**-7),
        (2.0**-133, 2, 2.0**-132),  # subnormal
    ],
)
def test_bfloat16_rounds_to_nearest_even(number: float, scale: float, scaled: float) -> None:
    content, _ = scale_tensors(safetensors({QKV: (number,)}), Recipe(scale), Path("model.safetensors"))
    assert tensors_of(content)[QKV] == (scaled,)


def test_the_probe_is_the_source_but_for_scale_rope_and_record(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = tmp_path / "probe"
    assert main([str(source), str(probe), "--scale", "2", "--rope-theta", "500000"]) == 0
    assert sorted(path.name for path in probe.iterdir()) == [
        *("chat_template.jinja", "config.json", "model-00001-of-00002.safetensors"),
        *("model-00002-of-00002.safetensors", "model.safetensors.index.json", "probe.json", "tokenizer.json"),
    ]
    assert tensors_of((probe / "model-00001-of-00002.safetensors").read_bytes()) == {QKV: (2, -1), EMBEDDING: (3,)}
    assert tensors_of((probe / "model-00002-of-00002.safetensors").read_bytes()) == {GATE: (0.5,), BIAS: (1.5,)}
    config = json.loads((probe / "config.json").read_text())
    assert config == {"hidden_size": 2, "rope_parameters": {"rope_theta": 500000, "x": 1}}
    record = json.loads((probe / "probe.json").read_text())
    assert (record["scale"], record["rope_theta"], record["head_scale"]) == (2, 500000, 1)
    assert record["scaled"] == [GATE, QKV]
    assert len(record["source_sha256"]) == 3
    assert record["left_out"] == ["pytorch_model.bin"]
    assert capsys.readouterr().out == f"{probe}: 2 tensors scaled; left out: pytorch_model.bin\n"


def test_the_rope_base_is_changed_wherever_it_is_written() -> None:
    both = {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e4}}
    assert with_rope_theta(both, 5e5) == {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5}}
    assert with_rope_theta({"rope_theta": 1e4}, 5e5) == {"rope_theta": 5e5}
    for without in ({}, {"rope_parameters": None}, {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}):
        with pytest.raises(ProbeError, match="names no rope_theta"):
            with_rope_theta(without, 5e5)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is no safetensors file"),
        (safetensors({QKV: (1.0,)})[:-1], "is cut short"),
        (safetensors({QKV: (1,)}, "I8"), f"{QKV} is I8; only BF16, F16, F32 can be scaled"),
        (safetensors({QKV: (60000.0,)}, "F16"), f"{QKV} cannot be scaled by 2"),
    ],
)
def test_weights_that_cannot_be_scaled_are_named(content: bytes, said: str) -> None:
    with pytest.raises(ProbeError, match=said):
        scale_tensors(content, Recipe(2), Path("model.safetensors"))


def test_a_users_mistake_is_one_line_and_leaves_nothing(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe, empty, plain = tmp_path / "probe", tmp_path / "empty", tmp_path / "plain"
    for folder in (empty, plain):
        folder.mkdir()
    (plain / "model.safetensors").write_bytes(safetensors({EMBEDDING: (1.0,)}))
    (plain / "config.json").write_text('{"rope_theta": 1e4}')
    mistakes = (
        ([str(source), str(source)], "exists already"),
        ([str(empty), str(probe)], "holds no *.safetensors"),
        ([str(plain), str(probe)], "has no matrix of attention or MLP"),
        ([str(source), str(probe), "--head-scale", "4"], "leave --head-scale at 1"),
        ([str(source), str(probe), "--scale", "0"], "--scale 0 is not a positive number"),
        ([str(source), str(probe), "--rope-theta", "inf"], "--rope-theta inf is not a positive number"),
    )
    for argv, said in mistakes:
        assert main(argv) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert said in error
        assert error.count("\n") == 1
    for text in ("[]", "{"):
        (source / "config.json").write_text(text)
        assert main([str(source), str(probe)]) == 2
    (source / "config.json").unlink()
    assert main([str(source), str(probe)]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "plain", "source"]


def test_a_half_made_probe_does_not_stay(source: Path, tmp_path: Path) -> None:
    (source / "model-00002-of-00002.safetensors").write_bytes(b"cut")
    with pytest.raises(ProbeError):
        make_probe(source, tmp_path / "probe", Recipe())
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
