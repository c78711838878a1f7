"""Cores of a published shape without a checkpoint: zeros that cost no room, noise on a device."""

import numpy as np
import pytest
from ignition_fixtures import TINY as TINY_FILES
from tokenizers import Tokenizer

from helios_dod.cli import main
from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.cores.reader import open_core
from helios_dod.executors.cuda import upload
from helios_dod.ignition.checkpoints.checkpoint import Rotary
from helios_dod.ignition.floats import E4M3_VALUES
from helios_dod.ignition.prepared import PreparationError
from helios_dod.ignition.recipes import shapes
from helios_dod.runtime import devices
from helios_dod.runtime.devices import TargetError
from helios_dod.runtime.selection import Options

TINY = shapes.Shape(2, 128, 4, 2, 32, 256, 1000, False, 512, Rotary(10_000.0, 32))


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    pytest.importorskip("triton", reason="kernels are compiled by Triton")
    target = tmp_path_factory.mktemp("random") / "tiny.core"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(shapes.SHAPES, "tiny", TINY)
        assert main(["prepare", "--random-weights", "tiny", "--target", "cuda-sm90", "--lanes", "2",
                     "--out", str(target)]) == 0
    return open_core(target)


def test_matrices_are_holes_and_vectors_are_there(core):
    weights, manifest = core.weights()["weights"], core.manifest()
    stored = (core.path / "weights.bin").stat()
    assert stored.st_size == weights.size and stored.st_blocks * 512 < weights.size / 4
    for buffer in manifest.buffers:
        if buffer.kind == wire.WEIGHT:
            part = weights[buffer.resource_offset :][: buffer.resource_nbytes]
            assert part.any() == (len(buffer.shape) == 1), buffer.name


def test_noise_is_laid_over_what_is_no_vector(core):
    weights, manifest = core.weights()["weights"], core.manifest()
    made = upload.random_like(manifest, "weights", weights)
    vectors = [buffer for buffer in manifest.buffers
               if buffer.kind == wire.WEIGHT and len(buffer.shape) == 1]
    assert made.nbytes == weights.size and len(made.vectors) == len(vectors) == 2 * 2 + 1 + 1
    for buffer in vectors:
        kept = made.vectors[buffer.resource_offset]
        assert np.array_equal(kept, weights[buffer.resource_offset :][: kept.size])
        assert kept.size == buffer.resource_nbytes


def test_noise_in_e4m3_is_as_large_as_that_in_bf16(tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="kernels are compiled by Triton")
    monkeypatch.setitem(shapes.SHAPES, "tiny", TINY)
    assert main(["prepare", "--random-weights", "tiny", "--target", "cuda-sm90", "--weights", "fp8",
                 "--lanes", "1", "--prefill-tokens", "16,48", "--out", str(tmp_path / "a")]) == 0
    core = open_core(tmp_path / "a")
    weights, manifest = core.weights()["weights"], core.manifest()
    assert {program.packed_token_capacity for program in manifest.programs} == {1, 16, 48, 64}
    made = upload.random_like(manifest, "weights", weights)
    matrices = [buffer for buffer in manifest.buffers if buffer.dtype == wire.F8_E4M3
                and buffer.kind == wire.WEIGHT]
    assert made.eighths == [
        (buffer.resource_offset, buffer.resource_nbytes) for buffer in matrices]
    factors = {weights[buffer.resource_offset :][: buffer.resource_nbytes].view(np.float32)[0]
               for buffer in manifest.buffers if buffer.name.endswith(".weight.scale")}
    values = E4M3_VALUES[made.eighth_noise()] * factors.pop()
    assert len(matrices) == 2 * 4 and not factors
    assert np.isfinite(values).all() and abs(values.std() / 0.02 - 1) < 0.1


def test_every_token_has_a_text_and_bytes_are_tokens(core):
    tokenizer = Tokenizer.from_str(core.tokenizer().decode())
    assert tokenizer.get_vocab_size() == TINY.vocabulary
    text = "Grüße, 世界 <300>"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.id_to_token(999) == shapes.END and not core.token_bytes().special[:999].any()


def test_inspection_says_for_what_its_code_is(core, capsys):
    assert main(["inspect", str(core.path)]) == 0
    row = next(row for row in capsys.readouterr().out.splitlines() if row.startswith("code "))
    manifest = core.manifest()
    nodes = sum(len(manifest.cuda_bodies[program.cuda_body].nodes) for program in manifest.programs)
    assert f"cuda, sm_90, {len(manifest.programs)} graphs of {nodes} nodes" in row
    assert f"{len(manifest.modules)} modules of " in row


def test_what_cannot_be_is_named(core, tmp_path, monkeypatch, capsys):
    with pytest.raises(PreparationError, match=r"expected one of llama-3.1-8b.*got none"):
        shapes.checkpoint_of("none")
    assert main(["prepare", "--random-weights", "llama-3.2-1b", "--out", str(tmp_path / "a")]) == 1
    assert "expected target cuda-sm90, got host" in capsys.readouterr().err
    for target in ("host", "cuda-sm90"):
        assert main(["prepare", "--random-weights", "nonesuch", "--target", target,
                     "--out", str(tmp_path / "a")]) == 1
        assert "expected one of llama-3.1-8b, llama-3.2-1b, smollm2-135m" in capsys.readouterr().err
    assert main(["prepare", "--checkpoint", str(TINY_FILES / "llama2"), "--weights", "fp8",
                 "--out", str(tmp_path / "a")]) == 1
    assert "weights fp8: expected target cuda-sm90, got host" in capsys.readouterr().err
    monkeypatch.setattr(devices, "on_device", lambda *_: False)
    with pytest.raises(TargetError, match="random weights"):
        devices.plan_for_device(core.path, Options(), 0, random_weights=True)
