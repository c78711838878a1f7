"""Cores on disk: a folder of a signed index, compressed resources and raw weights.

Payload cores (what `helios prepare` writes):

    core.pb            helios.SignedCore: Ed25519 over the bytes of a CoreBody, format version 2
    locations.pb       helios.LocationSet: where each resource lies in the folder; unsigned
    resources/ID.zst   one zstd frame an executable resource
    weights.bin        raw weights, memory-mapped
Logical-resource cores hold the same under index.pb, a helios.ProtectedIndex: version 6 with frames
and digests as above, version 4 with resources sealed by AES-GCM under the user's key (sealed.py).
Beside both:

    acceptance.json    that this user accepted the publisher's namespace, and for which licence text

Every byte that is used is covered by the signature: chunk digests of what is stored, and the length
of what it decodes to. Knows nothing of the engine.
"""
