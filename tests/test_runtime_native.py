"""NativeModel.load, manifests, Bootstrap.load, Server.start, RankPeers: what loading uses."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from helios_dod.contract.errors import ContractError
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import core_pb2
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.cores import reader
from helios_dod.cores.errors import AcceptanceError, CoreError
from helios_dod.cores.keys import user_key
from helios_dod.cores.reader import Core, open_core
from helios_dod.cores.writer import CARRIERS, Publisher, write_core
from helios_dod.errors import UserError
from helios_dod.runtime import engine_process, selection
from helios_dod.runtime import validated as validated_contracts
from helios_dod.runtime.devices import plan_anywhere, plan_for_device
from helios_dod.runtime.native_model import NativeModel, RankPeers, open_accepted, plan
from helios_dod.runtime.options import EngineOptions
from helios_dod.runtime.selection import Options, SelectionError
from helios_dod.runtime.validated import validated
from helios_dod.server.bootstrap import Bootstrap, load_assets
from helios_dod.server.launch import Server
from helios_dod.server.options import ServeOptions
from helios_dod.server.serve_command import fitted, run_engine
from tests import golden
from tests.golden import whole
from tests.tiny_core import add_buffer, make_prepared, number


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "config"))


class Recorder:
    """An executor that only looks at what it is given."""

    name = "host"
    reads_weights = True

    def load(self, manifest, geometry, weights, staging_first, world):
        self.geometry, self.weights = geometry, weights

    def close(self):
        self.closed = True

    def descriptor(self):
        return 0


def make(tmp_path, change=None, accept=True):
    prepared = make_prepared()
    if change:
        change(prepared.manifest, prepared.contract)
    target = tmp_path / "tiny.core"
    write_core(prepared, target, Publisher(user_key(), "tests"), accept=accept, overwrite=True)
    return target


OPTIONS = Options(cache_bytes=1 << 20, size="SMALL")


def test_native_model_exposes_what_it_chose(tmp_path):
    def change(manifest, serving):
        serving.snapshots = 3
        for graph in serving.model.graphs:
            graph.state_rows_per_request = 2 if graph.program == "decode" else 1

    executor = Recorder()
    model = NativeModel.load(make(tmp_path, change), OPTIONS, executor)
    (rank,) = model.manifests()
    assert rank.rank == 0 and rank.geometry is executor.geometry
    assert rank.cache_bytes == rank.geometry.pages * rank.page_bytes <= 1 << 20
    assert rank.weight_bytes == 4096 and "decode" in rank.programs
    rows = rank.geometry
    assert (rows.state_rows_per_request, rows.state_rows) == (2, 2 * rows.slots)
    assert (rows.snapshots, rows.snapshot_rows) == (6, 12)  # twice what was prepared, as of pages
    assert (rows.extent(wire.STATE_ROWS, 1), rows.extent(wire.SNAPSHOT_ROWS, 3)) == (
        2 * rows.slots, 36)
    assert model.peers is RankPeers.Threads and {peer.name for peer in RankPeers} == {
        "Threads", "Processes"}
    assert set(model.phases) == {"contract", "world", "weights", "executor"}
    assert "pages of 16 tokens" in model.report()
    model.close()
    assert executor.closed


@pytest.mark.parametrize("size, places", [("SMALL", 64), (None, 1024)])
def test_no_core_prepares_more_snapshots_than_are_served(tmp_path, size, places):
    """A core says how many it was prepared for; what there is room for is chosen at load."""
    def change(manifest, serving):
        serving.snapshots = 1_000_000

    made = plan(make(tmp_path, change), replace(OPTIONS, size=size))
    assert made.selection.geometry.snapshots == made.selection.limits.snapshots_max == places


def test_changed_weights_are_refused_unless_trusted(tmp_path):
    core = make(tmp_path)
    data = bytearray((core / "weights.bin").read_bytes())
    data[5] ^= 1
    (core / "weights.bin").write_bytes(data)
    executor = Recorder()
    with pytest.raises(CoreError, match="weight resource weights: chunk 0"):
        NativeModel.load(core, OPTIONS, executor)
    assert not hasattr(executor, "weights")
    model = NativeModel.load(core, OPTIONS, executor, trust_weights=True)
    assert np.array_equal(model.weights[0]["weights"], np.frombuffer(data, np.uint8))


def test_ranks_beyond_one_are_refused_by_name(tmp_path):
    def change(manifest, serving):
        for rank in range(2):
            manifest.ranks.add(rank=rank, weights=["weights"])

    with pytest.raises(SelectionError, match="ranks: 2 asked, one can be served"):
        NativeModel.load(make(tmp_path, change), OPTIONS, Recorder())

    def one(manifest, serving):
        manifest.ranks.add(rank=0, weights=["weights"])

    assert NativeModel.load(make(tmp_path, one), OPTIONS, Recorder()).weights[0].keys() == {
        "weights"}

    with pytest.raises(SelectionError, match="peers: Processes asked, one rank can be served"):
        NativeModel.load(make(tmp_path), OPTIONS, Recorder(), peers=RankPeers.Processes)

    def missing(manifest, serving):
        manifest.ranks.add(rank=0, weights=["weights", "more"])

    with pytest.raises(ContractError, match=r"manifest.ranks\[0\].weights"):
        NativeModel.load(make(tmp_path, missing), OPTIONS, Recorder())


def test_what_this_runtime_cannot_do_is_refused_at_start(tmp_path):
    def bound(field, source, indexing, *shape):
        def change(manifest, serving):
            index = add_buffer(manifest, "more", wire.STAGING, wire.I32, *shape)
            serving.model.graphs[2].bindings.add(buffer=index, source=source, indexing=indexing)

        with pytest.raises(ContractError, match=rf"\(prefill\)\.bindings\[12\]\.{field}"):
            NativeModel.load(make(tmp_path, change), OPTIONS, Recorder())

    def cursor(manifest, serving):
        golden.add_speculative(manifest, serving, contract.QUERY_LENGTH)
        manifest.buffers[number(manifest, "completion_tokens")].shape[1].multiplier = 4
        golden.cursor(manifest, serving.model)

    with pytest.raises(ContractError, match="cursor_state: expected none: host operations report"):
        NativeModel.load(make(tmp_path, cursor), OPTIONS, Recorder())

    for tokens in (12, 32):
        def pages(manifest, serving, tokens=tokens):
            serving.model.cache.page_tokens = tokens

        with pytest.raises(SelectionError, match=f"page_tokens: {tokens} asked, one of"):
            NativeModel.load(make(tmp_path, pages), OPTIONS, Recorder())
    with pytest.raises(SelectionError, match="frames: 3 asked, 1 to 2 possible"):
        NativeModel.load(make(tmp_path), replace(OPTIONS, frames=3), Recorder())
    bound("source", contract.SAMPLING_DECISION, contract.ACTIVE_ROW, (wire.LANES, 1))
    bound("indexing", contract.CONSUMED, contract.PHYSICAL_ROW, (wire.SLOTS, 1))
    bound("indexing", contract.CONSTANT, contract.ACTIVE_ROW, (wire.LANES, 1))
    bound("buffer", contract.POSITION, contract.PACKED_TOKEN, (wire.PACKED, 1), 3)

    def device(manifest, serving):
        nodes = manifest.cuda_bodies.add().nodes
        for name in ("pending", "page_table"):
            place = wire.CudaAddress(buffer=number(manifest, name))
            nodes.add().copy.CopyFrom(wire.CudaCopy(source=place, destination=place, nbytes=4))
        manifest.programs[4].cuda_body = 0

    with pytest.raises(ContractError, match=r"\(decode\)\.body: .* host, got CUDA nodes"):
        NativeModel.load(make(tmp_path, device), OPTIONS, Recorder())

    def tuned(manifest, serving):
        index = add_buffer(manifest, "chosen", wire.STATE, wire.I32, 4)
        manifest.cuda_bodies.add().nodes.add().fill.CopyFrom(wire.CudaFill(
            destination=wire.CudaAddress(buffer=index), nbytes=4))
        manifest.tuning.add(name="choose", cuda_body=0, outputs=[index])
        manifest.programs[4].tuned.add(buffer=index, producer="choose")
        serving.model.graphs[4].tuned_bindings.add(buffer=index, producer="choose")

    with pytest.raises(ContractError, match="runs no tuning graphs, got choose"):
        NativeModel.load(make(tmp_path, tuned), OPTIONS, Recorder())


@pytest.mark.parametrize("by_transport", [True, False])
def test_what_nothing_stages_is_refused_where_it_is_read(tmp_path, by_transport):
    def declared(manifest, serving):
        index = add_buffer(manifest, "other", wire.STAGING, wire.I32, 1 if by_transport else (
            wire.PACKED, 1))
        if by_transport:
            manifest.transport.frames, manifest.transport.frame_index = 2, index
        else:
            manifest.tables.add(name="rows", buffer=index, frames=2, consumer_ranks=[0])
        return index

    def read(manifest, serving):
        index, nodes = declared(manifest, serving), manifest.cuda_bodies.add().nodes
        pending, table = (number(manifest, name) for name in ("pending", "page_table"))
        for source, place in ((index, pending), (pending, pending), (table, table)):
            nodes.add().copy.CopyFrom(wire.CudaCopy(
                source=wire.CudaAddress(buffer=source),
                destination=wire.CudaAddress(buffer=place), nbytes=4))
        manifest.programs[4].cuda_body = 0

    NativeModel.load(make(tmp_path, declared), OPTIONS, Recorder()).close()
    with pytest.raises(ContractError, match=r"\(decode\)\.bindings: .* got none to other"):
        NativeModel.load(make(tmp_path, read), OPTIONS, Recorder())


def test_history_drafting_is_refused_without_speculation(tmp_path):
    with pytest.raises(ContractError, match="learned speculation enabled"):
        NativeModel.load(make(tmp_path), replace(OPTIONS, history_drafting=True), Recorder())


def test_nothing_loads_that_was_not_accepted(tmp_path):
    core = make(tmp_path, accept=False)
    with pytest.raises(AcceptanceError):
        plan(core, OPTIONS)
    with pytest.raises(AcceptanceError):
        Bootstrap.load(core)


def test_bootstrap_reads_the_core_only(tmp_path):
    core = make(tmp_path)
    bootstrap = Bootstrap.load(core)
    assert bootstrap.contract == open_core(core).prepared(open_core(core).manifest())
    assert bootstrap.assets.served_id == "tiny" and bootstrap.assets.eos == (2,)
    assert bootstrap.assets.sampling.temperature == 0.5


def test_bootstrap_reads_the_syntax_of_the_prepared_contract(tmp_path):
    target = tmp_path / "whole.core"
    write_core(whole(3), target, Publisher(user_key(), "tests"), accept=True)
    core = open_core(target)
    contract_ = core.prepared(core.manifest())
    syntax = Bootstrap.of(core, contract_).assets.output
    assert syntax.tool.key_open == "<k>" and syntax.think.close == "</t>"
    without = replace(contract_, frontend=replace(contract_.frontend, output=None))
    assert Bootstrap.of(core, without).assets.output is None  # not read past it


def test_a_core_that_is_open_is_not_read_again(tmp_path):
    core = make(tmp_path)
    opened = open_accepted(core)
    (core / "core.pb").unlink()
    made = plan(core, OPTIONS, opened)
    assert made.contract is opened.contract and made.manifest is opened.manifest
    assert plan_anywhere(core, OPTIONS, opened).selection == made.selection
    assert plan_for_device(core, OPTIONS, 1, opened=opened)[0].selection == made.selection
    assert load_assets(core, opened=opened).served_id == "tiny"
    with pytest.raises(CoreError):
        open_accepted(core)


def test_what_was_valid_is_known_at_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setenv("HELIOS_CACHE", str(tmp_path / "cache"))
    core = make(tmp_path)
    first = open_accepted(core)
    (entry,) = (tmp_path / "cache" / "validated").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(reader, "decode", None)
        patch.setattr(reader, "parse", None)
        patch.setattr(Core, "prepared", None)
        again = validated(first.core)
    assert again == (first.manifest, first.contract)
    entry.write_bytes(entry.read_bytes()[:-1])
    assert open_accepted(core).contract == first.contract, "an entry that is not whole is none"
    other = make(tmp_path, lambda manifest, serving: setattr(serving, "snapshots", 3))
    assert open_accepted(other).contract.snapshots == 3
    assert len(list(entry.parent.iterdir())) == 2
    (stored,) = other.glob("resources/execution_manifest*")
    stored.write_bytes(stored.read_bytes()[:-1] + b"x")
    with pytest.raises(CoreError, match=r"digest|zstd|frame"):
        open_accepted(other)


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("name", ["execution_manifest", "tokenizer", "chat_template",
                                  "token_bytes"])
def test_resources_changed_after_a_first_start_are_refused(tmp_path, monkeypatch, carrier, name):
    """Other stored bytes of the same length, once the contract is known to be valid."""
    monkeypatch.setenv("HELIOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HELIOS_CORE_KEY", golden.SECRET.hex())
    path = tmp_path / "tiny.core"
    write_core(golden.whole(3), path, Publisher(user_key(), "tests"), carrier=carrier, accept=True)
    load_assets(path)
    (stored,) = path.glob(f"resources/{name}*")
    data = bytearray(stored.read_bytes())
    data[len(data) // 2] ^= 1
    stored.write_bytes(data)
    with pytest.raises(CoreError, match=r"digest|authenticated"):
        load_assets(path)


def test_contracts_that_were_used_last_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("HELIOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(validated_contracts, "ENTRIES_MAX", 2)
    core, kept = make(tmp_path), tmp_path / "cache" / "validated"
    open_accepted(core)
    (first,) = kept.iterdir()
    for i in (1, 2, 3):
        (kept / f"{i}.new").write_bytes(b"")
        os.utime(kept / f"{i}.new", (i, i))
    make(tmp_path, lambda manifest, serving: setattr(serving, "snapshots", 3))
    open_accepted(core)
    assert first in kept.iterdir() and len(list(kept.iterdir())) == 2


def test_a_sealed_manifest_of_the_same_length_is_validated_anew(tmp_path, monkeypatch):
    """The index of a sealed core has no digests: whoever has its secret may write other bytes."""
    monkeypatch.setenv("HELIOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HELIOS_CORE_KEY", golden.SECRET.hex())
    path = tmp_path / "sealed.core"
    write_core(make_prepared(), path, Publisher(user_key(), "tests"), carrier="logical-4",
               accept=True)
    core = open_accepted(path).core
    changed = core.manifest()
    changed.programs[2].body = 99
    data = changed.SerializeToString(deterministic=True)
    number = next(i for i, part in enumerate(core.body.executables)
                  if part.kind == core_pb2.EXECUTION_MANIFEST)
    part = core.body.executables[number]
    assert len(data) == part.decoded_nbytes
    core.files[part.id].write_bytes(core.cipher.seal(part.id, number, len(data), 0, data))
    with pytest.raises(ContractError, match=r"programs\[2\].*body"):
        open_accepted(path)


def test_grammars_are_made_ready_once_nobody_asks(monkeypatch):
    worker = SimpleNamespace(calls=0)
    worker.prepare = lambda: setattr(worker, "calls", worker.calls + 1)
    engine = SimpleNamespace(desk=SimpleNamespace(worker=worker), idle=lambda: idle[0])
    now, idle = [0.0], [True]
    monkeypatch.setattr(engine_process.time, "monotonic", lambda: now[0])
    quiet = engine_process.Quiet(engine)
    for moment, is_idle, calls in ((0.9, True, 0), (1.5, False, 0), (2.4, True, 0), (2.6, True, 1),
                                   (9.9, True, 1)):
        now[0], idle[0] = moment, is_idle
        quiet.look()
        assert worker.calls == calls, moment
    engine_process.Quiet(SimpleNamespace(desk=None)).look()


def test_the_cache_is_as_large_as_the_memory_that_holds_it(tmp_path, monkeypatch):
    made = plan(make(tmp_path), OPTIONS)
    page = made.selection.page_bytes

    def pages(**options):
        return plan(made.core.path, Options(size="SMALL", **options), made).selection.geometry.pages

    monkeypatch.setattr(selection, "available_bytes", lambda: 10 * page)
    assert pages() == 4, "a share of the host's memory"
    assert pages(cache_room=9 * page) == 9, "all that the device has left, whatever the host has"
    assert pages(cache_room=9 * page, offload_bytes=10 * page) == 9
    with pytest.raises(SelectionError, match=r"offload_bytes.*and \d+ are free"):
        pages(cache_room=9 * page, offload_bytes=11 * page)
    with pytest.raises(SelectionError, match=r"offload_bytes.*with the cache that is"):
        pages(offload_bytes=7 * page)
    with pytest.raises(SelectionError, match="cache_bytes"):
        pages(cache_room=9 * page, cache_bytes=10 * page)


@pytest.mark.parametrize("device", [False, True])
def test_only_the_host_says_before_the_start_how_large_the_cache_is(tmp_path, device):
    made = plan(make(tmp_path), OPTIONS)
    programs = tuple(replace(one, device_body=device) for one in made.contract.programs)
    made = replace(made, contract=replace(made.contract, programs=programs))
    options = ServeOptions(core=made.core.path, load_assets=lambda path: None,
                           run_engine=lambda: None, engine=EngineOptions())
    engine = fitted(options, "SMALL", lambda path, chosen: made).engine
    assert engine.context_tokens == made.selection.context_tokens
    held = made.selection.geometry.pages * made.selection.page_bytes
    assert engine.cache_bytes == (0 if device else held)


@pytest.mark.parametrize("error, shown", [
    (SelectionError("disk_folder", "a", "but 1 GB there: No space left on device"),
     "--offload-disk: a asked, but 1 GB there: No space left on device"),
    (ContractError("options.history_drafting", "learned speculation enabled", "disabled"),
     "--history-drafting: expected learned speculation enabled, got disabled"),
    (ContractError("manifest.programs", "one", "none"),
     "manifest.programs: expected one, got none"),
])
def test_what_does_not_fit_is_told_by_its_flag(monkeypatch, error, shown):
    """Before anything starts, and in the engine's process."""
    def fails(*arguments, **options):
        raise error

    options = ServeOptions(core=Path(), load_assets=fails, run_engine=fails, engine=EngineOptions())
    monkeypatch.setattr("helios_dod.runtime.engine_process.run", fails)
    for start in (lambda: fitted(options, None, fails),
                  lambda: run_engine(*[None] * 5, options.engine, opened=None)):
        with pytest.raises(UserError) as raised:
            start()
        assert str(raised.value) == shown


def test_the_server_starts_through_these_names():
    assert callable(Server.start)
    program = ("import inspect, helios_dod.server.serve_command as c, "
               "helios_dod.runtime.engine_process as e\n"
               "print('Server.start(' in inspect.getsource(c.run), "
               "'NativeModel.of(' in inspect.getsource(e.run))")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "True True", done.stderr
