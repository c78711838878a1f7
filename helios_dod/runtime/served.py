"""What a contract may ask for and this runtime cannot do yet is refused at start, by field."""

from collections.abc import Iterable

from helios_dod import terms
from helios_dod.contract.errors import ContractError
from helios_dod.contract.prepared import PreparedContract, PreparedProgram

PACKED = frozenset(value for name, value in vars(terms).items() if name.startswith("SOURCE_"))
DEVICE_EXECUTORS = ("cuda",)


def require_no_rows(program: PreparedProgram, field: str) -> None:
    """A program that allocates its lanes' lengths itself cannot be told where their rows lie."""
    for i, binding in enumerate(program.bindings):
        told = binding.source in (terms.SOURCE_QUERY_START, terms.SOURCE_SAMPLE_ROW)
        if told or binding.indexing == terms.INDEX_PACKED_TOKEN:
            raise ContractError(
                f"{field}.bindings[{i}]", "no packed rows beside SPECULATIVE_PREFIX_LIMIT",
                f"source {binding.source}, indexing {binding.indexing}")


def require_served(contract: PreparedContract, programs: Iterable[int], executor: str) -> None:
    """Raises ContractError for sources that packing does not know and bodies of another device."""
    for index in programs:
        program = contract.programs[index]
        field = f"contract.model.graphs ({program.name})"
        for i, binding in enumerate(program.bindings):
            if binding.source not in PACKED:
                raise ContractError(f"{field}.bindings[{i}].source",
                                    "a value that this runtime packs", binding.source)
        sources = {binding.source for binding in program.bindings}
        if terms.SOURCE_SPECULATIVE_PREFIX_LIMIT in sources:
            require_no_rows(program, field)
        if program.device_body != (executor in DEVICE_EXECUTORS) and executor != "simulated":
            raise ContractError(f"{field}.body", f"a body for executor {executor}",
                                "CUDA nodes" if program.device_body else "host operations")
        if program.tuned and executor not in DEVICE_EXECUTORS:
            raise ContractError(f"{field}.tuned_bindings",
                                f"none: executor {executor} runs no tuning graphs",
                                program.tuned[0][1])
