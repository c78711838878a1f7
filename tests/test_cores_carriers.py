"""Logical-resource cores, sealed ones, and cores whose resources lie at http addresses."""

import contextlib
import errno
import os
import pickle
import shutil
import socket
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from helios_dod.contract.wire import core_pb2
from helios_dod.cores import remote
from helios_dod.cores.chunks import in_parallel
from helios_dod.cores.errors import CoreError
from helios_dod.cores.layout import CHUNK_NBYTES
from helios_dod.cores.places import Remote
from helios_dod.cores.reader import open_core
from helios_dod.cores.sealed import Cipher, sealed_nbytes
from helios_dod.cores.writer import CARRIERS, Publisher, sign_index, write_core
from tests.range_server import RangeServer, make_certificate
from tests.tiny_core import TOKENIZER, make_prepared

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SECRET = bytes(range(32, 64))
WEIGHT_NBYTES = CHUNK_NBYTES + 8192


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("HELIOS_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("HELIOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HELIOS_CORE_KEY", SECRET.hex())
    monkeypatch.delenv("HELIOS_CORE_KEY_FILE", raising=False)
    monkeypatch.setattr(remote, "PAUSE_S", 0.0)


def make(folder, carrier, name="tiny.core"):
    target = folder / name
    write_core(make_prepared(WEIGHT_NBYTES), target, Publisher(KEY, "tests"), carrier=carrier)
    return target


def load(path, trust=False):
    """Everything that a server reads, as comparable values."""
    core = open_core(path)
    manifest = core.manifest()
    weights = core.weights(trust, manifest=manifest)
    table = core.token_bytes()
    return (core.prepared(manifest), core.tokenizer(), core.chat_template(), table.data.tobytes(),
            {name: data.tobytes() for name, data in weights.items()})


@pytest.mark.parametrize("carrier", CARRIERS)
def test_every_carrier_loads_the_same(tmp_path, carrier):
    core = make(tmp_path, carrier)
    assert open_core(core).carrier == carrier
    assert load(core) == load(make(tmp_path, "payload", "payload.core"))
    weights = open_core(core).weights()["weights"]
    assert weights.size == -(-WEIGHT_NBYTES // 4096) * 4096 and not weights.flags.writeable


@pytest.mark.parametrize("carrier", CARRIERS)
def test_every_stored_file_is_covered(tmp_path, carrier):
    core = make(tmp_path, carrier)
    for path in sorted(p for p in core.rglob("*") if p.is_file() and p.name != "locations.pb"):
        data = path.read_bytes()
        step = max(1, len(data) // 12)
        for position in (*range(0, len(data), step), len(data) - 1):
            changed = bytearray(data)
            changed[position] ^= 1
            path.write_bytes(changed)
            with pytest.raises(CoreError):
                load(core)
        for other in (data[:-1], data + b"\0", data[: len(data) // 2]):
            path.write_bytes(other)
            with pytest.raises(CoreError):
                load(core)
        path.write_bytes(data)
    load(core)


def test_version_and_salt_are_signed(tmp_path):
    for carrier, other in (("logical-6", 4), ("logical-4", 6)):
        core = make(tmp_path, carrier, f"{carrier}.core")
        index = core_pb2.ProtectedIndex.FromString((core / "index.pb").read_bytes())
        for version, salt in ((other, index.salt), (other, b"" if index.salt else bytes(32)),
                              (5, index.salt), (0, index.salt)):
            changed = core_pb2.ProtectedIndex()
            changed.CopyFrom(index)
            changed.version, changed.salt = version, salt
            (core / "index.pb").write_bytes(changed.SerializeToString())
            with pytest.raises(CoreError, match=r"version|salt|signature"):
                open_core(core)


def test_a_core_is_one_carrier(tmp_path):
    core = make(tmp_path, "payload")
    shutil.copy(make(tmp_path, "logical-6", "other.core") / "index.pb", core / "index.pb")
    with pytest.raises(CoreError, match="holds both"):
        open_core(core)


def test_a_logical_index_is_no_payload(tmp_path):
    """Signatures of one carrier say nothing in the other."""
    core = make(tmp_path, "logical-6")
    index = core_pb2.ProtectedIndex.FromString((core / "index.pb").read_bytes())
    signed = core_pb2.SignedCore(
        body=index.index, signature=index.signature, public_key=index.public_key)
    (core / "core.pb").write_bytes(signed.SerializeToString())
    (core / "index.pb").unlink()
    with pytest.raises(CoreError, match="signature"):
        open_core(core)


def test_sealed_bytes_show_nothing_and_need_the_key(tmp_path, monkeypatch, capsys):
    core = make(tmp_path, "logical-4")
    plain = make_prepared(WEIGHT_NBYTES).tokenizer_json
    assert all(plain not in p.read_bytes() for p in core.rglob("*") if p.is_file())
    monkeypatch.setenv("HELIOS_CORE_KEY", bytes(32).hex())
    with pytest.raises(CoreError, match="cannot be authenticated") as caught:
        load(core)
    assert bytes(32).hex() not in str(caught.value)
    monkeypatch.setenv("HELIOS_CORE_KEY", "secret words")
    with pytest.raises(CoreError, match="64 hexadecimal digits") as caught:
        open_core(core)
    assert "secret words" not in str(caught.value)
    monkeypatch.delenv("HELIOS_CORE_KEY")
    with pytest.raises(CoreError, match="set HELIOS_CORE_KEY, or HELIOS_CORE_KEY_FILE"):
        open_core(core)
    path = tmp_path / "key"
    path.write_text(SECRET.hex() + "\n")
    monkeypatch.setenv("HELIOS_CORE_KEY_FILE", str(path))
    path.chmod(0o644)
    with pytest.raises(CoreError, match="chmod 600"):
        open_core(core)
    path.chmod(0o600)
    load(core)


def test_a_cipher_tells_nothing():
    cipher = Cipher(SECRET, bytes(32))
    assert repr(cipher) == "Cipher()"
    with pytest.raises(TypeError):
        pickle.dumps(cipher)


def test_sealed_chunks_belong_to_their_place(tmp_path):
    core = make(tmp_path, "logical-4")
    path = core / "weights.sealed"
    data, size = path.read_bytes(), CHUNK_NBYTES + 16
    assert len(data) == sealed_nbytes(open_core(core).body.weights[0].nbytes)
    path.write_bytes(data[:size] + data[: len(data) - size])
    with pytest.raises(CoreError, match="chunk 1 cannot be authenticated"):
        load(core)
    with pytest.raises(CoreError):  # sealed bytes are authenticated even when weights are trusted
        load(core, trust=True)


def test_padding_is_zero(tmp_path):
    prepared = make_prepared(1024)
    buffer = next(b for b in prepared.manifest.buffers if b.name == "rest")
    buffer.shape[0].multiplier = buffer.resource_nbytes = 688
    with pytest.raises(CoreError, match=r"byte 10\d\d: padding that is not zero"):
        write_core(prepared, tmp_path / "bad.core", Publisher(KEY, "tests"))
        load(tmp_path / "bad.core")


def serve_from(core, server, *names):
    """Moves the locations of the named resources to the server."""
    found = core_pb2.LocationSet.FromString((core / "locations.pb").read_bytes())
    for location in found.locations:
        if location.resource_id in names or not names:
            location.path = f"{server.url}/{location.path}"
    (core / "locations.pb").write_bytes(found.SerializeToString())


@pytest.mark.parametrize("carrier", CARRIERS)
def test_cores_at_addresses(tmp_path, carrier):
    core = make(tmp_path, carrier)
    expected = load(core)
    moved = tmp_path / "moved.core"
    shutil.copytree(core, moved)
    with RangeServer(core) as server:
        serve_from(moved, server)
        for path in (moved / "resources", *moved.glob("weights.*")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert load(moved) == expected
        first = len(server.requests)
        assert load(moved) == expected  # weights are in the cache now
        again = server.requests[first:]
        assert again and all("weights" not in path for path, _ in again)


def test_https_addresses_need_a_trusted_certificate(tmp_path, monkeypatch):
    core = make(tmp_path, "payload")
    expected = load(core)
    certificate = make_certificate(tmp_path)
    with RangeServer(core, certificate) as server:
        assert server.url.startswith("https://127.0.0.1:")
        serve_from(core, server)
        with pytest.raises(CoreError, match=r"certificate is not trusted: self.signed") as caught:
            load(core)
        assert server.url in str(caught.value) and not server.requests
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert load(core) == expected
        assert {path for path, _ in server.requests} >= {"/weights.bin", "/resources/tokenizer.zst"}
        wrong = core_pb2.LocationSet.FromString((core / "locations.pb").read_bytes())
        for location in wrong.locations:
            location.path = location.path.replace("127.0.0.1", "localhost")
        (core / "locations.pb").write_bytes(wrong.SerializeToString())
        with pytest.raises(CoreError, match="not trusted: Hostname mismatch"):
            load(core)


def test_few_chunks_are_asked_for_at_once():
    """Whatever a resource says of its length: the first chunk that is refused ends it."""
    asked, reported = [], []

    def work(i):
        asked.append(i)
        if i == 3:
            raise CoreError("place", "chunk 3 is not what was signed")
        return 1

    with pytest.raises(CoreError, match="chunk 3"):
        in_parallel(1 << 40, 2, work, reported.append)
    assert len(asked) <= 4 + 2 and sum(reported) in (3, 4)
    reported.clear()
    in_parallel(40, 2, lambda i: i, reported.append)
    assert sorted(reported) == list(range(40))


def test_what_reports_may_end_it():
    """As an interrupted command does: no thread goes on."""
    asked = []

    def work(i):
        asked.append(i)
        return i

    def stop(size):
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        in_parallel(1 << 40, 3, work, stop)
    assert threading.active_count() == before and len(asked) < 1 << 20


def test_a_single_chunk_needs_no_threads():
    """Threads for each of thousands of small resources would cost more than their bytes."""
    ran, reported = [], []
    in_parallel(1, 8, lambda i: ran.append(threading.current_thread()) or 7, reported.append)
    assert ran == [threading.current_thread()] and reported == [7]


def test_a_core_lists_its_resources_once(tmp_path):
    core = open_core(make(tmp_path, "logical-4"))
    assert core.resources is core.resources
    assert [part.id for part in core.resources] == [
        part.id for part in (*core.body.executables, *core.body.weights)]


def test_a_length_beyond_the_disk_is_refused_before_it_is_fetched(tmp_path):
    """A sealed core needs no digests, so its index can say any length."""
    core = make(tmp_path, "logical-4")
    protected = core_pb2.ProtectedIndex.FromString((core / "index.pb").read_bytes())
    index = core_pb2.ModelIndex.FromString(protected.index)
    index.weights[0].nbytes = 1 << 61
    (core / "index.pb").write_bytes(sign_index(index, KEY, 4, protected.salt))
    with RangeServer(core) as server:
        serve_from(core, server, "weights")
        with pytest.raises(CoreError, match="weight resource weights: out of disk space"):
            open_core(core).weights()
        assert not server.requests


@contextmanager
def fetched_place(tmp_path, suffix):
    """A core whose weights are served, where their copy lies, what else is to lie there or beside
    it, and a file that must stay as it is."""
    core, victim = make(tmp_path, "payload"), tmp_path / "victim"
    victim.write_bytes(b"mine")
    with RangeServer(core) as server:
        serve_from(core, server, "weights")
        open_core(core).weights()
        (cached,) = (tmp_path / "cache" / "fetched").iterdir()
        cached.unlink()
        yield core, cached, cached.with_name(cached.name + suffix), victim
    assert victim.read_bytes() == b"mine"


@pytest.mark.parametrize("suffix", ["", ".partial"])
def test_what_is_fetched_is_not_written_through_a_link(tmp_path, suffix):
    with fetched_place(tmp_path, suffix) as (core, _, place, victim):
        place.symlink_to(victim)
        with pytest.raises(CoreError, match="link"):
            open_core(core).weights()


@pytest.mark.parametrize("suffix", ["", ".partial"])
@pytest.mark.parametrize(("make_other", "replaced"), [
    pytest.param(os.mkfifo, (), id="pipe"), pytest.param(os.mkdir, (), id="folder"),
    pytest.param(lambda path: path.symlink_to("nowhere"), ("",), id="link to nothing"),
    pytest.param(lambda path: path.symlink_to(path.name), ("",), id="link to itself"),
    pytest.param(lambda path: os.link(path.parents[2] / "victim", path), (), id="hard link")])
def test_what_lies_in_the_place_of_what_is_fetched_is_not_used(
    tmp_path, suffix, make_other, replaced,
):
    """It is refused, or a link that leads nowhere replaced: nothing is written through it."""
    with fetched_place(tmp_path, suffix) as (core, cached, place, _):
        make_other(place)
        if suffix in replaced:
            open_core(core).weights()
            assert cached.is_file() and not cached.is_symlink() and cached.stat().st_nlink == 1
            assert cached.read_bytes() == (core / "weights.bin").read_bytes()
        else:
            with pytest.raises(CoreError, match=str(cached)):
                open_core(core).weights()
        assert not cached.with_name("nowhere").exists()


def test_fetching_resumes_and_verifies(tmp_path):
    core = make(tmp_path, "payload")
    with RangeServer(core) as server:
        serve_from(core, server, "weights")

        def damage(path, first, data):
            if first >= CHUNK_NBYTES:
                return 206, {}, bytes(len(data))
            return None

        def damage_all(path, first, data):
            return 206, {}, bytes(len(data))

        server.misbehave = damage
        with pytest.raises(CoreError, match=r"chunk 1 .* does not match"):
            open_core(core).weights()
        fetched = list((tmp_path / "cache" / "fetched").iterdir())
        assert [path.suffix for path in fetched] == [".partial"]
        assert not np.fromfile(fetched[0], np.uint8)[CHUNK_NBYTES:].any()  # nothing unverified
        server.misbehave = lambda path, first, data: None
        server.requests.clear()
        seen = []
        open_core(core).weights(progress=seen.append)
        assert server.requests == [("/weights.bin", CHUNK_NBYTES)]  # chunk 0 was kept
        assert sum(seen) == os.path.getsize(core / "weights.bin")  # half fetched, half verified
        (cached,) = (tmp_path / "cache" / "fetched").iterdir()
        for spoil, wrong in ((lambda file: file.write(b"\xff"), [0]),
                             (lambda file: file.truncate(100), [0, CHUNK_NBYTES])):
            with open(cached, "r+b") as file:
                spoil(file)
            server.requests.clear()
            open_core(core).weights()  # what is wrong of the copy comes again, and nothing else
            assert sorted(server.requests) == [("/weights.bin", first) for first in wrong]
            assert cached.read_bytes() == (core / "weights.bin").read_bytes()
            assert list(cached.parent.iterdir()) == [cached]
        with open(cached, "r+b") as file:
            file.write(b"\xff")
        server.misbehave = damage_all
        with pytest.raises(CoreError, match="chunk 0"):
            open_core(core).weights()


def test_a_full_disk_takes_a_part_of_a_chunk(tmp_path, monkeypatch):
    """As a write of which only the first blocks found room, and as the one behind it."""
    core, pwrite = make(tmp_path, "payload"), os.pwrite
    whole = (core / "weights.bin").read_bytes()
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[:1000_000], at))
    with RangeServer(core) as server:
        serve_from(core, server, "weights")
        loaded = open_core(core).weights(trust=True)["weights"]
        assert loaded.tobytes() == whole
        (cached,) = (tmp_path / "cache" / "fetched").iterdir()
        cached.unlink()

        def fill(file, data, at):
            if at % CHUNK_NBYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return pwrite(file, data[:4096], at)

        monkeypatch.setattr(os, "pwrite", fill)
        with pytest.raises(CoreError, match="cannot be written: No space left on device"):
            open_core(core).weights(trust=True)
        assert not cached.exists()


@pytest.mark.parametrize("answer, problem", [
    ((200, {}, None), "expected status 206"),
    ((301, {"Location": "http://127.0.0.1/"}, b""), "got 301"),
    ((404, {}, b""), "got 404"),
    ((503, {}, b""), "status 503"),
    ((206, {"Content-Range": "bytes 0-1/2"}, None), "Content-Range"),
    ((206, {"Content-Range": "none"}, None), "Content-Range"),
    ((206, {}, b"x"), "1 of"),
])
def test_servers_that_answer_something_else(tmp_path, answer, problem):
    core = make(tmp_path, "payload")
    with RangeServer(core) as server:
        serve_from(core, server, "tokenizer")
        status, headers, body = answer
        server.misbehave = lambda path, first, data: (
            status, headers, data if body is None else body)
        with pytest.raises(CoreError, match=problem) as caught:
            open_core(core).tokenizer()
        assert server.url in str(caught.value)


def test_a_server_that_recovers(tmp_path):
    core = make(tmp_path, "payload")
    with RangeServer(core) as server:
        serve_from(core, server, "tokenizer")
        left = [2]

        def fail(path, first, data):
            left[0] -= 1
            return (503, {}, b"") if left[0] >= 0 else None

        server.misbehave = fail
        assert open_core(core).tokenizer() == TOKENIZER


ENDLESS = {  # what comes once, what comes again and again, and seconds between
    "fast interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.0),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
    "a status line": (b"HTTP/1.1 206 ", b"P", 0.01),
    "a header": (b"HTTP/1.1 206 P\r\nX: ", b"x", 0.01),
    "a body": (b"HTTP/1.1 206 P\r\nContent-Length: 40960\r\n"
               b"Content-Range: bytes 0-40959/40960\r\n\r\n", b"x", 0.01),
    "a chunk length": (b"HTTP/1.1 206 P\r\nTransfer-Encoding: chunked\r\n"
                       b"Content-Range: bytes 0-40959/40960\r\n\r\n", b"0", 0.01),
}


@pytest.mark.parametrize("once, again, pause", ENDLESS.values(), ids=ENDLESS.keys())
def test_a_server_that_never_ends_is_not_waited_for(monkeypatch, once, again, pause):
    """Each byte comes within the time of one read; all of them would take for ever. The attempt
    that has all the time is the only one."""
    monkeypatch.setattr(remote, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(remote, "RATE_MIN", 1 << 20)

    def answer(connection):
        with connection, contextlib.suppress(OSError):
            connection.recv(4096)
            connection.sendall(once)
            while True:
                connection.sendall(again)
                time.sleep(pause)

    def serve(listener):
        answer(listener.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        server = threading.Thread(target=serve, args=(listener,), daemon=True)
        server.start()
        with pytest.raises(CoreError, match=r"cannot be fetched: no whole answer in time; the last "
                                            r"attempt had 0\.2 s") as caught:
            remote.read_range(Remote(url), 0, 40960, 40960, remote.deadline(40960))
        assert url in str(caught.value)
        server.join()


def test_a_server_that_is_silent_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(remote, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(remote, "RATE_MIN", 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts nothing
        for scheme in ("http", "https"):
            url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/x"
            with pytest.raises(CoreError, match=r"no byte within 0\.1 s"):
                remote.read_range(Remote(url), 0, 8, 8, remote.deadline(8))


def test_a_name_of_many_addresses_is_not_waited_for(monkeypatch):
    """Each address may take the time of one step; all of them end with the attempt."""
    found = socket.getaddrinfo("127.0.0.1", 1, type=socket.SOCK_STREAM)
    monkeypatch.setattr(remote.socket, "getaddrinfo", lambda *a, **b: found * (1 << 20))
    monkeypatch.setattr(remote, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    with pytest.raises(CoreError, match=r"no whole answer in time; the last attempt had 0\.1 s"):
        remote.read_range(Remote("http://many.example/x"), 0, 8, 8, remote.deadline(8))


def test_all_attempts_have_one_deadline(monkeypatch):
    """Whatever a server does between them: silence, the end of a connection, a status."""
    now, asked = [1000.0], []
    monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=print))

    def refuse(place, first, nbytes, whole, end):
        asked.append(end)
        now[0] += 20
        raise ConnectionResetError("reset")

    monkeypatch.setattr(remote, "_ask", refuse)
    for most, end in ((1e9, 1000 + remote.TIMEOUT_S + 1), (1010.0, 1010.0)):
        now[0] = 1000.0
        asked.clear()
        with pytest.raises(CoreError, match="cannot be fetched: reset"):
            remote.read_range(Remote("http://a.example/x"), 0, 1 << 16, 1 << 16, most)
        assert asked == [end] * (2 if end > 1020 else 1)


@pytest.mark.parametrize("address", [
    "http://", "http://user:word@127.0.0.1/x", "http://127.0.0.1:no/x", "http://127.0.0.1/a b",
    "http://127.0.0.1/x#y", "http://127.0.0.1/\r\nX: y", "ftp://127.0.0.1/x", "file:///etc/passwd",
    "http://127.0.0.1/" + "x" * 3000, "http://[::1/x", "http://a..b/x",
    "http://" + "a" * 64 + ".example/x"])
def test_addresses_are_plain(tmp_path, address):
    core = make(tmp_path, "payload")
    found = core_pb2.LocationSet.FromString((core / "locations.pb").read_bytes())
    found.locations[0].path = address
    (core / "locations.pb").write_bytes(found.SerializeToString())
    with pytest.raises(CoreError, match="execution_manifest"):
        open_core(core)


def test_catalogs_and_rebuild_manifests_change_nothing(tmp_path):
    """They describe preparation; whatever they hold, the core serves the same."""
    core = make(tmp_path, "payload")
    expected = load(core)
    signed = core_pb2.SignedCore.FromString((core / "core.pb").read_bytes())
    for blob in (b"", b"\xff" * 40, core_pb2.CatalogBlob(version=999).SerializeToString()):
        body = core_pb2.CoreBody.FromString(signed.body)
        body.rebuild_manifest = blob
        body.weight_catalogs.extend([blob, b"?"])
        data = body.SerializeToString()
        (core / "core.pb").write_bytes(core_pb2.SignedCore(
            body=data, signature=KEY.sign(data),
            public_key=signed.public_key).SerializeToString())
        assert load(core) == expected
