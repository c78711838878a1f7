"""A small http server on 127.0.0.1 that serves ranges of a folder, and misbehaves on request."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class RangeServer:
    """with RangeServer(folder) as server: server.url. `misbehave` maps a request to an answer."""

    def __init__(self, folder):
        self.requests = []
        self.misbehave = lambda path, first, data: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self, folder)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, handler, folder):
        first, last = map(int, re.match(r"bytes=(\d+)-(\d+)", handler.headers["Range"]).groups())
        whole = (folder / handler.path.lstrip("/")).read_bytes()
        data = whole[first : last + 1]
        self.requests.append((handler.path, first))
        status, headers = 206, {"Content-Range": f"bytes {first}-{last}/{len(whole)}"}
        other = self.misbehave(handler.path, first, data)
        if other is not None:
            status, headers, data = other[0], headers | other[1], other[2]
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        if "Content-Length" not in headers:
            handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
