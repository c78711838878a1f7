"""What the references inside a JSON schema lead to."""

from typing import Any
from urllib.parse import unquote

INDEX_DIGITS_MAX = 8
REFERENCE_MAX = 1024  # characters; following a longer one takes as long as it is


def target_of(root: Any, reference: Any) -> Any:
    """What '#' or a JSON pointer '#/a/b' names; None for nothing, and for other references, as
    those of more than REFERENCE_MAX characters are."""
    if not isinstance(reference, str) or len(reference) > REFERENCE_MAX:
        return None
    if reference != "#" and not reference.startswith("#/"):
        return None
    place = root
    for part in unquote(reference).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict) and key in place:
            place = place[key]
        elif (isinstance(place, list) and key.isdecimal() and len(key) <= INDEX_DIGITS_MAX
                and int(key) < len(place)):
            place = place[int(key)]
        else:
            return None
    return place
