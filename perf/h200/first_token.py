"""From the start of `helios serve` to the first token over HTTP, each start a new process.

    python perf/h200/first_token.py warm CORE      # makes the core if absent; a start compiles
    python perf/h200/first_token.py CORE [TIMES]

The second prints what the server says while it starts, with seconds since the process began. What
is made has random weights of the 8B shape; a start that only compiles keeps its cache small, so
that others may use the device meanwhile.
"""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO

PORT = 8123
PATIENCE_S = 200
PREPARE = ("prepare", "--random-weights", "llama-3.1-8b", "--target", "cuda-sm90")
WARM_CACHE = "20G"  # holds a request of the whole context, as more does: the same tables and code


def told(stream: IO[str], begun: float) -> None:
    """Prints what a server says, and when."""
    for line in stream:
        print(f"    {time.monotonic() - begun:6.2f} s: {line.rstrip()}", flush=True)


def first_token(core: str, *options: str) -> float:
    """Seconds from the start of the process to the first piece of a streamed answer."""
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "helios_dod", "serve", core, "--port", str(PORT), *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    reader = threading.Thread(target=told, args=(process.stdout, begun), daemon=True)
    reader.start()
    body = json.dumps({"prompt": "The capital of France is", "max_tokens": 4, "stream": True,
                       "model": "any"}).encode()
    try:
        name = ""
        while process.poll() is None and time.monotonic() - begun < PATIENCE_S:
            try:
                address = f"http://127.0.0.1:{PORT}/v1/"
                if not name:
                    with urllib.request.urlopen(address + "models") as answer:
                        name = json.load(answer)["data"][0]["id"]
                    body = body.replace(b'"any"', json.dumps(name).encode())
                request = urllib.request.Request(address + "completions", body,
                                                 {"content-type": "application/json"})
                with urllib.request.urlopen(request) as answer:
                    while not answer.readline().startswith(b"data: {"):
                        pass
                    return time.monotonic() - begun
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.01)
        raise RuntimeError(f"no token within {PATIENCE_S} s; exit status {process.poll()}")
    finally:
        process.terminate()
        process.wait()
        reader.join(1)


def warm(core: str) -> None:
    """Makes the core where there is none, and starts it once, so that everything is compiled and
    its weights are in the page cache."""
    if not Path(core).exists():
        begun = time.monotonic()
        subprocess.run([sys.executable, "-m", "helios_dod", *PREPARE, "--out", core], check=True)
        print(f"prepared in {time.monotonic() - begun:.1f} s", flush=True)
    span = first_token(core, "--cache-memory", WARM_CACHE)
    print(f"a first start that compiles: {span:.1f} s", flush=True)


def main() -> None:
    """Starts with weights that are trusted, and with weights that are compared with digests."""
    if sys.argv[1] == "warm":
        warm(sys.argv[2])
        return
    for options in (("--trust-weights",), ()):
        spans = [first_token(sys.argv[1], *options) for _ in range(int((sys.argv[2:] or ["3"])[0]))]
        print(f"first token with {' '.join(options) or 'verified weights'}: "
              f"{', '.join(f'{span:.2f}' for span in spans)} s, first to last start", flush=True)


if __name__ == "__main__":
    main()
