"""From canonical tensors to weight buffers, with stacking where element types agree."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.checkpoints.checkpoint import Checkpoint, Tensor
from helios_dod.ignition.preparation.builder import Builder, Handle
from helios_dod.ignition.prepared import PreparationError


@dataclass(frozen=True)
class Piece:
    """A matrix that fills some columns of a product's output."""

    weight: Handle
    bias: Handle | None
    column: int
    columns: int


@dataclass(frozen=True)
class Linear:
    """A matrix product that may be made of several stored matrices."""

    pieces: tuple[Piece, ...]

    def apply(
        self, rows: wire.RowDomain, source: wire.Operand, output: Handle, accumulate: bool = False
    ) -> list[wire.Product]:
        """Products that compute output[r] = weight @ source[r] (+ bias) (+ output[r])."""
        whole = len(self.pieces) == 1
        return [
            wire.Product(
                rows=rows,
                input=source,
                weight=piece.weight.index,
                output=output.whole if whole else output.part(piece.column, piece.columns),
                bias=0 if piece.bias is None else piece.bias.index,
                has_bias=piece.bias is not None,
                accumulate=accumulate,
            )
            for piece in self.pieces
        ]


class ModelWeights:
    """Declares the weights of one checkpoint and remembers which tensors were used."""

    def __init__(self, builder: Builder, checkpoint: Checkpoint) -> None:
        self.builder = builder
        self.checkpoint = checkpoint
        self.used: set[str] = set()

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self.used.add(name)
        return self.checkpoint.tensor(name, shape)

    def has(self, name: str) -> bool:
        """Whether the checkpoint has a tensor."""
        return name in self.checkpoint.tensors

    def vector(self, name: str, size: int) -> Handle:
        """A norm, bias or factor vector as float32."""
        return self.builder.vector(name, self._take(name, (size,)).floats())

    def optional_vector(self, name: str, size: int) -> Handle | None:
        """The vector, or None where the checkpoint has none."""
        return self.vector(name, size) if self.has(name) else None

    def floats(self, name: str, size: int) -> np.ndarray:
        """Values of a vector that is not stored as it is."""
        return self._take(name, (size,)).floats()

    def matrix(self, name: str, rows: int, columns: int) -> Handle:
        """One matrix in panel storage."""
        return self.builder.matrix(name, [self._take(name, (rows, columns))])

    def linear(self, name: str, parts: Sequence[tuple[str, int]], columns: int) -> Linear:
        """Matrices `parts` (canonical name without `.weight`, rows), stacked in this order.
        Neighbours of one element type, all with or all without a bias, become one matrix."""
        groups: list[list[tuple[Tensor, np.ndarray | None]]] = []
        keys: list[tuple[str, bool]] = []
        for part, rows in parts:
            tensor = self._take(f"{part}.weight", (rows, columns))
            values = self.floats(f"{part}.bias", rows) if self.has(f"{part}.bias") else None
            key = (tensor.kind, values is not None)
            if not keys or keys[-1] != key:
                groups.append([])
                keys.append(key)
            groups[-1].append((tensor, values))
        pieces: list[Piece] = []
        for number, group in enumerate(groups):
            label = name if len(groups) == 1 else f"{name}.{number}"
            weight = self.builder.matrix(f"{label}.weight", [tensor for tensor, _ in group])
            stored = [values for _, values in group if values is not None]
            bias = self.builder.vector(f"{label}.bias", np.concatenate(stored)) if stored else None
            column = pieces[-1].column + pieces[-1].columns if pieces else 0
            pieces.append(Piece(weight, bias, column, sum(tensor.shape[0] for tensor, _ in group)))
        return Linear(tuple(pieces))

    def head(self, embedding: Handle) -> Handle:
        """The matrix of the logits: the embedding where the checkpoint ties both."""
        config = self.checkpoint.config
        if config.tied:
            self.used.add("head.weight")  # a copy that some files carry
            return embedding
        return self.matrix("head.weight", config.vocabulary, config.hidden)

    def check_all_used(self, recipe: str) -> None:
        """Refuses a checkpoint with tensors that the recipe has no place for."""
        left = sorted(set(self.checkpoint.tensors) - self.used)
        if left:
            names = ", ".join(self.checkpoint.tensors[name].name for name in left[:4])
            raise PreparationError(
                f"checkpoint {self.checkpoint.name}: {len(left)} tensors have no place in recipe "
                f"{recipe}: {names}"
            )
