"""The wire contract, decoded: protobuf in, frozen and validated structures out.

Knows nothing of the engine. Everything that a core declares is checked here once, at load; what
passes is plain integers, strings and tuples.
"""
