"""python -m tests.fuzz_cores: structure-aware mutants of a small core in every carrier.

Half and more are hashed and signed again with the trusted key, so that they reach the code behind
the signature. A mutant that is not signed again never loads, except where only the unsigned
locations changed and still lead to the verified bytes. One that is signed again is refused by name
or is valid. Anything else (another exception, a hang, memory) is a failure, printed with the
command that replays it.
"""

import argparse
import ctypes
import faulthandler
import gc
import hashlib
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from helios_dod.contract.wire import contract_pb2 as contract
from helios_dod.contract.wire import core_pb2
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.cores.layout import CHUNK_NBYTES, chunk_digests
from helios_dod.cores.reader import open_core
from helios_dod.cores.sealed import Cipher
from helios_dod.cores.writer import CARRIERS, Publisher, sign_body, sign_index, write_core
from helios_dod.errors import UserError
from helios_dod.runtime.validated import validated
from helios_dod.server.verification import verify, verify_frontend
from tests.fuzz_bombs import BOMBS
from tests.fuzz_files import (
    ACCEPTANCE,
    Other,
    change_record,
    check_acceptance,
    in_place,
    put,
    put_back,
)
from tests.fuzz_frontend import mutate_table, mutate_template, mutate_tokenizer
from tests.golden import whole

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SECRET = bytes(range(32, 64))
SIGNED_SHARE = 0.6  # of the mutants are signed again
HANG_S = 10.0  # of processor; a template may take 2, twice
WAIT_S = 60.0  # of the clock that stands still while the process does: others run beside it
BEAT_S = 0.1
STUCK_S = 120.0  # a process that is in one mutant for so long ends
REPORT_S = 30.0
MEMORY_NBYTES = 64 << 20  # over the honest peak
NUMBERS = (0, 1, 2, 3, 4, 7, 15, 16, 17, 63, 64, 255, 256, 4095, 4096, 65_535, 65_536, 2**20,
           2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
TEXTS = ("", "x", "weights", "tokenizer", "../../etc/passwd", "/etc/passwd", "a\0b", "\n",
         "x" * 300, "resources/../core.pb", ".", "resources", "decode", "http://", "\u202e",
         "%2e%2e/x", "\\x")


DELIMITERS = ("", "a", "<", "<k>", "</k>", "<k>x", "\n", " ", "é", "(", "[", "x" * 128, "x" * 129,
              "assistant:", "\\", "\0")
FRONTEND = {"tokenizer": mutate_tokenizer, "chat_template": mutate_template,
            "token_bytes": mutate_table}


def load(path):
    """Everything that a server reads and makes of it, as comparable values: what `helios verify`
    checks, a tokenizer, a template, a byte table and an output syntax that were run."""
    core = open_core(path)
    if core.body.ByteSize() + sum(r.decoded_nbytes for r in core.body.executables) < TWICE_NBYTES:
        found = outcome_of(validate, core)
        assert outcome_of(validated, core) == found
        if isinstance(found, str):
            raise UserError(found)
        manifest, contract = found  # the rest of what `verify` does
        verified = verify_frontend(core, contract)
        core.weights(manifest=manifest)
    else:
        verified = verify(core)
    table = core.token_bytes()
    return (verified, core.tokenizer(), core.chat_template(), table.data.tobytes(),
            {name: data.tobytes() for name, data in core.weights().items()})


def validate(core):
    """What `validated` gives, without looking at what it kept."""
    manifest = core.manifest()
    return manifest, core.prepared(manifest, known=True)


def outcome_of(call, core):
    """What it gives, or how it refuses."""
    try:
        return call(core)
    except UserError as error:
        return str(error)


class Pulse:
    """Counts how long this process has been let run: a stopped one is not one that hangs."""

    def __init__(self):
        self.beats = 0
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self):
        while True:
            time.sleep(BEAT_S)
            self.beats += 1


PULSE = Pulse()


class Honest:
    """One carrier's good core, and its parts in memory."""

    def __init__(self, carrier, folder):
        self.carrier, self.path = carrier, folder / f"{carrier}.core"
        write_core(whole(3), self.path, Publisher(KEY, "tests"), carrier=carrier, accept=True)
        self.names = sorted(p.relative_to(self.path).as_posix()
                            for p in self.path.rglob("*") if p.is_file())
        self.files = {name: (self.path / name).read_bytes() for name in self.names}
        assert sum(map(len, self.files.values())) <= 1 << 20
        self.index = "core.pb" if carrier == "payload" else "index.pb"
        self.unsigned = {name for name in self.names
                         if name in ("locations.pb", ACCEPTANCE) or name.startswith("license-")}
        (self.record,) = json.loads(self.files[ACCEPTANCE])["users"]
        self.outside = folder / f"{carrier}.outside"
        shutil.copytree(self.path, self.outside)
        (self.outside / "victim").write_bytes(b"mine")
        self.values = load(self.path)
        core = open_core(self.path)
        self.frames = {part.id: core.read(part.kind) for part in core.body.executables}
        self.kinds = {part.id: part.kind for part in core.body.executables}
        if carrier == "payload":
            signed = core_pb2.SignedCore.FromString(self.files["core.pb"])
            self.body, self.salt = core_pb2.CoreBody.FromString(signed.body), b""
        else:
            index = core_pb2.ProtectedIndex.FromString(self.files["index.pb"])
            self.body, self.salt = core_pb2.ModelIndex.FromString(index.index), index.salt
        self.cipher = Cipher(SECRET, self.salt) if self.salt else None

    def fresh_body(self):
        """A copy that a mutation may change."""
        body = type(self.body)()
        body.CopyFrom(self.body)
        return body

    def put(self, files, body, name, stored, decoded_nbytes=None):
        """Replaces a resource's stored bytes; lengths and digests agree with them."""
        number = next(i for i, part in enumerate(body.executables) if part.id == name)
        part = body.executables[number]
        if self.cipher:
            data = stored if decoded_nbytes is None else self.frames[name]
            stored = b"".join(
                self.cipher.seal(name, number, len(data), i, data[at : at + CHUNK_NBYTES])
                for i, at in enumerate(range(0, max(1, len(data)), CHUNK_NBYTES)))
            part.decoded_nbytes = len(data)
        else:
            if decoded_nbytes is None:
                decoded_nbytes = len(stored)
                stored = zstandard.ZstdCompressor(level=3).compress(stored)
            part.decoded_nbytes = decoded_nbytes
            part.chunk_sha256[:] = chunk_digests(stored)
        part.stored.nbytes = len(stored)
        files[next(n for n in self.names if n.startswith(f"resources/{name}."))] = stored

    def sign(self, files, body, raw=None):
        """Signs the body, or other bytes in its place, with the trusted key."""
        if self.carrier == "payload":
            data = sign_body(body, KEY)
            if raw is not None:
                signed = core_pb2.SignedCore.FromString(data)
                signed.body, signed.signature = raw, KEY.sign(raw)
                data = signed.SerializeToString()
            files["core.pb"] = data
            return
        version = CARRIERS[self.carrier]
        if raw is not None:
            index = core_pb2.ModelIndex()
            data = core_pb2.ProtectedIndex.FromString(sign_index(index, KEY, version, self.salt))
            covered = b"helios protected index" + version.to_bytes(4, "big") + self.salt + raw
            data.index, data.signature = raw, KEY.sign(covered)
            files["index.pb"] = data.SerializeToString()
        else:
            files["index.pb"] = sign_index(body, KEY, version, self.salt)


def pick(message, rng):
    """A random message in `message`, itself included."""
    while rng.random() < 0.85:
        parts = []
        for field, value in message.ListFields():
            if field.message_type is None or field.message_type.GetOptions().map_entry:
                continue
            parts.append(value[rng.randrange(len(value))] if field.is_repeated else value)
        if not parts:
            break
        message = rng.choice(parts)
    return message


def scalar(field, rng, old):
    """Another value for a scalar field."""
    if field.type == field.TYPE_BOOL:
        return not old
    if field.type == field.TYPE_STRING:
        return rng.choice(TEXTS)
    if field.type == field.TYPE_BYTES:
        return rng.choice((b"", b"\0", bytes(rng.randrange(80)), old[:-1], old + b"x"))
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf"), 0.5))
    value = rng.choice((*NUMBERS, old + 1, max(old - 1, 0), old ^ (1 << rng.randrange(20))))
    if field.type in (field.TYPE_INT32, field.TYPE_ENUM):
        value = (value + 2**31) % 2**32 - 2**31
        return rng.choice((value, rng.randrange(90)))
    return value % (2**32 if field.type in (field.TYPE_UINT32,) else 2**64)


def mutate_field(message, rng):
    """Changes one field of a message, whatever kind it is."""
    field = rng.choice(message.DESCRIPTOR.fields or [None])
    if field is None:
        return
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, field.name)[rng.choice(TEXTS)] = rng.choice(TEXTS)
    elif field.is_repeated:
        values = getattr(message, field.name)
        choice = rng.randrange(4)
        if field.message_type is not None:
            if values and choice == 0:
                del values[rng.randrange(len(values))]
            elif values and choice == 1:
                values.add().CopyFrom(rng.choice(values))
            elif values and choice == 2:
                parts = [type(v).FromString(v.SerializeToString()) for v in values]
                rng.shuffle(parts)
                del values[:]
                values.extend(parts)
            else:
                values.add()
        elif values and choice == 0:
            del values[rng.randrange(len(values))]
        elif values and choice == 1:
            values[rng.randrange(len(values))] = scalar(field, rng, values[0])
        else:
            values.append(scalar(field, rng, values[0] if values else field.default_value or (
                "" if field.type == field.TYPE_STRING else
                b"" if field.type == field.TYPE_BYTES else 0)))
    elif field.message_type is not None:
        if message.HasField(field.name) and rng.random() < 0.5:
            message.ClearField(field.name)
        else:
            getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, scalar(field, rng, getattr(message, field.name)))


def mutate_bytes(data, rng):
    """Flips, cuts, repeats or splices bytes."""
    data, kind = bytearray(data), rng.randrange(5)
    at = rng.randrange(len(data)) if data else 0
    if kind == 0 and data:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data += bytes(rng.randrange(1, 40))
    elif kind == 3:
        data[at:at] = data[at : at + rng.randrange(1, 60)]
    else:
        data[at : at + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(9))
    return bytes(data)


# Mutations that are signed again: (honest, files, body, rng). They may return raw bytes to sign.

def body_fields(honest, files, body, rng):
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        mutate_field(pick(body, rng), rng)


def body_bytes(honest, files, body, rng):
    return mutate_bytes(body.SerializeToString(), rng)


def body_deep(honest, files, body, rng):
    """Length-delimited nesting in a known and an unknown field, or groups."""
    data, depth = b"", rng.choice((20, 90, 101, 500, 5000))
    tag = rng.choice((b"\x22", b"\x0a", b"\xfa\x3e", b"\x52"))
    if rng.random() < 0.3:
        return body.SerializeToString() + b"\x4b" * depth + b"\x4c" * depth
    for _ in range(depth):
        length, size = len(data), b""
        while True:
            size += bytes([length & 127 | (128 if length > 127 else 0)])
            length >>= 7
            if not length:
                break
        data = tag + size + data
    return body.SerializeToString() + data


def body_huge(honest, files, body, rng):
    count = rng.choice((1000, 20_000, 100_000))
    kind = rng.randrange(3)
    serving = serving_of(honest, body)
    if kind == 0:
        serving.aliases.extend(["x"] * count)
    elif kind == 1:
        serving.model.frontend.eos_tokens.extend([1] * count)
    else:
        body.executables[0].chunk_sha256.extend([bytes(32)] * count)


def manifest_fields(honest, files, body, rng):
    manifest = wire.ExecutionManifest.FromString(honest.frames["execution_manifest"])
    for _ in range(rng.choice((1, 1, 2, 4))):
        mutate_field(pick(manifest, rng), rng)
    honest.put(files, body, "execution_manifest", manifest.SerializeToString())


def manifest_bytes(honest, files, body, rng):
    honest.put(files, body, "execution_manifest",
               mutate_bytes(honest.frames["execution_manifest"], rng))


def other_resources(honest, files, body, rng):
    name = rng.choice(("tokenizer", "chat_template", "token_bytes"))
    honest.put(files, body, name, mutate_bytes(honest.frames[name], rng))


def frontend_parts(honest, files, body, rng):
    """A tokenizer, a template or a byte table of another shape; sometimes two of them."""
    for name in rng.sample(sorted(FRONTEND), rng.choice((1, 1, 2))):
        honest.put(files, body, name, FRONTEND[name](honest.frames[name], rng))


def output_syntax(honest, files, body, rng):
    """Syntax data alone: delimiters that are the same, begin each other, are long or missing."""
    serving = body.deployment.contract if honest.carrier == "payload" else body.contract
    frontend = serving.model.frontend
    for _ in range(rng.choice((1, 2, 4))):
        kind = rng.randrange(4)
        if kind == 0:
            mutate_field(pick(frontend.output, rng), rng)
        elif kind == 1:
            frontend.tool_syntax = rng.randrange(7)
        elif kind == 2:
            parts = [frontend.output.pairs, frontend.output.think]
            part = rng.choice(parts)
            field = rng.choice([f for f in part.DESCRIPTOR.fields if f.type == f.TYPE_STRING])
            setattr(part, field.name, rng.choice(DELIMITERS))
        else:
            frontend.output.tokens.extend(rng.choices(DELIMITERS, k=rng.choice((1, 5, 70))))


def same_length(honest, files, body, rng):
    """Another manifest, as long as the honest one: the index of a sealed core stays what it was."""
    data = honest.frames["execution_manifest"]
    for _ in range(50):
        manifest = wire.ExecutionManifest.FromString(data)
        mutate_field(pick(manifest, rng), rng)
        changed = manifest.SerializeToString(deterministic=True)
        if len(changed) == len(data) and changed != data:
            honest.put(files, body, "execution_manifest", changed)
            break


def swapped_frames(honest, files, body, rng):
    """Valid frames under another kind."""
    one, other = rng.sample(sorted(honest.frames), 2)
    honest.put(files, body, one, honest.frames[other])
    if rng.random() < 0.5:
        honest.put(files, body, other, honest.frames[one])


def bad_frames(honest, files, body, rng):
    """Length lies, bombs, windows, several frames, none, skippable ones, without a length."""
    name = rng.choice(sorted(honest.frames))
    data, plain = honest.frames[name], zstandard.ZstdCompressor(level=3)
    frame, length = plain.compress(data), len(data)
    kind = rng.randrange(9)
    if kind == 0:
        length = rng.choice(NUMBERS)
    elif kind == 1:
        frame, length = BOMB, rng.choice((len(data), BOMB_NBYTES))
    elif kind == 2:
        windows = zstandard.ZstdCompressionParameters(window_log=rng.choice((20, 23, 24, 27)))
        stream = zstandard.ZstdCompressor(compression_params=windows).compressobj()
        frame = stream.compress(data) + stream.flush()
    elif kind == 3:
        frame += rng.choice((frame, b"\0", b"\x28\xb5\x2f\xfd", plain.compress(b"")))
    elif kind == 4:
        frame = frame[: rng.randrange(len(frame))] or b"\0"
    elif kind == 5:
        frame = b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + frame
    elif kind == 6:
        frame = zstandard.ZstdCompressor(level=3, write_content_size=False).compress(data)
    elif kind == 7:
        frame = mutate_bytes(frame, rng)
    else:
        frame, length = data or b"\0", len(data)
    honest.put(files, body, name, frame or b"\0", length)


def weight_lies(honest, files, body, rng):
    weight = body.weights[0]
    kind = rng.randrange(4)
    if kind == 0:
        weight.nbytes = rng.choice(NUMBERS)
    elif kind == 1:
        weight.chunk_sha256[:] = [hashlib.sha256(b"").digest()] * rng.randrange(3)
    elif kind == 2:
        name = next(n for n in honest.names if n.startswith("weights."))
        files[name] = mutate_bytes(honest.files[name], rng)
        if not honest.cipher:
            weight.nbytes = len(files[name])
            weight.chunk_sha256[:] = chunk_digests(files[name])
    else:
        body.weights.add().CopyFrom(weight)


def downgraded(honest, files, body, rng):
    version = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 2**31))
    serving = serving_of(honest, body)
    if rng.random() < 0.5:
        serving.model.version = version
    elif honest.carrier == "payload":
        body.format_version = version
    else:
        salt = rng.choice((b"", honest.salt, bytes(32)))
        files["index.pb"] = sign_index(body, KEY, version, salt)
        return files["index.pb"]
    return None


def state_lies(honest, files, body, rng):
    """Accesses that a graph leaves out, adds, doubles or turns round; bindings that it lacks."""
    graph = rng.choice(serving_of(honest, body).model.graphs)
    kind = rng.randrange(7)
    if kind == 0:
        graph.ClearField("states")
    elif kind == 1:
        for view in graph.states:
            view.access = rng.choice((contract.READ, contract.WRITE, contract.READ_WRITE))
    elif kind == 2:
        del graph.states[rng.randrange(len(graph.states))]
    elif kind == 3:
        graph.states.add().CopyFrom(rng.choice(graph.states))
    elif kind == 4:
        view = rng.choice(graph.states)
        view.offset, view.extent = rng.choice(NUMBERS), rng.choice(NUMBERS)
    elif kind == 5:
        graph.device_pending.CopyFrom(rng.choice(graph.states))
        graph.device_pending.buffer = rng.randrange(40)
    else:
        del graph.bindings[rng.randrange(len(graph.bindings))]


def cache_lies(honest, files, body, rng):
    """Histories that are none of their planes, views that are none, cursors that nobody keeps."""
    serving = serving_of(honest, body)
    cache, kind = serving.model.cache, rng.randrange(7)
    region = cache.regions[0]
    if kind == 0:
        region.kind = rng.choice(contract.HistoryKind.values())
        region.window_tokens = rng.choice((0, 8, 2**31))
    elif kind == 1:
        region.compression_ratio = rng.choice(NUMBERS) % 2**32
        cache.page_tokens = rng.choice((16, 1, 4, 65_536, 65_537))
    elif kind == 2:
        cache.regions.add().CopyFrom(region)
        cache.regions[1].planes[:] = [rng.randrange(40) for _ in range(rng.randrange(3))]
    elif kind == 3:
        cache.tables.add(buffer=rng.choice((cache.tables[0].buffer, rng.randrange(40))),
                         page_offset=rng.choice((0, 1, -2, 4, 5, 2000, -2**31)))
    elif kind == 4:
        del cache.tables[:]
        region.page_group = rng.randrange(3)
    elif kind == 5:
        cache.cursor_lag_tokens = rng.choice((0, 1, -1, 2**30, 2**31 - 1))
        graph = rng.choice(serving.model.graphs)
        cache.cursor_state.CopyFrom(rng.choice((*graph.states, contract.StateView())))
    else:
        region.planes.append(rng.choice((*region.planes, rng.randrange(40), 2**32 - 1)))


def syntax_lies(honest, files, body, rng):
    """Markers that are no opener, template tokens without end, identities that are no text."""
    serving = serving_of(honest, body)
    frontend, kind = serving.model.frontend, rng.randrange(3)
    if kind == 0:
        frontend.tool_syntax, frontend.reasoning_syntax = (
            contract.PARAMETER_TAGS, contract.THINK_TAGS)
        output = frontend.output
        output.think.open, output.think.close = "<think>", "</think>"
        output.tags.wrapper_open = rng.choice(("<calls>", ""))
        output.tags.typing, output.tags.unions = contract.TYPED_BY_JSON, contract.UNION_TEXT
        output.tags.orphan = contract.ORPHAN_TEXT
        output.call_ids = contract.CALL_ID_PREFIXED
        output.unknown_names = contract.UNKNOWN_NAMES_DROP
        output.think.terminals.markers.extend(
            rng.choice((*TEXTS, "<calls>")) for _ in range(rng.randrange(3)))
    elif kind == 1:
        frontend.template_tokens[rng.choice((*TEXTS, "x" * 100_000))] = rng.choice(TEXTS)
        frontend.template_tokens.update((f"t{i}", "x") for i in range(rng.choice((1, 64, 5000))))
    else:
        serving.cache_identity = rng.choice(TEXTS)


def serving_of(honest, body):
    """The contract that a body carries."""
    return body.deployment.contract if honest.carrier == "payload" else body.contract


SIGNED = (*[body_fields] * 3, body_bytes, body_deep, *[state_lies] * 2, *[cache_lies] * 2,
          syntax_lies, *[manifest_fields] * 3, manifest_bytes, other_resources,
          *[frontend_parts] * 3, *[output_syntax] * 2, swapped_frames, same_length,
          *[bad_frames] * 2, weight_lies, downgraded)
LARGE = {mutation.__name__ for mutation in (*BOMBS, body_huge)}
LIBC = ctypes.CDLL(None)
TWICE_NBYTES = 1 << 16  # what a larger core unfolds to is never held twice, to be compared
BOMB_NBYTES = 200 << 20


def make_bomb():
    """A frame of zeros, made in pieces: this process stays small."""
    stream = zstandard.ZstdCompressor(level=3).compressobj(size=BOMB_NBYTES)
    piece = bytes(1 << 20)
    return b"".join([stream.compress(piece) for _ in range(BOMB_NBYTES >> 20)] + [stream.flush()])


BOMB = make_bomb()


def mutate_signed(honest, files, rng):
    draw = rng.random()
    mutation = body_huge if draw < 0.003 else rng.choice(BOMBS if draw < 0.03 else SIGNED)
    body = honest.fresh_body()
    raw = mutation(honest, files, body, rng)
    if mutation is not downgraded or raw is None:
        honest.sign(files, body, raw)
    return mutation.__name__


def mutate_unsigned(honest, files, rng):
    kind = rng.randrange(6)
    if kind == 0:
        found = core_pb2.LocationSet.FromString(honest.files["locations.pb"])
        if rng.random() < 0.5:
            mutate_field(pick(found, rng), rng)
        else:
            one, other = rng.sample(range(len(found.locations)), 2)
            found.locations[one].path = rng.choice(
                (found.locations[other].path, "./" + found.locations[one].path, *TEXTS))
        files["locations.pb"] = found.SerializeToString()
        return "locations"
    if kind == 1:
        one, other = rng.sample(honest.names, 2)
        files[one], files[other] = honest.files[other], honest.files[one]
        return "swapped_files"
    name = rng.choice(honest.names)
    if kind == 2:
        carrier = (core_pb2.SignedCore if honest.carrier == "payload" else core_pb2.ProtectedIndex)
        signed = carrier.FromString(honest.files[honest.index])
        mutate_field(signed, rng)
        files[honest.index] = signed.SerializeToString()
        return "carrier_fields"
    if kind == 3:
        files[name] = in_place(honest, name, rng)
        return "other_files"
    if kind == 4:
        files[ACCEPTANCE] = (in_place(honest, ACCEPTANCE, rng) if rng.random() < 0.3 else
                             change_record(honest.files[ACCEPTANCE], rng))
        return "acceptance"
    files[name] = mutate_bytes(honest.files[name], rng)
    return "bytes"


def may_load(honest, changed):
    """Whether what was changed is not signed, or leads to the bytes that are. What lies outside of
    a core is no part of it, and its index is no link."""
    return all(name in honest.unsigned or (isinstance(data, Other) and data.leads)
               for name, data in changed.items())


def run_one(honest, seed, number):
    """(mutation, outcome, problem or None) of one mutant."""
    rng = random.Random(f"{seed}:{honest.carrier}:{number}")
    files = {}
    signed = rng.random() < SIGNED_SHARE
    name = (mutate_signed if signed else mutate_unsigned)(honest, files, rng)
    changed = {n: data for n, data in files.items() if data != honest.files[n]}
    for path, data in changed.items():
        put(honest.path / path, data)
    changed = {path: data if isinstance(data, Other) else None for path, data in changed.items()}
    files.clear()  # while a core is loaded, this process holds nothing large of its own
    began, spent, problem = PULSE.beats, time.process_time(), None
    try:
        values = load(honest.path)
        outcome = "valid"
        if not signed and (values != honest.values or not may_load(honest, changed)):
            problem = f"loads without a signature, changed: {sorted(changed)}"
        if changed.keys() == {ACCEPTANCE}:
            problem = problem or check_acceptance(honest)
    except UserError as error:
        outcome = "refused"
        if not str(error):
            problem = "refused without a name"
    except BaseException as error:
        outcome, problem = "crash", f"{type(error).__name__}: {error}"
        if isinstance(error, KeyboardInterrupt):
            raise
    took = (PULSE.beats - began) * BEAT_S, time.process_time() - spent
    if took[0] > WAIT_S or took[1] > HANG_S:
        problem = f"took {took[0]:.1f} s, {took[1]:.1f} s of processor"
    for path in changed.keys() | {ACCEPTANCE}:
        put_back(honest, path)
    kind = ("signed" if signed else "unsigned", name)
    return kind, outcome, problem


def fuzz(mutants, seed=1, carriers=tuple(CARRIERS), only=None, mark=None, part=(0, 1)):
    """Runs mutants in turn over the carriers; counts, failures, bytes over the honest peak.

    part: (k, n) runs every n-th mutant from the k-th on. mark: a file that says which one runs, and
    lets a process end that is stuck in one."""
    root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="helios-fuzz-", dir=root) as place:
        own = {"HELIOS_CORE_KEY": SECRET.hex(), "HELIOS_CONFIG": f"{place}/config",
               "HELIOS_CACHE": f"{place}/cache"}
        with patch.dict(os.environ, own):
            cores = [Honest(carrier, Path(place)) for carrier in carriers]
            for honest in cores:
                load(honest.path)
            numbers = range(part[0], mutants, part[1]) if only is None else [only]
            try:
                counts, failures, over = run_all(cores, seed, numbers, mark)
            finally:
                faulthandler.cancel_dump_traceback_later()
    return counts, failures, over


def run_all(cores, seed, numbers, mark):
    """The same of mutants by number. What let the process grow is one of the counts."""
    counts, failures, grown = Counter(), [], []
    peak = highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in numbers:
        if mark is not None:
            mark.write_text(str(i))
            faulthandler.dump_traceback_later(STUCK_S, exit=True)
        honest = cores[i % len(cores)]
        kind, outcome, problem = run_one(honest, seed, i)
        counts[(honest.carrier, kind[0], outcome)] += 1
        counts[("all", kind[1], outcome)] += 1
        if (now := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) > highest + 1024:
            grown.append(f"{kind[1]} {i}: {(now - highest) >> 10} MiB")
            highest = now
        if kind[1] in LARGE:  # what this one left is not counted for those that come next
            gc.collect()
            re.purge()  # patterns of control tokens
            LIBC.malloc_trim(0)
        if problem:
            failures.append(f"{honest.carrier} {kind}: {problem}; {replay(seed, i)}")
    over = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
    if over > MEMORY_NBYTES:
        failures.append(f"{over} bytes over the honest peak, at most {MEMORY_NBYTES}; grown by "
                        f"{', '.join(grown)}")
    counts[("grown", f"by {over >> 20} MiB", ", ".join(grown))] += 1
    return counts, failures, over


def replay(seed, i):
    return f"replay: python -m tests.fuzz_cores --seed {seed} --only {i}"


def fuzz_share(job, jobs, first, mutants, seed, folder):
    """The same in a process of its own, for a share of the mutants. Where it ends by itself, that
    is one failure, and another process goes on behind it."""
    counts, failures, most = Counter(), [], 0
    mark, at = folder / f"job-{job}", first + job
    while at < mutants:
        try:
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                counted, failed, over = pool.submit(
                    fuzz, mutants, seed, mark=mark, part=(at, jobs)).result()
        except BrokenProcessPool:
            at = int(mark.read_text())
            failures.append(f"the process of mutant {at} ended, and its counts are lost; "
                            f"{replay(seed, at)}")
            at += jobs
            continue
        return counts + counted, failures + failed, max(most, over)
    return counts, failures, most


def fuzz_in(jobs, first, mutants, seed):
    """The same, in several processes; the most that one of them took."""
    counts, failures, most, began = Counter(), [], 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        shares = [pool.submit(fuzz_share, job, jobs, first, mutants, seed, Path(folder))
                  for job in range(jobs)]
        while wait(shares, REPORT_S).not_done:
            done = [int(mark.read_text() or 0) for mark in Path(folder).iterdir()]
            print(f"mutant {min(done, default=first)} of {mutants}, "
                  f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        for share in shares:
            counted, failed, over = share.result()
            counts.update(counted)
            failures += failed
            most = max(most, over)
    return counts, failures, most


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="replays one mutant")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the mutants")
    parser.add_argument("--out", type=Path, help="a file for the summary, counts and failures")
    args = parser.parse_args()
    began = time.monotonic()
    if args.only is not None:
        counts, failures, over = fuzz(1, args.seed, only=args.only)
    else:
        counts, failures, over = fuzz_in(args.jobs, args.first, args.mutants, args.seed)
    ran = sum(count for key, count in counts.items() if key[0] in CARRIERS)
    signed = sum(count for key, count in counts.items() if key[1] == "signed")
    summary = (f"{ran} mutants, {signed} signed again, "
               f"{time.monotonic() - began:.0f} s, {over / 2**20:.1f} MiB over the honest peak, "
               f"{len(failures)} failures")
    lines = [" ".join(map(str, (*key, count))) for key, count in sorted(counts.items())]
    print("\n".join([*lines, summary, *failures[:50]]))
    if args.out:
        args.out.write_text("\n".join([summary, *failures, *lines]) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
