"""What the server asks of an engine process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from helios_dod.ledger import Ledger


def never() -> bool:
    """The default of EngineOptions.stopping."""
    return False


def nothing() -> None:
    """The default of EngineOptions.ready."""


@dataclass(frozen=True)
class EngineOptions:
    """Choices of the user (0: the engine chooses), and the engine's two calls to its server.

    An engine that cannot go on raises; the message is shown as the cause."""

    max_active: int = 0  # requests that run at once
    context_tokens: int = 0  # of prompt and output of one request
    cache_bytes: int = 0
    snapshots: int = 0  # places for them, where the model has state beside pages
    offload_bytes: int = 0  # host memory for pages that leave the device's cache; 0: none
    disk_folder: Path | None = None  # where a file for pages that leave that memory is made,
    disk_bytes: int = 0  # and its size; 0: none
    threads: int = 0
    speculative_width: int = 0  # widest speculative program
    history_drafting: bool = False  # proposals copied from a request's own text
    queue_capacity: int = 0  # requests that wait for a slot
    trust_weights: bool = False  # not compared with their signed digests
    random_weights: bool = False  # matrices are made on the device, for measurements
    record: Path | None = None  # where the last ticks are written when the engine ends
    record_ticks: int = 0  # 0: the recorder's default
    ledger: Ledger | None = None  # where they are kept, shared with the parent
    stopping: Callable[[], bool] = never  # True: end, after draining the device
    ready: Callable[[], None] = nothing  # call once, when requests are served
