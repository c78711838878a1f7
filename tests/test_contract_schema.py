"""The schema's own promises: stable numbers, reserved removals, every bool with a meaning."""

import importlib.util
from pathlib import Path

import pytest

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import core_pb2
from helios_dod.contract.wire import manifest_pb2 as wire

ROOT = Path(__file__).resolve().parent.parent
SPEC = importlib.util.spec_from_file_location("field_numbers", ROOT / "proto" / "field_numbers.py")
field_numbers = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(field_numbers)


def test_numbers_are_those_that_are_recorded():
    found = field_numbers.problems(
        field_numbers.current(), field_numbers.recorded(), field_numbers.reserved())
    assert not found, "\n".join(found)


def test_the_comparison_can_fail():
    now, before = field_numbers.current(), field_numbers.recorded()
    key = ("ModelContract", 2)
    renumbered = {k: v for k, v in now.items() if k != key} | {("ModelContract", 99): now[key]}
    texts = "\n".join(field_numbers.problems(renumbered, before, set()))
    assert "ModelContract 2: `vocabulary uint32` is gone" in texts
    assert "ModelContract 99: `vocabulary uint32` is not recorded" in texts
    retyped = now | {key: "vocabulary string"}
    assert "is `vocabulary string`" in field_numbers.problems(retyped, before, set())[0]
    removed = {k: v for k, v in now.items() if k != key}
    assert field_numbers.problems(removed, before, {key, *field_numbers.reserved()}) == []


def test_removed_numbers_are_reserved():
    assert ("Program", 9) in field_numbers.reserved()


def test_every_bool_of_the_model_contract_says_what_it_means():
    bools, meanings = sorted(field_numbers.model_bools()), field_numbers.bool_meanings()
    assert len(bools) > 10 and field_numbers.bool_problems(bools, meanings) == []
    added = field_numbers.bool_problems([*bools, "CacheContract.fast"], meanings)
    assert added == ["CacheContract.fast: a bool of ModelContract without a meaning in bools.txt"]


@pytest.mark.parametrize("fields", [
    "version vocabulary input_vocabulary vision cache graphs frontend"])
def test_model_contract_has_its_seven_fields(fields):
    assert {field.name for field in contract.ModelContract.DESCRIPTOR.fields} == set(fields.split())


def test_carriers_hold_the_contract():
    for message in (core_pb2.DeploymentBody, core_pb2.ModelIndex):
        described = message.DESCRIPTOR.fields_by_name["contract"].message_type
        assert described.full_name == "helios.ServingContract"


def test_five_indexing_modes_and_five_histories():
    assert set(contract.Indexing.keys()) == {
        "INDEXING_UNSPECIFIED", "SCALAR", "SUBMISSION_ROW", "ACTIVE_ROW", "PHYSICAL_ROW",
        "PACKED_TOKEN"}
    assert set(contract.HistoryKind.keys()) == {
        "HISTORY_KIND_UNSPECIFIED", "PAGED_KEY_VALUE", "PAGED_LATENT", "SLIDING_WINDOW",
        "RECURRENT", "CONTINUATION"}


def test_a_program_has_one_body():
    program = wire.Program(body=3)
    program.cuda_body = 1
    assert program.WhichOneof("code") == "cuda_body" and not program.HasField("body")
