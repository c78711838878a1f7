"""`helios chat` against the real server over the engine's test double."""

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import server_harness
import text_tables
from server_harness import Server, serving, wait_until

COMMAND = [sys.executable, "-m", "helios_dod", "chat"]
ENV = {**os.environ, "PYTHONPATH": str(server_harness.HERE.parent), "TERM": "dumb"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    core = tmp_path_factory.mktemp("core") / "tokenizer.json"
    core.write_text(text_tables.byte_level().tokenizer.to_str())
    with serving(core, env={"FAKE_TICK_MS": "5"}) as running:
        yield running


def chat(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], input=text, capture_output=True, text=True,
                          env=ENV, timeout=server_harness.PATIENCE_S)


def test_one_shot(server: Server) -> None:
    done = chat("--url", server.url, "--temperature", "0", "--max-tokens", "12", "Hello", "you")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(" The quick") and done.stdout.endswith("\n")
    piped = chat("--url", server.url + "/v1", "--temperature", "0", "--max-tokens", "12",
                 text="Hello you")
    assert piped.stdout == done.stdout


@pytest.mark.parametrize(("arguments", "words"), [
    (["--url", "http://127.0.0.1:1", "x"], "cannot reach"),
    (["--url", "ftp://x", "x"], "--url"),
    (["--url", "http://x:99999", "x"], "--url"),
])
def test_errors_are_one_line(arguments: list[str], words: str) -> None:
    done = chat(*arguments)
    assert done.returncode == 1 and words in done.stderr and done.stderr.count("\n") == 1


def test_refusals_are_shown(server: Server) -> None:
    wrong = chat("--url", server.url, "--model", "other", "x")
    assert wrong.returncode == 1 and "other" in wrong.stderr
    failed = chat("--url", server.url, "a<nonfinite>")
    assert failed.returncode == 1 and "not finite" in failed.stderr


class Terminal:
    """The command on a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self.text = ""
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            # A job of a shell without job control inherits an ignored SIGINT; a terminal does not.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execve(sys.executable, [*COMMAND, *arguments], ENV)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self.descriptor, 4096)
            except OSError:
                return
            if not part:
                return
            self.text += part.decode("utf-8", "replace")

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def prompts(self) -> int:
        return len(re.findall(r"(?:^|\n)> ", self.text))

    def wait_prompt(self, count: int) -> None:
        wait_until(lambda: self.prompts() >= count, f"prompt {count} in {self.text!r}")


def test_conversation(server: Server) -> None:
    streams = "helios_http_streams_total"
    before = server.metric(streams)
    # 1,500 tokens take more than seven seconds: the answer cannot end before the interrupt.
    terminal = Terminal("--url", server.url, "--temperature", "0", "--max-tokens", "1500")
    try:
        terminal.wait_prompt(1)
        terminal.type("Hello\n")
        wait_until(lambda: "quick" in terminal.text, "an answer")
        os.kill(terminal.pid, signal.SIGINT)
        terminal.wait_prompt(2)
        server.idle()
        assert server.metric("helios_cancelled_total") >= 1
        terminal.type("/reset\n")
        terminal.wait_prompt(3)
        terminal.type("/what\n")
        wait_until(lambda: terminal.text.count("/reset forgets") == 2, "help")
        terminal.wait_prompt(4)
        terminal.type("again\n")
        wait_until(lambda: terminal.text.count("quick") == 2, "another answer")
        os.kill(terminal.pid, signal.SIGINT)
        terminal.wait_prompt(5)
        terminal.type("/exit\n")
        assert os.waitpid(terminal.pid, 0)[1] == 0, terminal.text
        assert server.metric(streams) == before + 2
    finally:
        os.close(terminal.descriptor)


@pytest.mark.parametrize(("command", "word"), [("serve", "--queue-capacity"), ("chat", "--url")])
def test_help(command: str, word: str) -> None:
    done = subprocess.run([*COMMAND[:-1], command, "--help"], capture_output=True, text=True,
                          env=ENV, timeout=server_harness.PATIENCE_S)
    assert done.returncode == 0 and word in done.stdout
