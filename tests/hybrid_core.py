"""A tiny random hybrid: recurrent layers and attention layers in turn, as a core on disk."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.cores.keys import user_key
from helios_dod.cores.writer import Publisher, write_core
from helios_dod.ignition.checkpoints.checkpoint import ModelConfig, Rotary, Tensor
from helios_dod.ignition.preparation.attention import (
    Place,
    Stream,
    declare_attention,
    history_regions,
)
from helios_dod.ignition.preparation.builder import Body, Builder, Handle, symbol
from helios_dod.ignition.preparation.contract import declare_shared
from helios_dod.ignition.preparation.finish import finish
from helios_dod.ignition.preparation.options import Options
from helios_dod.ignition.preparation.programs import TextModel, TextPrograms
from helios_dod.ignition.preparation.rotary import frequencies
from helios_dod.ignition.preparation.state import declare_state
from helios_dod.ignition.prepared import Prepared
from tests.ignition_fixtures import opened

LAYERS, HIDDEN, TAPS = 2, 48, 4  # pairs of a recurrent layer and an attention layer
HEADS, KEYS, VALUES = 3, 16, 16  # of a recurrence; all heads share one key
MIXED = 2 * KEYS + HEADS * VALUES  # columns that are convolved: query, key, value
RMS = wire.RMS


class Hybrid:
    """Emits the operations of the model; weights are random."""

    def __init__(self, builder: Builder, options: Options, vocabulary: int) -> None:
        self.builder, self.rng = builder, np.random.default_rng(5)
        self.shared = declare_shared(builder, options, vocabulary)
        self.config = ModelConfig(
            architecture="hybrid", layers=LAYERS, hidden=HIDDEN, heads=3, key_heads=1, head=16,
            intermediate=1, vocabulary=vocabulary, context=512, norm_epsilon=1e-5,
            rotary=Rotary(10_000.0, 16), windows=(0,) * LAYERS, tied=False)
        self.embedding = self.matrix("embedding", vocabulary, HIDDEN, 1.0)
        self.frequencies = builder.vector("frequencies", frequencies(self.config.rotary))
        self.ones = builder.vector("ones", np.ones(HIDDEN, np.float32))
        self.unit = builder.vector("unit", np.full(KEYS, KEYS**-0.5, np.float32))
        self.buffers = declare_attention(builder, self.shared, self.config, options)
        self.mixed, self.convolved, self.gates, self.read = (
            builder.buffer(name, wire.SCRATCH, wire.F32, (symbol(wire.PACKED), columns))
            for name, columns in (("mixed", MIXED), ("convolved", MIXED), ("gates", 2 * HEADS),
                                  ("read", HEADS * VALUES)))
        self.layers = [self.declare_layer(number) for number in range(LAYERS)]
        self.head_weight = self.matrix("head", vocabulary, HIDDEN)
        self.state = declare_state(
            builder, self.shared,
            {f"layers.{n}.{name}": columns for n in range(LAYERS) for name, columns in
             (("inputs", (TAPS - 1) * MIXED), ("state", HEADS * KEYS * VALUES))},
            [*self.buffers.keys, *self.buffers.values])

    def matrix(self, name: str, rows: int, columns: int, scale: float = 0.0) -> Handle:
        values = self.rng.standard_normal((rows, columns)) * (scale or columns**-0.5)
        raw = values.astype(np.float32).view(np.uint8).reshape(-1)
        return self.builder.matrix(name, [Tensor(name, "F32", (rows, columns), lambda: raw)])

    def declare_layer(self, number: int) -> dict[str, Handle]:
        at, query = f"layers.{number}.", (3 + 2) * 16
        later = 0.2 if number else 1.0  # what the first pair drafts is often right
        taps = self.rng.standard_normal((TAPS, MIXED)).astype(np.float32) * 0.5
        return {
            "mix": self.matrix(at + "mix", MIXED, HIDDEN),
            "gate": self.matrix(at + "gate", 2 * HEADS, HIDDEN),
            "taps": self.taps(at + "taps", taps),
            "rate": self.builder.vector(at + "rate", self.floats(0.05, 0.5)),
            "bias": self.builder.vector(at + "bias", self.floats(-2.0, 0.0)),
            "leave": self.matrix(
                at + "leave", HIDDEN, HEADS * VALUES, later * (HEADS * VALUES)**-0.5),
            "query_key_value": self.matrix(at + "query_key_value", query, HIDDEN),
            "output": self.matrix(at + "output", HIDDEN, 3 * 16, later * (3 * 16)**-0.5)}

    def floats(self, low: float, high: float) -> np.ndarray:
        return self.rng.uniform(low, high, HEADS).astype(np.float32)

    def taps(self, name: str, values: np.ndarray) -> Handle:
        flat = self.builder.vector(name, values.reshape(-1))
        shape = self.builder.manifest.buffers[flat.index].shape
        del shape[:]
        shape.extend(wire.Extent(multiplier=n) for n in values.shape)
        return flat

    def embed(self, body: Body, ids: wire.Operand, place: Place | None = None) -> None:
        place = place or self.buffers.packed
        body.add(wire.Embed(rows=place.rows, index=ids, table=self.embedding.index,
                            output=place.hidden.whole))

    def normalise(self, rows: int, source: wire.Operand, output: wire.Operand) -> wire.Normalise:
        return wire.Normalise(rows=rows, kind=RMS, input=source, output=output,
                              weight=self.ones.index, epsilon=1e-5)

    def run_layers(self, body: Body, rows: int) -> Handle:
        for number in range(LAYERS):
            self.run_pair(body, number, self.buffers.packed)
            stream = self.buffers.stream(body, number, rows)
            self.leave_attention(body, number, stream)
        return stream.hidden

    def draft(self, body: Body, ids: wire.Operand, place: Place, count: int) -> None:
        """Logits behind the first `count` pairs of layers."""
        self.embed(body, ids, place)
        for number in range(count):
            self.run_pair(body, number, place)
            self.leave_attention(
                body, number, Stream(place.rows, place.hidden, self.buffers.attended))
        self.head(body, place.rows, place.hidden)

    def leave_attention(self, body: Body, number: int, stream: Stream) -> None:
        body.add(wire.Product(
            rows=stream.rows, input=stream.attended.whole,
            weight=self.layers[number]["output"].index, output=stream.hidden.whole,
            accumulate=True))

    def run_pair(self, body: Body, number: int, place: Place) -> None:
        """A recurrent layer, and an attention layer up to the attended values."""
        layer, rows = self.layers[number], place.rows
        hidden, normed = place.hidden.whole, self.buffers.normed.whole
        self.run_recurrence(body, number, layer, place)
        body.add(
            self.normalise(rows, hidden, normed),
            wire.Product(rows=rows, input=normed, weight=layer["query_key_value"].index,
                         output=self.buffers.query_key_value.whole),
            wire.Rotary(
                operand=self.buffers.query_and_key, frequencies=self.frequencies.index,
                position=place.position, kind=wire.HALVES, head=16, rows=place.domain),
            *self.buffers.attend(number, 0, place))

    def run_recurrence(self, body: Body, number: int, layer: dict[str, Handle],
                       place: Place) -> None:
        hidden, normed, rows = place.hidden.whole, self.buffers.normed.whole, place.rows
        spans = {"state_row": place.state_row, "query_start": place.query_start,
                 "query_length": place.query_length, "rows": place.domain}
        (inputs, _), (state, _) = self.state.rows[2 * number : 2 * number + 2]
        key = self.convolved.part(KEYS, KEYS)
        body.add(
            self.normalise(rows, hidden, normed),
            wire.Product(rows=rows, input=normed, weight=layer["mix"].index,
                         output=self.mixed.whole),
            wire.Product(rows=rows, input=normed, weight=layer["gate"].index,
                         output=self.gates.whole),
            wire.CausalConvolution(
                input=self.mixed.whole, output=self.convolved.whole, taps=layer["taps"].index,
                state=inputs.whole, **spans),
            wire.Activation(rows=rows, kind=wire.SILU, gate=self.convolved.whole,
                            output=self.convolved.whole),
            wire.Normalise(rows=rows, kind=RMS, input=key, output=key, weight=self.unit.index,
                           epsilon=1e-5),
            wire.RecurrentScan(
                query=self.convolved.part(0, KEYS), key=key,
                value=self.convolved.part(2 * KEYS, HEADS * VALUES),
                gate=self.gates.part(0, HEADS), strength=self.gates.part(HEADS, HEADS),
                has_strength=True, strength_kind=wire.STRENGTH_SIGMOID, delta=True,
                rate=layer["rate"].index, bias=layer["bias"].index, state=state.whole,
                output=self.read.whole, heads=HEADS, key_heads=1, key_columns=KEYS,
                value_columns=VALUES, scale=1.0, **spans),
            wire.Product(rows=rows, input=self.read.whole, weight=layer["leave"].index,
                         output=hidden, accumulate=True))

    def head(self, body: Body, rows: int, source: Handle) -> None:
        body.add(self.normalise(rows, source.whole, source.whole), wire.Product(
            rows=rows, input=source.whole, weight=self.head_weight.index,
            output=self.buffers.logits.whole))


def prepare_hybrid(snapshots: int, widths: tuple[int, ...] = ()) -> Prepared:
    """Programs, contract and weights; text data is a tiny checkpoint's. Drafts are drawn by the
    first pair of layers."""
    checkpoint = opened("qwen2")
    options = Options(cache="f32", lanes=8, packed=(32, 64), scored=32, snapshots=snapshots,
                      widths=widths, draft_layers=1)
    builder = Builder()
    model = Hybrid(builder, options, checkpoint.config.vocabulary)
    TextPrograms(builder, model.shared, TextModel(
        model.buffers.logits, model.embed, model.run_layers, model.head, model.draft,
        model.buffers.selected, LAYERS), options, model.state).emit()
    checkpoint = replace(checkpoint, name="hybrid", config=model.config, tensors={})
    regions = [*history_regions(model.buffers), *model.state.regions()]
    return finish(builder, checkpoint, options, regions)


def write_hybrid(folder: Path, snapshots: int = 6, widths: tuple[int, ...] = ()) -> Path:
    """The core, signed and accepted."""
    target = folder / f"hybrid-{snapshots}-{len(widths)}.core"
    publisher = Publisher(user_key(), "tests")
    write_core(prepare_hybrid(snapshots, widths), target, publisher, accept=True)
    return target
