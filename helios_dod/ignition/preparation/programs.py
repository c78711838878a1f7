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
    """A recipe's part of a program. `embed(body, ids)` fills the hidden rows of packed token ids,
    `layers(body)` runs all layers over them, `head(body, rows, source)` turns rows into logits."""

    hidden: Handle  # F32 [PACKED, width]
    logits: Handle  # F32 [LOGIT_ROWS, vocabulary]
    width: int
    embed: Callable[[Body, wire.Operand], None]
    layers: Callable[[Body], None]
    head: Callable[[Body, wire.RowDomain, Handle], None]


class TextPrograms:
    """Emits every program of a text model into a builder."""

    def __init__(
        self, builder: Builder, shared: Shared, model: TextModel, options: Options
    ) -> None:
        self.builder, self.shared, self.model, self.options = builder, shared, model, options
        self.tokens = builder.buffer("tokens", wire.SCRATCH, wire.I32, (symbol(wire.PACKED),))
        self.selected = builder.buffer(
            "selected", wire.SCRATCH, wire.F32, (symbol(wire.LANES), model.width)
        )
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

    def _state(self, name: str) -> wire.Operand:
        return self.shared.state[name].whole

    def _admit(self, body: Body, histogram: bool) -> None:
        """Staged admission rows into the state rows of each lane's slot."""
        names = [entry[0] for entry in ADMISSION] + (["histogram"] if histogram else [])
        for name in names:
            self._scatter(body, self.shared.admitted[name], name)
        body.add(
            wire.FillRows(value=0, slot=self._staged("slot"), destination=self._state("status"))
        )

    def _scatter(self, body: Body, source: Handle, state: str) -> None:
        body.add(
            wire.ScatterRows(
                source=source.whole, slot=self._staged("slot"), destination=self._state(state)
            )
        )

    def _update_page_table(self, body: Body) -> None:
        body.add(
            wire.UpdatePageTable(
                count=self._staged("page_update_count"),
                updates=self._staged("page_updates"),
                table=self._state("page_table"),
            )
        )

    def _select_tokens(self, body: Body, staged: bool) -> wire.Operand:
        """Token ids of the packed rows: staged ones, pending ones where those are -1 or absent."""
        body.add(
            wire.SelectTokens(
                staged=self._staged("token") if staged else None,
                has_staged=staged,
                pending=self._state("pending"),
                slot=self._staged("slot"),
                lane=self._staged("lane"),
                output=self.tokens.whole,
            )
        )
        return self.tokens.whole

    def _forward(self, body: Body, ids: wire.Operand) -> None:
        self.model.embed(body, ids)
        self.model.layers(body)

    def _sample(self, body: Body) -> None:
        """Logits of each sampling lane's last row, a token drawn from them, the program's end."""
        sampled = wire.ROWS_SAMPLED
        body.add(
            wire.SelectRows(
                rows=sampled,
                input=self.model.hidden.whole,
                index=self._staged("sample_row"),
                output=self.selected.whole,
            )
        )
        self.model.head(body, sampled, self.selected)
        state = {name: self._state(name) for name in self.shared.state}
        body.add(
            wire.AdjustLogits(
                logits=self.model.logits.whole,
                slot=self._staged("slot"),
                **{
                    name: state[name]
                    for name in (
                        "histogram",
                        "repetition",
                        "presence",
                        "frequency",
                        "bias_tokens",
                        "bias_values",
                        "bias_count",
                        "stop_tokens",
                        "minimum",
                        "generated",
                        "status",
                    )
                },
            ),
            wire.Sample(
                logits=self.model.logits.whole,
                slot=self._staged("slot"),
                position=self._staged("position"),
                sample_row=self._staged("sample_row"),
                output=self.sampled.whole,
                **{
                    name: state[name]
                    for name in (
                        "temperature",
                        "top_p",
                        "min_p",
                        "top_k",
                        "seed",
                        "top_count",
                        "status",
                    )
                },
                **{
                    name: self.shared.completion[name].whole
                    for name in ("logprob", "top_tokens", "top_logprobs")
                },
            ),
        )
        self._advance(body)

    def _advance(self, body: Body) -> None:
        body.add(
            wire.Advance(
                sampled=self.sampled.whole,
                **{
                    name: self._staged(name)
                    for name in ("slot", "generation", "consumed", "query_length")
                },
                **{
                    name: self._state(name)
                    for name in (
                        "pending",
                        "histogram",
                        "generated",
                        "limit",
                        "minimum",
                        "stop_tokens",
                        "status",
                    )
                },
            )
        )

    def _prefill(self) -> Body:
        body = Body()
        self._update_page_table(body)
        self._forward(body, self._staged("token"))
        self._sample(body)
        return body

    def _mixed(self) -> Body:
        body = Body()
        self._update_page_table(body)
        self._forward(body, self._select_tokens(body, staged=True))
        self._sample(body)
        return body

    def _decode(self) -> Body:
        body = Body()
        self._update_page_table(body)
        self._forward(body, self._select_tokens(body, staged=False))
        self._sample(body)
        return body

    def _decode_host(self) -> Body:
        """The host says which token each lane continues with; packed row r is lane r."""
        body = Body()
        self._update_page_table(body)
        self._forward(body, self._staged("pending_token"))
        self._sample(body)
        return body

    def _resume(self) -> Body:
        """History of known tokens; then the pending token and the count come from the host."""
        body = Body()
        self._update_page_table(body)
        self._forward(body, self._staged("token"))
        self._scatter(body, self.shared.staged["pending_token"], "pending")
        self._scatter(body, self.shared.staged["generated_count"], "generated")
        self._advance(body)
        return body

    def _scored(self) -> Body:
        """Log-probability of each row's target token; nothing is sampled."""
        body = Body()
        self._update_page_table(body)
        self._forward(body, self._staged("token"))
        self.model.head(body, wire.ROWS_PACKED, self.model.hidden)
        body.add(
            wire.Score(
                logits=self.model.logits.whole,
                target=self._staged("target_token"),
                output=self.shared.completion["scores"].whole,
            )
        )
        self._advance(body)
        return body


def batches(lanes: int) -> list[int]:
    """Powers of two below the lane count, then the lane count."""
    powers = [1 << power for power in range(lanes.bit_length()) if 1 << power < lanes]
    return [*powers, lanes]
