"""Matching a fully cached prompt against the content index: one request, warm and cold caches."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from helios_dod.errors import UserError
from helios_dod.limits import LARGE, NO_ROW, PAGE_TOKENS_MAX, TOKEN_BLOCK
from helios_dod.perf.tick import summary
from helios_dod.system import kernel
from helios_dod.systems.match import match_prefix
from helios_dod.tables.pages import publish_page, take_page
from helios_dod.tables.prefixes import chain
from helios_dod.tables.tokens import take_blocks
from helios_dod.world import boot, fill_pages

WARM_UP = 1  # matches before those that count
# By `beside` of a Load.
PLACED = {0: "in the order of their texts", 32: "in pieces of 512 tokens", 1: "in no order"}


@dataclass(frozen=True)
class Load:
    """A prompt of `prompt` tokens, all of it cached, among `pages` indexed pages. The rows of
    `beside` pages of a text at a time lie beside each other, 0: of all. Prefill leaves pieces of
    its chunks' size; 1 is the worst that long use can do."""

    pages: int
    prompt: int = 32_768
    beside: int = 0
    repeats: int = 200  # a tenth of them cold, one at least
    seed: int = 3


@kernel
def publish_text(world, texts, page_tokens):
    """Publishes each row of texts (int32 [texts, tokens]) as a chain of pages."""
    pages = world[0].pages
    for row in range(texts.shape[0]):
        parent, hashed = NO_ROW, np.uint64(0)
        for index in range(texts.shape[1] // page_tokens):
            first = index * page_tokens
            hashed = chain(hashed, texts, row, first, page_tokens)
            page = take_page(world, 0)
            for i in range(page_tokens):
                pages.ids[page, i] = texts[row, first + i]
            publish_page(world, page, hashed, parent, np.uint64(0))
            parent = page


def prepare(load: Load) -> np.ndarray:
    """A world whose request row 0 is the prompt, published last among other texts. Raises
    UserError."""
    most = load.pages * PAGE_TOKENS_MAX
    if load.prompt % TOKEN_BLOCK or not 0 < load.prompt <= most:
        raise UserError(f"--prompt: expected a multiple of {TOKEN_BLOCK} and at most the {most} "
                        f"tokens of {load.pages} pages, got {load.prompt}")
    world = boot(LARGE)
    w = world[0]
    w["settings"]["page_tokens"] = PAGE_TOKENS_MAX
    fill_pages(world, load.pages)
    rng = np.random.default_rng(load.seed)
    if load.beside:
        pieces = load.pages // load.beside
        rows = w["pages"]["rows"][: pieces * load.beside].reshape(pieces, load.beside)
        rng.shuffle(rows)
    texts = load.pages * PAGE_TOKENS_MAX // load.prompt
    tokens = rng.integers(0, 131_072, (texts, load.prompt), dtype=np.int32)
    publish_text(world, tokens, PAGE_TOKENS_MAX)
    take_blocks(world, 0, load.prompt // TOKEN_BLOCK + 1)
    blocks = w["requests"]["blocks"][0][: load.prompt // TOKEN_BLOCK]
    w["tokens"]["ids"][blocks] = tokens[texts // 2].reshape(-1, TOKEN_BLOCK)
    w["requests"]["token_count"][0] = load.prompt + 1
    return world


def run(load: Load) -> dict[str, Any]:
    """Microseconds of one match, repeated, and with 256 MB read in between."""
    world = prepare(load)
    flush = np.zeros(32 * 2**20, np.int64)
    spent: dict[str, list[int]] = {"repeated": [], "cold": []}
    for _ in range(WARM_UP):
        match_prefix(world, 0)
    for name, repeats in (("repeated", load.repeats), ("cold", max(load.repeats // 10, 1))):
        for _ in range(repeats):
            if name == "cold":
                flush += 1
            start = time.perf_counter_ns()
            match_prefix(world, 0)
            spent[name].append(time.perf_counter_ns() - start)
    found = int(world[0]["requests"]["match_count"][0])
    assert found == load.prompt // PAGE_TOKENS_MAX, f"{found} pages matched"
    state = sum(world.dtype[name].itemsize for name in ("pages", "prefixes")) / LARGE.pages_max
    return {"pages": load.pages, "prompt": load.prompt, "beside": load.beside,
            "bytes_a_page": round(state, 1),
            **{name: summary(np.array(values)) for name, values in spent.items()}}
