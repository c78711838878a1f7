"""Errors of the HTTP surface: classes, not texts, decide the status. Bodies are OpenAI's error
object: {"error": {"message", "type", "param", "code"}}; under /v1/messages they are Anthropic's."""

import msgspec

from helios_dod.errors import scalars
from helios_dod.frontend.requests import RequestError

ECHO_MAX = 200  # characters of a client's own words that an error repeats


def echo(text: str) -> str:
    """A client's words as an error repeats them: not at any length."""
    return text if len(text) <= ECHO_MAX else f"{text[:ECHO_MAX]}... ({len(text)} characters)"


class ApiError(Exception):
    """An answer other than success. headers: extra response headers."""

    status = 500
    type = "server_error"
    anthropic_type = "api_error"

    def __init__(self, message: str, param: str | None = None, code: str | None = None,
                 headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(message)
        self.message, self.param = scalars(message), param and scalars(param)
        self.code, self.headers = code, headers

    def fields(self) -> dict[str, str | None]:
        """The members of the error object."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def body(self) -> bytes:
        """The JSON error object."""
        return msgspec.json.encode({"error": self.fields()})

    def anthropic(self) -> bytes:
        """The same in Anthropic's form."""
        return msgspec.json.encode({"type": "error", "error": {
            "type": self.anthropic_type, "message": self.message}})


class InvalidRequest(ApiError):
    """The request cannot be prepared."""

    status, type, anthropic_type = 400, "invalid_request_error", "invalid_request_error"

    @classmethod
    def of(cls, error: RequestError) -> "InvalidRequest":
        """From a preparation error."""
        return cls(str(error), error.param, error.code)


class Unauthorized(ApiError):
    """No API key, or one that is not ours."""

    status, type, anthropic_type = 401, "invalid_request_error", "authentication_error"


class NotFound(ApiError):
    """No such path, model or live request."""

    status, type, anthropic_type = 404, "invalid_request_error", "not_found_error"


class MethodNotAllowed(ApiError):
    """The path exists, not for this method."""

    status, type, anthropic_type = 405, "invalid_request_error", "invalid_request_error"


class RequestTimeout(ApiError):
    """The client did not send the request that it began."""

    status, type, anthropic_type = 408, "invalid_request_error", "invalid_request_error"


class Aborted(ApiError):
    """Somebody asked for the end of the request by its id."""

    status, type = 409, "request_aborted"


class UnsupportedMedia(ApiError):
    """A body that is not JSON, or is compressed."""

    status, type, anthropic_type = 415, "invalid_request_error", "invalid_request_error"


class TooManyRequests(ApiError):
    """Every permit is taken."""

    status, type, anthropic_type = 429, "rate_limit_error", "rate_limit_error"


class ExecutionFailed(ApiError):
    """The model, the device or the engine failed."""


class Unavailable(ApiError):
    """Starting, draining, or the scheduler cannot take the request."""

    status, type, anthropic_type = 503, "service_unavailable_error", "overloaded_error"


class DeadlinePassed(ApiError):
    """The request's own deadline passed before it was complete."""

    status, type = 504, "deadline_error"


def too_many(count: int, capacity: int, seconds: int) -> TooManyRequests:
    """Full ingress. count: permits the request needs. seconds: until they are expected free."""
    return TooManyRequests(
        f"The server is at its capacity of {capacity} requests ({count} more asked for); "
        f"try again in about {seconds} s.", code="ingress_full",
        headers=((b"retry-after", b"%d" % seconds),))
