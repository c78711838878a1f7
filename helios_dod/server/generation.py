"""From a request's body to its answer, for every endpoint that generates: permits, preparation
slots, submission, and freeing everything however it ends."""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from helios_dod.frontend.preparation import Prepared, Preparer
from helios_dod.frontend.requests import RequestError
from helios_dod.server.answers import Answer, Script, Stream, Whole
from helios_dod.server.bodies import CLOSE
from helios_dod.server.bridge import Bridge
from helios_dod.server.choices import Choice
from helios_dod.server.errors import DeadlinePassed, InvalidRequest, NotFound, echo, too_many
from helios_dod.server.http import Exchange
from helios_dod.server.marks import Marks

INLINE_BYTES = 16_384  # larger bodies are prepared on a thread, so that streams keep flowing


# Fields of requests whose grammar is tried or whose image is fetched and decoded, which takes long
# however short they are.
SLOW = re.compile(rb'"(response_format|format|structured_outputs|guided_\w+|tool_choice|strict|'
                  rb'thinking\w*|image_url|source)"')


def effort(body: bytes) -> int:
    """What preparing a request takes, in bytes of a plain one."""
    return len(body) + INLINE_BYTES * bool(SLOW.search(body))


class Endpoint(Protocol):
    """A dialect: how requests are read and answers are said."""

    path: str
    prefix: str  # of an answer's id

    def decode(self, body: bytes) -> Any:
        """The request, checked; it has `model` and `deadline_ms`. Raises RequestError."""

    def prepare(self, request: Any, context: int) -> Prepared:
        """Prompts and submissions. Raises RequestError."""

    def script(self, request: Any, id: str, created: int, prepared: Prepared) -> Script:
        """The words of a streamed answer."""

    def whole(self, request: Any, id: str, created: int, answer: Whole) -> bytes:
        """The body of a complete answer."""


class Generator:
    """Serves what generates, in one worker. context: tokens of prompt and output at most.

    slots: requests that this worker prepares at once."""

    def __init__(self, bridge: Bridge, preparer: Preparer, context: int, capacity: int,
                 slots: int, event_capacity: int = 0) -> None:
        self.bridge, self.preparer = bridge, preparer
        self.context, self.capacity, self.event_capacity = context, capacity, event_capacity
        self.slots = asyncio.Semaphore(slots)
        self.threads = ThreadPoolExecutor(slots, "prepare")
        self.origin_ns = int(bridge.memory.service["origin_ns"])

    def now_ns(self) -> int:
        """Nanoseconds from the origin that tokens are stamped from."""
        return time.monotonic_ns() - self.origin_ns

    async def call(self, size: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls what takes long for large bodies, and for any where a text has taken too long to
        encode. Raises ApiError where it raises RequestError."""
        try:
            if size <= INLINE_BYTES and not self.preparer.encoder.slow:
                return function(*arguments)
            return await asyncio.get_running_loop().run_in_executor(
                self.threads, function, *arguments)
        except RequestError as error:
            raise InvalidRequest.of(error) from None

    def check_model(self, name: str) -> None:
        """Raises NotFound for a model that is not served."""
        if name not in self.preparer.names:
            raise NotFound(
                f"The model `{echo(name)}` does not exist; this server has "
                f"`{self.preparer.assets.served_id}`.", "model", "model_not_found")

    async def handle(self, endpoint: Endpoint, exchange: Exchange) -> int:
        """Answers one request; the status sent, or 0 if the client went away. Raises ApiError
        before anything was sent."""
        self.look_ahead(exchange)
        body = await exchange.body()
        permits = self.claim(1)
        try:
            exchange.let_go()  # permits bound how many bodies there are from here on
            request = await self.call(len(body), endpoint.decode, body)
            ingress_ns = self.now_ns()
            self.check_model(request.model)
            async with self.slots:
                prepared = await self.call(effort(body), endpoint.prepare, request, self.context)
            del body
            count = len(prepared.submissions)
            if count > self.capacity:
                raise InvalidRequest(f"The request has {count} choices, more than the server's "
                                     f"capacity of {self.capacity} requests.", "n", "invalid_value")
            permits += self.claim(count - 1)
            id, created = endpoint.prefix + self.bridge.next_name(permits[0]), int(time.time())
            answer = self.answer_for(endpoint, request, prepared, id, created, exchange)
            answer.ingress_ns = ingress_ns
            self.set_deadline(prepared, request.deadline_ms, ingress_ns)
            answer.enqueue_ns = self.now_ns()
        except BaseException:
            self.bridge.release(permits)
            raise
        exchange.notes.update(id=id, prompt_tokens=prepared.prompt_count)
        choices = self.bridge.submit(permits, prepared.submissions, answer, prepared.readings,
                                     prepared.observed or prepared.counted)
        return await self.respond(answer, choices, exchange)

    def claim(self, count: int) -> list[int]:
        """Permits. Raises TooManyRequests when fewer are free."""
        permits = self.bridge.claim(count)
        if permits is None:
            raise too_many(count, self.capacity, self.bridge.retry_after(count))
        return permits

    def look_ahead(self, exchange: Exchange) -> None:
        """Raises TooManyRequests before a long body is read, if no permit is free."""
        told = exchange.body_told()
        if (told is None or told > INLINE_BYTES) and self.bridge.full():
            error = too_many(1, self.capacity, self.bridge.retry_after(1))
            error.headers += (CLOSE,)
            raise error

    def set_deadline(self, prepared: Prepared, deadline_ms: int | None, ingress_ns: int) -> None:
        """Turns a request's own time into the engine's. Raises DeadlinePassed."""
        if deadline_ms is None:
            return
        deadline_ns = ingress_ns + deadline_ms * 1_000_000
        if deadline_ns <= self.now_ns():
            raise DeadlinePassed("The request was not prepared before its deadline.",
                                 "deadline_ms", "deadline_passed")
        for submission in prepared.submissions:
            submission.deadline_ns = deadline_ns + self.origin_ns

    def answer_for(self, endpoint: Endpoint, request: Any, prepared: Prepared, id: str,
                   created: int, exchange: Exchange) -> Stream | Whole:
        """What will collect or stream the request's events."""
        if prepared.stream:
            script = endpoint.script(request, id, created, prepared)
            return Stream(exchange.send, prepared, script, self.event_capacity)

        def render(answer: Whole) -> bytes:
            return endpoint.whole(request, id, created, answer)

        return Whole(prepared, render)

    async def respond(self, answer: Stream | Whole, choices: list[Choice],
                      exchange: Exchange) -> int:
        """Waits for the answer or the client's leaving; frees everything at the end."""
        gone = asyncio.ensure_future(exchange.until_disconnect())
        try:
            if isinstance(answer, Stream):
                workers = self.bridge.memory.control[0]["workers"]
                workers["streams"][self.bridge.worker] += 1
                answer.begin(exchange.extra)
            self.score_short(answer, choices)
            await asyncio.wait({gone, answer.done}, return_when=asyncio.FIRST_COMPLETED)
            exchange.notes["generated_tokens"] = answer.generated
            if not answer.done.done():
                return 0
            if isinstance(answer, Stream):
                return 200
            return await self.send_whole(answer, exchange)
        finally:
            if exchange.traced:
                exchange.marks = self.marks_of(answer, choices)
            self.bridge.drop(choices)
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    def marks_of(self, answer: Answer, choices: list[Choice]) -> Marks:
        """What a trace tells of a request that was queued."""
        return Marks(answer.ingress_ns + self.origin_ns, answer.enqueue_ns + self.origin_ns,
                     answer.cached, [self.bridge.marks_of(choice) for choice in choices])

    def score_short(self, answer: Answer, choices: list[Choice]) -> None:
        """A prompt of one token has no scores to wait for."""
        for choice, submission in zip(choices, answer.prepared.submissions, strict=True):
            if submission.scored and choice.prompt_count == 1:
                choice.answer.prompt_scored(choice, ())

    async def send_whole(self, answer: Whole, exchange: Exchange) -> int:
        """Sends a JSON answer. Raises its error."""
        if answer.error is not None:
            raise answer.error
        return await exchange.send_json(answer.render(answer))
