"""Aliases are pointed elsewhere and back while requests come in."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from tests.server.admin_tools import ask, says
from tests.server.client import Client
from tests.server.harness import Server
from tests.server.shapes import Refused, expect_error, sampling

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("still_healthy")]


@pytest.fixture
def markers(server: Server) -> list[str]:
    return list(server.markers)


def test_a_roll_out_under_traffic(client: Client, server: Server, markers: list[str]) -> None:
    """Each request is answered by exactly one version, and none is refused."""
    old, new = markers[2], markers[3]
    ask(client, "alias_set", alias="admin_alias", to=old)
    heard: list[tuple[float, str]] = []
    failures: list[str] = []
    stop = threading.Event()

    def traffic() -> None:
        other = server.new_client()
        while not stop.is_set():
            began = time.monotonic()
            try:
                word, served = says(other, "admin_alias", sampling_parameters=sampling(n=1))
                name = served.split("@")[0]
                assert server.markers[name] == word
                heard.append((began, name))
            except (Refused, AssertionError) as error:
                failures.append(str(error))
        other.close()

    def since(moment: float) -> Counter[str]:
        return Counter(name for began, name in heard if began > moment)

    def wait_for(count: int, moment: float) -> Counter[str]:
        end = time.monotonic() + 60
        while sum((found := since(moment)).values()) < count:
            assert time.monotonic() < end and not failures, failures[:3]
            time.sleep(0.05)
        return found

    threads = [threading.Thread(target=traffic) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert wait_for(10, 0).keys() == {old}
        ask(client, "alias_set", alias="admin_alias", to=old, canary=new, share=0.5)
        found = wait_for(60, time.monotonic())
        assert found.keys() == {old, new} and found[new] / found.total() > 0.2, found
        ask(client, "alias_set", alias="admin_alias", to=new)
        assert wait_for(10, time.monotonic()).keys() == {new}
        ask(client, "alias_rollback", alias="admin_alias")
        assert wait_for(20, time.monotonic()).keys() == {old, new}
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


def test_an_alias_hides_nobodys_adapter(client: Client, server: Server, markers: list[str]) -> None:
    ask(client, "alias_set", alias="admin_alias", to=markers[0])
    assert says(client, "admin_alias")[1].startswith(f"{markers[0]}@")
    fin = server.new_client("fin")
    with expect_error("invalid_argument"):
        says(fin, "admin_alias")
    fin.close()
