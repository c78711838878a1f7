"""What speculation is worth: acceptance and cost as observed, and the program that they choose.

A lane with acceptance a that offers n drafts emits 1 + a + a^2 + ... + a^n tokens on average. A
program is worth what its cohort emits by its cost. All shares are of 65,536."""

from helios_dod.limits import NO_ROW
from helios_dod.schema import i32, i64, scalar, table
from helios_dod.system import kernel
from helios_dod.terms import (
    COPIED,
    DRAWN,
    KIND_BOTH,
    KIND_COPIED,
    KIND_DRAWN,
    OP_DECODE,
    OP_SPECULATIVE,
)

ONE = 1 << 16
HOPE = ONE // 2  # acceptance before anything is observed
SLOT_SHIFT = 3  # a new observation weighs 1/8 in its slot
PRIOR_SHIFT = 4  # and 1/16 in what new slots begin with
COST_SHIFT = 3
COST_SURE = 2  # observations without which a cost is unknown: the first may be an outlier
COST_MOST = 1 << 33  # ns; products of gain and cost stay below 2**63
MARGIN_SHIFT = 3  # a wide round has to be worth an eighth more, or noise would choose it
PROBE_SHARE = 64  # rounds whose cost is stale take at most this part of the time


@table()
class Drafts:
    """One row. `survival` and `reach` are of the cohort that is being composed."""

    prior: scalar(i32["DRAFT_SOURCES"])  # acceptance that a new slot begins with
    # lanes that would emit at least depth + 1 tokens, on average; and those that may
    survival: scalar(i64["DRAFT_KINDS", "width_max"])
    reach: scalar(i32["DRAFT_KINDS", "width_max"])


@kernel
def learn_acceptance(world, slot, source, offered, accepted):
    """Each accepted draft is a success, and the one behind them, if it was offered, a failure."""
    own, prior = world[0].slots.acceptance, world[0].drafts.prior
    for _ in range(accepted):
        own[slot, source] += (ONE - own[slot, source]) >> SLOT_SHIFT
        prior[source] += (ONE - prior[source]) >> PRIOR_SHIFT
    if accepted < offered:
        own[slot, source] -= own[slot, source] >> SLOT_SHIFT
        prior[source] -= prior[source] >> PRIOR_SHIFT


@kernel
def learn_cost(world, program, drawn, elapsed, now):
    """The first observations count by their least, later ones by an eighth."""
    programs = world[0].programs
    count, cost = programs.observed_count[program, drawn], programs.cost_ns[program, drawn]
    elapsed = min(elapsed, COST_MOST)
    if count == 0 or (count < COST_SURE and elapsed < cost):
        cost = elapsed
    elif count >= COST_SURE:
        cost += (elapsed - cost) >> COST_SHIFT
    programs.cost_ns[program, drawn] = max(cost, 1)
    programs.observed_count[program, drawn] = count + 1
    programs.observed_ns[program, drawn] = now


@kernel
def clear_cohort(world):
    """Begins a survey."""
    world[0].drafts.survival[:] = 0
    world[0].drafts.reach[:] = 0


@kernel
def add_survival(world, kind, acceptance, most):
    """Adds a lane that may emit `most` tokens, its drafts being accepted by `acceptance`."""
    drafts, share = world[0].drafts, ONE
    for depth in range(most):
        drafts.survival[kind, depth] += share
        drafts.reach[kind, depth] += 1
        share = (share * acceptance) >> 16


@kernel
def add_to_cohort(world, slot, most, copies, draws):
    """Adds a slot that may emit `most` tokens and has `copies` candidates. draws: whether a program
    may draw drafts for it."""
    acceptance = world[0].slots.acceptance
    drawn = acceptance[slot, DRAWN] if draws else 0
    add_survival(world, KIND_DRAWN, drawn, most)
    if copies > 0:
        copied = min(most, copies + 1)
        add_survival(world, KIND_COPIED, acceptance[slot, COPIED], copied)
        add_survival(world, KIND_BOTH, acceptance[slot, COPIED], copied)
    else:
        add_survival(world, KIND_COPIED, 0, 1)
        add_survival(world, KIND_BOTH, drawn, most if draws else 1)


@kernel
def gain_of(world, program, kind):
    """Tokens that the cohort emits in a program on average: rows are given to the shorter prefixes
    first."""
    programs, drafts = world[0].programs, world[0].drafts
    gain, rows = 0, 0
    for depth in range(programs.lane_limit[program]):
        lanes = drafts.reach[kind, depth]
        room = programs.packed[program] - rows
        if lanes == 0 or room <= 0:
            break
        share = drafts.survival[kind, depth]
        gain += share if lanes <= room else share * room // lanes
        rows += lanes
    return gain


@kernel
def holds(world, program, lanes, masked):
    """Is this the smallest variant of its kind for so many lanes? masked: 1 if it has to take
    masks."""
    programs = world[0].programs
    smaller = programs.smaller_masked[program] if masked == 1 else programs.smaller[program]
    return (programs.batch[program] >= lanes and programs.packed[program] >= lanes
            and programs.masked[program] >= masked
            and (smaller == NO_ROW or programs.batch[smaller] < lanes
                 or programs.packed[smaller] < lanes))


@kernel
def base_program(world, lanes, masked):
    """One token for each lane: the speculative program of width one, which keeps what wider ones
    need, or else plain decode."""
    programs, host = world[0].programs, world[0].settings.host_pending
    for i in range(programs.round_count):
        row = programs.rounds[i]
        if programs.lane_limit[row] == 1 and holds(world, row, lanes, masked):
            return row
    for row in range(programs.program_count):
        if (programs.operation[row] == OP_DECODE and programs.host_pending[row] == host
                and holds(world, row, lanes, masked)):
            return row
    return NO_ROW


@kernel
def kind_of(world, program, drawn):
    """What the lanes of a speculative program draft in one of its two modes."""
    if world[0].programs.history_input[program] == 0:
        return KIND_DRAWN
    return KIND_BOTH if drawn == 1 else KIND_COPIED


@kernel
def considered(world, program, drawn, lanes, masked):
    """Could a program wider than one emit more than a token a lane in this mode? Most lanes have to
    be able to, else its cost and gain would be those of a round's last lanes."""
    programs, drafts = world[0].programs, world[0].drafts
    if programs.lane_limit[program] < 2 or not holds(world, program, lanes, masked):
        return False
    if 2 * drafts.reach[KIND_DRAWN, programs.lane_limit[program] - 1] < lanes:
        return False
    copied = drafts.reach[KIND_COPIED, 1]
    if drawn == 0:
        return programs.history_input[program] == 1 and copied > 0
    return programs.history_input[program] == 0 or copied < drafts.reach[KIND_BOTH, 1]


@kernel
def probed(world, best, best_drawn, program, drawn, since):
    """(program, mode): the other choice, or the one observed longer ago if it is not the best."""
    if program == best and drawn == best_drawn:
        return False
    return world[0].programs.observed_ns[program, drawn] < since


@kernel
def choose_round(world, lanes, masked):
    """(program, 1 if it draws, 1 if it is chosen for the sake of its cost) for a surveyed cohort.
    masked: 1 if a lane is constrained.

    A cost that is not known is observed first. Then the best rate wins, but now and then the choice
    that was observed longest ago is tried, so that a change is noticed."""
    programs, now = world[0].programs, world[0].clock.now_ns
    best, best_drawn, best_gain = base_program(world, lanes, masked), 0, lanes * ONE
    base, least = best, programs.cost_ns[best, 0]  # no wider round costs less, if it seems to
    best_cost = least - (least >> MARGIN_SHIFT)
    if programs.observed_count[base, 0] < COST_SURE:
        return base, 0, 1
    for i in range(programs.round_count):
        row = programs.rounds[i]
        for drawn in range(2):
            if not considered(world, row, drawn, lanes, masked):
                continue
            gain = gain_of(world, row, kind_of(world, row, drawn))
            if programs.observed_count[row, drawn] < COST_SURE:
                if gain > lanes * ONE:
                    return row, drawn, 1
                continue
            cost = max(programs.cost_ns[row, drawn], least)
            if gain * best_cost > best_gain * cost:
                best, best_drawn, best_gain, best_cost = row, drawn, gain, cost
    oldest, oldest_drawn = stalest(world, lanes, masked, base, best, best_drawn)
    if oldest != NO_ROW and now - programs.probed_ns > (
            PROBE_SHARE * programs.cost_ns[oldest, oldest_drawn]):
        return oldest, oldest_drawn, 1
    return best, best_drawn, 0


@kernel
def stalest(world, lanes, masked, base, best, best_drawn):
    """The choice, other than the best, that was observed longest ago; or NO_ROW."""
    programs = world[0].programs
    found, found_drawn, since = NO_ROW, 0, world[0].clock.now_ns
    if probed(world, best, best_drawn, base, 0, since):
        found, since = base, programs.observed_ns[base, 0]
    for i in range(programs.round_count):
        row = programs.rounds[i]
        for drawn in range(2):
            if considered(world, row, drawn, lanes, masked) and probed(
                    world, best, best_drawn, row, drawn, since):
                found, found_drawn, since = row, drawn, programs.observed_ns[row, drawn]
    return found, found_drawn


@kernel
def is_round(world, program):
    """Is it a speculative program?"""
    return world[0].programs.operation[program] == OP_SPECULATIVE
