"""A web server on loopback that behaves as badly as a test asks for."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclasses.dataclass
class Web:
    """What is served, and how."""

    files: dict[str, bytes]
    url: str = ""
    #: Sends at most so many bytes of a body, then breaks the connection; once for each entry.
    cuts: list[int] = dataclasses.field(default_factory=list)
    #: Seconds between two kilobytes.
    pace_s: float = 0.0
    #: Seconds between the headers and the body.
    silent_s: float = 0.0
    status: dict[str, int] = dataclasses.field(default_factory=dict)
    redirects: dict[str, str] = dataclasses.field(default_factory=dict)
    tagged: bool = True
    ranges: bool = True
    #: Without a length the end of the connection is the end of the file.
    sized: bool = True
    needs: str = ""
    #: Called behind each answer with the path.
    after: Callable[[str], object] = lambda path: None
    #: (path, Range) of each request.
    asked: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    headers: list[dict[str, str]] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def serving(files: dict[str, bytes], **how: Any) -> Iterator[Web]:
    """A running server of ``files`` by path."""
    web = Web(files, **how)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            answer(web, self)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    web.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()


def answer(web: Web, handler: BaseHTTPRequestHandler) -> None:
    """Answers one request."""
    path, wanted = handler.path, handler.headers.get("Range", "")
    web.asked.append((path, wanted))
    web.headers.append(dict(handler.headers.items()))
    denied = web.needs and handler.headers.get("Authorization") != web.needs
    status = 403 if denied else web.status.get(path, 200 if path in web.files else 404)
    if path in web.redirects:
        handler.send_response(302)
        handler.send_header("Location", web.redirects[path])
        handler.end_headers()
        return
    if status != 200:
        handler.send_error(status)
        return
    body = web.files[path]
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    begin = 0
    if web.ranges and wanted and handler.headers.get("If-Range", tag) == tag:
        begin = int(wanted.removeprefix("bytes=").rstrip("-"))
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
    else:
        handler.send_response(200)
    if web.sized:
        handler.send_header("Content-Length", str(len(body) - begin))
    if web.tagged:
        handler.send_header("ETag", tag)
    handler.end_headers()
    time.sleep(web.silent_s)
    cut = web.cuts.pop(0) if web.cuts and len(body) > 1000 else len(body)
    send(handler, body[begin : begin + cut], web.pace_s)
    if cut < len(body):
        # What is in the client's buffer when the connection breaks may be lost to it.
        time.sleep(0.2)
    web.after(path)
    handler.close_connection = True


def send(handler: BaseHTTPRequestHandler, body: bytes, pace_s: float) -> None:
    with contextlib.suppress(OSError):
        for at in range(0, len(body), 1024 if pace_s else 1 << 20):
            handler.wfile.write(body[at : at + (1024 if pace_s else 1 << 20)])
            time.sleep(pace_s)
        handler.wfile.flush()
