"""Refuses what the schema does not know: unknown fields, unknown and unspecified enum numbers.

protobuf keeps them silently; an engine that did so too would serve half of what a newer core asks.
"""

from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from helios_dod.contract.errors import ContractError

# Enum fields whose zero says something: a constant axis, no scale, no minimum, no completion, an
# address whose use is not said, the rows that an operation always had.
ZERO_MEANS_NONE = frozenset({
    "helios.Extent.symbol", "helios.Panel.scale", "helios.Panel.minimum",
    "helios.Buffer.completion", "helios.CudaAddress.use", "helios.Rotary.rows",
    "helios.CacheWrite.rows", "helios.Attention.rows", "helios.Sample.rows",
})


@dataclass(frozen=True)
class _Plan:
    """What to look at in one message type."""

    # name, repeated, numbers that say something, one of a choice
    enums: tuple[tuple[str, bool, frozenset[int], bool], ...]
    parts: tuple[tuple[str, bool], ...]  # sub-messages that hold enums: name, repeated


@cache
def _holds_enums(descriptor: Descriptor) -> bool:
    """True if a message type or one below it has an enum field. No type of the schema recurses."""
    return any(
        field.type == FieldDescriptor.TYPE_ENUM
        or (field.message_type is not None and _holds_enums(field.message_type))
        for field in descriptor.fields)


@cache
def _plan(descriptor: Descriptor) -> _Plan:
    enums, parts = [], []
    for field in descriptor.fields:
        if field.type == FieldDescriptor.TYPE_ENUM:
            assert field.enum_type is not None
            numbers = frozenset(value.number for value in field.enum_type.values)
            if field.full_name not in ZERO_MEANS_NONE:
                numbers -= {0}
            chosen = field.containing_oneof is not None
            enums.append((field.name, field.is_repeated, numbers, chosen))
        elif field.message_type is not None and _holds_enums(field.message_type):
            parts.append((field.name, field.is_repeated))
    return _Plan(tuple(enums), tuple(parts))


def check_known(message: Message, name: str) -> None:
    """Walks a whole message. `name` starts the paths of errors: `name.graphs[3].operation`."""
    _check_fields(message, name)
    waiting: list[tuple[Message, str]] = [(message, name)]
    while waiting:
        current, path = waiting.pop()
        plan = _plan(current.DESCRIPTOR)
        for field, repeated, numbers, chosen in plan.enums:
            if chosen and not current.HasField(field):
                continue
            value = getattr(current, field)
            if not repeated and value in numbers:
                continue
            for number in value if repeated else (value,):
                if number not in numbers:
                    raise ContractError(f"{path}.{field}", _names(current, field), number)
        for field, repeated in plan.parts:
            if repeated:
                for i, part in enumerate(getattr(current, field)):
                    waiting.append((part, f"{path}.{field}[{i}]"))
            elif current.HasField(field):
                waiting.append((getattr(current, field), f"{path}.{field}"))


def _names(message: Message, field: str) -> str:
    enum = message.DESCRIPTOR.fields_by_name[field].enum_type
    assert enum is not None
    names = (f"{value.name} ({value.number})" for value in enum.values if value.number)
    return "one of " + ", ".join(names)


def _check_fields(message: Message, name: str) -> None:
    """Unknown fields anywhere. A copy without them is shorter; only then they are looked for."""
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    if known.ByteSize() == message.ByteSize():
        return
    waiting: list[tuple[Message, str]] = [(message, name)]
    while waiting:
        current, path = waiting.pop()
        for unknown in UnknownFieldSet(current):  # type: ignore[attr-defined]
            raise ContractError(path, "only fields that this version knows",
                                f"unknown field number {unknown.field_number}")
        for field, value in current.ListFields():
            if field.message_type is None:
                continue
            if field.message_type.GetOptions().map_entry:
                continue
            parts = value if field.is_repeated else (value,)
            for i, part in enumerate(parts):
                place = f"{field.name}[{i}]" if field.is_repeated else field.name
                waiting.append((part, f"{path}.{place}"))
    raise ContractError(name, "only fields that this version knows", "an unknown field")
