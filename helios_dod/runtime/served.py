"""What a contract may ask for and this runtime cannot do yet is refused at start, by field."""

from collections.abc import Iterable

from helios_dod import terms
from helios_dod.contract.errors import ContractError
from helios_dod.contract.prepared import PreparedBinding, PreparedContract, PreparedProgram

PACKED = frozenset(value for name, value in vars(terms).items() if name.startswith("SOURCE_"))
DEVICE_EXECUTORS = ("cuda",)
MASKS = (terms.SOURCE_GRAMMAR_MASK, terms.SOURCE_CANDIDATE_MASKS)


def require_no_rows(program: PreparedProgram, field: str) -> None:
    """A program that allocates its lanes' lengths itself cannot be told where their rows lie."""
    for i, binding in enumerate(program.bindings):
        told = binding.source in (terms.SOURCE_QUERY_START, terms.SOURCE_SAMPLE_ROW)
        if told or binding.indexing == terms.INDEX_PACKED_TOKEN:
            raise ContractError(
                f"{field}.bindings[{i}]", "no packed rows beside SPECULATIVE_PREFIX_LIMIT",
                f"source {binding.source}, indexing {binding.indexing}")


def require_packed(binding: PreparedBinding, field: str) -> None:
    """Values whose place packing does not know."""
    physical = binding.indexing == terms.INDEX_PHYSICAL_ROW
    if physical and binding.source not in MASKS:
        raise ContractError(f"{field}.indexing", "rows of the submission: packing writes only masks"
                            " by request slot", "PHYSICAL_ROW")
    if binding.source == terms.SOURCE_CONSTANT and binding.indexing != terms.INDEX_SCALAR:
        raise ContractError(f"{field}.indexing", "SCALAR of a CONSTANT", binding.indexing)
    if binding.indexing == terms.INDEX_PACKED_TOKEN and binding.words != 1:
        raise ContractError(f"{field}.buffer", "one value a token: positions of one axis",
                            binding.words)


def require_served(contract: PreparedContract, programs: Iterable[int], executor: str) -> None:
    """Raises ContractError for values that nothing here writes and bodies of another device."""
    devices = {graph.name: graph.device_body for graph in contract.tuning}
    for index in programs:
        program = contract.programs[index]
        field = f"contract.model.graphs ({program.name})"
        for i, binding in enumerate(program.bindings):
            if binding.source not in PACKED:
                raise ContractError(f"{field}.bindings[{i}].source",
                                    "a value that this runtime packs", binding.source)
            require_packed(binding, f"{field}.bindings[{i}]")
        for name in program.unbound:
            raise ContractError(f"{field}.bindings", "a binding of each STAGING that the program "
                                "reads: this runtime stages no tables, and its transport writes no "
                                "frame index", f"none to {name}")
        sources = {binding.source for binding in program.bindings}
        if terms.SOURCE_SPECULATIVE_PREFIX_LIMIT in sources:
            require_no_rows(program, field)
        if program.device_body != (executor in DEVICE_EXECUTORS) and executor != "simulated":
            raise ContractError(f"{field}.body", f"a body for executor {executor}",
                                "CUDA nodes" if program.device_body else "host operations")
        if program.cursor and executor == "host":
            raise ContractError("contract.model.cache.cursor_state",
                                "none: host operations report no draft cursor", program.name)
        for i, (_, producer) in enumerate(program.tuned):
            if devices[producer] != program.device_body:
                nodes = "CUDA nodes" if program.device_body else "host operations"
                raise ContractError(
                    f"{field}.tuned_bindings[{i}].producer",
                    f"{nodes}, as the program's: of others executor {executor} runs no tuning "
                    "graphs", producer)
    _require_views(contract, programs)
    _require_restoring(contract, programs)


def _require_views(contract: PreparedContract, programs: Iterable[int]) -> None:
    """Views are shifted forwards; their pages behind a cached prefix are copied."""
    for i, table in enumerate(contract.cache.tables):
        if table.page_offset < 0 or (table.page_group == 1 and table.page_offset != 0):
            raise ContractError(f"contract.model.cache.tables[{i}].page_offset",
                                "0 or more that this runtime packs, 0 in page group 1",
                                table.page_offset)
    if contract.cache.view_pages and contract.cache.stateful and not contract.cache.partial:
        raise ContractError("contract.model.cache.regions", "a CONTINUATION region for what "
                            "shifted views hold behind a snapshot", "none")
    if contract.cache.view_pages and not contract.cache.stateful and not any(
            contract.programs[i].operation == terms.OP_RESTORE and
            any(binding.source == terms.SOURCE_PAGE_COPIES
                for binding in contract.programs[i].bindings) for i in programs):
        raise ContractError("contract.model.cache.tables", "no shifted view, or a RESTORE program "
                            "that binds PAGE_COPIES", contract.cache.view_pages)


def _require_restoring(contract: PreparedContract, programs: Iterable[int]) -> None:
    """Snapshots are worth nothing to a core that cannot copy them back."""
    if contract.cache.stateful and contract.snapshots and not any(
            contract.programs[i].operation == terms.OP_RESTORE and
            any(binding.source == terms.SOURCE_RESTORE_SOURCE
                for binding in contract.programs[i].bindings) for i in programs):
        raise ContractError("contract.snapshots", "0, or a RESTORE program that binds "
                            "RESTORE_SOURCE", contract.snapshots)
