"""The compile line appears when something is compiled, and only then."""

import io

import numba

from helios_dod.compiling import compile_line


def test_line_counts_what_is_compiled():
    stream = io.StringIO()
    inner = numba.njit(lambda a: a + 1)
    outer = numba.njit(lambda a: inner(a) * 2)
    with compile_line("compiling", stream):
        assert outer(3) == 8
    lines = stream.getvalue().splitlines()
    assert lines[0] == "compiling ..." and lines[1].startswith("compiling: 2 functions in ")
    stream = io.StringIO()
    with compile_line("compiling", stream):
        assert outer(4) == 10
    assert stream.getvalue() == ""
