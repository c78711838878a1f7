"""The ASGI application of one worker: routes, lifecycle, health.

A worker listens at once and loads its tokenizer afterwards; until it has, and until the engine
serves, requests are answered 503.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
import traceback
from dataclasses import replace
from typing import Any

from helios_dod.frontend.assets import Assets
from helios_dod.frontend.preparation import Preparer
from helios_dod.frontend.text import Detokeniser
from helios_dod.server.access import allowed_origin, check_key, log_request, preflight, request_id
from helios_dod.server.bodies import Holding
from helios_dod.server.bridge import Bridge
from helios_dod.server.control import (
    ENGINE_FAILED,
    ENGINE_READY,
    ENGINE_STARTING,
    SharedMemory,
    get_cause,
    set_cause,
)
from helios_dod.server.errors import (
    ApiError,
    ExecutionFailed,
    Unavailable,
)
from helios_dod.server.generation import Generator
from helios_dod.server.http import Exchange, Receive, Send
from helios_dod.server.metrics import Exporter
from helios_dod.server.options import ServeOptions
from helios_dod.server.processes import exit_text, probe_quiet_peers, process_exit
from helios_dod.server.remote_images import Fetcher
from helios_dod.server.surface import RETRY, Surface
from helios_dod.server.tracing import Tracer
from helios_dod.tables.service import STATUS_CLASSES, announce_once


class App:
    """One worker process. memory and the eventfds come by fork."""

    def __init__(self, options: ServeOptions, memory: SharedMemory, worker: int,
                 wake_engine: int, wake_workers: list[int]) -> None:
        self.options, self.memory, self.worker = options, memory, worker
        self.wake_engine, self.wake_workers = wake_engine, wake_workers
        self.wake_self = wake_workers[worker]
        self.exporter = Exporter(memory, self.model_id if options.vllm_metrics else None)
        self.surface = Surface(self)
        self.holding = Holding(options.body_bytes_max)
        self.generator: Generator | None = None
        self.bridge: Bridge | None = None
        self.loaded: tuple[Assets, Preparer, Bridge] | None = None
        self.load_error: str | None = None
        self.death: str | None = None  # how the engine ended
        self.tasks: set[asyncio.Task[None]] = set()
        self.engine_pid, self.engine_pidfd = 0, -1
        self.tracer: Tracer | None = None

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] == "lifespan":
            await self.lifespan(receive, send)
            return
        if scope["type"] == "http":
            exchange = Exchange(scope, receive, send, self.holding)
            try:
                await self.answer(exchange)
            finally:
                exchange.let_go()

    async def answer(self, exchange: Exchange) -> None:
        """One request, its errors, its log line."""
        options, began_ns, id = self.options, time.monotonic_ns(), request_id(exchange)
        origin = allowed_origin(exchange, options.cors_origins)
        exchange.extra = ((b"x-request-id", id), *origin)
        exchange.traced = self.tracer is not None and exchange.method == "POST"
        try:
            if origin and exchange.method == "OPTIONS":
                status = await preflight(exchange, list(self.surface.find(exchange.path)))
            else:
                check_key(exchange, options.key_digests)
                status = await self.surface.dispatch(exchange)
        except ApiError as error:
            status = await exchange.send_error(error)
        except Exception as error:
            traceback.print_exc()
            print(f"worker {self.worker}: request {id.decode()}: {error}", file=sys.stderr)
            status = await exchange.send_error(
                ExecutionFailed("Internal error.", code="internal_error"))
        self.count(status)
        log_request(exchange, options.log, id, status, began_ns)
        if exchange.traced and self.tracer is not None:
            self.tracer.record(exchange, id.decode(), status, began_ns)

    def count(self, status: int) -> None:
        """Counts a response by its class; 0: the client went away."""
        if status == 0:
            name = "dropped"
        else:
            name = "429" if status == 429 else f"{status // 100}xx"
        row = self.memory.control[0]["workers"]["responses"][self.worker]
        row[STATUS_CLASSES.index(name)] += 1

    async def lifespan(self, receive: Receive, send: Send) -> None:
        """Starts loading when the worker starts; the worker listens right after."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                if self.tracer is not None:
                    await asyncio.to_thread(self.tracer.close)
                await send({"type": "lifespan.shutdown.complete"})
                return

    def start(self) -> None:
        """Registers wake-ups and begins to load."""
        if self.options.otlp is not None:
            self.tracer = Tracer(self.options.otlp, self.worker)
        loop = asyncio.get_running_loop()
        workers = self.memory.control[0]["workers"]
        workers["pid"][self.worker] = os.getpid()
        workers["ready"][self.worker] = 0
        loop.add_reader(self.wake_self, self.on_wake)
        workers["quiet"][self.worker] = self.memory.service["engine_restarts"]
        self.watch_engine()
        for job in (self.load(), self.announce()):
            task = loop.create_task(job)
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def watch_engine(self) -> None:
        """Notices the engine's end at once."""
        loop, self.engine_pid = asyncio.get_running_loop(), int(self.memory.service["engine_pid"])
        try:
            self.engine_pidfd = os.pidfd_open(self.engine_pid)
            loop.add_reader(self.engine_pidfd, self.on_engine_end)
        except ProcessLookupError:
            loop.call_soon(self.on_engine_end)

    def follow_engine(self) -> None:
        """After an engine's end: lets go of its memory, and takes up the one started after it."""
        service = self.memory.service
        if self.death is None or service["engine_restarts"] == 0:
            return
        workers = self.memory.control[0]["workers"]
        workers["quiet"][self.worker] = service["engine_restarts"]
        if service["engine_pid"] != self.engine_pid:
            self.death = None
            self.watch_engine()

    async def load(self) -> None:
        """Loads tokenizer and template and compiles, on a thread."""
        try:
            self.loaded = await asyncio.get_running_loop().run_in_executor(None, self.load_assets)
        except Exception as error:
            self.load_error = f"{type(error).__name__}: {error}"
            print(f"worker {self.worker}: cannot load {self.options.core}: {self.load_error}",
                  file=sys.stderr)
            self.fail_at_start()
            return
        self.bridge = self.loaded[2]
        probe_quiet_peers()  # it listens by now
        self.bridge.adopt()
        self.on_wake()

    def fail_at_start(self) -> None:
        """Nothing can be served, and never was: the server ends with the cause. A worker that
        fails to start over later says so on /health, for what others serve goes on."""
        if not self.memory.service["announced"]:
            set_cause(self.memory.service, f"{self.options.core}: {self.load_error}")
            self.memory.service["engine_failed_at_start"] = 1
            os.kill(int(self.memory.service["parent_pid"]), signal.SIGTERM)

    def load_assets(self) -> tuple[Assets, Preparer, Bridge]:
        """Everything that serving needs. Takes up to a second for large vocabularies."""
        assets = self.options.load_assets(self.options.core)
        name = self.options.model_name
        if name is not None:
            assets = replace(assets, served_id=name, aliases=())
        detokeniser = Detokeniser(
            assets.byte_table, self.memory.limits.requests_max, assets.strip_leading_space)
        bridge = Bridge(self.memory, self.worker, self.wake_engine, self.wake_self, detokeniser)
        bridge.warm()
        preparer = Preparer(assets, Fetcher() if self.options.remote_images else None)
        preparer.encoder.isolate()
        return assets, preparer, bridge

    def on_wake(self) -> None:
        """This worker's eventfd was written: events, or something changed."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_self)
        self.follow_engine()
        if self.bridge is None or self.death is not None:
            return
        try:
            self.bridge.on_wake()
        except Exception:  # events would be lost: another worker starts over, the engine cancels
            traceback.print_exc()
            os._exit(1)
        if self.generator is None and self.memory.service["engine_state"] == ENGINE_READY:
            self.serve()

    def serve(self) -> None:
        """The engine is ready and everything is loaded."""
        assert self.loaded is not None and self.bridge is not None
        assets, preparer, bridge = self.loaded
        settings = bridge.world[0]["settings"]
        context = min(assets.context_tokens, int(settings["context_tokens"]),
                      self.memory.limits.context_max)
        capacity = int(self.memory.service["permit_count"])
        self.generator = Generator(bridge, preparer, context, capacity,
                                   self.options.preparation_slots(self.worker),
                                   self.options.event_capacity)
        self.memory.control[0]["workers"]["ready"][self.worker] = 1
        if announce_once(self.memory.control):
            print(ready_text(self.options, assets.served_id), flush=True)

    async def announce(self) -> None:
        """Says that the server listens, once a connection succeeds."""
        if self.worker != 0:
            return
        options = self.options
        for _ in range(1000):
            try:
                if options.uds is not None:
                    _, writer = await asyncio.open_unix_connection(str(options.uds))
                else:
                    _, writer = await asyncio.open_connection(options.host, options.port)
            except OSError:
                await asyncio.sleep(0.005)
                continue
            writer.close()
            print(f"listening on {options.url}; loading the model", flush=True)
            return

    def on_engine_end(self) -> None:
        """The engine process is gone: every live request fails, /health says why."""
        if self.engine_pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self.engine_pidfd)
            os.close(self.engine_pidfd)
            self.engine_pidfd = -1
        service = self.memory.service
        code = process_exit(self.engine_pid)
        stopped = service["engine_stop"] != 0
        self.death = get_cause(service) or (
            "the engine was stopped" if stopped else f"the engine process {exit_text(code)}")
        if service["engine_state"] == ENGINE_STARTING and not stopped \
                and not service["announced"][0]:
            service["engine_failed_at_start"] = 1
            set_cause(service, self.death)
        if not stopped:
            service["engine_state"] = ENGINE_FAILED
            if not get_cause(service):
                set_cause(service, self.death)
        if service["engine_failed_at_start"]:
            os.kill(int(service["parent_pid"]), signal.SIGTERM)  # nothing can ever be served
        if self.bridge is not None:
            self.bridge.fail_all(ExecutionFailed(
                f"The engine failed: {self.death}.", code="engine_failed"))
        self.generator = None
        self.memory.control[0]["workers"]["ready"][self.worker] = 0
        self.follow_engine()

    def failure(self) -> str | None:
        """Why the server cannot serve and will not, or None."""
        if self.death is None and self.memory.service["engine_state"] == ENGINE_FAILED:
            self.death = get_cause(self.memory.service)
        return self.death or self.load_error

    def model_id(self) -> str:
        """The served id, empty before the core is read."""
        return self.loaded[0].served_id if self.loaded else ""

    def serving(self) -> Generator:
        """What generates. Raises Unavailable while there is none."""
        failure = self.failure()
        if failure is not None:
            raise Unavailable(f"The engine failed: {failure}.", code="engine_failed")
        if self.memory.service["draining"]:
            raise Unavailable("The server is shutting down.", code="draining", headers=RETRY)
        if self.generator is None:
            raise Unavailable("The server is starting: the model is not loaded yet.",
                              code="starting", headers=RETRY)
        return self.generator

    def abort(self, id: str) -> bool:
        """Ends the live request whose answer has that id; False if there is none."""
        if self.bridge is None:
            return False
        worker = self.bridge.abort(id)
        if worker is None:
            return False
        os.eventfd_write(self.wake_workers[worker], 1)
        return True


def ready_text(options: ServeOptions, model: str) -> str:
    """What is printed when requests are served: a command to try."""
    where = f"{options.url}/v1/chat/completions"
    if options.uds is not None:
        where = f"--unix-socket {options.uds} http://localhost/v1/chat/completions"
    key = " -H 'authorization: Bearer KEY'" if options.key_digests else ""
    return (f"ready: try\n  curl {where}{key} -H 'content-type: application/json' \\\n"
            f"    -d '{{\"model\":\"{model}\",\"messages\":"
            "[{\"role\":\"user\",\"content\":\"Hello!\"}]}'")
