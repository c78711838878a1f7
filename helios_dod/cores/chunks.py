"""A stored resource as a row of chunks, each verified by itself: by digest, or by its seal."""

import hashlib
import itertools
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from helios_dod.contract.wire import core_pb2
from helios_dod.cores.errors import CoreError
from helios_dod.cores.files import check_size, opened, wait_for_lock
from helios_dod.cores.layout import CHUNK_NBYTES
from helios_dod.cores.mapped import MappedFile
from helios_dod.cores.padding import Spans
from helios_dod.cores.places import Place, Remote
from helios_dod.cores.remote import deadline, read_range
from helios_dod.cores.sealed import TAG_NBYTES, Cipher, sealed_count, sealed_nbytes

FETCHERS = 8  # chunks that are fetched at once
DISK_BLOCK_NBYTES = 512  # of st_blocks
READ_NBYTES = 1 << 20  # of a file at once
PARTIAL = ".partial"  # ends the name of a file that is being fetched
Resource = core_pb2.ExecutableResource | core_pb2.WeightResource
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Chunks:
    """How a resource is stored and verified."""

    what: str  # for errors
    name: str
    number: int  # position among the core's resources, executables first
    nbytes: int  # as stored
    plain_nbytes: int  # verified bytes; for a zstd frame, those of the frame
    count: int
    digests: tuple[bytes, ...]  # of stored chunks; empty where sealed
    cipher: Cipher | None

    @property
    def stored_chunk(self) -> int:
        """Stored bytes of a whole chunk."""
        return CHUNK_NBYTES + (TAG_NBYTES if self.cipher else 0)

    def span(self, i: int) -> tuple[int, int]:
        """(first stored byte, stored bytes) of a chunk."""
        first = i * self.stored_chunk
        return first, min(self.stored_chunk, self.nbytes - first)

    def verify(self, i: int, stored: bytes | memoryview, place: object) -> bytes | memoryview:
        """The plain bytes of a stored chunk. Raises CoreError where it is not what was signed."""
        if self.cipher is not None:
            plain = self.cipher.unseal(self.name, self.number, self.plain_nbytes, i, stored)
            if plain is None:
                raise CoreError(str(place), f"{self.what}: chunk {i} cannot be authenticated: it "
                                            "was changed, or the core's key is another")
            return plain
        self.compare(i, hashlib.sha256(stored).digest(), place)
        return stored

    def compare(self, i: int, digest: bytes, place: object) -> None:
        """Raises CoreError where that is not the signed digest of a chunk."""
        if digest != self.digests[i]:
            first, size = self.span(i)
            raise CoreError(str(place), f"{self.what}: chunk {i} (bytes {first} to {first + size}) "
                                        "does not match its signed digest")


def chunks_of(resource: Resource, number: int, cipher: Cipher | None) -> Chunks:
    """The chunks of a resource of a checked body."""
    weight = isinstance(resource, core_pb2.WeightResource)
    what = f"{'weight ' if weight else ''}resource {resource.id}"
    if isinstance(resource, core_pb2.WeightResource):
        stored, plain = resource.nbytes, resource.nbytes
    else:
        stored = plain = resource.stored.nbytes
        plain = resource.decoded_nbytes if cipher else plain
    if cipher is not None:
        stored = sealed_nbytes(plain)
    count = sealed_count(plain) if cipher else len(resource.chunk_sha256)
    return Chunks(what, resource.id, number, stored, plain, count, tuple(resource.chunk_sha256),
                  cipher)


def read_verified(chunks: Chunks, place: Place) -> bytes:
    """All plain bytes of a small resource."""
    return b"".join(verified(chunks, place))


def verified(chunks: Chunks, place: Place) -> Iterator[bytes | memoryview]:
    """The plain bytes of a resource, chunk by chunk as they come. Raises CoreError."""
    if isinstance(place, Remote):
        end = deadline(chunks.nbytes)
        for i in range(chunks.count):
            first, size = chunks.span(i)
            yield chunks.verify(i, read_range(place, first, size, chunks.nbytes, end), place)
        return
    with opened(place) as descriptor:
        check_size(descriptor, place, chunks.nbytes, chunks.what)
        for i in range(chunks.count):
            yield _verified_chunk(chunks, i, descriptor, place)


def _verified_chunk(chunks: Chunks, i: int, descriptor: int, path: Path) -> bytes | memoryview:
    first, size = chunks.span(i)
    data = os.pread(descriptor, size, first)
    if len(data) != size:
        raise _ended(chunks, path, first + len(data))
    return chunks.verify(i, data, path)


def _ended(chunks: Chunks, path: Path, at: int) -> CoreError:
    return CoreError(path, f"{chunks.what}: ends at byte {at} of {chunks.nbytes} while it is read")


def in_parallel(count: int, threads: int, work: Callable[[int], int],
                progress: Progress | None) -> None:
    """Runs work(0..count) on threads and reports what each returns; the first error ends it.

    Each thread takes the next number when it has done one: nothing waits, however many a resource
    says it has. A single call runs on this thread: a core may have hundreds of resources of one
    chunk."""
    if count == 1:
        size = work(0)
        if progress is not None:
            progress(size)
        return
    numbers = itertools.count()
    failures: list[BaseException] = []
    done: SimpleQueue[int | None] = SimpleQueue()

    def run() -> None:
        try:
            for i in numbers:
                if i >= count or failures:
                    break
                done.put(work(i))
        except BaseException as error:
            failures.append(error)
        done.put(None)

    pool = [threading.Thread(target=run, daemon=True) for _ in range(min(threads, count))]
    for thread in pool:
        thread.start()
    try:
        for _ in pool:
            while (part := done.get()) is not None:
                if progress is not None:
                    progress(part)
    except BaseException as error:  # this thread is interrupted: the others end where they are
        failures.insert(0, error)
    for thread in pool:
        thread.join()
    if failures:
        raise failures[0]


def map_weights(chunks: Chunks, path: Path, trust: bool, padding: Spans,
                progress: Progress | None) -> np.ndarray:
    """Read-only uint8 array of a weight resource in a local file.

    Unless `trust`, digests are compared and padding is zero; sealed chunks are always
    authenticated, into memory. What is verified is read, not mapped: who cuts the file off
    meanwhile causes an error, where a mapping would end the process. The same opened file is mapped
    then, whatever lies under its name by that time."""
    with opened(path) as descriptor:
        check_size(descriptor, path, chunks.nbytes, chunks.what)
        if chunks.cipher is not None:
            plain = _unsealed(chunks, descriptor, path, progress)
            for first, end in padding:
                _check_zeros(plain[first:end].data, chunks, first)
            return plain
        if not trust:
            _verify(chunks, descriptor, path, progress)
            for first, end in padding:
                for at in range(first, end, READ_NBYTES):
                    _check_zeros(os.pread(descriptor, min(READ_NBYTES, end - at), at), chunks, at)
        try:
            mapped = MappedFile(descriptor, chunks.nbytes)
        except ValueError:  # it is shorter by now
            check_size(descriptor, path, chunks.nbytes, chunks.what)
            raise
    return np.frombuffer(mapped, np.uint8)


def _verify(chunks: Chunks, descriptor: int, path: Path, progress: Progress | None) -> None:
    """Compares every digest of an opened file. Each thread reads into one buffer of its own, which
    stays in its processor's cache."""
    own = threading.local()

    def verify(i: int) -> int:
        if not hasattr(own, "buffer"):
            own.buffer = memoryview(bytearray(READ_NBYTES))
        at, size = chunks.span(i)
        found, end = hashlib.sha256(), at + size
        while at < end:
            part = own.buffer[: end - at]
            count = os.preadv(descriptor, [part], at)
            if count == 0:
                raise _ended(chunks, path, at)
            found.update(part[:count])
            at += count
        chunks.compare(i, found.digest(), path)
        return size

    in_parallel(chunks.count, os.cpu_count() or 1, verify, progress)


def _unsealed(chunks: Chunks, descriptor: int, path: Path,
              progress: Progress | None) -> np.ndarray:
    """The authenticated bytes of an opened file, in memory."""
    try:
        plain = np.empty(chunks.plain_nbytes, np.uint8)
    except MemoryError as error:
        raise CoreError(path, f"{chunks.what}: out of memory: {chunks.plain_nbytes} bytes are "
                              "unsealed into it") from error

    def unseal(i: int) -> int:
        data, start = _verified_chunk(chunks, i, descriptor, path), i * CHUNK_NBYTES
        plain[start : start + len(data)] = np.frombuffer(data, np.uint8)
        return chunks.span(i)[1]

    in_parallel(chunks.count, os.cpu_count() or 1, unseal, progress)
    plain.flags.writeable = False
    return plain


def _check_zeros(data: bytes | memoryview, chunks: Chunks, first: int) -> None:
    """CoreError where padding is not zero. first: of its bytes in the resource."""
    found = np.frombuffer(data, np.uint8)
    if found.any():
        raise CoreError(chunks.what,
                        f"byte {first + int(np.flatnonzero(found)[0])}: padding that is not zero")


def fetch(chunks: Chunks, place: Remote, target: Path, end: float,
          progress: Progress | None) -> None:
    """Fetches a resource into `target` in parallel; a later call resumes where one ended.

    A chunk is written after it is verified. What an earlier call left is verified again. end: see
    `remote.deadline`."""
    partial = target.with_name(target.name + PARTIAL)
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CoreError(target, f"cannot be written: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise CoreError(partial, "is no plain file, or has another name too (a hard link)")
        wait_for_lock(descriptor, target)
        if target.exists():  # another process was faster
            return
        _check_space(chunks, descriptor, target)
        os.ftruncate(descriptor, chunks.nbytes)

        def one(i: int) -> int:
            first, size = chunks.span(i)
            if not _holds(chunks, i, os.pread(descriptor, size, first), target):
                data = read_range(place, first, size, chunks.nbytes, end)
                chunks.verify(i, data, place)
                _write(descriptor, data, first)
            return size

        in_parallel(chunks.count, FETCHERS, one, progress)
        os.fsync(descriptor)
        os.rename(partial, target)
    except OSError as error:
        raise CoreError(target, f"cannot be written: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes, first: int) -> None:
    """Writes all of it at that place: where a disk has no room for the rest, a call writes less
    than it was given and says nothing, and the next one says why. Raises OSError."""
    rest = memoryview(data)
    while rest:
        count = os.pwrite(descriptor, rest, first)
        rest, first = rest[count:], first + count


def mend(chunks: Chunks, place: Remote, target: Path, progress: Progress | None) -> None:
    """Fetches what is wrong of a fetched copy again, and nothing else. Raises CoreError."""
    try:
        with suppress(FileNotFoundError):  # another process mends it
            os.rename(target, target.with_name(target.name + PARTIAL))
    except OSError as error:
        raise CoreError(target, f"cannot be written: {error.strerror}") from error
    fetch(chunks, place, target, deadline(chunks.nbytes), progress)


def _check_space(chunks: Chunks, descriptor: int, target: Path) -> None:
    """CoreError where the disk cannot hold what an earlier call left and all the rest."""
    held = os.fstat(descriptor).st_blocks * DISK_BLOCK_NBYTES
    free = shutil.disk_usage(target.parent).free
    if chunks.nbytes - held > free:
        raise CoreError(target, f"{chunks.what}: out of disk space: needs {chunks.nbytes - held} "
                                f"more bytes, {free} are free")


def _holds(chunks: Chunks, i: int, data: bytes, place: Path) -> bool:
    """True if these are the bytes of a chunk. Zeros of a fresh file are not tried."""
    if data.count(0) == len(data):
        return False
    try:
        chunks.verify(i, data, place)
    except CoreError:
        return False
    return True
