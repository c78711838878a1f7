"""File names, extents and digests of the payload format."""

import hashlib

from helios_dod.contract.decode import VOCABULARY_MAX
from helios_dod.contract.strict import MessageLimits
from helios_dod.contract.wire import core_pb2

FORMAT_VERSION = 2
CHUNK_NBYTES = 4 << 20
WINDOW_NBYTES_MAX = 8 << 20  # the decoder never holds more history
ZSTD_LEVEL = 3
PAGE_NBYTES = 4096  # a weight resource is padded to whole pages

CORE_FILE = "core.pb"  # of payload cores
LOGICAL_FILE = "index.pb"  # of logical-resource cores
FRAMED_VERSION = 6  # ProtectedIndex.version: zstd frames and digests
SEALED_VERSION = 4  # ProtectedIndex.version: authenticated AES-GCM chunks
LOCATIONS_FILE = "locations.pb"
ACCEPTANCE_FILE = "acceptance.json"
RESOURCE_FOLDER = "resources"

INDEX_NBYTES_MAX = 4 << 20  # of core.pb: digests of 490 GB; opening it takes eight times as much
LOCATIONS_NBYTES_MAX = 1 << 20
WEIGHTS_MAX = 512  # resources: a mapped file keeps a descriptor, and processes have 1,024

# What encoded messages may unfold to: an empty one has two bytes and takes 400 in memory.
MANIFEST_MESSAGES_MAX = 400_000  # a node of a graph takes 19: 20,000 nodes
MANIFEST_MESSAGES_BASE = 65_536  # of them however short the stored frame is
INDEX_LIMITS = MessageLimits(messages=65_536, values=262_144)  # values: digests
TOKENS_LIMITS = MessageLimits(messages=16, values=VOCABULARY_MAX + 16)

# Resource kind -> id in cores that we write, and the longest decoded length that is accepted.
RESOURCES: dict[core_pb2.ResourceKind, tuple[str, int]] = {
    core_pb2.EXECUTION_MANIFEST: ("execution_manifest", 16 << 20),
    core_pb2.TOKENIZER: ("tokenizer", 128 << 20),
    core_pb2.CHAT_TEMPLATE: ("chat_template", 4 << 20),
    core_pb2.TOKEN_BYTES: ("token_bytes", 16 << 20),
}

# What a tokenizer and its byte table take at most, beside so many bytes a token of the input
# vocabulary: their memory is bounded by what the signed contract says, not by what they unfold to.
TOKENS_NBYTES_BASE = 1 << 20
TOKEN_NBYTES_MAX = 1 << 10
TOKEN_NBYTES_LONGEST = 1 << 14  # buffers of text are made for the longest token


def manifest_limits(stored_nbytes: int) -> MessageLimits:
    """What a manifest may unfold to. Honest ones hold less than a message for each stored byte,
    since cubins hardly compress; what repeats one empty message unfolds to 3,000 a byte."""
    messages = min(MANIFEST_MESSAGES_BASE + stored_nbytes, MANIFEST_MESSAGES_MAX)
    return MessageLimits(messages=messages, values=4 * messages)


def chunk_count(nbytes: int, chunk_nbytes: int = CHUNK_NBYTES) -> int:
    """Chunks of so many stored bytes; the last one may be shorter."""
    return -(-nbytes // chunk_nbytes)


class ChunkDigests:
    """SHA-256 of every CHUNK_NBYTES of a stream."""

    def __init__(self) -> None:
        self.digests: list[bytes] = []
        self._hash = hashlib.sha256()
        self._filled = 0

    def update(self, data: memoryview) -> None:
        """Appends bytes to the stream."""
        while len(data):
            part = data[: CHUNK_NBYTES - self._filled]
            self._hash.update(part)
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == CHUNK_NBYTES:
                self._close()

    def finish(self) -> list[bytes]:
        """All digests; the stream ends here."""
        if self._filled:
            self._close()
        return self.digests

    def _close(self) -> None:
        self.digests.append(self._hash.digest())
        self._hash = hashlib.sha256()
        self._filled = 0


def chunk_digests(data: bytes) -> list[bytes]:
    """Digests of a whole resource in memory."""
    chunks = ChunkDigests()
    chunks.update(memoryview(data))
    return chunks.finish()
