"""The deterministic simulator: the shipped tick over a virtual device and clock.

A seed decides everything: arrivals, lengths, cancels, deadlines, how lazily the reader drains.
After every system invariants and the write-set are checked; every finished answer is compared with
the oracle. `python -m helios_dod.simulation --seed N --ticks N` replays a seed and prints its
digest last.
"""

import mmap
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from helios_dod.contract.decode import decode
from helios_dod.contract.prepared import PreparedContract
from helios_dod.edges import Edge, Submission, row_words
from helios_dod.engine import Engine
from helios_dod.executors.costs import FixedCost
from helios_dod.executors.simulated import (
    CopyCost,
    SimulatedExecutor,
    VirtualClock,
    expected_scores,
    expected_tokens,
)
from helios_dod.limits import FRAMES_MAX, MASK_BITS, TOKEN_BLOCK
from helios_dod.runtime.binding import bind, staging_layout
from helios_dod.runtime.selection import Options, Selection, choose, choose_windowed
from helios_dod.schedule import TICK
from helios_dod.simulation.contents import Contents
from helios_dod.simulation.cuts import random_cuts
from helios_dod.simulation.invariants import check_quiet, require
from helios_dod.simulation.kinds import PLAIN, Kinds, swarm_kinds
from helios_dod.simulation.programs import Round, rounds_of, simulated_core
from helios_dod.simulation.stand_in import NO_GRAMMAR, StandIn, automaton_of, random_grammar
from helios_dod.simulation.stop_oracle import (
    PIECES,
    SPECIAL,
    ending,
    piece_table,
    random_stops,
    text_of,
)
from helios_dod.simulation.watch import Watch
from helios_dod.systems.accept import accept
from helios_dod.tables.pieces import install_pieces
from helios_dod.terms import (
    EGRESS_FINISHED,
    EGRESS_REJECTED,
    EGRESS_SCORE,
    EGRESS_TOKEN,
    FINISH_CANCELLED,
    FINISH_DEADLINE,
    FINISH_GRAMMAR,
)
from helios_dod.world import boot, digest, fill_windows

PAGE_BYTES = 128  # shadow records of 16 tokens, as capacities are counted
WORD_BYTES = 8
TURNS_TOKENS = 150  # of a text that another goes on behind


@dataclass(frozen=True)
class Workload:
    """Probabilities and sizes of one seed (a swarm draws them)."""

    arrival: float = 0.5  # a new request a tick
    cancel: float = 0.02  # of one live request a tick
    deadline: float = 0.05  # share of requests with a deadline
    stops: float = 0.2  # share of requests with stop strings, ids or sequences
    ignore_eos: float = 0.3
    shared: float = 0.5  # share of requests that begin like an earlier one
    turns: float = 0.3  # share of those that go on behind one of the newest texts, or repeat it
    timed: float = 0.2  # share of requests whose tokens are timed
    scored: float = 0.2  # share of requests whose prompt is scored
    cuts: float = 0.2  # share of requests with atomic spans and boundaries
    grammar: float = 0.2  # share of constrained requests
    salted: float = 0.1  # share of requests with a cache salt
    oversize: float = 0.02  # share of requests that exceed the context
    drain: float = 0.7  # the reader empties its egress ring this tick
    prompt_max: int = 60
    output_max: int = 40
    priority_max: int = 2
    memory_pages: int = 0  # of host memory behind the device
    disk_pages: int = 0
    copy_failure: float = 0.0  # share of copies that fail
    copy_late: float = 0.0  # share of copies that are late
    copy_ns: int = 200  # a page between device and memory; the disk takes four times as long


def swarm(rng: random.Random) -> Workload:
    """A workload whose every knob is drawn, extremes included."""
    pick = rng.choice
    return Workload(
        arrival=pick((0.05, 0.3, 1.0)), cancel=pick((0.0, 0.02, 0.3)), deadline=pick((0.0, 0.2)),
        stops=pick((0.0, 0.3)), ignore_eos=pick((0.0, 1.0, 0.5)), drain=pick((0.05, 0.5, 1.0)),
        shared=pick((0.0, 0.5, 1.0)), salted=pick((0.0, 0.3)), turns=pick((0.0, 0.3, 1.0)),
        cuts=pick((0.0, 0.5)),
        timed=pick((0.0, 0.3, 1.0)), scored=pick((0.0, 0.3)), grammar=pick((0.0, 0.3, 1.0)),
        prompt_max=pick((1, 17, 60, 200)), output_max=pick((1, 8, 60)), priority_max=pick((0, 3)),
        memory_pages=pick((0, 1, 4, 12)), disk_pages=pick((0, 1, 4, 12)),
        copy_failure=pick((0.0, 0.1, 0.5)), copy_late=pick((0.0, 0.2)), copy_ns=pick((100, 3000)))


def deepen(load: Workload, seed: int) -> tuple[Workload, Kinds]:
    """A seed's workload and kinds of history. Half of those with windows are drawn closer: texts
    that go on behind each other, and more snapshots than the device and memory hold windows of.
    Else hardly any window goes to disk, comes back or is not worth its way back."""
    kinds = swarm_kinds(random.Random(f"kinds of {seed}"))
    pick = random.Random(f"windows of {seed}").choice
    if kinds.window == 0 or pick((False, True)):
        return load, kinds
    load = replace(
        load, arrival=pick((0.3, 1.0)), cancel=min(load.cancel, 0.02), shared=1.0,
        turns=pick((0.3, 0.6)), salted=0.0, prompt_max=60, memory_pages=pick((1, 2, 4)),
        disk_pages=pick((4, 12)), copy_failure=min(load.copy_failure, 0.1))
    return load, replace(kinds, window=30, snapshots=8, spare=1)


@dataclass(frozen=True)
class Drafting:
    """How speculative the simulated core is."""

    width: int = 0  # of the widest program; 0: no speculation
    accept: int = 60  # per cent of the drafts that are right
    history: bool = False  # drafts are copied from a request's own text
    masks: bool = True  # programs that take copies take grammar masks
    cursor_lag: int | None = None  # None: no draft cursor is reported
    refuse: float = 0.0  # speculative programs whose cohort a rank rejects
    rounds: tuple[Round, ...] | None = None  # None: one of each sort, up to the width


def swarm_drafting(rng: random.Random) -> Drafting:
    """Knobs of speculation, extremes included."""
    pick = rng.choice
    return Drafting(width=pick((0, 2, 4)), accept=pick((0, 50, 90, 100)),
                    history=pick((False, True)), cursor_lag=pick((None, 0, 1, 5)),
                    refuse=pick((0.0, 0.1)))


@dataclass
class Live:
    """What the simulator knows of a request that it sent."""

    submission: Submission
    tokens: list[int]
    cancelled: bool = False
    shown: int = 0  # tokens that were released
    text: int = 0  # bytes of text that were released
    scores: list[float] = field(default_factory=list)
    completed_ns: int = 0  # of the newest token


class Simulator:
    """One world, one virtual device, one reader."""

    def __init__(self, seed: int, walked: bool = True, size: str = "TEST_MIN", frames: int = 2,
                 host_pending: bool = False, lanes: int = 3, packed: int = 16, context: int = 512,
                 vocabulary: int = 50, pages: int = 24, workload: Workload | None = None,
                 drafting: Drafting | None = None, kinds: Kinds | None = None,
                 contents: bool = False) -> None:
        """contents: all that the device holds is judged after every tick, too."""
        self.rng = random.Random(seed)
        self.stops_rng = random.Random(f"stops of {seed}")
        self.turns_rng = random.Random(f"turns of {seed}")
        self.cuts_rng = random.Random(f"cuts of {seed}")
        load = workload or swarm(self.rng)
        if kinds is None:
            plain = workload is not None or drafting is not None
            load, kinds = (load, PLAIN) if plain else deepen(load, seed)
        self.kinds, self.workload = kinds, load
        self.walked, self.vocabulary = walked, vocabulary
        if drafting is None:  # part of the swarm, unless a test asks for its own load
            rng = random.Random(f"drafting of {seed}") if kinds.others else self.rng
            drafting = Drafting() if workload else swarm_drafting(rng)
        self.drafting = drafting
        rounds = self.drafting.rounds
        if rounds is None:
            masks = -(-vocabulary // MASK_BITS) if drafting.masks else 0
            rounds = rounds_of(lanes, drafting.width, masks) if drafting.width else ()
        manifest, serving = simulated_core(vocabulary, context, 16, lanes, packed, rounds,
                                           self.drafting.cursor_lag if rounds else None, kinds)
        contract = decode(serving, manifest)
        memory_bytes, disk_bytes = self.tiers(contract)
        widest = max(program.width for program in contract.programs)
        windowed, _ = choose_windowed(contract, lanes, context, packed, widest, kinds.snapshots)
        cache_bytes = pages * PAGE_BYTES + windowed * contract.cache.windowed_page_bytes
        options = Options(
            size=size, frames=frames, host_pending=host_pending, cache_bytes=cache_bytes,
            snapshots=kinds.snapshots or None, offload_bytes=memory_bytes, disk_bytes=disk_bytes,
            disk_folder=Path() if disk_bytes else None,
            history_drafting=self.drafting.history and bool(rounds))
        selection = choose(
            contract, PAGE_BYTES, lambda geometry: staging_layout(contract, geometry)[1], options)
        self.limits = selection.limits
        self.world = boot(self.limits)
        first = bind(self.world, contract, selection)
        if kinds.spare:
            self.narrow(lanes, packed, widest, selection)
        grammars = self.world[0]["grammars"]  # as of a core whose rounds under masks have fewer
        grammars["drafted_rows"] = min(grammars["drafted_rows"], self.limits.drafted_max)
        self.strip = bool(seed % 2)
        install_pieces(self.world, *piece_table(), self.strip)
        self.clock = VirtualClock(1)
        self.executor = SimulatedExecutor(contract, self.clock, FixedCost(1000, 10),
                                          self.drafting.accept)
        self.executor.load(manifest, selection.geometry, {}, first, self.world)
        if selection.memory_pages:
            words = (selection.disk_pages * self.executor.page_words
                     + selection.window_stored * (1 + contract.cache.page_tokens))
            disk = mmap.mmap(-1, words * WORD_BYTES) if words else None
            self.executor.back(
                selection.memory_pages, disk, selection.window_places, selection.window_stored)
        self.executor.copy_cost = CopyCost(self.workload.copy_ns, 4 * self.workload.copy_ns)
        self.executor.fault = self.fault
        self.worker = StandIn(self.world, vocabulary)
        self.engine = Engine(self.world, self.executor, self.clock, self.worker)
        self.edge = Edge(self.world, 0)
        self.watch = Watch(self.world)
        self.contents = Contents(self.world, self.executor, kinds) if contents else None
        self.live: dict[int, Live] = {}
        self.next_tag, self.finished, self.rejected = 1, 0, 0
        self.reasons: Counter[int] = Counter()
        self.texts: list[list[int]] = []  # recent prompts with their answers
        self.fill = selection.context_tokens
        self.longest = int(self.world[0]["settings"]["span_tokens"])

    def narrow(self, lanes: int, packed: int, widest: int, selection: Selection) -> None:
        """Leaves no more windowed pages beside those that slots can hold at once than `spare`."""
        windows, tokens = self.world[0]["windows"], int(self.world[0]["settings"]["page_tokens"])
        spare = min(self.kinds.spare, int(windows["moving_max"]))
        held = (self.kinds.window + FRAMES_MAX * widest) // tokens + 2
        pages = lanes * held + 2 * -(-packed // tokens) + spare
        if self.kinds.window and pages <= windows["page_count"]:
            fill_windows(windows, pages, selection.window_places, selection.window_stored)
            windows["moving_max"] = spare

    def tiers(self, contract: PreparedContract) -> tuple[int | None, int | None]:
        """Bytes of the workload's tiers, and as many windowed pages in each as others, though no
        more than snapshots have; there is no disk without host memory."""
        memory, disk = self.workload.memory_pages, self.workload.disk_pages
        cache = contract.cache
        held = contract.snapshots * -(-cache.window_tokens // cache.page_tokens)
        size, disk = cache.windowed_page_bytes, disk if memory else 0
        places = min(held, memory)
        stored = min(held - places, disk)
        return (memory * PAGE_BYTES + places * size or None,
                disk * PAGE_BYTES + stored * size or None)

    def fault(self) -> tuple[bool, int]:
        """What happens to the next copy: it fails, and so many nanoseconds it is late."""
        late = self.rng.random() < self.workload.copy_late
        failed = self.rng.random() < self.workload.copy_failure
        return failed, self.rng.randint(1, 100_000) if late else 0

    def request(self) -> Submission:
        """A random request; some are too long, so that rejection is exercised."""
        rng, load = self.rng, self.workload
        count = rng.randint(1, load.prompt_max)
        limit = rng.randint(1, load.output_max)
        if rng.random() < load.oversize:
            limit = self.fill
        eos = () if rng.random() < load.ignore_eos else (0, 1)
        deadline = self.clock.now_ns + rng.randint(0, 60_000) if rng.random() < load.deadline else 0
        prompt = np.array(self.prompt(count), np.int32)
        scored = rng.random() < load.scored
        submission = Submission(
            tag=self.next_tag, prompt=prompt, output_limit=limit,
            output_minimum=rng.choice((0, 0, 3)), seed=rng.getrandbits(64),
            salt=int(rng.random() < load.salted), eos=eos,
            deadline_ns=deadline, priority=rng.randint(0, load.priority_max),
            timed=rng.random() < load.timed, scored=scored,
            grammar=random_grammar(rng, load.grammar),
            **random_cuts(self.cuts_rng, len(prompt) - scored, self.longest, load.cuts),
            **random_stops(self.stops_rng, self.vocabulary, load.stops))
        if row_words(submission) > self.world[0]["requests"]["blocks"].shape[1] * TOKEN_BLOCK:
            return replace(submission, grammar=b"")  # with it the edge would refuse
        return submission

    def prompt(self, count: int) -> list[int]:
        """`count` random tokens, or an earlier text continued."""
        rng = self.rng
        tail = [rng.randrange(self.vocabulary) for _ in range(count)]
        if not self.texts or rng.random() >= self.workload.shared:
            return tail
        if self.turns_rng.random() < self.workload.turns:
            kept = [*self.turns_rng.choice(self.texts[-3:])[:TURNS_TOKENS], *tail]
            return kept[: self.turns_rng.randint(max(len(kept) - count, 1), len(kept))]
        text = rng.choice(self.texts)
        return text[: rng.randint(1, len(text))] + tail[: rng.randint(0, count)]

    def send(self, arrivals: bool) -> None:
        """This tick's arrivals and cancels."""
        if arrivals and self.rng.random() < self.workload.arrival:
            submission = self.request()
            if self.edge.submit(submission):
                self.live[submission.tag] = Live(submission, [])
                self.next_tag += 1
        if self.live and self.rng.random() < self.workload.cancel:
            tag = self.rng.choice(sorted(self.live))
            if self.edge.cancel(tag):
                self.live[tag].cancelled = True

    def read(self) -> None:
        """Drains the egress ring and judges every finished answer."""
        for event in self.edge.events().copy():
            live = self.live[int(event["tag"])]
            if event["kind"] == EGRESS_TOKEN:
                require(int(event["index"]) == len(live.tokens), f"egress: index {event['index']}")
                self.time(live, int(event["completed_ns"]))
                live.tokens.append(int(event["token"]))
                self.release(live, int(event["shown"]), int(event["text"]))
            elif event["kind"] == EGRESS_SCORE:
                live.scores.append(float(event["logprob"]))
                require(int(event["index"]) == len(live.scores), f"egress: score {event['index']}")
            elif event["kind"] == EGRESS_REJECTED:
                require(int(event["value"]) > int(event["limit"]),
                        "egress: rejection without cause")
                self.rejected += 1
                del self.live[int(event["tag"])]
            else:
                require(event["kind"] == EGRESS_FINISHED, f"egress: kind {event['kind']}")
                self.judge(live, int(event["reason"]), int(event["index"]),
                           (int(event["shown"]), int(event["text"])), int(event["token"]))
                self.finished += 1
                del self.live[int(event["tag"])]

    def time(self, live: Live, completed_ns: int) -> None:
        """A timed token's stamps are in order, and none lies in the future."""
        if not live.submission.timed:
            require(completed_ns == 0, f"tag {live.submission.tag}: a time that was not asked for")
            return
        require(max(live.completed_ns, 1) <= completed_ns <= self.clock.now_ns,
                f"tag {live.submission.tag}: completed at {completed_ns} after {live.completed_ns}")
        live.completed_ns = completed_ns

    def release(self, live: Live, shown: int, text: int) -> None:
        """What a frontend may show after one more token; it never shrinks."""
        live.shown = max(live.shown, min(shown, len(live.tokens)))
        if live.submission.stop_strings:
            visible = text_of(live.tokens[: live.shown], PIECES, range(SPECIAL), self.strip)
            live.text = max(live.text, min(text, len(visible)))

    def judge(self, live: Live, reason: int, count: int, bounds: tuple[int, int],
              which: int) -> None:
        """Tokens and finish reason against the oracle; a cut answer must be a prefix of it."""
        s = live.submission
        grammar = automaton_of(s.grammar, self.vocabulary)
        drawn = [] if s.grammar == NO_GRAMMAR else expected_tokens(
            s.prompt.tolist(), s.seed, self.vocabulary, s.output_limit, s.output_minimum, s.eos,
            grammar)
        broken = s.grammar == NO_GRAMMAR or (grammar is not None and grammar.failed)
        end = ending(s, drawn, PIECES, range(SPECIAL), self.strip, broken)
        require(count == len(live.tokens),
                f"egress: {count} tokens announced, {len(live.tokens)} sent")
        scores = expected_scores(s.prompt.tolist()) if s.scored else []
        cut = reason in (FINISH_CANCELLED, FINISH_DEADLINE, FINISH_GRAMMAR)
        whole = len(live.scores) if cut else len(scores)
        require(live.scores == scores[:whole], f"tag {s.tag}: prompt scores differ")
        require(live.shown <= end.shown and live.text <= end.text,
                f"tag {s.tag}: {live.shown} tokens and {live.text} bytes were shown of {end}")
        if reason in (FINISH_CANCELLED, FINISH_DEADLINE):
            require(live.cancelled or s.deadline_ns > 0,
                    f"finish {reason} of an ordinary request")
            require(live.tokens == end.tokens[:count], f"tag {s.tag}: {live.tokens} not a prefix")
            return
        self.texts = [*self.texts[-19:], s.prompt.tolist() + live.tokens[:40]]
        require(live.tokens == end.tokens, f"tag {s.tag}: got {live.tokens}, expected {end}")
        require((reason, *bounds) == (end.reason, end.shown, end.text) or (
            reason == end.reason == FINISH_GRAMMAR),
                f"tag {s.tag}: finish {reason} at {bounds}, expected {end}")
        require(end.which in (-1, which), f"tag {s.tag}: stop {which}, expected {end}")
        self.reasons[reason] += 1

    def walk(self) -> None:
        """One tick, system by system, with invariants and write-sets; then the engine's launch."""
        self.engine.begin()
        self.watch.after(None)
        for system in TICK:
            system.run(self.world)
            self.watch.after(system)
            if system is accept and self.world[0]["clock"]["observed"]:
                self.engine.stamp()
                self.watch.after(None)
        self.engine.launch()

    def tick(self, arrivals: bool = True) -> None:
        """Sends, ticks, reads; time passes to the next fence when nothing else can happen."""
        self.send(arrivals)
        if self.walked:
            self.walk()
        else:
            self.engine.step()
        if self.contents is not None:
            self.contents.check()
        if self.rng.random() < self.workload.drain:
            self.read()
        self.worker.work(self.rng)
        if self.drafting.refuse and self.rng.random() < self.drafting.refuse:
            self.executor.refusals = 1
        end = self.executor.next_end()
        if end is not None and self.rng.random() < 0.7:
            self.clock.now_ns = max(self.clock.now_ns, end)
        else:
            self.clock.now_ns += self.rng.randint(1, 2000)

    def run(self, ticks: int) -> str:
        """Safety phase of `ticks`, then liveness: all work ends and all is free. The digest.

        An idle engine may still begin a copy to disk, when a later look at its pages finds one to
        drop there; then liveness goes on until that ends."""
        for _ in range(ticks):
            self.tick()
        for _ in range(200_000):
            rested = not self.live and self.engine.idle()
            self.tick(arrivals=False)
            if rested and self.engine.idle():
                break
            self.read()
        require(not self.live, f"liveness: {len(self.live)} requests never ended")
        check_quiet(self.world)
        self.worker.check_quiet()
        return digest(self.world)
