"""Kernels of attention, sampling and a program's end on a GPU, each by itself, against float64."""

import numpy as np
import pytest
from kernel_references import (
    NEAR_F32,
    PAGE,
    attention,
    head_rows,
    lone_bench,
    noise,
    of_bf16,
    paged,
    relative,
    turned,
)
from test_host_sampling import kept, philox

pytest.importorskip("triton", reason="kernels are compiled by Triton")
from cuda_bench import bf16

from helios_dod.ignition.cuda.native import decode_shared
from helios_dod.ignition.floats import to_bf16
from helios_dod.ignition.kernels import attention as prompts
from helios_dod.ignition.kernels import decoding, rows, sampling

pytestmark = pytest.mark.cuda
POISON = 0x7FC0  # NaN as bf16 bits
NEAR_HEADS = 6e-3  # relative rms: queries, weights of values and results are rounded to bf16
PROMPT_BIT = 1 << 30
RUNNING, EOS, LIMIT, NON_FINITE = range(4)


@pytest.fixture(scope="module")
def bench():
    return lone_bench()


def live(count):
    return np.array([count], np.int32)


class Heads:
    """Random inputs of a product of all heads and a cache, and what becomes of them."""

    def __init__(self, heads, key_heads, head, flags, positions, partials):
        generator = np.random.default_rng(heads + head)
        self.heads, self.key_heads, self.head, self.flags = heads, key_heads, head, flags
        self.positions, self.stride, self.epsilon, self.magnitude = positions, 20, 1e-5, 1.1
        self.partials, tokens = partials, len(positions)
        self.half = 0 if "PLAIN" in flags else head // 2 - 4
        self.slot = generator.permutation(tokens).astype(np.int32)
        self.table, self.keys, self.values = paged(
            generator, positions, self.slot, self.stride, key_heads, head)
        columns = (heads + 2 * key_heads) * head
        self.product = generator.standard_normal((partials * tokens, columns)).astype(np.float32)
        self.bias = generator.standard_normal(columns).astype(np.float32)
        self.norms = [generator.uniform(0.5, 2, head).astype(np.float32) for _ in range(2)]
        self.frequencies = generator.uniform(0.001, 1, max(self.half, 1)).astype(np.float32)

    def arguments(self):
        return dict(
            partials=self.product, bias=self.bias, query_norm=self.norms[0],
            key_norm=self.norms[1], frequencies=self.frequencies, slot=self.slot,
            position=np.array(self.positions, np.int32), table=self.table, keys=bf16(self.keys),
            values=bf16(self.values), stride=self.stride, tokens=len(self.positions),
            epsilon=self.epsilon, magnitude=self.magnitude)

    def constants(self):
        return dict(
            HEADS=self.heads, KEY_HEADS=self.key_heads, HEAD=self.head, HALF=self.half, PAGE=PAGE,
            INTERLEAVED="INTERLEAVED" in self.flags, BIAS="BIAS" in self.flags,
            NORM="NORM" in self.flags)

    def rows(self, row):
        """(heads as they are, heads rotated) of a row."""
        tokens = len(self.positions)
        summed = self.product.astype(np.float64).reshape(self.partials, tokens, -1)[:, row].sum(
            axis=0) + (self.bias if "BIAS" in self.flags else 0)
        plain = head_rows(summed, self.heads, self.key_heads, self.head,
                          self.norms if "NORM" in self.flags else None, self.epsilon)
        return plain, turned(plain, self.positions[row], self.frequencies[: self.half],
                             "INTERLEAVED" in self.flags, self.magnitude)

    def check_decoded(self, found, lanes, window, scale):
        """New keys and values, and attention over them and the history, of every live lane."""
        group = self.heads // self.key_heads
        for lane in range(lanes):
            where, pages = self.positions[lane], self.table[self.slot[lane]]
            plain, spun = self.rows(lane)
            at = pages[where // PAGE], where % PAGE
            for j in range(self.key_heads):
                key = of_bf16(found["keys"][at[0], j, :, at[1]])
                value = of_bf16(found["values"][at[0], j, at[1]])
                assert relative(spun[self.heads + j], key) < NEAR_HEADS
                assert relative(plain[self.heads + self.key_heads + j], value) < NEAR_HEADS
                query = spun[j * group : (j + 1) * group]
                query = of_bf16(to_bf16(query.astype(np.float32)))
                wanted = attention(where, pages, self.keys[:, j], self.values[:, j], query, key,
                                   value, window, scale)
                output = of_bf16(found["output"][lane].reshape(self.heads, self.head))
                assert relative(wanted, output[j * group : (j + 1) * group]) < NEAR_HEADS, lane


CASES = [(8, 2, 64, "", 0), (9, 3, 64, "INTERLEAVED", 40), (8, 8, 128, "NORM BIAS", 0),
         (4, 1, 16, "PLAIN BIAS", 24)]
POSITIONS = [0, 1, 15, 16, 17, 130, 257, 40]


@pytest.mark.parametrize("heads, key_heads, head, flags, window", CASES)
def test_heads_are_rotated_and_stored(bench, heads, key_heads, head, flags, window):
    made = Heads(heads, key_heads, head, flags, POSITIONS, 2)
    count = len(POSITIONS) - 1
    query = bf16(np.full((len(POSITIONS), heads * head), POISON, np.uint16))
    found = bench(rows.rotate_and_store, (1, key_heads), dict(
        **made.arguments(), lane=np.arange(len(POSITIONS), dtype=np.int32), query=query,
        live=live(count)), made.constants() | dict(SPLITS=2, BLOCK=16))
    for row in range(count):
        plain, spun = made.rows(row)
        page, at = made.table[made.slot[row], POSITIONS[row] // PAGE], POSITIONS[row] % PAGE
        assert relative(spun[:heads], of_bf16(found["query"][row]).reshape(
            heads, head)) < NEAR_HEADS
        assert relative(spun[heads : heads + key_heads],
                        of_bf16(found["keys"][page, :, :, at])) < NEAR_HEADS
        assert relative(plain[heads + key_heads :],
                        of_bf16(found["values"][page, :, at])) < NEAR_HEADS
    assert (found["query"][count:] == POISON).all()
    assert (found["keys"] != made.keys).sum() <= count * key_heads * head


@pytest.mark.parametrize("heads, key_heads, head, flags, window", CASES)
@pytest.mark.parametrize("splits", [1, 4])
def test_decode_attention(bench, heads, key_heads, head, flags, window, splits):
    made = Heads(heads, key_heads, head, flags, POSITIONS, 1)
    tokens, lanes, group = len(POSITIONS), len(POSITIONS) - 1, heads // key_heads
    up, scale = 1 << (group - 1).bit_length(), head**-0.5
    parts = tokens * heads * splits
    sums = dict(part_values=np.full((parts, head), np.nan, np.float32),
                part_sums=np.full((parts, 2), np.nan, np.float32),
                output=bf16(np.full((tokens, heads * head), POISON, np.uint16)), live=live(lanes))
    found = bench(decoding.decode_attention, (tokens, key_heads, splits), dict(
        **made.arguments(), **sums, scale=scale), made.constants() | dict(
            PARTIALS=1, WINDOW=window, ROWS=max(16, up), GROUP_UP=up, PAGES=4, SPLITS=splits,
            AHEAD=splits > 1), warps=4, stages=1 if splits > 1 else 3)
    if splits > 1:
        sums |= dict(part_values=found["part_values"], part_sums=found["part_sums"])
        found |= bench(prompts.combine, (tokens, heads), sums, dict(
            HEADS=heads, HEAD=head, SPLITS=splits, EARLY=False))
    made.check_decoded(found, lanes, window, scale)
    assert (found["output"][lanes:] == POISON).all()


@pytest.mark.parametrize("heads, key_heads, head, flags, window", CASES[:3])
@pytest.mark.parametrize("splits", [1, 4])
def test_native_decode_attention_on_the_device(bench, heads, key_heads, head, flags, window,
                                               splits):
    made = Heads(heads, key_heads, head, flags, POSITIONS, 2)
    tokens, lanes, scale = len(POSITIONS), len(POSITIONS) - 1, head**-0.5
    arguments = made.arguments()
    del arguments["tokens"]
    found = bench(("decode_attention", "decode.cu"), (tokens, key_heads, splits), dict(
        **arguments, output=bf16(np.full((tokens, heads * head), POISON, np.uint16)),
        live=live(lanes), scale=scale), made.constants() | dict(
            PARTIALS=2, WINDOW=window, TOKENS=tokens, SPLITS=splits, WARPS=4, DEPTH=2),
        warps=4, shared=decode_shared(head, heads // key_heads, 4, 2))
    made.check_decoded(found, lanes, window, scale)
    assert (found["output"][lanes:] == POISON).all()


@pytest.mark.parametrize("heads, key_heads, head, window", [(8, 2, 64, 0), (9, 3, 64, 40),
                                                            (4, 4, 128, 0)])
def test_attention_of_prompts(bench, heads, key_heads, head, window):
    """Lanes of several queries behind histories; tiles do not reach into the next lane."""
    generator = np.random.default_rng(head)
    lengths, ends = [70, 1, 33], [100, 18, 33]
    count, group, scale = sum(lengths), heads // key_heads, head**-0.5
    slot = np.array([2, 0, 1], np.int32)
    table, keys, values = paged(generator, ends, slot, 10, key_heads, head)
    starts = np.cumsum([0, *lengths[:-1]])
    position = np.concatenate([np.arange(end - length, end) for length, end in
                               zip(lengths, ends, strict=True)]).astype(np.int32)
    query = noise(generator, count, heads * head)
    up = 1 << (group - 1).bit_length()
    queries = 64 // up
    found = bench(prompts.attention, (-(-count // queries) + 2, key_heads), dict(
        query=bf16(query), output=bf16(np.full((count, heads * head), POISON, np.uint16)),
        position=position, slot=slot, table=table, keys=bf16(keys), values=bf16(values),
        query_start=starts.astype(np.int32), query_length=np.array(lengths, np.int32),
        live=live(3), stride=10, scale=scale), dict(
            HEADS=heads, KEY_HEADS=key_heads, HEAD=head, PAGE=PAGE, WINDOW=window, LANES=4,
            BLOCK_Q=queries, GROUP=up, BLOCK_T=64))["output"]
    for lane, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        pages = table[slot[lane]]
        for row in range(start, start + length):
            where = position[row]
            page, at = pages[where // PAGE], where % PAGE
            for j in range(key_heads):
                part = slice(j * group, (j + 1) * group)
                wanted = attention(
                    where, pages, keys[:, j], values[:, j],
                    of_bf16(query[row]).reshape(heads, head)[part], of_bf16(keys[page, j, :, at]),
                    of_bf16(values[page, j, at]), window, scale)
                assert relative(wanted, of_bf16(found[row]).reshape(heads, head)[part]) < 8e-3


VOCABULARY, CHUNK = 5000, 4096


def adjusted(bench, logits, **changes):
    """What adjust_logits leaves of rows, every slot neutral but for changes: found arrays."""
    lanes = len(logits)
    arguments = dict(
        logits=logits, slot=np.arange(lanes, dtype=np.int32)[::-1].copy(),
        status=np.zeros(lanes, np.int32), histogram=np.zeros((lanes, VOCABULARY), np.int32),
        repetition=np.ones(lanes, np.float32), presence=np.zeros(lanes, np.float32),
        frequency=np.zeros(lanes, np.float32), bias_tokens=np.zeros((lanes, 4), np.int32),
        bias_values=np.zeros((lanes, 4), np.float32), bias_count=np.zeros(lanes, np.int32),
        stop_tokens=np.full((lanes, 8), -1, np.int32), minimum=np.zeros(lanes, np.int32),
        generated=np.zeros(lanes, np.int32),
        mask_words=np.zeros((lanes, -(-VOCABULARY // 32)), np.uint32),
        chunk_top=np.full((lanes, 2), np.nan, np.float32),
        chunk_index=np.full((lanes, 2), -1, np.int32), live=live(lanes))
    masked = "mask_words" in changes
    return bench(sampling.adjust_logits, (lanes, 2), arguments | changes, dict(
        VOCABULARY=VOCABULARY, CHUNKS=2, BIAS=4, STOPS=8, BLOCK=CHUNK,
        MASK=-(-VOCABULARY // 32) if masked else 0), warps=8)


def test_logits_are_adjusted(bench):
    generator = np.random.default_rng(7)
    logits = (generator.standard_normal((3, VOCABULARY)) * 4).astype(np.float32)
    logits[1, 77] = np.nan
    histogram = np.zeros((3, VOCABULARY), np.int32)  # of slots, the other way round
    histogram[2, 5], histogram[2, 6], histogram[2, 7] = PROMPT_BIT, 3, PROMPT_BIT + 1
    found = adjusted(
        bench, logits, histogram=histogram, repetition=np.array([1, 1, 1.5], np.float32),
        presence=np.array([0, 0, 0.25], np.float32), frequency=np.array([0, 0, 0.5], np.float32),
        bias_count=np.array([2, 0, 0], np.int32),
        bias_tokens=np.array([[9, 4999, 0, 0], [0] * 4, [0] * 4], np.int32),
        bias_values=np.array([[2.5, -1, 0, 0], [0] * 4, [0] * 4], np.float32),
        minimum=np.array([1, 0, 0], np.int32),
        stop_tokens=np.array([[4, *[-1] * 7], [-1] * 8, [-1] * 8], np.int32))
    wanted = logits.astype(np.float64)
    for token, count in ((5, 0), (6, 3), (7, 1)):
        x = wanted[0, token]
        x = x / 1.5 if x > 0 else x * 1.5
        wanted[0, token] = x - (0.25 + 0.5 * count if count else 0)
    wanted[2, 9] += 2.5
    wanted[2, 4999] -= 1
    wanted[2, 4] = -np.inf
    for row in (0, 2):
        assert np.allclose(found["logits"][row], wanted[row], rtol=1e-6)
        for chunk, part in enumerate((slice(0, CHUNK), slice(CHUNK, VOCABULARY))):
            assert np.isclose(found["chunk_top"][row, chunk], wanted[row, part].max(), rtol=1e-6)
            assert found["chunk_index"][row, chunk] == CHUNK * chunk + wanted[row, part].argmax()
    assert found["status"].tolist() == [RUNNING, NON_FINITE, RUNNING]


def test_masks_leave_what_they_allow(bench):
    logits = np.random.default_rng(8).standard_normal((2, VOCABULARY)).astype(np.float32)
    words = np.random.default_rng(9).integers(0, 1 << 32, (2, -(-VOCABULARY // 32)),
                                              dtype=np.uint32)
    found = adjusted(bench, logits, mask_words=words)["logits"]
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :VOCABULARY]
    assert np.array_equal(found, np.where(bits, logits, -np.inf))


@pytest.mark.parametrize("temperature, top_k, top_p, min_p", [
    (0.0, 0, 1.0, 0.0), (1.0, 0, 1.0, 0.0), (0.7, 20, 1.0, 0.0), (1.3, 0, 0.8, 0.0),
    (1.0, 0, 1.0, 0.1), (1.0, 50, 0.9, 0.02)])
def test_tokens_are_drawn_where_the_generator_says(bench, temperature, top_k, top_p, min_p):
    """The token whose share of what the filters leave holds the host's random number."""
    lanes = 16
    logits = (np.random.default_rng(10).standard_normal((lanes, VOCABULARY)) * 3).astype(
        np.float32)
    chunks = adjusted(bench, logits)
    seeds = np.arange(1000, 1000 + lanes, dtype=np.uint64)
    slot = np.arange(lanes, dtype=np.int32)

    def of(value, kind):
        return np.full(lanes, value, kind)

    status = of(RUNNING, np.int32)
    status[3] = EOS
    found = bench(sampling.sample, (lanes,), dict(
        logits=logits, slot=slot, status=status, temperature=of(temperature, np.float32),
        top_p=of(top_p, np.float32), min_p=of(min_p, np.float32), top_k=of(top_k, np.int32),
        seed=seeds, position=np.arange(100, 100 + lanes, dtype=np.int32), sample_row=slot,
        top_count=of(5, np.int32), output=of(-9, np.int32), logprob=of(np.nan, np.float32),
        top_tokens=np.full((lanes, 20), -9, np.int32),
        top_logprobs=np.full((lanes, 20), np.nan, np.float32), chunk_top=chunks["chunk_top"],
        chunk_index=chunks["chunk_index"], live=live(lanes)), dict(
            VOCABULARY=VOCABULARY, CHUNKS=2, CHUNKS_UP=2, TOP=20, BLOCK=CHUNK), warps=16)
    for lane in range(lanes):
        token, x = int(found["output"][lane]), logits[lane].astype(np.float64)
        if lane == 3:
            assert token == -1
            continue
        share = x - x.max() - np.log(np.exp(x - x.max()).sum())
        best = np.argsort(-x, kind="stable")[:5]
        assert found["top_tokens"][lane, :5].tolist() == best.tolist()
        assert np.allclose(found["top_logprobs"][lane, :5], share[best], atol=1e-5)
        assert abs(found["logprob"][lane] - share[token]) < 1e-5
        if temperature == 0:
            assert token == best[0]
            continue
        shares = kept(logits[lane], temperature, top_k, top_p, min_p)
        ends = np.cumsum(shares)
        uniform = philox(int(seeds[lane]), 101 + lane)
        assert shares[token] > 0
        assert ends[token] - shares[token] - 1e-5 <= uniform <= ends[token] + 1e-5


def test_scores_are_log_probabilities(bench):
    logits = (np.random.default_rng(11).standard_normal((4, VOCABULARY)) * 3).astype(np.float32)
    target = np.array([7, -1, 4999, 0], np.int32)
    found = bench(sampling.score, (4,), dict(
        logits=logits, target=target, output=np.full(4, np.nan, np.float32), live=live(3)),
        dict(VOCABULARY=VOCABULARY, BLOCK=CHUNK), warps=8)["output"]
    x = logits.astype(np.float64)
    wanted = x[np.arange(4), target] - np.log(np.exp(x).sum(axis=1))
    assert relative(wanted[[0, 2]], found[[0, 2]]) < NEAR_F32
    assert found[1] == 0 and np.isnan(found[3])


def test_a_program_ends_with_its_records(bench):
    """Pending tokens, histogram, counts and status of lanes that draw; a record of every lane."""
    lanes, slots = 5, 6
    slot = np.array([4, 0, 2, 5, 1], np.int32)
    state = dict(
        pending=np.full(slots, -7, np.int32), histogram=np.zeros((slots, 50), np.int32),
        generated=np.array([3, 0, 1, 0, 9, 2], np.int32),
        limit=np.array([9, 9, 9, 9, 10, 9], np.int32),
        minimum=np.array([0, 0, 5, 0, 0, 0], np.int32),
        stop_tokens=np.full((slots, 8), -1, np.int32), status=np.zeros(slots, np.int32))
    state["stop_tokens"][0, 3] = state["stop_tokens"][2, 0] = 11
    state["status"][1] = EOS
    outs = {f"out_{name}": np.full((lanes, 4) if name == "tokens" else lanes, -99, np.int32)
            for name in ("slot", "generation", "status", "offered", "accepted", "emitted",
                         "tokens", "endpoint", "cursor", "reserved")}
    found = bench(sampling.advance, (1,), dict(
        sampled=np.array([8, 11, 11, 30, 31], np.int32), slot=slot,
        generation=np.arange(20, 25, dtype=np.int32), consumed=np.arange(5, dtype=np.int32) * 10,
        query_length=np.array([1, 1, 1, 4, 1], np.int32), **state, **outs, live_lanes=live(lanes),
        live_sampled=live(3), tokens_stride=16), dict(VOCABULARY=50, STOPS=8, BLOCK=32))
    assert found["pending"].tolist() == [11, -7, 11, -7, 8, -7]
    assert [found["histogram"][row].nonzero()[0].tolist() for row in (4, 0, 2)] == [[8], [11], [11]]
    assert found["histogram"].sum() == 3
    assert found["generated"].tolist() == [4, 0, 2, 0, 10, 2]
    assert found["status"].tolist() == [EOS, EOS, RUNNING, RUNNING, LIMIT, RUNNING]
    for name, wanted in (
            ("slot", slot.tolist()), ("generation", [20, 21, 22, 23, 24]),
            ("status", [LIMIT, EOS, RUNNING, RUNNING, EOS]), ("offered", [0] * 5),
            ("accepted", [0] * 5), ("emitted", [1, 1, 1, 0, 0]), ("endpoint", [1, 11, 21, 34, 41]),
            ("cursor", [-1] * 5), ("reserved", [-1] * 5)):
        assert found[f"out_{name}"].tolist() == wanted, name
    assert found["out_tokens"][:, 0].tolist() == [8, 11, 11, -1, -1]
    assert (found["out_tokens"][:, 1:] == -99).all()
