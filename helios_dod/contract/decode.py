"""ServingContract and ExecutionManifest -> PreparedContract, or an error that names the field."""

from math import isfinite

from helios_dod.contract.bodies import check_bodies
from helios_dod.contract.cache import TOKENS_MAX, prepare_cache
from helios_dod.contract.errors import ContractError, require
from helios_dod.contract.frontend import prepare_frontend
from helios_dod.contract.functions import check_functions
from helios_dod.contract.graphs import prepare_graphs
from helios_dod.contract.images import prepare_vision
from helios_dod.contract.manifest import check_manifest, completion_buffers
from helios_dod.contract.prepared import (
    PreparedContract,
    PreparedProgram,
    PreparedRank,
    PreparedSampling,
    PreparedStagingTable,
)
from helios_dod.contract.strict import check_known
from helios_dod.contract.tuning import prepare_tuning
from helios_dod.contract.uses import BodyUses
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire

VERSIONS = (1, 2, 3)
NAME_MAX = 256
VOCABULARY_MAX = 2**20  # tokens, image sentinels included: each has a row in several tables


def decode(
    serving: contract.ServingContract, manifest: wire.ExecutionManifest, known: bool = False,
) -> PreparedContract:
    """Validates both and their agreement. known: strict.check_known holds for the manifest, which
    of a large one is a fifth of the time. Raises ContractError(field, expected, got)."""
    version = serving.model.version
    require(version in VERSIONS, "contract.model.version", "1, 2 or 3", version)
    check_known(serving, "contract")
    if not known:
        check_known(manifest, "manifest")
    check_manifest(manifest)
    check_functions(manifest, serving.model.cache.page_tokens)
    _check_serving(serving)
    model = serving.model
    for name in ("vocabulary", "input_vocabulary"):
        count = getattr(model, name)
        require(0 < count <= VOCABULARY_MAX, f"contract.model.{name}", f"1 to {VOCABULARY_MAX}",
                count)
    require(model.input_vocabulary >= model.vocabulary, "contract.model.input_vocabulary",
            f"at least the vocabulary, {model.vocabulary}", model.input_vocabulary)
    uses = BodyUses(manifest)
    programs = prepare_graphs(model, manifest, uses)
    _check_variants(serving, programs)
    cache = prepare_cache(serving, manifest, programs, uses)
    tuning = prepare_tuning(
        manifest, programs, uses, frozenset(table.buffer for table in model.cache.tables))
    check_bodies(serving, manifest, programs)
    return PreparedContract(
        version=version, served_id=serving.served_id, aliases=tuple(serving.aliases),
        cache_identity=serving.cache_identity, context_tokens=serving.context_tokens,
        prefill_tokens=serving.prefill_tokens, pages=serving.pages, snapshots=serving.snapshots,
        concurrency=serving.concurrency, vocabulary=model.vocabulary,
        input_vocabulary=model.input_vocabulary, sampling=_prepare_sampling(serving.sampling),
        cache=cache, programs=programs,
        completions=completion_buffers(manifest), frontend=prepare_frontend(model),
        vision=prepare_vision(model), speculative_widths=_prepare_widths(serving, programs),
        tuning=tuning,
        staging_tables=tuple(PreparedStagingTable(
            table.name, table.buffer, table.frames, tuple(table.consumer_ranks))
            for table in manifest.tables),
        ranks=tuple(PreparedRank(part.rank, tuple(part.weights), tuple(part.modules))
                    for part in manifest.ranks),
        proposal_confidence=(manifest.proposal_confidence
                             if manifest.HasField("proposal_confidence") else None))


def _positive(field: str, value: int) -> None:
    require(0 < value <= TOKENS_MAX, field, f"1 to {TOKENS_MAX}", value)


def _check_serving(serving: contract.ServingContract) -> None:
    names: set[str] = set()
    for field, name in [("served_id", serving.served_id),
                        *((f"aliases[{i}]", alias) for i, alias in enumerate(serving.aliases))]:
        require(0 < len(name) <= NAME_MAX and name.isprintable(), f"contract.{field}",
                f"1 to {NAME_MAX} printable characters", name)
        require(name not in names, f"contract.{field}", "a name of its own", name)
        names.add(name)
    identity = serving.cache_identity
    require(0 < len(identity) <= NAME_MAX and identity.isprintable(), "contract.cache_identity",
            f"1 to {NAME_MAX} printable characters", identity)
    for field in ("context_tokens", "prefill_tokens", "pages", "concurrency"):
        _positive(f"contract.{field}", getattr(serving, field))
    if serving.model.version == 1:
        require(serving.snapshots == 0, "contract.snapshots", "0 in version 1", serving.snapshots)


def _check_variants(
    serving: contract.ServingContract, programs: tuple[PreparedProgram, ...],
) -> None:
    """Every request passes through initialise, prefill and decode: each has a variant that fits."""
    batches: dict[int, int] = {}
    packed = 0
    for program in programs:
        batches[program.operation] = max(batches.get(program.operation, 0), program.batch)
        if program.operation in (wire.PREFILL, wire.MIXED):
            packed = max(packed, program.packed)
    for operation in (wire.INITIALIZE, wire.PREFILL, wire.DECODE):
        require(operation in batches, "manifest.programs",
                f"a variant of {wire.Operation.Name(operation)}", "none")
    require(serving.concurrency <= batches[wire.DECODE], "contract.concurrency",
            f"at most {batches[wire.DECODE]}, the largest DECODE batch", serving.concurrency)
    require(serving.prefill_tokens <= packed, "contract.prefill_tokens",
            f"at most {packed}, the largest prefill capacity", serving.prefill_tokens)


def _prepare_widths(
    serving: contract.ServingContract, programs: tuple[PreparedProgram, ...],
) -> tuple[int, ...]:
    """The selected speculative widths; each has a captured program."""
    widths = tuple(serving.speculative_widths)
    captured = {program.width for program in programs if program.operation == wire.SPECULATIVE}
    require(list(widths) == sorted(set(widths)), "contract.speculative_widths",
            "ascending widths, each once", widths)
    for i, width in enumerate(widths):
        require(width in captured, f"contract.speculative_widths[{i}]",
                f"the width of a SPECULATIVE program, one of {sorted(captured) or 'none'}", width)
    return widths


# Accepted default values: lowest, highest, and whether the lowest itself is refused.
SAMPLING_RANGES = {
    "temperature": (0.0, 100.0, False),
    "top_p": (0.0, 1.0, True),
    "min_p": (0.0, 1.0, False),
    "top_k": (0, TOKENS_MAX, False),
    "repetition_penalty": (0.0, 100.0, True),
    "presence_penalty": (-2.0, 2.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
}


def _prepare_sampling(sampling: contract.SamplingDefaults) -> PreparedSampling:
    values: dict[str, float | int | None] = {}
    for name, (lowest, highest, open_end) in SAMPLING_RANGES.items():
        if not sampling.HasField(name):
            values[name] = None
            continue
        value = getattr(sampling, name)
        if not isfinite(value) or not lowest <= value <= highest or (open_end and value == lowest):
            expected = f"{'above' if open_end else 'from'} {lowest} to {highest}"
            raise ContractError(f"contract.sampling.{name}", expected, value)
        values[name] = value
    return PreparedSampling(**values)  # type: ignore[arg-type]
