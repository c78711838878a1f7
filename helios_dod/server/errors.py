"""Errors of the HTTP surface: classes, not texts, decide the status. Bodies are OpenAI's error
object: {"error": {"message", "type", "param", "code"}}."""

import msgspec

from helios_dod.frontend.requests import RequestError


class ApiError(Exception):
    """An answer other than success. headers: extra response headers."""

    status = 500
    type = "server_error"

    def __init__(self, message: str, param: str | None = None, code: str | None = None,
                 headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.headers = message, param, code, headers

    def body(self) -> bytes:
        """The JSON error object."""
        return msgspec.json.encode({"error": {
            "message": self.message, "type": self.type, "param": self.param, "code": self.code}})


class InvalidRequest(ApiError):
    """The request cannot be prepared."""

    status, type = 400, "invalid_request_error"

    @classmethod
    def of(cls, error: RequestError) -> "InvalidRequest":
        """From a preparation error."""
        return cls(str(error), error.param, error.code)


class NotFound(ApiError):
    """No such path or model."""

    status, type = 404, "invalid_request_error"


class MethodNotAllowed(ApiError):
    """The path exists, not for this method."""

    status, type = 405, "invalid_request_error"


class TooManyRequests(ApiError):
    """Every permit is taken."""

    status, type = 429, "rate_limit_error"


class ExecutionFailed(ApiError):
    """The model, the device or the engine failed."""


class Unavailable(ApiError):
    """Starting, draining, or the scheduler cannot take the request."""

    status, type = 503, "service_unavailable_error"


def too_many(count: int, capacity: int) -> TooManyRequests:
    """Full ingress. count: permits the request needs."""
    return TooManyRequests(
        f"The server is at its capacity of {capacity} requests ({count} more asked for); "
        "try again later.", code="ingress_full", headers=((b"retry-after", b"1"),))
