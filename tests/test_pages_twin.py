"""The pages, tiers and copies tables alone, against a naive twin: event lists from a seed."""

import random

import numpy as np
import pytest

from helios_dod.limits import NO_ROW, TEST_MIN
from helios_dod.simulation.invariants import check_places
from helios_dod.system import kernel
from helios_dod.systems.evict import offload_oldest, sink_oldest
from helios_dod.systems.restore import begin_restore
from helios_dod.systems.settle import settle
from helios_dod.tables.pages import (
    adopt_page,
    dereference_page,
    publish_page,
    reference_page,
    take_page,
)
from helios_dod.tables.prefixes import chain, find_page
from helios_dod.terms import (
    PAGE_FETCHING,
    PAGE_IMMUTABLE,
    PAGE_LEAVING,
    PAGE_OFFLOADED,
    PAGE_RESTORING,
    PAGE_SINKING,
    PAGE_STORED,
)
from helios_dod.world import boot, fill_pages

DEVICE, MEMORY, DISK, COPIES = 6, 4, 5, 4
NAMES = {PAGE_IMMUTABLE: "device", PAGE_LEAVING: "leaving", PAGE_RESTORING: "restoring",
         PAGE_FETCHING: "fetching", PAGE_OFFLOADED: "memory", PAGE_SINKING: "sinking",
         PAGE_STORED: "disk"}


@kernel
def publish_text(world, parent, hashed, ids):
    """A private page with one token, published behind a page; its row and hash."""
    page = take_page(world, 0)
    world[0].pages.ids[page, 0] = ids[0, 0]
    new = chain(hashed, ids, 0, 0, 1)
    publish_page(world, page, new, parent, np.uint64(0))
    return page


@kernel
def look_up(world, parent, hashed, ids):
    """The page with one token behind a page, or NO_ROW."""
    return find_page(world, chain(hashed, ids, 0, 0, 1), parent, np.uint64(0), ids, 0, 0, 1)


@kernel
def adopt(world, page):
    """A slot's private page gives its content to a page that is away."""
    adopt_page(world, page, take_page(world, 0))


class Twin:
    """Pages by their text, in plain sets and lists; every count is made by looking at all."""

    def __init__(self):
        self.state, self.holders, self.lost = {}, {}, set()
        self.lists = {"device": [], "memory": [], "disk": []}
        self.free = {"device": DEVICE, "memory": MEMORY, "disk": DISK}
        self.queues = ([], [])  # (kind, text, still ours)

    def near(self, text):
        return self.state[text] in ("device", "restoring", "fetching")

    def children(self, text):
        return [other for other in self.state if other[:-1] == text and self.near(other)]

    def behind(self, text):
        return [other for other in self.state if other[:-1] == text and not self.near(other)]

    def idle_leaf(self, text):
        return (text in self.state and self.state[text] == "device" and not self.holders[text]
                and not self.children(text))

    def unlist(self, text):
        for listed in self.lists.values():
            if text in listed:
                listed.remove(text)

    def rest(self, text):
        if self.holders[text]:
            return
        state = self.state[text]
        if state == "device" and not self.children(text):
            self.lists["device"].append(text)
        elif state in ("memory", "disk"):
            if text in self.lost and not self.children(text) and not self.behind(text):
                self.drop(text)
            else:
                self.lists[state].append(text)

    def drop(self, text):
        self.unlist(text)
        self.free[self.state[text]] += 1
        del self.state[text], self.holders[text]
        self.lost.discard(text)

    def gone(self, text):
        """A page left the device: its parent may go next."""
        if self.idle_leaf(text[:-1]):
            self.lists["device"].insert(0, text[:-1])

    def place(self, tier):
        for _ in range(4):
            if self.free[tier] or not self.lists[tier]:
                break
            oldest = self.lists[tier][0]
            if tier == "memory" and self.behind(oldest) and self.place("disk"):
                self.lists[tier].remove(oldest)
                self.free[tier] += 1
                self.hollow(oldest)
                break
            self.lists[tier].remove(oldest)
            if self.children(oldest) or self.behind(oldest):
                self.lists[tier].append(oldest)
            else:
                self.drop(oldest)
        if not self.free[tier]:
            return False
        self.free[tier] -= 1
        return True

    def hollow(self, text):
        self.state[text] = "disk"
        self.lost.add(text)
        self.rest(text)

    def offload(self):
        text = self.lists["device"][0]
        if len(self.queues[0]) == COPIES:
            return
        if not self.free["memory"] and any(kind == "sink" for kind, _ in self.queues[1]):
            return  # nothing is known of the disk's cost: it is waited for
        if not self.place("memory"):
            self.give_up(text)
            return
        self.lists["device"].remove(text)
        self.state[text] = "leaving"
        self.gone(text)
        self.queues[0].append(("offload", text))

    def give_up(self, text):
        if any(kind == "offload" for kind, _ in self.queues[0]):
            return
        if not self.behind(text):
            self.drop(text)
            self.gone(text)
        elif self.place("disk"):
            self.lists["device"].remove(text)
            self.free["device"] += 1
            self.state[text] = "disk"
            self.gone(text)
            self.hollow(text)

    def sink(self):
        if not self.lists["memory"] or len(self.queues[1]) == COPIES or not self.place("disk"):
            return
        text = self.lists["memory"].pop(0)
        self.state[text] = "sinking"
        self.queues[1].append(("sink", text))

    def restore(self, text):
        tier = self.state[text]
        if tier not in ("memory", "disk") or text in self.lost or not self.free["device"]:
            return False
        queue, moving = (0, "restoring") if tier == "memory" else (1, "fetching")
        before = self.state.get(text[:-1], "device")
        if len(self.queues[queue]) == COPIES or before not in ("device", "leaving", moving):
            return False
        self.free["device"] -= 1
        self.unlist(text[:-1])
        self.state[text] = moving
        self.queues[queue].append((moving, text))
        return True

    def adopt(self, text):
        """Its copy in flight no longer decides anything; places come back when it ends."""
        was = self.state[text]
        self.unlist(text)
        if was in ("memory", "disk"):
            self.free[was] += 1
        for queue in self.queues:
            for k, (kind, other) in enumerate(queue):
                if other == text:
                    queue[k] = (kind, None)
        self.unlist(text[:-1])
        self.free["device"] -= 1
        self.state[text] = "device"
        self.lost.discard(text)
        self.holders[text] += 1

    def end(self, queue, failed):
        kind, text = self.queues[queue].pop(0)
        source, target = {"offload": ("device", "memory"), "sink": ("memory", "disk"),
                          "restoring": ("memory", "device"), "fetching": ("disk", "device")}[kind]
        if text is None:
            self.free[source] += 1
            self.free[target] += 1
            return
        stays = self.holders[text] or self.children(text)
        if kind == "offload" and stays:
            self.free["memory"] += 1
            self.unlist(text[:-1])
            self.state[text] = "device"
        elif kind == "sink" and self.holders[text]:
            self.free["disk"] += 1
            self.state[text] = "memory"
        elif kind in ("restoring", "fetching") and (failed or (
                text[:-1] and self.state[text[:-1]] not in ("device", "leaving"))):
            self.free["device"] += 1
            self.state[text] = source
            self.gone(text)
            if failed:
                self.lost.add(text)
        else:
            self.free[source] += 1
            self.state[text] = target
            if failed:
                self.lost.add(text)
        self.rest(text)


class Both:
    """The tables and the twin, driven by the same events."""

    def __init__(self, seed):
        self.rng, self.twin = random.Random(seed), Twin()
        self.world = boot(TEST_MIN)
        fill_pages(self.world, DEVICE, (MEMORY, DISK))
        self.world[0]["settings"]["page_tokens"] = 1
        self.rows, self.held = {}, []  # held: texts whose whole chain has a reference

    def locate(self, text):
        """The row of a text by the index, or NO_ROW."""
        row, hashed = NO_ROW, np.uint64(0)
        for token in text:
            row = look_up(self.world, row, hashed, np.array([[token]], np.int32))
            if row == NO_ROW:
                return row
            hashed = np.uint64(self.world[0]["pages"]["hash"][row])
        return row

    def step(self):
        event = self.rng.choice(("publish", "publish", "hold", "release", "offload", "sink", "end",
                                 "end", "restore", "restore", "adopt"))
        getattr(self, event)()
        self.compare()

    def pick(self, *states):
        found = sorted(t for t, state in self.twin.state.items() if state in states)
        return self.rng.choice(found) if found else None

    def publish(self):
        """Only behind a text that is held and readable, as a running slot's is."""
        ends = [()] + [t for t in self.held
                       if all(self.twin.state[t[:n]] in ("device", "leaving")
                              for n in range(1, len(t) + 1))]
        text = (*self.rng.choice(ends), self.rng.randrange(3))
        if text in self.twin.state or not self.twin.free["device"] or len(text) > 5:
            return
        before = self.locate(text[:-1])
        hashed = np.uint64(0) if len(text) == 1 else self.world[0]["pages"]["hash"][before]
        self.rows[text] = publish_text(self.world, before, np.uint64(hashed),
                                       np.array([[text[-1]]], np.int32))
        self.twin.unlist(text[:-1])
        self.twin.free["device"] -= 1
        self.twin.state[text], self.twin.holders[text] = "device", 1
        for n in range(1, len(text)):  # the text as a whole is held
            reference_page(self.world, self.rows[text[:n]])
            self.twin.holders[text[:n]] += 1
        self.held.append(text)

    def hold(self):
        text = self.pick(*NAMES.values())
        if text is None or len(self.held) > 6:
            return
        for n in range(len(text), 0, -1):
            reference_page(self.world, self.rows[text[:n]])
            self.twin.unlist(text[:n])
            self.twin.holders[text[:n]] += 1
        self.held.append(text)

    def release(self):
        if not self.held:
            return
        text = self.held.pop(self.rng.randrange(len(self.held)))
        for n in range(len(text), 0, -1):
            dereference_page(self.world, self.rows[text[:n]])
            self.twin.holders[text[:n]] -= 1
            if not self.twin.holders[text[:n]]:
                self.twin.rest(text[:n])

    def offload(self):
        if self.twin.lists["device"]:
            offload_oldest(self.world)
            self.twin.offload()

    def sink(self):
        sink_oldest(self.world)
        self.twin.sink()

    def restore(self):
        if not self.held:
            return
        text = self.rng.choice(self.held)
        for n in range(1, len(text) + 1):
            part = text[:n]
            if self.twin.state[part] in ("memory", "disk", "sinking"):
                if part in self.twin.lost:
                    return
                began = begin_restore(self.world, self.rows[part])
                assert bool(began) == self.twin.restore(part), part
                return

    def adopt(self):
        """A held text that is readable so far is computed again where it is not."""
        for text in self.held:
            for n in range(1, len(text) + 1):
                part = text[:n]
                if self.twin.state[part] in ("device", "leaving"):
                    continue
                if self.twin.free["device"]:
                    adopt(self.world, self.rows[part])
                    self.twin.adopt(part)
                    self.held.append(part)
                    for m in range(1, n):
                        reference_page(self.world, self.rows[part[:m]])
                        self.twin.holders[part[:m]] += 1
                return

    def end(self):
        copies = self.world[0]["copies"]
        for queue in (0, 1):
            count = self.rng.randint(0, len(self.twin.queues[queue]))
            for _ in range(count):
                number = int(copies["finished"][queue])
                failed = self.rng.random() < 0.2
                copies["failed"][queue, number % copies["kind"].shape[1]] = failed
                copies["finished"][queue] += 1
                self.twin.end(queue, failed)
        settle(self.world)

    def compare(self):
        w = self.world[0]
        p, twin = w["pages"], self.twin
        assert int(p["free_count"]) == twin.free["device"]
        assert w["tiers"]["free_count"].tolist() == [twin.free["memory"], twin.free["disk"]]
        self.rows = {text: row for text, row in self.rows.items() if text in twin.state}
        for text, row in self.rows.items():
            assert NAMES[int(p["state"][row])] == twin.state[text], text
            assert int(p["references"][row]) == twin.holders[text], text
            assert bool(p["lost"][row]) == (text in twin.lost), text
            assert self.locate(text) == row, text
        lists = [("device", p["oldest"]), ("memory", w["tiers"]["oldest"][0]),
                 ("disk", w["tiers"]["oldest"][1])]
        for name, at in lists:
            order = []
            while at != NO_ROW:
                order.append(int(at))
                at = p["newer"][at]
            assert order == [self.rows[text] for text in twin.lists[name]], name
        check_places(w)


@pytest.mark.parametrize("seed", range(40))
def test_tables_equal_their_twin(seed):
    both = Both(seed)
    for _ in range(400):
        both.step()


def test_events_reach_every_state():
    """The event lists put pages into every state and lose some, else the comparison is idle."""
    seen, lost = set(), 0
    for seed in range(100, 110):
        both = Both(seed)
        for _ in range(300):
            both.step()
            seen |= set(both.twin.state.values())
            lost += len(both.twin.lost)
    assert seen == set(NAMES.values()) and lost > 0
