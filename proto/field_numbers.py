"""Guards the numbers of proto/*.proto: compares them with field_numbers.txt; --record extends it.

A line is one field or enum value: full name, number, type. A recorded line may go only when its
number is reserved in the schema; its number never gets another meaning. --record adds new lines and
never changes one.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from google.protobuf import descriptor_pb2

from helios_dod.contract.wire import contract_pb2, core_pb2, manifest_pb2

MODULES = (manifest_pb2, contract_pb2, core_pb2)
RECORD = Path(__file__).resolve().parent / "field_numbers.txt"
BOOLS = Path(__file__).resolve().parent / "bools.txt"
Numbers = dict[tuple[str, int], str]  # (message or enum, number) -> name and type


def current() -> Numbers:
    """Every field and enum value of the generated modules."""
    found: Numbers = {}
    for module in MODULES:
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            for field in message.field:
                kind = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)[5:].lower()
                label = "repeated " if field.label == field.LABEL_REPEATED else ""
                kind = field.type_name.removeprefix(".helios.") or kind
                found[message.name, field.number] = f"{field.name} {label}{kind}"
        for enum in file.enum_type:
            for value in enum.value:
                found[enum.name, value.number] = value.name
    return found


def reserved() -> set[tuple[str, int]]:
    """Numbers that the schema reserves."""
    held: set[tuple[str, int]] = set()
    for module in MODULES:
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            for part in message.reserved_range:  # the end is exclusive
                held |= {(message.name, number) for number in range(part.start, part.end)}
        for enum in file.enum_type:
            for span in enum.reserved_range:  # the end is inclusive
                held |= {(enum.name, number) for number in range(span.start, span.end + 1)}
    return held


def recorded() -> Numbers:
    """What field_numbers.txt holds."""
    found: Numbers = {}
    for line in RECORD.read_text().splitlines():
        owner, number, rest = line.split(" ", 2)
        found[owner, int(number)] = rest
    return found


def problems(now: Numbers, before: Numbers, held: set[tuple[str, int]]) -> list[str]:
    """Renumbered, retyped, reused, removed or unrecorded numbers, each in one line."""
    found = []
    for (owner, number), meaning in before.items():
        if (owner, number) in now:
            if now[owner, number] != meaning:
                found.append(f"{owner} {number}: was `{meaning}`, is `{now[owner, number]}`")
        elif (owner, number) not in held:
            found.append(f"{owner} {number}: `{meaning}` is gone and its number not reserved")
    for (owner, number), meaning in now.items():
        if (owner, number) not in before:
            found.append(f"{owner} {number}: `{meaning}` is not recorded; "
                         "run field_numbers.py --record")
    return found


def model_bools() -> Iterator[str]:
    """`Message.field` of every bool that a ModelContract can hold."""
    waiting: list[Any] = [contract_pb2.ModelContract.DESCRIPTOR]
    seen: set[str] = set()
    while waiting:
        message = waiting.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        for field in message.fields:
            if field.type == field.TYPE_BOOL:
                yield f"{message.name}.{field.name}"
            elif field.message_type is not None:
                waiting.append(field.message_type)


def bool_problems(bools: list[str], meanings: dict[str, str]) -> list[str]:
    """Bools without a stated meaning, and meanings of bools that are not there."""
    found = [f"{name}: a bool of ModelContract without a meaning in bools.txt"
             for name in bools if not meanings.get(name)]
    return found + [f"{name}: in bools.txt, not in ModelContract"
                    for name in meanings if name not in bools]


def bool_meanings() -> dict[str, str]:
    """What bools.txt says: name -> meaning."""
    rows = (line.partition(" ") for line in BOOLS.read_text().splitlines())
    return {name: meaning.strip() for name, _, meaning in rows}


def main() -> int:
    """Compares, or records."""
    now = current()
    before = recorded() if RECORD.exists() else {}
    if "--record" in sys.argv:
        merged = now | before
        RECORD.write_text("".join(
            f"{owner} {number} {merged[owner, number]}\n" for owner, number in sorted(merged)))
        return 0
    found = problems(now, before, reserved())
    found += bool_problems(sorted(model_bools()), bool_meanings())
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
