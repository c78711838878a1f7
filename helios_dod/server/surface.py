"""Every path of the server and what it answers. Endpoints that generate are in generation.py."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helios_dod import __version__
from helios_dod.server import tokens
from helios_dod.server.anthropic import MessageEndpoint
from helios_dod.server.chat import ChatEndpoint
from helios_dod.server.chunks import as_json
from helios_dod.server.completions import CompletionEndpoint
from helios_dod.server.errors import MethodNotAllowed, NotFound, Unavailable, echo
from helios_dod.server.generation import Endpoint, effort
from helios_dod.server.http import Exchange
from helios_dod.server.live import live_of
from helios_dod.server.metrics import CONTENT_TYPE
from helios_dod.server.responses import ResponseEndpoint, cancelled

if TYPE_CHECKING:
    from helios_dod.server.app import App

Handler = Callable[[Exchange], Awaitable[int]]
RETRY = ((b"retry-after", b"1"),)
PAGE = Path(__file__).with_name("page.html")
PAGE_HEADERS = (
    (b"content-type", b"text/html; charset=utf-8"), (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; script-src "
     b"'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'"))
GENERATING = (ChatEndpoint, CompletionEndpoint, ResponseEndpoint, MessageEndpoint)


class Surface:
    """The routes of one worker: path -> method -> handler. A path that ends in /* takes one more
    part."""

    def __init__(self, app: "App") -> None:
        self.app = app
        self.endpoints: dict[str, Endpoint] = {}
        self.routes: dict[str, dict[str, Handler]] = {
            "/v1/models": {"GET": self.get_models},
            "/v1/models/*": {"GET": self.get_model},
            "/v1/responses/*": {"GET": self.no_response, "DELETE": self.no_response},
            "/v1/responses/*/cancel": {"POST": self.post_cancel},
            "/v1/messages/count_tokens": {"POST": self.post_count_tokens},
            "/v1/abort": {"POST": self.post_abort},
            "/tokenize": {"POST": self.post_tokenize},
            "/detokenize": {"POST": self.post_detokenize},
            "/health": {"GET": self.get_health},
            "/ready": {"GET": self.get_ready},
            "/version": {"GET": self.get_version},
            "/metrics": {"GET": self.get_metrics},
            "/live": {"GET": self.get_live},
            "/openapi.json": {"GET": self.get_openapi},
        }
        if app.options.ui:
            self.routes["/"] = {"GET": self.get_page}
        for kind in GENERATING:
            self.routes[kind.path] = {"POST": self.post_generating}

    def find(self, path: str) -> dict[str, Handler]:
        """A path's methods. Raises NotFound."""
        front, _, last = path.rpartition("/")
        found = self.routes.get(path) or self.routes.get(f"{front}/*") or self.routes.get(
            f"{front.rpartition('/')[0]}/*/{last}")
        if found is None:
            raise NotFound(f"This server has no {echo(path)}.", code="unknown_url")
        return found

    async def dispatch(self, exchange: Exchange) -> int:
        """Routes a request; the status sent. Raises ApiError."""
        methods = self.find(exchange.path)
        handler = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if handler is None:
            raise MethodNotAllowed(
                f"Not allowed to {echo(exchange.method)} on {echo(exchange.path)}.",
                code="method_not_supported", headers=((b"allow", ", ".join(methods).encode()),))
        return await handler(exchange)

    async def post_generating(self, exchange: Exchange) -> int:
        """Whatever makes the model speak."""
        generator = self.app.serving()
        return await generator.handle(self.endpoint(exchange.path), exchange)

    def endpoint(self, path: str) -> Endpoint:
        """A generating endpoint. Raises Unavailable."""
        if not self.endpoints:
            preparer = self.app.serving().preparer
            self.endpoints = {kind.path: kind(preparer) for kind in GENERATING}
        return self.endpoints[path]

    async def no_response(self, exchange: Exchange) -> int:
        """Responses have no life after their answer."""
        raise NotFound("Responses are not stored: none can be read or deleted by id.",
                       "response_id", "responses_not_stored")

    async def post_cancel(self, exchange: Exchange) -> int:
        """Ends a live response."""
        generator = self.app.serving()
        id = exchange.path.split("/")[3]
        if not self.app.abort(id):
            raise NotFound(f"No live response has the id {echo(id)!r}; responses are not stored.",
                           "response_id", "response_not_found")
        return await exchange.send_json(cancelled(
            id, generator.preparer.assets.served_id, int(time.time())))

    async def post_count_tokens(self, exchange: Exchange) -> int:
        """Tokens of a message request's prompt."""
        generator = self.app.serving()
        endpoint = self.endpoint(MessageEndpoint.path)
        assert isinstance(endpoint, MessageEndpoint)
        body = await exchange.body()
        request = await generator.call(len(body), endpoint.decode_count, body)
        generator.check_model(request.model)
        async with generator.slots:
            answer = await generator.call(effort(body), endpoint.count, request)
        return await exchange.send_json(answer)

    def model_objects(self) -> list[dict[str, Any]]:
        """OpenAI's model objects. Raises Unavailable before the core is read."""
        app = self.app
        if app.loaded is None:
            app.serving()
        assert app.loaded is not None
        assets = app.loaded[0]
        created = int(app.memory.service["started_ns"]) // 10**9
        context = app.generator.context if app.generator else assets.context_tokens
        return [{"id": name, "object": "model", "created": created, "owned_by": "helios",
                 "max_model_len": context} for name in (assets.served_id, *assets.aliases)]

    async def get_models(self, exchange: Exchange) -> int:
        """The served model and its aliases."""
        return await exchange.send_json(
            as_json({"object": "list", "data": self.model_objects()}))

    async def get_model(self, exchange: Exchange) -> int:
        """One model by id."""
        name = exchange.path.removeprefix("/v1/models/")
        for model in self.model_objects():
            if model["id"] == name:
                return await exchange.send_json(as_json(model))
        raise NotFound(f"The model `{echo(name)}` does not exist.", "model", "model_not_found")

    async def post_abort(self, exchange: Exchange) -> int:
        """Ends a live request by its answer's id, whichever worker has it."""
        generator = self.app.serving()
        body = await exchange.body()
        request = await generator.call(len(body), tokens.decode_abort, body)
        if not self.app.abort(request.id):
            raise NotFound(f"No live request has the id {echo(request.id)!r}.", "id",
                           "request_not_found")
        return await exchange.send_json(as_json({"id": request.id, "aborted": True}))

    async def post_tokenize(self, exchange: Exchange) -> int:
        """Token ids of a text or of a conversation."""
        generator = self.app.serving()
        body = await exchange.body()
        request = await generator.call(len(body), tokens.decode_tokenize, body)
        if request.model is not None:
            generator.check_model(request.model)
        async with generator.slots:
            answer = await generator.call(
                effort(body), tokens.tokenize, generator.preparer, request, generator.context)
        return await exchange.send_json(answer)

    async def post_detokenize(self, exchange: Exchange) -> int:
        """The text of token ids."""
        generator = self.app.serving()
        body = await exchange.body()
        request = await generator.call(len(body), tokens.decode_detokenize, body)
        if request.model is not None:
            generator.check_model(request.model)
        answer = await generator.call(
            len(body), tokens.detokenize, generator.preparer.assets, request)
        return await exchange.send_json(answer)

    async def get_health(self, exchange: Exchange) -> int:
        """200 while the engine lives, 503 with the cause once it does not."""
        failure = self.app.failure()
        if failure is not None:
            raise Unavailable(f"The engine failed: {failure}.", code="engine_failed")
        return await exchange.send_json(
            as_json({"status": "ok" if self.app.generator else "starting"}))

    async def get_ready(self, exchange: Exchange) -> int:
        """200 when every worker serves requests."""
        self.app.serving()
        workers = self.app.memory.control[0]["workers"]
        if not workers["ready"][: self.app.options.workers].all():
            raise Unavailable("Some worker is still loading.", code="starting", headers=RETRY)
        return await exchange.send_json(as_json({"status": "ready"}))

    async def get_version(self, exchange: Exchange) -> int:
        """The server's version."""
        return await exchange.send_json(as_json({"version": __version__}))

    async def get_live(self, exchange: Exchange) -> int:
        """What the tables say now."""
        return await exchange.send_json(as_json(live_of(self.app.exporter.collector.tables)))

    async def get_page(self, exchange: Exchange) -> int:
        """A page to chat and to look at the tables: one file that fetches nothing else."""
        return await exchange.send_bytes(200, PAGE.read_bytes(), PAGE_HEADERS)

    async def get_openapi(self, exchange: Exchange) -> int:
        """The surface, described."""
        from helios_dod.server.openapi import document  # made at its first use

        loaded = self.app.loaded
        names = tuple(sorted(loaded[1].names)) if loaded else ()
        return await exchange.send_json(document(names))

    async def get_metrics(self, exchange: Exchange) -> int:
        """Prometheus text."""
        return await exchange.send_bytes(
            200, self.app.exporter.text(), ((b"content-type", CONTENT_TYPE),))
