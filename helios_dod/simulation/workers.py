"""Processes that simulate side by side, and end without a word when the command is interrupted."""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event


class Stopped(Exception):
    """The command that asked for a simulation has ended."""


_stopping: list[Event] = []  # of this worker


def _begin(stopping: Event) -> None:
    """The first thing that a worker does; one that started later inherited nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _stopping.append(stopping)


def _nothing() -> None:
    """Work that makes the pool start a process."""


def go_on(_ended: int) -> None:
    """What a study calls now and then. Raises Stopped."""
    if _stopping and _stopping[0].is_set():
        raise Stopped


@contextmanager
def workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes that start anew and ignore the terminal's interrupt from their first
    instruction on: they inherit that. Where the block ends by an exception, what waits is dropped
    and studies that call `go_on` stop."""
    context = get_context("spawn")
    stopping = context.Event()
    main = threading.current_thread() is threading.main_thread()
    with ProcessPoolExecutor(jobs, context, _begin, (stopping,)) as pool:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
        try:
            for _ in range(jobs):  # one starts for each work that finds none idle
                pool.submit(_nothing)
        finally:
            if main:
                signal.signal(signal.SIGINT, before)
        try:
            yield pool
        except BaseException:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
