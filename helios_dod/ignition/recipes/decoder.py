"""Decoders of the gated RMS-norm shape: Llama 2 and 3, SmolLM2, Mistral, Qwen2, Qwen2.5 and Qwen3.

Whether there are biases or query and key norms is read off the tensors; sizes, windows and rotary
scaling come from the configuration. Pre-norm residual layers:
x += output(attention(rotary(norm(query, key)), value)); x += down(act(gate) * up).
"""

from dataclasses import dataclass

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.checkpoints.checkpoint import Checkpoint, ModelConfig, RotaryScaling
from helios_dod.ignition.preparation.attention import (
    Place,
    Stream,
    declare_attention,
    history_regions,
)
from helios_dod.ignition.preparation.builder import Body, Builder, Handle, symbol
from helios_dod.ignition.preparation.contract import Shared, declare_shared
from helios_dod.ignition.preparation.finish import activation, finish
from helios_dod.ignition.preparation.options import Options
from helios_dod.ignition.preparation.programs import TextModel, TextPrograms
from helios_dod.ignition.preparation.rotary import frequencies
from helios_dod.ignition.preparation.weights import Linear, ModelWeights
from helios_dod.ignition.prepared import PreparationError, Prepared

NAME = "decoder"
ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class Layer:
    """Weights of one layer."""

    attention_norm: Handle
    query_key_value: Linear
    query_norm: Handle | None
    key_norm: Handle | None
    attention_output: Linear
    feed_norm: Handle
    gate_up: Linear
    down: Linear
    window: int


def declare_layer(weights: ModelWeights, config: ModelConfig, number: int) -> Layer:
    """Declares the weights of layer `number`."""
    at, hidden, inner = f"layers.{number}.", config.hidden, config.intermediate
    query, key = config.heads * config.head, config.key_heads * config.head
    heads = [(at + "query", query), (at + "key", key), (at + "value", key)]
    return Layer(
        attention_norm=weights.vector(at + "attention_norm.weight", hidden),
        query_key_value=weights.linear(at + "query_key_value", heads, hidden),
        query_norm=weights.optional_vector(at + "query_norm.weight", config.head),
        key_norm=weights.optional_vector(at + "key_norm.weight", config.head),
        attention_output=weights.linear(
            at + "attention_output", [(at + "attention_output", hidden)], query),
        feed_norm=weights.vector(at + "feed_norm.weight", hidden),
        gate_up=weights.linear(at + "gate_up", [(at + "gate", inner), (at + "up", inner)], hidden),
        down=weights.linear(at + "down", [(at + "down", hidden)], inner),
        window=config.windows[number],
    )


class Decoder:
    """Emits the operations of one model of the family."""

    def __init__(self, builder: Builder, shared: Shared, checkpoint: Checkpoint,
                 options: Options) -> None:
        config = checkpoint.config
        if config.rotary is None:
            raise PreparationError(
                f"checkpoint {checkpoint.name}: recipe {NAME} needs rotary positions")
        self.config, self.shared, self.rotary = config, shared, config.rotary
        weights = ModelWeights(builder, checkpoint)
        self.embedding = weights.matrix("embedding.weight", config.vocabulary, config.hidden)
        factors = None
        if self.rotary.scaling is RotaryScaling.FACTORS:
            factors = weights.floats("rotary_factors.weight", self.rotary.dimension // 2)
        self.frequencies = builder.vector("frequencies", frequencies(self.rotary, factors))
        self.layers = [declare_layer(weights, config, number) for number in range(config.layers)]
        self.final_norm = weights.vector("final_norm.weight", config.hidden)
        self.head_weight = weights.head(self.embedding)
        weights.check_all_used(NAME)
        self.buffers = declare_attention(builder, shared, config, options)
        self.gate_up, self.activated = (
            builder.buffer(name, wire.SCRATCH, wire.F32, (symbol(wire.PACKED), columns))
            for name, columns in (("gate_up", 2 * config.intermediate),
                                  ("activated", config.intermediate)))
        self.activation = activation(checkpoint, "silu")

    def embed(self, body: Body, ids: wire.Operand, place: Place | None = None) -> None:
        """Rows of the embedding table."""
        place = place or self.buffers.packed
        body.add(wire.Embed(rows=place.rows, index=ids, table=self.embedding.index,
                            output=place.hidden.whole))

    def normalise(self, body: Body, rows: wire.RowDomain, source: wire.Operand,
                  output: wire.Operand, weight: Handle, group: int = 0) -> None:
        """Root-mean-square norm."""
        body.add(wire.Normalise(
            rows=rows, kind=wire.RMS, input=source, output=output, weight=weight.index,
            epsilon=self.config.norm_epsilon, group=group))

    def run_layers(self, body: Body, rows: wire.RowDomain) -> Handle:
        """All layers, in place on the hidden rows; the buffer that holds `rows` of the last."""
        for number, layer in enumerate(self.layers):
            self.run_attention(body, number, layer, self.buffers.packed)
            stream = self.buffers.stream(body, number, rows)
            body.add(*layer.attention_output.apply(
                stream.rows, stream.attended.whole, stream.hidden, accumulate=True))
            self.run_feed(body, layer, stream)
        return stream.hidden

    def draft(self, body: Body, ids: wire.Operand, place: Place, count: int) -> None:
        """Logits of rows behind the first `count` layers; their history is that of all layers."""
        self.embed(body, ids, place)
        stream = Stream(place.rows, place.hidden, self.buffers.attended)
        for number, layer in enumerate(self.layers[:count]):
            self.run_attention(body, number, layer, place)
            body.add(*layer.attention_output.apply(
                stream.rows, stream.attended.whole, stream.hidden, accumulate=True))
            self.run_feed(body, layer, stream)
        self.head(body, place.rows, place.hidden)

    def run_attention(self, body: Body, number: int, layer: Layer, place: Place) -> None:
        """The attention half of a layer, up to the attended values."""
        buffers, head, rows = self.buffers, self.config.head, place.rows
        normed = buffers.normed.whole
        self.normalise(body, rows, place.hidden.whole, normed, layer.attention_norm)
        body.add(*layer.query_key_value.apply(rows, normed, buffers.query_key_value))
        for part, weight in ((buffers.query, layer.query_norm), (buffers.key, layer.key_norm)):
            if weight is not None:
                self.normalise(body, rows, part, part, weight, group=head)
        kind = wire.INTERLEAVED if self.rotary.interleaved else wire.HALVES
        body.add(
            wire.Rotary(
                operand=buffers.query_and_key, position=place.position, rows=place.domain,
                frequencies=self.frequencies.index, kind=kind, head=head,
                magnitude=self.rotary.magnitude),
            *buffers.attend(number, layer.window, place))

    def run_feed(self, body: Body, layer: Layer, stream: Stream) -> None:
        """The feed-forward half of a layer."""
        columns, rows, normed = self.config.intermediate, stream.rows, self.buffers.normed.whole
        self.normalise(body, rows, stream.hidden.whole, normed, layer.feed_norm)
        body.add(
            *layer.gate_up.apply(rows, normed, self.gate_up),
            wire.Activation(
                rows=rows, kind=self.activation, gate=self.gate_up.part(0, columns),
                up=self.gate_up.part(columns, columns), has_up=True, output=self.activated.whole),
            *layer.down.apply(rows, self.activated.whole, stream.hidden, accumulate=True))

    def head(self, body: Body, rows: wire.RowDomain, source: Handle) -> None:
        """Final norm, in place, and logits."""
        self.normalise(body, rows, source.whole, source.whole, self.final_norm)
        body.add(wire.Product(rows=rows, input=source.whole, weight=self.head_weight.index,
                              output=self.buffers.logits.whole))


def prepare_decoder(checkpoint: Checkpoint, options: Options) -> Prepared:
    """Programs, contract and weights of a checkpoint of this family."""
    builder = Builder()
    shared = declare_shared(builder, options, checkpoint.config.vocabulary)
    decoder = Decoder(builder, shared, checkpoint, options)
    buffers = decoder.buffers
    model = TextModel(buffers.logits, decoder.embed, decoder.run_layers, decoder.head,
                      decoder.draft, buffers.selected, checkpoint.config.layers)
    TextPrograms(builder, shared, model, options).emit()
    return finish(builder, checkpoint, options, history_regions(decoder.buffers))
