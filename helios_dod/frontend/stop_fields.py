"""The fields of a request that stop its answer: their extents, and what they exclude."""

from typing import Any

from helios_dod.limits import (
    STOP_SEQUENCE_TOKENS_MAX,
    STOP_STRING_BYTES_MAX,
    STOP_STRINGS_MAX,
)


def stop_strings(request: Any) -> list[str]:
    """The stop strings of a request; one may be given alone."""
    return [request.stop] if isinstance(request.stop, str) else request.stop or []


def stop_problem(request: Any) -> tuple[str, str] | None:
    """(field, problem) of a request's stops, or None."""
    strings, sequences = stop_strings(request), request.stop_token_sequences or []
    size = sum(len(text.encode()) for text in strings)
    for count, most, what in ((len(strings), STOP_STRINGS_MAX, "entries"),
                              (size, STOP_STRING_BYTES_MAX, "bytes of UTF-8")):
        if count > most:
            return "stop", f"has {count} {what}; at most {most} are accepted"
    if not all(strings):
        return "stop", "must not hold an empty string"
    for count in map(len, sequences):
        if not 1 <= count <= STOP_SEQUENCE_TOKENS_MAX:
            return "stop_token_sequences", (
                f"has an entry of {count} tokens; 1 to {STOP_SEQUENCE_TOKENS_MAX} are accepted")
    for name in ("stop_token_ids", "stop_token_sequences"):
        if strings and getattr(request, name):
            return "stop", f"cannot be combined with '{name}'"
    return None
