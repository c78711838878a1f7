"""A handmade core of the smallest shape that the contract accepts: no model, few weight bytes."""

import json

import numpy as np

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import core_pb2
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.prepared import Prepared, WeightPart, Weights

VOCABULARY = 16  # tokens a to p
WIDTH = 4  # columns of a hidden row
LANES = (wire.LANES, 1)
PACKED = (wire.PACKED, 1)
SLOTS = (wire.SLOTS, 1)


def add_buffer(manifest, name, kind, dtype, *shape, **fields):
    """Appends a buffer; axes are integers or (symbol, multiplier). Its number."""
    buffer = manifest.buffers.add(name=name, kind=kind, dtype=dtype, **fields)
    for axis in shape:
        symbol, multiplier = axis if isinstance(axis, tuple) else (0, axis)
        buffer.shape.add(symbol=symbol, multiplier=multiplier)
    return len(manifest.buffers) - 1


def number(manifest, name):
    """The number of a buffer by name."""
    return next(i for i, buffer in enumerate(manifest.buffers) if buffer.name == name)


def add_buffers(manifest):
    """Staging, state, cache, scratch, weights and the completion record."""
    for name in ("live_packed", "live_lanes", "live_sampled", "update_count"):
        add_buffer(manifest, name, wire.STAGING, wire.I32, 1)
    for name in ("slot", "generation", "query_length", "consumed", "limit"):
        add_buffer(manifest, name, wire.STAGING, wire.I32, LANES)
    for name in ("token", "position", "lane"):
        add_buffer(manifest, name, wire.STAGING, wire.I32, PACKED)
    add_buffer(manifest, "updates", wire.STAGING, wire.I32, (wire.UPDATES, 1), 3)
    add_buffer(manifest, "seed", wire.STAGING, wire.U64, LANES)
    add_buffer(manifest, "histogram", wire.STAGING, wire.I32, LANES, VOCABULARY)
    add_buffer(manifest, "slot_limit", wire.STATE, wire.I32, SLOTS)
    add_buffer(manifest, "pending", wire.STATE, wire.I32, SLOTS)
    add_buffer(manifest, "slot_histogram", wire.STATE, wire.I32, SLOTS, VOCABULARY)
    add_buffer(manifest, "page_table", wire.STATE, wire.I32, SLOTS, (wire.PAGES_PER_REQUEST, 1))
    for name in ("key_cache", "value_cache"):
        add_buffer(manifest, name, wire.CACHE, wire.F32, (wire.PAGES, 1), (wire.PAGE_TOKENS, 1), 4)
    add_buffer(manifest, "hidden", wire.SCRATCH, wire.F32, PACKED, WIDTH)
    add_buffer(manifest, "tokens", wire.SCRATCH, wire.I32, PACKED)
    add_buffer(manifest, "embedding", wire.WEIGHT, wire.F32, VOCABULARY, WIDTH,
               resource_id="weights", resource_offset=0, resource_nbytes=VOCABULARY * WIDTH * 4)
    for field in range(wire.COMPLETION_SLOT, wire.COMPLETION_RESERVED + 1):
        shape = (LANES, 1) if field == wire.COMPLETION_TOKENS else (LANES,)
        add_buffer(manifest, wire.CompletionField.Name(field).lower(), wire.COMPLETION, wire.I32,
                   *shape, completion=field)


def make_manifest():
    """Initialise (with and without histogram), prefill, mixed and decode."""
    manifest = wire.ExecutionManifest(abi_version=6)
    add_buffers(manifest)
    manifest.live_packed, manifest.live_lanes, manifest.live_sampled = 0, 1, 2

    def at(name):
        return wire.Operand(buffer=number(manifest, name))

    start, start_counted, step = (manifest.host_bodies.add() for _ in range(3))
    for body in (start, start_counted):
        body.operations.add().scatter_rows.CopyFrom(wire.ScatterRows(
            source=at("limit"), slot=at("slot"), destination=at("slot_limit")))
    start_counted.operations.add().scatter_rows.CopyFrom(wire.ScatterRows(
        source=at("histogram"), slot=at("slot"), destination=at("slot_histogram")))
    step.operations.add().select_tokens.CopyFrom(wire.SelectTokens(
        staged=at("token"), has_staged=True, pending=at("pending"), slot=at("slot"),
        lane=at("lane"), output=at("tokens")))
    step.operations.add().embed.CopyFrom(wire.Embed(
        rows=wire.ROWS_PACKED, index=at("tokens"), table=number(manifest, "embedding"),
        output=at("hidden")))
    step.operations.add().update_page_table.CopyFrom(wire.UpdatePageTable(
        count=at("update_count"), updates=at("updates"), table=at("page_table")))
    step.operations.add().cache_write.CopyFrom(wire.CacheWrite(
        key=at("hidden"), value=at("hidden"), position=at("position"), lane=at("lane"),
        slot=at("slot"), table=at("page_table"), key_cache=number(manifest, "key_cache"),
        value_cache=number(manifest, "value_cache"), head=WIDTH))
    step.operations.add().scatter_rows.CopyFrom(wire.ScatterRows(
        source=at("tokens"), slot=at("slot"), destination=at("pending")))
    for name, operation, packed, body in (
        ("initialize", wire.INITIALIZE, 4, 0), ("initialize_histogram", wire.INITIALIZE, 4, 1),
        ("prefill", wire.PREFILL, 16, 2), ("mixed", wire.MIXED, 16, 2),
        ("decode", wire.DECODE, 4, 2),
    ):
        manifest.programs.add(name=name, operation=operation, batch_capacity=4, token_capacity=1,
                              packed_token_capacity=packed, body=body)
    return manifest


BINDINGS = {  # buffer -> source, indexing
    "live_packed": (contract.LIVE_PACKED, contract.SCALAR),
    "live_lanes": (contract.LIVE_LANES, contract.SCALAR),
    "live_sampled": (contract.LIVE_SAMPLED, contract.SCALAR),
    "slot": (contract.SLOT, contract.SUBMISSION_ROW),
    "generation": (contract.GENERATION, contract.ACTIVE_ROW),
    "query_length": (contract.QUERY_LENGTH, contract.ACTIVE_ROW),
    "consumed": (contract.CONSUMED, contract.ACTIVE_ROW),
    "token": (contract.TOKEN, contract.PACKED_TOKEN),
    "position": (contract.POSITION, contract.PACKED_TOKEN),
    "lane": (contract.LANE, contract.PACKED_TOKEN),
    "update_count": (contract.PAGE_UPDATE_COUNT, contract.SCALAR),
    "updates": (contract.PAGE_UPDATES, contract.SCALAR),
    "limit": (contract.OUTPUT_LIMIT, contract.ACTIVE_ROW),
    "seed": (contract.SEED, contract.ACTIVE_ROW),
    "histogram": (contract.PROMPT_HISTOGRAM, contract.ACTIVE_ROW),
}
LIVE = ("live_packed", "live_lanes", "live_sampled", "slot", "generation")
STEP = (*LIVE, "query_length", "consumed", "token", "position", "lane", "update_count", "updates")


STATES = (  # of each body: buffer, bytes of a row, access
    [("slot_limit", 4, contract.WRITE)],
    [("slot_limit", 4, contract.WRITE), ("slot_histogram", 4 * VOCABULARY, contract.WRITE)],
    [("pending", 4, contract.READ_WRITE), ("page_table", 0, contract.READ_WRITE)],
)


def list_states(graph, manifest, body):
    """Appends the views that a graph of this body lists; whole rows."""
    for name, row, access in STATES[body]:
        graph.states.add(buffer=number(manifest, name), row_stride=row, extent=row, access=access)


def add_graph(model, manifest, program, names):
    """Appends the GraphContract of a program that binds the named buffers."""
    graph = model.graphs.add(program=program.name, operation=program.operation)
    for name in names:
        source, indexing = BINDINGS[name]
        graph.bindings.add(buffer=number(manifest, name), source=source, indexing=indexing,
                           padding=-1 if name == "slot" else 0)
    list_states(graph, manifest, program.body)
    if program.operation in (wire.DECODE, wire.MIXED):
        graph.device_pending.CopyFrom(contract.StateView(
            buffer=number(manifest, "pending"), row_stride=4, extent=4, access=contract.READ_WRITE))


def make_contract(manifest):
    """The serving contract of `make_manifest`, version 3."""
    serving = contract.ServingContract(
        served_id="tiny", aliases=["smallest"], cache_identity="tiny-1", context_tokens=64,
        prefill_tokens=16, pages=8, concurrency=4)
    model = serving.model
    model.version, model.vocabulary, model.input_vocabulary = 3, VOCABULARY, VOCABULARY
    model.cache.page_tokens = 16
    model.cache.regions.add(
        kind=contract.PAGED_KEY_VALUE, compression_ratio=1,
        planes=[number(manifest, "key_cache"), number(manifest, "value_cache")])
    model.cache.tables.add(buffer=number(manifest, "page_table"))
    for program in manifest.programs:
        names = STEP
        if program.operation == wire.INITIALIZE:
            names = (*LIVE, "limit", "seed")
            if program.name.endswith("histogram"):
                names = (*names, "histogram")
        add_graph(model, manifest, program, names)
    frontend = model.frontend
    frontend.tool_syntax, frontend.reasoning_syntax = contract.TOOL_NONE, contract.REASONING_NONE
    frontend.text_decoding = contract.BYTE_LEVEL
    frontend.eos_tokens.append(2)
    frontend.template_tokens["eos_token"] = "<end>"
    serving.sampling.temperature = 0.5
    return serving


TOKENIZER = json.dumps({
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [
        {"id": 15, "content": "p", "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}],
    "normalizer": {"type": "Lowercase"}, "pre_tokenizer": None, "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                "use_regex": False}, "model": {
        "type": "BPE", "vocab": {chr(97 + i): i for i in range(VOCABULARY - 1)}, "merges": []},
}).encode()


def make_prepared(weight_nbytes=VOCABULARY * WIDTH * 4, license_text="Use it as you like.\n"):
    """What preparation would hand to the writer. More weight bytes than needed make more chunks."""
    manifest = make_manifest()
    embedding = np.random.default_rng(1).standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
    raw = embedding.reshape(-1).view(np.uint8)
    parts = [WeightPart("embedding", 0, raw.size, lambda: raw)]
    if weight_nbytes > raw.size:
        rest = np.arange(weight_nbytes - raw.size - 64, dtype=np.uint8)
        add_buffer(manifest, "rest", wire.WEIGHT, wire.U8, rest.size, resource_id="weights",
                   resource_offset=raw.size + 64, resource_nbytes=rest.size)
        parts.append(WeightPart("rest", raw.size + 64, rest.size, lambda: rest))
    token_bytes = core_pb2.TokenBytes(
        data=bytes(range(97, 97 + VOCABULARY)), offsets=range(VOCABULARY + 1),
        special=bytes(VOCABULARY - 1) + b"\1", fallback=bytes(VOCABULARY))
    return Prepared(
        manifest=manifest, contract=make_contract(manifest), tokenizer_json=TOKENIZER,
        chat_template="{{ messages[0].content }}", token_bytes=token_bytes,
        weights=Weights("weights", weight_nbytes, tuple(parts)), license_text=license_text)
