"""Launches of device code are compared with what the code was specialised for; no GPU is needed."""

import pytest

from helios_dod.contract.cuda import check_cuda
from helios_dod.contract.errors import ContractError
from helios_dod.contract.functions import check_functions
from helios_dod.contract.wire import manifest_pb2 as wire

PAGE_TOKENS = 16


def extent(symbol, multiplier=1):
    return wire.Extent(symbol=symbol, multiplier=multiplier)


def function_of() -> wire.CudaFunction:
    """A product whose rows go to a cache, as preparation declares such."""
    function = wire.CudaFunction(entry="product", threads=128)
    for name, value in (("ROWS", 64), ("COLUMNS", 32), ("HEAD", 4), ("PAGE", PAGE_TOKENS),
                        ("LANES", 8), ("SCALED", 0)):
        function.constants.add(name=name, value=value)

    def pointer(name, dtype, *axes, kind=wire.CUDA_POINTER, **fields):
        function.parameters.add(
            name=name, kind=kind, dtype=dtype, alignment=16, **fields,
            shape=[wire.CudaAxis(factors=[] if axis == "any" else axis.split("*"))
                   for axis in axes])

    pointer("weight", wire.BF16, "ROWS", "COLUMNS")
    pointer("partials", wire.F32, "tokens", "ROWS")
    pointer("plane", wire.F32, "any", "HEAD*PAGE", kind=wire.CUDA_WORDS)
    pointer("live", wire.I32, count_max="LANES")
    for name, dtype in (("tokens", wire.I32), ("scale", wire.F32), ("spare", wire.U64)):
        function.parameters.add(name=name, kind=wire.CUDA_NUMBER, dtype=dtype)
    pointer("word", wire.I64)
    return function


def made() -> wire.ExecutionManifest:
    """A program of 8 lanes with one launch of the product."""
    manifest = wire.ExecutionManifest(live_packed=3, live_lanes=4, live_sampled=5)
    for name, kind, dtype, shape in (
            ("weight", wire.WEIGHT, wire.BF16, [64, 32]),
            ("partials", wire.SCRATCH, wire.F32, [8 * 64]),
            ("plane", wire.CACHE, wire.BF16, [
                extent(wire.PAGES), 8, extent(wire.PAGE_TOKENS)]),
            *((f"live_{name}", wire.STAGING, wire.I32, [1]) for name in (
                "packed", "lanes", "sampled"))):
        manifest.buffers.add(name=name, kind=kind, dtype=dtype, shape=[
            axis if isinstance(axis, wire.Extent) else wire.Extent(multiplier=axis)
            for axis in shape])
    manifest.modules.add(name="products", architecture=90, cubin=b"\x7fELF and more").functions.add(
        ).CopyFrom(function_of())
    manifest.programs.add(name="decode", batch_capacity=8, packed_token_capacity=16, cuda_body=0)
    kernel = manifest.cuda_bodies.add().nodes.add().kernel
    kernel.entry, kernel.grid[:], kernel.block[:] = "product", [4, 1, 1], [128, 1, 1]
    for buffer in (0, 1, 2, 4):
        kernel.arguments.add().address.CopyFrom(wire.CudaAddress(buffer=buffer, alignment=16))
    kernel.arguments.add(word=8)
    kernel.arguments.add(real=0.5)
    kernel.arguments.add(words=0)
    kernel.arguments.add(executor_word=wire.FINISHED_COUNT)
    return manifest


def refused(manifest: wire.ExecutionManifest) -> ContractError:
    check_cuda(manifest)
    with pytest.raises(ContractError) as error:
        check_functions(manifest, PAGE_TOKENS)
    return error.value


def kernel_of(manifest: wire.ExecutionManifest) -> wire.CudaKernel:
    return manifest.cuda_bodies[0].nodes[0].kernel


def constant(manifest, name, value):
    for one in manifest.modules[0].functions[0].constants:
        if one.name == name:
            one.value = value


def test_what_fits_is_accepted():
    manifest = made()
    check_cuda(manifest)
    check_functions(manifest, PAGE_TOKENS)


def test_modules_of_earlier_cores_say_nothing():
    manifest = made()
    manifest.modules[0].ClearField("functions")
    kernel_of(manifest).block[0] = 64
    check_functions(manifest, PAGE_TOKENS)


def resized(index, axis, multiplier):
    return lambda m: setattr(m.buffers[index].shape[axis], "multiplier", multiplier)


def argument(index, **fields):
    return lambda m: kernel_of(m).arguments[index].CopyFrom(wire.CudaArgument(**fields))


@pytest.mark.parametrize("change, field, expected, got", [
    (lambda m: kernel_of(m).block.__setitem__(0, 64), "block", "128 threads", 64),
    (lambda m: setattr(kernel_of(m), "function", 1), "function", "below 1", 1),
    (lambda m: setattr(kernel_of(m), "entry", "other"), "entry", "product", "other"),
    (lambda m: kernel_of(m).arguments.pop(), "arguments", "8 arguments", 7),
    (lambda m: constant(m, "COLUMNS", 64), "arguments[0].address.buffer (weight)",
     "rows of 128 bytes of weight [ROWS, COLUMNS] of product", 64),
    (resized(0, 0, 63), "(weight)", "4096 bytes of weight", 4032),
    (resized(0, 0, 65), "(weight)", "4096 bytes of weight", 4160),
    (resized(1, 0, 511), "(partials)", "at least 2048 bytes of partials [tokens, ROWS]", 2044),
    (argument(4, word=9), "(partials)", "at least 2304 bytes", 2048),
    (lambda m: constant(m, "PAGE", 32), "(plane)", "rows of 512 bytes", 256),
    (lambda m: constant(m, "HEAD", 8), "(plane)", "rows of 512 bytes", 256),
    (resized(2, 1, 4), "(plane)", "rows of 256 bytes of plane [any, HEAD*PAGE]", 128),
    (lambda m: setattr(m.buffers[0], "dtype", wire.F16), "(weight)", "BF16 for weight", "F16"),
    (lambda m: setattr(m.programs[0], "batch_capacity", 9), "(live_lanes)",
     "a count of at most 8, LANES of product", 9),
    (lambda m: setattr(kernel_of(m).arguments[3].address, "buffer", 3), "(live_packed)",
     "a count of at most 8", 16),
    (lambda m: setattr(m, "live_lanes", 5), "(live_lanes)",
     "a live count for live of product", "STAGING"),
    (lambda m: setattr(kernel_of(m).arguments[0].address, "alignment", 8),
     "arguments[0].address.alignment", "at least 16, which product relies on for weight", 8),
    (argument(4, real=8.0), "(partials)", "a number known before load for tokens", "another"),
    (argument(5, word=1), "arguments[5]", "real for scale", "word"),
    (argument(6, word=0), "arguments[6]", "words for spare", "word"),
    (argument(0, words=1), "arguments[0]", "address or executor_word for weight", "words"),
    (argument(1, executor_word=1), "arguments[1].executor_word", "F32 for partials", "8 bytes"),
    (argument(4, extent=wire.Extent(symbol=wire.LANES, multiplier=1)), "(partials)",
     "a number known before load for tokens", "another"),
])
def test_launches_that_the_code_was_not_made_for(change, field, expected, got):
    manifest = made()
    change(manifest)
    error = refused(manifest)
    assert error.field.startswith("manifest.cuda_bodies[0].nodes[0].kernel")
    assert error.field.endswith(field) and expected in error.expected
    assert str(got) in str(error.got)


@pytest.mark.parametrize("change, field", [
    (lambda f: setattr(f, "entry", ""), "entry"),
    (lambda f: setattr(f, "threads", 0), "threads"),
    (lambda f: setattr(f, "threads", 2048), "threads"),
    (lambda f: f.constants.add(name="ROWS", value=1), "constants"),
    (lambda f: f.constants.add(name="LARGE", value=2**31), "constants (LARGE)"),
    (lambda f: f.constants.extend([wire.CudaConstant(name=str(i)) for i in range(64)]),
     "constants"),
    (lambda f: setattr(f.parameters[0], "name", "ROWS"), "parameters"),
    (lambda f: setattr(f.parameters[0], "kind", 0), "parameters[0].kind"),
    (lambda f: setattr(f.parameters[0], "dtype", 0), "parameters[0].dtype"),
    (lambda f: setattr(f.parameters[5], "dtype", wire.BF16), "parameters[5].dtype"),
    (lambda f: setattr(f.parameters[0], "alignment", 24), "parameters[0].alignment"),
    (lambda f: setattr(f.parameters[4], "alignment", 16), "parameters[4]"),
    (lambda f: f.parameters[0].shape[1].factors.append("NONE"), "parameters[0].shape[1].factors"),
    (lambda f: f.parameters[0].shape[1].factors.append("scale"), "parameters[0].shape[1].factors"),
    (lambda f: f.parameters[0].shape[1].ClearField("factors"), "parameters[0].shape[1]"),
    (lambda f: setattr(f.constants[1], "value", -1), "parameters[0].shape[1].factors"),
    (lambda f: setattr(f.parameters[3], "count_max", "scale"), "parameters[3].count_max"),
])
def test_declarations_that_do_not_hold_together(change, field):
    manifest = made()
    change(manifest.modules[0].functions[0])
    assert refused(manifest).field == f"manifest.modules[0].functions[0].{field}"


def test_two_functions_of_one_code_are_told_apart():
    """Equal code may serve two sets of constants: a launch says which one it was made with."""
    manifest = made()
    manifest.modules[0].functions.add().CopyFrom(function_of())
    manifest.modules[0].functions[1].constants[0].value = 128
    check_functions(manifest, PAGE_TOKENS)
    kernel_of(manifest).function = 1
    assert "8192 bytes of weight [ROWS, COLUMNS]" in refused(manifest).expected


def test_what_is_declared_is_bounded_as_a_whole():
    manifest = made()
    for _ in range(4000):
        manifest.modules[0].functions.add().CopyFrom(function_of())
    error = refused(manifest)
    assert error.field.startswith("manifest.modules[0].functions[")
    assert "at most 65536 constants, parameters, axes and factors" in error.expected
