"""The ASGI application of one worker: routes, lifecycle, health.

A worker listens at once and loads its tokenizer afterwards; until it has, and until the engine
serves, requests are answered 503.
"""

import asyncio
import os
import signal
import sys
import traceback
from dataclasses import replace
from typing import Any

from helios_dod.frontend.assets import Assets
from helios_dod.frontend.preparation import Preparer
from helios_dod.frontend.text import Detokeniser
from helios_dod.server.answers import Send
from helios_dod.server.bridge import Bridge
from helios_dod.server.chat import ChatHandler, Disconnected, Receive, send_error, send_json
from helios_dod.server.chunks import as_json
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
    MethodNotAllowed,
    NotFound,
    Unavailable,
)
from helios_dod.server.metrics import CONTENT_TYPE, Exporter
from helios_dod.server.options import ServeOptions
from helios_dod.server.processes import exit_text, process_exit
from helios_dod.tables.service import STATUS_CLASSES, announce_once

RETRY = ((b"retry-after", b"1"),)


class App:
    """One worker process. memory and the eventfds come by fork."""

    def __init__(self, options: ServeOptions, memory: SharedMemory, worker: int,
                 wake_engine: int, wake_self: int) -> None:
        self.options, self.memory, self.worker = options, memory, worker
        self.wake_engine, self.wake_self = wake_engine, wake_self
        self.exporter = Exporter(memory)
        self.chat: ChatHandler | None = None
        self.bridge: Bridge | None = None
        self.loaded: tuple[Assets, Preparer, Bridge] | None = None
        self.load_error: str | None = None
        self.death: str | None = None  # how the engine ended
        self.tasks: set[asyncio.Task[None]] = set()
        self.engine_pidfd = -1
        self.routes: dict[str, dict[str, Any]] = {
            "/v1/chat/completions": {"POST": self.post_chat},
            "/v1/models": {"GET": self.get_models},
            "/health": {"GET": self.get_health},
            "/ready": {"GET": self.get_ready},
            "/metrics": {"GET": self.get_metrics},
        }

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] == "lifespan":
            await self.lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            status = await self.dispatch(scope, receive, send)
        except ApiError as error:
            status = error.status
            await send_error(send, error)
        except Disconnected:
            status = 0
        except Exception as error:
            print(f"worker {self.worker}: {type(error).__name__}: {error}", file=sys.stderr)
            status = 500
            await send_error(send, ExecutionFailed("Internal error.", code="internal_error"))
        self.count(status)

    def count(self, status: int) -> None:
        """Counts a response by its class; 0: the client went away."""
        if status == 0:
            name = "dropped"
        else:
            name = "429" if status == 429 else f"{status // 100}xx"
        row = self.memory.control[0]["workers"]["responses"][self.worker]
        row[STATUS_CLASSES.index(name)] += 1

    async def dispatch(self, scope: dict[str, Any], receive: Receive, send: Send) -> int:
        """Routes a request; the status sent. Raises ApiError."""
        path, method = scope["path"], scope["method"]
        methods = self.routes.get(path)
        if methods is None and path.startswith("/v1/models/"):
            methods = {"GET": self.get_model}
        if methods is None:
            raise NotFound(f"Unknown request URL: {method} {path}.", code="unknown_url")
        handler = methods.get("GET" if method == "HEAD" else method)
        if handler is None:
            raise MethodNotAllowed(
                f"Not allowed to {method} on {path}.", code="method_not_supported",
                headers=((b"allow", ", ".join(methods).encode()),))
        status: int = await handler(scope, receive, send)
        return status

    async def lifespan(self, receive: Receive, send: Send) -> None:
        """Starts loading when the worker starts; the worker listens right after."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await send({"type": "lifespan.shutdown.complete"})
                return

    def start(self) -> None:
        """Registers wake-ups and begins to load."""
        loop = asyncio.get_running_loop()
        workers = self.memory.control[0]["workers"]
        workers["pid"][self.worker] = os.getpid()
        workers["ready"][self.worker] = 0
        loop.add_reader(self.wake_self, self.on_wake)
        try:
            self.engine_pidfd = os.pidfd_open(int(self.memory.service["engine_pid"]))
            loop.add_reader(self.engine_pidfd, self.on_engine_end)
        except ProcessLookupError:
            loop.call_soon(self.on_engine_end)
        for job in (self.load(), self.announce()):
            task = loop.create_task(job)
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

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
        return assets, Preparer(assets), bridge

    def on_wake(self) -> None:
        """The engine wrote this worker's eventfd: events, or it is ready."""
        if self.bridge is None:
            return
        try:
            self.bridge.on_wake()
        except Exception:  # events would be lost: another worker starts over, the engine cancels
            traceback.print_exc()
            os._exit(1)
        if self.chat is None and self.memory.service["engine_state"] == ENGINE_READY:
            self.serve()

    def serve(self) -> None:
        """The engine is ready and everything is loaded."""
        assert self.loaded is not None and self.bridge is not None
        assets, preparer, bridge = self.loaded
        settings = bridge.world[0]["settings"]
        context = min(assets.context_tokens, int(settings["context_tokens"]),
                      self.memory.limits.context_max)
        capacity = int(self.memory.service["permit_count"])
        self.chat = ChatHandler(bridge, preparer, context, capacity)
        self.memory.control[0]["workers"]["ready"][self.worker] = 1
        if announce_once(self.memory.control):
            print(ready_text(self.options, assets.served_id), flush=True)

    async def announce(self) -> None:
        """Says that the server listens, once a connection succeeds."""
        if self.worker != 0:
            return
        for _ in range(1000):
            try:
                _, writer = await asyncio.open_connection(self.options.host, self.options.port)
            except OSError:
                await asyncio.sleep(0.005)
                continue
            writer.close()
            print(f"listening on {base_url(self.options)}; loading the model", flush=True)
            return

    def on_engine_end(self) -> None:
        """The engine process is gone: every live request fails, /health says why."""
        if self.engine_pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self.engine_pidfd)
            os.close(self.engine_pidfd)
            self.engine_pidfd = -1
        service = self.memory.service
        code = process_exit(int(service["engine_pid"]))
        stopped = service["engine_stop"] != 0
        self.death = get_cause(service) or (
            "the engine was stopped" if stopped else f"the engine process {exit_text(code)}")
        if service["engine_state"] == ENGINE_STARTING and not stopped:
            service["engine_failed_at_start"] = 1
            set_cause(service, self.death)
        if not stopped:
            service["engine_state"] = ENGINE_FAILED
            if not get_cause(service):
                set_cause(service, self.death)
                print(f"helios: {self.death}; requests are answered 503", file=sys.stderr)
        if service["engine_failed_at_start"]:
            os.kill(int(service["parent_pid"]), signal.SIGTERM)  # nothing can ever be served
        if self.bridge is not None:
            self.bridge.fail_all(ExecutionFailed(
                f"The engine failed: {self.death}.", code="engine_failed"))

    def failure(self) -> str | None:
        """Why the server cannot serve and will not, or None."""
        if self.death is None and self.memory.service["engine_state"] == ENGINE_FAILED:
            self.death = get_cause(self.memory.service)
        return self.death or self.load_error

    def serving(self) -> ChatHandler:
        """The chat handler. Raises Unavailable while there is none."""
        failure = self.failure()
        if failure is not None:
            raise Unavailable(f"The engine failed: {failure}.", code="engine_failed")
        if self.memory.service["draining"]:
            raise Unavailable("The server is shutting down.", code="draining", headers=RETRY)
        if self.chat is None:
            raise Unavailable("The server is starting: the model is not loaded yet.",
                              code="starting", headers=RETRY)
        return self.chat

    async def post_chat(self, scope: dict[str, Any], receive: Receive, send: Send) -> int:
        """Chat completions."""
        return await self.serving().handle(receive, send)

    def model_objects(self) -> list[dict[str, Any]]:
        """OpenAI's model objects. Raises Unavailable before the core is read."""
        if self.loaded is None:
            self.serving()
        assert self.loaded is not None
        assets = self.loaded[0]
        created = int(self.memory.service["started_ns"]) // 10**9
        return [{"id": name, "object": "model", "created": created, "owned_by": "helios",
                 "max_model_len": self.chat.context if self.chat else assets.context_tokens}
                for name in (assets.served_id, *assets.aliases)]

    async def get_models(self, scope: dict[str, Any], receive: Receive, send: Send) -> int:
        """The served model and its aliases."""
        await send_json(send, 200, as_json({"object": "list", "data": self.model_objects()}))
        return 200

    async def get_model(self, scope: dict[str, Any], receive: Receive, send: Send) -> int:
        """One model by id."""
        name = scope["path"].removeprefix("/v1/models/")
        for model in self.model_objects():
            if model["id"] == name:
                await send_json(send, 200, as_json(model))
                return 200
        raise NotFound(f"The model `{name}` does not exist.", "model", "model_not_found")

    async def get_health(self, scope: dict[str, Any], receive: Receive, send: Send) -> int:
        """200 while the engine lives, 503 with the cause once it does not."""
        failure = self.failure()
        if failure is not None:
            raise Unavailable(f"The engine failed: {failure}.", code="engine_failed")
        await send_json(send, 200, as_json({"status": "ok" if self.chat else "starting"}))
        return 200

    async def get_ready(self, scope: dict[str, Any], receive: Receive, send: Send) -> int:
        """200 when every worker serves requests."""
        self.serving()
        if not self.memory.control[0]["workers"]["ready"][: self.options.workers].all():
            raise Unavailable("Some worker is still loading.", code="starting", headers=RETRY)
        await send_json(send, 200, as_json({"status": "ready"}))
        return 200

    async def get_metrics(self, scope: dict[str, Any], receive: Receive, send: Send) -> int:
        """Prometheus text."""
        body = self.exporter.text()
        await send({"type": "http.response.start", "status": 200, "headers": (
            (b"content-type", CONTENT_TYPE), (b"content-length", b"%d" % len(body)))})
        await send({"type": "http.response.body", "body": body, "more_body": False})
        return 200


def base_url(options: ServeOptions) -> str:
    """Where the server answers."""
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"http://{host}:{options.port}"


def ready_text(options: ServeOptions, model: str) -> str:
    """What is printed when requests are served: a command to try."""
    return (f"ready: try\n  curl {base_url(options)}/v1/chat/completions "
            "-H 'content-type: application/json' \\\n"
            f"    -d '{{\"model\":\"{model}\",\"messages\":"
            "[{\"role\":\"user\",\"content\":\"Hello!\"}]}'")
