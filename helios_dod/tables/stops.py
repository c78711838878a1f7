"""Host stops: stop ids, and automata over the bytes of the text or over tokens.

Knuth, Morris and Pratt's matcher, one state a pattern: O(1) a symbol amortised, whatever the
overlaps. Only what the output ends with may still become a stop; all before it is decided.
"""

import numpy as np

from helios_dod.decoding import NEED, STARTED, put_raw
from helios_dod.schema import i32, scalar, table, u8, u16, u64
from helios_dod.system import kernel, prefetch
from helios_dod.tables.tokens import token_at
from helios_dod.terms import (
    FINISH_STOP_SEQUENCE,
    FINISH_STOP_STRING,
    FINISH_STOP_TOKEN,
    FLAG_KEEP_STOP,
    TEXT_ALL,
)

# Counts that a payload block of stops begins with; then the stop ids, the delimiters, the length of
# each pattern, and the patterns: the bytes of strings, four a word, or the tokens of sequences.
BLOCK_IDS, BLOCK_DELIMITERS, BLOCK_STRINGS, BLOCK_SEQUENCES, BLOCK_HEAD = 0, 1, 2, 3, 4


@table(rows="requests_max")
class Stops:
    """Row r: the host stops of request r, if `active`; else the row is stale.

    Patterns are stop strings (`strings`: symbols are `bytes`) or stop sequences (`tokens`), never
    both. Pattern p is symbols[first[p]:first[p + 1]]; failures[first[p] + i] is the longest proper
    prefix of it that its first i + 1 symbols end with. `depths[p]` symbols of it are what the
    output ends with; `longest` is the largest of them. Positions of text are bytes as decoded."""

    active: u8
    strings: u8
    id_count: i32
    ids: i32["STOP_IDS_MAX"]
    delimiter_count: i32
    delimiters: i32["DELIMITERS_MAX"]  # special tokens that are text where output is parsed
    pattern_count: i32
    first: i32["STOP_PATTERN_ENDS_MAX"]
    depths: i32["STOP_PATTERNS_MAX"]
    longest: i32
    found: i32  # the stop that was completed last, by its place in `ids` or among the patterns
    starts: u64["BYTE_BITS"]  # the set of bytes that a string begins with
    bytes: u8["stop_bytes_row"]
    tokens: i32["stop_tokens_max"]
    failures: u16["stop_symbols_row"]
    text_count: i32  # bytes of text that are decoded
    decoding: i32["DECODING_WORDS"]  # of decoding.py
    decoded: scalar(u8["DECODED_MAX"])  # what one byte decides


@kernel
def build_failures(symbols, failures, begin, end):
    """KMP's failure links of the pattern symbols[begin:end]."""
    depth = 0
    failures[begin] = 0
    for at in range(begin + 1, end):
        while depth > 0 and symbols[begin + depth] != symbols[at]:  # falls with every turn
            depth = np.int64(failures[begin + depth - 1])
        if symbols[begin + depth] == symbols[at]:
            depth += 1
        failures[at] = depth


@kernel
def take_symbol(symbols, failures, first, depths, count, symbol):
    """Advances every pattern by one symbol: (longest live prefix, length of the longest pattern
    completed or 0, that pattern)."""
    longest, completed, found = 0, 0, 0
    for pattern in range(count):
        begin, end = first[pattern], first[pattern + 1]
        depth = np.int64(depths[pattern])
        if depth == 0 and symbols[begin] != symbol:
            continue
        while depth > 0 and symbols[begin + depth] != symbol:  # falls with every turn
            depth = np.int64(failures[begin + depth - 1])
        if symbols[begin + depth] == symbol:
            depth += 1
        if depth == end - begin:
            if depth > completed:
                completed, found = depth, pattern
            depth = np.int64(failures[end - 1])
        depths[pattern] = depth
        longest = max(longest, depth)
    return longest, completed, found


@kernel
def begin_stops(world, row):
    """Puts the automata of a row before the first generated token."""
    stops = world[0].stops
    stops.depths[row, :] = 0
    stops.longest[row] = 0
    stops.found[row] = 0
    stops.text_count[row] = 0
    stops.decoding[row, :] = 0
    world[0].requests.withheld[row] = 0
    world[0].requests.text_end[row] = 0 if stops.strings[row] == 1 else TEXT_ALL


@kernel
def load_patterns(world, row, words, at, strings, sequences):
    """Patterns of a payload block, their lengths first, and their automata."""
    stops = world[0].stops
    count = strings + sequences
    data, filled = at + count, 0
    for pattern in range(count):
        length = words[at + pattern]
        stops.first[row, pattern] = filled
        for i in range(filled, filled + length):
            if strings > 0:
                stops.bytes[row, i] = (words[data + i // 4] >> (8 * (i % 4))) & 255
            else:
                stops.tokens[row, i] = words[data + i]
        if strings > 0:
            byte = np.int64(stops.bytes[row, filled])
            stops.starts[row, byte >> 6] |= np.uint64(1) << np.uint64(byte & 63)
            build_failures(stops.bytes[row], stops.failures[row], filled, filled + length)
        else:
            build_failures(stops.tokens[row], stops.failures[row], filled, filled + length)
        filled += length
    stops.first[row, count] = filled


@kernel
def load_stops(world, row, words, at, count):
    """Fills a row from the block words[at:at + count]; count 0: the request has no stops."""
    stops = world[0].stops
    stops.active[row] = count > 0
    stops.strings[row] = 0
    if count > 0:
        ids, delimiters = words[at + BLOCK_IDS], words[at + BLOCK_DELIMITERS]
        strings, sequences = words[at + BLOCK_STRINGS], words[at + BLOCK_SEQUENCES]
        assert strings == 0 or sequences == 0
        at += BLOCK_HEAD
        stops.id_count[row] = ids
        for i in range(ids):
            stops.ids[row, i] = words[at + i]
        at += ids
        stops.delimiter_count[row] = delimiters
        for i in range(delimiters):
            stops.delimiters[row, i] = words[at + i]
        stops.strings[row] = strings > 0
        stops.pattern_count[row] = strings + sequences
        stops.starts[row, :] = 0
        load_patterns(world, row, words, at + delimiters, strings, sequences)
    begin_stops(world, row)


@kernel
def has_text(world, row, token):
    """Is a token part of the text that the request's stop strings are looked for in?"""
    stops, pieces = world[0].stops, world[0].pieces
    if token < 0 or token >= pieces.token_count:
        return False
    if pieces.special[token] == 0:
        return True
    found = False
    for i in range(stops.delimiter_count[row]):
        found |= stops.delimiters[row, i] == token
    return found


@kernel
def begins(starts, byte):
    """Is a byte in the set of those that a string begins with?"""
    return (starts[byte >> 6] >> np.uint64(byte & 63)) & np.uint64(1) != 0


@kernel
def advance_strings(world, row, byte):
    """Advances the strings of a row by one byte of text; the longest completed, or 0."""
    stops = world[0].stops
    longest, completed, found = take_symbol(
        stops.bytes[row], stops.failures[row], stops.first[row], stops.depths[row],
        stops.pattern_count[row], byte)
    stops.longest[row] = longest
    if completed > 0:
        stops.found[row] = found
    return completed


@kernel
def take_text(world, row, token, counts):
    """Advances over a token's text; where text ends if a string is completed in it, or TEXT_ALL.

    The first completed string wins, of several the longest. counts: completed strings count. Bytes
    that no string begins with are passed over while none has begun."""
    stops, pieces = world[0].stops, world[0].pieces
    if not has_text(world, row, token):
        return TEXT_ALL
    state, decoded, starts = stops.decoding[row], stops.decoded, stops.starts[row]
    text, begun = stops.text_count[row], stops.longest[row] > 0
    for at in range(pieces.begin[token], pieces.begin[token + 1]):
        raw = np.int32(pieces.data[at])
        count = 1
        if state[NEED] == 0 and raw < 0x80 and state[STARTED] == 1:
            decoded[0] = raw
        else:
            count = put_raw(decoded, 0, state, raw, False, pieces.strip == 1)
        for i in range(count):
            text += 1
            if not begun and not begins(starts, decoded[i]):
                continue
            completed = advance_strings(world, row, decoded[i])
            begun = stops.longest[row] > 0
            if completed > 0 and counts:
                stops.text_count[row] = text
                return text - (0 if world[0].requests.flags[row] & FLAG_KEEP_STOP else completed)
    stops.text_count[row] = text
    return TEXT_ALL


@kernel
def take_tokens(world, row, token, counts):
    """Advances over a token: a stop id, or the end of a sequence. A FINISH_ reason, or 0.

    Of several that end with this token the longest wins."""
    stops, requests = world[0].stops, world[0].requests
    longest, completed, found = take_symbol(
        stops.tokens[row], stops.failures[row], stops.first[row], stops.depths[row],
        stops.pattern_count[row], token)
    requests.withheld[row] = longest
    if not counts:
        return 0
    keep = requests.flags[row] & FLAG_KEEP_STOP
    if completed > 0:
        requests.withheld[row] = 0 if keep else completed
        stops.found[row] = found
        return FINISH_STOP_SEQUENCE
    for i in range(stops.id_count[row]):
        if stops.ids[row, i] == token:
            stops.found[row] = i
            requests.withheld[row] = 0 if keep else 1
            return FINISH_STOP_TOKEN
    return 0


@kernel
def take_stop(world, row, token, counts):
    """Advances an active row over a generated token. A FINISH_ reason, or 0.

    Sets what may be shown: all but `requests.withheld` tokens, and text to `requests.text_end`."""
    stops, requests = world[0].stops, world[0].requests
    if stops.strings[row] == 0:
        return take_tokens(world, row, token, counts)
    end = take_text(world, row, token, counts)
    if end != TEXT_ALL:
        requests.text_end[row] = end
        return FINISH_STOP_STRING
    requests.text_end[row] = stops.text_count[row] - stops.longest[row]
    return 0


@kernel
def ask_stops(world, row, token):
    """Asks for the memory that `take_stop` reads later in the tick: rows lie far apart."""
    stops, pieces = world[0].stops, world[0].pieces
    if stops.strings[row] == 1 and 0 <= token < pieces.token_count:
        prefetch(pieces.special, token)
        prefetch(pieces.begin, token)
        prefetch(stops.decoding[row], 0)
        prefetch(stops.starts[row], 0)
        prefetch(stops.first[row], 0)
        prefetch(stops.depths[row], 0)
        prefetch(stops.bytes[row], 0)


@kernel
def rewind_stops(world, row):
    """Puts the automata where the generated tokens that are left end."""
    begin_stops(world, row)
    for position in range(world[0].requests.prompt_count[row], world[0].requests.token_count[row]):
        take_stop(world, row, token_at(world, row, position), False)
