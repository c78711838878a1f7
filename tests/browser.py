"""A headless Chromium driven over its debugging pipe, so that no browser library is needed."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_S = 60


def executable() -> str | None:
    """A Chromium of this machine, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page. Commands and events are those of the DevTools protocol."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader, self.writer, self.rest = reader, writer, b""
        self.number = 0
        self.session: str | None = None
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target,
                                 flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def receive(self) -> dict[str, Any]:
        """The next message."""
        while b"\0" not in self.rest:
            part = os.read(self.reader, 1 << 20)
            assert part, "the browser has ended"
            self.rest += part
        message, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(message))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command; its result. Errors that the page reports meanwhile are kept."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        while True:
            got = self.receive()
            if got.get("id") == self.number:
                assert "error" not in got, got
                return dict(got["result"])
            if got.get("method") == "Runtime.exceptionThrown":
                self.errors.append(str(got["params"]["exceptionDetails"]))
            elif got.get("method") == "Log.entryAdded":
                if got["params"]["entry"]["level"] == "error":
                    self.errors.append(str(got["params"]["entry"]))

    def evaluate(self, expression: str) -> Any:
        """A JavaScript value."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression: str) -> Any:
        """The expression's first true value."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            value = self.evaluate(expression)
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"never true: {expression}")

    def size(self, width: int, height: int) -> None:
        """The window."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def screenshot(self, path: Path) -> None:
        """What is seen, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def opened(program: str, folder: Path) -> Iterator[Page]:
    """A page of a browser of its own."""
    to_browser, writer = os.pipe()
    reader, from_browser = os.pipe()

    def descriptors() -> None:
        for number, source in ((13, to_browser), (14, from_browser)):
            os.dup2(source, number)
        os.dup2(13, 3)
        os.dup2(14, 4)

    process = subprocess.Popen(
        [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={folder}"],
        preexec_fn=descriptors, close_fds=False, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL)
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Page(reader, writer)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(reader)
        os.close(writer)
