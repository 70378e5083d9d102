"""Which remote sources are allowed: by URI, and by the address that a name leads to. Pure."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Sequence
from urllib.parse import SplitResult, unquote, urlsplit

from python_backend.errors import InvalidArgument
from python_backend.source_settings import SCHEMES

#: The same words as for folders: nobody learns what is allowed elsewhere.
NOT_ALLOWED = "not allowed by settings (sources.allow)"
_MAX_LENGTH = 2048
_PORTS = {"https": 443, "http": 80}
#: Where clouds answer with credentials, beside the link-local addresses.
_METADATA = {
    ipaddress.ip_address(text) for text in ("fd00:ec2::254", "100.100.100.200", "168.63.129.16")
}
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclasses.dataclass(frozen=True)
class Remote:
    """A remote folder that the settings allow: ``uri`` has no slash at its end."""

    uri: str
    scheme: str

    @property
    def path(self) -> str:
        """The URI without its scheme."""
        return self.uri.partition("://")[2]


def is_remote(source: str) -> bool:
    """Whether ``source`` is written like a URI of one of our schemes."""
    return source.partition(":")[0].lower() in SCHEMES


def _origin(parts: SplitResult) -> tuple[str, str, int | None]:
    if parts.scheme in _PORTS:
        return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]
    return parts.scheme, parts.netloc, None


def _segments(path: str) -> list[str]:
    return [unquote(part) for part in path.split("/") if part]


class Rules:
    """What ``sources.allow`` says.

    Args:
        allow: schemes, or beginnings of URIs.
    """

    def __init__(self, allow: Sequence[str]) -> None:
        entries = [urlsplit(entry if ":" in entry else f"{entry}://") for entry in allow]
        self._schemes = {entry.scheme for entry in entries if not entry.netloc}
        self._prefixes = [entry for entry in entries if entry.netloc]

    def remote(self, source: str) -> Remote:
        """The folder that ``source`` names.

        Raises:
            InvalidArgument: it is not allowed, or not written as it must be.
        """
        uri = source.rstrip("/")
        parts = self._checked(uri)
        if "@" in parts.netloc:
            raise InvalidArgument("source", "holds credentials; use sources.credentials_file")
        if parts.query or parts.fragment or "?" in uri or "#" in uri:
            raise InvalidArgument("source", "must have no query and no fragment")
        if "%" in parts.path and parts.scheme not in _PORTS:
            # A store reads it as it stands, while a prefix that is allowed would be compared with
            # what it decodes to.
            raise InvalidArgument("source", "must have no % in a store's path")
        return Remote(f"{parts.scheme}://{uri.partition('://')[2]}", parts.scheme)

    def allows(self, url: str) -> bool:
        """Whether an address that a server redirects to may be asked too."""
        try:
            return "@" not in self._checked(url).netloc
        except InvalidArgument:
            return False

    def _checked(self, uri: str) -> SplitResult:
        not_allowed = InvalidArgument("source", NOT_ALLOWED)
        printable = uri.isascii() and uri.isprintable() and " " not in uri and "\\" not in uri
        if not printable or len(uri) > _MAX_LENGTH or "://" not in uri:
            raise not_allowed
        try:
            parts = urlsplit(uri)
            origin = _origin(parts)
        except ValueError:
            raise not_allowed from None
        segments = _segments(parts.path)
        # Decoded once: what a server may read as a way up, and "%2f" as a separator.
        plain = not any(part in (".", "..") or "/" in part for part in segments)
        if parts.scheme not in SCHEMES or not parts.netloc or not plain:
            raise not_allowed
        if parts.scheme in self._schemes or any(
            _origin(prefix) == origin
            and segments[: len(wanted := _segments(prefix.path))] == wanted
            for prefix in self._prefixes
        ):
            self._check_literal(parts)
            return parts
        raise not_allowed

    def _check_literal(self, parts: SplitResult) -> None:
        """A host that is an address already is resolved by nobody, so it is judged here."""
        try:
            ipaddress.ip_address(parts.hostname or "")
        except ValueError:
            return
        if parts.scheme in _PORTS and not self.may_connect(
            parts.scheme, parts.hostname or "", parts.hostname or ""
        ):
            raise InvalidArgument("source", NOT_ALLOWED)

    def may_connect(self, scheme: str, host: str, address: str) -> bool:
        """Whether ``host`` may be asked at ``address``, which is what its name has led to.

        A host that the settings name may lie anywhere. Where only the scheme is allowed, ``https``
        leads neither to this machine nor to where clouds give away credentials, and ``http``
        leads to this machine only.
        """
        if any(p.scheme == scheme and p.hostname == host.lower() for p in self._prefixes):
            return True
        found: Address = ipaddress.ip_address(address.partition("%")[0])
        mapped = getattr(found, "ipv4_mapped", None)
        found = found if mapped is None else mapped
        if scheme == "http":
            return found.is_loopback
        refused = (
            found.is_loopback
            or found.is_link_local
            or found.is_multicast
            or found.is_unspecified
            or found.is_reserved
            or found in _METADATA
        )
        return not refused
