"""State accesses, pending tokens, tuning and device bodies: what is declared and what bodies do."""

import pytest

from helios_dod.contract.decode import decode
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from tests.test_contract_decode import graph_of, pair, refused
from tests.tiny_core import add_buffer, number


def with_tuning():
    serving, manifest = pair()
    index = add_buffer(manifest, "chosen", wire.STATE, wire.I32, 4)
    manifest.cuda_bodies.add().nodes.add().fill.CopyFrom(wire.CudaFill(
        destination=wire.CudaAddress(buffer=index), nbytes=4))
    manifest.tuning.add(name="choose", cuda_body=0, outputs=[index])
    manifest.programs[4].tuned.add(buffer=index, producer="choose")
    graph_of(serving, "decode").tuned_bindings.add(buffer=index, producer="choose")
    return serving, manifest, index


def test_tuned_bindings_equal_the_execution_descriptor():
    serving, manifest, index = with_tuning()
    prepared = decode(serving, manifest)
    assert prepared.programs[4].tuned == ((index, "choose"),)
    assert prepared.tuning[0].outputs == (index,)
    del manifest.programs[4].tuned[:]
    refused(serving, manifest, "tuned_bindings", "as the execution descriptor says")
    serving, manifest, index = with_tuning()
    manifest.tuning[0].name = "other"
    refused(serving, manifest, "producer", "got choose")
    serving, manifest, index = with_tuning()
    manifest.tuning[0].outputs[0] = add_buffer(manifest, "other", wire.STATE, wire.I32, 4)
    refused(serving, manifest, "tuned_bindings[0].buffer", "an output of choose")


@pytest.mark.parametrize("buffer, kept", [
    ("slot", "outputs"), ("key_cache", "outputs"), ("slot_limit", "outputs"),
    ("pending", "outputs"), ("page_table", "outputs"), ("embedding", "outputs")])
def test_tuned_outputs_overlap_nothing(buffer, kept):
    serving, manifest, _ = with_tuning()
    manifest.tuning[0].outputs.append(number(manifest, buffer))
    refused(serving, manifest, kept)


def test_tuning_catalog():
    for change, field in (
        (lambda g: setattr(g, "name", ""), "name"),
        (lambda g: setattr(g, "name", "decode"), "name"),
        (lambda g: setattr(g, "body", 9), "body"), (lambda g: g.ClearField("outputs"), "outputs"),
        (lambda g: g.outputs.append(999), "outputs"), (lambda g: setattr(g, "body", 0), "outputs"),
    ):
        serving, manifest, _ = with_tuning()
        change(manifest.tuning[0])
        refused(serving, manifest, f"tuning[0].{field}")


def test_a_producer_writes_its_outputs_and_nothing_else():
    def kernel_of(manifest, name):
        kernel = manifest.cuda_bodies[0].nodes.add().kernel
        kernel.entry, kernel.grid[:], kernel.block[:] = "choose", [1, 1, 1], [32, 1, 1]
        kernel.arguments.add().address.buffer = number(manifest, name)
        if not manifest.modules:
            manifest.modules.add(resource_id="kernels", name="kernels")

    serving, manifest, _ = with_tuning()
    manifest.tuning[0].outputs.append(add_buffer(manifest, "more", wire.STATE, wire.I32, 4))
    refused(serving, manifest, "tuning[0].outputs", "only buffers that choose writes, got more")
    kernel_of(manifest, "more")
    assert len(decode(serving, manifest).tuning[0].outputs) == 2
    kernel_of(manifest, "slot")
    refused(serving, manifest, "tuning[0].outputs", "reads no request input like, got slot")
    for name in ("pending", "page_table", "key_cache"):
        serving, manifest, _ = with_tuning()
        manifest.cuda_bodies[0].nodes.add().fill.CopyFrom(wire.CudaFill(
            destination=wire.CudaAddress(buffer=number(manifest, name)), nbytes=4))
        refused(serving, manifest, "tuning[0].outputs", f"got {name}")


def test_device_programs_keep_off_tuned_outputs():
    """Copies and fills of device bodies count as host operations do; kernels as they are listed."""
    for kind in ("fill", "kernel"):
        serving, manifest, index = with_tuning()
        device = with_device_body(serving, manifest)[2]
        graph = graph_of(serving, "decode")
        if kind == "fill":
            device.nodes.add().fill.CopyFrom(wire.CudaFill(
                destination=wire.CudaAddress(buffer=index), nbytes=4))
        else:
            device.nodes[0].kernel.arguments.add().address.buffer = index
        refused(serving, manifest, "(decode).states", "of chosen")
        view = graph.states.add(buffer=index, row_stride=4, extent=4, access=contract.WRITE)
        refused(serving, manifest, "tuning[0].outputs", "no writable state of decode, got chosen")
        view.access = contract.READ
        if kind == "kernel":
            decode(serving, manifest)
            del manifest.programs[4].tuned[:], graph.tuned_bindings[:]
            refused(serving, manifest, "(decode).tuned_bindings", "a binding of chosen")


def with_device_body(*made):
    serving, manifest = made or pair()
    manifest.modules.add(resource_id="kernels", name="kernels")
    body = manifest.cuda_bodies.add()
    kernel = body.nodes.add().kernel
    kernel.entry, kernel.grid[:], kernel.block[:] = "step", [1, 1, 1], [32, 1, 1]
    kernel.arguments.add().address.buffer = 0
    kernel.arguments.add().live = wire.LIVE_LANE_ROWS
    for name in ("pending", "page_table", "embedding"):
        kernel.arguments.add().address.buffer = number(manifest, name)
    body.nodes.add().copy.CopyFrom(wire.CudaCopy(
        source=wire.CudaAddress(buffer=0), destination=wire.CudaAddress(
            buffer=number(manifest, "tokens")), nbytes=4))
    body.edges.add(before=0, after=1)
    manifest.programs[4].cuda_body = len(manifest.cuda_bodies) - 1
    return serving, manifest, body


def test_device_bodies():
    serving, manifest, body = with_device_body()
    prepared = decode(serving, manifest)
    assert [p.device_body for p in prepared.programs] == [False] * 4 + [True]
    changes = [
        (lambda m, b: setattr(m.programs[4], "cuda_body", 1), "cuda_body"),
        (lambda m, b: setattr(m.modules[0], "name", ""), "modules[0].name"),
        (lambda m, b: b.ClearField("nodes"), "nodes"),
        (lambda m, b: b.nodes.add(), "nodes[2]"),
        (lambda m, b: b.edges.add(before=1, after=1), "edges[1]"),
        (lambda m, b: b.edges.add(before=1, after=2), "edges[1]"),
        (lambda m, b: setattr(b.nodes[0].kernel, "module", 1), "kernel.module"),
        (lambda m, b: setattr(b.nodes[0].kernel, "entry", ""), "kernel.entry"),
        (lambda m, b: b.nodes[0].kernel.grid.append(1), "kernel.grid"),
        (lambda m, b: b.nodes[0].kernel.block.__setitem__(0, 2048), "kernel.block"),
        (lambda m, b: setattr(b.nodes[0].kernel, "shared_nbytes", 1 << 20), "shared_nbytes"),
        (lambda m, b: b.nodes[0].kernel.arguments.add(), "arguments[5]"),
        (lambda m, b: setattr(b.nodes[0].kernel.arguments[0].address, "buffer", 999), "address"),
        (lambda m, b: setattr(b.nodes[1].copy.destination, "buffer", 0), "copy.destination"),
        (lambda m, b: setattr(b.nodes[1].copy, "nbytes", 0), "copy.nbytes"),
        (lambda m, b: b.nodes.add().fill.CopyFrom(wire.CudaFill(
            destination=wire.CudaAddress(buffer=number(m, "tokens")), nbytes=1, byte=256)),
         "fill.byte"),
        (lambda m, b: b.nodes.add().fill.CopyFrom(wire.CudaFill(destination=wire.CudaAddress(
            buffer=add_buffer(m, "four", wire.STATE, wire.I32, 4), offset=4), nbytes=13)),
         "fill.destination.offset"),
        (lambda m, b: setattr(b.nodes[0].kernel.arguments.add().address, "buffer", add_buffer(
            m, "four", wire.STATE, wire.I32, 4)) or setattr(
                b.nodes[0].kernel.arguments[-1].address, "offset", 16), "address.offset"),
    ]
    for change, field in changes:
        serving, manifest, body = with_device_body()
        change(manifest, body)
        refused(serving, manifest, field)


def view_of(graph, manifest, name):
    """The view of a buffer that a graph lists."""
    return next(view for view in graph.states if view.buffer == number(manifest, name))


@pytest.mark.parametrize("program, change, got", [
    ("initialize", lambda g, m: g.ClearField("states"), "a WRITE view of slot_limit"),
    ("decode", lambda g, m: g.ClearField("states"), "a READ view of pending"),
    ("decode", lambda g, m: g.states.remove(view_of(g, m, "pending")), "got none of pending"),
    ("decode", lambda g, m: g.states.remove(view_of(g, m, "page_table")), "got none of page_table"),
    ("decode", lambda g, m: [setattr(v, "access", contract.WRITE) for v in g.states],
     "a READ view of pending, which the program reads, got WRITE of pending"),
    ("decode", lambda g, m: setattr(view_of(g, m, "pending"), "access", contract.READ),
     "a WRITE view of pending, which the program writes, got READ of pending"),
    ("initialize", lambda g, m: setattr(g.states[0], "access", contract.READ_WRITE),
     "WRITE of slot_limit, as the program has, got READ_WRITE"),
    ("initialize", lambda g, m: g.states.add(
        buffer=number(m, "pending"), row_stride=4, extent=4, access=contract.READ),
     "no access of pending, as the program has, got READ"),
    ("decode", lambda g, m: g.states.add(
        buffer=number(m, "key_cache"), access=contract.READ), "WRITE of key_cache, as the program"),
    ("initialize", lambda g, m: g.states.add().CopyFrom(g.states[0]), "that no other view"),
    ("decode", lambda g, m: g.states.add().CopyFrom(view_of(g, m, "page_table")),
     "that no other view of the graph has, got page_table"),
    ("initialize_histogram", lambda g, m: setattr(view_of(g, m, "slot_histogram"), "extent", 60),
     "got WRITE of bytes 0 to 60 of slot_histogram"),
    ("initialize_histogram", lambda g, m: g.states.add(
        buffer=number(m, "slot_histogram"), row_stride=64, offset=60, extent=4,
        access=contract.WRITE), "got slot_histogram"),
])
def test_states_are_what_the_body_does(program, change, got):
    serving, manifest = pair()
    change(graph_of(serving, program), manifest)
    refused(serving, manifest, f"({program}).states", got)


def test_lists_of_a_core_are_bounded():
    serving, manifest = pair()
    graph = graph_of(serving, "decode")
    graph.states.extend([graph.states[0]] * 1024)
    refused(serving, manifest, "(decode).states", "at most 1024")
    serving, manifest = pair()
    manifest.programs.extend([manifest.programs[4]] * 1024)
    refused(serving, manifest, "manifest.programs", "1 to 1024, got 1029")
    serving, manifest = pair()
    manifest.host_bodies.extend([manifest.host_bodies[0]] * 4094)
    refused(serving, manifest, "manifest.host_bodies", "at most 4096, got 4097")
    serving, manifest = pair()
    manifest.host_bodies[0].operations.extend([manifest.host_bodies[0].operations[0]] * 65_000)
    manifest.host_bodies.extend([manifest.host_bodies[0]] * 4)
    refused(serving, manifest, "manifest.host_bodies", "at most 262144 operations in all")


def test_views_side_by_side_hold_a_row_together():
    serving, manifest = pair()
    view = view_of(graph_of(serving, "initialize_histogram"), manifest, "slot_histogram")
    view.extent = 24
    more = graph_of(serving, "initialize_histogram").states.add()
    more.CopyFrom(view)
    more.offset, more.extent = 24, 40
    decode(serving, manifest)
    more.offset, more.extent = 28, 36
    refused(serving, manifest, "states", "a WRITE view of slot_histogram")
    columns = manifest.host_bodies[1].operations[1].scatter_rows.destination
    columns.column, columns.columns = 8, 8
    refused(serving, manifest, "states[1].access", "no access of slot_histogram")


def test_states_of_earlier_versions_are_those_of_the_body():
    """Versions 1 and 2 need not list them; what they list is compared, and a device body lists."""
    serving, manifest = pair()
    listed = decode(serving, manifest).programs
    serving.model.version = 2
    for graph in serving.model.graphs:
        graph.ClearField("states")
    assert [set(program.states) for program in decode(serving, manifest).programs] == [
        set(program.states) for program in listed]
    graph_of(serving, "decode").states.add(
        buffer=number(manifest, "pending"), row_stride=4, extent=4, access=contract.READ)
    refused(serving, manifest, "(decode).states", "a WRITE view of pending")
    graph_of(serving, "decode").ClearField("states")
    with_device_body(serving, manifest)
    refused(serving, manifest, "(decode).states", "a view of pending, which a kernel of the")


def test_device_bodies_list_what_they_name():
    for name in ("pending", "page_table"):
        serving, manifest, _ = with_device_body()
        graph = graph_of(serving, "decode")
        graph.ClearField("device_pending")
        graph.host_pending_binding = next(
            i for i, part in enumerate(graph.bindings) if part.source == contract.TOKEN)
        graph.states.remove(view_of(graph, manifest, name))
        refused(serving, manifest, "(decode).states", f"got none of {name}")
    serving, manifest, body = with_device_body()
    body.nodes[1].copy.source.buffer = number(manifest, "slot_limit")
    refused(serving, manifest, "(decode).states", "a READ view of slot_limit")
    body.nodes[1].copy.destination.buffer = number(manifest, "slot_limit")
    refused(serving, manifest, "(decode).states", "a READ view of slot_limit")
    graph_of(serving, "decode").states.add(
        buffer=number(manifest, "slot_limit"), row_stride=4, extent=4, access=contract.READ)
    refused(serving, manifest, "(decode).states", "a WRITE view of slot_limit")
    serving, manifest, body = with_device_body()
    graph_of(serving, "decode").states.add(
        buffer=number(manifest, "slot_limit"), row_stride=4, extent=4, access=contract.READ)
    refused(serving, manifest, "(decode).states[2].access", "no access of slot_limit")
    serving, manifest, body = with_device_body()
    arguments = body.nodes[0].kernel.arguments
    pending = next(part.address for part in arguments
                   if part.address.buffer == number(manifest, "pending"))
    pending.use = wire.ADDRESS_READ  # said: so a written pending token is not what it does
    refused(serving, manifest, "(decode).states[0].access", "READ of pending, as the program has")
    pending.use = wire.ADDRESS_UPDATED
    decode(serving, manifest)
    view_of(graph_of(serving, "decode"), manifest, "pending").access = contract.WRITE
    refused(serving, manifest, "(decode).states", "a READ view of pending, which the program reads")
    arguments[0].address.use = wire.ADDRESS_READ
    refused(serving, manifest, "arguments[0].address.use", "only STATE and CACHE have one")
    arguments[0].address.use = wire.ADDRESS_USE_UNSPECIFIED
    body.nodes[1].copy.destination.use = wire.ADDRESS_WRITTEN
    refused(serving, manifest, "copy.destination.use", "none outside kernel arguments")
    serving, manifest, body = with_device_body()
    body.nodes.add().ingest.buffers.append(number(manifest, "limit"))
    refused(serving, manifest, "(decode).bindings", "got none to limit")


def test_a_pending_token_of_the_device_is_listed_and_written():
    serving, manifest = pair()
    serving.model.graphs[4].device_pending.buffer = add_buffer(
        manifest, "other", wire.STATE, wire.I32, (wire.SLOTS, 1))
    refused(serving, manifest, "(decode).device_pending", "lists with READ, got other")
    serving, manifest, _ = with_device_body()
    for program in manifest.programs[2:]:
        program.cuda_body = 0
    for graph in serving.model.graphs[2:]:
        view_of(graph, manifest, "pending").access = contract.READ
        graph.device_pending.access = contract.READ
    for graph in serving.model.graphs[2:4]:
        graph.ClearField("device_pending")
    graph_of(serving, "mixed").host_pending_binding = next(
        i for i, part in enumerate(graph_of(serving, "mixed").bindings)
        if part.source == contract.TOKEN)
    refused(serving, manifest, "contract.model.graphs", "WRITE view of pending, the pending token")
    view_of(graph_of(serving, "prefill"), manifest, "pending").access = contract.READ_WRITE
    decode(serving, manifest)
    graph_of(serving, "decode").device_pending.access = contract.READ_WRITE
    refused(serving, manifest, "(decode).device_pending", "lists with WRITE, got pending")


def test_state_rows_of_a_request_are_bounded():
    serving, manifest = pair()
    graph = graph_of(serving, "initialize")
    graph.state_rows_per_request = 64
    decode(serving, manifest)
    graph.state_rows_per_request = 65
    refused(serving, manifest, "state_rows_per_request", "at most 64")


def test_resource_dependencies():
    serving, manifest = pair()
    assert decode(serving, manifest).programs[4].resources == ("weights",)
    assert decode(serving, manifest).programs[0].resources == ()
    graph_of(serving, "decode").resource_dependencies.append("weights")
    decode(serving, manifest)
    graph_of(serving, "decode").resource_dependencies.append("more")
    refused(serving, manifest, "resource_dependencies", "expected weights")
    serving, manifest, _ = with_device_body()
    assert decode(serving, manifest).programs[4].resources == ("weights",)
    graph_of(serving, "decode").resource_dependencies.append("more")
    refused(serving, manifest, "resource_dependencies", "expected weights")


@pytest.mark.parametrize("symbol", [wire.STATE_ROWS, wire.SNAPSHOT_ROWS])
def test_rows_that_a_program_touches_are_declared(symbol):
    serving, manifest = pair()
    rows = add_buffer(manifest, "rows", wire.STATE, wire.F32, (symbol, 1), 8)
    at = add_buffer(manifest, "at", wire.STAGING, wire.I32, (wire.LANES, 1))
    move = manifest.host_bodies[2].operations.add().copy_state_rows
    move.source_row.buffer = move.destination_row.buffer = at
    move.source.buffer = move.destination.buffer = rows
    move.rows = 1
    for graph in serving.model.graphs[2:]:
        graph.states.add(buffer=rows, row_stride=32, extent=32, access=contract.READ_WRITE)
        graph.bindings.add(buffer=at, indexing=contract.ACTIVE_ROW, source=(
            contract.STATE_ROW if symbol == wire.STATE_ROWS else contract.SNAPSHOT_DESTINATION))
    for graph in serving.model.graphs[2:]:
        refused(serving, manifest, f"({graph.program}).state_rows_per_request",
                "at least 1: the program touches rows, got 0")
        graph.state_rows_per_request = 1
    decode(serving, manifest)
