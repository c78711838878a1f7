"""Damaged and malicious cores: an error that names the place, and nothing of them is used."""

import itertools
import os
import random
import resource
import shutil
import tracemalloc

import numpy as np
import pytest
import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helios_dod.contract.errors import ContractError
from helios_dod.contract.wire import core_pb2, manifest_pb2
from helios_dod.cores import chunks
from helios_dod.cores.errors import CoreError
from helios_dod.cores.frames import decode_frame
from helios_dod.cores.keys import ORDER_8_Y, PRIME, is_signed
from helios_dod.cores.layout import CHUNK_NBYTES, chunk_digests
from helios_dod.cores.reader import open_core
from helios_dod.cores.writer import Publisher, sign_index, write_core
from tests.tiny_core import make_prepared

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
FRAMES = ("execution_manifest", "tokenizer", "chat_template", "token_bytes")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """One good core; tests damage copies."""
    target = tmp_path_factory.mktemp("honest") / "tiny.core"
    write_core(make_prepared(CHUNK_NBYTES + 8192), target, Publisher(KEY, "tests"))
    return target


@pytest.fixture
def core(honest, tmp_path):
    return shutil.copytree(honest, tmp_path / "tiny.core")


def load(path):
    """Everything that a server reads."""
    core = open_core(path)
    core.prepared(core.manifest())
    core.tokenizer()
    core.chat_template()
    core.token_bytes()
    core.weights()


def files(path):
    return sorted(p for p in path.rglob("*") if p.is_file())


def sign_again(path, change):
    """Rewrites the body through `change(body)` and signs it with the trusted key."""
    signed = core_pb2.SignedCore.FromString((path / "core.pb").read_bytes())
    body = core_pb2.CoreBody.FromString(signed.body)
    change(body)
    data = body.SerializeToString()
    signed.body, signed.signature = data, KEY.sign(data)
    (path / "core.pb").write_bytes(signed.SerializeToString())


def put_frame(path, name, stored, decoded_nbytes):
    """Replaces a resource by other stored bytes, digests and lengths signed again."""
    (path / "resources" / f"{name}.zst").write_bytes(stored)

    def change(body):
        resource = next(part for part in body.executables if part.id == name)
        resource.stored.nbytes, resource.decoded_nbytes = len(stored), decoded_nbytes
        resource.chunk_sha256[:] = chunk_digests(stored)

    sign_again(path, change)


def test_honest_core_loads(honest):
    load(honest)


def test_no_such_core(tmp_path):
    with pytest.raises(CoreError, match="no such core"):
        open_core(tmp_path / "missing")
    with pytest.raises(CoreError, match="not a core"):
        open_core(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(CoreError, match="not a core"):
        open_core(tmp_path / "file")


@pytest.mark.parametrize("name", ["core.pb", "locations.pb", "weights.bin",
                                  *(f"resources/{name}.zst" for name in FRAMES)])
def test_truncation_anywhere_is_refused(core, name):
    path = core / name
    data = path.read_bytes()
    cuts = sorted({0, 1, 2, len(data) // 3, len(data) // 2, len(data) - 2, len(data) - 1})
    if len(data) < 600:
        cuts = range(len(data))
    for cut in cuts:
        path.write_bytes(data[:cut])
        with pytest.raises(CoreError) as caught:
            load(core)
        if name.endswith((".zst", ".bin")):
            assert f"truncated at byte {cut} of {len(data)}" in str(caught.value)
    path.unlink()
    with pytest.raises(CoreError):
        load(core)


@pytest.mark.parametrize("name", ["core.pb", "weights.bin",
                                  *(f"resources/{name}.zst" for name in FRAMES)])
def test_trailing_data_is_refused(core, name):
    path = core / name
    data = path.read_bytes()
    for extra in (b"\0", b"\x28\xb5\x2f\xfd", data):
        path.write_bytes(data + extra)
        with pytest.raises(CoreError):
            load(core)


@settings(max_examples=300, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_bit_flip_anywhere_is_refused(honest, tmp_path, data):
    """Every stored byte is covered: the signature, a digest, or the resolution of a location."""
    path = data.draw(st.sampled_from(files(honest)))
    position = data.draw(st.integers(0, path.stat().st_size - 1))
    bit = data.draw(st.integers(0, 7))
    name = path.relative_to(honest)
    copy = tmp_path / "flipped.core"
    if not copy.exists():
        shutil.copytree(honest, copy)
    with open(copy / name, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))
    try:
        with pytest.raises((CoreError, ContractError)):
            load(copy)
    finally:
        with open(copy / name, "r+b") as file:
            file.seek(position)
            file.write(bytes([byte]))


def test_every_bit_of_the_index_is_covered(core):
    path = core / "core.pb"
    data = bytearray(path.read_bytes())
    for position in range(0, len(data), 7):
        data[position] ^= 1 << (position % 8)
        path.write_bytes(data)
        with pytest.raises(CoreError):
            open_core(core)
        data[position] ^= 1 << (position % 8)


def test_changed_weights_name_their_chunk(core):
    path = core / "weights.bin"
    with open(path, "r+b") as file:
        file.seek(CHUNK_NBYTES + 17)
        file.write(b"\x55")
    with pytest.raises(CoreError, match=r"weight resource weights: chunk 1 \(bytes 4194304 to"):
        open_core(core).weights()
    assert open_core(core).weights(trust=True)["weights"][CHUNK_NBYTES + 17] == 0x55


def test_changed_frame_names_its_chunk(core):
    path = core / "resources" / "tokenizer.zst"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CoreError, match=r"resource tokenizer: chunk 0 .* does not match"):
        open_core(core).tokenizer()


def cut_when_called(monkeypatch, owner, name, path, calls):
    """The file is cut off before that call of a function."""
    original, count = getattr(owner, name), itertools.count(1)

    def cut(*arguments, **options):
        if next(count) == calls:
            os.truncate(path, 4096)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, cut)


@pytest.mark.parametrize("owner, name, calls", [
    (os, "preadv", 1), (os, "preadv", 3), (os, "pread", 1), (chunks, "MappedFile", 1)])
def test_weights_that_are_cut_off_while_they_are_read(core, monkeypatch, owner, name, calls):
    """An error, where a mapping would end the process."""
    opened, path = open_core(core), core / "weights.bin"
    manifest = opened.manifest()
    cut_when_called(monkeypatch, owner, name, path, calls)
    with pytest.raises(CoreError, match=r"resource weights: (ends|truncated) at byte \d+ of"):
        opened.weights(manifest=manifest)
    with pytest.raises(CoreError, match="truncated at byte 4096"):
        list(opened.weight_pieces("weights"))


def test_what_is_mapped_is_what_was_verified(core, monkeypatch):
    """The file that was opened, whatever lies under its name by then."""
    opened, path = open_core(core), core / "weights.bin"
    expected = opened.weights()["weights"].tobytes()
    original = chunks.in_parallel

    def exchange(*arguments):
        original(*arguments)
        path.unlink()
        path.write_bytes(bytes(len(expected)))

    monkeypatch.setattr(chunks, "in_parallel", exchange)
    assert opened.weights()["weights"].tobytes() == expected


def test_a_pipe_that_comes_into_a_files_place_is_not_waited_for(core, monkeypatch):
    opened = open_core(core)
    monkeypatch.setattr("helios_dod.cores.files.regular", lambda path: None)
    for name in ("weights.bin", "resources/tokenizer.zst", "core.pb"):
        (core / name).unlink()
        os.mkfifo(core / name)
    for read in (opened.weights, opened.tokenizer, lambda: open_core(core)):
        with pytest.raises(CoreError, match="not a regular file"):
            read()


def add_weights(core, count):
    """So many weight resources, all of them in one file."""
    found = core_pb2.LocationSet.FromString((core / "locations.pb").read_bytes())

    def change(body):
        for i in range(count - 1):
            body.weights.add().CopyFrom(body.weights[0])
            body.weights[-1].id = f"more-{i}"
            found.locations.add(resource_id=f"more-{i}", path="weights.bin")

    sign_again(core, change)
    (core / "locations.pb").write_bytes(found.SerializeToString())


def test_as_many_weight_resources_as_a_process_may_map(core):
    write_core(make_prepared(), core, Publisher(KEY, "tests"), overwrite=True)
    add_weights(core, 513)
    with pytest.raises(CoreError, match="weights: at most 512 resources, got 513"):
        open_core(core)
    write_core(make_prepared(), core, Publisher(KEY, "tests"), overwrite=True)
    add_weights(core, 512)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    try:
        assert len(open_core(core).weights()) == 512
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, before[1]))
        with pytest.raises(CoreError, match="cannot be read: Too many open files"):
            open_core(core).weights()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_sealed_length_that_no_memory_holds(tmp_path, monkeypatch):
    monkeypatch.setenv("HELIOS_CORE_KEY", KEY.private_bytes_raw().hex())
    core = tmp_path / "sealed.core"
    write_core(make_prepared(), core, Publisher(KEY, "tests"), carrier="logical-4")
    protected = core_pb2.ProtectedIndex.FromString((core / "index.pb").read_bytes())
    index = core_pb2.ModelIndex.FromString(protected.index)
    index.weights[0].nbytes = 1 << 61
    (core / "index.pb").write_bytes(sign_index(index, KEY, 4, protected.salt))
    monkeypatch.setattr(chunks, "check_size", lambda *arguments: None)
    with pytest.raises(CoreError, match="weights: out of memory: 2305843009213693952 bytes"):
        open_core(core).weights()


def test_frames_swapped_between_resources(core):
    one, other = (core / "resources" / f"{name}.zst" for name in ("tokenizer", "chat_template"))
    a, b = one.read_bytes(), other.read_bytes()
    one.write_bytes(b)
    other.write_bytes(a)
    with pytest.raises(CoreError):
        load(core)


def test_swapped_locations_are_refused(core):
    found = core_pb2.LocationSet.FromString((core / "locations.pb").read_bytes())
    by_id = {location.resource_id: location for location in found.locations}
    a, b = by_id["tokenizer"], by_id["chat_template"]
    a.path, b.path = b.path, a.path
    (core / "locations.pb").write_bytes(found.SerializeToString())
    with pytest.raises(CoreError):
        load(core)


def test_moved_resource_still_resolves(core):
    """Locations are unsigned: other places inside the core are fine, since bytes are verified."""
    os.rename(core / "resources" / "tokenizer.zst", core / "elsewhere")
    found = core_pb2.LocationSet.FromString((core / "locations.pb").read_bytes())
    for location in found.locations:
        if location.resource_id == "tokenizer":
            location.path = "elsewhere"
    (core / "locations.pb").write_bytes(found.SerializeToString())
    load(core)


@pytest.mark.parametrize("path", [
    "", "/etc/passwd", "../outside", "resources/../../outside", "link", "loop", "..\\outside", ".",
    "resources", "missing", "a\0b", "fifo", "x" * 5000,
])
def test_paths_out_of_the_core_are_refused(core, path):
    stored = (core / "resources" / "tokenizer.zst").read_bytes()
    (core.parent / "outside").write_bytes(stored)
    (core / "link").symlink_to(core.parent / "outside")
    (core / "loop").symlink_to(core / "loop")
    os.mkfifo(core / "fifo")
    found = core_pb2.LocationSet.FromString((core / "locations.pb").read_bytes())
    for location in found.locations:
        if location.resource_id == "tokenizer":
            location.path = path
    (core / "locations.pb").write_bytes(found.SerializeToString())
    with pytest.raises(CoreError):
        open_core(core)


@pytest.mark.parametrize("name", ["core.pb", "locations.pb"])
def test_links_in_the_place_of_an_index_are_not_followed(core, name):
    for target in (core.parent / "outside", core / "inside"):
        os.rename(core / name, target)
        (core / name).symlink_to(target)
        with pytest.raises(CoreError, match=f"{name}: a symbolic link, which is not followed"):
            open_core(core)
        os.replace(target, core / name)
    load(core)


@pytest.mark.parametrize("change", [
    lambda found: found.locations.add(resource_id="more", path="core.pb"),
    lambda found: found.locations.add().CopyFrom(found.locations[0]),
    lambda found: found.locations.pop(),
])
def test_locations_name_each_resource_once(core, change):
    found = core_pb2.LocationSet.FromString((core / "locations.pb").read_bytes())
    change(found)
    (core / "locations.pb").write_bytes(found.SerializeToString())
    with pytest.raises(CoreError):
        open_core(core)


def test_signature_of_another_key_is_another_publisher(core):
    """Replacing the key replaces the signer: the acceptance no longer holds (see round trip)."""
    signed = core_pb2.SignedCore.FromString((core / "core.pb").read_bytes())
    other = Ed25519PrivateKey.generate()
    signed.public_key = other.public_key().public_bytes_raw()
    (core / "core.pb").write_bytes(signed.SerializeToString())
    with pytest.raises(CoreError, match="signature"):
        open_core(core)
    for key in (b"", bytes(31), bytes(32), bytes(33)):
        signed.public_key = key
        (core / "core.pb").write_bytes(signed.SerializeToString())
        with pytest.raises(CoreError):
            open_core(core)


def small_order_keys():
    """Every encoding of the 8 points whose order divides 8."""
    coefficient = -121665 * pow(121666, -1, PRIME)
    yield from (0, PRIME, 1, PRIME + 1, PRIME - 1)  # y below 19 has a second encoding
    for y in (ORDER_8_Y, PRIME - ORDER_8_Y):  # twice such a point has y = 0
        assert (coefficient * y**4 + 2 * y**2 - 1) % PRIME == 0
        yield y


def test_a_key_of_small_order_signs_nothing(core):
    """For the neutral point one signature holds over everything, says the library."""
    neutral, signature = (1).to_bytes(32, "little"), bytes([1]) + bytes(63)
    for data in (b"one", b"other"):
        Ed25519PublicKey.from_public_bytes(neutral).verify(signature, data)
    keys = [(y | sign << 255).to_bytes(32, "little") for y in small_order_keys() for sign in (0, 1)]
    assert len(set(keys)) == 14
    for key in keys:
        assert not any(is_signed(key, signature, bytes([i])) for i in range(32)), key.hex()
    signed = core_pb2.SignedCore.FromString((core / "core.pb").read_bytes())
    signed.public_key, signed.signature = neutral, signature
    (core / "core.pb").write_bytes(signed.SerializeToString())
    with pytest.raises(CoreError, match="signature"):
        open_core(core)


def change_first(name, value):
    return lambda body: setattr(body.executables[0], name, value)


RESIGNED = {
    "format_version: expected 2, got 3": lambda body: setattr(body, "format_version", 3),
    "format_version: expected 2, got 0": lambda body: setattr(body, "format_version", 0),
    "publisher_namespace": lambda body: setattr(body, "publisher_namespace", ""),
    "an id of its own": lambda body: setattr(body.executables[1], "id", body.weights[0].id),
    "expected an id of its own": lambda body: setattr(body.executables[1], "id", ""),
    "chunk_nbytes: expected 4194304": change_first("chunk_nbytes", 1),
    "RESOURCE_KIND_UNSPECIFIED|kind": change_first("kind", 0),
    "kind": change_first("kind", 77),
    "got TOKENIZER": change_first("kind", core_pb2.TOKENIZER),
    "got WEIGHTS": change_first("kind", core_pb2.WEIGHTS),
    "decoded_nbytes: at most": change_first("decoded_nbytes", 1 << 40),
    "1 chunk digests, got 2": lambda body: body.executables[0].chunk_sha256.append(bytes(32)),
    "2 chunk digests, got 1": lambda body: body.weights[0].chunk_sha256.pop(),
    "is not 32 bytes": lambda body: body.weights[0].chunk_sha256.__setitem__(0, b"short"),
    "at least 1 stored byte": lambda body: setattr(body.weights[0], "nbytes", 0),
    "no resource of kind CHAT_TEMPLATE": lambda body: body.executables.pop(2),
    "unknown field number 99": lambda body: body.MergeFromString(b"\x98\x06\x01"),
}


@pytest.mark.parametrize("problem", RESIGNED)
def test_resigned_index_is_refused_by_name(core, problem):
    sign_again(core, RESIGNED[problem])
    with pytest.raises(CoreError, match=problem):
        open_core(core)


def test_ranks_that_are_not_there(core):
    sign_again(core, lambda body: setattr(body.weights[0], "rank", 1))
    opened = open_core(core)
    with pytest.raises(ContractError, match=r"weights\[0\] .*rank: expected a rank below 1, got 1"):
        opened.prepared(opened.manifest())
    sign_again(core, lambda body: setattr(body.weights[0], "rank", 0))
    for name in ("weights", "modules"):
        opened = open_core(core)
        manifest = opened.manifest()
        rank = manifest.ranks.add(rank=0, weights=["weights"])
        opened.prepared(manifest)
        getattr(rank, name).append("other")
        with pytest.raises(ContractError, match=rf"ranks\[0\]\.{name}: expected resources"):
            opened.prepared(manifest)


def test_weight_outside_its_resource(core):
    manifest = open_core(core).manifest()
    weight = next(buffer for buffer in manifest.buffers if buffer.resource_id)
    for name, value in (("resource_offset", 1 << 40), ("resource_id", "tokenizer")):
        changed = type(manifest)()
        changed.CopyFrom(manifest)
        target = next(buffer for buffer in changed.buffers if buffer.name == weight.name)
        setattr(target, name, value)
        data = changed.SerializeToString()
        put_frame(core, "execution_manifest", zstandard.compress(data, 3), len(data))
        with pytest.raises(ContractError, match=weight.name):
            open_core(core).manifest()


def compress(data, **options):
    return zstandard.ZstdCompressor(level=3, **options).compress(data)


def test_frames_that_lie_are_refused():
    data = bytes(range(256)) * 64
    frame = compress(data)
    assert decode_frame(frame, len(data), "x", "x") == data
    bad = {
        "another length": (frame, len(data) - 1),
        "declares": (frame, len(data) + 1),
        "two frames": (frame + frame, len(data)),
        "trailing": (frame + b"\0", len(data)),
        "skippable": (b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + frame, len(data)),
        "skippable after": (frame + b"\x50\x2a\x4d\x18\x04\0\0\0abcd", len(data)),
        "truncated": (frame[:-1], len(data)),
        "header only": (frame[:6], len(data)),
        "magic only": (frame[:4], len(data)),
        "no frame": (data, len(data)),
        "empty": (b"", 0),
        "no content size": (compress(data, write_content_size=False), len(data)),
        "empty frame with extra": (compress(b"") + frame, 0),
    }
    for case, (stored, nbytes) in bad.items():
        with pytest.raises(CoreError):
            print(case, decode_frame(stored, nbytes, "x", "x"))


def test_wide_window_is_refused():
    data = np.random.default_rng(1).integers(0, 256, 9 << 20, dtype=np.uint8).tobytes()
    parameters = zstandard.ZstdCompressionParameters(window_log=24, compression_level=1)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compress(data)
    with pytest.raises(CoreError, match="decoder window"):
        decode_frame(frame, len(data), "x", "x")
    narrow = compress(data[: 8 << 20])
    assert decode_frame(narrow, 8 << 20, "x", "x") == data[: 8 << 20]


def test_bomb_is_refused_before_it_is_decoded(core):
    """A frame of a gigabyte of zeros takes no memory, whatever the signed length says."""
    bomb = compress(bytes(1 << 30))
    for signed_nbytes in (100, 1 << 20, 60 << 20):
        put_frame(core, "chat_template", bomb, min(signed_nbytes, 4 << 20))
        put_frame(core, "token_bytes", bomb, min(signed_nbytes, 1 << 20))
        tracemalloc.start()
        with pytest.raises(CoreError, match="declares 1073741824 bytes"):
            open_core(core).token_bytes()
        with pytest.raises(CoreError):
            open_core(core).chat_template()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 << 20
    for name in ("tokenizer", "token_bytes"):  # what a vocabulary of 16 tokens may need
        put_frame(core, name, bomb, (1 << 20) + 16 * 1024 + 1)
        with pytest.raises(CoreError, match="1064961 bytes; at most 1064960 are accepted"):
            getattr(open_core(core), name)()
    put_frame(core, "token_bytes", bomb, 1 << 30)
    with pytest.raises(CoreError, match="at most"):
        open_core(core)


MANIFEST_BOMBS = {  # fields behind an honest manifest -> the problem
    "empty buffers": (b"\x12\0" * (1 << 20), "ExecutionManifest.buffers: expected at most 6"),
    "empty bodies": (b"\x1a\0" * (1 << 20), "ExecutionManifest.host_bodies: .* at most 6"),
    "a long name": (b"\x12\x84\x80\x40\x0a\x80\x80\x40" + b"a" * (1 << 20),
                    "Buffer.name: expected at most 4096 bytes, got 1048576"),
    "too long": (b"\x12\0" * (20 << 20), "decoded_nbytes: at most 16777216 for EXECUTION_MANIFEST"),
}


@pytest.mark.parametrize("bomb", MANIFEST_BOMBS)
def test_manifests_that_would_unfold_are_refused(core, bomb):
    data, problem = MANIFEST_BOMBS[bomb]
    data = open_core(core).read(core_pb2.EXECUTION_MANIFEST) + data
    put_frame(core, "execution_manifest", compress(data), len(data))
    with pytest.raises(CoreError, match=problem):
        open_core(core).manifest()


def test_a_manifest_with_code_may_hold_many_nodes(core):
    """What 10,000 nodes of graphs take: 200,000 messages beside 300 kB of cubins."""
    data = manifest_pb2.ExecutionManifest.FromString(
        open_core(core).read(core_pb2.EXECUTION_MANIFEST))
    data.host_bodies.extend([manifest_pb2.HostBody()] * 200_000)
    data.modules.add(name="code", cubin=random.Random(1).randbytes(300_000))
    encoded = data.SerializeToString()
    put_frame(core, "execution_manifest", compress(encoded), len(encoded))
    assert len(open_core(core).manifest().host_bodies) > 200_000


INDEX_BOMBS = {
    "executables": lambda body: body.executables.extend(
        [core_pb2.ExecutableResource()] * 70_000),
    "aliases": lambda body: body.deployment.contract.aliases.extend(["a"] * 70_000),
    "publisher_namespace": lambda body: setattr(body, "publisher_namespace", "a" * 5000),
    "license_text": lambda body: setattr(body, "license_text", "é" * ((1 << 19) + 1)),
    "chunk_sha256": lambda body: body.weights[0].chunk_sha256.extend([b""] * 530_000),
}


@pytest.mark.parametrize("field", INDEX_BOMBS)
def test_indexes_that_would_unfold_are_refused(core, field):
    sign_again(core, INDEX_BOMBS[field])
    with pytest.raises(CoreError, match=rf"core body: .*{field}: expected at most"):
        open_core(core)


def test_tokens_are_counted_before_they_are_made(core):
    def change(body):
        body.deployment.contract.model.input_vocabulary = 2**30

    put_table(core, 1 << 21, 0)
    sign_again(core, change)
    with pytest.raises(CoreError, match=r"TokenBytes\.offsets: expected at most 1048592 values"):
        open_core(core).token_bytes()
    opened = open_core(core)
    with pytest.raises(ContractError, match="input_vocabulary: expected 1 to 1048576"):
        opened.prepared(opened.manifest())


@pytest.mark.parametrize("change", [
    lambda table: table.offsets.pop(),
    lambda table: table.offsets.__setitem__(0, 1),
    lambda table: table.offsets.__setitem__(3, 12),
    lambda table: table.offsets.__setitem__(-1, 1 << 31),
    lambda table: setattr(table, "special", b""),
    lambda table: setattr(table, "fallback", table.fallback + b"\0"),
    lambda table: setattr(table, "data", b""),
    lambda table: setattr(table, "special", b"\2" + table.special[1:]),
    lambda table: (setattr(table, "fallback", b"\1" + table.fallback[1:]),
                   table.offsets.__setitem__(1, 2)),
])
def test_token_table_must_describe_itself(core, change):
    table = core_pb2.TokenBytes.FromString(decode_frame(
        (core / "resources" / "token_bytes.zst").read_bytes(),
        open_core(core).body.executables[3].decoded_nbytes, "x", "x"))
    change(table)
    data = table.SerializeToString()
    put_frame(core, "token_bytes", compress(data), len(data))
    with pytest.raises(CoreError, match="token bytes"):
        open_core(core).token_bytes()


def put_table(core, count, length=1):
    """A byte table that describes itself, of so many tokens."""
    table = core_pb2.TokenBytes(
        data=bytes(count * length), offsets=[i * length for i in range(count + 1)],
        special=bytes(count), fallback=bytes(count))
    data = table.SerializeToString()
    put_frame(core, "token_bytes", compress(data), len(data))


@pytest.mark.parametrize("count", [0, 1, 2, 15, 17, 300])
def test_token_table_has_the_vocabulary(core, count):
    put_table(core, count)
    with pytest.raises(CoreError, match=rf"token bytes: {count} tokens; expected the vocab\w*, 16"):
        open_core(core).token_bytes()
    put_table(core, 16)
    assert len(open_core(core).token_bytes().special) == 16


def test_token_table_may_name_image_sentinels(core):
    def change(body):
        body.deployment.contract.model.input_vocabulary = 18

    sign_again(core, change)
    for count in (16, 17, 18):
        put_table(core, count)
        assert len(open_core(core).token_bytes().special) == count
    put_table(core, 19)
    with pytest.raises(CoreError, match=r"19 tokens; .* the input vocabulary, 18"):
        open_core(core).token_bytes()


def test_tokens_are_no_longer_than_buffers_are_made_for(core):
    put_table(core, 16, 1 << 14)
    open_core(core).token_bytes()
    put_table(core, 16, (1 << 14) + 1)
    with pytest.raises(CoreError, match="a token of 16385 bytes; at most 16384"):
        open_core(core).token_bytes()


def test_template_that_is_not_text(core):
    put_frame(core, "chat_template", compress(b"\xff\xfe"), 2)
    with pytest.raises(CoreError, match="not UTF-8 at byte 0"):
        open_core(core).chat_template()


@settings(max_examples=150, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_noise_is_not_a_core(tmp_path, noise):
    folder = tmp_path / "noise"
    folder.mkdir(exist_ok=True)
    (folder / "core.pb").write_bytes(noise)
    with pytest.raises(CoreError):
        open_core(folder)
