"""The naive oracle of what the virtual device holds: every record is computed again from the tokens
that it stands for, one at a time, and compared with what lies in its place.

Pages that can be found are looked at wherever they are, on the device or in a tier; snapshots with
their state rows, the page that they keep a part of, and their windowed pages; and the state rows of
every request that nothing is in flight of. No table says what they should hold but the tokens."""

from typing import Any

import numpy as np

from helios_dod.executors.histories import Histories
from helios_dod.executors.simulated import SimulatedExecutor
from helios_dod.executors.simulated_device import EMPTY_HISTORY, record
from helios_dod.limits import NO_ROW, TOKEN_BLOCK
from helios_dod.simulation.invariants import require
from helios_dod.simulation.kinds import Kinds
from helios_dod.simulation.windows import window_copies
from helios_dod.terms import (
    COPY_WINDOW_FETCH,
    COPY_WINDOW_RESTORE,
    PAGE_IMMUTABLE,
    PAGE_LEAVING,
    PAGE_OFFLOADED,
    PAGE_SINKING,
    PAGE_STORED,
    SLOT_DECODE,
    SLOT_PREFILL,
    SNAPSHOT_READY,
)

KEPT_MAX = 50_000  # chains of tokens that are remembered with their records


class Contents:
    """Judges the contents of one simulated device."""

    def __init__(self, world: np.ndarray, executor: SimulatedExecutor, kinds: Kinds) -> None:
        self.w, self.executor, self.kinds = world[0], executor, kinds
        self.size = int(self.w["settings"]["page_tokens"])
        self.known: dict[tuple[int, bytes], np.ndarray] = {}

    def records(self, before: int, tokens: np.ndarray) -> np.ndarray:
        """Records of tokens behind a record."""
        key = before, tokens.tobytes()
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= KEPT_MAX:
                self.known.clear()
            history, made = np.uint64(before), []
            for token in tokens:
                history = np.uint64(record(history, np.int32(token)))
                made.append(history)
            found = self.known[key] = np.array(made, np.uint64)
        return found

    def text(self, tokens: np.ndarray) -> list[np.ndarray]:
        """Records of a text, page by page; the last page may be incomplete."""
        made, before = [], EMPTY_HISTORY
        for first in range(0, len(tokens), self.size):
            made.append(self.records(before, tokens[first : first + self.size]))
            before = int(made[-1][-1])
        return made

    def tokens_up_to(self, page: int) -> list[np.ndarray]:
        """Tokens of a page and of those before it."""
        found: list[np.ndarray] = []
        while page != NO_ROW:
            found.append(self.w["pages"]["ids"][page, : self.size])
            page = int(self.w["pages"]["parent"][page])
        return found[::-1]

    def check(self) -> None:
        """Raises Violation."""
        self.check_pages()
        if self.kinds.stateful and self.executor.histories is not None:
            for row in np.nonzero(self.w["snapshots"]["state"] == SNAPSHOT_READY)[0].tolist():
                self.check_snapshot(row, self.executor.histories)
            for slot in self.w["slots"]["live"][: int(self.w["slots"]["live_count"])].tolist():
                self.check_slot(slot, self.executor.histories)

    def held(self, page: int) -> np.ndarray | None:
        """What lies in the place of an immutable page; None while it is on its way or lost."""
        pages, executor = self.w["pages"], self.executor
        state, place = int(pages["state"][page]), int(pages["place"][page])
        if pages["lost"][page]:
            return None
        if state in (PAGE_IMMUTABLE, PAGE_LEAVING):
            if executor.histories is None:
                return executor.cache[place]
            return executor.histories.load_page(executor.cache, place)
        tiers = {PAGE_OFFLOADED: executor.memory, PAGE_SINKING: executor.memory,
                 PAGE_STORED: executor.disk}
        return tiers[state][place] if state in tiers else None

    def check_pages(self) -> None:
        """Every plane of every page that can be found."""
        for page in np.nonzero(self.w["pages"]["state"] >= PAGE_IMMUTABLE)[0].tolist():
            held = self.held(page)
            if held is None:
                continue
            text = self.text(np.concatenate(self.tokens_up_to(page)))
            index = len(text) - 1
            require(np.array_equal(held[: self.size], text[index]),
                    f"pages[{page}]: records of other tokens than its own")
            if len(held) > self.size:
                self.check_planes(page, held, text, index)

    def check_planes(self, page: int, held: np.ndarray, text: list[np.ndarray],
                     index: int) -> None:
        """The latent plane, and the one behind a shifted view, of page `index` of a text."""
        ratio, shift = self.kinds.latent, self.kinds.shift
        latent, shifted = held[self.size : 2 * self.size], held[2 * self.size : 3 * self.size]
        if ratio:
            require(np.array_equal(latent[: self.size // ratio], text[index][ratio - 1 :: ratio]),
                    f"pages[{page}]: latent records")
        if shift and index >= shift:
            require(np.array_equal(shifted, text[index - shift]),
                    f"pages[{page}]: records of the shifted view")
        if index > 0:
            require(held[-2] == text[index - 1][-1], f"pages[{page}]: the page before it")

    def check_rows(self, rows: np.ndarray, first: int, text: list[np.ndarray], what: str) -> None:
        """Committed recurrent rows behind a text."""
        wanted = text[-1][-1] if text else np.uint64(EMPTY_HISTORY)
        for row in range(first, first + self.kinds.state_rows):
            require(rows[row] == wanted, f"{what}: state row {row} is not that behind its tokens")

    def check_snapshot(self, row: int, histories: Histories) -> None:
        """A snapshot's state, the part of a page that it keeps, and its windowed pages."""
        s, what = self.w["snapshots"], f"snapshots[{row}]"
        endpoint, stride = int(s["endpoint"][row]), int(self.w["settings"]["state_rows"])
        before, inside = self.tokens_up_to(int(s["page"][row])), endpoint % self.size
        require(len(before) * self.size + inside == endpoint, f"{what}: {len(before)} pages")
        require(bool(self.w["settings"]["partial"]) or inside == 0,
                f"{what}: endpoint {endpoint} inside a page, of which nothing is kept")
        text = self.text(np.concatenate([*before, s["ids"][row, :inside]]))
        self.check_rows(histories.saved_rows[0], row * stride, text, what)
        if inside:
            kept = histories.saved_pages[row * stride, 0, :inside]
            require(np.array_equal(kept, text[-1]), f"{what}: its part of a page")
        ring, returning = s["window_pages"].shape[1], self.returning()
        for index in range(int(s["window_first"][row]), int(s["window_end"][row])):
            k = index % ring
            page, place = int(s["window_pages"][row, k]), int(s["window_places"][row, k])
            held = (self.placed(place) if page == NO_ROW or place in returning
                    else histories.windowed[page])
            require(np.array_equal(held[: self.size], text[index]),
                    f"{what}: page {index} of its window")

    def placed(self, place: int) -> np.ndarray:
        """What lies in a place of windowed pages, in memory or behind that on disk."""
        memory = len(self.executor.windows)
        return (self.executor.windows[place] if place < memory
                else self.executor.stored[place - memory])

    def returning(self) -> set[int]:
        """Places that windowed pages are being copied to the device from."""
        return {source for kind, _, source, _ in window_copies(self.w)
                if kind in (COPY_WINDOW_RESTORE, COPY_WINDOW_FETCH)}

    def check_slot(self, slot: int, histories: Histories) -> None:
        """State rows of a slot, while its endpoint is known and nothing changes it."""
        s: Any = self.w["slots"]
        if (s["in_flight"][slot] > 0 or s["restore"][slot] != NO_ROW
                or s["state"][slot] not in (SLOT_PREFILL, SLOT_DECODE)):
            return
        blocks, count = self.w["requests"]["blocks"][s["request"][slot]], int(s["consumed"][slot])
        tokens = self.w["tokens"]["ids"][blocks[: -(-count // TOKEN_BLOCK)]].reshape(-1)[:count]
        stride = int(self.w["settings"]["state_rows"])
        self.check_rows(histories.rows[0], slot * stride, self.text(tokens), f"slots[{slot}]")
