"""What each operand of a host operation must be: rows, columns, type, and what its i32 mean."""

import pytest
from fuzz_runs import repair
from hybrid_core import prepare_hybrid
from ignition_fixtures import opened, prepared

from helios_dod.contract.decode import decode
from helios_dod.contract.errors import ContractError
from helios_dod.contract.operations import BY_NUMBER, OPERATIONS
from helios_dod.contract.values import ALLOWED, COLUMNS
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.preparation.options import Options
from helios_dod.ignition.recipes import prepare
from tests.tiny_core import add_buffer, number


@pytest.fixture(scope="module")
def cores():
    drafting = Options(cache="f32", lanes=4, packed=(16, 32), scored=16, widths=(2, 4),
                       draft_layers=1)
    return {"decoder": prepared("llama2"), "hybrid": prepare_hybrid(3),
            "rounds": prepare_hybrid(3, widths=(2,)),
            "drafting": prepare(opened("llama2"), drafting)}


def copy_of(core):
    serving, manifest = contract.ServingContract(), wire.ExecutionManifest()
    serving.CopyFrom(core.contract)
    manifest.CopyFrom(core.manifest)
    return serving, manifest


def parts(manifest, name):
    """Every operation of that name."""
    return [getattr(operation, name) for body in manifest.host_bodies
            for operation in body.operations if operation.WhichOneof("operation") == name]


def point(name, field, buffer, column=0, columns=0):
    """Lets an operand of every such operation be another buffer."""
    def change(serving, manifest):
        for part in parts(manifest, name):
            place = getattr(part, field)
            place.buffer, place.column, place.columns = number(manifest, buffer), column, columns
    return change


def number_of(name, field, value):
    """Another attribute, in every such operation."""
    def change(serving, manifest):
        for part in parts(manifest, name):
            setattr(part, field, value)
    return change


def fresh(name, field, kind, dtype, *shape):
    """A buffer of its own for an operand."""
    def change(serving, manifest):
        index = add_buffer(manifest, "fresh", kind, dtype, *shape)
        for part in parts(manifest, name):
            getattr(part, field).CopyFrom(wire.Operand(buffer=index))
    return change


def source(buffer, value, constant=0, offset=0):
    """Another source of a staged buffer, in every program."""
    def change(serving, manifest):
        index = number(manifest, buffer)
        for graph in serving.model.graphs:
            for binding in graph.bindings:
                if binding.buffer == index:
                    binding.source, binding.constant, binding.offset = value, constant, offset
    return change


def shape(buffer, axis, symbol, multiplier=1):
    def change(serving, manifest):
        extent = manifest.buffers[number(manifest, buffer)].shape[axis]
        extent.symbol, extent.multiplier = symbol, multiplier
    return change


def add(make, at=0, body=-1):
    """An operation more, in a body, before all others or behind them."""
    def change(serving, manifest):
        target = manifest.host_bodies[body]
        behind = list(target.operations)[at:]
        copies = [wire.HostOperation.FromString(o.SerializeToString()) for o in behind]
        del target.operations[at:]
        target.operations.add().CopyFrom(make(manifest))
        target.operations.extend(copies)
    return change


def fill(buffer, slot, value):
    def make(manifest):
        return wire.HostOperation(fill_rows=wire.FillRows(
            value=value, slot=wire.Operand(buffer=number(manifest, slot)),
            destination=wire.Operand(buffer=number(manifest, buffer))))
    return make


def state_rows(count):
    """Rows of state of a request, as speculative programs declare them."""
    def change(serving, manifest):
        for graph in serving.model.graphs:
            if graph.operation == wire.SPECULATIVE:
                graph.state_rows_per_request = count
    return change


F32, I32, SCRATCH, STATE = wire.F32, wire.I32, wire.SCRATCH, wire.STATE
CASES = {
    # rows
    "selected rows into one column": (
        "decoder", fresh("select_rows", "output", SCRATCH, F32, (wire.LANES, 1), 1),
        "select_rows.output", "elements of a row, got 1"),
    "packed rows into lanes": (
        "decoder", fresh("embed", "output", SCRATCH, F32, (wire.LANES, 1), 72),
        "embed.output", "rows for 128 packed tokens, got fresh: SCRATCH F32 [LANES, 72]"),
    "slots in one row": (
        "decoder", shape("temperature", 0, 0, 1), "scatter_rows.destination",
        "a row for every slot, got temperature: STATE F32 [1]"),
    "packed rows selected out of lanes": (
        "decoder", point("select_rows", "input", "selected"), "select_rows.input",
        "a row for every sample row"),
    "sampled rows where lanes do not sample": (
        "decoder", number_of("select_rows", "rows", wire.ROWS_LANES), "select_rows.index",
        "numbers of rows, got sample row"),
    "logits of packed rows": (
        "decoder", shape("logits", 0, wire.LANES), "product.output", "packed tokens"),
    "state rows by slot": (
        "hybrid", point("recurrent_scan", "state_row", "slot"), "recurrent_scan.state",
        "a row for every slot"),
    "more rows than a request has": (
        "hybrid", number_of("copy_state_rows", "rows", 2), "copy_state_rows.rows",
        "at most 1 of a request"),
    "snapshots into live rows": (
        "hybrid", point("copy_state_rows", "destination_row", "state_row"),
        "copy_state_rows.destination", "a row for every state row"),
    # columns and types
    "a narrow histogram": ("decoder", point("advance", "histogram", "generated"),
                           "advance.histogram", "elements of a row, got 1"),
    "stop tokens as biases": ("decoder", point("adjust_logits", "bias_tokens", "stop_tokens"),
                              "adjust_logits.bias_tokens", "at least 512 elements of a row, got 8"),
    "floats as drawn tokens": ("decoder", point("sample", "output", "temperature"),
                               "sample.output", "I32, got F32"),
    "a product of other columns": (
        "decoder", fresh("product", "input", SCRATCH, F32, (wire.PACKED, 1), 7),
        "product.input", "elements of a row, got 7"),
    "a report in another column": (
        "decoder", point("sample", "top_tokens", "completion_tokens"), "sample.top_tokens",
        "at least 20 elements of a row, got 1"),
    "a report in the column of another": (
        "drafting", lambda s, m: (shape("completion_tokens", 1, 0, 24)(s, m),
                                  point("sample", "top_tokens", "completion_tokens")(s, m)),
        "sample.top_tokens", "the column of this report"),
    "no head": ("decoder", number_of("cache_write", "head", 0), "cache_write.head", "got 0"),
    "no key head": ("decoder", number_of("attention", "key_heads", 0), "attention.key_heads", ""),
    "heads that share unevenly": ("decoder", number_of("attention", "heads", 5),
                                  "attention.query", "elements of a row"),
    "a rotary head of nothing": ("decoder", number_of("rotary", "head", 0), "rotary.head", ""),
    "more frequencies than a head": ("decoder", number_of("rotary", "head", 1),
                                     "rotary.frequencies", "at most 0"),
    "a group across a row": ("decoder", number_of("normalise", "group", 5), "normalise.weight",
                             "5 elements of a row"),
    "a page in too few bytes": (
        "hybrid", lambda s, m: [setattr(p.storage, "columns", 64)
                                for p in parts(m, "copy_partial_page")],
        "copy_partial_page.storage", "at least 1024 bytes, a page of"),
    "no taps": ("hybrid", shape("layers.0.taps", 0, 0, 1), "", ""),
    # what i32 are
    "a constant as a slot": (
        "decoder", source("slot", contract.CONSTANT, 7), "scatter_rows.slot",
        "numbers of rows, got number in slot"),
    "a shifted slot": ("decoder", source("slot", contract.SLOT, offset=1), "offset", "got 1"),
    "a shifted token": (
        "decoder", source("token", contract.TOKEN, offset=1), "embed.table",
        "a row for every token + 1"),
    "a shifted position": (
        "decoder", source("position", contract.POSITION, offset=1), "cache_write.position",
        "got position + 1 in position"),
    "tokens as positions": (
        "decoder", point("attention", "position", "token"), "attention.position", "got token"),
    "positions as tokens": (
        "decoder", point("embed", "index", "position"), "embed.table", "a row for every position"),
    "lengths as starts": ("decoder", point("attention", "query_start", "query_length"),
                          "attention.query_start", "start, got length"),
    "starts of one, lengths of another": (
        "hybrid", point("recurrent_scan", "query_length", "state_row"),
        "recurrent_scan.query_length", "length, got state row"),
    "pages that nobody gave": (
        "decoder", add(fill("page_table", "slot", 10**6), body=4), "cache_write.table",
        "page, got number in page_table"),
    "a page table of numbers": (
        "decoder", point("update_page_table", "updates", "page_copies"),
        "update_page_table.updates", "elements of a row, got 2"),
    "as many updates as tokens": (
        "decoder", point("update_page_table", "count", "live_packed"),
        "update_page_table.count", "update count, got number in live_packed"),
    "as many copies as lanes": ("decoder", point("copy_pages", "count", "live_lanes"),
                                "copy_pages.count", "copy count, got number"),
    "a pending token beyond the vocabulary": (
        "decoder", add(fill("pending", "slot", 2**30), body=0), "select_tokens.pending",
        "token, got number in pending"),
    "as many biases as there are tokens": (
        "decoder", source("admitted_bias_count", contract.OUTPUT_LIMIT),
        "adjust_logits.bias_count", "bias count, got number"),
    "biases of any token": (
        "decoder", source("admitted_stop_tokens", contract.CONSTANT), "", ""),
    "a filled slot number": (
        "decoder", add(fill("sampled", "slot", 9), body=0), "fill_rows.destination",
        "a row for every slot, got sampled"),
    # rounds
    "drafts outside of rounds": (
        "drafting", lambda s, m: m.host_bodies[3].operations.add().CopyFrom(
            wire.HostOperation(draft=parts(m, "draft")[0])), "draft.step",
        "SPECULATIVE programs alone, got prefill_16"),
    "a step left out": ("drafting", number_of("draft", "step", 1), "draft.step", "0: steps follow"),
    "another count of drawn lanes": (
        "drafting", fresh("draft", "count", SCRATCH, I32, 1), "draft.count", "live_drawn"),
    "drawn rows before drafts": (
        "drafting", add(lambda m: wire.HostOperation(sample=next(
            part for part in parts(m, "sample") if part.rows == wire.ROWS_DRAWN))),
        "sample.rows", "a Draft before ROWS_DRAWN"),
    "a count of drawn lanes that another writes": (
        "drafting", add(fill("drawn_count", "slot", 1)), "manifest.live_drawn",
        "a count that Draft alone writes, got constant 1"),
    "drawn lanes that another writes": (
        "drafting", add(lambda m: wire.HostOperation(select_rows=wire.SelectRows(
            rows=wire.ROWS_LANES, input=wire.Operand(buffer=number(m, "query_length")),
            index=wire.Operand(buffer=number(m, "sample_row")),
            output=wire.Operand(buffer=number(m, "drawn_lanes"), column=3, columns=1)))),
        "draft.drawn", "drawn start in column 3, got number"),
    "state ahead outside of rounds": (
        "hybrid", number_of("recurrent_scan", "ahead", True), "recurrent_scan.ahead",
        "SPECULATIVE programs alone, got prefill_32"),
    "as many rows of state as tokens": (
        "rounds", state_rows(2), "", "at least 3 state rows of a request"),
    "state that goes ahead of too few rows": (
        "rounds", lambda s, m: (state_rows(2)(s, m), number_of("draft", "has_state_row", False)(
            s, m)), "causal_convolution.ahead", "at least 3 state rows"),
    "state rows of drafts that another writes": (
        "rounds", add(lambda m: wire.HostOperation(select_rows=wire.SelectRows(
            rows=wire.ROWS_LANES,
            input=wire.Operand(buffer=number(m, "drawn_lanes"), column=4, columns=1),
            index=wire.Operand(buffer=number(m, "drawn_lanes"), column=5, columns=1),
            output=wire.Operand(buffer=number(m, "drawn_state_row")))), at=2),
        "causal_convolution.state_row", "numbers of rows, got number in drawn_state_row"),
    "scans of sampled rows": (
        "rounds", number_of("recurrent_scan", "rows", wire.ROWS_SAMPLED), "recurrent_scan.",
        "ROWS_SAMPLED"),
    "state that is committed before tokens are": (
        "rounds", add(lambda m: wire.HostOperation(
            commit_state_rows=parts(m, "commit_state_rows")[0])),
        "commit_state_rows.state_row", "a Verify before it, got none"),
    "state committed by slot": (
        "rounds", point("commit_state_rows", "state_row", "slot"),
        "commit_state_rows.state_row", "state row, got slot"),
    "state committed in rows of slots": (
        "rounds", point("commit_state_rows", "state", "histogram"), "commit_state_rows.state",
        "a row for every state row"),
    "a mask for the first token of a round alone": (
        "drafting", point("verify", "masks", "grammar_mask"), "verify.masks",
        "a mask a token, got"),
    "masks of fewer lanes": (
        "drafting", shape("candidate_masks_4", 0, 0, 3), "CANDIDATE_MASKS", "LANES"),
    "two masks of a token": (
        "drafting", lambda s, m: [part.MergeFrom(wire.AdjustLogits(
            mask=wire.Operand(buffer=number(m, "grammar_mask")), has_mask=True))
            for part in parts(m, "adjust_logits")], "verify.masks", "no other mask"),
}


@pytest.mark.parametrize("case", CASES)
def test_operands_that_are_not_as_declared(cores, case):
    name, change, field, expected = CASES[case]
    serving, manifest = copy_of(cores[name])
    change(serving, manifest)
    repair(serving, manifest)
    with pytest.raises(ContractError) as caught:
        decode(serving, manifest)
    assert field in caught.value.field and expected in str(caught.value), caught.value


def test_an_operand_s_refusal_names_program_operation_and_operand(cores):
    serving, manifest = copy_of(cores["decoder"])
    fresh("select_rows", "output", SCRATCH, F32, (wire.LANES, 1), 1)(serving, manifest)
    with pytest.raises(ContractError) as caught:
        decode(serving, manifest)
    assert str(caught.value) == (
        f"{caught.value.field}: expected 72 elements of a row, got 1")
    assert caught.value.field.endswith(".select_rows.output (prefill_64)")
    assert caught.value.field.startswith("manifest.host_bodies[")


def test_honest_cores_are_accepted(cores):
    for core in cores.values():
        serving, manifest = copy_of(core)
        decode(serving, manifest)
        repair(serving, manifest)
        decode(serving, manifest)


def test_a_shifted_position_may_name_rows_of_a_longer_table(cores):
    """Learned positions that begin behind others."""
    serving, manifest = copy_of(prepared("gpt2"))
    table = next(part.table for part in parts(manifest, "embed") if part.accumulate)
    rows = manifest.buffers[table].panel.rows or manifest.buffers[table].shape[0].multiplier
    serving.context_tokens = rows - 2
    for body in manifest.host_bodies:  # positions of attention stay as they are
        for operation in list(body.operations):
            if operation.WhichOneof("operation") in ("cache_write", "attention", "rotary"):
                getattr(operation, operation.WhichOneof("operation")).position.buffer = len(
                    manifest.buffers)
    plain = add_buffer(manifest, "plain_position", wire.STAGING, I32, (wire.PACKED, 1))
    for graph in serving.model.graphs:
        graph.bindings.add(
            buffer=plain, source=contract.POSITION, indexing=contract.PACKED_TOKEN)
    source("position", contract.POSITION, offset=2)(serving, manifest)
    decode(serving, manifest)
    source("position", contract.POSITION, offset=3)(serving, manifest)
    with pytest.raises(ContractError, match=r"embed\.table .*a row for every position \+ 3"):
        decode(serving, manifest)


def test_declarations_are_complete():
    """Every operand says its rows, columns, type and what its i32 are."""
    known = {"rows", "spans", "lanes", "packed", "one", "updates", "reports", "-"}
    for name, touches in OPERATIONS.items():
        fields = {touch.field for touch in touches}
        for touch in touches:
            assert touch.rows in known or touch.rows[1:] in fields, (name, touch)
            if touch.role == "index":
                assert touch.type == "i32" and (
                    touch.values in {*ALLOWED, "any"}), (name, touch)
            if touch.values in COLUMNS:
                assert int(touch.columns) == len(COLUMNS[touch.values])
            if touch.role in BY_NUMBER:
                assert not touch.values


def test_rows_whose_widths_are_chosen_at_load_are_as_wide(cores):
    serving, manifest = copy_of(cores["decoder"])
    wide = add_buffer(manifest, "wide", STATE, F32, (wire.SLOTS, 1), (wire.PACKED, 64))
    other = add_buffer(manifest, "other", STATE, F32, (wire.SLOTS, 1), (wire.PACKED, 64))
    move = manifest.host_bodies[4].operations.add().scatter_rows
    move.source.buffer, move.destination.buffer = wide, other
    move.slot.buffer = number(manifest, "slot")
    repair(serving, manifest)
    decode(serving, manifest)
    manifest.buffers[other].shape[1].symbol = wire.SLOTS
    with pytest.raises(ContractError, match="rows as wide as those of wide, got other"):
        decode(serving, manifest)
