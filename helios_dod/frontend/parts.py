"""Parts of a message's content: text and images."""

from typing import Literal

import msgspec

IMAGE_ROLES = ("user", "tool")


class ImageURL(msgspec.Struct, forbid_unknown_fields=True):
    """Where an image is: a data URL, or an http(s) one."""

    url: str
    detail: Literal["auto", "high"] | None = None


class ContentPart(msgspec.Struct, forbid_unknown_fields=True):
    """One part, with the field that is named like its type."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageURL | None = None


def part_problem(role: str, parts: list[ContentPart]) -> tuple[str, str, str] | None:
    """What is wrong with a message's parts: the place, what it is, and OpenAI's code."""
    for i, part in enumerate(parts):
        for name in ("text", "image_url"):
            given, at = getattr(part, name) is not None, f"[{i}].{name}"
            if given and name != part.type:
                return at, f"does not belong to a part of type {part.type}", "invalid_value"
            if not given and name == part.type:
                return at, "is required", "missing_required_parameter"
        if part.type == "image_url" and role not in IMAGE_ROLES:
            return (f"[{i}].type", f"images belong to messages of {' and '.join(IMAGE_ROLES)}, got "
                                   f"{role}", "invalid_value")
    return None
