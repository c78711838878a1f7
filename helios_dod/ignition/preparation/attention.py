"""Buffers and operations of paged key-value attention, shared by recipes."""

from dataclasses import dataclass

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.ignition.checkpoints.checkpoint import ModelConfig
from helios_dod.ignition.preparation.builder import Body, Builder, Handle, symbol
from helios_dod.ignition.preparation.contract import Shared
from helios_dod.ignition.preparation.options import Options


@dataclass(frozen=True)
class Stream:
    """Rows that go on behind a layer's attention: all packed ones, or the sampled ones alone."""

    rows: wire.RowDomain
    hidden: Handle
    attended: Handle


@dataclass(frozen=True)
class Place:
    """Rows that go through layers, and where each of them stands."""

    rows: wire.RowDomain
    hidden: Handle
    position: wire.Operand
    lane: wire.Operand
    slot: wire.Operand
    query_start: wire.Operand
    query_length: wire.Operand
    state_row: wire.Operand | None = None  # of a model with state rows

    @property
    def domain(self) -> wire.RowDomain | None:
        """The domain as operations on packed rows take it, which need not say so."""
        return None if self.rows == wire.ROWS_PACKED else self.rows


@dataclass(frozen=True)
class AttentionBuffers:
    """Scratch rows of packed tokens, and the cache planes of every layer.

    Behind the last layer's attention only rows that are sampled matter: they are selected there
    into rows of lanes. A query_key_value row holds all query heads, then all key heads, then all
    value heads."""

    config: ModelConfig
    shared: Shared
    hidden: Handle  # F32 [PACKED, hidden]
    normed: Handle  # F32 [PACKED, hidden]
    query_key_value: Handle
    attended: Handle  # F32 [PACKED, heads * head]
    selected: Handle  # F32 [LANES, hidden]
    selected_attended: Handle  # F32 [LANES, heads * head]
    logits: Handle  # F32 [LOGIT_ROWS, vocabulary]
    keys: tuple[Handle, ...]  # a layer: [PAGES, key_heads, head, PAGE_TOKENS]
    values: tuple[Handle, ...]  # a layer: [PAGES, key_heads, PAGE_TOKENS, head]

    @property
    def _query_columns(self) -> int:
        return self.config.heads * self.config.head

    @property
    def _key_columns(self) -> int:
        return self.config.key_heads * self.config.head

    @property
    def query(self) -> wire.Operand:
        """Query columns."""
        return self.query_key_value.part(0, self._query_columns)

    @property
    def key(self) -> wire.Operand:
        """Key columns."""
        return self.query_key_value.part(self._query_columns, self._key_columns)

    @property
    def query_and_key(self) -> wire.Operand:
        """Query and key columns, which rotate alike."""
        return self.query_key_value.part(0, self._query_columns + self._key_columns)

    @property
    def value(self) -> wire.Operand:
        """Value columns."""
        return self.query_key_value.part(self._query_columns + self._key_columns, self._key_columns)

    def stream(self, body: Body, layer: int, rows: wire.RowDomain) -> Stream:
        """The rows that go on behind a layer's attention when `rows` are wanted at the end."""
        if rows == wire.ROWS_PACKED or layer + 1 < self.config.layers:
            return Stream(wire.ROWS_PACKED, self.hidden, self.attended)
        index = self.shared.staged["sample_row"].whole
        pairs = (self.hidden, self.selected), (self.attended, self.selected_attended)
        for source, output in pairs:
            body.add(wire.SelectRows(
                rows=rows, input=source.whole, index=index, output=output.whole))
        return Stream(rows, self.selected, self.selected_attended)

    def planes(self, layer: int) -> tuple[int, int]:
        """Cache buffers of a layer."""
        return self.keys[layer].index, self.values[layer].index

    @property
    def packed(self) -> Place:
        """The packed rows of all lanes, as the host places them."""
        staged = self.shared.staged
        return Place(wire.ROWS_PACKED, self.hidden, *(staged[name].whole for name in (
            "position", "lane", "slot", "query_start", "query_length", "state_row")
            if name in staged))

    def attend(
        self, layer: int, window: int, stand: Place | None = None,
    ) -> tuple[wire.CacheWrite, wire.Attention]:
        """Stores the rows' keys and values, then attends over each row's history."""
        config, stand = self.config, stand or self.packed
        place = {"position": stand.position, "lane": stand.lane, "slot": stand.slot}
        place["table"] = self.shared.state["page_table"].whole
        key_cache, value_cache = self.planes(layer)
        write = wire.CacheWrite(
            key=self.key,
            value=self.value,
            key_cache=key_cache,
            value_cache=value_cache,
            head=config.head,
            rows=stand.domain,
            **place,
        )
        attention = wire.Attention(
            query=self.query,
            output=self.attended.whole,
            key_cache=key_cache,
            value_cache=value_cache,
            heads=config.heads,
            key_heads=config.key_heads,
            head=config.head,
            scale=config.head**-0.5,
            window=window,
            query_start=stand.query_start,
            query_length=stand.query_length,
            rows=stand.domain,
            **place,
        )
        return write, attention


def declare_attention(builder: Builder, shared: Shared, config: ModelConfig,
                      options: Options) -> AttentionBuffers:
    """Declares the buffers of all layers."""
    packed, lanes, tokens = (symbol(s) for s in (wire.PACKED, wire.LANES, wire.PAGE_TOKENS))
    query = config.heads * config.head
    columns = query + 2 * config.key_heads * config.head

    def scratch(name: str, rows: wire.Extent, width: int) -> Handle:
        return builder.buffer(name, wire.SCRATCH, wire.F32, (rows, width))

    def planes(name: str, *tail: int | wire.Extent) -> tuple[Handle, ...]:
        return tuple(
            builder.buffer(f"layers.{layer}.{name}", wire.CACHE, options.cache_dtype,
                           (symbol(wire.PAGES), config.key_heads, *tail))
            for layer in range(config.layers))

    return AttentionBuffers(
        config=config, shared=shared,
        hidden=scratch("hidden", packed, config.hidden),
        normed=scratch("normed", packed, config.hidden),
        query_key_value=scratch("query_key_value", packed, columns),
        attended=scratch("attended", packed, query),
        selected=scratch("selected", lanes, config.hidden),
        selected_attended=scratch("selected_attended", lanes, query),
        logits=scratch("logits", symbol(wire.LOGIT_ROWS), config.vocabulary),
        keys=planes("keys", config.head, tokens), values=planes("values", tokens, config.head))


def history_regions(buffers: AttentionBuffers) -> list[contract.HistoryRegion]:
    """One region for the layers of each window, full histories first."""
    found = []
    windows = buffers.config.windows
    for window in sorted(set(windows)):
        planes = [
            plane
            for layer, own in enumerate(windows)
            if own == window
            for plane in buffers.planes(layer)
        ]
        kind = contract.SLIDING_WINDOW if window else contract.PAGED_KEY_VALUE
        found.append(
            contract.HistoryRegion(
                kind=kind, planes=planes, compression_ratio=1, window_tokens=window
            )
        )
    return found
