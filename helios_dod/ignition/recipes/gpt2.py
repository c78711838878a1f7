"""GPT-2: layer norms with bias, learned positions, tanh GELU, fused query-key-value, tied head.

Pre-norm residual layers: x += output(attention(norm(x))); x += down(gelu(up(norm(x)))).
"""

from dataclasses import dataclass

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.checkpoints.checkpoint import Checkpoint
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
from helios_dod.ignition.preparation.weights import Linear, ModelWeights
from helios_dod.ignition.prepared import PreparationError, Prepared

NAME = "gpt2"
ARCHITECTURES = ("gpt2",)
PACKED = wire.ROWS_PACKED


@dataclass(frozen=True)
class Norm:
    """Weight and bias of a layer norm."""

    weight: Handle
    bias: Handle


@dataclass(frozen=True)
class Layer:
    """Weights of one layer."""

    attention_norm: Norm
    query_key_value: Linear
    attention_output: Linear
    feed_norm: Norm
    up: Linear
    down: Linear


class Gpt2:
    """Emits the operations of one model."""

    def __init__(
        self, builder: Builder, shared: Shared, checkpoint: Checkpoint, options: Options
    ) -> None:
        config = checkpoint.config
        if config.rotary is not None:
            raise PreparationError(f"checkpoint {checkpoint.name}: missing tensor positions.weight")
        self.config, self.shared = config, shared
        self.weights = weights = ModelWeights(builder, checkpoint)
        self.embedding = weights.matrix("embedding.weight", config.vocabulary, config.hidden)
        self.positions = weights.matrix("positions.weight", config.context, config.hidden)
        self.layers = [self.declare_layer(number) for number in range(config.layers)]
        self.final_norm = self.declare_norm("final_norm")
        self.head_weight = weights.head(self.embedding)
        weights.check_all_used(NAME)
        self.buffers = declare_attention(builder, shared, config, options)
        self.up, self.activated = (
            builder.buffer(name, wire.SCRATCH, wire.F32, (symbol(wire.PACKED), config.intermediate))
            for name in ("up", "activated")
        )
        self.activation = activation(checkpoint, "gelu_new")

    def declare_norm(self, name: str) -> Norm:
        """Declares a layer norm."""
        weight, bias = (
            self.weights.vector(f"{name}.{leaf}", self.config.hidden) for leaf in ("weight", "bias")
        )
        return Norm(weight, bias)

    def declare_layer(self, number: int) -> Layer:
        """Declares the weights of layer `number`."""
        at, config = f"layers.{number}.", self.config

        def linear(name: str, rows: int, columns: int) -> Linear:
            return self.weights.linear(at + name, [(at + name, rows)], columns)

        return Layer(
            attention_norm=self.declare_norm(at + "attention_norm"),
            query_key_value=linear("query_key_value", 3 * config.hidden, config.hidden),
            attention_output=linear("attention_output", config.hidden, config.hidden),
            feed_norm=self.declare_norm(at + "feed_norm"),
            up=linear("up", config.intermediate, config.hidden),
            down=linear("down", config.hidden, config.intermediate),
        )

    def embed(self, body: Body, ids: wire.Operand, place: Place | None = None) -> None:
        """Token rows plus position rows."""
        place = place or self.buffers.packed
        hidden = place.hidden.whole
        body.add(
            wire.Embed(rows=place.rows, index=ids, table=self.embedding.index, output=hidden),
            wire.Embed(rows=place.rows, index=place.position, table=self.positions.index,
                       output=hidden, accumulate=True))

    def normalise(self, body: Body, rows: wire.RowDomain, source: Handle, output: Handle,
                  norm: Norm) -> None:
        """Layer norm with bias."""
        body.add(wire.Normalise(
            rows=rows, kind=wire.LAYER, input=source.whole, output=output.whole,
            weight=norm.weight.index, bias=norm.bias.index, has_bias=True,
            epsilon=self.config.norm_epsilon))

    def run_layers(self, body: Body, rows: wire.RowDomain) -> Handle:
        """All layers, in place on the hidden rows; the buffer that holds `rows` of the last."""
        for number, layer in enumerate(self.layers):
            self.run_attention(body, number, layer, self.buffers.packed)
            stream = self.buffers.stream(body, number, rows)
            self.run_feed(body, layer, stream)
        return stream.hidden

    def draft(self, body: Body, ids: wire.Operand, place: Place, count: int) -> None:
        """Logits of rows behind the first `count` layers; their history is that of all layers."""
        self.embed(body, ids, place)
        for number, layer in enumerate(self.layers[:count]):
            self.run_attention(body, number, layer, place)
            self.run_feed(body, layer, Stream(place.rows, place.hidden, self.buffers.attended))
        self.head(body, place.rows, place.hidden)

    def run_attention(self, body: Body, number: int, layer: Layer, place: Place) -> None:
        """The attention half of a layer, up to the attended values."""
        buffers = self.buffers
        self.normalise(body, place.rows, place.hidden, buffers.normed, layer.attention_norm)
        body.add(
            *layer.query_key_value.apply(
                place.rows, buffers.normed.whole, buffers.query_key_value),
            *buffers.attend(number, 0, place))

    def run_feed(self, body: Body, layer: Layer, stream: Stream) -> None:
        """What is behind a layer's attended values."""
        buffers = self.buffers
        body.add(*layer.attention_output.apply(
            stream.rows, stream.attended.whole, stream.hidden, accumulate=True))
        self.normalise(body, stream.rows, stream.hidden, buffers.normed, layer.feed_norm)
        body.add(
            *layer.up.apply(stream.rows, buffers.normed.whole, self.up),
            wire.Activation(rows=stream.rows, kind=self.activation, gate=self.up.whole,
                            output=self.activated.whole),
            *layer.down.apply(stream.rows, self.activated.whole, stream.hidden, accumulate=True))

    def head(self, body: Body, rows: wire.RowDomain, source: Handle) -> None:
        """Final norm, in place, and logits."""
        self.normalise(body, rows, source, source, self.final_norm)
        body.add(wire.Product(rows=rows, input=source.whole, weight=self.head_weight.index,
                              output=self.buffers.logits.whole))


def prepare_gpt2(checkpoint: Checkpoint, options: Options) -> Prepared:
    """Programs, contract and weights of a GPT-2 checkpoint."""
    builder = Builder()
    shared = declare_shared(builder, options, checkpoint.config.vocabulary)
    recipe = Gpt2(builder, shared, checkpoint, options)
    buffers = recipe.buffers
    model = TextModel(buffers.logits, recipe.embed, recipe.run_layers, recipe.head, recipe.draft,
                      buffers.selected, checkpoint.config.layers)
    TextPrograms(builder, shared, model, options).emit()
    return finish(builder, checkpoint, options, history_regions(recipe.buffers))
