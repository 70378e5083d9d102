"""Are the ports free? Triton's own message names neither the flag nor the holder."""

from __future__ import annotations

import socket

from tools.serving.arguments import Ports
from tools.serving.problem import ServeProblem


def check_free(host: str, ports: Ports) -> None:
    """Refuse before the model is loaded rather than after.

    Raises:
        ServeProblem: two ports are equal, a port is taken or may not be opened, or ``host`` is no
            address of this machine; names the port and its flag.
    """
    flags: dict[int, str] = {}
    for flag, port in ports.by_flag().items():
        if port in flags:
            raise ServeProblem(f"{flags[port]} and {flag} are both {port}: give each its own port")
        flags[port] = flag
    for port, flag in flags.items():
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, protocol) as probe:
                # As the server will: a port whose last owner is gone is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen(1)
        except socket.gaierror as error:
            raise ServeProblem(f"--host {host}: {error.strerror}; give an address") from error
        except OSError as error:
            raise ServeProblem(
                f"port {port} on {host} cannot be used: {error.strerror}; "
                f"stop what holds it or choose another with {flag}"
            ) from error
