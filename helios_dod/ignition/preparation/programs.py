"""The program set of a text model: admission, prefill, decode and their variants.

A recipe supplies what lies between token ids and logits; everything else is the same for all.
"""

from collections.abc import Callable
from dataclasses import dataclass

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.preparation.builder import Body, Builder, Handle, symbol
from helios_dod.ignition.preparation.contract import ADMISSION, Shared
from helios_dod.ignition.preparation.options import Options


@dataclass(frozen=True)
class TextModel:
    """A recipe's part of a program. `embed(body, ids)` fills the hidden rows of packed token ids;
    `layers(body, rows)` runs all layers over them and returns the buffer that then holds `rows`
    (packed ones, or only sampled ones); `head(body, rows, source)` turns those into logits."""

    logits: Handle  # F32 [LOGIT_ROWS, vocabulary]
    embed: Callable[[Body, wire.Operand], None]
    layers: Callable[[Body, wire.RowDomain], Handle]
    head: Callable[[Body, wire.RowDomain, Handle], None]


class TextPrograms:
    """Emits every program of a text model into a builder."""

    def __init__(self, builder: Builder, shared: Shared, model: TextModel,
                 options: Options) -> None:
        self.builder, self.shared, self.model, self.options = builder, shared, model, options
        self.tokens = builder.buffer("tokens", wire.SCRATCH, wire.I32, (symbol(wire.PACKED),))
        self.sampled = builder.buffer("sampled", wire.SCRATCH, wire.I32, (symbol(wire.LANES),))

    def emit(self) -> None:
        """All programs, ordered by operation, then capacity."""
        self._admission()
        lanes, scored = self.options.lanes, self.options.scored
        self._by_tokens("prefill", wire.PREFILL, self._prefill())
        self._variants("scored_prefill", wire.SCORED_PREFILL, self._scored(),
                       {"": (min(lanes, scored), scored)})
        self._by_tokens("resume", wire.RESUME, self._resume())
        sizes = {f"_{size}": (size, size) for size in batches(lanes)}
        self._variants("decode", wire.DECODE, self._decode(), sizes)
        self._variants("decode_host", wire.DECODE, self._decode_host(), sizes,
                       self.shared.staged["pending_token"])
        self._by_tokens("mixed", wire.MIXED, self._mixed())

    def _by_tokens(self, name: str, operation: wire.Operation, body: Body) -> None:
        """Variants of a body by packed tokens."""
        lanes = self.options.lanes
        self._variants(name, operation, body, {
            f"_{size}": (min(lanes, size), size) for size in sorted(self.options.packed)})

    def _variants(self, name: str, operation: wire.Operation, body: Body,
                  sizes: dict[str, tuple[int, int]], host_pending: Handle | None = None) -> None:
        """Programs `name` + suffix of (batch, packed tokens) over one body."""
        number = self.builder.body(body)
        for suffix, (batch, packed) in sizes.items():
            self.builder.program(
                name + suffix, operation, body, number, batch=batch, packed=packed,
                live=self.shared.live, host_pending=host_pending)

    def _admission(self) -> None:
        """Admission of new requests; of one with its prompt's histogram; and behind page copies."""
        rows = self.shared.admission_rows
        copies = wire.CopyPages(
            count=self._staged("page_copy_count"), pairs=self._staged("page_copies"))
        for name, operation, batch, first, histogram in (
                ("initialize_histogram", wire.INITIALIZE, 1, [], True),
                ("initialize", wire.INITIALIZE, rows, [], False),
                ("restore", wire.RESTORE, rows, [copies], False)):
            body = Body()
            body.add(*first)
            self._admit(body, histogram)
            self._advance(body)
            self._variants(name, operation, body, {"": (batch, batch)})

    def _staged(self, name: str) -> wire.Operand:
        return self.shared.staged[name].whole

    def _staged_all(self, names: str) -> dict[str, wire.Operand]:
        return {name: self._staged(name) for name in names.split()}

    def _state(self, name: str) -> wire.Operand:
        return self.shared.state[name].whole

    def _state_all(self, names: str) -> dict[str, wire.Operand]:
        return {name: self._state(name) for name in names.split()}

    def _admit(self, body: Body, histogram: bool) -> None:
        """Staged admission rows into the state rows of each lane's slot."""
        for name in [entry[0] for entry in ADMISSION] + ["histogram"] * histogram:
            self._scatter(body, self.shared.admitted[name], name)
        body.add(wire.FillRows(
            value=0, slot=self._staged("slot"), destination=self._state("status")))

    def _scatter(self, body: Body, source: Handle, state: str) -> None:
        body.add(wire.ScatterRows(
            source=source.whole, slot=self._staged("slot"), destination=self._state(state)))

    def _begin(self) -> Body:
        """A body that starts with the page-table entries newly assigned."""
        body = Body()
        body.add(wire.UpdatePageTable(
            count=self._staged("page_update_count"), updates=self._staged("page_updates"),
            table=self._state("page_table")))
        return body

    def _select_tokens(self, body: Body, staged: bool) -> wire.Operand:
        """Token ids of the packed rows: staged ones, pending ones where those are -1 or absent."""
        body.add(wire.SelectTokens(
            staged=self._staged("token") if staged else None, has_staged=staged,
            pending=self._state("pending"), slot=self._staged("slot"), lane=self._staged("lane"),
            output=self.tokens.whole))
        return self.tokens.whole

    def _forward(self, body: Body, ids: wire.Operand, rows: wire.RowDomain) -> Handle:
        """The buffer that holds `rows` behind all layers."""
        self.model.embed(body, ids)
        return self.model.layers(body, rows)

    def _generate(self, body: Body, ids: wire.Operand) -> Body:
        """All layers, logits of each sampling lane's last row, a token of each, the end."""
        rows = wire.ROWS_SAMPLED
        self.model.head(body, rows, self._forward(body, ids, rows))
        logits, slot = self.model.logits.whole, self._staged("slot")
        reported = {name: self.shared.completion[name].whole
                    for name in ("logprob", "top_tokens", "top_logprobs")}
        body.add(
            wire.AdjustLogits(
                logits=logits, slot=slot, mask=self._staged("grammar_mask"), has_mask=True,
                **self._state_all(
                    "histogram repetition presence frequency bias_tokens bias_values bias_count "
                    "stop_tokens minimum generated status")),
            wire.Sample(
                logits=logits, slot=slot, **self._staged_all("position sample_row"),
                **self._state_all("temperature top_p min_p top_k seed top_count status"),
                output=self.sampled.whole, **reported))
        return self._advance(body)

    def _advance(self, body: Body) -> Body:
        """What every program ends with: state of sampled lanes, completion records of all."""
        body.add(wire.Advance(
            sampled=self.sampled.whole,
            **self._staged_all("slot generation consumed query_length"),
            **self._state_all("pending histogram generated limit minimum stop_tokens status")))
        return body

    def _prefill(self) -> Body:
        return self._generate(self._begin(), self._staged("token"))

    def _mixed(self) -> Body:
        body = self._begin()
        return self._generate(body, self._select_tokens(body, staged=True))

    def _decode(self) -> Body:
        body = self._begin()
        return self._generate(body, self._select_tokens(body, staged=False))

    def _decode_host(self) -> Body:
        """The host says which token each lane continues with; packed row r is lane r."""
        return self._generate(self._begin(), self._staged("pending_token"))

    def _resume(self) -> Body:
        """History of known tokens; then the pending token and the count come from the host."""
        body = self._begin()
        self._forward(body, self._staged("token"), wire.ROWS_SAMPLED)
        self._scatter(body, self.shared.staged["pending_token"], "pending")
        self._scatter(body, self.shared.staged["generated_count"], "generated")
        return self._advance(body)

    def _scored(self) -> Body:
        """Log-probability of each row's target token; nothing is sampled."""
        body, rows = self._begin(), wire.ROWS_PACKED
        self.model.head(body, rows, self._forward(body, self._staged("token"), rows))
        body.add(wire.Score(logits=self.model.logits.whole, target=self._staged("target_token"),
                            output=self.shared.completion["scores"].whole))
        return self._advance(body)


def batches(lanes: int) -> list[int]:
    """Powers of two below the lane count, then the lane count."""
    powers = [1 << power for power in range(lanes.bit_length()) if 1 << power < lanes]
    return [*powers, lanes]
