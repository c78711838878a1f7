"""Where other prompts may part from this one: after messages of roles that the core declares."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from helios_dod.limits import BOUNDARIES_MAX


class Constraint(StrEnum):
    """When the rendering of the first messages alone is the beginning of the whole prompt."""

    RENDER_ALWAYS = "render_always"
    RENDER_WITHOUT_TOOLS = "render_without_tools"  # where the request declares no tools
    RENDER_IF_PREFIX = "render_if_prefix"  # where it is found to be


@dataclass(frozen=True)
class Boundary:
    """A rule of the core."""

    roles: tuple[str, ...]
    constraint: Constraint


def boundary_places(roles: Sequence[str], rules: Iterable[Boundary], tools: bool) -> list[int]:
    """Numbers of messages before each boundary, ascending: the first one, which many conversations
    share, and the last ones, where this conversation goes on. roles: of the messages. tools:
    whether the request declares any."""
    wanted = {role for rule in rules for role in rule.roles
              if not (tools and rule.constraint == Constraint.RENDER_WITHOUT_TOOLS)}
    places = [i for i, role in enumerate(roles, 1) if role in wanted]
    if len(places) > BOUNDARIES_MAX:
        places = places[:1] + places[1 - BOUNDARIES_MAX:]
    return places
