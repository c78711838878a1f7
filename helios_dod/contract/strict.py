"""Refuses what the schema does not know: unknown fields, unknown and unspecified enum numbers.

protobuf keeps them silently; an engine that did so too would serve half of what a newer core asks.
Before that, bytes are counted: two of them can be a message that takes hundreds in memory.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from helios_dod.contract.errors import ContractError

# Enum fields whose zero says something: a constant axis, no scale, no minimum, no completion, an
# address whose use is not said, the rows that an operation always had.
ZERO_MEANS_NONE = frozenset({
    "helios.Extent.symbol", "helios.Panel.scale", "helios.Panel.minimum",
    "helios.Buffer.completion", "helios.CudaAddress.use", "helios.Rotary.rows",
    "helios.RecurrentScan.rows", "helios.CausalConvolution.rows",
    "helios.CacheWrite.rows", "helios.Attention.rows", "helios.Sample.rows",
    "helios.Product.kernel",
})

TEXT_NBYTES_MAX = 4096  # of one string
LICENSE_NBYTES_MAX = 1 << 20
LONG_TEXTS = {"helios.CoreBody.license_text": LICENSE_NBYTES_MAX,
              "helios.ModelIndex.license_text": LICENSE_NBYTES_MAX}
BLOCK_NBYTES = 1 << 20  # of packed numbers that are counted at once
CONTINUED = bytes(range(128, 256))  # bytes of a number that are not its last
FIELD_NBYTES_MIN = 2  # a tag and a number
VARINT_NBYTES_MAX = 5  # of a tag or length
NUMBER_NBYTES = {  # as packed; all others have as many bytes as they need
    FieldDescriptor.TYPE_FLOAT: 4, FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4, FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8, FieldDescriptor.TYPE_SFIXED64: 8,
}
WIRE_KINDS = {  # of fields that are not stored as numbers of any length
    **{kind: 5 if nbytes == 4 else 1 for kind, nbytes in NUMBER_NBYTES.items()},
    FieldDescriptor.TYPE_STRING: 2, FieldDescriptor.TYPE_BYTES: 2, FieldDescriptor.TYPE_MESSAGE: 2,
}


@dataclass(frozen=True)
class MessageLimits:
    """What one encoded message may hold in all."""

    messages: int  # messages, texts of lists, and fields that nobody knows
    values: int  # fields, and numbers of lists


@dataclass(frozen=True)
class _Lengthy:
    """A field that is stored with its length."""

    name: str
    parts: "dict[int, _Lengthy] | None"  # by tag, of a message
    counted: bool  # a message, or a text of a list
    longest: int | None  # bytes of a text
    value_nbytes: int | None  # at least, of what is in it; 0: counted one by one; None: one value


@cache
def _layout(descriptor: Descriptor) -> dict[int, _Lengthy]:
    """Fields that are stored with a length, by their tags. No type of the schema recurses."""
    found = {}
    for field in descriptor.fields:
        name = f"{descriptor.name}.{field.name}"
        text = field.type == FieldDescriptor.TYPE_STRING
        if field.message_type is not None:
            parts = _layout(field.message_type)
            made = _Lengthy(name, parts or None, True, None, None if parts else FIELD_NBYTES_MIN)
        elif text or field.type == FieldDescriptor.TYPE_BYTES:
            longest = LONG_TEXTS.get(field.full_name, TEXT_NBYTES_MAX) if text else None
            made = _Lengthy(name, None, text and field.is_repeated, longest, None)
        elif field.is_repeated:
            made = _Lengthy(name, None, False, None, NUMBER_NBYTES.get(field.type, 0))
        else:
            continue
        found[field.number << 3 | 2] = made
    return found


def check_counts(data: bytes, message: Message, limits: MessageLimits) -> None:
    """Walks the bytes of a message of that type before they are parsed. Raises ContractError where
    they would unfold to more than `limits` or hold a longer text, DecodeError where they are none.

    Format: protobuf's wire format; groups, which the schema has none of, are refused."""
    try:
        _count(data, message, limits)
    except IndexError as error:
        raise DecodeError("ends inside a field") from error


def _count(data: bytes, message: Message, limits: MessageLimits) -> None:
    descriptor: Descriptor = message.DESCRIPTOR  # type: ignore[assignment]
    at, end, layout = 0, len(data), _layout(descriptor)
    outer: list[tuple[int, dict[int, _Lengthy]]] = []
    messages = values = 0
    messages_max, values_max = limits.messages, limits.values
    while True:
        while at >= end:
            if at > end:
                raise DecodeError("a field passes the end of its message")
            if not outer:
                return
            end, layout = outer.pop()
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = _varint(data, at - 1)
        values += 1
        if values > values_max:
            field = layout.get(tag)
            name = field.name if field else descriptor.name
            raise _too_many(name, values_max, "values", values)
        kind = tag & 7
        if kind == 0:
            while data[at] > 127:
                at += 1
            at += 1
        elif kind == 2:
            size = data[at]
            at += 1
            if size > 127:
                size, at = _varint(data, at - 1)
            stop = at + size
            if stop > end:
                raise DecodeError("a field passes the end of its message")
            field = layout.get(tag)
            if field is None or field.counted:
                messages += 1
                if messages > messages_max:
                    name = field.name if field else f"{descriptor.name}, field {tag >> 3}"
                    raise _too_many(name, messages_max, "messages and texts", messages)
            if field is None:
                at = stop
            elif field.parts is not None:
                outer.append((end, layout))
                end, layout = stop, field.parts
            else:
                if field.longest is not None and size > field.longest:
                    raise ContractError(field.name, f"at most {field.longest} bytes", size)
                if field.value_nbytes is not None:
                    values += (size // field.value_nbytes if field.value_nbytes else
                               _numbers(data, at, stop, values_max - values))
                    if values > values_max:
                        raise _too_many(field.name, values_max, "values", values)
                at = stop
        elif kind == 5:
            at += 4
        elif kind == 1:
            at += 8
        else:
            raise DecodeError(f"field {tag >> 3} is stored in a way that is not known")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(number, position behind it) of a tag or length."""
    value = 0
    for i in range(VARINT_NBYTES_MAX):
        byte = data[at + i]
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise DecodeError("a tag or length that is too long")


def _numbers(data: bytes, at: int, stop: int, most: int) -> int:
    """Packed numbers in data[at:stop]; counting ends where they are more than `most`."""
    count = 0
    while at < stop and count <= most:
        block = data[at : min(at + BLOCK_NBYTES, stop)]
        count += len(block.translate(None, CONTINUED))
        at += len(block)
    return count


def _too_many(field: str, most: int, what: str, count: int) -> ContractError:
    return ContractError(field, f"at most {most} {what} in all", f"{count} up to here")


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
    """Walks a whole message. `name` starts the paths of errors: `name.graphs[3].operation`. One
    with unknown fields is left empty.

    Parts are made for Python one after another, not all at once: there may be 400,000 of them."""
    _check_enums(message, name)
    open_parts = [_parts_with_enums(message, name)]
    while open_parts:
        found = next(open_parts[-1], None)
        if found is None:
            open_parts.pop()
            continue
        _check_enums(*found)
        open_parts.append(_parts_with_enums(*found))
    _check_fields(message, name)  # last, since it encodes all of them


def _check_enums(message: Message, path: str) -> None:
    for field, repeated, numbers, chosen in _plan(message.DESCRIPTOR).enums:
        if chosen and not message.HasField(field):
            continue
        value = getattr(message, field)
        if not repeated and value in numbers:
            continue
        for number in value if repeated else (value,):
            if number not in numbers:
                raise ContractError(f"{path}.{field}", _names(message, field), number)


def _parts_with_enums(message: Message, path: str) -> Iterator[tuple[Message, str]]:
    for field, repeated in _plan(message.DESCRIPTOR).parts:
        if repeated:
            for i, part in enumerate(getattr(message, field)):
                yield part, f"{path}.{field}[{i}]"
        elif message.HasField(field):
            yield getattr(message, field), f"{path}.{field}"


def _names(message: Message, field: str) -> str:
    enum = message.DESCRIPTOR.fields_by_name[field].enum_type
    assert enum is not None
    names = (f"{value.name} ({value.number})" for value in enum.values if value.number)
    return "one of " + ", ".join(names)


def _check_fields(message: Message, name: str) -> None:
    """Unknown fields anywhere. Without them a message is shorter; only then they are looked for, in
    what it was, which is kept as bytes. It is left empty, since without them it could pass: to read
    it again would take as much memory again."""
    data = message.SerializeToString()
    message.DiscardUnknownFields()
    if message.ByteSize() == len(data):
        return
    message.Clear()
    path, number = _first_unknown(data, message.DESCRIPTOR, name)  # type: ignore[arg-type]
    raise ContractError(path, "only fields that this version knows",
                        f"unknown field number {number}")


@cache
def _known_tags(descriptor: Descriptor) -> dict[int, FieldDescriptor]:
    """Fields of a message by the tags that they may have: lists of numbers are packed or not."""
    tags = {}
    for field in descriptor.fields:
        kind = WIRE_KINDS.get(field.type, 0)
        tags[field.number << 3 | kind] = field
        if field.is_repeated:
            tags[field.number << 3 | 2] = field
    return tags


def _first_unknown(data: bytes, descriptor: Descriptor, name: str) -> tuple[str, int]:
    """(path of its message, number) of an unknown field in what protobuf wrote, which holds one.

    protobuf's own list of them takes a hundred bytes for two, and there may be a million."""
    at, end, tags, path = 0, len(data), _known_tags(descriptor), name
    counts = Counter[str]()  # parts so far, of each field of the message
    outer: list[tuple[int, dict[int, FieldDescriptor], str, Counter[str]]] = []
    while True:
        while at == end:
            end, tags, path, counts = outer.pop()
        tag, at = _varint(data, at)
        field = tags.get(tag)
        if field is None:
            return path, tag >> 3
        kind = tag & 7
        if kind == 0:
            while data[at] > 127:
                at += 1
            at += 1
        elif kind != 2:
            at += 4 if kind == 5 else 8
        else:
            size, at = _varint(data, at)
            if field.message_type is None:
                at += size
                continue
            outer.append((end, tags, path, counts))
            place = f"{field.name}[{counts[field.name]}]" if field.is_repeated else field.name
            counts[field.name] += 1
            end, tags, path = at + size, _known_tags(field.message_type), f"{path}.{place}"
            counts = Counter()
