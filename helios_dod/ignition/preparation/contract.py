"""Declarations that every text recipe shares: what the host stages, what the device keeps for each
request row, what a program reports; and the serving contract made of them."""

import hashlib
from dataclasses import dataclass
from typing import Any

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.frontend.output.syntax import OutputSyntax
from helios_dod.frontend.output.wire import selectors, to_contract
from helios_dod.ignition.checkpoints.checkpoint import Checkpoint
from helios_dod.ignition.preparation.builder import Builder, Handle, Source, symbol
from helios_dod.ignition.preparation.options import PAGE_TOKENS, Options
from helios_dod.ignition.prepared import PreparationError
from helios_dod.ignition.tokenizer import text_rule
from helios_dod.limits import BIAS_MAX, EOS_MAX, MASK_BITS, TOP_LOGPROBS_MAX

CONTRACT_VERSION = 3
STATE_KINDS = (contract.RECURRENT, contract.CONTINUATION)  # histories that snapshots keep
ADMISSION_ROWS = 16  # requests that one initialisation admits at most
WORKING_SET_TOKENS = 1024  # tokens a lane that the prepared page count holds

# Admission sampling: state buffer, dtype, elements of a row, value source.
ADMISSION = (
    ("seed", wire.U64, 1, contract.SEED),
    ("temperature", wire.F32, 1, contract.TEMPERATURE),
    ("top_p", wire.F32, 1, contract.TOP_P),
    ("min_p", wire.F32, 1, contract.MIN_P),
    ("top_k", wire.I32, 1, contract.TOP_K),
    ("repetition", wire.F32, 1, contract.REPETITION_PENALTY),
    ("presence", wire.F32, 1, contract.PRESENCE_PENALTY),
    ("frequency", wire.F32, 1, contract.FREQUENCY_PENALTY),
    ("limit", wire.I32, 1, contract.OUTPUT_LIMIT),
    ("minimum", wire.I32, 1, contract.OUTPUT_MINIMUM),
    ("stop_tokens", wire.I32, EOS_MAX, contract.STOP_TOKENS),
    ("top_count", wire.I32, 1, contract.TOP_LOGPROBS),
    ("bias_count", wire.I32, 1, contract.BIAS_COUNT),
    ("bias_tokens", wire.I32, BIAS_MAX, contract.BIAS_TOKENS),
    ("bias_values", wire.F32, BIAS_MAX, contract.BIAS_VALUES),
    ("generated", wire.I32, 1, contract.GENERATED),
)
LANE_SOURCES = (
    ("slot", contract.SLOT),
    ("generation", contract.GENERATION),
    ("query_start", contract.QUERY_START),
    ("query_length", contract.QUERY_LENGTH),
    ("sample_row", contract.SAMPLE_ROW),
    ("consumed", contract.CONSUMED),
    ("pending_token", contract.PENDING_TOKEN),
    ("generated_count", contract.GENERATED),
)
PACKED_SOURCES = (
    ("lane", contract.LANE),
    ("token", contract.TOKEN),
    ("target_token", contract.TARGET_TOKEN),
    ("position", contract.POSITION),
)
COMPLETIONS = (
    ("slot", wire.COMPLETION_SLOT, wire.I32, 0),
    ("generation", wire.COMPLETION_GENERATION, wire.I32, 0),
    ("status", wire.COMPLETION_STATUS, wire.I32, 0),
    ("offered", wire.COMPLETION_OFFERED, wire.I32, 0),
    ("accepted", wire.COMPLETION_ACCEPTED, wire.I32, 0),
    ("emitted", wire.COMPLETION_EMITTED, wire.I32, 0),
    ("tokens", wire.COMPLETION_TOKENS, wire.I32, 1),
    ("endpoint", wire.COMPLETION_ENDPOINT, wire.I32, 0),
    ("cursor", wire.COMPLETION_CURSOR, wire.I32, 0),
    ("reserved", wire.COMPLETION_RESERVED, wire.I32, 0),
    ("logprob", wire.COMPLETION_LOGPROB, wire.F32, 0),
    ("top_tokens", wire.COMPLETION_TOP_TOKENS, wire.I32, TOP_LOGPROBS_MAX),
    ("top_logprobs", wire.COMPLETION_TOP_LOGPROBS, wire.F32, TOP_LOGPROBS_MAX),
)


@dataclass(frozen=True)
class Shared:
    """Handles of the shared buffers. Admission values are staged and then kept under one name."""

    staged: dict[str, Handle]
    admitted: dict[str, Handle]  # staged admission rows
    state: dict[str, Handle]
    completion: dict[str, Handle]
    admission_rows: int

    @property
    def live(self) -> tuple[Handle, ...]:
        """The live counts, which every program reads."""
        return self.staged["live_packed"], self.staged["live_lanes"], self.staged["live_sampled"]


def declare_shared(builder: Builder, options: Options, vocabulary: int) -> Shared:
    """Declares staging, per-request state and completion buffers."""
    lanes, packed = symbol(wire.LANES), symbol(wire.PACKED)
    shared = Shared({}, {}, {}, {}, min(ADMISSION_ROWS, options.lanes))

    def scalar(name: str, value: contract.ValueSource) -> None:
        shared.staged[name] = builder.staging(name, wire.I32, (1,), Source(value, contract.SCALAR))

    for name, value in (
        ("live_packed", contract.LIVE_PACKED),
        ("live_lanes", contract.LIVE_LANES),
        ("live_sampled", contract.LIVE_SAMPLED),
        ("page_update_count", contract.PAGE_UPDATE_COUNT),
        ("page_copy_count", contract.PAGE_COPY_COUNT),
    ):
        scalar(name, value)
    for name, value in LANE_SOURCES:
        shared.staged[name] = builder.staging(
            name, wire.I32, (lanes,), Source(value, contract.ACTIVE_ROW)
        )
    for name, value in PACKED_SOURCES:
        shared.staged[name] = builder.staging(
            name, wire.I32, (packed,), Source(value, contract.PACKED_TOKEN)
        )
    shared.staged["grammar_mask"] = builder.staging(
        "grammar_mask", wire.U32, (lanes, -(-vocabulary // MASK_BITS)),
        Source(contract.GRAMMAR_MASK, contract.ACTIVE_ROW))
    for name, value, columns in (
        ("page_updates", contract.PAGE_UPDATES, 3),
        ("page_copies", contract.PAGE_COPIES, 2),
    ):
        shared.staged[name] = builder.staging(
            name, wire.I32, (symbol(wire.UPDATES), columns), Source(value, contract.SCALAR)
        )
    declare_admission(builder, shared, vocabulary)
    widest = max(options.widths, default=1)
    for name, field, dtype, columns in COMPLETIONS:
        columns = widest if field == wire.COMPLETION_TOKENS else columns
        shape = (lanes, columns) if columns else (lanes,)
        shared.completion[name] = builder.buffer(
            f"completion_{name}", wire.COMPLETION, dtype, shape, completion=field
        )
    shared.completion["scores"] = builder.buffer(
        "completion_scores", wire.COMPLETION, wire.F32, (packed,), completion=wire.COMPLETION_SCORES
    )
    builder.manifest.live_packed, builder.manifest.live_lanes, builder.manifest.live_sampled = (
        handle.index for handle in shared.live
    )
    return shared


def declare_admission(builder: Builder, shared: Shared, vocabulary: int) -> None:
    """Admission rows, staged for each lane and kept for each slot; and the other state rows."""
    slots = symbol(wire.SLOTS)
    for name, dtype, columns, value in ADMISSION:
        tail = (columns,) if columns > 1 else ()
        shared.admitted[name] = builder.staging(
            f"admitted_{name}",
            dtype,
            (shared.admission_rows, *tail),
            Source(value, contract.ACTIVE_ROW),
        )
        shared.state[name] = builder.buffer(name, wire.STATE, dtype, (slots, *tail))
    shared.admitted["histogram"] = builder.staging(
        "admitted_histogram",
        wire.I32,
        (1, vocabulary),
        Source(contract.PROMPT_HISTOGRAM, contract.ACTIVE_ROW),
    )
    shared.state["histogram"] = builder.buffer(
        "histogram", wire.STATE, wire.I32, (slots, vocabulary)
    )
    shared.state["pending"] = builder.buffer("pending", wire.STATE, wire.I32, (slots,))
    shared.state["status"] = builder.buffer("status", wire.STATE, wire.I32, (slots,))
    shared.state["page_table"] = builder.buffer(
        "page_table", wire.STATE, wire.I32, (slots, symbol(wire.PAGES_PER_REQUEST))
    )


def frontend_contract(checkpoint: Checkpoint, options: Options) -> contract.FrontendContract:
    """Text syntax of the checkpoint."""
    text = checkpoint.text
    if len(text.eos) > EOS_MAX:
        raise PreparationError(
            f"checkpoint {checkpoint.name}: {len(text.eos)} EOS ids, at most {EOS_MAX}"
        )
    rule = text_rule(text.tokenizer_json)
    output = options.output
    tool, reasoning = selectors(output or OutputSyntax())
    return contract.FrontendContract(
        tool_syntax=tool,
        reasoning_syntax=reasoning,
        output=None if output is None else to_contract(output, contract.OutputSyntax()),
        text_decoding=rule.decoding,
        strip_leading_space=rule.strip_leading_space,
        eos_tokens=text.eos,
        bos_token=text.bos or 0,
        add_bos=text.add_bos,
        template_tokens=dict(text.template_tokens),
    )


def sampling_defaults(checkpoint: Checkpoint, options: Options) -> contract.SamplingDefaults:
    """The checkpoint's recommendations, over them the options'; what neither says is unset."""
    known: dict[str, Any] = {}
    for source in (checkpoint.generation, options.sampling):
        known |= {name: value for name, value in vars(source).items() if value is not None}
    return contract.SamplingDefaults(**known)


def cache_identity(builder: Builder, checkpoint: Checkpoint) -> str:
    """Hex digest that tells histories of different weights or layouts apart: over the manifest, and
    the first 4 KiB of every tensor."""
    digest = hashlib.sha256(builder.manifest.SerializeToString(deterministic=True))
    for name in sorted(checkpoint.tensors):
        digest.update(name.encode())
        digest.update(checkpoint.tensors[name].data[:4096].tobytes())
    return digest.hexdigest()


def serving_contract(
    builder: Builder,
    checkpoint: Checkpoint,
    options: Options,
    regions: list[contract.HistoryRegion],
) -> contract.ServingContract:
    """The contract of the builder's programs."""
    config = checkpoint.config
    context = options.context_of(config.context)
    table = builder.by_name["page_table"]
    cache = contract.CacheContract(
        page_tokens=PAGE_TOKENS,
        regions=regions,
        tables=[contract.PageTableView(buffer=table.index)],
        cursor_lag_tokens=0,
    )
    model = contract.ModelContract(
        version=CONTRACT_VERSION,
        vocabulary=config.vocabulary,
        input_vocabulary=config.vocabulary,
        cache=cache,
        graphs=builder.graphs,
        frontend=frontend_contract(checkpoint, options),
    )
    pages = max(-(-context // PAGE_TOKENS), options.lanes * WORKING_SET_TOKENS // PAGE_TOKENS)
    stateful = any(region.kind in STATE_KINDS for region in regions)
    prefill = (
        program.packed_token_capacity
        for program in builder.manifest.programs
        if program.operation == wire.PREFILL
    )
    return contract.ServingContract(
        served_id=options.served_id or checkpoint.name,
        cache_identity=cache_identity(builder, checkpoint),
        context_tokens=context,
        prefill_tokens=max(prefill),
        pages=pages,
        snapshots=options.snapshots if stateful else 0,
        concurrency=options.lanes,
        speculative_widths=sorted({1, *options.widths}) if options.widths else (),
        sampling=sampling_defaults(checkpoint, options),
        model=model,
    )
