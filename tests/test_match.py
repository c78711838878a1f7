"""Following a text through the index, against a naive twin, however its pages' rows lie."""

import random

import numpy as np
import pytest

from helios_dod.limits import NO_ROW, TEST_MIN, TOKEN_BLOCK
from helios_dod.system import kernel
from helios_dod.systems.match import match_prefix
from helios_dod.tables.pages import publish_page, take_page
from helios_dod.tables.prefixes import chain
from helios_dod.tables.tokens import take_blocks
from helios_dod.world import boot, fill_pages

PAGE, PAGES = 16, 48


@kernel
def publish(world, ids, parent, hashed):
    """A page with 16 tokens (int32 [1, 16]) behind another; its row."""
    page = take_page(world, 0)
    for i in range(ids.shape[1]):
        world[0].pages.ids[page, i] = ids[0, i]
    publish_page(world, page, chain(hashed, ids, 0, 0, ids.shape[1]), parent, np.uint64(0))
    return page


class Texts:
    """Published texts that share beginnings, as chains of pages by their tokens."""

    def __init__(self, seed: int, run: int) -> None:
        self.rng = random.Random(seed)
        self.world = boot(TEST_MIN)
        fill_pages(self.world, PAGES)
        self.world[0]["settings"]["page_tokens"] = PAGE
        take_blocks(self.world, 0, TEST_MIN.context_max // TOKEN_BLOCK)
        groups = self.world[0]["pages"]["rows"][:PAGES].reshape(-1, run)
        groups[:] = groups[self.rng.sample(range(len(groups)), len(groups))]
        self.known: dict[tuple, int] = {}
        self.whole = [self.text(())]
        for length in (9, 4):
            self.whole.append(self.text(self.whole[0][:length]))
        for text in self.whole:
            self.publish(text)

    def text(self, shared: tuple) -> tuple:
        """Pages of a text behind shared ones; few token ids, so that pages nearly agree."""
        return shared + tuple(
            tuple(self.rng.randrange(2) for _ in range(PAGE)) for _ in range(16 - len(shared)))

    def publish(self, text: tuple) -> None:
        row, hashed = NO_ROW, np.uint64(0)
        for count in range(1, len(text) + 1):
            if text[:count] not in self.known:
                ids = np.array([text[count - 1]], np.int32)
                self.known[text[:count]] = publish(self.world, ids, row, hashed)
            row = self.known[text[:count]]
            hashed = self.world[0]["pages"]["hash"][row]

    def match(self, text: tuple) -> tuple[int, int]:
        """(pages, the last one's row) that the request with this text, and a token more, finds."""
        requests, tokens = self.world[0]["requests"], self.world[0]["tokens"]["ids"]
        ids = np.array(text, np.int32).reshape(-1)
        for at, token in enumerate([*ids, 0]):
            tokens[requests["blocks"][0][at // TOKEN_BLOCK], at % TOKEN_BLOCK] = token
        requests["token_count"][0] = len(ids) + 1
        match_prefix(self.world, 0)
        return int(requests["match_count"][0]), int(requests["match_page"][0])

    def expected(self, text: tuple) -> tuple[int, int]:
        count = 0
        while count < len(text) and text[: count + 1] in self.known:
            count += 1
        return count, self.known[text[:count]] if count else NO_ROW


@pytest.mark.parametrize("run", [1, 2, 3, 8, 48])
def test_a_match_is_what_the_texts_say(run):
    """Rows in no order, in runs, and all in the order of the texts; texts that are cut, that go on
    as another, that differ in one token."""
    for seed in range(10):
        texts = Texts(seed, run)
        for whole in texts.whole:
            asked = [whole, whole[:7]]
            for at in range(len(whole)):
                wrong = list(whole[at])
                wrong[texts.rng.randrange(PAGE)] ^= 1
                asked.append((*whole[:at], tuple(wrong), *whole[at + 1 :]))
                asked.append((*whole[:at], *texts.rng.choice(texts.whole)[at:]))
            for text in asked:
                assert texts.match(text) == texts.expected(text)


def test_pages_of_equal_hashes_are_told_apart():
    """Were the next row's hash and parent enough, a page of other tokens would be found."""
    texts = Texts(1, 48)
    whole = texts.whole[0]
    row = texts.known[whole[:6]]
    assert row == texts.known[whole[:5]] + 1
    texts.world[0]["pages"]["ids"][row, 3] ^= 1
    assert texts.match(whole) == texts.expected(whole[:5])
