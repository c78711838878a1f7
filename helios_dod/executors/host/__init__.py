"""The host executor: programs as lists of generic operations, on own threads, without the GIL."""
