"""The host executor's threads, queue and errors."""

import os
import select
import threading
import time

import numpy as np
import pytest
from host_machine import Machine

from helios_dod.contract.wire import manifest_pb2 as wire
from helios_dod.executors.base import DeviceError
from helios_dod.executors.host import run
from helios_dod.executors.host.chunks import CLAIM
from helios_dod.executors.host.executor import HostExecutor


def counter(threads: int) -> Machine:
    """Program 0 adds the staged rows to an accumulator."""
    m = Machine(threads=threads)
    m.staging("x", wire.F32, (16, 64))
    m.state("sum", wire.F32, (16, 64))
    m.matrix("one", "F32", 64, 64, np.eye(64, dtype=np.float32).view(np.uint8))
    m.program(
        wire.Product(
            rows=wire.ROWS_LANES,
            input=m.part("x"),
            weight=m.names["one"],
            output=m.part("sum"),
            accumulate=True,
        )
    )
    return m.load()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_two_frames_run_in_order(threads: int) -> None:
    m = counter(threads)
    for frame, value in ((0, 1.0), (1, 100.0)):
        m.view("x", frame)[:] = value
        m.live(0, 16, 0, frame)
    for sequence in range(1, 401):
        m.executor.submit(sequence % 2, 0, sequence)
        while m.executor.poll() < sequence - 1:
            time.sleep(0)
    m.executor.drain()
    assert m.executor.poll() == 400
    assert np.all(m.view("sum") == 200 * 101.0)
    m.executor.close()


def test_finish_is_signalled_and_idle_threads_sleep() -> None:
    m = counter(2)
    poller = select.poll()
    poller.register(m.executor.descriptor(), select.POLLIN)
    m.live(0, 16, 0)
    for sequence in (1, 2, 3):
        m.executor.submit(0, 0, sequence)
        assert poller.poll(10_000)
        os.eventfd_read(m.executor.descriptor())
        assert m.executor.poll() == sequence
        deadline = time.monotonic() + 10
        while m.executor._control[run.SLEEPERS] < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert m.executor._control[run.SLEEPERS] == 2  # both sleep in the kernel
    m.executor.close()


def test_close_ends_the_threads() -> None:
    before = threading.active_count()
    m = counter(3)
    m.live(0, 16, 0)
    m.executor.submit(0, 0, 1)
    assert threading.active_count() == before + 3
    m.executor.close()
    m.executor.close()
    assert threading.active_count() == before
    assert np.all(m.view("sum") == m.view("x"))


def test_a_full_queue_and_a_dead_thread_are_errors() -> None:
    m = counter(2)
    m.view("x")[:] = 1
    m.live(0, 16, 0)
    with pytest.raises(DeviceError, match="queued already"):
        for sequence in range(1, 10_000):
            m.executor.submit(0, 0, sequence)
    m.executor.drain()
    m.executor._failure = ValueError("cause")
    with pytest.raises(DeviceError, match="cause"):
        m.executor.poll()
    with pytest.raises(DeviceError, match="cause"):
        m.executor.submit(0, 0, 10_000)
    m.executor.close()


def test_a_thread_that_dies_within_a_chunk_does_not_hang_the_others() -> None:
    m = counter(2)
    m.live(0, 16, 0)
    m.executor._control[CLAIM] += 1  # a claimed chunk that nobody will finish
    m.executor.submit(0, 0, 1)
    time.sleep(0.01)
    assert m.executor.poll() == 0
    m.executor._failure = ValueError("cause")
    with pytest.raises(DeviceError, match="cause"):
        m.executor.drain()
    m.executor.close()


def broken(change) -> None:
    m = Machine(threads=1)
    m.state("x", wire.F32, (16, 64))
    m.state("y", wire.F32, (16, 32))
    m.matrix("w", "F32", 32, 64, np.zeros((32, 64), np.float32).view(np.uint8))
    product = wire.Product(
        rows=wire.ROWS_LANES, input=m.part("x"), weight=m.names["w"], output=m.part("y")
    )
    change(m, product)
    m.program(product)
    m.load()


@pytest.mark.parametrize(
    "change,message",
    [
        (lambda m, p: m.weights.clear(), "no weight resource 'w'"),
        (lambda m, p: m.weights.update(w=np.zeros(8, np.uint8)), "holds 8"),
        (
            lambda m, p: p.input.CopyFrom(m.part("x", 0, 63)),
            r"'w' \[32, 64\]: input has 63 columns",
        ),
        (lambda m, p: setattr(m.manifest.buffers[m.names["y"]], "kind", 0), "'y': kind 0"),
        (lambda m, p: setattr(p, "weight", m.names["x"]), "'x' is not a panel matrix"),
    ],
)
def test_manifests_that_do_not_fit_are_refused(change, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        broken(change)


def test_an_unloaded_executor_closes() -> None:
    HostExecutor(2).close()
