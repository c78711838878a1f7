"""safetensors files, memory-mapped. Format: 8 bytes of header length, a JSON header with type,
shape and byte range of every tensor, then the bytes (github.com/huggingface/safetensors).

The library's numpy interface has neither BF16 nor F8_E4M3, so the header is read here.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from helios_dod.ignition.checkpoints.checkpoint import BLOCKS, Tensor
from helios_dod.ignition.floats import E4M3_VALUES, to_bf16
from helios_dod.ignition.prepared import PreparationError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
KINDS = ("F32", "F16", "BF16")
EIGHTHS = "F8_E4M3"  # one byte an element; read as BF16 with the factors of another tensor
FACTORS = ("_scale", "_scale_inv")  # that tensor's name behind the matrix's; both are multiplied
SCALE_BLOCK = 128  # rows and columns of a block that has one factor
HEADER_BYTES_MAX = 100 << 20  # the format's own limit

TOP_NAMES = {
    "embed_tokens": "embedding",
    "wte": "embedding",
    "wpe": "positions",
    "norm": "final_norm",
    "ln_f": "final_norm",
    "lm_head": "head",
}
LAYER_NAMES = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "query",
    "self_attn.k_proj": "key",
    "self_attn.v_proj": "value",
    "self_attn.o_proj": "attention_output",
    "self_attn.q_norm": "query_norm",
    "self_attn.k_norm": "key_norm",
    "post_attention_layernorm": "feed_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
    "ln_1": "attention_norm",
    "attn.c_attn": "query_key_value",
    "attn.c_proj": "attention_output",
    "ln_2": "feed_norm",
    "mlp.c_fc": "up",
    "mlp.c_proj": "down",
}
# Layers whose matrices are stored [inputs, outputs].
TRANSPOSED = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}
# Buffers that old files carry and that follow from the configuration.
# or, as factors of activations, are not used: rows that are rounded have factors of their own.
DERIVED = re.compile(
    r".*(rotary_emb\.inv_freq|\.attn\.bias|\.attn\.masked_bias|\.input_scale)")
LAYER = re.compile(r"(?:model\.layers|(?:transformer\.)?h)\.(\d+)\.(.+)\.(weight|bias)")
TOP = re.compile(r"(?:model\.|transformer\.)?(\w+)\.(weight|bias)")


def folder_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder by canonical name."""
    stored: dict[str, Tensor] = {}
    for file, expected in weight_files(folder).items():
        found = file_tensors(folder / file)
        missing = sorted(name for name in expected - found.keys() if not DERIVED.fullmatch(name))
        if missing:
            raise PreparationError(f"{folder / file}: missing tensor {missing[0]}")
        stored |= found
    tensors: dict[str, Tensor] = {}
    for name, tensor in with_factors(folder, stored).items():
        key, transposed = canonical(name)
        tensors[key] = transpose(tensor) if transposed else tensor
    return tensors


def with_factors(folder: Path, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a folder with its matrices in e4m3 as BF16, and without their factors."""
    tensors = dict(stored)
    for name, tensor in stored.items():
        if tensor.kind != EIGHTHS:
            continue
        factors = [tensors.pop(name + end) for end in FACTORS if name + end in tensors]
        if len(factors) != 1 or len(tensor.shape) != 2:
            raise PreparationError(
                f"{folder}: tensor {name} of type {EIGHTHS}: expected a matrix and one tensor "
                f"{' or '.join(name + end for end in FACTORS)}, got shape {list(tensor.shape)} "
                f"and {len(factors)}")
        tensors[name] = widened(tensor, factors[0])
    return tensors


def widened(tensor: Tensor, factors: Tensor) -> Tensor:
    """A matrix in e4m3 times its factors (one, one a row, or one a block of SCALE_BLOCK rows and
    columns), rounded to BF16."""
    rows, columns = tensor.shape
    blocks = -(-rows // SCALE_BLOCK), -(-columns // SCALE_BLOCK)
    if factors.shape not in ((), (1,), (rows,), (rows, 1), blocks):
        raise PreparationError(
            f"tensor {factors.name}: expected shape [], [1], [{rows}], [{rows}, 1] or "
            f"{list(blocks)}, got {list(factors.shape)}")

    def read() -> np.ndarray:
        scale, bits = factors.floats(), tensor.read().reshape(rows, columns)
        if factors.shape == blocks and factors.shape != (rows, 1):
            scale = scale.repeat(SCALE_BLOCK, axis=0)[:rows].repeat(SCALE_BLOCK, axis=1)
            scale = scale[:, :columns]
        elif factors.shape:
            scale = scale.reshape(-1, 1)
        return to_bf16(E4M3_VALUES[bits] * scale).reshape(-1).view(np.uint8)

    return Tensor(tensor.name, "BF16", tensor.shape, read)


def weight_files(folder: Path) -> dict[str, set[str]]:
    """File name -> tensors that the index promises in it; the single file needs no index."""
    if (folder / SINGLE).exists():
        return {SINGLE: set()}
    index = folder / INDEX
    if not index.exists():
        raise PreparationError(f"checkpoint {folder}: missing file {SINGLE} or {INDEX}")
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise PreparationError(f"{index}: expected an object with weight_map: {error}") from error
    files: dict[str, set[str]] = {}
    for name, file in places.items():
        if Path(file).name != file:
            raise PreparationError(f"{index}: tensor {name}: expected a file name, got {file}")
        files.setdefault(file, set()).add(name)
    return files


def file_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of one file by its own name."""
    if not path.exists():
        raise PreparationError(f"checkpoint {path.parent}: missing file {path.name}")
    if path.stat().st_size < 8:
        raise PreparationError(f"{path}: {path.stat().st_size} bytes, no safetensors header")
    data = np.memmap(path, np.uint8, mode="r")
    length = int(data[:8].view("<u8")[0])
    if length > min(HEADER_BYTES_MAX, data.size - 8):
        raise PreparationError(f"{path}: header of {length} bytes in a file of {data.size}")
    try:
        header = json.loads(data[8 : 8 + length].tobytes())
    except ValueError as error:
        raise PreparationError(f"{path}: header is not JSON: {error}") from error
    body = data[8 + length :]
    return {
        name: file_tensor(path, name, entry, body)
        for name, entry in header.items()
        if name != "__metadata__" and not DERIVED.fullmatch(name)
    }


def file_tensor(path: Path, name: str, entry: dict[str, Any], body: np.ndarray) -> Tensor:
    """One tensor over the mapped bytes of its file."""
    kind, shape = entry["dtype"], tuple(entry["shape"])
    first, last = entry["data_offsets"]
    if kind not in (*KINDS, EIGHTHS):
        raise PreparationError(
            f"{path}: tensor {name}: expected a type of {', '.join((*KINDS, EIGHTHS))}, got {kind}")
    element = 1 if kind == EIGHTHS else BLOCKS[kind][1]
    nbytes = int(np.prod(shape, dtype=np.int64)) * element
    if last - first != nbytes or not 0 <= first <= last <= body.size:
        raise PreparationError(
            f"{path}: tensor {name}: expected {nbytes} bytes of {body.size}, got {first}..{last}"
        )
    return Tensor(name, kind, shape, lambda: body[first:last])


def canonical(name: str) -> tuple[str, bool]:
    """Canonical name, and whether the matrix is stored transposed; unknown names stay."""
    layer = LAYER.fullmatch(name)
    if layer and layer[2] in LAYER_NAMES:
        return (
            f"layers.{layer[1]}.{LAYER_NAMES[layer[2]]}.{layer[3]}",
            layer[3] == "weight" and layer[2] in TRANSPOSED,
        )
    top = TOP.fullmatch(name)
    if top and top[1] in TOP_NAMES:
        return f"{TOP_NAMES[top[1]]}.{top[2]}", False
    return name, False


def transpose(tensor: Tensor) -> Tensor:
    """The matrix [columns, rows] of a stored [rows, columns]."""
    rows, columns = tensor.shape
    element = np.dtype(f"V{BLOCKS[tensor.kind][1]}")

    def read() -> np.ndarray:
        stored = tensor.data.view(element).reshape(rows, columns)
        return np.ascontiguousarray(stored.T).reshape(-1).view(np.uint8)

    return Tensor(tensor.name, tensor.kind, (columns, rows), read)
