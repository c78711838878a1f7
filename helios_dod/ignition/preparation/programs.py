"""The program set of a text model: admission, prefill, decode and their variants.

A recipe supplies what lies between token ids and logits; everything else is the same for all.
"""

from collections.abc import Callable
from dataclasses import dataclass

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.preparation.builder import Body, Builder, Handle, Source, symbol
from helios_dod.ignition.preparation.contract import ADMISSION, Shared
from helios_dod.ignition.preparation.options import Options

NOTHING_SAMPLED = Source(contract.CONSTANT, contract.SCALAR)


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
        pending_token = self.shared.staged["pending_token"]
        self._by_tokens("prefill", wire.PREFILL, self._prefill(), {})
        scored = self._scored()
        self._program(
            "scored_prefill",
            wire.SCORED_PREFILL,
            scored,
            self.builder.body(scored),
            min(self.options.lanes, self.options.scored),
            self.options.scored,
            self._unsampled,
        )
        self._by_tokens("resume", wire.RESUME, self._resume(), self._unsampled)
        for name, body, pending in (
            ("decode", self._decode(), None),
            ("decode_host", self._decode_host(), pending_token),
        ):
            number = self.builder.body(body)
            for lanes in batches(self.options.lanes):
                self._program(
                    f"{name}_{lanes}", wire.DECODE, body, number, lanes, lanes, {}, pending
                )
        self._by_tokens("mixed", wire.MIXED, self._mixed(), {})

    def _by_tokens(
        self, name: str, operation: wire.Operation, body: Body, fixed: dict[Handle, Source]
    ) -> None:
        """Variants of a body by packed tokens."""
        number = self.builder.body(body)
        for tokens in sorted(self.options.packed):
            self._program(
                f"{name}_{tokens}",
                operation,
                body,
                number,
                min(self.options.lanes, tokens),
                tokens,
                fixed,
            )

    @property
    def _unsampled(self) -> dict[Handle, Source]:
        return {self.shared.staged["live_sampled"]: NOTHING_SAMPLED}

    def _program(
        self,
        name: str,
        operation: wire.Operation,
        body: Body,
        number: int,
        batch: int,
        packed: int,
        fixed: dict[Handle, Source],
        host_pending: Handle | None = None,
    ) -> None:
        self.builder.program(
            name,
            operation,
            body,
            number,
            batch=batch,
            packed=packed,
            live=self.shared.live,
            fixed=fixed,
            host_pending=host_pending,
        )

    def _admission(self) -> None:
        rows = self.shared.admission_rows
        for name, operation, batch, histogram, copies in (
            ("initialize", wire.INITIALIZE, rows, False, False),
            ("initialize_histogram", wire.INITIALIZE, 1, True, False),
            ("restore", wire.RESTORE, rows, False, True),
        ):
            body = Body()
            if copies:
                body.add(
                    wire.CopyPages(
                        count=self._staged("page_copy_count"), pairs=self._staged("page_copies")
                    )
                )
            self._admit(body, histogram)
            self._advance(body)
            self._program(
                name, operation, body, self.builder.body(body), batch, batch, self._unsampled
            )

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
