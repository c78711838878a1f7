"""proto/CONTRACT.md names every part of the contract, and tests that exist."""

import ast
import re
from pathlib import Path

import pytest

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire

TESTS = Path(__file__).parent
TEXT = (TESTS.parent / "proto" / "CONTRACT.md").read_text()
MESSAGES = (contract.ServingContract, contract.ModelContract, contract.GraphContract,
            contract.ValueBinding, contract.StateView, contract.CacheContract,
            contract.HistoryRegion, contract.PageTableView, contract.FrontendContract)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.DESCRIPTOR.name)
def test_every_field_is_in_the_table(message):
    words = set(re.findall(r"\w+", TEXT))
    missing = [field.name for field in message.DESCRIPTOR.fields if field.name not in words]
    assert not missing


@pytest.mark.parametrize("enum", [contract.ValueSource, contract.Indexing, contract.HistoryKind])
def test_every_value_is_in_the_table(enum):
    words = set(re.findall(r"\w+", TEXT))
    assert not [name for name, number in enum.items() if number and name not in words]


def test_programs_are_in_the_table():
    words = set(re.findall(r"\w+", TEXT))
    skipped = {"name", "reserved"}
    assert not [field.name for field in wire.Program.DESCRIPTOR.fields
                if field.name not in words | skipped]


def test_every_test_that_is_named_exists():
    named = set(re.findall(r"(test_\w+)::(test_\w+)", TEXT))
    assert len(named) > 60
    for file in {file for file, _ in named}:
        tree = ast.parse((TESTS / f"{file}.py").read_text())
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        missing = {name for owner, name in named if owner == file} - defined
        assert not missing, f"{file}: {sorted(missing)}"


def test_no_preference_for_history_drafting_is_carried():
    """It is an option of a start alone: no field of what is exported could hold it."""
    waiting, seen = [contract.ServingContract.DESCRIPTOR, wire.ExecutionManifest.DESCRIPTOR], set()
    while waiting:
        message = waiting.pop()
        if message.full_name not in seen:
            seen.add(message.full_name)
            waiting += [field.message_type for field in message.fields if field.message_type]
            assert not [field.name for field in message.fields
                        if "history" in field.name or "drafting" in field.name]
    assert len(seen) > 40
