"""From the start of `helios serve` to the first token over HTTP, each start a new process.

    python perf/h200/first_token.py CORE [TIMES]
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

PORT = 8123
PATIENCE_S = 120


def first_token(core: str, *options: str) -> float:
    """Seconds from the start of the process to the first piece of a streamed answer."""
    begun = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "helios_dod", "serve", core, "--port", str(PORT), *options],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
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


def main() -> None:
    """Starts with weights that are trusted, and with weights that are compared with digests."""
    for options in (("--trust-weights",), ()):
        spans = [first_token(sys.argv[1], *options) for _ in range(int((sys.argv[2:] or ["3"])[0]))]
        print(f"first token with {' '.join(options) or 'verified weights'}: "
              f"{', '.join(f'{span:.2f}' for span in spans)} s, first to last start", flush=True)


if __name__ == "__main__":
    main()
