"""compose: choose a free frame's cohort, operation and program."""

from helios_dod.limits import NO_ROW, SCORES_MAX
from helios_dod.system import kernel, system
from helios_dod.systems.lanes import (
    add_lane,
    add_work,
    generating,
    has_room,
    pauses,
    ready,
    room_tokens,
    scores_due,
    wait_for,
)
from helios_dod.systems.rounds import compose_round
from helios_dod.tables.drafts import base_program
from helios_dod.tables.grammars import may_sample, outstanding
from helios_dod.tables.spans import span_at, whole_spans
from helios_dod.tables.values import choose_snapshot, wanted
from helios_dod.terms import (
    CAUSE_ANSWER,
    CAUSE_BOUNDARY,
    CAUSE_PAGE,
    CAUSE_PROMPT,
    CAUSE_TURN,
    CLOSING_DONE,
    CLOSING_KEPT,
    CLOSING_PAUSED,
    CLOSING_WAITS,
    FLAG_PENALTIES,
    FRAME_COMPOSED,
    FREE,
    GRAMMAR_PENDING,
    GRAMMAR_READY,
    OP_INITIALIZE,
    OP_MIXED,
    OP_PREFILL,
    OP_RESTORE,
    OP_SCORED_PREFILL,
    SLOT_ADMITTED,
    SLOT_COPIES,
    SLOT_DECODE,
    SLOT_PREFILL,
    WAIT_PHASE,
)


@kernel
def find_program(world, operation, lanes, packed, host_pending, histogram, masked):
    """The smallest loaded variant that holds so many lanes and packed tokens.

    masked: 1 if a lane is constrained; without one, a variant that takes no masks is better."""
    programs = world[0].programs
    best = NO_ROW
    for row in range(programs.program_count):
        if (programs.operation[row] != operation or programs.batch[row] < lanes
                or programs.packed[row] < packed or programs.host_pending[row] != host_pending
                or programs.histogram[row] != histogram or programs.masked[row] < masked):
            continue
        if best == NO_ROW or (
                programs.packed[row], programs.batch[row], programs.masked[row]) < (
                programs.packed[best], programs.batch[best], programs.masked[best]):
            best = row
    return best


@kernel
def compose_initialize(world, frame):
    """A cohort of newly admitted slots that all need, or all do not need, a prompt histogram."""
    frames, slots, requests = world[0].frames, world[0].slots, world[0].requests
    program, histogram = NO_ROW, 0
    for i in range(slots.live_count):
        slot = slots.live[i]
        if slots.state[slot] != SLOT_ADMITTED:
            continue
        needs = requests.flags[slots.request[slot]] & FLAG_PENALTIES
        if program == NO_ROW:
            histogram = needs
            program = find_program(world, OP_INITIALIZE, 1, 0, 0, histogram, 0)
            assert program != NO_ROW, "programs: no initialize variant"
        elif needs != histogram:
            continue
        add_lane(world, frame, slot, 0, 0)
        restores = slots.restore[slot] != NO_ROW or slots.copying[slot] > 0
        slots.state[slot] = SLOT_COPIES if restores else SLOT_PREFILL
        if frames.lane_count[frame] == world[0].programs.batch[program]:
            break
    return program


@kernel
def count_prompts(world):
    """(slots that are newly admitted, slots that have prompt tokens to submit)."""
    slots, admitted, prompts = world[0].slots, 0, 0
    for i in range(slots.live_count):
        state = slots.state[slots.live[i]]
        admitted += state == SLOT_ADMITTED
        prompts += state == SLOT_PREFILL
    return admitted, prompts


@kernel
def round_in_flight(world):
    """Do lanes of a speculative program have to end before the operation changes? They note it."""
    slots, waits = world[0].slots, False
    for i in range(slots.live_count):
        slot = slots.live[i]
        if slots.open[slot] > 0 and generating(world, slot):
            wait_for(world, slot, WAIT_PHASE)
            waits = True
    return waits


@kernel
def compose_decodes(world, frame):
    """Every slot whose next token can be computed; their number."""
    slots = world[0].slots
    for i in range(slots.live_count):
        slot = slots.live[i]
        if (generating(world, slot) and not pauses(world, slot) and ready(world, frame, slot)
                and room_tokens(world, frame, slot) >= 1):
            add_work(world, frame, slot, 1, 1)
    return world[0].frames.lane_count[frame]


@kernel
def find_restoring(world):
    """The largest variant that copies snapshots, or the pages of shifted views."""
    programs, best = world[0].programs, NO_ROW
    stateful = world[0].settings.stateful
    for row in range(programs.program_count):
        fits = programs.restores[row] == 1 if stateful == 1 else programs.copies[row] == 1
        if programs.operation[row] == OP_RESTORE and fits and (
                best == NO_ROW or programs.batch[row] > programs.batch[best]):
            best = row
    return best


@kernel
def add_restored(world, frame, slot):
    """A lane that copies a snapshot into the slot's state rows and its page that is not complete,
    or pages for shifted views; False where there is no room for those."""
    frames, slots = world[0].frames, world[0].slots
    windowed = slots.window_end[slot] - slots.window_uploaded[slot] + 1
    if (not has_room(world, frame, slot) or windowed > frames.window_room[frame]
            or slots.copying[slot] > frames.copy_room[frame]):
        return False
    frames.window_room[frame] -= windowed
    frames.copy_room[frame] -= slots.copying[slot]
    world[0].lanes.restore[frame, frames.lane_count[frame]] = slots.restore[slot]
    add_work(world, frame, slot, 0, 0)
    slots.restore[slot] = NO_ROW
    slots.state[slot] = SLOT_PREFILL
    return True


@kernel
def add_closing(world, frame, slot):
    """A lane that writes the snapshot of an answer, ended or paused, if a row can be had; False
    where there is no room."""
    slots = world[0].slots
    if not has_room(world, frame, slot):
        return False
    paused = slots.closing[slot] == CLOSING_PAUSED
    row = choose_snapshot(
        world, slot, CAUSE_ANSWER if paused else CAUSE_TURN, slots.scheduled[slot])
    slots.closing[slot] = CLOSING_KEPT if paused else CLOSING_DONE
    if row != NO_ROW:
        world[0].lanes.snapshot[frame, world[0].frames.lane_count[frame]] = row
        add_work(world, frame, slot, 0, 0)
    return True


@kernel
def compose_restores(world, frame):
    """Slots whose histories begin with a snapshot or copied pages, and answers that become one; the
    program, or NO_ROW."""
    frames, slots = world[0].frames, world[0].slots
    program = NO_ROW
    for i in range(slots.live_count):
        slot = slots.live[i]
        paused = (slots.closing[slot] == CLOSING_PAUSED and slots.state[slot] == SLOT_DECODE
                  and slots.in_flight[slot] == 0)
        if (slots.state[slot] != SLOT_COPIES and slots.closing[slot] != CLOSING_WAITS
                and not paused):
            continue
        if program == NO_ROW:
            program = find_restoring(world)
            assert program != NO_ROW, "programs: no variant copies snapshots"
        if frames.lane_count[frame] == world[0].programs.batch[program]:
            break
        restoring = slots.state[slot] == SLOT_COPIES
        if restoring and not add_restored(world, frame, slot):
            break
        if not restoring and not add_closing(world, frame, slot):
            break
    return program if frames.lane_count[frame] > 0 else NO_ROW


@kernel
def next_boundary(world, row, start, end):
    """The first boundary of a prompt behind `start` and up to `end` that a snapshot can be taken
    at, or 0: without storage for pages that are not complete, it is moved to a page boundary."""
    requests, settings = world[0].requests, world[0].settings
    for i in range(requests.boundary_count[row]):
        endpoint = requests.boundaries[row, i]
        if settings.partial == 0:
            endpoint = endpoint // settings.page_tokens * settings.page_tokens
        if start < endpoint <= end and span_at(world, row, endpoint) < 0:
            return endpoint
    return 0


@kernel
def cut_chunk(world, slot, chunk):
    """(tokens, cause): a prompt's chunk up to where a snapshot is wanted, and why; -1: none is.

    Candidates are the prompt's own boundaries, the last page boundary with a token behind it, where
    the same prompt can go on, the end of the prompt, and the ends of chunks, which are moved to
    page boundaries. None lies inside a span."""
    slots, settings, row = world[0].slots, world[0].settings, world[0].slots.request[slot]
    start, tokens = slots.scheduled[slot], settings.page_tokens
    end, last = start + chunk, slots.prefill_end[slot]
    declared = next_boundary(world, row, start, min(end, last - 1))
    if declared > 0 and wanted(world, CAUSE_BOUNDARY):
        return declared - start, CAUSE_BOUNDARY
    boundary = (last - 1) // tokens * tokens
    if (end == last and start < boundary and span_at(world, row, boundary) < 0
            and wanted(world, CAUSE_PAGE)):
        return boundary - start, CAUSE_PAGE
    if end == last:
        exact = settings.partial == 1 or end % tokens == 0
        return chunk, CAUSE_PROMPT if exact and wanted(world, CAUSE_PROMPT) else -1
    if end // tokens * tokens <= start or span_at(world, row, end // tokens * tokens) >= 0:
        return chunk, -1
    return end // tokens * tokens - start, CAUSE_PAGE if wanted(world, CAUSE_PAGE) else -1


@kernel
def compose_prompts(world, frame, budget):
    """Prompts that end in this frame, then one chunk of the next, since lanes that sample come
    first. In admission order: a prompt that finds no room lets none pass."""
    slots = world[0].slots
    for i in range(slots.live_count):
        slot = slots.live[i]
        if slots.state[slot] != SLOT_PREFILL or scores_due(world, slot) > 0:
            continue
        rest = slots.prefill_end[slot] - slots.scheduled[slot]
        chunk = min(min(rest, budget), room_tokens(world, frame, slot))
        if chunk == rest and not may_sample(world, slot):
            continue
        chunk = whole_spans(world, slots.request[slot], slots.scheduled[slot], max(chunk, 0))
        if chunk <= 0:
            return
        if world[0].settings.snapshot_inline == 1:
            chunk, cause = cut_chunk(world, slot, chunk)
            if cause >= 0:
                world[0].lanes.snapshot[frame, world[0].frames.lane_count[frame]] = (
                    choose_snapshot(world, slot, cause, slots.scheduled[slot] + chunk))
        add_work(world, frame, slot, chunk, 1 if chunk == rest else 0)
        if chunk < rest:
            return
        slots.state[slot] = SLOT_DECODE
        budget -= chunk


@kernel
def compose_scored(world, frame):
    """A chunk of every prompt whose scores are due and that holds none undelivered; the program, or
    NO_ROW."""
    frames, slots, programs = world[0].frames, world[0].slots, world[0].programs
    program = NO_ROW
    for i in range(slots.live_count):
        slot = slots.live[i]
        if (slots.state[slot] != SLOT_PREFILL or slots.in_flight[slot] > 0
                or slots.prompt_score_count[slot] > 0 or scores_due(world, slot) == 0):
            continue
        if program == NO_ROW:
            program = find_program(world, OP_SCORED_PREFILL, 1, 1, 0, 0, 0)
            assert program != NO_ROW, "programs: no scored prefill variant"
        room = min(programs.packed[program] - frames.packed_count[frame],
                   room_tokens(world, frame, slot))
        chunk = max(min(min(scores_due(world, slot), SCORES_MAX), room), 0)
        chunk = whole_spans(world, slots.request[slot], slots.scheduled[slot], chunk)
        if chunk <= 0:
            break
        add_work(world, frame, slot, chunk, 0)
        if frames.lane_count[frame] == programs.batch[program]:
            break
    return program if frames.lane_count[frame] > 0 else NO_ROW


@kernel
def compose_lanes(world, frame, prompts):
    """Decode lanes, then prompts, if there are any; the program that holds them, or NO_ROW without
    lanes."""
    frames = world[0].frames
    if world[0].programs.round_count > 0 and round_in_flight(world):
        return NO_ROW
    decodes = compose_decodes(world, frame)
    if prompts > 0:
        compose_prompts(world, frame, world[0].settings.prefill_tokens - decodes)
    lanes, packed = frames.lane_count[frame], frames.packed_count[frame]
    masked = 1 if frames.constrained_count[frame] > 0 else 0
    if lanes == 0:
        return NO_ROW
    if decodes == lanes:
        program = base_program(world, lanes, masked)
    else:
        program = find_program(
            world, OP_PREFILL if decodes == 0 else OP_MIXED, lanes, packed, 0, 0, masked)
    assert program != NO_ROW, "programs: no variant holds the composed lanes"
    return program


@kernel
def held_by_grammar(world):
    """A constrained token is computed while nothing else is in flight: with a mask READY, nothing
    is composed until the frames in flight have finished, and until answers beside it have their
    masks, too. Those go on together; else each would wait for frames of the others for good."""
    slots, grammars = world[0].slots, world[0].grammars
    if grammars.free_count == grammars.free.shape[0]:
        return False
    waits, held = False, outstanding(world) > 0
    for i in range(slots.live_count):
        slot = slots.live[i]
        row, decodes = slots.grammar[slot], slots.state[slot] == SLOT_DECODE
        if row == NO_ROW or slots.in_flight[slot] > 0:
            continue
        rest = slots.prefill_end[slot] - slots.scheduled[slot]
        if grammars.state[row] == GRAMMAR_READY:
            waits |= decodes or (
                slots.state[slot] == SLOT_PREFILL and rest <= world[0].settings.prefill_tokens)
        elif grammars.state[row] == GRAMMAR_PENDING:
            held |= decodes
    return waits and held


@kernel
def constrained_ready(world):
    """Can a constrained token be computed?"""
    slots, grammars = world[0].slots, world[0].grammars
    if grammars.free_count == grammars.free.shape[0]:
        return False
    for i in range(slots.live_count):
        slot = slots.live[i]
        if slots.grammar[slot] != NO_ROW and generating(world, slot) and may_sample(world, slot):
            return True
    return False


@kernel
def begin_frame(world, frame):
    """An empty frame with all the room there is."""
    frames = world[0].frames
    frames.constrained_count[frame] = 0
    frames.lane_count[frame] = 0
    frames.sampled_count[frame] = 0
    frames.packed_count[frame] = 0
    frames.page_update_count[frame] = 0
    frames.window_update_count[frame] = 0
    frames.page_copy_count[frame] = 0
    frames.window_room[frame] = world[0].settings.page_updates
    frames.copy_room[frame] = world[0].settings.page_updates
    frames.drawn[frame] = 0
    frames.probe[frame] = 0
    frames.page_room[frame] = world[0].pages.free_count
    frames.update_room[frame] = world[0].settings.page_updates


@kernel
def compose_frame(world, frame):
    """Admission first; then a round of what generates, or prompts with one token of each."""
    settings, program = world[0].settings, NO_ROW
    admitted, prompts = count_prompts(world)
    if admitted > 0:
        program = compose_initialize(world, frame)
    if program == NO_ROW and (settings.stateful == 1 or settings.view_pages > 0):
        program = compose_restores(world, frame)
    if program == NO_ROW and prompts > 0:
        program = compose_scored(world, frame)
    if program != NO_ROW:
        return program
    masks = world[0].grammars.positions > 1  # else all lanes go one token on beside a constrained
    if (world[0].programs.round_count > 0 and prompts == 0
            and (masks or not constrained_ready(world))):
        program = compose_round(world, frame)
    else:
        program = compose_lanes(world, frame, prompts)
    if program == NO_ROW and settings.stateful == 1:
        return compose_restores(world, frame)  # of an answer that paused just now: none may be left
    return program


@system(
    reads="settings.* programs.* requests.* grammars.* tokens.ids clock.now_ns",
    writes="frames.* lanes.* slots.state slots.waits slots.restore slots.closing snapshots.* "
           "pages.* windows.* drafts.survival drafts.reach candidates.* programs.probed_ns "
           "counters.*",
)
def compose(world):
    """Fills one free frame a tick; `scheduled` moves in `submit`."""
    frames = world[0].frames
    if held_by_grammar(world):
        world[0].counters.barrier_grammar += 1
        return
    for frame in range(frames.frame_count):
        if frames.state[frame] != FREE:
            continue
        begin_frame(world, frame)
        program = compose_frame(world, frame)
        if program == NO_ROW:
            break
        frames.program[frame] = program
        frames.error[frame] = 0
        frames.state[frame] = FRAME_COMPOSED
        return
    world[0].counters.ticks_idle += 1
