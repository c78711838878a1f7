"""Mutations of cores that are small and unfold to much: messages, counts, texts, weight files."""

import json

from helios_dod.contract.strict import LICENSE_NBYTES_MAX
from helios_dod.contract.wire import core_pb2
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.cores.layout import INDEX_NBYTES_MAX, WEIGHTS_MAX
from helios_dod.frontend.prompt import CONTROLS_MAX
from helios_dod.frontend.tokenizer_parts import TEXT_MAX

COUNTS = (10, 1000, 30_000, 66_000, 300_000)
DEPTHS = (1, 1, 2, 3, 4)
NBYTES = (0, 1, 4095, 4096, 4097, 1 << 20)


def length(count):
    """A number as protobuf writes it."""
    data = b""
    while count > 127:
        data, count = data + bytes([count & 127 | 128]), count >> 7
    return data + bytes([count])


def field(number, data):
    """A field that is stored with its length."""
    return length(number << 3 | 2) + length(len(data)) + data


def unfolding(descriptor, rng):
    """Bytes behind a message of that type: many tiny parts, somewhere inside it."""
    way = []
    for _ in range(rng.choice(DEPTHS)):
        parts = [part for part in descriptor.fields if part.message_type is not None]
        if not parts:
            break
        way.append(rng.choice(parts))
        descriptor = way[-1].message_type
    inner = rng.choice(descriptor.fields or [None])
    kind = rng.randrange(4)
    if inner is None or kind == 0:
        part = field(rng.choice((way[-1].number if way else 1, 99)), b"")
    elif kind == 1:  # of whatever type it is
        part = field(inner.number, bytes(rng.randrange(3)))
    elif kind == 2:
        part = length(inner.number << 3) + b"\1"
    else:  # packed numbers, a long text, or noise
        part = field(inner.number, rng.choice((b"\0", b"x")) * rng.choice(NBYTES))
    data = part * min(rng.choice(COUNTS), (2 << 20) // len(part))
    if len(way) > 1 and rng.random() < 0.5:  # every one of them inside messages of its own
        data = field(way[-1].number, part) * min(rng.choice(COUNTS), (2 << 20) // (len(part) + 4))
        way.pop()
    for outer in reversed(way):
        data = field(outer.number, data)
    return data


def body_unfolds(honest, files, body, rng):
    return body.SerializeToString() + unfolding(body.DESCRIPTOR, rng)


def manifest_unfolds(honest, files, body, rng):
    data = honest.frames["execution_manifest"]
    if rng.random() < 0.3:  # beside code that does not compress
        code = wire.CudaModule(name="code", cubin=rng.randbytes(rng.choice((1, 340_000))))
        data += wire.ExecutionManifest(modules=[code]).SerializeToString()
    honest.put(files, body, "execution_manifest",
               data + unfolding(wire.ExecutionManifest.DESCRIPTOR, rng))


def tokens_unfold(honest, files, body, rng):
    honest.put(files, body, "token_bytes",
               honest.frames["token_bytes"] + unfolding(core_pb2.TokenBytes.DESCRIPTOR, rng))


def longest(honest, files, body, rng):
    """Licences and catalogs as long as they may be, or longer."""
    kind = rng.randrange(3)
    if kind < 2:
        count = LICENSE_NBYTES_MAX + rng.choice((-1, 0, 1, 4, 4096))
        letter = rng.choice(("x", "\0", "é", "\U0001f642"))
        body.license_text = letter * (count // len(letter.encode()))
        if rng.random() < 0.5:
            body.license_text = "x" * LICENSE_NBYTES_MAX
    if kind > 0:
        room = INDEX_NBYTES_MAX - body.ByteSize() + rng.choice((-1 << 20, -4096, -200, 0, 1 << 20))
        parts = rng.choice((1, 2, 50))
        body.weight_catalogs.extend([bytes(max(room, 0) // parts)] * parts)
        if rng.random() < 0.5:
            body.rebuild_manifest = body.weight_catalogs.pop()


def many_weights(honest, files, body, rng):
    """Weight resources that all lie in one file."""
    found = core_pb2.LocationSet.FromString(honest.files["locations.pb"])
    path = next(part.path for part in found.locations if part.resource_id == body.weights[0].id)
    for i in range(rng.choice((1, 30, WEIGHTS_MAX - 1, WEIGHTS_MAX, 5000))):
        body.weights.add().CopyFrom(body.weights[0])
        body.weights[-1].id = f"more-{i}"
        found.locations.add(resource_id=f"more-{i}", path=path)
    files["locations.pb"] = found.SerializeToString()


def controls_unfold(honest, files, body, rng):
    """Special tokens that are many or long, whose ids an image layout may reserve."""
    serving = body.deployment.contract if honest.carrier == "payload" else body.contract
    document = json.loads(honest.frames["tokenizer"])
    special, reserved = rng.random() < 0.5, rng.random() < 0.5
    size = rng.choice((1, TEXT_MAX - 8, TEXT_MAX, TEXT_MAX + 1, 5000))
    count = min(rng.choice((1, 30, 1000, 5000)), (CONTROLS_MAX + rng.choice((-4096, 4096))) // size)
    letters = rng.choice(("x", "ab", "<|>", "\u4e00"))
    document["added_tokens"] = [
        {"id": rng.randrange(17), "content": f"{i}{letters * size}"[:size], "single_word": False,
         "lstrip": False, "rstrip": False, "normalized": False, "special": special}
        for i in range(count)]
    honest.put(files, body, "tokenizer", json.dumps(document).encode())
    if reserved:
        tokens = serving.model.frontend.image.tokens
        for token in rng.sample(range(17), 4):
            tokens.before.add(token=token)
            tokens.feature_tokens.append(token)


BOMBS = (*[controls_unfold] * 2, body_unfolds, *[manifest_unfolds] * 2, tokens_unfold, longest,
         many_weights)
