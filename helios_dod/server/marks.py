"""When a traced request was where: nanoseconds of the monotonic clock."""

from dataclasses import dataclass


@dataclass
class ChoiceMarks:
    """One choice; 0: never."""

    queued_ns: int
    admitted_ns: int  # it got a slot
    first_ns: int  # its first token came
    last_ns: int  # its newest token came
    generated: int


@dataclass
class Marks:
    """A request that was queued. cached: prompt tokens that were not computed."""

    ingress_ns: int  # its body was decoded
    enqueue_ns: int
    cached: int
    choices: list[ChoiceMarks]
