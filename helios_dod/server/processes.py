"""Process facts of Linux: dying with a parent, how another process ended, peers that vanish."""

import ctypes
import os
import signal
import socket
import stat
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h
KEEPALIVE = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}  # seconds


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when the thread that forked it ends. Exits at once if it has."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def process_exit(pid: int) -> int | None:
    """The wait status of a process that has ended and is not yet waited for, or None.

    Source: proc_pid_stat(5), field 52, exit_code."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    after_name = text.rpartition(")")[2].split()
    return int(after_name[49])


def exit_text(status: int | None) -> str:
    """A wait status in words."""
    if status is None:
        return "has ended"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was killed by {signal.Signals(number).name}"
    return f"ended with exit code {os.WEXITSTATUS(status)}"


def ended(pid: int) -> bool:
    """True if a child has ended; its status stays readable until it is waited for."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def probe_quiet_peers() -> None:
    """Asks the peers of connections that this process accepts from now on, while nothing is said,
    whether they are still there: one that vanished without a word is noticed within two minutes.

    The listener is the HTTP library's and has no name here; what it accepts inherits its options
    (tcp(7)). A peer that pauses answers, and stays."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
        except OSError:
            continue  # the folder's own descriptor, closed by now
        with socket.socket(fileno=os.dup(int(name))) as found:
            inet = found.family in (socket.AF_INET, socket.AF_INET6)
            if inet and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in KEEPALIVE.items():
                    found.setsockopt(socket.IPPROTO_TCP, option, value)
