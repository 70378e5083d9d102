from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tools.serving.arguments import (
    EXIT_TIMEOUT_S,
    HEADER_PATTERN,
    RESTRICTED_APIS,
    Ports,
    restriction,
    server_arguments,
)
from tools.serving.ports import check_free
from tools.serving.problem import ServeProblem
from tools.serving.process import ORPHANS_S, PATIENCE_S


def arguments(*, verbose: bool = False) -> list[str]:
    return server_arguments(
        models=Path("/models"),
        host="127.0.0.1",
        ports=Ports(8000, 8001, 8002),
        admin_key="k",
        shm_prefix="p_",
        verbose=verbose,
    )


def test_all_three_services_listen_on_the_host_given() -> None:
    for service in ("http", "grpc", "metrics"):
        assert f"--{service}-address=127.0.0.1" in arguments()


def test_restriction_is_written_as_triton_reads_it() -> None:
    assert restriction(("trace", "logging"), "v") == "trace,logging:admin-key=v"


def test_both_protocols_restrict_the_same_apis() -> None:
    value = "model-repository,shared-memory,trace,logging:admin-key=k"
    assert f"--http-restricted-api={value}" in arguments()
    assert f"--grpc-restricted-protocol={value}" in arguments()
    assert not {"health", "inference", "metadata"} & set(RESTRICTED_APIS)


@pytest.mark.parametrize("header", ["authorization", "X-Api-Key", "x-lora-id", "Authorization"])
def test_credentials_and_adapter_names_are_forwarded(header: str) -> None:
    assert re.fullmatch(HEADER_PATTERN, header)
    assert not re.fullmatch(HEADER_PATTERN, f"{header}-2")


def test_the_server_s_memory_has_our_prefix() -> None:
    assert "--backend-config=python,shm-region-prefix-name=p_" in arguments()


def test_verbose() -> None:
    assert "--log-verbose=1" in arguments(verbose=True)
    assert "--log-verbose=1" not in arguments()


def test_the_parts_of_a_stop_fit_its_promise_of_30_s() -> None:
    assert EXIT_TIMEOUT_S < PATIENCE_S
    assert PATIENCE_S + 2 * ORPHANS_S < 30


def test_equal_ports_name_both_flags() -> None:
    with pytest.raises(ServeProblem, match="--http-port and --metrics-port are both 8000"):
        check_free("127.0.0.1", Ports(8000, 8001, 8000))


def test_a_taken_port_names_port_and_flag() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        free = [port for port in range(30000, 30003) if port != taken]
        with pytest.raises(ServeProblem, match=f"port {taken} .*--grpc-port"):
            check_free("127.0.0.1", Ports(free[0], taken, free[1]))


def test_a_host_that_is_none() -> None:
    with pytest.raises(ServeProblem, match="--host 999"):
        check_free("999.1.1.1", Ports(30000, 30001, 30002))
