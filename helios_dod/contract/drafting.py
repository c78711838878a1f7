"""History drafting is chosen at start-up; a core can only be able to do it."""

from collections.abc import Iterable

from helios_dod.contract.errors import require
from helios_dod.contract.prepared import PreparedContract
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire

COPIED = (contract.CANDIDATE_TOKENS, contract.CANDIDATE_COUNT, contract.CANDIDATE_GENERATION,
          contract.CANDIDATE_ENDPOINT)


def require_history(prepared: PreparedContract, programs: Iterable[int], learned: bool) -> None:
    """Raises ContractError unless history drafting can run with the selected programs.

    learned: learned speculation is enabled. It needs copied-token inputs in each wider program."""
    require(learned, "options.history_drafting", "learned speculation enabled", "disabled")
    wider = [prepared.programs[i] for i in programs
             if prepared.programs[i].operation == wire.SPECULATIVE
             and prepared.programs[i].width > 1]
    require(bool(wider), "options.history_drafting", "a selected speculative program wider than 1",
            "none")
    for program in wider:
        bound = {binding.source for binding in program.bindings}
        for source in COPIED:
            require(source in bound, "options.history_drafting",
                    f"a binding of {contract.ValueSource.Name(source)} in {program.name}", "none")
