"""receive: ingress rings -> requests; cancels; deadlines."""

import numpy as np

from helios_dod.limits import EOS_MAX, NO_ROW, SCORES_MAX, TOKEN_BLOCK
from helios_dod.system import kernel, store_release, system
from helios_dod.tables.pages import pages_of
from helios_dod.tables.requests import AGING_NS, finish_request, take_request, waiting_insert
from helios_dod.tables.rings import egress_room, payload_index
from helios_dod.tables.stops import BLOCK_STRINGS, load_stops
from helios_dod.tables.tokens import take_blocks
from helios_dod.terms import (
    EGRESS_FINISHED,
    EGRESS_REJECTED,
    FINISH_CANCELLED,
    FINISH_DEADLINE,
    FLAG_SCORED,
    INGRESS_ABANDONED,
    INGRESS_CANCEL,
    INGRESS_DONE,
    INGRESS_SUBMIT,
    REJECT_BLOCKS,
    REJECT_CONTEXT,
    REJECT_EMPTY,
    REJECT_GRAMMAR,
    REJECT_PAGES,
    REJECT_SPAN,
    REJECT_STOPS,
    REJECT_VOCABULARY,
    RUNNING,
    TEXT_ALL,
    WAITING,
)


@kernel
def reject(world, frontend, tag, reason, value, limit):
    """Writes a rejection; the caller has checked that the egress ring has room."""
    ring = world[0].egress
    end = ring.end[frontend, 0]
    row = end % ring.kind.shape[1]
    ring.kind[frontend, row] = EGRESS_REJECTED
    ring.reason[frontend, row] = reason
    ring.tag[frontend, row] = tag
    ring.value[frontend, row] = value
    ring.limit[frontend, row] = limit
    ring.shown[frontend, row] = 0
    ring.text[frontend, row] = TEXT_ALL
    ring.top_count[frontend, row] = -1
    store_release(ring.end[frontend], 0, end + 1)
    world[0].counters.rejected += 1


@kernel
def blocks_of(world, frontend, row):
    """Token blocks that a submission takes: its tokens, then its grammar."""
    ring = world[0].ingress
    total = ring.prompt_count[frontend, row] + ring.output_limit[frontend, row]
    grammar = -(-ring.grammar_bytes[frontend, row] // 4)
    return -(-total // TOKEN_BLOCK) + -(-grammar // TOKEN_BLOCK)


@kernel
def spans_index(world, frontend, row):
    """First payload word of a submission's spans."""
    ring = world[0].ingress
    at = payload_index(world, frontend, row) + ring.prompt_count[frontend, row]
    at += 2 * ring.bias_count[frontend, row] + ring.stop_words[frontend, row]
    return at + -(-ring.grammar_bytes[frontend, row] // 4)


@kernel
def longest_span(world, frontend, row):
    """Tokens of the longest atomic span of a submission."""
    ring, at, longest = world[0].ingress, spans_index(world, frontend, row), 0
    for i in range(ring.span_count[frontend, row]):
        longest = max(longest, ring.words[frontend, at + 4 * i + 1] - ring.words[
            frontend, at + 4 * i])
    return longest


@kernel
def copy_cuts(world, frontend, source, row):
    """Spans and boundaries of a submission into its request row."""
    ring, requests = world[0].ingress, world[0].requests
    at, spans = spans_index(world, frontend, source), ring.span_count[frontend, source]
    for i in range(spans):
        requests.span_first[row, i] = ring.words[frontend, at]
        requests.span_end[row, i] = ring.words[frontend, at + 1]
        low = np.uint64(np.uint32(ring.words[frontend, at + 2]))
        high = np.uint64(np.uint32(ring.words[frontend, at + 3]))
        requests.span_digest[row, i] = low | (high << np.uint64(32))
        at += 4
    requests.span_count[row] = spans
    requests.boundary_count[row] = ring.boundary_count[frontend, source]
    for i in range(requests.boundary_count[row]):
        requests.boundaries[row, i] = ring.words[frontend, at + i]


@kernel
def refusal(world, frontend, row):
    """(reason, value, limit) of a submission that can never run, or (0, 0, 0)."""
    ring, settings = world[0].ingress, world[0].settings
    prompt, output = ring.prompt_count[frontend, row], ring.output_limit[frontend, row]
    if prompt < 1 or output < 1:
        return REJECT_EMPTY, min(prompt, output), 1
    total = prompt + output
    if total > settings.context_tokens:
        return REJECT_CONTEXT, total, settings.context_tokens
    blocks = blocks_of(world, frontend, row)
    if blocks > world[0].tokens.owner.shape[0]:
        return REJECT_BLOCKS, blocks * TOKEN_BLOCK, world[0].tokens.owner.shape[0] * TOKEN_BLOCK
    if ring.grammar_bytes[frontend, row] > 0 and settings.masked == 0:
        return REJECT_GRAMMAR, 1, 0
    pages = pages_of(world, total) + settings.view_pages  # the originals of what is copied
    if pages > world[0].pages.page_count:
        return REJECT_PAGES, pages, world[0].pages.page_count
    longest = longest_span(world, frontend, row)
    most = settings.span_tokens
    if ring.flags[frontend, row] & FLAG_SCORED != 0:
        most = min(most, SCORES_MAX)
    if longest > most:
        return REJECT_SPAN, longest, most
    at = payload_index(world, frontend, row)
    for i in range(prompt):
        token = ring.words[frontend, at + i]
        if token < 0 or token >= settings.input_vocabulary:
            return REJECT_VOCABULARY, token, settings.input_vocabulary
    if ring.stop_words[frontend, row] > 0 and world[0].pieces.token_count == 0:
        at += prompt + 2 * ring.bias_count[frontend, row]
        strings = ring.words[frontend, at + BLOCK_STRINGS]
        if strings > 0:
            return REJECT_STOPS, strings, 0
    return 0, 0, 0


@kernel
def copy_payload(world, frontend, source, row):
    """Prompt, bias, stops and grammar of a submission into its request row."""
    ring, requests = world[0].ingress, world[0].requests
    at = payload_index(world, frontend, source)
    count = ring.prompt_count[frontend, source]
    for i in range(count):
        block = requests.blocks[row, i // TOKEN_BLOCK]
        world[0].tokens.ids[block, i % TOKEN_BLOCK] = ring.words[frontend, at + i]
    at += count
    bias = ring.bias_count[frontend, source]
    for i in range(bias):
        requests.bias_tokens[row, i] = ring.words[frontend, at + i]
        requests.bias_values[row, i] = ring.words[frontend, at + bias + i]
    at += 2 * bias
    stops = ring.stop_words[frontend, source]
    load_stops(world, row, ring.words[frontend], at, stops)
    at += stops
    for i in range(-(-ring.grammar_bytes[frontend, source] // 4)):
        block = requests.blocks[row, requests.grammar_block[row] + i // TOKEN_BLOCK]
        world[0].tokens.ids[block, i % TOKEN_BLOCK] = ring.words[frontend, at + i]


@kernel
def accept_submission(world, frontend, source, row):
    """Fills a taken request row and puts it in the waiting list."""
    ring, requests = world[0].ingress, world[0].requests
    prompt, output = ring.prompt_count[frontend, source], ring.output_limit[frontend, source]
    requests.state[row] = WAITING
    requests.frontend[row] = frontend
    requests.tag[row] = ring.tag[frontend, source]
    requests.admitted_ns[row] = 0
    requests.deadline_ns[row] = ring.deadline_ns[frontend, source]
    requests.priority[row] = ring.priority[frontend, source]
    requests.flags[row] = ring.flags[frontend, source]
    requests.prompt_count[row] = prompt
    requests.token_count[row] = prompt
    requests.cached_count[row] = 0
    requests.output_limit[row] = output
    requests.output_minimum[row] = ring.output_minimum[frontend, source]
    requests.emitted_count[row] = 0
    requests.scored_count[row] = 0
    requests.salt[row] = ring.salt[frontend, source]
    requests.order_ns[row] = world[0].clock.now_ns + requests.priority[row] * AGING_NS
    requests.match_page[row] = NO_ROW
    requests.match_count[row] = 0
    requests.match_snapshot[row] = NO_ROW
    requests.match_epoch[row] = world[0].pages.epoch - 1
    requests.page_need[row] = pages_of(world, prompt + output)
    requests.seed[row] = ring.seed[frontend, source]
    requests.temperature[row] = ring.temperature[frontend, source]
    requests.top_p[row] = ring.top_p[frontend, source]
    requests.min_p[row] = ring.min_p[frontend, source]
    requests.top_k[row] = ring.top_k[frontend, source]
    requests.repetition_penalty[row] = ring.repetition_penalty[frontend, source]
    requests.presence_penalty[row] = ring.presence_penalty[frontend, source]
    requests.frequency_penalty[row] = ring.frequency_penalty[frontend, source]
    requests.top_logprobs[row] = ring.top_logprobs[frontend, source]
    for i in range(EOS_MAX):
        requests.eos[row, i] = ring.eos[frontend, source, i]
    requests.bias_count[row] = ring.bias_count[frontend, source]
    requests.grammar_bytes[row] = ring.grammar_bytes[frontend, source]
    requests.grammar_block[row] = -(-(prompt + output) // TOKEN_BLOCK)
    take_blocks(world, row, blocks_of(world, frontend, source))
    copy_payload(world, frontend, source, row)
    copy_cuts(world, frontend, source, row)
    waiting_insert(world, row)
    deadline = requests.deadline_ns[row]
    if deadline > 0 and (requests.deadline_next_ns == 0 or deadline < requests.deadline_next_ns):
        requests.deadline_next_ns = deadline
    world[0].counters.received += 1
    world[0].counters.prompt_tokens += prompt


@kernel
def cancel(world, frontend, tag):
    """Ends the frontend's request of that tag; False if none lives."""
    requests = world[0].requests
    for row in range(requests.state.shape[0]):
        if requests.tag[row] == tag and requests.frontend[row] == frontend and (
                requests.state[row] == WAITING or requests.state[row] == RUNNING):
            finish_request(world, row, FINISH_CANCELLED)
            world[0].counters.cancelled += 1
            return True
    return False


@kernel
def abandon(world, frontend, row, reason):
    """Answers a submission that ended before it was received; there is room."""
    ring = world[0].egress
    end = ring.end[frontend, 0]
    at = end % ring.kind.shape[1]
    ring.kind[frontend, at] = EGRESS_FINISHED
    ring.token[frontend, at] = 0
    ring.reason[frontend, at] = reason
    ring.tag[frontend, at] = world[0].ingress.tag[frontend, row]
    ring.index[frontend, at] = 0
    ring.value[frontend, at] = 0
    ring.completed_ns[frontend, at] = 0
    ring.limit[frontend, at] = world[0].ingress.prompt_count[frontend, row]
    ring.shown[frontend, at] = 0
    ring.text[frontend, at] = TEXT_ALL
    ring.top_count[frontend, at] = -1
    store_release(ring.end[frontend], 0, end + 1)
    if reason == FINISH_CANCELLED:
        world[0].counters.cancelled += 1
    else:
        world[0].counters.failed += 1


@kernel
def cancel_ahead(world, frontend, first, count):
    """Handles the cancels among `count` rows behind one that has to wait: a full table must not
    keep alive what nobody reads."""
    ring = world[0].ingress
    rows = ring.kind.shape[1]
    for i in range(count):
        row = (first + i) % rows
        if ring.kind[frontend, row] != INGRESS_CANCEL:
            continue
        ring.kind[frontend, row] = INGRESS_DONE
        if cancel(world, frontend, ring.tag[frontend, row]):
            continue
        for k in range(i):
            earlier = (first + k) % rows
            if (ring.kind[frontend, earlier] == INGRESS_SUBMIT
                    and ring.tag[frontend, earlier] == ring.tag[frontend, row]):
                ring.kind[frontend, earlier] = INGRESS_ABANDONED


@kernel
def end_ahead(world, frontend, first, count):
    """Answers those among `count` rows, the first of which has to wait, that were cancelled or
    whose deadline has passed, as far as there is room."""
    ring, now = world[0].ingress, world[0].clock.now_ns
    rows = ring.kind.shape[1]
    for i in range(count):
        row = (first + i) % rows
        late = (ring.kind[frontend, row] == INGRESS_SUBMIT
                and 0 < ring.deadline_ns[frontend, row] <= now)
        if (late or ring.kind[frontend, row] == INGRESS_ABANDONED) and (
                egress_room(world, frontend) > 0):
            abandon(world, frontend, row, FINISH_DEADLINE if late else FINISH_CANCELLED)
            ring.kind[frontend, row] = INGRESS_DONE


@kernel
def receive_row(world, frontend, row):
    """Handles one ingress row; False when it must stay in the ring because something is full."""
    ring, requests = world[0].ingress, world[0].requests
    if ring.kind[frontend, row] == INGRESS_CANCEL:
        cancel(world, frontend, ring.tag[frontend, row])
        return True
    if ring.kind[frontend, row] == INGRESS_DONE:
        return True
    if ring.kind[frontend, row] == INGRESS_ABANDONED:
        if egress_room(world, frontend) < 1:
            return False
        abandon(world, frontend, row, FINISH_CANCELLED)
        return True
    reason, value, limit = refusal(world, frontend, row)
    if reason != 0:
        if egress_room(world, frontend) < 1:
            world[0].counters.egress_full += 1
            return False
        reject(world, frontend, ring.tag[frontend, row], reason, value, limit)
        return True
    capacity = world[0].settings.queue_capacity
    if capacity > 0 and requests.waiting_count >= capacity:
        return False
    if blocks_of(world, frontend, row) > world[0].tokens.free_count:
        return False
    taken = take_request(world)
    if taken == NO_ROW:
        return False
    requests.slot[taken] = NO_ROW
    accept_submission(world, frontend, row, taken)
    return True


@kernel
def expire(world):
    """Ends requests past their deadline and finds the next one; scans only when one is due."""
    requests, now = world[0].requests, world[0].clock.now_ns
    if requests.deadline_next_ns == 0 or now < requests.deadline_next_ns:
        return
    requests.deadline_next_ns = 0
    for row in range(requests.state.shape[0]):
        deadline = requests.deadline_ns[row]
        if deadline == 0 or not (requests.state[row] == WAITING or requests.state[row] == RUNNING):
            continue
        if deadline <= now:
            finish_request(world, row, FINISH_DEADLINE)
            world[0].counters.failed += 1
        elif requests.deadline_next_ns == 0 or deadline < requests.deadline_next_ns:
            requests.deadline_next_ns = deadline


@system(
    reads="ingress.* settings.* clock.now_ns tokens.* pages.page_count pieces.token_count",
    writes="ingress.first ingress.words_first ingress.kind requests.* tokens.* slots.state "
           "stops.* egress.* counters.*",
)
def receive(world):
    """Drains every ingress ring at most once around; a full table leaves rows where they are."""
    ring = world[0].ingress
    rows = ring.kind.shape[1]
    for frontend in range(ring.kind.shape[0]):
        first = ring.first[frontend, 0]
        count = ring.seen[frontend] - first
        assert 0 <= count <= rows
        taken = 0
        for i in range(count):
            row = (first + i) % rows
            if not receive_row(world, frontend, row):
                cancel_ahead(world, frontend, first + i, count - i)
                end_ahead(world, frontend, first + i, count - i)
                break
            store_release(ring.words_first[frontend], 0, ring.payload_end[frontend, row])
            taken += 1
        if taken > 0:
            store_release(ring.first[frontend], 0, first + taken)
    expire(world)
