"""What operators decided is there again after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server import harness, image_start
from tests.server.admin_tools import ask, copy_marker, ended, listed, says
from tests.server.shapes import expect_error

pytestmark = pytest.mark.server

LATER = "mark_later_v1"


def test_decisions_outlive_the_server(tmp_path: Path) -> None:
    harness.make_demo(tmp_path / "demo", markers=2)
    with harness.running(tmp_path / "demo", tmp_path / "state") as server:
        first, second = server.markers
        copy_marker(server, first, LATER)
        assert ended(server.client, "add", lora_id=LATER)["state"] == "done"
        ask(server.client, "disable", lora_id=first)
        ask(server.client, "pin", lora_id=second)
        ask(server.client, "alias_set", alias="marked", to=LATER)
        ask(server.client, "alias_set", alias="gone", to=second)
        ask(server.client, "remove", lora_id=second)
    # As a container comes back.
    with image_start.running(tmp_path / "demo", tmp_path / "state") as server:
        rows = listed(server.client)
        assert rows[first]["state"] == "disabled" and second not in rows
        with expect_error("not_found"):
            says(server.client, first)
        word, served = says(server.client, "marked")
        assert (word, served.split("@")[0]) == (server.markers[first], LATER)
        for name in ("gone", second):
            with expect_error("not_found"):
                says(server.client, name)
        assert ask(server.client, "alias_rollback", alias="marked")["changed"]
        with expect_error("invalid_argument"):
            says(server.client, "marked")
