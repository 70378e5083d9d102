"""The command line of tritonserver."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: Headers that reach the models as request parameters, on /infer and gRPC. The group (?i) because
#: HTTP clients may write headers in any case.
HEADER_PATTERN = "(?i)(authorization|x-api-key|x-lora-id)"
#: APIs that change the server or read other callers' memory. Triton restricts per API, not per
#: model: who may call which model is the gate's decision.
RESTRICTED_APIS = ("model-repository", "shared-memory", "trace", "logging")
#: Header that carries the admin key; gRPC clients prefix it with ``triton-grpc-protocol-``.
ADMIN_HEADER = "admin-key"
#: A BLS call into a decoupled model holds one of these until its first response.
BLS_THREADS = 128
#: Shared memory each model instance starts with, and grows by, in bytes. The default of 1 MiB
#: makes prompts of some hundred thousand characters grow it at once.
SHM_BYTES = 4 * 2**20
#: Seconds Triton waits for requests in flight when told to stop; less than our own patience.
EXIT_TIMEOUT_S = 18


@dataclass(frozen=True)
class Ports:
    """The three ports of a server."""

    http: int
    grpc: int
    metrics: int

    def by_flag(self) -> dict[str, int]:
        """The flag of ``tools serve`` that sets each, with its value."""
        return {
            "--http-port": self.http,
            "--grpc-port": self.grpc,
            "--metrics-port": self.metrics,
        }


def restriction(apis: tuple[str, ...], key: str) -> str:
    """The value of ``--http-restricted-api`` and ``--grpc-restricted-protocol``."""
    return f"{','.join(apis)}:{ADMIN_HEADER}={key}"


def server_arguments(
    *, models: Path, host: str, ports: Ports, admin_key: str, shm_prefix: str, verbose: bool
) -> list[str]:
    """Everything after ``--backend-directory``.

    The admin key must stand on the command line: this Triton reads it from nowhere else. Other
    users of the machine can read it there (``ps``), but with it alone they reach no model; where
    that is too much, run the server in a container or mount /proc with hidepid.
    """
    restricted = restriction(RESTRICTED_APIS, admin_key)
    arguments = [
        f"--model-repository={models}",
        f"--http-address={host}",
        f"--grpc-address={host}",
        f"--metrics-address={host}",
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
        f"--http-header-forward-pattern={HEADER_PATTERN}",
        f"--grpc-header-forward-pattern={HEADER_PATTERN}",
        f"--http-restricted-api={restricted}",
        f"--grpc-restricted-protocol={restricted}",
        f"--backend-config=python,thread-pool-size={BLS_THREADS}",
        f"--backend-config=python,shm-default-byte-size={SHM_BYTES}",
        f"--backend-config=python,shm-growth-byte-size={SHM_BYTES}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        "--exit-on-error=true",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
    ]
    if verbose:
        arguments.append("--log-verbose=1")
    return arguments
