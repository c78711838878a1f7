"""Contract and manifest: what is accepted becomes plain values, all else is refused by name."""

import dataclasses
import tracemalloc

import pytest
from google.protobuf.message import DecodeError

from helios_dod import terms
from helios_dod.contract.decode import decode
from helios_dod.contract.errors import ContractError
from helios_dod.contract.manifest import (
    BY_NUMBER,
    COMPLETION_SHAPES,
    check_manifest,
    panel_nbytes,
)
from helios_dod.contract.operations import OPERATIONS
from helios_dod.contract.sources import SOURCES
from helios_dod.contract.strict import MessageLimits, check_counts, check_known
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import core_pb2
from helios_dod.contract.wire import manifest_pb2 as wire
from tests.tiny_core import VOCABULARY, add_buffer, make_contract, make_manifest, number


def pair():
    manifest = make_manifest()
    return make_contract(manifest), manifest


def graph_of(serving, name):
    return next(graph for graph in serving.model.graphs if graph.program == name)


def binding_of(serving, manifest, program, buffer):
    return next(binding for binding in graph_of(serving, program).bindings
                if binding.buffer == number(manifest, buffer))


def refused(serving, manifest, field, expected=None):
    """Asserts a ContractError whose field path holds `field`."""
    with pytest.raises(ContractError) as caught:
        decode(serving, manifest)
    assert field in caught.value.field, caught.value
    if expected is not None:
        assert expected in str(caught.value), caught.value


def test_accepted_contract_is_plain_and_frozen():
    serving, manifest = pair()
    prepared = decode(serving, manifest)
    assert [p.name for p in prepared.programs] == [p.name for p in manifest.programs]
    decoding = prepared.programs[4]
    assert (decoding.operation, decoding.batch, decoding.packed) == (terms.OP_DECODE, 4, 4)
    assert decoding.device_pending.buffer == number(manifest, "pending")
    assert not decoding.host_pending
    assert [p.histogram for p in prepared.programs] == [False, True, False, False, False]
    by_source = {made.source: made for made in prepared.programs[1].bindings}
    assert by_source[terms.SOURCE_SEED].words == 2
    assert by_source[terms.SOURCE_PROMPT_HISTOGRAM].words == VOCABULARY
    assert by_source[terms.SOURCE_SLOT].padding == -1
    updates = {made.source: made for made in decoding.bindings}[terms.SOURCE_PAGE_UPDATES]
    assert (updates.rows.symbol, updates.words) == (wire.UPDATES, 3)
    assert prepared.completions[0] == (wire.COMPLETION_SLOT, number(manifest, "completion_slot"))
    assert prepared.sampling.temperature == 0.5 and prepared.sampling.top_p is None
    assert prepared.cache.page_bytes == 2 * 16 * 4 * 4
    assert prepared.frontend.template_tokens == (("eos_token", "<end>"),)
    assert hash(prepared) == hash(decode(serving, manifest))
    with pytest.raises(dataclasses.FrozenInstanceError):
        prepared.vocabulary = 1


@pytest.mark.parametrize("version", [0, 4, 2**31])
def test_unsupported_version(version):
    serving, manifest = pair()
    serving.model.version = version
    refused(serving, manifest, "contract.model.version", f"expected 1, 2 or 3, got {version}")


def test_versions_are_subsets():
    serving, manifest = pair()
    serving.model.version = 2
    assert decode(serving, manifest).version == 2
    serving.model.version = 1
    refused(serving, manifest, "device_pending", "version 1")
    for graph in serving.model.graphs:
        if graph.HasField("device_pending"):
            graph.host_pending_binding = next(
                i for i, binding in enumerate(graph.bindings) if binding.source == contract.TOKEN)
    assert all(p.host_pending for p in decode(serving, manifest).programs[3:])
    serving.snapshots = 1
    refused(serving, manifest, "contract.snapshots")
    serving.snapshots = 0
    manifest.programs[4].token_capacity = 2
    refused(serving, manifest, "token_capacity", "width 1")


def test_decode_is_of_one_token():
    serving, manifest = pair()
    manifest.programs[4].token_capacity = 2
    refused(serving, manifest, "(decode): token_capacity", "1: DECODE generates one token, got 2")


def all_enum_fields(message, path=()):
    """(path, enum field) of every enum in a message that is set."""
    for field in message.DESCRIPTOR.fields:
        if field.type == field.TYPE_ENUM:
            yield (*path, field.name)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            if field.is_repeated:
                for i, part in enumerate(getattr(message, field.name)):
                    yield from all_enum_fields(part, (*path, (field.name, i)))
            elif message.HasField(field.name):
                yield from all_enum_fields(getattr(message, field.name), (*path, field.name))


def set_at(message, path, value):
    for step in path[:-1]:
        message = (getattr(message, step[0])[step[1]] if isinstance(step, tuple)
                   else getattr(message, step))
    setattr(message, path[-1], value)


ZERO_ALLOWED = {"symbol", "completion"}
ROWS_ALLOWED = ("rotary", "cache_write", "attention", "sample")  # operations with rows of their own


@pytest.mark.parametrize("which", [0, 1])
def test_every_enum_refuses_unknown_and_unspecified(which):
    paths = list(all_enum_fields(pair()[which]))
    assert len(paths) > 50
    for path in paths:
        for value in (999, -1, 0):
            if value == 0 and (path[-1] in ZERO_ALLOWED or (
                    path[-1] == "rows" and path[-2] in ROWS_ALLOWED)):
                continue
            messages = pair()
            set_at(messages[which], path, value)
            refused(*messages, path[-1], str(value))


def messages_of(message):
    """A message and all in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in value if field.is_repeated else (value,):
            yield from messages_of(part)


@pytest.mark.parametrize("which", [0, 1])
def test_unknown_fields_are_refused_at_any_depth(which):
    count = sum(1 for _ in messages_of(pair()[which]))
    for i in range(0, count, max(1, count // 60)):
        messages = pair()
        target = list(messages_of(messages[which]))[i]
        target.MergeFromString(b"\xfa\x3e\x01x")  # field 1007
        refused(*messages, ("contract", "manifest")[which], "unknown field number 1007")


UNKNOWN = {  # bytes that no field of a Buffer is stored as -> the number that is named
    "number": (b"\x98\x06\x01", 99), "text": (b"\x9a\x06\1x", 99), "four": (b"\x9d\x06abcd", 99),
    "eight": (b"\x99\x06abcdefgh", 99), "other type": (b"\x08\x01", 1),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_an_unknown_field_is_named_by_its_message(case):
    """Whatever is stored before it: texts, numbers of every length, floats, parts of parts."""
    data, number = UNKNOWN[case]
    serving, manifest = pair()
    last = len(manifest.buffers) - 1
    serving.sampling.temperature = 0.5
    manifest.buffers[last].MergeFromString(data)
    serving.sampling.MergeFromString(data)
    for message, name, place in ((manifest, "manifest", f"manifest.buffers[{last}]"),
                                 (serving, "contract", "contract.sampling")):
        with pytest.raises(ContractError) as caught:
            check_known(message, name)
        assert caught.value.field == place
        assert str(caught.value).endswith(f"unknown field number {number}")
        assert message == type(message)()  # what is left would pass, had it only lost that field


@pytest.mark.parametrize("part", [b"\x78\1", b"\x7a\0"])
def test_unknown_fields_are_not_made_to_name_one(part):
    """Two bytes each: protobuf's list of them takes 96."""
    _, manifest = pair()
    manifest.buffers[1].shape[0].MergeFromString(part * 200_000)
    size = manifest.ByteSize()
    tracemalloc.start()
    try:
        with pytest.raises(ContractError, match="unknown field number 15"):
            check_known(manifest, "manifest")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * size, peak


def test_unknown_map_entry_fields_are_refused():
    serving, _ = pair()
    entry = b"\x0a\x01k\x12\x01v\x98\x06\x01"
    inner = b"\x42" + bytes([len(entry)]) + entry
    serving.model.frontend.MergeFromString(inner)
    try:
        check_known(serving, "contract")
    except ContractError as error:
        assert "unknown" in str(error)
    else:  # protobuf drops unknown fields of map entries, so that nothing of them is kept
        assert b"\x98\x06\x01" not in serving.SerializeToString()


SERVING_CHANGES = {
    "contract.served_id": [("served_id", ""), ("served_id", "a\nb"), ("served_id", "x" * 300)],
    "contract.cache_identity": [("cache_identity", ""), ("cache_identity", "x" * 257),
                                ("cache_identity", "a\0b"), ("cache_identity", "a\n")],
    "contract.context_tokens": [("context_tokens", 0), ("context_tokens", 2**31)],
    "contract.prefill_tokens": [("prefill_tokens", 0), ("prefill_tokens", 17)],
    "contract.pages": [("pages", 0)],
    "contract.concurrency": [("concurrency", 0), ("concurrency", 5)],
}


@pytest.mark.parametrize("field", SERVING_CHANGES)
def test_serving_extents(field):
    for name, value in SERVING_CHANGES[field]:
        serving, manifest = pair()
        setattr(serving, name, value)
        refused(serving, manifest, field)


def test_aliases_are_names_of_their_own():
    serving, manifest = pair()
    serving.aliases.append("tiny")
    refused(serving, manifest, "contract.aliases[1]", "got tiny")


def test_vocabularies():
    serving, manifest = pair()
    serving.model.input_vocabulary = VOCABULARY - 1
    refused(serving, manifest, "contract.model.input_vocabulary")
    serving, manifest = pair()
    serving.model.vocabulary = 0
    refused(serving, manifest, "contract.model.vocabulary")
    serving, manifest = pair()
    serving.model.input_vocabulary = 2**20 + 1
    refused(serving, manifest, "contract.model.input_vocabulary", "1 to 1048576, got 1048577")
    serving, manifest = pair()
    serving.model.frontend.eos_tokens.append(VOCABULARY)
    refused(serving, manifest, "eos_tokens[1]")
    serving.model.frontend.eos_tokens[:] = [2, 2]
    refused(serving, manifest, "eos_tokens")
    serving.model.frontend.eos_tokens[:] = range(9)
    refused(serving, manifest, "eos_tokens", "at most 8")
    serving, manifest = pair()
    serving.model.frontend.bos_token, serving.model.frontend.add_bos = VOCABULARY, True
    refused(serving, manifest, "frontend.bos_token", "below the vocabulary, 16")


@pytest.mark.parametrize("name, values", [
    ("temperature", (-0.1, float("nan"), float("inf"))), ("top_p", (0.0, 1.1)),
    ("min_p", (-0.1, 1.1)), ("repetition_penalty", (0.0, -1.0)),
    ("presence_penalty", (-2.1, 2.1)), ("frequency_penalty", (-2.1, 2.1)), ("top_k", (2**31,)),
])
def test_sampling_defaults(name, values):
    for value in values:
        serving, manifest = pair()
        setattr(serving.sampling, name, value)
        refused(serving, manifest, f"contract.sampling.{name}")


def test_template_tokens_are_bounded():
    for tokens in ({"": "x"}, {"a b": "x"}, {"a\0": "x"}, {"x" * 257: "x"}, {"eos": "x" * 257},
                   {f"t{i}": "x" for i in range(65)}):
        serving, manifest = pair()
        serving.model.frontend.template_tokens.update(tokens)
        refused(serving, manifest, "frontend.template_tokens")


def test_programs_and_graphs_agree():
    serving, manifest = pair()
    graph_of(serving, "decode").operation = wire.MIXED
    refused(serving, manifest, "operation", "expected DECODE, as the manifest says, got MIXED")
    serving, manifest = pair()
    graph_of(serving, "decode").program = "other"
    refused(serving, manifest, "contract.model.graphs", "none for decode")
    serving, manifest = pair()
    serving.model.graphs.add(program="other", operation=wire.DECODE)
    refused(serving, manifest, "graphs[5].program", "got other")
    serving, manifest = pair()
    serving.model.graphs.add().CopyFrom(graph_of(serving, "decode"))
    refused(serving, manifest, "graphs[5].program")


@pytest.mark.parametrize("gone", ["initialize", "prefill", "decode"])
def test_missing_variants(gone):
    serving, manifest = pair()
    for messages, key in ((manifest.programs, "name"), (serving.model.graphs, "program")):
        keep = [part for part in messages if not getattr(part, key).startswith(gone)]
        del messages[:]
        messages.extend(keep)
    refused(serving, manifest, "manifest.programs", f"a variant of {gone.upper()}, got none")


def test_binding_destinations():
    serving, manifest = pair()
    binding_of(serving, manifest, "decode", "slot").buffer = number(manifest, "pending")
    refused(serving, manifest, "bindings[3]", "a STAGING buffer")
    serving, manifest = pair()
    binding_of(serving, manifest, "decode", "slot").buffer = 1000
    refused(serving, manifest, "bindings[3].buffer", "got 1000")
    serving, manifest = pair()
    binding_of(serving, manifest, "decode", "slot").buffer = number(manifest, "generation")
    refused(serving, manifest, "bindings[4].buffer", "one binding a buffer")
    serving, manifest = pair()
    binding_of(serving, manifest, "decode", "slot").indexing = contract.PACKED_TOKEN
    refused(serving, manifest, "indexing", "SUBMISSION_ROW or ACTIVE_ROW or PHYSICAL_ROW")
    serving, manifest = pair()
    binding_of(serving, manifest, "decode", "token").constant = 3
    refused(serving, manifest, "constant", "got 3")


@pytest.mark.parametrize("buffer", ["slot", "token", "updates", "seed", "histogram", "live_lanes"])
def test_binding_types_and_extents(buffer):
    program = "initialize_histogram" if buffer in ("seed", "histogram") else "decode"

    def widen(target):
        target.shape.add(multiplier=2)

    def retype(target):
        target.dtype = wire.F32

    def regroup(target):
        target.shape[0].symbol, target.shape[0].multiplier = wire.SLOTS, 3

    for change in (widen, retype, regroup):
        serving, manifest = pair()
        target = manifest.buffers[number(manifest, buffer)]
        change(target)
        with pytest.raises(ContractError) as caught:
            decode(serving, manifest)
        assert buffer in str(caught.value), (program, caught.value)


def test_admission_rows_may_be_fewer_than_lanes_but_hold_the_batch():
    serving, manifest = pair()
    rows = manifest.buffers[number(manifest, "seed")].shape[0]
    rows.symbol, rows.multiplier = 0, 4
    seed = {made.source: made for made in decode(serving, manifest).programs[0].bindings}
    assert seed[terms.SOURCE_SEED].rows.multiplier == 4
    rows.multiplier = 3
    refused(serving, manifest, "SEED to seed")


def test_live_counts_are_always_told():
    for name in ("live_lanes", "live_packed", "live_sampled"):
        serving, manifest = pair()
        graph = graph_of(serving, "decode")
        graph.bindings.remove(binding_of(serving, manifest, "decode", name))
        refused(serving, manifest, "bindings", f"to {name}, got none")
        serving, manifest = pair()
        binding = binding_of(serving, manifest, "decode", name)
        binding.source = contract.CONSTANT
        decode(serving, manifest)
        binding.constant = 1
        refused(serving, manifest, "bindings", f"to {name}, got CONSTANT")


def test_pending_token_has_one_owner():
    serving, manifest = pair()
    graph_of(serving, "decode").ClearField("device_pending")
    refused(serving, manifest, "pending", "got none")
    serving, manifest = pair()
    graph_of(serving, "decode").device_pending.access = contract.WRITE
    refused(serving, manifest, "device_pending.access", "READ")
    serving, manifest = pair()
    graph_of(serving, "decode").host_pending_binding = 99
    refused(serving, manifest, "host_pending_binding", "got 99")
    graph_of(serving, "decode").host_pending_binding = 3
    refused(serving, manifest, "host_pending_binding", "got SLOT")
    serving, manifest = pair()
    graph_of(serving, "decode").device_pending.buffer = add_buffer(
        manifest, "real", wire.STATE, wire.F32, (wire.SLOTS, 1))
    refused(serving, manifest, "device_pending.buffer", "STATE I32 [SLOTS ...]")
    view = graph_of(serving, "decode").device_pending
    view.buffer, view.row_stride, view.extent = number(manifest, "page_table"), 0, 0
    refused(serving, manifest, "device_pending.buffer", "one i32 of each row")


def test_states_lie_in_their_rows():
    for change in ({"row_stride": 8}, {"extent": 5}, {"extent": 0}, {"offset": 4},
                   {"offset": 2**40}, {"buffer": 4}, {"buffer": 999}):
        serving, manifest = pair()
        state = graph_of(serving, "initialize").states[0]
        decode(serving, manifest)
        for name, value in change.items():
            setattr(state, name, value)
        refused(serving, manifest, "states[0]")


def add_confidence(manifest):
    """What a program that allocates prefixes itself allocates them by."""
    manifest.programs[-1].confidence_width = 3
    manifest.proposal_confidence = add_buffer(
        manifest, "confidence", wire.STATE, wire.F32, 2, (wire.SLOTS, 1), 3)


def make_speculative(source):
    serving, manifest = pair()
    manifest.programs.add(name="speculative", operation=wire.SPECULATIVE, batch_capacity=4,
                          draft_tokens=3, token_capacity=4, packed_token_capacity=12, body=2)
    manifest.buffers[number(manifest, "completion_tokens")].shape[1].multiplier = 4
    if source == contract.SPECULATIVE_PREFIX_LIMIT:
        add_confidence(manifest)
    graph = serving.model.graphs.add()
    graph.CopyFrom(graph_of(serving, "decode"))
    graph.program, graph.operation = "speculative", wire.SPECULATIVE
    for binding in graph.bindings:
        if binding.source == contract.QUERY_LENGTH:
            binding.source = source
    return serving, manifest, graph


def test_speculative_programs_have_one_length_source():
    for source in (contract.QUERY_LENGTH, contract.SPECULATIVE_PREFIX_LIMIT):
        serving, manifest, graph = make_speculative(source)
        assert decode(serving, manifest).programs[-1].drafts == 3
    serving.model.version = 2
    refused(serving, manifest, "source", "contract version 3")
    serving, manifest, graph = make_speculative(contract.CONSUMED)
    refused(serving, manifest, "bindings", "one length source")
    add_confidence(manifest)
    extra = add_buffer(manifest, "ceilings", wire.STAGING, wire.I32, (wire.LANES, 1))
    graph.bindings.add(buffer=extra, source=contract.SPECULATIVE_PREFIX_LIMIT,
                       indexing=contract.ACTIVE_ROW)
    decode(serving, manifest)
    for binding in graph.bindings:
        if binding.buffer == number(manifest, "query_length"):
            binding.source = contract.QUERY_LENGTH
    refused(serving, manifest, "bindings", "one length source")
    graph_of(serving, "decode").bindings.add().CopyFrom(graph.bindings[-1])
    refused(serving, manifest, "bindings", "only on a SPECULATIVE")


def test_cache_regions_name_cache_planes():
    cases = [
        (lambda r, m: r.planes.append(number(m, "pending")), "planes"),
        (lambda r, m: r.planes.append(999), "planes"),
        (lambda r, m: r.planes.append(r.planes[0]), "planes"),
        (lambda r, m: r.planes.pop(), "regions"),
        (lambda r, m: r.ClearField("planes"), "planes"),
        (lambda r, m: setattr(r, "window_tokens", 8), "window_tokens"),
        (lambda r, m: setattr(r, "kind", contract.SLIDING_WINDOW), "window_tokens"),
        (lambda r, m: setattr(r, "compression_ratio", 0), "compression_ratio"),
        (lambda r, m: setattr(r, "page_group", 2), "page_group"),
        (lambda r, m: setattr(r, "kind", contract.RECURRENT), "planes"),
    ]
    for change, field in cases:
        serving, manifest = pair()
        change(serving.model.cache.regions[0], manifest)
        refused(serving, manifest, field)


def test_page_tables():
    serving, manifest = pair()
    serving.model.cache.tables[0].buffer = number(manifest, "slot_histogram")
    refused(serving, manifest, "tables[0].buffer", "STATE I32 [SLOTS, PAGES_PER_REQUEST]")
    serving, manifest = pair()
    serving.model.cache.tables[0].page_group = 7
    refused(serving, manifest, "tables[0].page_group")
    serving, manifest = pair()
    serving.model.cache.page_tokens = 0
    refused(serving, manifest, "page_tokens")
    serving.model.cache.page_tokens = 16
    serving.model.cache.cursor_lag_tokens = -1
    refused(serving, manifest, "cursor_lag_tokens")


def buffer_changes():
    """(buffer, change, what the message must hold)."""
    def set_(name, value):
        return lambda buffer: setattr(buffer, name, value)

    def axis(i, symbol, multiplier):
        def change(buffer):
            buffer.shape[i].symbol, buffer.shape[i].multiplier = symbol, multiplier
        return change

    return [
        ("slot", set_("name", ""), "a name of its own"),
        ("slot", set_("name", "token"), "a name of its own"),
        ("slot", lambda b: b.ClearField("shape"), "axes"),
        ("slot", lambda b: [b.shape.add(multiplier=1) for _ in range(4)], "axes"),
        ("slot", axis(0, wire.LANES, 0), "at least 1"),
        ("hidden", axis(1, 0, 2**32 - 1), "i32|inside the row|resource|elements|WEIGHT"),
        ("updates", axis(1, wire.LANES, 1), "constant axes"),
        ("slot", set_("resource_id", "weights"), "only on a WEIGHT"),
        ("slot", set_("completion", 1), "COMPLETION"),
        ("completion_slot", set_("completion", 0), "COMPLETION"),
        ("completion_slot", set_("completion", 2), "one buffer a completion field|layout"),
        ("completion_slot", set_("dtype", wire.F32), "layout of COMPLETION_SLOT"),
        ("completion_tokens", axis(0, wire.SLOTS, 1), "layout of COMPLETION_TOKENS"),
        ("key_cache", axis(0, wire.SLOTS, 1), "PAGES as axis 0"),
        ("key_cache", axis(2, wire.LANES, 1), "constants or PAGE_TOKENS"),
        ("embedding", set_("resource_id", ""), "a weight resource"),
        ("embedding", set_("resource_offset", 32), "a multiple of 64"),
        ("embedding", set_("resource_nbytes", 1), "the bytes of its shape"),
        ("embedding", axis(0, wire.LANES, 1), "constant axes for a WEIGHT"),
        ("embedding", lambda b: b.panel.SetInParent(), "PANEL"),
        ("live_lanes", set_("dtype", wire.U32), "one i32"),
        ("live_lanes", axis(0, 0, 2), "one i32"),
    ]


@pytest.mark.parametrize("case", range(len(buffer_changes())))
def test_buffers(case):
    name, change, expected = buffer_changes()[case]
    serving, manifest = pair()
    if name == "hidden":
        manifest.buffers[number(manifest, name)].shape.add(multiplier=2**31)
    change(manifest.buffers[number(manifest, name)])
    with pytest.raises(ContractError, match=expected):
        decode(serving, manifest)


def panel_weight(**changes):
    serving, manifest = pair()
    panel = wire.Panel(encoding=wire.PANEL_Q4, rows=16, columns=64, panel_rows=16, block_columns=32,
                       scale=wire.F16, minimum=wire.F16)
    for name, value in changes.items():
        setattr(panel, name, value)
    try:
        nbytes = panel_nbytes(panel) or 512
    except (KeyError, ZeroDivisionError):  # a shape that means nothing
        nbytes = 512
    index = add_buffer(manifest, "matrix", wire.WEIGHT, wire.U8, nbytes, resource_id="weights",
                       resource_nbytes=nbytes)
    manifest.buffers[index].panel.CopyFrom(panel)
    return serving, manifest


def test_panels():
    decode(*panel_weight())
    decode(*panel_weight(minimum=0))
    decode(*panel_weight(encoding=wire.PANEL_BF16, block_columns=0, scale=0, minimum=0))
    for changes, field in (
        ({"rows": 0}, "rows"), ({"columns": 0}, "columns"), ({"panel_rows": 0}, "panel_rows"),
        ({"block_columns": 0}, "block_columns"), ({"block_columns": 48}, "block_columns"),
        ({"scale": 0}, "scale"), ({"scale": wire.I32}, "scale"), ({"minimum": wire.I8}, "minimum"),
        ({"encoding": wire.PANEL_F32}, "block_columns"),
        ({"encoding": wire.PANEL_F32, "block_columns": 0}, "scale"),
    ):
        refused(*panel_weight(**changes), field)


def test_missing_completion_column():
    serving, manifest = pair()
    buffer = manifest.buffers[number(manifest, "completion_cursor")]
    buffer.kind, buffer.completion = wire.SCRATCH, 0
    refused(serving, manifest, "manifest.buffers", "COMPLETION_CURSOR, got none")


def test_operations_name_buffers_of_the_right_kind():
    def embed(manifest):
        return manifest.host_bodies[2].operations[1].embed

    cases = [
        (lambda e, m: setattr(e, "table", 999), "embed.table"),
        (lambda e, m: setattr(e, "table", number(m, "hidden")), "embed.table"),
        (lambda e, m: setattr(e.output, "buffer", number(m, "embedding")), "embed.output"),
        (lambda e, m: setattr(e.output, "buffer", number(m, "slot")), "embed.output"),
        (lambda e, m: setattr(e.output, "buffer", 999), "embed.output"),
        (lambda e, m: setattr(e.index, "buffer", number(m, "hidden")), "embed.index"),
        (lambda e, m: e.ClearField("index"), "embed.index"),
        (lambda e, m: setattr(e.output, "columns", 5), "embed.output"),
        (lambda e, m: setattr(e.output, "column", 2**32 - 1), "embed.output"),
    ]
    for change, field in cases:
        serving, manifest = pair()
        change(embed(manifest), manifest)
        refused(serving, manifest, field)
    serving, manifest = pair()
    manifest.host_bodies[2].operations.add()
    refused(serving, manifest, "operations[5]", "an operation")
    serving, manifest = pair()
    select = manifest.host_bodies[2].operations[0].select_tokens
    select.ClearField("staged")
    refused(serving, manifest, "select_tokens.staged")
    select.has_staged = False
    decode(serving, manifest)


def test_what_a_body_reads_of_staging_is_filled():
    for program, buffer in (("decode", "token"), ("initialize", "limit"), ("prefill", "lane")):
        serving, manifest = pair()
        graph = graph_of(serving, program)
        graph.bindings.remove(binding_of(serving, manifest, program, buffer))
        refused(serving, manifest, f"({program}).bindings", f"got none to {buffer}")
    manifest.tables.add(
        name="lanes", buffer=number(manifest, "lane"), frames=2, consumer_ranks=[0])
    refused(serving, manifest, "select_tokens.lane (prefill)", "numbers of rows, got number")


def test_program_extents():
    for name, value in (("batch_capacity", 0), ("token_capacity", 0), ("packed_token_capacity", 0),
                        ("packed_token_capacity", 3), ("packed_token_capacity", 5),
                        ("draft_tokens", 1), ("body", 3), ("name", ""), ("name", "mixed"),
                        ("confidence_width", 2)):
        serving, manifest = pair()
        setattr(manifest.programs[4], name, value)
        refused(serving, manifest, f"programs[4]{'' if name == 'name' else ' (decode)'}.{name}")


def test_empty_messages_are_refused():
    with pytest.raises(ContractError):
        decode(contract.ServingContract(), wire.ExecutionManifest())
    with pytest.raises(ContractError, match=r"manifest\.buffers"):
        check_manifest(wire.ExecutionManifest())


def test_tables_cover_the_schema():
    """A value, column or operation added to the schema must get its rule."""
    assert set(SOURCES) == set(contract.ValueSource.values()) - {0}
    assert set(COMPLETION_SHAPES) == set(wire.CompletionField.values()) - {0}
    operations = wire.HostOperation.DESCRIPTOR.fields_by_name
    assert set(OPERATIONS) == set(operations)
    for name, touches in OPERATIONS.items():
        fields = operations[name].message_type.fields_by_name
        operands = {field.name for field in fields.values() if field.message_type is not None}
        named = {touch.field for touch in touches if touch.role not in BY_NUMBER}
        assert named == operands
        for touch in touches:
            assert touch.field in fields and (not touch.flag or touch.flag in fields)


def test_zero_selects_nothing_in_every_enum():
    for module in (manifest_module.DESCRIPTOR for manifest_module in (wire, contract, core_pb2)):
        for enum in module.enum_types_by_name.values():
            assert enum.values_by_number[0].name.endswith("_UNSPECIFIED"), enum.full_name


COUNTED = {  # bytes behind an honest manifest -> the problem
    "messages": (b"\x12\0" * 5000, "ExecutionManifest.buffers: expected at most 4000 messages"),
    "nested": (b"\x12\x82\x80\x01" + b"\x22\0" * 8193, "Buffer.shape: expected at most 4000"),
    "unknown": (b"\x82\x7d\0" * 5000, "ExecutionManifest, field 2000: expected at most 4000"),
    "texts": (b"\x72\x80\x60" + b"\x12\0" * 6144, "RankResources.weights: expected at most 4000"),
    "numbers": (b"\x52\x84\x80\x03\x22\x80\x80\x03" + bytes(49152),
                "TuningGraph.outputs: expected at most 20000 values in all"),
    "fields": (b"\x08\1" * 20001, "ExecutionManifest: expected at most 20000 values in all"),
    "leaves": (b"\x5a\x80\x80\x03" + b"\x18\1" * 24576,
               "ExecutionManifest.transport: expected at most 20000 values in all"),
    "text": (b"\x12\x84\x20\x0a\x81\x20" + b"a" * 4097, "Buffer.name: expected at most 4096 bytes"),
}


@pytest.mark.parametrize("case", COUNTED)
def test_messages_are_counted_before_they_are_made(case):
    data, problem = COUNTED[case]
    honest = make_manifest().SerializeToString()
    limits = MessageLimits(messages=4000, values=20_000)
    check_counts(honest, wire.ExecutionManifest(), limits)
    wire.ExecutionManifest.FromString(honest + data)
    with pytest.raises(ContractError) as caught:
        check_counts(honest + data, wire.ExecutionManifest(), limits)
    assert problem in str(caught.value)


@pytest.mark.parametrize("data", [
    b"\x12", b"\x12\1", b"\x12\x80", b"\x08", b"\x08\x80", b"\x0d\0", b"\x09\0", b"\x13\x14",
    b"\x12\2\x0a\1a", b"\x12\x82\x80\x80\x80\x80\0", b"\x12\1\x08\1", b"\x0f",
])
def test_what_is_no_message_is_not_counted(data):
    with pytest.raises(DecodeError):
        check_counts(data, wire.ExecutionManifest(), MessageLimits(100, 100))


def test_counts_are_exact():
    manifest = make_manifest()
    data = manifest.SerializeToString()
    messages, waiting = 0, [manifest]
    while waiting:
        for field, value in waiting.pop().ListFields():
            if field.message_type is not None:
                parts = list(value) if field.is_repeated else [value]
                messages += len(parts)
                waiting += parts
            elif field.is_repeated and field.type == field.TYPE_STRING:
                messages += len(value)
    check_counts(data, manifest, MessageLimits(messages, 10**6))
    with pytest.raises(ContractError, match=f"at most {messages - 1} messages"):
        check_counts(data, manifest, MessageLimits(messages - 1, 10**6))
