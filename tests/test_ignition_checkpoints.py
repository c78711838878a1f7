"""Checkpoint readers: both forms give equal weights, and bad ones are refused by name."""

import json
import random
import shutil

import gguf
import numpy as np
import pytest
from ignition_fixtures import TINY, opened
from safetensors.numpy import load_file, save_file

from helios_dod.ignition.checkpoints import open_checkpoint
from helios_dod.ignition.checkpoints.checkpoint import Tensor, storage_bytes
from helios_dod.ignition.floats import E4M3_VALUES, to_bf16, to_e4m3
from helios_dod.ignition.preparation.options import Options
from helios_dod.ignition.preparation.rotary import frequencies
from helios_dod.ignition.prepared import PreparationError
from helios_dod.ignition.recipes import prepare

PAIRS = ("llama31", "qwen2", "qwen3")


def in_half_order(tensor: Tensor, heads: int) -> np.ndarray:
    """Rows of neighbours (2i, 2i + 1) of each head back to (i, i + head / 2)."""
    rows, columns = tensor.shape
    paired = tensor.floats().reshape(heads, rows // heads // 2, 2, columns)
    return paired.swapaxes(1, 2).reshape(rows, columns)


@pytest.mark.parametrize("name", PAIRS)
def test_both_forms_have_equal_weights(name):
    folder, file = opened(name), opened(f"{name}.gguf")
    names = file.tensors.keys() - {"rotary_factors.weight"}
    assert names == folder.tensors.keys()
    heads = {"query.weight": folder.config.heads, "key.weight": folder.config.key_heads}
    for key in names:
        ours = file.tensors[key].floats()
        count = heads.get(".".join(key.split(".")[-2:]))
        if file.config.rotary.interleaved and count:
            ours = in_half_order(file.tensors[key], count)
        assert np.array_equal(ours, folder.tensors[key].floats()), key


@pytest.mark.parametrize("name", PAIRS)
def test_both_forms_have_equal_sizes(name):
    folder, file = opened(name).config, opened(f"{name}.gguf").config
    for field in ("layers", "hidden", "heads", "key_heads", "head", "intermediate", "vocabulary",
                  "context", "norm_epsilon", "windows", "tied"):
        assert getattr(folder, field) == getattr(file, field), field
    assert folder.rotary.base == file.rotary.base


def test_scaled_frequencies_agree_between_forms():
    folder, file = opened("llama31"), opened("llama31.gguf")
    factors = file.tensors["rotary_factors.weight"].floats()
    ours, theirs = frequencies(folder.config.rotary), frequencies(file.config.rotary, factors)
    assert not np.array_equal(factors, np.ones_like(factors))
    assert np.allclose(ours, theirs, rtol=3e-7, atol=0)


def test_shards_and_order_of_storage():
    shards = opened("qwen2")
    stored: set[str] = set()
    for file in (TINY / "qwen2").glob("*.safetensors"):
        stored |= header_names(file)
    assert len(stored) == len(shards.tensors)
    transposed = opened("gpt2").tensors["layers.1.query_key_value.weight"]
    raw = load_file(TINY / "gpt2" / "model.safetensors")["h.1.attn.c_attn.weight"]
    assert transposed.shape == raw.T.shape
    assert np.array_equal(transposed.floats(), raw.T)


def header_names(file) -> set[str]:
    """Names in a safetensors file, from its header alone."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]).keys() - {"__metadata__"}


def test_defaults_and_end_tokens():
    llama = opened("llama31")
    assert (llama.generation.temperature, llama.generation.top_p) == (0.6, 0.9)
    assert llama.generation.top_k is None
    assert (llama.text.eos, llama.text.bos, llama.text.add_bos) == ((1, 4), 0, True)
    qwen = opened("qwen2")
    assert (qwen.generation.top_k, qwen.generation.repetition_penalty) == (20, 1.05)
    assert (qwen.text.eos, qwen.text.bos, qwen.text.add_bos) == ((0, 2), None, False)
    assert opened("qwen2.gguf").text.eos == (2,)


def test_windows():
    assert opened("qwen2").config.windows == (0, 0)
    assert opened("qwen2_window").config.windows == (0, 24, 24)
    assert opened("mistral").config.windows == (16, 16, 16)


@pytest.fixture
def folder(tmp_path):
    """A copy of a tiny folder to break."""
    return shutil.copytree(TINY / "llama2", tmp_path / "broken")


def change(path, **entries):
    """Replaces entries of a JSON file; None removes one."""
    value = json.loads(path.read_text()) | entries
    path.write_text(json.dumps({key: entry for key, entry in value.items() if entry is not None}))


def refused(path, *words):
    """Opening and preparing fails with an error that holds all the words."""
    with pytest.raises(PreparationError) as caught:
        prepare(open_checkpoint(path), Options())
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_files_are_named(folder, file):
    (folder / file).unlink()
    refused(folder, "missing file", file)


@pytest.mark.parametrize("field", ["model_type", "hidden_size", "rms_norm_eps", "vocab_size"])
def test_missing_fields_are_named(folder, field):
    change(folder / "config.json", **{field: None})
    refused(folder, "config.json", field)


@pytest.mark.parametrize(("entries", "words"), [
    ({"hidden_size": "big"}, ("hidden_size", "a number", "'big'")),
    ({"num_hidden_layers": 0}, ("layers", "at least 1", "got 0")),
    ({"num_key_value_heads": 2}, ("key_heads", "divisor of 3", "got 2")),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ("rope_type", "yarn", "dynamic")),
    ({"rope_scaling": {"type": "linear"}}, ("missing field factor",)),
    ({"hidden_act": "mish"}, ("activation", "silu", "mish")),
    ({"model_type": "mixtral"}, ("architecture", "mixtral")),
    ({"intermediate_size": 100}, ("mlp.gate_proj.weight", "[100, 72]", "[112, 72]")),
    ({"num_hidden_layers": 3}, ("missing tensor layers.2.attention_norm.weight",)),
    ({"num_hidden_layers": 1}, ("no place", "model.layers.1")),
    ({"layer_types": ["full_attention"]}, ("layer_types", "2")),
])
def test_bad_configurations_are_refused(folder, entries, words):
    change(folder / "config.json", **entries)
    refused(folder, *words)


def test_broken_weights_are_refused(folder):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    refused(folder, "model.safetensors", "expected", "bytes")
    file.write_bytes(whole[:200])
    refused(folder, "model.safetensors", "header of")
    file.write_bytes(b"\x02\x00\x00\x00\x00\x00\x00\x00no")
    refused(folder, "not JSON")
    save_file({"model.norm.weight": np.zeros(72, np.int32)}, file)
    refused(folder, "model.norm.weight", "F32, F16, BF16, F8_E4M3", "I32")


def in_eighths(file, factors_of, ending):
    """Writes the matrices of layers again in e4m3, each with the factors that a function of its
    shape makes; what they stand for. The library cannot write the type."""
    tensors, entries, data, meant = load_file(file), {}, b"", {}

    def add(name, kind, shape, stored):
        nonlocal data
        entries[name] = {"dtype": kind, "shape": list(shape),
                         "data_offsets": [len(data), len(data) + stored.nbytes]}
        data += stored.tobytes()

    for name, values in tensors.items():
        if values.ndim < 2 or "layers" not in name:
            add(name, "F32", values.shape, values.astype(np.float32))
            continue
        scale, spread = factors_of(values.shape)
        bits = to_e4m3(values.astype(np.float32) / spread)
        add(name, "F8_E4M3", values.shape, bits)
        add(name + ending, "F32", scale.shape, scale)
        add(name.removesuffix("weight") + "input_scale", "F32", (), np.ones((), np.float32))
        meant[name] = E4M3_VALUES[bits] * spread
    header = json.dumps(entries).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return meant


def factors_of_rows(shape):
    scale = np.linspace(0.001, 0.002, shape[0], dtype=np.float32)[:, None]
    return scale, scale


def factors_of_all(shape):
    scale = np.full((), 0.003, np.float32)
    return scale, scale


def factors_of_blocks(shape):
    rows, columns = (-(-size // 128) for size in shape)
    scale = np.linspace(0.001, 0.003, rows * columns, dtype=np.float32).reshape(rows, columns)
    whole = np.kron(scale, np.ones((128, 128), np.float32))
    return scale, whole[: shape[0], : shape[1]]


@pytest.mark.parametrize("factors_of, ending", [
    (factors_of_rows, "_scale"), (factors_of_all, "_scale"), (factors_of_blocks, "_scale_inv")])
def test_matrices_in_e4m3_are_read_with_their_factors(folder, factors_of, ending):
    meant = in_eighths(folder / "model.safetensors", factors_of, ending)
    tensors = open_checkpoint(folder).tensors
    found = tensors["layers.1.down.weight"].floats()
    expected = meant["model.layers.1.mlp.down_proj.weight"]
    assert np.abs(found - expected).max() <= np.abs(expected).max() / 256
    assert np.array_equal(found, (to_bf16(expected).astype(np.uint32) << 16).view(np.float32))
    assert not [name for name in tensors if "scale" in name]
    assert sum(part.nbytes for part in prepare(open_checkpoint(folder), Options()).weights.parts)


def test_matrices_in_e4m3_need_factors_of_a_known_shape(folder):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    in_eighths(file, factors_of_all, "_factor")
    refused(folder, "F8_E4M3", "weight_scale", "and 0")
    file.write_bytes(whole)
    in_eighths(file, lambda shape: (np.ones(3, np.float32), np.float32(1)), "_scale")
    refused(folder, "_proj.weight_scale", "got [3]")


def test_index_must_hold_what_it_promises(tmp_path):
    folder = shutil.copytree(TINY / "qwen2", tmp_path / "broken")
    index = folder / "model.safetensors.index.json"
    change(index, weight_map={"model.norm.weight": "../other.safetensors"})
    refused(folder, "expected a file name")
    change(index, weight_map={"x": "model-00001-of-00002.safetensors"})
    refused(folder, "missing tensor x")
    change(index, weight_map={"model.norm.weight": "model-00003-of-00002.safetensors"})
    refused(folder, "missing file model-00003-of-00002.safetensors")


def test_paths_and_other_files(tmp_path):
    refused(tmp_path / "nothing", "no such file")
    other = tmp_path / "other.gguf"
    other.write_bytes(b"not a checkpoint at all, only text")
    refused(other, "not a GGUF file")


def rewrite(source, target, *, skip=(), extra=()):
    """A copy of a GGUF file without some metadata keys, with more (key, kind, value)."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or key in skip:
            continue
        inner = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(key, field.contents(), field.types[0], inner)
    for key, kind, value in extra:
        writer.add_key_value(key, value, kind)
    for tensor in reader.tensors:
        if tensor.name not in skip:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file,
                 writer.write_tensors_to_file, writer.close):
        step()
    return target


@pytest.mark.parametrize(("skip", "words"), [
    ("llama.block_count", ("missing metadata llama.block_count",)),
    ("llama.attention.layer_norm_rms_epsilon", ("missing metadata", "layer_norm_rms_epsilon")),
    ("tokenizer.ggml.tokens", ("missing metadata tokenizer.ggml.tokens",)),
    ("tokenizer.ggml.merges", ("missing metadata tokenizer.ggml.merges",)),
    ("token_embd.weight", ("missing tensor token_embd.weight",)),
    ("blk.1.attn_k.weight", ("missing tensor layers.1.key.weight",)),
])
def test_missing_parts_of_a_file_are_named(tmp_path, skip, words):
    refused(rewrite(TINY / "llama31.gguf", tmp_path / "cut.gguf", skip=(skip,)), *words)


def test_unknown_values_of_a_file_are_named(tmp_path):
    text = gguf.GGUFValueType.STRING
    source = TINY / "llama31.gguf"
    path = rewrite(source, tmp_path / "pre.gguf", skip=("tokenizer.ggml.pre",),
                   extra=[("tokenizer.ggml.pre", text, "unheard-of")])
    refused(path, "tokenizer.ggml.pre", "unheard-of", "gpt-2")
    path = rewrite(source, tmp_path / "model.gguf", skip=("tokenizer.ggml.model",),
                   extra=[("tokenizer.ggml.model", text, "bert")])
    refused(path, "tokenizer.ggml.model", "bert")
    path = rewrite(source, tmp_path / "rope.gguf", skip=("rope_freqs.weight",), extra=[
        ("llama.rope.scaling.type", text, "longrope")])
    refused(path, "rope.scaling.type", "longrope")


def test_unsupported_element_types_are_named(tmp_path):
    path = tmp_path / "q2.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("q2")
    writer.add_tensor("output.weight", np.zeros((4, 84), np.uint8),
                      raw_dtype=gguf.GGMLQuantizationType.Q2_K)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file,
                 writer.write_tensors_to_file, writer.close):
        step()
    refused(path, "output.weight", "Q2_K", "Q6_K")


def test_rope_scaling_of_a_file(tmp_path):
    text, real, whole = (gguf.GGUFValueType.STRING, gguf.GGUFValueType.FLOAT32,
                         gguf.GGUFValueType.UINT32)
    extra = [("llama.rope.scaling.type", text, "yarn"), ("llama.rope.scaling.factor", real, 4.0),
             ("llama.rope.scaling.original_context_length", whole, 64)]
    path = rewrite(TINY / "llama31.gguf", tmp_path / "yarn.gguf",
                   skip=("rope_freqs.weight", "llama.rope.freq_base"), extra=extra)
    rotary = open_checkpoint(path).config.rotary
    folder = opened("llama_yarn").config.rotary
    assert rotary.magnitude == pytest.approx(folder.magnitude)
    assert np.array_equal(frequencies(rotary), frequencies(folder))


def test_storage_sizes():
    assert storage_bytes("Q6_K", (2, 512)) == 2 * 2 * 210
    with pytest.raises(PreparationError, match="multiple of 32"):
        storage_bytes("Q4_1", (2, 40))


def test_damaged_files_are_refused_or_read(tmp_path):
    """Any damage ends in a PreparationError, or hits nothing that preparation reads."""
    generator = random.Random(11)
    whole = (TINY / "llama31.gguf").read_bytes()
    refusals = 0
    for turn in range(60):
        damaged = bytearray(whole)
        if turn % 3 == 0:
            damaged = damaged[: generator.randrange(len(whole))]
        else:
            for _ in range(3):
                damaged[generator.randrange(15_000)] = generator.randrange(256)
        path = tmp_path / "damaged.gguf"
        path.write_bytes(damaged)
        try:
            for _ in prepare(open_checkpoint(path), Options(packed=(64,))).weights:
                pass
        except PreparationError:
            refusals += 1
    assert refusals > 20


def test_fused_layers_of_a_file(tmp_path):
    """A layer-norm decoder with learned positions, written as its GGUF converter does."""
    folder = opened("gpt2")
    config, path = folder.config, tmp_path / "fused.gguf"
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.intermediate)
    writer.add_head_count(config.heads)
    writer.add_layer_norm_eps(config.norm_epsilon)
    document = json.loads(folder.text.tokenizer_json)
    tokens = sorted(document["model"]["vocab"], key=document["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_merges([" ".join(merge) for merge in document["model"]["merges"]])
    writer.add_eos_token_id(0)
    names = {"attention_norm": "attn_norm", "query_key_value": "attn_qkv", "down": "ffn_down",
             "attention_output": "attn_output", "feed_norm": "ffn_norm", "up": "ffn_up"}
    top = {"embedding": "token_embd", "positions": "position_embd", "final_norm": "output_norm"}
    for name, tensor in folder.tensors.items():
        parts = name.split(".")
        stem = f"blk.{parts[1]}.{names[parts[2]]}" if parts[0] == "layers" else top[parts[0]]
        writer.add_tensor(f"{stem}.{parts[-1]}", tensor.floats())
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file,
                 writer.write_tensors_to_file, writer.close):
        step()
    file = open_checkpoint(path)
    assert file.tensors.keys() == folder.tensors.keys()
    ours, theirs = prepare(file, Options()), prepare(folder, Options())
    assert ours.manifest == theirs.manifest
    assert np.array_equal(ours.weights.assemble(), theirs.weights.assemble())
