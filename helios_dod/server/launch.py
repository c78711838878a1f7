"""Starting and stopping a server: the parent supervises, one engine, N workers.

Everything shared is inherited by fork: nothing has a name, so nothing is left behind by a crash.
"""

import contextlib
import errno
import gc
import multiprocessing
import os
import resource
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from helios_dod.errors import UserError
from helios_dod.executors.base import DeviceError
from helios_dod.ledger import EMPTY, Ledger
from helios_dod.server.control import (
    ENGINE_FAILED,
    ENGINE_READY,
    ENGINE_STARTING,
    SharedMemory,
    get_cause,
    set_cause,
)
from helios_dod.server.options import CLOSE_SECONDS, ServeOptions
from helios_dod.server.processes import die_with_parent, ended, exit_text, process_exit
from helios_dod.world import dtype_of

ENGINE_STOP_SECONDS = 15
QUIET_SECONDS = 5  # for workers to let go of a dead engine's memory
HEADER_SECONDS = 30  # for a request's head to arrive
HEADER_BYTES = 65_536
CONNECTIONS_SPARE = 4096  # connections above the permits: idle ones, and clients that get a 429
DESCRIPTORS_SPARE = 256
SOCKET_PATH_MAX = 107  # bytes that an address of a Unix socket has room for


class LaunchError(UserError):
    """The server cannot start; the text says what to do."""


@dataclass
class Launch:
    """What the parent holds."""

    options: ServeOptions
    memory: SharedMemory
    wake_engine: int
    wake_workers: list[int]
    ledger: Ledger | None = None  # of --record
    engine_pid: int = 0
    restarts: int = 0  # of the engine
    told: int = 0  # the engine whose end was printed


def reserve_port(host: str, port: int) -> socket.socket:
    """Binds the address for the life of the server, without listening.

    A plain bind first: granian's own SO_REUSEPORT would let a second server share the port
    silently. Raises LaunchError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            chosen = probe.getsockname()[1]
        held = socket.socket(family, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, chosen))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise LaunchError(f"port {port} of {host} is in use: stop the other server or choose "
                              "another port with --port") from None
        raise LaunchError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    except (TypeError, UnicodeError):  # as no name of a host is written
        raise LaunchError(f"--host: not the name of a host: {host!r}") from None
    return held


def reserve_socket(path: Path) -> None:
    """Makes room for a Unix socket. Raises LaunchError if a server answers there."""
    if len(os.fsencode(path)) > SOCKET_PATH_MAX:
        raise LaunchError(f"--uds: a path of at most {SOCKET_PATH_MAX} bytes expected, got "
                          f"{len(os.fsencode(path))}")
    if not path.exists():
        return
    if not path.is_socket():
        raise LaunchError(f"--uds: {path} exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise LaunchError(f"--uds: {path} is in use: stop the other server or choose another path")


def reserve(options: ServeOptions) -> socket.socket | None:
    """The address for the life of the server. Raises LaunchError."""
    if options.uds is not None:
        reserve_socket(options.uds)
        return None
    return reserve_port(options.host, options.port)


def eventfd() -> int:
    """A non-blocking eventfd, not inherited across exec."""
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


def prepare(options: ServeOptions) -> Launch:
    """Makes the shared memory, zeroed; the engine boots the world in it."""
    memory = SharedMemory(options.limits)
    service = memory.service
    service["permit_count"] = options.permits
    service["worker_count"] = options.workers
    service["parent_pid"] = os.getpid()
    service["started_ns"], service["origin_ns"] = time.time_ns(), time.monotonic_ns()
    recorded = options.engine.record is not None
    return Launch(options, memory, eventfd(), [eventfd() for _ in range(options.workers)],
                  Ledger(dtype_of(options.limits).itemsize) if recorded else None)


def start_engine(launch: Launch) -> None:
    """Forks the engine process."""
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        engine_main(launch, parent)
    launch.engine_pid = pid
    launch.memory.service["engine_pid"] = pid


def engine_main(launch: Launch, parent: int) -> NoReturn:
    """The engine process: it ignores signals and ends by state, after the workers."""
    code = 1
    service, options = launch.memory.service, launch.options
    try:
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)  # a restart forks from the parent's loop, which listens
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

        def ready() -> None:
            service["engine_state"] = ENGINE_READY
            for wake in launch.wake_workers:
                os.eventfd_write(wake, 1)

        engine = replace(options.engine, ready=ready, queue_capacity=options.queued,
                         ledger=launch.ledger,
                         stopping=lambda: bool(service["engine_stop"]))
        options.run_engine(options.core, launch.memory.world, options.limits_name,
                           launch.wake_engine, launch.wake_workers, engine)
        code = 0
    except BaseException as error:
        known = isinstance(error, (UserError, DeviceError, OSError, MemoryError))
        set_cause(service, str(error) or type(error).__name__)
        if service["engine_state"] != ENGINE_STARTING:  # else the parent says it
            print(f"helios: the engine failed: {error}", file=sys.stderr)
        if not known:
            traceback.print_exc()
        service["engine_failed_at_start"] = (
            service["engine_state"] == ENGINE_STARTING and not service["announced"][0])
        service["engine_state"] = ENGINE_FAILED
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def look_after_engine(launch: Launch) -> None:
    """Records how the engine ended, if it has, and starts it again where that is wanted."""
    service, options = launch.memory.service, launch.options
    if not launch.engine_pid or service["draining"] or not ended(launch.engine_pid):
        return
    status = process_exit(launch.engine_pid)
    if not get_cause(service):
        set_cause(service, f"the engine process {exit_text(status)}")
    if service["engine_state"] == ENGINE_STARTING and not service["announced"][0]:
        service["engine_failed_at_start"] = 1
        os.kill(os.getpid(), signal.SIGTERM)  # nothing can ever be served
        return
    service["engine_state"] = ENGINE_FAILED
    if service["engine_failed_at_start"]:
        return  # the server is ending, and its own error says why
    save_recording(launch)
    if launch.restarts >= options.restarts:
        if launch.told != launch.engine_pid:
            launch.told = launch.engine_pid
            print(f"helios: {get_cause(service)}; requests are answered 503", file=sys.stderr)
        return
    launch.restarts += 1
    service["engine_restarts"] = launch.restarts
    for wake in launch.wake_workers:
        os.eventfd_write(wake, 1)
    quiet = launch.memory.control[0]["workers"]["quiet"][: options.workers]
    deadline = time.monotonic() + QUIET_SECONDS
    while (quiet < launch.restarts).any() and time.monotonic() < deadline:
        time.sleep(0.01)
    print(f"helios: {get_cause(service)}; starting the engine again "
          f"({launch.restarts} of {options.restarts})", file=sys.stderr)
    os.waitpid(launch.engine_pid, 0)
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(launch.wake_engine)
    service["cause_count"] = 0
    service["engine_state"] = ENGINE_STARTING
    start_engine(launch)
    for wake in launch.wake_workers:
        os.eventfd_write(wake, 1)


def save_recording(launch: Launch) -> None:
    """Writes the recording of an engine that was killed; one that failed wrote its own."""
    engine = launch.options.engine
    if launch.ledger is None or engine.record is None or launch.ledger.state == EMPTY:
        return
    from helios_dod.recording import salvage  # the tick with it: not before an engine is killed

    try:
        salvage(launch.ledger, launch.memory.world, launch.options.limits.name, engine.record,
                get_cause(launch.memory.service))
    except UserError as error:
        print(f"helios: --record: {error}", file=sys.stderr)


def begin_drain(launch: Launch) -> bool:
    """A signal asks for the end: True if workers need not finish, because they were asked before
    or there is nothing to finish, and one that is still starting may miss a polite signal."""
    service = launch.memory.service
    at_once = bool(service["draining"] or service["engine_failed_at_start"]
                   or service["engine_state"] == ENGINE_STARTING)
    service["draining"] = 1
    return at_once


def stop_engine(launch: Launch) -> None:
    """Ends the engine after the workers, and waits for it."""
    launch.memory.service["engine_stop"] = 1
    os.eventfd_write(launch.wake_engine, 1)
    deadline = time.monotonic() + ENGINE_STOP_SECONDS
    while time.monotonic() < deadline:
        if os.waitpid(launch.engine_pid, os.WNOHANG)[0]:
            return
        time.sleep(0.01)
    print("helios: the engine does not stop; killing it", file=sys.stderr)
    os.kill(launch.engine_pid, signal.SIGKILL)
    os.waitpid(launch.engine_pid, 0)
    set_cause(launch.memory.service, "the engine did not stop")
    save_recording(launch)


def raise_descriptors(connections: int) -> None:
    """Lets a worker hold so many connections, as far as this machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = connections + DESCRIPTORS_SPARE
    if soft != resource.RLIM_INFINITY and soft < need:
        most = need if hard == resource.RLIM_INFINITY else min(need, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def run_workers(launch: Launch) -> None:
    """Runs granian until a signal ends it and its workers have drained."""
    from granian.constants import Interfaces
    from granian.http import HTTP1Settings
    from granian.log import LogLevels
    from granian.server.mp import MPServer

    from helios_dod.server.app import App  # not before: an engine that starts needs none of it
    from helios_dod.server.supervisor import Supervisor

    gc.freeze()
    options, parent = launch.options, os.getpid()
    raise_descriptors(options.permits + CONNECTIONS_SPARE)
    multiprocessing.set_start_method("fork", force=True)
    index = [0]

    def spawn(worker_id: int, *args: Any, **kwargs: Any) -> None:
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        os.setpgid(0, 0)  # a terminal's Ctrl-C is for the parent, which tells the workers
        index[0] = worker_id - 1
        MPServer._spawn_asgi_lifespan_worker(worker_id, *args, **kwargs)

    def load() -> App:
        return App(options, launch.memory, index[0], launch.wake_engine,
                   launch.wake_workers)

    certificate, key = options.tls or (None, None)
    server = Supervisor(
        "helios", address=options.host, port=options.port, uds=options.uds,
        interface=Interfaces.ASGI, ssl_cert=certificate, ssl_key=key,
        workers=options.workers, backlog=2048, websockets=False, log_level=LogLevels.warning,
        backpressure=options.permits + CONNECTIONS_SPARE, respawn_failed_workers=True,
        http1_settings=HTTP1Settings(
            header_read_timeout=HEADER_SECONDS * 1000, max_buffer_size=HEADER_BYTES),
        workers_kill_timeout=options.drain_seconds + CLOSE_SECONDS,
        engine_ended=partial(look_after_engine, launch), stopping=partial(begin_drain, launch))
    server.serve(spawn_target=spawn, target_loader=load, wrap_loader=False)


class Server:
    """The model's workers and the listener, from start to drain."""

    @staticmethod
    def start(options: ServeOptions, held: socket.socket | None = None) -> int:
        """Serves until SIGTERM or SIGINT; the exit status. held: the port, if it is reserved.

        Raises LaunchError if the port is taken or the engine fails before it is ready."""
        held = held or reserve(options)
        if held is not None:
            host, port = held.getsockname()[:2]  # granian takes addresses, not names
            options = replace(options, host=host, port=port)
        launch = prepare(options)
        gc.freeze()  # children share the pages of what is loaded: no collection writes there
        start_engine(launch)
        try:
            run_workers(launch)
        finally:
            stop_engine(launch)
            if held is not None:
                held.close()
            elif options.uds is not None:
                options.uds.unlink(missing_ok=True)
        service = launch.memory.service
        if service["engine_failed_at_start"]:
            raise LaunchError(get_cause(service) or "the engine process ended before it was ready")
        return 0
