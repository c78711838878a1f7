"""What preparation hands to the core writer: everything that a core holds, weights as a stream."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from helios_dod.contract.wire import contract_pb2, core_pb2, manifest_pb2
from helios_dod.errors import UserError

WEIGHT_ALIGNMENT = 64  # every weight buffer starts at a multiple; the resource itself at a page
WEIGHT_RESOURCE = "weights"


class PreparationError(UserError):
    """A checkpoint cannot be prepared: which file, tensor or field, what was expected, got."""


@dataclass(frozen=True)
class WeightPart:
    """One weight buffer: its place in the weight resource, and how to make its bytes."""

    name: str  # buffer name in the execution manifest
    offset: int  # bytes from the start of the resource, a multiple of WEIGHT_ALIGNMENT
    nbytes: int
    produce: Callable[[], np.ndarray]  # uint8 [nbytes]; reads the checkpoint, so call it once


@dataclass(frozen=True)
class Weights:
    """One weight resource, in ascending offset order. Iterate to stream it; gaps are zero."""

    resource_id: str
    nbytes: int  # of the whole resource, padding included
    parts: tuple[WeightPart, ...]

    def __iter__(self) -> Iterator[tuple[str, int, np.ndarray]]:
        """(buffer name, offset, contiguous uint8 array) of each part, made one at a time."""
        for part in self.parts:
            data = part.produce()
            assert data.dtype == np.uint8 and data.ndim == 1 and data.size == part.nbytes, part.name
            yield part.name, part.offset, data

    def assemble(self) -> np.ndarray:
        """The whole resource as one uint8 array (tests and small models)."""
        whole = np.zeros(self.nbytes, np.uint8)
        for _, offset, data in self:
            whole[offset : offset + data.size] = data
        return whole


@dataclass(frozen=True)
class Prepared:
    """The contents of a core before they are framed, signed and written."""

    manifest: manifest_pb2.ExecutionManifest
    contract: contract_pb2.ServingContract
    tokenizer_json: bytes  # `tokenizers` JSON
    chat_template: str  # Jinja source, empty where the checkpoint has none
    token_bytes: core_pb2.TokenBytes
    weights: Weights
    license_text: str = ""
