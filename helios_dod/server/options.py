"""What `helios serve` was asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from helios_dod.frontend.assets import Assets
from helios_dod.frontend.requests import BODY_BYTES_MAX
from helios_dod.limits import SIZES, Limits
from helios_dod.runtime.options import EngineOptions

DRAIN_SECONDS = 30
PREPARED_BY_WORKER = 2
CLOSE_SECONDS = 5  # after draining, for connections to close


@dataclass(frozen=True)
class ServeOptions:
    """One server. Raises ValueError naming an option that does not fit."""

    core: Path
    load_assets: Callable[..., Assets]  # of that path; runs in each worker, after it listens
    run_engine: Callable[..., None]  # see runtime.engine_process.run
    engine: EngineOptions
    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free port
    workers: int = 1
    limits_name: str = "SMALL"
    queue_capacity: int = 0  # 0: as many as the size has room for
    model_name: str | None = None  # served instead of the core's own id
    drain_seconds: int = DRAIN_SECONDS
    frontend_workers: int = 0  # requests prepared at once, over all workers; 0: two a worker
    event_capacity: int = 64  # events that an answer may hold, at least
    body_bytes_max: int = BODY_BYTES_MAX
    key_digests: tuple[bytes, ...] = ()  # of API keys; none: everybody may ask
    cors_origins: tuple[str, ...] = ()
    log: str = "off"  # one line a request: text, json or off
    ui: bool = True  # a page at /
    remote_images: bool = False  # images at http(s) addresses are fetched
    uds: Path | None = None  # a Unix socket to listen on instead of host and port
    tls: tuple[Path, Path] | None = None  # certificate chain and key
    vllm_metrics: bool = False
    otlp: str | None = None  # where traces are posted
    restarts: int = 0  # of a failed engine

    def __post_init__(self) -> None:
        if self.limits_name not in SIZES:
            raise ValueError(f"--limits: {self.limits_name!r} is none of {', '.join(SIZES)}")
        for name, value, high in (
                ("--workers", self.workers, self.limits.frontends_max),
                ("--frontend-workers", self.frontend_workers or self.workers, 1024),
                ("--event-capacity", self.event_capacity, 1 << 20),
                ("--max-body-bytes", self.body_bytes_max, 1 << 30),
                ("--max-active", self.max_active, self.limits.slots_max),
                ("--queue-capacity", self.queue_capacity or 1,
                 self.limits.requests_max - self.max_active)):
            if not 1 <= value <= high:
                raise ValueError(f"{name}: must be between 1 and {high} with "
                                 f"--limits {self.limits_name}, got {value}")
        if 0 < self.frontend_workers < self.workers:
            raise ValueError(f"--frontend-workers: must be at least --workers, {self.workers}, so "
                             f"that each can prepare a request; got {self.frontend_workers}")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"--port: must be between 0 and 65535, got {self.port}")

    @property
    def url(self) -> str:
        """Where the server answers."""
        scheme = "https" if self.tls else "http"
        if self.uds is not None:
            return f"{scheme}+unix://{self.uds}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"

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
        return self.max_active + self.queued

    @property
    def queued(self) -> int:
        """Requests that may wait for a slot."""
        return self.queue_capacity or self.limits.requests_max - self.max_active

    def preparation_slots(self, worker: int) -> int:
        """Requests that a worker prepares at once: its share of `frontend_workers`."""
        total = self.frontend_workers or PREPARED_BY_WORKER * self.workers
        return total // self.workers + (worker < total % self.workers)
