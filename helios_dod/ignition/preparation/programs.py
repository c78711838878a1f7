"""The program set of a text model: admission, prefill, decode and their variants.

A recipe supplies what lies between token ids and logits; everything else is the same for all.
"""

from collections.abc import Callable
from dataclasses import dataclass

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.preparation.attention import Place
from helios_dod.ignition.preparation.builder import Body, Builder, Handle, Source, symbol
from helios_dod.ignition.preparation.contract import ADMISSION, Shared
from helios_dod.ignition.preparation.options import Options
from helios_dod.ignition.preparation.state import StateTransfer
from helios_dod.ignition.prepared import PreparationError


@dataclass(frozen=True)
class TextModel:
    """A recipe's part of a program. `embed(body, ids)` fills the hidden rows of packed token ids;
    `layers(body, rows)` runs all layers over them and returns the buffer that then holds `rows`
    (packed ones, or only sampled ones); `head(body, rows, source)` turns those into logits.
    `draft(body, ids, place, count)` makes logits of other rows by the first `count` layers; they
    pass through `drafted`."""

    logits: Handle  # F32 [LOGIT_ROWS, vocabulary]
    embed: Callable[[Body, wire.Operand], None]
    layers: Callable[[Body, wire.RowDomain], Handle]
    head: Callable[[Body, wire.RowDomain, Handle], None]
    draft: Callable[[Body, wire.Operand, Place, int], None] | None = None
    drafted: Handle | None = None  # F32 [LANES, hidden]
    layer_count: int = 0


class TextPrograms:
    """Emits every program of a text model into a builder."""

    def __init__(self, builder: Builder, shared: Shared, model: TextModel,
                 options: Options, transfer: StateTransfer | None = None) -> None:
        self.transfer = transfer
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
        if self.options.widths:
            Rounds(self).emit()

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
                live=self.shared.live, host_pending=host_pending,
                state_rows=0 if self.transfer is None else 1)

    def _admission(self) -> None:
        """Admission of new requests; of one with its prompt's histogram; and behind page copies."""
        rows = self.shared.admission_rows
        copies = wire.CopyPages(
            count=self.staged("page_copy_count"), pairs=self.staged("page_copies"))
        for name, operation, batch, first, histogram in (
                ("initialize_histogram", wire.INITIALIZE, 1, [], True),
                ("initialize", wire.INITIALIZE, rows, [], False),
                ("restore", wire.RESTORE, rows, [copies], False)):
            body = Body()
            body.add(*first)
            self._admit(body, histogram)
            self.advance(body, self.sampled)
            self._variants(name, operation, body, {"": (batch, batch)})
        if self.transfer is not None:
            body = self.begin()
            self.transfer.restore(body)
            self.transfer.save(body)
            lanes = self.options.lanes
            self._variants("restore_state", wire.RESTORE, self.advance(body, self.sampled),
                           {"": (lanes, lanes)})

    def staged(self, name: str) -> wire.Operand:
        return self.shared.staged[name].whole

    def staged_all(self, names: str) -> dict[str, wire.Operand]:
        return {name: self.staged(name) for name in names.split()}

    def state(self, name: str) -> wire.Operand:
        return self.shared.state[name].whole

    def _state_all(self, names: str) -> dict[str, wire.Operand]:
        return {name: self.state(name) for name in names.split()}

    def _admit(self, body: Body, histogram: bool) -> None:
        """Staged admission rows into the state rows of each lane's slot."""
        for name in [entry[0] for entry in ADMISSION] + ["histogram"] * histogram:
            self._scatter(body, self.shared.admitted[name], name)
        body.add(wire.FillRows(
            value=0, slot=self.staged("slot"), destination=self.state("status")))
        if self.transfer is not None:
            self.transfer.clear(body)

    def _scatter(self, body: Body, source: Handle, state: str) -> None:
        body.add(wire.ScatterRows(
            source=source.whole, slot=self.staged("slot"), destination=self.state(state)))

    def begin(self) -> Body:
        """A body that starts with the page-table entries newly assigned."""
        body = Body()
        body.add(wire.UpdatePageTable(
            count=self.staged("page_update_count"), updates=self.staged("page_updates"),
            table=self.state("page_table")))
        return body

    def _select_tokens(self, body: Body, staged: bool) -> wire.Operand:
        """Token ids of the packed rows: staged ones, pending ones where those are -1 or absent."""
        body.add(wire.SelectTokens(
            staged=self.staged("token") if staged else None, has_staged=staged,
            pending=self.state("pending"), slot=self.staged("slot"), lane=self.staged("lane"),
            output=self.tokens.whole))
        return self.tokens.whole

    def forward(self, body: Body, ids: wire.Operand, rows: wire.RowDomain) -> Handle:
        """The buffer that holds `rows` behind all layers."""
        self.model.embed(body, ids)
        return self.model.layers(body, rows)

    def _generate(self, body: Body, ids: wire.Operand) -> Body:
        """All layers, logits of each sampling lane's last row, a token of each, the end."""
        rows, slot = wire.ROWS_SAMPLED, self.staged("slot")
        self.model.head(body, rows, self.forward(body, ids, rows))
        body.add(
            self.adjust(slot, self.staged("grammar_mask")),
            self.sample(slot, self.staged("position"), self.staged("sample_row"),
                        self.sampled.whole))
        return self.advance(body, self.sampled)

    def adjust(self, slot: wire.Operand, mask: wire.Operand | None = None) -> wire.AdjustLogits:
        """Everything that changes logits before they are drawn from."""
        return wire.AdjustLogits(
            logits=self.model.logits.whole, slot=slot, mask=mask, has_mask=mask is not None,
            **self._state_all(
                "histogram repetition presence frequency bias_tokens bias_values bias_count "
                "stop_tokens minimum generated status"))

    def sample(self, slot: wire.Operand, position: wire.Operand, sample_row: wire.Operand,
               output: wire.Operand, rows: wire.RowDomain | None = None) -> wire.Sample:
        """A token of each row of logits."""
        reported = {name: self.shared.completion[name].whole
                    for name in ("logprob", "top_tokens", "top_logprobs")}
        return wire.Sample(
            logits=self.model.logits.whole, slot=slot, position=position, sample_row=sample_row,
            **self._state_all("temperature top_p min_p top_k seed top_count status"),
            output=output, rows=rows, **reported)

    def advance(self, body: Body, sampled: Handle) -> Body:
        """What every program ends with: state of sampled lanes, completion records of all."""
        body.add(wire.Advance(
            sampled=sampled.whole,
            **self.staged_all("slot generation consumed query_length"),
            **self._state_all("pending histogram generated limit minimum stop_tokens status")))
        return body

    def _prefill(self) -> Body:
        return self._save(self._generate(self.begin(), self.staged("token")))

    def _mixed(self) -> Body:
        body = self.begin()
        return self._save(self._generate(body, self._select_tokens(body, staged=True)))

    def _save(self, body: Body) -> Body:
        """Snapshots of state at the end of a prompt's chunk."""
        if self.transfer is not None:
            self.transfer.save(body)
        return body

    def _decode(self) -> Body:
        body = self.begin()
        return self._generate(body, self._select_tokens(body, staged=False))

    def _decode_host(self) -> Body:
        """The host says which token each lane continues with; packed row r is lane r."""
        return self._generate(self.begin(), self.staged("pending_token"))

    def _resume(self) -> Body:
        """History of known tokens; then the pending token and the count come from the host."""
        body = self.begin()
        self.forward(body, self.staged("token"), wire.ROWS_SAMPLED)
        self._scatter(body, self.shared.staged["pending_token"], "pending")
        self._scatter(body, self.shared.staged["generated_count"], "generated")
        return self.advance(body, self.sampled)

    def _scored(self) -> Body:
        """Log-probability of each row's target token; nothing is sampled."""
        body, rows = self.begin(), wire.ROWS_PACKED
        self.model.head(body, rows, self.forward(body, self.staged("token"), rows))
        body.add(wire.Score(logits=self.model.logits.whole, target=self.staged("target_token"),
                            output=self.shared.completion["scores"].whole))
        return self.advance(body, self.sampled)


class Rounds:
    """Speculative programs: drafts by the model's own first layers and head, or copied ones;
    verification and commit by the whole model, all in one body."""

    def __init__(self, programs: TextPrograms) -> None:
        self.programs, self.builder = programs, programs.builder
        self.lanes, self.packed = symbol(wire.LANES), symbol(wire.PACKED)
        # Columns as proto Draft has them.
        self.rows = self._scratch("target_rows", self.packed, 3)
        self.drawn = self._scratch("drawn_lanes", self.lanes, 8)
        self.count = self._scratch("drawn_count", 1)
        self.state_rows: dict[str, wire.Operand] = {}
        if programs.transfer is not None:
            self.state_rows = {
                "state_row": programs.staged("state_row"),
                "drawn_state_row": self._scratch("drawn_state_row", self.lanes).whole}
        self.tokens = self._scratch("target_tokens", self.packed)
        self.builder.manifest.live_drawn = self.count.index

    def _scratch(self, name: str, *shape: int | wire.Extent) -> Handle:
        return self.builder.buffer(name, wire.SCRATCH, wire.I32, shape)

    def _stage(self, name: str, value: contract.ValueSource, *columns: int) -> Handle:
        return self.builder.staging(name, wire.I32, (self.lanes, *columns),
                                    Source(value, contract.ACTIVE_ROW))

    def emit(self) -> None:
        """A variant of each width, and one of width one, by lanes. Of few lanes, those wider than
        one take grammar masks: one for each token that a lane may emit."""
        options = self.programs.options
        if options.draft_layers > self.programs.model.layer_count:
            raise PreparationError(
                f"option draft_layers: expected at most {self.programs.model.layer_count}, got "
                f"{options.draft_layers}")
        self.candidates = {
            "candidate_count": self._stage("candidate_count", contract.CANDIDATE_COUNT),
            "candidate_generation": self._stage(
                "candidate_generation", contract.CANDIDATE_GENERATION),
            "candidate_endpoint": self._stage("candidate_endpoint", contract.CANDIDATE_ENDPOINT)}
        for width in sorted({1, *options.widths}):
            copied, sizes = self._copied(width), batches(options.lanes)
            under_masks = [s for s in sizes if s <= options.drafted_lanes and width > 1]
            if under_masks:
                self._variants(width, copied, self._masks(width, under_masks[-1]), under_masks)
            self._variants(width, copied, None, [s for s in sizes if s not in under_masks])

    def _variants(self, width: int, copied: dict[str, Handle], masks: Handle | None,
                  sizes: list[int]) -> None:
        """Programs of one body, by lanes."""
        if not sizes:
            return
        body = self._round(width, copied, masks)
        number = self.builder.body(body)
        for size in sizes:
            self.builder.program(
                f"speculative_{width}_{size}", wire.SPECULATIVE, body, number, batch=size,
                packed=size * width, live=self.programs.shared.live, width=width,
                state_rows=1 + width if self.state_rows else 0)

    def _copied(self, width: int) -> dict[str, Handle]:
        """What a round is told of copied drafts."""
        if width == 1:
            return {}
        tokens = self._stage(
            f"candidate_tokens_{width - 1}", contract.CANDIDATE_TOKENS, width - 1)
        return {"candidate_tokens": tokens, **self.candidates}

    def _masks(self, width: int, lanes: int) -> Handle:
        """Grammar masks of each lane, one behind another."""
        single = self.programs.shared.staged["grammar_mask"]
        words = self.builder.manifest.buffers[single.index].shape[1].multiplier
        return self.builder.staging(
            f"candidate_masks_{width}", wire.U32, (lanes, width * words),
            Source(contract.CANDIDATE_MASKS, contract.ACTIVE_ROW))

    def _round(self, width: int, copied: dict[str, Handle], masks: Handle | None) -> Body:
        """One body: step after step of drafts, then all target rows at once."""
        programs, body = self.programs, self.programs.begin()
        for step in range(width):
            body.add(wire.Draft(
                step=step, has_candidates=bool(copied),
                **{name: handle.whole for name, handle in copied.items()},
                **programs.staged_all(
                    "slot generation consumed query_start query_length position"),
                pending=programs.state("pending"), rows=self.rows.whole, drawn=self.drawn.whole,
                count=self.count.whole, has_state_row=bool(self.state_rows), **self.state_rows))
            if step + 1 < width:
                self._draw(body)
        packed = wire.ROWS_PACKED
        programs.model.head(body, packed, programs.forward(body, self.rows.part(0, 1), packed))
        return self._verify(body, masks)

    def _draw(self, body: Body) -> None:
        """A draft of every lane that draws."""
        programs, drawn = self.programs, wire.ROWS_DRAWN
        column = {name: self.drawn.part(at, 1) for at, name in enumerate(
            ("token", "position", "slot", "first", "length", "index", "one", "draft"))}
        model = programs.model
        assert model.draft is not None and model.drafted is not None
        model.draft(
            body, column["token"],
            Place(drawn, model.drafted, column["position"], column["index"], column["slot"],
                  column["index"], column["one"], self.state_rows.get("drawn_state_row")),
            programs.options.draft_layers)
        body.add(programs.sample(column["slot"], column["position"], column["index"],
                                 column["draft"], drawn))

    def _verify(self, body: Body, masks: Handle | None) -> Body:
        """Tokens of the target rows, as far as the drafts are right, and the end."""
        programs, slot = self.programs, self.rows.part(1, 1)
        body.add(
            wire.Verify(
                rows=self.rows.whole, **programs.staged_all("query_start query_length"),
                masks=None if masks is None else masks.whole, has_masks=masks is not None),
            programs.adjust(slot),
            programs.sample(slot, programs.staged("position"), self.rows.part(2, 1),
                            self.tokens.whole))
        programs.advance(body, self.tokens)
        if programs.transfer is not None:
            programs.transfer.go_ahead(body)
            programs.transfer.commit(body)
        return body


def batches(lanes: int) -> list[int]:
    """Powers of two below the lane count, then the lane count."""
    powers = [1 << power for power in range(lanes.bit_length()) if 1 << power < lanes]
    return [*powers, lanes]
