"""Start-up tuning: candidates timed once, within a limit, kept, and read by the programs."""

import numpy as np
import pytest
from host_harness import Harness
from host_machine import Machine
from ignition_fixtures import prepared
from test_host_panels import raw_matrix

from helios_dod.contract.decode import decode
from helios_dod.contract.errors import ContractError
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.base import DeviceError
from helios_dod.executors.host.executor import HostExecutor
from helios_dod.executors.host.products import DIRECT, EXPANDED
from helios_dod.executors.tuning import ENTRIES_MAX, ROUNDS_MAX, Bench, entry_of, tune
from helios_dod.ignition.preparation.tuning import with_tuning
from helios_dod.kept import keep

MS = 1_000_000
NAME = "smollm2"  # a tiny checkpoint


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Selections of one test are none of another's; compiled code is shared."""
    monkeypatch.setattr("helios_dod.executors.tuning.cache_home", lambda: tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def core():
    return with_tuning(prepared(NAME))


def catalog(count=2, used=None):
    """A manifest of `count` producers with two outputs each, and a program that needs some."""
    manifest = wire.ExecutionManifest()
    program = manifest.programs.add(name="decode")
    for number in range(count):
        outputs = []
        for part in ("selected", "best"):
            manifest.buffers.add(name=f"{number}.{part}", kind=wire.STATE)
            outputs.append(len(manifest.buffers) - 1)
        manifest.host_bodies.add().operations.add().mark_time.output.buffer = number
        manifest.tuning.add(name=f"graph_{number}", body=number, outputs=outputs)
        if used is None or number in used:
            program.tuned.add(buffer=outputs[0], producer=f"graph_{number}")
    return manifest


class Device:
    """Runs take what they are said to; outputs are a byte that counts runs of their graph."""

    def __init__(self, manifest, takes, name="one"):
        self.manifest, self.takes, self.now, self.runs = manifest, takes, 0, []
        self.memory = {i: bytes(8) for i in range(len(manifest.buffers))}
        self.bench = Bench(name, self.run, self.memory.__getitem__, self.memory.__setitem__)

    def run(self, number):
        self.runs.append(number)
        self.now += self.takes[number]
        for index in self.manifest.tuning[number].outputs:
            self.memory[index] = bytes([self.runs.count(number)] * 8)

    def tune(self, **more):
        return tune(self.manifest, [0], self.bench, now=lambda: self.now, **more)


def test_no_catalog_no_tuning():
    assert Device(catalog(0), []).tune() is None
    assert Device(catalog(2, used=[]), [1, 1]).tune() is None


def test_every_graph_runs_once_before_any_runs_again_and_only_what_is_needed():
    device = Device(catalog(3, used=[0, 2]), [MS] * 3)
    tuned = device.tune()
    assert device.runs == [0, 2] * ROUNDS_MAX
    assert (tuned.graphs, tuned.runs, tuned.spent_ns) == (2, 2 * ROUNDS_MAX, 2 * ROUNDS_MAX * MS)
    assert "2 tuned in 0.01 s" in str(tuned)


@pytest.mark.parametrize("takes", [[700 * MS, 900 * MS], [100 * MS, 1900 * MS], [999 * MS] * 2])
def test_the_limit_is_kept(takes):
    device = Device(catalog(2), takes)
    tuned = device.tune()
    assert device.runs == [0, 1] and tuned.spent_ns <= 2000 * MS


def test_what_has_no_run_in_time_selects_what_runs_without_tuning():
    device = Device(catalog(2), [1500 * MS, 1])
    assert device.tune().runs == 1
    assert device.memory[2] == bytes(8)


def test_the_next_start_runs_nothing(capsys):
    first = Device(catalog(), [MS, MS])
    first.tune()
    again = Device(catalog(), [MS, MS])
    tuned = again.tune()
    assert again.runs == [] and tuned.spent_ns == 0 and tuned.runs == 0
    assert again.memory == first.memory and "tuned before" in str(tuned)
    assert capsys.readouterr().err == ""


def test_another_device_or_catalog_is_timed():
    Device(catalog(), [MS, MS]).tune()
    other = Device(catalog(), [MS, MS], name="two")
    assert other.tune().runs
    changed = catalog()
    changed.host_bodies[1].operations.add().mark_time.output.buffer = 0
    assert Device(changed, [MS, MS]).tune().runs
    wider = catalog()
    wider.buffers[3].shape.add(multiplier=4)
    assert Device(wider, [MS, MS]).tune().runs


def damaged(data):
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("change", [
    damaged, lambda data: data[:40], lambda data: b"", lambda data: bytes(32) + data[32:]])
def test_a_damaged_entry_is_told_and_written_anew(change, capsys):
    manifest = catalog()
    Device(manifest, [MS, MS]).tune()
    entry = entry_of(manifest, [0, 1], "one")
    entry.write_bytes(change(entry.read_bytes()))
    device = Device(manifest, [MS, MS])
    assert device.tune().runs == 2 * ROUNDS_MAX
    assert f"{entry} is damaged and ignored" in capsys.readouterr().err
    assert Device(manifest, [MS, MS]).tune().runs == 0


@pytest.mark.parametrize("data", [
    b"[]", b"{", b'{"0.selected": "00"}', b'{"0.selected": 3}', b"\xff",
    b'{"0.selected": "zz", "0.best": "", "1.selected": "", "1.best": ""}'])
def test_a_whole_entry_of_something_else_is_told(data, capsys):
    manifest = catalog()
    keep(entry_of(manifest, [0, 1], "one"), data, ENTRIES_MAX)
    assert Device(manifest, [MS, MS]).tune().runs
    assert "is damaged and ignored" in capsys.readouterr().err


def test_a_graph_that_fails_is_named_and_nothing_is_kept(own_cache):
    device = Device(catalog(), [MS, MS])

    def fail(number):
        raise DeviceError("no such kernel")

    bench = Bench("one", fail, device.bench.read, device.bench.write)
    with pytest.raises(DeviceError, match="tuning graph 'graph_0': no such kernel"):
        tune(device.manifest, [0], bench)
    assert not (own_cache / "tuning").exists()


@pytest.mark.parametrize("spans, best, chosen", [
    ([5, 9, 7], [5, 9, 7], 0), ([9, 5, 7], [9, 5, 7], 1), ([7, 7, 7], [7, 7, 7], 0),
    ([3200, 3100, 9999], [3200, 3100, 9999], 0), ([3200, 3099, 9999], [3200, 3099, 9999], 1),
    ([9, 5, 5], [9, 5, 5], 1)])
def test_the_lowest_candidate_that_none_beats_by_a_thirty_second(spans, best, chosen):
    m = Machine()
    m.state("marks", wire.I64, (1, 4))
    m.state("best", wire.I64, (1, 3))
    m.state("selected", wire.I32, (1, 1))
    m.program(wire.ChooseFastest(marks=m.part("marks"), best=m.part("best"),
                                 selected=m.part("selected"), first=10))
    m.load()
    for times in (1, 3, 2):  # the shortest spans count, whichever run they were in
        m.view("marks")[0] = np.concatenate([[50], 50 + np.cumsum(np.array(spans) * times)])
        m.run()
    assert m.view("best")[0].tolist() == best
    assert m.view("selected")[0, 0] == 10 + chosen
    m.executor.close()


@pytest.mark.parametrize("kind", ["Q4_1", "BF16", "F32"])
def test_kernels_and_selections_give_the_same_sums(kind):
    rows, columns = 200, 512
    m = Machine()
    m.state("x", wire.F32, (16, columns))
    m.state("y", wire.F32, (16, rows))
    m.state("selected", wire.I32, (1, 3))
    m.matrix("w", kind, rows, columns, raw_matrix(kind, rows, columns))
    common = dict(rows=wire.ROWS_PACKED, input=m.part("x"), weight=m.names["w"],
                  output=m.part("y"))
    programs = [m.program(wire.Product(**common, kernel=kernel)) for kernel in range(3)]
    tuned = m.program(wire.Product(**common, selected=m.part("selected"), has_selected=True))
    m.load()
    m.view("x")[:] = np.random.default_rng(3).standard_normal((16, columns), np.float32)
    for count in (1, 3, 4, 5, 8, 9, 16):
        seen = set()
        for program in programs:
            m.run(program, packed=count)
            seen.add(m.view("y")[:count].tobytes())
        for chosen in (0, DIRECT, EXPANDED, 7):
            m.view("selected")[:] = chosen
            m.run(tuned, packed=count)
            seen.add(m.view("y")[:count].tobytes())
        assert len(seen) == 1, count
    m.executor.close()


def test_the_real_catalog_is_valid_and_every_program_depends_on_it(core):
    made = decode(core.contract, core.manifest)
    assert made.tuning and not any(graph.device_body for graph in made.tuning)
    for program in made.programs:
        products = [op.product for op in core.manifest.host_bodies[
            next(p for p in core.manifest.programs if p.name == program.name).body].operations
            if op.WhichOneof("operation") == "product"]
        named = {product.selected.buffer for product in products if product.has_selected}
        assert named == {buffer for buffer, _ in program.tuned}


def test_a_start_times_selects_and_answers_alike(core, own_cache):
    """Every place has one of the two kernels; logits are those of the core without a catalog."""
    plain = Harness(prepared(NAME), HostExecutor(2))
    tuned = Harness(core, HostExecutor(2))
    assert tuned.executor.tuned.runs and tuned.executor.poll() == 0
    names = [buffer.name for buffer in core.manifest.buffers]
    for graph in core.manifest.tuning:
        for index in graph.outputs:
            data = tuned.executor.memory.owned[index]
            values = data.view(np.int32 if names[index].endswith("selected") else np.int64)
            assert (values > 0).all() and (len(values) in (3, 6))
        chosen, best = (tuned.executor.memory.owned[index] for index in graph.outputs)
        spans = best.view(np.int64).reshape(3, 2)
        faster = spans[:, 1] * 32 < spans[:, 0] * 31
        assert chosen.view(np.int32).tolist() == np.where(faster, EXPANDED, DIRECT).tolist()
    again = Harness(core, HostExecutor(2))
    assert again.executor.tuned.runs == 0
    for index in (index for graph in core.manifest.tuning for index in graph.outputs):
        assert again.executor.memory.owned[index].tobytes() == (
            tuned.executor.memory.owned[index].tobytes())
    for harness in (plain, tuned, again):
        harness.admit(slot=0)
    ids = list(range(1, 8))
    logits = [harness.scored(slot=0, ids=ids)[0].tobytes() for harness in (plain, tuned, again)]
    assert len(set(logits)) == 1
    for harness in (plain, tuned, again):
        harness.executor.close()


def refused(core, change, text):
    manifest = wire.ExecutionManifest.FromString(core.manifest.SerializeToString())
    change(manifest)
    with pytest.raises(ContractError, match=text):
        decode(core.contract, manifest)


def first_of(manifest, name, trial=True):
    bodies = {graph.body for graph in manifest.tuning}
    return next(getattr(op, name) for i, body in enumerate(manifest.host_bodies)
                for op in body.operations
                if (i in bodies) == trial and op.WhichOneof("operation") == name)


def test_trials_outside_tuning_graphs_and_requests_inside_are_refused(core):
    def at(name, change, trial=True):
        return lambda manifest: change(first_of(manifest, name, trial))

    refused(core, at("product", lambda p: setattr(p, "rows", wire.ROWS_TRIAL), False),
            r"product\.(rows|trial_rows) .*")
    refused(core, at("product", lambda p: setattr(p, "rows", wire.ROWS_LANES)),
            "products of ROWS_TRIAL")
    refused(core, at("product", lambda p: setattr(p, "trial_rows", 17)), "17 rows")
    refused(core, at("product", lambda p: setattr(p, "trial_rows", 0)), "1 to 1024")
    refused(core, at("product", lambda p: setattr(p, "trial_rows", 1), False), "0 without")
    refused(core, at("choose_fastest", lambda c: setattr(c.best, "columns", 1)), "one a candidate")
    refused(core, at("normalise", lambda n: setattr(n, "rows", wire.ROWS_TRIAL), False),
            "tuning graphs alone")
    refused(core, lambda m: m.host_bodies[m.programs[0].body].operations.add().mark_time.CopyFrom(
        first_of(m, "mark_time")), "tuning graphs alone")
    refused(core, lambda m: m.host_bodies[m.tuning[0].body].operations.add().normalise.CopyFrom(
        first_of(m, "normalise", False)), "products of ROWS_TRIAL and what times them")


def test_tuned_outputs_are_written_by_their_producer_alone(core):
    def overlap(manifest):
        """A second graph's choice goes to the first one's row."""
        choose = next(op.choose_fastest for op in manifest.host_bodies[
            manifest.tuning[1].body].operations if op.WhichOneof("operation") == "choose_fastest")
        choose.selected.buffer = manifest.tuning[0].outputs[0]

    refused(core, overlap, "every persistent buffer that .* writes")
    refused(core, lambda m: setattr(first_of(m, "choose_fastest").selected, "buffer", next(
        i for i, buffer in enumerate(m.buffers) if buffer.name == "pending")), "tuning")
