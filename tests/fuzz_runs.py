"""python -m tests.fuzz_runs: cores at odds with themselves that are run, not only read.

Mutants of the manifest and the contract of small cores that compute: other buffers, columns,
shapes, types, sources, offsets, extents, attributes, and operations put in between. What the
contract does not refuse is loaded on the host executor and answers requests, in a child process, so
that the end of the child is one failure and not that of the fuzzer. Its buffers end at pages that
nobody may touch, and what lies around them must not have changed.

A mutant is refused by name, or runs: wrong answers are its own affair. The death of the child, a
hang, changed memory, or any other exception is a failure, printed with the command that replays it.
"""

import argparse
import ctypes
import mmap
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from helios_dod.contract.decode import decode
from helios_dod.contract.operations import BY_NUMBER, OPERATIONS
from helios_dod.contract.states import derive_views
from helios_dod.contract.uses import BodyUses
from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.errors import UserError
from helios_dod.executors.base import DeviceError
from helios_dod.executors.host import buffers
from helios_dod.executors.host.executor import HostExecutor
from helios_dod.limits import SIZES
from helios_dod.schedule import TICK
from helios_dod.world import boot
from tests.fuzz_cores import mutate_field, pick

PAGE = mmap.PAGESIZE
SIZE = "SMALL"  # of the worlds that mutants run in
MARK = 0xA5
COMPILE_S = 3600.0  # of processor that the child may take before its first word
HANG_S = 240.0  # of processor between two words
LOOK_S = 1.0
LOOKS_MAX = 240  # between two words that find the whole child asleep
STEPS_MAX = 400  # ticks of one mutant
NUMBERS = (0, 1, 2, 3, 7, 8, 15, 16, 17, 32, 64, 100, 255, 4096, 2**20, 2**31 - 1, 2**32 - 1)
OFFSETS = (1, -1, 2, 7, 1000, 2**20, 2**31 - 1, -2**31)
SHAPES = (wire.LANES, wire.PACKED, wire.SLOTS, wire.LOGIT_ROWS, wire.STATE_ROWS,
          wire.SNAPSHOT_ROWS, wire.UPDATES, wire.SYMBOL_UNSPECIFIED)


class Guarded:
    """Memory as buffers.aligned_zeros gives it, between pages that fault."""

    def __init__(self):
        self.library = ctypes.CDLL(None, use_errno=True)
        self.given = []

    def zeros(self, nbytes):
        room = nbytes + buffers.SLACK + buffers.ALIGN
        whole = -(-room // PAGE) * PAGE
        region = mmap.mmap(-1, whole + 2 * PAGE)
        raw = np.frombuffer(region, np.uint8)
        for at in (0, whole + PAGE):
            failed = self.library.mprotect(
                ctypes.c_void_p(raw.ctypes.data + at), ctypes.c_size_t(PAGE), 0)
            assert failed == 0, "mprotect"
        inside = raw[PAGE : PAGE + whole]
        start = (whole - buffers.SLACK - nbytes) // buffers.ALIGN * buffers.ALIGN
        inside[:start], inside[start + nbytes :] = MARK, MARK
        self.given.append((inside, start, start + nbytes))
        return inside[start : start + nbytes]

    def changed(self):
        """Whether something was written around what was given."""
        return any((inside[:first] != MARK).any() or (inside[end:] != MARK).any()
                   for inside, first, end in self.given)


def honest_cores(folder):
    """A hybrid of recurrent and attention layers, a model that drafts, one with a window."""
    from helios_dod.cores.reader import open_core
    from helios_dod.cores.writer import Publisher, write_core
    from helios_dod.ignition.preparation.options import Options as Preparation
    from helios_dod.ignition.recipes import prepare
    from tests.fuzz_cores import KEY
    from tests.hybrid_core import prepare_hybrid
    from tests.ignition_fixtures import opened

    small = {"cache": "f32", "lanes": 4, "packed": (16, 32), "scored": 16}
    made = {
        "hybrid": prepare_hybrid(3, widths=(2,)),
        "drafting": prepare(opened("llama2"), Preparation(**small, widths=(2, 4), draft_layers=1)),
        "plain": prepare(opened("gpt2"), Preparation(**small)),
    }
    for name, prepared in made.items():
        write_core(prepared, folder / name, Publisher(KEY, "tests"))
    return [open_core(folder / name) for name in made]


def places_of(manifest):
    """(body, index) of every operation."""
    return [(body, i) for body in manifest.host_bodies for i in range(len(body.operations))]


def fitting(manifest, touch, rng):
    """A buffer that a touch may name, by kind and mostly by type."""
    kinds = {"weight": (wire.WEIGHT,), "matrix": (wire.WEIGHT,), "table": (wire.WEIGHT,),
             "cache": (wire.CACHE,), "store": (wire.CACHE,),
             "read": (wire.STATE, wire.SCRATCH, wire.STAGING),
             "index": (wire.STATE, wire.SCRATCH, wire.STAGING)}.get(
                 touch.role, (wire.STATE, wire.SCRATCH))
    dtype = {"f32": wire.F32, "i32": wire.I32, "u32": wire.U32}.get(touch.type)
    found = [i for i, buffer in enumerate(manifest.buffers) if buffer.kind in kinds
             and (dtype in (None, buffer.dtype) or rng.random() < 0.02)]
    return rng.choice(found or [0])


def width_of(buffer):
    return int(np.prod([axis.multiplier for axis in buffer.shape[1:]], dtype=np.int64))


def operand_lie(serving, manifest, rng):
    """Another buffer, or other columns, for an operand."""
    body, at = rng.choice(places_of(manifest))
    name = body.operations[at].WhichOneof("operation")
    part = getattr(body.operations[at], name)
    touch = rng.choice(OPERATIONS[name])
    number = fitting(manifest, touch, rng)
    if touch.role in BY_NUMBER:
        setattr(part, touch.field, number)
        return
    operand = getattr(part, touch.field)
    width = operand.columns or width_of(manifest.buffers[operand.buffer])
    if rng.random() < 0.7:
        operand.buffer = number
    if rng.random() < 0.5:
        wide = width_of(manifest.buffers[operand.buffer])
        operand.columns = rng.choice((0, 1, min(width, wide), rng.randrange(wide + 1)))
        operand.column = rng.choice((0, rng.randrange(max(wide - operand.columns, 0) + 1)))


def shape_lie(serving, manifest, rng):
    """Another axis or type of a buffer."""
    buffer = rng.choice([b for b in manifest.buffers if b.kind != wire.WEIGHT])
    kind, axis = rng.randrange(4), rng.choice(buffer.shape)
    if kind == 0:
        buffer.shape[0].symbol = rng.choice(SHAPES)
    elif kind == 1:
        axis.multiplier = max(1, rng.choice((axis.multiplier - 1, axis.multiplier + 1, 1, 2, 64)))
    elif kind == 2:
        buffer.dtype = rng.randrange(1, 10)
    else:
        buffer.kind = rng.choice((wire.STATE, wire.SCRATCH, wire.STAGING))


def source_lie(serving, manifest, rng):
    """Another source, offset, constant or mode of a binding, in every graph that has it."""
    chosen = rng.choice(rng.choice(serving.model.graphs).bindings)
    kind, everywhere = rng.randrange(4), rng.random() < 0.7
    source = rng.choice(contract.ValueSource.values()[1:])
    offset, constant = rng.choice(OFFSETS), rng.choice((*NUMBERS[:-1], -1, -7, -2**31))
    number, indexing = chosen.buffer, rng.randrange(1, 6)
    for graph in serving.model.graphs:
        for binding in graph.bindings:
            if binding.buffer != number or not (everywhere or binding is chosen):
                continue
            if kind == 0:
                binding.source = source
            elif kind == 1:
                binding.offset = offset
            elif kind == 2:
                binding.source, binding.constant = contract.CONSTANT, constant
            else:
                binding.indexing = indexing


def attribute_lie(serving, manifest, rng):
    """A number, a flag or a choice of an operation."""
    body, at = rng.choice(places_of(manifest))
    name = body.operations[at].WhichOneof("operation")
    part = getattr(body.operations[at], name)
    named = {touch.field for touch in OPERATIONS[name]}
    fields = [f for f in part.DESCRIPTOR.fields if f.name not in named]
    if not fields:
        return
    field = rng.choice(fields)
    if field.type == field.TYPE_BOOL:
        setattr(part, field.name, not getattr(part, field.name))
    elif field.type == field.TYPE_FLOAT:
        setattr(part, field.name, rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf"))))
    elif field.type == field.TYPE_ENUM:
        setattr(part, field.name, rng.randrange(5))
    elif field.type == field.TYPE_INT32:
        setattr(part, field.name, rng.choice((*NUMBERS[:-1], -1, -2**31)))
    else:
        old = getattr(part, field.name)
        setattr(part, field.name, rng.choice((*NUMBERS, old + 1, max(old - 1, 0), old * 2)))


def added_operation(serving, manifest, rng):
    """An operation of any kind, with operands of the right kind, somewhere."""
    name = rng.choice(list(OPERATIONS))
    made = wire.HostOperation()
    part = getattr(made, name)
    part.SetInParent()
    for touch in OPERATIONS[name]:
        number = fitting(manifest, touch, rng)
        if touch.role in BY_NUMBER:
            setattr(part, touch.field, number)
            continue
        operand = getattr(part, touch.field)
        operand.buffer = number
        wide = width_of(manifest.buffers[number])
        if touch.columns.isdigit() and rng.random() < 0.9:
            operand.columns = int(touch.columns)
            operand.column = rng.randrange(max(wide - operand.columns, 0) + 1)
    for field in part.DESCRIPTOR.fields:
        if field.type == field.TYPE_ENUM:
            setattr(part, field.name, rng.randrange(1, 5 if field.name == "rows" else 3))
        elif field.name not in {touch.field for touch in OPERATIONS[name]} and (
                field.type in (field.TYPE_UINT32, field.TYPE_INT32)):
            setattr(part, field.name, rng.choice((0, 1, 1, 2, 8, 16)))
    put(rng.choice(manifest.host_bodies), made, rng)


def moved_operation(serving, manifest, rng):
    """An operation twice, left out, or of another body."""
    body, at = rng.choice(places_of(manifest))
    made = wire.HostOperation()
    made.CopyFrom(body.operations[at])
    if rng.random() < 0.4:
        del body.operations[at]
    if rng.random() < 0.7:
        put(rng.choice(manifest.host_bodies), made, rng)


def put(body, operation, rng):
    """Inserts an operation."""
    at = rng.randrange(len(body.operations) + 1)
    behind = [wire.HostOperation.FromString(o.SerializeToString()) for o in body.operations[at:]]
    del body.operations[at:]
    body.operations.append(operation)
    body.operations.extend(behind)


def program_lie(serving, manifest, rng):
    """Other extents, another operation or body of a program."""
    at = rng.randrange(len(manifest.programs))
    program = manifest.programs[at]
    name = rng.choice(("batch_capacity", "packed_token_capacity", "token_capacity", "body",
                       "draft_tokens", "lane_limit", "operation"))
    old = getattr(program, name)
    value = rng.choice((max(old - 1, 0), old + 1, old * 2, 1, rng.randrange(9)))
    if name == "operation":
        value = rng.randrange(1, 10)
        graph = next(g for g in serving.model.graphs if g.program == program.name)
        graph.operation = value
    setattr(program, name, value)


def contract_lie(serving, manifest, rng):
    """Numbers of the contract that operations rely on."""
    kind = rng.randrange(7)
    if kind == 0:
        serving.model.vocabulary = rng.choice((1, serving.model.vocabulary - 1, 2**30))
    elif kind == 1:
        serving.context_tokens = rng.choice((1, 17, 2**20, 2**30))
    elif kind == 2:
        serving.model.cache.page_tokens = rng.choice((1, 8, 16, 32, 64, 65_536))
    elif kind == 3:
        serving.snapshots = rng.choice((0, 1, 64, 2**20))
    elif kind == 4:
        for graph in serving.model.graphs:
            graph.state_rows_per_request = rng.choice((0, 1, 2, 64))
    elif kind == 5:
        table = rng.choice(serving.model.cache.tables)
        table.page_offset, table.page_group = rng.choice((0, 1, 2)), rng.choice((0, 1))
    else:
        mutate_field(pick(serving.model.cache, rng), rng)


def weight_lie(serving, manifest, rng):
    """A weight of another shape with the same bytes, or in other panels."""
    buffer = rng.choice([b for b in manifest.buffers if b.kind == wire.WEIGHT])
    if buffer.HasField("panel") and rng.random() < 0.7:
        mutate_field(buffer.panel, rng)
    elif rng.random() < 0.5:
        mutate_field(buffer, rng)
    else:
        nbytes, item = buffer.resource_nbytes, {wire.F32: 4}.get(buffer.dtype, 1)
        rows = rng.choice((1, 2, 4, 8, 16))
        del buffer.shape[:]
        buffer.shape.add(multiplier=rows)
        buffer.shape.add(multiplier=max(nbytes // item // rows, 1))


LIES = (*[operand_lie] * 4, *[shape_lie] * 2, *[source_lie] * 3, *[attribute_lie] * 2,
        *[added_operation] * 4, moved_operation, program_lie, contract_lie, weight_lie)


def repair(serving, manifest):
    """Lists the states and binds the staging that bodies touch now, so that these agree."""
    uses = BodyUses(manifest)
    known = {binding.buffer: binding for graph in serving.model.graphs
             for binding in graph.bindings}
    for program, graph in zip(manifest.programs, serving.model.graphs, strict=True):
        use = uses.of(program)
        del graph.states[:]
        graph.states.extend(derive_views(manifest, use))
        bound = {binding.buffer for binding in graph.bindings}
        for number in sorted(use.staged - bound):
            if number in known:
                graph.bindings.add().CopyFrom(known[number])


def mutant(core, manifest, seed, number):
    """(what was done, contract, manifest) of one mutant."""
    rng = random.Random(f"{seed}:{number}")
    serving = contract.ServingContract.FromString(core.serving.SerializeToString())
    changed = wire.ExecutionManifest.FromString(manifest.SerializeToString())
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        lie = rng.choice(LIES)
        with suppress(ValueError, IndexError):  # a number that the field does not take
            lie(serving, changed, rng)
        done.append(lie.__name__)
    if rng.random() < 0.8:
        with suppress(UserError, KeyError, IndexError, ValueError):  # too broken to be mended
            repair(serving, changed)
    return "+".join(done), serving, changed


def requests(vocabulary):
    """A few requests that use every part of sampling, long and short."""
    from helios_dod.edges import Submission

    rng = np.random.default_rng(3)
    made = [Submission(i + 1, rng.integers(0, vocabulary, count, dtype=np.int32), 6,
                       temperature=(0.0, 0.9)[i % 2], top_p=0.9, top_k=5 * (i % 2), seed=i,
                       top_logprobs=3 - i % 3, repetition_penalty=1.1, eos=(2,),
                       bias={1: 1.0, vocabulary - 1: -1.0})
            for i, count in enumerate((1, 5, 37, 60))]
    return [*made, replace(made[2], tag=9, scored=True)]


def run(plan, guarded, weights):
    """Loads a plan and answers requests; whether all were answered. Raises what loading and running
    raise. Ticks are counted, each with what it waits for: a slow machine changes nothing."""
    from helios_dod.edges import Edge
    from helios_dod.engine import Engine
    from helios_dod.runtime.binding import bind
    from helios_dod.runtime.native_model import require_served

    require_served(plan.contract, plan.selection.programs, "host")
    world = boot(plan.selection.limits)
    first = bind(world, plan.contract, plan.selection)
    executor = HostExecutor(1)
    held = {}
    for name, data in weights.items():
        held[name] = guarded.zeros(data.nbytes)
        held[name][:] = data
    try:
        executor.load(plan.manifest, plan.selection.geometry, held, first, world)
        engine = Engine(world, executor)
        edge, waiting = Edge(world, 0), requests(plan.contract.vocabulary)
        ended = False
        for _ in range(STEPS_MAX):
            while waiting and edge.submit(waiting[0]):
                waiting.pop(0)
            if not engine.step():  # there is no more to launch before something ends
                executor.drain()
            list(edge.events())
            ended = engine.idle() and not waiting
            if ended:
                break
        if engine.failure is not None:
            raise engine.failure
        return ended
    finally:
        executor.close()


def attempt(core, serving, manifest, weights):
    """The outcome of one mutant: a word, and a problem or None."""
    from helios_dod.runtime.binding import staging_layout
    from helios_dod.runtime.native_model import Plan
    from helios_dod.runtime.selection import Options, choose

    guarded = Guarded()
    original, buffers.aligned_zeros = buffers.aligned_zeros, guarded.zeros
    try:
        prepared = decode(serving, manifest)
        options = Options(cache_bytes=4 << 20, size=SIZE)
        selection = choose(prepared, prepared.cache.page_bytes,
                           lambda geometry: staging_layout(prepared, geometry)[1], options)
        ended = run(Plan(core, manifest, prepared, selection), guarded, weights)
        outcome = "ran" if ended else "waiting", None
    except UserError as error:
        outcome = "refused", None if str(error) else "refused without a name"
    except DeviceError as error:
        outcome = "device", None if str(error) else "refused without a name"
    except AssertionError as error:
        outcome = ("stopped", None) if error.args and ":" in str(error) else (
            "crash", f"AssertionError: {error}")
    except Exception as error:
        outcome = "crash", f"{type(error).__name__}: {error}"
    finally:
        buffers.aligned_zeros = original
    if guarded.changed():
        outcome = "crash", "wrote outside of a buffer"
    return outcome


def child(seed, first, end, only):
    """Runs mutants and says before and after each what it does."""
    import faulthandler

    faulthandler.enable()
    with tempfile.TemporaryDirectory() as folder:
        cores = honest_cores(Path(folder))
        manifests = [core.manifest() for core in cores]
        weights = [core.weights() for core in cores]
        for core, manifest, held in zip(cores, manifests, weights, strict=True):
            outcome = attempt(core, core.serving, manifest, held)
            assert outcome == ("ran", None), outcome
        for number in range(first, end) if only is None else [only]:
            at = number % len(cores)
            done, serving, manifest = mutant(cores[at], manifests[at], seed, number)
            print(f"begin {number} {done}", flush=True)
            word, problem = attempt(cores[at], serving, manifest, weights[at])
            print(f"end {word} {problem or ''}".replace("\n", " "), flush=True)


def fuzz(mutants, seed, first=0, report=None):
    """Counts, failures."""
    counts, failures, number = Counter(), [], first
    while number < mutants:
        process = subprocess.Popen(child_command(seed, number, mutants), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        doing, started = "", False
        for line in watched(process):
            word, rest = line.split(" ", 1)
            if word == "begin":
                text, doing = rest.split(" ", 1)
                number, started = int(text), True
            elif word == "end":
                outcome, _, problem = rest.strip().partition(" ")
                counts[outcome] += 1
                if problem:
                    failures.append(replay(seed, number, doing, problem))
                number += 1
                doing = ""
                if report and number % 200 == 0:
                    report(number, counts, failures)
        error = process.stderr.read()
        process.wait()
        if process.returncode == 0:
            break
        if not started:
            raise RuntimeError(error)
        if doing:
            counts["died"] += 1
            frames = [line for line in error.splitlines() if "File" in line][:3]
            ended = f"ended with {process.returncode} {frames}"
            failures.append(replay(seed, number, doing, ended))
            number += 1
    return counts, failures


def compile_system(index):
    """Compiles a system of TICK into the cache, on a world without work."""
    TICK[index].run(boot(SIZES[SIZE]))


def child_command(seed, first, end):
    return [sys.executable, "-m", "tests.fuzz_runs", "--child", "--seed", str(seed),
            "--first", str(first), "--mutants", str(end)]


def fuzz_in(jobs, mutants, seed, first, report):
    """The same, in so many children at once, each with mutants of its own. Before that what all of
    them load is compiled: systems side by side, what calls them by a child that runs only the
    honest cores."""
    began = time.monotonic()
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as processes:
        list(processes.map(compile_system, range(len(TICK))))
    subprocess.run(child_command(seed, first, first), check=True)
    print(f"compiled or loaded in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    bounds = [first + (mutants - first) * job // jobs for job in range(jobs + 1)]
    counts, failures = Counter(), []
    with ThreadPoolExecutor(jobs) as pool:
        shares = [pool.submit(fuzz, end, seed, begin, report)
                  for begin, end in pairwise(bounds)]
        for share in shares:
            counted, failed = share.result()
            counts.update(counted)
            failures += failed
    return counts, failures


def replay(seed, number, doing, problem):
    return (f"{number} {doing}: {problem}; replay: python -m tests.fuzz_runs --seed {seed} "
            f"--only {number}")


def spent_by(pid):
    """Seconds of processor that a process took so far."""
    found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(found[11]) + int(found[12])) / os.sysconf("SC_CLK_TCK")


def asleep(pid):
    """Whether all threads of a process wait for something other than a processor or a disk."""
    states = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread that has ended meanwhile
            states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states <= {"S"}


def watched(process):
    """Lines of a child, which is ended when it says nothing for long. What it works is counted, and
    how often it is found asleep: one that others keep from running has not hung."""
    import select

    poller = select.poll()
    poller.register(process.stdout, select.POLLIN | select.POLLHUP)
    text, spoke, most, looks = "", 0.0, COMPILE_S, 0
    while True:
        if not poller.poll(LOOK_S * 1e3):
            looks += asleep(process.pid)
            if looks >= LOOKS_MAX or spent_by(process.pid) - spoke >= most:
                process.kill()
                return
            continue
        data = os.read(process.stdout.fileno(), 65_536).decode()
        if not data:
            return
        *lines, text = (text + data).split("\n")
        spoke, most, looks = spent_by(process.pid), HANG_S, 0
        yield from lines


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int, help="runs one mutant in this process")
    parser.add_argument("--jobs", type=int, default=1, help="children that share the mutants")
    parser.add_argument("--out", type=Path, help="a file for the summary and failures")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child or args.only is not None:
        child(args.seed, args.first, args.mutants, args.only)
        return 0

    def report(number, counts, failures):
        print(number, dict(counts), *failures[-3:], sep="\n", file=sys.stderr, flush=True)

    began = time.monotonic()
    counts, failures = fuzz_in(args.jobs, args.mutants, args.seed, args.first, report)
    summary = (f"{sum(counts.values())} mutants, {dict(counts)}, {time.monotonic() - began:.0f} s, "
               f"{len(failures)} failures")
    print("\n".join([summary, *failures[:60]]))
    if args.out:
        args.out.write_text("\n".join([summary, *failures]) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
