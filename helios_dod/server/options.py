"""What `helios serve` was asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from helios_dod.frontend.assets import Assets
from helios_dod.limits import SIZES, Limits
from helios_dod.runtime.options import EngineOptions

DRAIN_SECONDS = 30
CLOSE_SECONDS = 5  # after draining, for connections to close


@dataclass(frozen=True)
class ServeOptions:
    """One server. Raises ValueError naming an option that does not fit."""

    core: Path
    load_assets: Callable[[Path], Assets]  # runs in each worker, after it listens
    run_engine: Callable[..., None]  # see runtime.engine_process.run
    engine: EngineOptions
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free port
    workers: int = 1
    limits_name: str = "SMALL"
    queue_capacity: int = 0  # 0: as many as the size has room for
    model_name: str | None = None  # served instead of the core's own id
    drain_seconds: int = DRAIN_SECONDS

    def __post_init__(self) -> None:
        if self.limits_name not in SIZES:
            raise ValueError(f"--limits: {self.limits_name!r} is none of {', '.join(SIZES)}")
        for name, value, high in (
                ("--workers", self.workers, self.limits.frontends_max),
                ("--max-active", self.max_active, self.limits.slots_max),
                ("--queue-capacity", self.queue_capacity or 1,
                 self.limits.requests_max - self.max_active)):
            if not 1 <= value <= high:
                raise ValueError(f"{name}: must be between 1 and {high} with "
                                 f"--limits {self.limits_name}, got {value}")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"--port: must be between 0 and 65535, got {self.port}")

    @property
    def limits(self) -> Limits:
        """The world's size."""
        return SIZES[self.limits_name]

    @property
    def max_active(self) -> int:
        """Requests that run at once."""
        return self.engine.max_active or self.limits.slots_max

    @property
    def permits(self) -> int:
        """Requests in the server at once: running and queued, over all workers."""
        queued = self.queue_capacity or self.limits.requests_max - self.max_active
        return self.max_active + queued
