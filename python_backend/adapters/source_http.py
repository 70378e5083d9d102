"""Adapters on web servers, through aiohttp on fsspec's loop.

Not through fsspec's own HTTP file system: its stream (2026.9) loses the headers and the word about
redirects that it is given, without which nothing could be continued and every redirect be followed.

Redirects are followed by hand, each address judged like the first; names are judged again by where
they lead when the connection is made, so that a name cannot change its meaning in between.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Mapping
from typing import TypeVar
from urllib.parse import quote, urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from fsspec.asyn import get_loop

from python_backend.adapters.source_problem import (
    AddressRefused,
    Interrupted,
    Problem,
    SourceFailed,
    explained,
    failed,
)
from python_backend.adapters.source_stream import Stamp
from python_backend.adapters.source_uri import Remote, Rules
from python_backend.adapters.source_watch import Watch

T = TypeVar("T")
#: A server that says nothing for so long is taken for dead, seconds.
STALL_S = 30.0
_BLOCK_BYTES = 1 << 20
_MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)


class GuardedResolver(AbstractResolver):
    """Resolves a name, but not to where the rules do not let it lead."""

    def __init__(self, rules: Rules) -> None:
        self._rules, self._inner = rules, aiohttp.ThreadedResolver(loop=get_loop())
        self.scheme = "https"

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of ``host``.

        Raises:
            AddressRefused: one of them is not allowed.
        """
        found = await self._inner.resolve(host, port, family)
        for result in found:
            if not self._rules.may_connect(self.scheme, host, result["host"]):
                raise AddressRefused
        return found

    async def close(self) -> None:
        """Nothing is held."""


class HttpStream:
    """A body that is being received."""

    def __init__(
        self, source: HttpSource, name: str, response: aiohttp.ClientResponse, seen: Stamp | None
    ) -> None:
        self._source, self._name, self._response = source, name, response
        self.offset, size = 0, response.headers.get("Content-Length")
        if response.status == 206:
            span, _, size = response.headers.get("Content-Range", "").partition("/")
            begin = span.removeprefix("bytes ").partition("-")[0]
            if not begin.isdigit():
                raise Interrupted
            self.offset = int(begin)
        tag = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        if response.status == 206 and seen is not None:
            # It has answered If-Range, and need not say again what it has compared.
            tag = response.headers.get("ETag") or seen.tag
        self.stamp = Stamp(int(size) if size and size.isdigit() else None, tag)

    def read(self) -> bytes:
        """The next bytes; none at the end."""
        return self._source.run(self._name, self._response.content.read(_BLOCK_BYTES))

    def close(self) -> None:
        """Gives up what has not been received."""
        get_loop().call_soon_threadsafe(self._response.close)


class HttpSource:
    """The folder ``remote`` of a web server.

    Args:
        headers: request headers by beginning of URI; they go nowhere else, redirected or not.
    """

    def __init__(
        self, remote: Remote, rules: Rules, headers: Mapping[str, Mapping[str, str]], watch: Watch
    ) -> None:
        self._base, self._rules, self._watch = remote.uri, rules, watch
        self._headers = {prefix: (Rules([prefix]), dict(own)) for prefix, own in headers.items()}
        self._resolver = GuardedResolver(rules)
        self._session: aiohttp.ClientSession | None = None

    def _client(self) -> aiohttp.ClientSession:
        # No proxy of the environment: behind one, addresses could not be judged. No cookies.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=self._resolver, use_dns_cache=False),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=STALL_S, sock_read=STALL_S),
            auto_decompress=False,
        )
        return self._session

    def open(self, name: str, offset: int, seen: Stamp | None) -> HttpStream:
        """The file from ``offset`` on, or from its start where that cannot be proven right.

        Raises:
            SourceFailed, Interrupted: it cannot be read, or is another than ``seen``.
        """
        headers = {"Accept-Encoding": "identity"}
        # A weak tag does not promise the same bytes.
        if offset and seen is not None and seen.tag and not seen.tag.startswith("W/"):
            headers |= {"Range": f"bytes={offset}-", "If-Range": seen.tag}
        url = f"{self._base}/{quote(name)}"
        for _ in range(_MAX_REDIRECTS + 1):
            response = self._get(name, url, headers)
            if response.status not in _REDIRECTS:
                stream = HttpStream(self, name, response, seen)
                if seen is not None and stream.stamp != seen:
                    stream.close()
                    raise failed(Problem.CHANGED, name)
                return stream
            target = urljoin(url, response.headers.get("Location", ""))
            get_loop().call_soon_threadsafe(response.close)
            downgraded = urlsplit(url).scheme == "https" != urlsplit(target).scheme
            if downgraded or urlsplit(target).scheme not in ("http", "https"):
                raise failed(Problem.NOT_ALLOWED, name)
            if not self._rules.allows(target):
                raise failed(Problem.NOT_ALLOWED, name)
            url = target
        raise SourceFailed(Problem.NOT_FOUND, f"{name} is redirected too often")

    def _get(self, name: str, url: str, headers: dict[str, str]) -> aiohttp.ClientResponse:
        self._resolver.scheme = urlsplit(url).scheme
        own = [given for rules, given in self._headers.values() if rules.allows(url)]
        for given in own:
            headers = {**headers, **given}

        async def start() -> aiohttp.ClientResponse:
            session = self._session or self._client()
            response = await session.get(url, headers=headers, allow_redirects=False)
            response.raise_for_status()
            return response

        return self.run(name, start())

    def run(self, name: str, work: Awaitable[T]) -> T:
        """``work`` on fsspec's loop. Raises ``SourceFailed`` or ``Interrupted``."""

        async def guarded() -> T:
            try:
                return await work
            except Exception as error:
                raise explained(error, name) from None

        return self._watch.wait(asyncio.run_coroutine_threadsafe(guarded(), get_loop()))

    def stamp(self, name: str) -> Stamp:
        """What the file is now; its body is not received. Raises as ``open``."""
        stream = self.open(name, 0, None)
        stream.close()
        return stream.stamp

    def close(self) -> None:
        """Ends the session; nobody waits for it."""
        if self._session is not None:
            asyncio.run_coroutine_threadsafe(self._session.close(), get_loop())
