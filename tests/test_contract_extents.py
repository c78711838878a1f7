"""Sources, histories, views, tuning, device bodies, images, drafting: refusals by field."""

import pickle

import pytest

from helios_dod.contract.decode import decode
from helios_dod.contract.drafting import require_history
from helios_dod.contract.errors import ContractError
from helios_dod.contract.sources import LANE_INDEXINGS, SOURCES, elements_of
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from tests.test_contract_decode import graph_of, make_speculative, pair, refused
from tests.tiny_core import VOCABULARY, add_buffer, number

I32_SLOTS = (wire.I32, (wire.SLOTS, 1))


def graph_for(source):
    """A core, and a graph whose program may have the source."""
    rule = SOURCES[source]
    serving, manifest, graph = make_speculative(contract.QUERY_LENGTH)
    if rule.vision:
        serving.model.CopyFrom(with_vision()[0].model)
        graph = serving.model.graphs.add()
        graph.CopyFrom(make_speculative(contract.QUERY_LENGTH)[2])
    if rule.operations and wire.SPECULATIVE not in rule.operations:
        program = manifest.programs.add()
        program.CopyFrom(manifest.programs[2])
        prefill, graph = graph_of(serving, "prefill"), serving.model.graphs.add()
        graph.CopyFrom(prefill)
        graph.program = program.name = "own"
        graph.operation = program.operation = rule.operations[0]
        if rule.operations[0] == wire.MIXED:
            graph.device_pending.CopyFrom(graph_of(serving, "mixed").device_pending)
    if source == contract.QUERY_LENGTH:  # one length source
        graph.bindings.remove(next(b for b in graph.bindings if b.source == source))
    return serving, manifest, graph


@pytest.mark.parametrize("source", [s for s in SOURCES if s not in (
    contract.SPECULATIVE_PREFIX_LIMIT, contract.IMAGE_TENSOR)], ids=contract.ValueSource.Name)
def test_every_source_in_every_indexing_mode(source):
    """Each source is accepted in its modes and layouts, and refused in every other mode."""
    rule = SOURCES[source]
    for indexing in (contract.SCALAR, *LANE_INDEXINGS, contract.PACKED_TOKEN):
        for dtype, wanted in rule.layouts:
            serving, manifest, graph = graph_for(source)
            width = elements_of(wanted, VOCABULARY, 3, 4) or 5
            symbol = rule.indexings.get(indexing, wire.LANES)
            rows = (symbol, 1) if symbol else 1
            tail = (width,) if width != 1 else ()
            index = add_buffer(manifest, "fresh", wire.STAGING, dtype, rows, *tail)
            binding = graph.bindings.add(
                buffer=index, source=source, indexing=indexing, padding=-1)
            if indexing in rule.indexings:
                made = decode(serving, manifest).programs[-1].bindings[-1]
                assert (made.source, made.indexing, made.offset, made.padding) == (
                    source, indexing, 0, -1)
                check_offsets(serving, manifest, binding, rule)
                manifest.buffers[index].dtype = wire.I8
                refused(serving, manifest, "buffer", contract.ValueSource.Name(source))
            else:
                refused(serving, manifest, "indexing")
    if rule.version > 1:
        serving.model.version = 1
        refused(serving, manifest, "contract.model")


def check_offsets(serving, manifest, binding, rule):
    """Only tokens, positions and endpoints may be shifted, and by no more than stays inside i32."""
    for offset in (1, -1, 2**30 - 1, 2**30, -2**30, 2**31 - 1, -2**31):
        binding.offset = offset
        if rule.offset and abs(offset) < 2**30:
            assert decode(serving, manifest).programs[-1].bindings[-1].offset == offset
        else:
            refused(serving, manifest, "offset", f"got {offset}")
    binding.offset = 0


@pytest.mark.parametrize("source", [s for s in SOURCES if SOURCES[s].operations],
                         ids=contract.ValueSource.Name)
def test_sources_of_some_operations_are_of_no_other(source):
    serving, manifest, graph = graph_for(source)
    rule, dtype, wanted = SOURCES[source], *SOURCES[source].layouts[0]
    indexing, symbol = next(iter(rule.indexings.items()))
    width = elements_of(wanted, VOCABULARY, 3, 4)
    index = add_buffer(manifest, "fresh", wire.STAGING, dtype, (symbol, 1) if symbol else 1,
                       *((width,) if width != 1 else ()))
    graph.bindings.add(buffer=index, source=source, indexing=indexing)
    decode(serving, manifest)
    graph_of(serving, "decode").bindings.add().CopyFrom(graph.bindings[-1])
    refused(serving, manifest, "source", ", got DECODE")


def test_image_sources_need_images():
    serving, manifest, graph = make_speculative(contract.QUERY_LENGTH)
    index = add_buffer(manifest, "features", wire.STAGING, wire.I32, (wire.PACKED, 1))
    graph.bindings.add(buffer=index, source=contract.IMAGE_FEATURE_INDEX,
                       indexing=contract.PACKED_TOKEN)
    refused(serving, manifest, "source", "ModelContract.vision beside it")


def with_vision():
    serving, manifest = pair()
    vision, frontend = serving.model.vision, serving.model.frontend
    vision.feature_slots, vision.features_per_window, vision.patches_per_feature = 2, 64, 4
    vision.patch_capacities[:] = [64, 256]
    serving.model.input_vocabulary = VOCABULARY + 2
    image = frontend.image
    image.preparation, image.layout = contract.RESIZE_TO_GRID, contract.FEATURE_RUN
    image.tokens.feature_tokens.append(VOCABULARY)
    image.tokens.atomic_spans.add(open_token=3, close_token=4)
    image.settings.patch, image.settings.pixels_min, image.settings.pixels_max = 14, 1, 1000
    image.settings.mean[:] = [0.5] * 3
    image.settings.deviation[:] = [0.5] * 3
    image.tensors.append("patches")
    return serving, manifest, image


def test_images_and_vision():
    serving, manifest, image = with_vision()
    prepared = decode(serving, manifest)
    assert prepared.vision.patch_capacities == (64, 256)
    assert prepared.frontend.image.atomic_spans == ((3, 4),)
    read = prepared.frontend.image
    assert read.feature_tokens == (VOCABULARY,) and read.placeholder_token == VOCABULARY
    assert (read.merged_side, read.temporal_patch, read.area_frames) == (2, 1, 1)
    assert (read.resize_filter, read.patch_order) == ("bicubic", "merged_blocks")
    image.preparation = contract.CAP_AND_PAD
    image.settings.patches_max, image.settings.side_patches_max = 64, 8
    image.settings.fixed_features, image.settings.order = 64, contract.RASTER
    image.tokens.before.add(token=3)
    image.tokens.before.add(text="{width}x{height}")
    image.tokens.placeholder_token = 5
    read = decode(serving, manifest).frontend.image
    assert (read.parts_before, read.placeholder_token, read.patches_max, read.fixed_features) == (
        (3, "{width}x{height}"), 5, 64, 64)
    changes = [
        (lambda s, i: s.model.ClearField("vision"), "image"),
        (lambda s, i: s.model.frontend.ClearField("image"), "image"),
        (lambda s, i: setattr(s.model.vision, "feature_slots", 0), "feature_slots"),
        (lambda s, i: setattr(s.model.vision, "features_per_window", 0), "features_per_window"),
        (lambda s, i: setattr(s.model.vision, "patches_per_feature", 0), "patches_per_feature"),
        (lambda s, i: s.model.vision.patch_capacities.append(5), "patch_capacities"),
        (lambda s, i: s.model.vision.patch_capacities.append(257), "patch_capacities"),
        (lambda s, i: i.tokens.feature_tokens.append(99), "feature_tokens"),
        (lambda s, i: i.tokens.feature_tokens.append(VOCABULARY - 1), "feature_tokens[1]"),
        (lambda s, i: i.tokens.feature_tokens.append(VOCABULARY), "feature_tokens"),
        (lambda s, i: i.tokens.atomic_spans.add(open_token=VOCABULARY), "feature_tokens[0]"),
        (lambda s, i: i.tokens.ClearField("feature_tokens"), "feature_tokens"),
        (lambda s, i: i.tokens.atomic_spans.add(open_token=99), "atomic_spans"),
        (lambda s, i: setattr(i, "layout", contract.FEATURE_ROWS), "separator_token"),
        (lambda s, i: setattr(i.settings, "patch", 0), "settings.patch"),
        (lambda s, i: setattr(i.settings, "pixels_min", 2000), "pixels_max"),
        (lambda s, i: i.settings.mean.append(1), "mean"),
        (lambda s, i: i.settings.deviation.__setitem__(0, 0.0), "deviation"),
        (lambda s, i: i.tensors.append("patches"), "tensors"),
        (lambda s, i: setattr(i, "preparation", 0), "preparation"),
        (lambda s, i: setattr(i, "preparation", contract.CAP_AND_PAD), "patches_max"),
        (lambda s, i: setattr(i.settings, "side_patches_max", 1), "side_patches_max"),
        (lambda s, i: setattr(i.settings, "filter", 0), "filter"),
        (lambda s, i: setattr(i.settings, "order", 9), "order"),
        (lambda s, i: setattr(i.settings, "temporal_patch", 65), "temporal_patch"),
        (lambda s, i: setattr(i.settings, "area_frames", 65), "area_frames"),
        (lambda s, i: setattr(i.settings, "side_min", 1 << 15), "side_min"),
        (lambda s, i: setattr(i.settings, "aspect_max", 1 << 15), "aspect_max"),
        (lambda s, i: setattr(i.settings, "pad_value", 256), "pad_value"),
        (lambda s, i: setattr(i.settings, "fixed_features", 65), "fixed_features"),
        (lambda s, i: (setattr(i.settings, "fixed_features", 4),
                       setattr(i, "layout", contract.FEATURE_GRID)), "fixed_features"),
        (lambda s, i: setattr(s.model.vision, "patches_per_feature", 5), "patches_per_feature"),
        (lambda s, i: setattr(i.tokens, "placeholder_token", 99), "placeholder_token"),
        (lambda s, i: i.tokens.before.add(token=99), "tokens.before[0].token"),
        (lambda s, i: i.tokens.before.add(), "tokens.before[0]"),
        (lambda s, i: i.tokens.after.add(text="x" * 129), "tokens.after[0]"),
        (lambda s, i: [i.tokens.after.add(token=1) for _ in range(17)], "tokens.after"),
        (lambda s, i: setattr(s.model, "version", 2), "image"),
    ]
    for change, field in changes:
        serving, manifest, image = with_vision()
        change(serving, image)
        refused(serving, manifest, field)


def test_image_tensors_are_bound_by_name():
    serving, manifest, _ = with_vision()
    index = add_buffer(manifest, "patches", wire.STAGING, wire.F32, (wire.PACKED, 1), 6)
    binding = graph_of(serving, "prefill").bindings.add(
        buffer=index, source=contract.IMAGE_TENSOR, indexing=contract.PACKED_TOKEN,
        tensor="patches")
    assert decode(serving, manifest).programs[2].bindings[-1].tensor == "patches"
    binding.tensor = "pixels"
    refused(serving, manifest, "tensor", "got pixels")
    binding.tensor = "patches"
    binding.source, binding.indexing = contract.POSITION, contract.PACKED_TOKEN
    manifest.buffers[index].dtype, manifest.buffers[index].shape[1].multiplier = wire.I32, 3
    refused(serving, manifest, "tensor")


def test_lane_limits_and_speculative_widths():
    serving, manifest, _ = make_speculative(contract.QUERY_LENGTH)
    serving.speculative_widths.append(4)
    prepared = decode(serving, manifest)
    assert prepared.speculative_widths == (4,) and prepared.programs[-1].lane_limit == 4
    manifest.programs[-1].lane_limit = 5
    refused(serving, manifest, "lane_limit", "at most 4, min(D + 1, W)")
    manifest.programs[-1].lane_limit = 2
    assert decode(serving, manifest).programs[-1].lane_limit == 2
    manifest.programs[-1].draft_tokens = 1
    manifest.programs[-1].lane_limit = 3
    refused(serving, manifest, "lane_limit", "at most 2")
    manifest.programs[-1].lane_limit = 0
    serving.speculative_widths.append(5)
    refused(serving, manifest, "speculative_widths[1]")
    serving.speculative_widths[:] = [4, 4]
    refused(serving, manifest, "speculative_widths")


def test_confidence_has_framed_storage():
    serving, manifest, _ = make_speculative(contract.SPECULATIVE_PREFIX_LIMIT)
    index = manifest.proposal_confidence
    assert decode(serving, manifest).proposal_confidence == index
    manifest.ClearField("proposal_confidence")
    refused(serving, manifest, "proposal_confidence", "width 3, got none")
    manifest.proposal_confidence = index
    manifest.programs[-1].confidence_width = 0
    refused(serving, manifest, "confidence_width", "got 0")
    manifest.programs[-1].confidence_width = 2
    refused(serving, manifest, "confidence_width", "0 or draft_tokens")
    manifest.programs[-1].confidence_width = 3
    for axis, value in ((0, 1), (2, 2)):
        serving, manifest, _ = make_speculative(contract.SPECULATIVE_PREFIX_LIMIT)
        manifest.buffers[manifest.proposal_confidence].shape[axis].multiplier = value
        refused(serving, manifest, "proposal_confidence")
    manifest.proposal_confidence = 999
    refused(serving, manifest, "proposal_confidence", "got 999")


def test_history_drafting_needs_speculation_and_copied_tokens():
    serving, manifest, graph = make_speculative(contract.QUERY_LENGTH)
    chosen = range(len(manifest.programs))
    with pytest.raises(ContractError, match="learned speculation enabled, got disabled"):
        require_history(decode(serving, manifest), chosen, learned=False)
    with pytest.raises(ContractError, match="CANDIDATE_TOKENS in speculative, got none"):
        require_history(decode(serving, manifest), chosen, learned=True)
    for source in (contract.CANDIDATE_TOKENS, contract.CANDIDATE_COUNT,
                   contract.CANDIDATE_GENERATION, contract.CANDIDATE_ENDPOINT):
        tail = (3,) if source == contract.CANDIDATE_TOKENS else ()
        index = add_buffer(manifest, f"copied_{source}", wire.STAGING, wire.I32, (wire.LANES, 1),
                           *tail)
        graph.bindings.add(buffer=index, source=source, indexing=contract.ACTIVE_ROW)
    require_history(decode(serving, manifest), chosen, learned=True)
    with pytest.raises(ContractError, match="wider than 1"):
        require_history(decode(serving, manifest), range(5), learned=True)


def test_transport_owns_its_buffers():
    serving, manifest = pair()
    frame = add_buffer(manifest, "frame", wire.STAGING, wire.I32, 1)
    sequence = add_buffer(manifest, "sequence", wire.STAGING, wire.I64, 1)
    manifest.transport.frame_index, manifest.transport.submission_sequence = frame, sequence
    manifest.transport.frames = 2
    decode(serving, manifest)
    graph_of(serving, "decode").bindings.add(
        buffer=frame, source=contract.CONSTANT, indexing=contract.SCALAR)
    refused(serving, manifest, "buffer", "no buffer of the transport")
    for name, value in (("frames", 3), ("frame_index", sequence), ("submission_sequence", frame),
                        ("frame_index", 999)):
        serving, manifest = pair()
        add_buffer(manifest, "frame", wire.STAGING, wire.I32, 1)
        add_buffer(manifest, "sequence", wire.STAGING, wire.I64, 1)
        manifest.transport.frames = 2
        setattr(manifest.transport, name, value)
        refused(serving, manifest, f"transport.{name}")


def test_a_completion_record_holds_the_tokens_of_a_lane():
    """Before version 3 it was not said."""
    serving, manifest, _ = make_speculative(contract.QUERY_LENGTH)
    tokens = manifest.buffers[number(manifest, "completion_tokens")].shape[1]
    tokens.multiplier = 3
    refused(serving, manifest, "completion_tokens", "at least 4 columns, the tokens of a lane of "
            "speculative, got 3")
    serving.model.version = 2
    decode(serving, manifest)


def test_completion_layout_equals_the_columns():
    serving, manifest = pair()
    manifest.completion.token_width = 1
    decode(serving, manifest)
    manifest.completion.token_width = 2
    refused(serving, manifest, "completion.token_width")
    manifest.completion.token_width, manifest.completion.top_logprobs = 1, 20
    refused(serving, manifest, "completion.top_logprobs")


def test_staging_tables_and_ranks():
    serving, manifest = pair()
    index = add_buffer(manifest, "rows", wire.STAGING, wire.F32, (wire.PACKED, 1), 8)
    table = manifest.tables.add(name="rows", buffer=index, frames=2, consumer_ranks=[0, 1])
    manifest.ranks.add(rank=0, weights=["weights"])
    manifest.ranks.add(rank=1, weights=["weights"])
    prepared = decode(serving, manifest)
    assert prepared.staging_tables[0].consumer_ranks == (0, 1)
    assert [part.rank for part in prepared.ranks] == [0, 1]
    for name, value in (("name", ""), ("buffer", 999), ("frames", 1)):
        broken = wire.ExecutionManifest.FromString(manifest.SerializeToString())
        setattr(broken.tables[0], name, value)
        refused(serving, broken, f"tables[0].{name}")
    for ranks in ([1, 0], [0, 0], [2], [0, 1, 2]):
        table.consumer_ranks[:] = ranks
        refused(serving, manifest, "consumer_ranks", "ascending ranks below 2")
    table.consumer_ranks[:] = [0]
    manifest.ranks[1].rank = 2
    refused(serving, manifest, "ranks[1].rank")
    manifest.ranks[1].rank = 1
    for part in manifest.ranks:
        del part.weights[:]
    refused(serving, manifest, "ranks", "got weights")


TAGS = contract.TagSyntax(
    wrapper_open="<calls>", wrapper_close="</calls>", invoke_open="<call=", invoke_close="</call>",
    parameter_open="<p=", parameter_close="</p>", typing=contract.TYPED_BY_SCHEMA,
    orphan=contract.ORPHAN_TEXT, unions=contract.UNION_TEXT)


SYNTAXES = {
    "tags": TAGS, "json": contract.JsonSyntax(
        place=contract.NAME_IN_OBJECT, open="<call>", close="</call>", name_keys=["name"],
        argument_keys=["arguments"]),
    "pairs": contract.PairSyntax(
        call_open="<c>", call_close="</c>", key_open="<k>", key_close="</k>", value_open="<v>",
        value_close="</v>", typing=contract.TYPED_BY_SCHEMA, unions=contract.UNION_TEXT),
    "elements": contract.ElementSyntax(
        open="<|open|>", close="<|close|>", separator="<|sep|>", message="message", think="think",
        response="response", tools="tools", call="call", argument="argument", json="json",
        name_attribute="tool", key_attribute="key", type_attribute="type", string_type="string"),
    "frames": contract.FrameSyntax(
        start="<|start|>", message="<|message|>", ends=["<|end|>"], role="assistant",
        recipient=" to=")}


def with_output():
    serving, manifest = pair()
    frontend = serving.model.frontend
    frontend.tool_syntax, frontend.reasoning_syntax = contract.PARAMETER_TAGS, contract.THINK_TAGS
    output = frontend.output
    output.tags.CopyFrom(TAGS)
    output.think.open, output.think.close = "<think>", "</think>"
    output.tokens.append("<think>")
    output.call_ids, output.unknown_names = contract.CALL_ID_PREFIXED, contract.UNKNOWN_NAMES_DROP
    frontend.prefix_boundaries.add(roles=["system"], constraint=contract.RENDER_ALWAYS)
    return serving, manifest


def test_syntax_data_is_carried_plain():
    prepared = decode(*with_output()).frontend
    assert prepared.output.WhichOneof("tool") == "tags" and prepared.output.HasField("think")
    assert prepared.output.tags.invoke_open == "<call=" and prepared.output.tokens == ("<think>",)
    assert prepared.prefix_boundaries[0].roles == ("system",)
    assert hash(prepared) == hash(decode(*with_output()).frontend)
    assert pickle.loads(pickle.dumps(prepared)) == prepared
    with pytest.raises(AttributeError):
        prepared.output.tokens = ()


def test_a_model_has_a_frontend():
    """An absent message would read as selectors that select nothing."""
    serving, manifest = pair()
    serving.model.ClearField("frontend")
    refused(serving, manifest, "contract.model.frontend", "a FrontendContract, got none")


def test_syntax_pairings():
    def frontend_of(change):
        serving, manifest = with_output()
        change(serving.model.frontend)
        return serving, manifest

    def pairing(tool, reasoning, kind=None, think=False):
        def change(frontend):
            frontend.tool_syntax, frontend.reasoning_syntax = tool, reasoning
            frontend.output.ClearField("tags")
            if kind:
                getattr(frontend.output, kind).CopyFrom(SYNTAXES[kind])
            if not think:
                frontend.output.ClearField("think")
        return change

    def without_data(tool, reasoning):
        def change(frontend):
            frontend.ClearField("output")
            frontend.tool_syntax, frontend.reasoning_syntax = tool, reasoning
        return change

    refused(*frontend_of(pairing(contract.PARAMETER_TAGS, contract.THINK_ELEMENT)), "tool_syntax",
            "TYPED_ELEMENTS, which THINK_ELEMENT requires, got PARAMETER_TAGS")
    refused(*frontend_of(pairing(contract.TOOL_NONE, contract.REASONING_FRAMES)), "tool_syntax")
    refused(*frontend_of(pairing(contract.FRAMED_CALLS, contract.THINK_TAGS)), "reasoning_syntax")
    decode(*frontend_of(pairing(contract.TYPED_ELEMENTS, contract.THINK_ELEMENT, "elements")))
    decode(*frontend_of(pairing(contract.FRAMED_CALLS, contract.REASONING_FRAMES, "frames")))
    for tool, kind in ((contract.KEY_VALUE_TAGS, "pairs"), (contract.MARKED_JSON, "json"),
                       (contract.PARAMETER_TAGS, "tags"), (contract.TOOL_NONE, None)):
        decode(*frontend_of(pairing(tool, contract.THINK_TAGS, kind, think=True)))
        decode(*frontend_of(pairing(tool, contract.REASONING_NONE, kind)))
        refused(*frontend_of(pairing(tool, contract.REASONING_NONE, kind, think=True)),
                "output.think")
        refused(*frontend_of(pairing(tool, contract.THINK_TAGS, kind)), "output.think")
    refused(*frontend_of(pairing(contract.TYPED_ELEMENTS, contract.REASONING_NONE, "elements")),
            "reasoning_syntax", "THINK_ELEMENT with TYPED_ELEMENTS")
    decode(*frontend_of(without_data(contract.TOOL_NONE, contract.REASONING_NONE)))
    for tool, reasoning in ((contract.MARKED_JSON, contract.REASONING_NONE),
                            (contract.KEY_VALUE_TAGS, contract.THINK_TAGS),
                            (contract.TYPED_ELEMENTS, contract.THINK_ELEMENT),
                            (contract.FRAMED_CALLS, contract.REASONING_FRAMES)):
        refused(*frontend_of(without_data(tool, reasoning)), "output.tool", "got nothing")
    refused(*frontend_of(without_data(contract.TOOL_NONE, contract.THINK_TAGS)), "output.think",
            "got none")
    refused(*frontend_of(lambda f: f.output.tokens.append("x" * 129)), "output.tokens[1]",
            "at most 128 bytes")
    refused(*frontend_of(lambda f: f.output.tokens.extend(["x"] * 64)), "output.tokens",
            "at most 64")
    refused(*frontend_of(lambda f: setattr(f.output.think, "open", "é" * 65)), "output.think.open",
            "got 130")
    refused(*frontend_of(lambda f: setattr(f, "tool_syntax", contract.MARKED_JSON)), "output.tool")
    refused(*frontend_of(lambda f: f.output.ClearField("think")), "output.think")
    refused(*frontend_of(lambda f: setattr(f.output.think, "close", "")), "output.think.close")
    for markers in (["<call="], ["<calls>", "<calls>"], [""]):
        refused(*frontend_of(lambda f, m=markers: f.output.think.terminals.markers.extend(m)),
                "output.think.terminals.markers", "tool syntax, each once: <calls>")
    kept = decode(*frontend_of(lambda f: f.output.think.terminals.markers.append("<calls>")))
    assert kept.frontend.output.think.terminals.markers == ("<calls>",)
    refused(*frontend_of(lambda f: f.prefix_boundaries.add(
        roles=["robot"], constraint=contract.RENDER_ALWAYS)), "prefix_boundaries[1].roles")
    refused(*frontend_of(lambda f: f.prefix_boundaries.add(roles=["user"])), "constraint")
    refused(*frontend_of(lambda f: f.prefix_boundaries.add(
        constraint=contract.RENDER_ALWAYS)), "prefix_boundaries[1].roles")
