"""Every value source: which buffers and indexing a binding of it may have."""

from collections.abc import Mapping
from dataclasses import dataclass

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as manifest
from helios_dod.limits import BIAS_MAX, EOS_MAX, MASK_BITS

LANE_INDEXINGS = {
    contract.SUBMISSION_ROW: manifest.LANES,
    contract.ACTIVE_ROW: manifest.LANES,
    contract.PHYSICAL_ROW: manifest.SLOTS,
}
SCALAR_INDEXING = {contract.SCALAR: 0}
PACKED_INDEXING = {contract.PACKED_TOKEN: manifest.PACKED}
UPDATES_INDEXING = {contract.SCALAR: manifest.UPDATES}
ANY_INDEXING = {**SCALAR_INDEXING, **LANE_INDEXINGS, **PACKED_INDEXING}


# Row lengths that depend on the core. `any`: whatever the buffer declares.
ELEMENTS = ("vocabulary", "mask", "drafts", "masks", "any")


def elements_of(wanted: int | str, vocabulary: int, drafts: int, width: int) -> int | None:
    """Elements of a row in a program of D drafts and width W; None where any count will do."""
    if isinstance(wanted, int):
        return wanted
    mask = -(-vocabulary // MASK_BITS)
    return {"vocabulary": vocabulary, "mask": mask, "drafts": drafts, "masks": width * mask,
            "any": None}[wanted]


@dataclass(frozen=True)
class SourceRule:
    """Where a source's values may go."""

    indexings: Mapping[contract.Indexing, int]  # allowed indexing -> symbol of axis 0 (0: one row)
    layouts: tuple[tuple[int, int | str], ...]  # allowed (dtype, elements of a row, or ELEMENTS)
    version: int = 1  # first contract version that has it
    operations: tuple[int, ...] = ()  # the only ones whose programs have it; empty: any
    vision: bool = False  # of models with images alone
    offset: bool = False  # it may be shifted: a token or a position, no row or count


def _lanes(dtype: int = manifest.I32, elements: int | str = 1, version: int = 1,
           operations: tuple[int, ...] = (), vision: bool = False) -> SourceRule:
    return SourceRule(LANE_INDEXINGS, ((dtype, elements),), version, operations, vision)


def _packed(operations: tuple[int, ...] = (), offset: bool = False) -> SourceRule:
    return SourceRule(PACKED_INDEXING, ((manifest.I32, 1),), 1, operations, False, offset)


def _copied(dtype: int = manifest.I32, elements: int | str = 1) -> SourceRule:
    return _lanes(dtype, elements, 3, (manifest.SPECULATIVE,))


_SCALAR = SourceRule(SCALAR_INDEXING, ((manifest.I32, 1),))
_IMAGE = SourceRule(PACKED_INDEXING, ((manifest.I32, 1),), 3, (), True)
_F32 = _lanes(manifest.F32)
_I32 = _lanes()

SOURCES: dict[int, SourceRule] = {
    contract.SLOT: _I32,
    contract.GENERATION: _I32,
    contract.LIVE_LANES: _SCALAR,
    contract.LIVE_PACKED: _SCALAR,
    contract.LIVE_SAMPLED: _SCALAR,
    contract.QUERY_LENGTH: _I32,
    contract.QUERY_START: _I32,
    contract.SAMPLE_ROW: _I32,
    contract.LANE: _packed(),
    contract.SPECULATIVE_PREFIX_LIMIT: SourceRule(LANE_INDEXINGS, ((manifest.I32, 1),), version=3),
    contract.MIXED_PREFILL_ROW: SourceRule(
        SCALAR_INDEXING, ((manifest.I32, 1),), 2, (manifest.MIXED,)),
    contract.SAMPLING_DECISION: _I32,
    contract.TOKEN: _packed(offset=True),
    contract.TARGET_TOKEN: _packed((manifest.SCORED_PREFILL,), offset=True),
    contract.PENDING_TOKEN: _I32,
    contract.POSITION: SourceRule(
        PACKED_INDEXING, ((manifest.I32, 1), (manifest.I32, 3)), offset=True),
    contract.CONSUMED: SourceRule(LANE_INDEXINGS, ((manifest.I32, 1),), offset=True),
    contract.IMAGE_FEATURE_INDEX: _IMAGE,
    contract.IMAGE_CONTEXT_INDEX: _IMAGE,
    contract.IMAGE_FEATURE_SLOT: _lanes(version=3, vision=True),
    contract.PAGE_UPDATE_COUNT: _SCALAR,
    contract.PAGE_UPDATES: SourceRule(UPDATES_INDEXING, ((manifest.I32, 3),)),
    contract.PAGE_COPY_COUNT: _SCALAR,
    contract.PAGE_COPIES: SourceRule(UPDATES_INDEXING, ((manifest.I32, 2),)),
    contract.PAGE_TABLE: _lanes(elements="any"),
    contract.STATE_ROW: _lanes(version=2),
    contract.RESTORE_SOURCE: _lanes(version=2),
    contract.SNAPSHOT_DESTINATION: _lanes(version=2),
    contract.SEED: SourceRule(
        LANE_INDEXINGS, ((manifest.U64, 1), (manifest.U32, 2), (manifest.I32, 2))),
    contract.TEMPERATURE: _F32,
    contract.TOP_P: _F32,
    contract.MIN_P: _F32,
    contract.TOP_K: _I32,
    contract.REPETITION_PENALTY: _F32,
    contract.PRESENCE_PENALTY: _F32,
    contract.FREQUENCY_PENALTY: _F32,
    contract.OUTPUT_LIMIT: _I32,
    contract.OUTPUT_MINIMUM: _I32,
    contract.STOP_TOKENS: _lanes(elements=EOS_MAX),
    contract.TOP_LOGPROBS: _I32,
    contract.BIAS_COUNT: _I32,
    contract.BIAS_TOKENS: _lanes(elements=BIAS_MAX),
    contract.BIAS_VALUES: _lanes(manifest.F32, BIAS_MAX),
    contract.PROMPT_HISTOGRAM: _lanes(elements="vocabulary"),
    contract.GENERATED: _I32,
    contract.GRAMMAR_MASK: _lanes(manifest.U32, "mask", version=2),
    contract.CONSTANT: SourceRule(ANY_INDEXING, ((manifest.I32, 1),)),
    contract.CANDIDATE_TOKENS: _copied(elements="drafts"),
    contract.CANDIDATE_COUNT: _copied(),
    contract.CANDIDATE_GENERATION: _copied(),
    contract.CANDIDATE_ENDPOINT: _copied(),
    contract.CANDIDATE_MASKS: _copied(manifest.U32, "masks"),
    contract.IMAGE_TENSOR: SourceRule(
        ANY_INDEXING, ((manifest.F32, "any"), (manifest.F16, "any"), (manifest.BF16, "any"),
                       (manifest.I32, "any")), version=3, vision=True),
}
