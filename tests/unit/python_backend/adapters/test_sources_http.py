"""Adapters over HTTP from a real server on loopback: whole and of one version, or not at all."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from python_backend.adapters import oms_library, source_http, sources
from python_backend.adapters.signing import BUNDLE_FILE, SIGNATURE_FILE, Signature, SignedFile
from python_backend.adapters.source_problem import Problem, SourceFailed
from python_backend.errors import InvalidArgument
from python_backend.source_settings import SourceSettings
from tests.badadapters import good
from tests.badadapters.files import CONFIG_FILE, WEIGHTS_FILE
from tests.badadapters.shard_kinds import INDEX_FILE, PARTS, shard
from tests.unit.python_backend.adapters.publisher_house import pair
from tests.unit.python_backend.adapters.web_house import Web, serving

pytestmark = pytest.mark.usefixtures("_quick")
WEIGHTS = f"/lora/{WEIGHTS_FILE}"


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PAUSE_S", 0.01)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    good().write(tmp_path / "origin")
    return served(tmp_path / "origin")


def served(folder: Path) -> dict[str, bytes]:
    return {f"/lora/{path.name}": path.read_bytes() for path in folder.iterdir()}


def fetch(web: Web, tmp: Path, uri: str = "", **settings: Any) -> dict[str, bytes]:
    into = tmp / "into"
    into.mkdir()
    settings = {"allow": (web.url,), **settings}
    cancel = settings.pop("cancel", threading.Event())
    progress = settings.pop("progress", lambda done, size: None)
    try:
        sources.fetch(uri or f"{web.url}/lora/", into, SourceSettings(**settings), progress, cancel)
        return {f"/lora/{path.name}": path.read_bytes() for path in into.iterdir()}
    finally:
        for path in into.iterdir():
            path.unlink()
        into.rmdir()


def refused(problem: Problem, web: Web, tmp: Path, uri: str = "", **settings: Any) -> str:
    with pytest.raises(SourceFailed) as caught:
        fetch(web, tmp, uri, **settings)
    assert caught.value.problem is problem, caught.value.message
    assert caught.value.message.startswith(f"adapter_failed: {problem}: ")
    assert "127.0.0.1" not in caught.value.message
    return caught.value.sentence


def test_what_is_served_arrives_and_nothing_else(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serving(files | {"/lora/training_args.bin": b"a pickle"}) as web:
        seen: list[tuple[int, int | None]] = []
        assert fetch(web, tmp_path, progress=lambda *step: seen.append(step)) == files
        assert seen[-1] == (sum(map(len, files.values())), len(files[WEIGHTS]))
        assert not any("training_args" in path for path, _ in web.asked)


def test_parts_arrive_by_their_index(tmp_path: Path) -> None:
    shard(good(), tmp_path / "origin")
    with serving(served(tmp_path / "origin")) as web:
        assert fetch(web, tmp_path) == web.files
        del web.files[f"/lora/{PARTS[1]}"]
        assert PARTS[1] in refused(Problem.NOT_FOUND, web, tmp_path)
        del web.files[f"/lora/{INDEX_FILE}"]
        assert WEIGHTS_FILE in refused(Problem.NOT_FOUND, web, tmp_path)


@pytest.mark.parametrize("name", [SIGNATURE_FILE, BUNDLE_FILE])
def test_what_is_signed_arrives_too(tmp_path: Path, files: dict[str, bytes], name: str) -> None:
    (tmp_path / "origin" / "README.md").write_text("about it")
    (tmp_path / "origin" / "notes.txt").write_text("not signed, so not fetched")
    found = {"README.md": "00" * 32}
    if name == BUNDLE_FILE:
        pair(tmp_path / "key")
        text = oms_library.sign(tmp_path / "key", "fin_risk_v1", found)
    else:
        (readme,) = (SignedFile(name=one, size=8, sha256=sha256) for one, sha256 in found.items())
        text = Signature(key_id="k", lora_id="x", created=1, files=(readme,)).to_json()
    (tmp_path / "origin" / name).write_text(text)
    with serving(served(tmp_path / "origin")) as web:
        arrived = fetch(web, tmp_path)
    assert arrived.keys() == {*files, "/lora/README.md", f"/lora/{name}"}
    with serving({**files, f"/lora/{name}": b"none"}) as web:
        assert fetch(web, tmp_path).keys() == {*files, f"/lora/{name}"}


def test_a_cut_file_is_taken_up_where_it_broke(tmp_path: Path, files: dict[str, bytes]) -> None:
    size = len(files[WEIGHTS])
    with serving(files, cuts=[size // 3, size // 3]) as web:
        assert fetch(web, tmp_path) == files
        begun = [int(r[6:-1]) if r else 0 for path, r in web.asked if path == WEIGHTS]
        assert len(begun) == 4 and 0 < begun[1] < begun[2] and begun[3] == 0


@pytest.mark.parametrize("how", [{"tagged": False}, {"ranges": False}])
def test_what_cannot_be_taken_up_begins_anew(
    tmp_path: Path, files: dict[str, bytes], how: dict[str, Any]
) -> None:
    with serving(files, cuts=[50_000], **how) as web:
        assert fetch(web, tmp_path) == files


def test_a_file_that_always_breaks_off(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serving(files, cuts=[0] * 50) as web:
        refused(Problem.CUT_OFF, web, tmp_path)
        assert len(web.asked) == 1 + sources.MAX_TRIES


def test_a_server_that_fails_at_first(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serving(files, status={WEIGHTS: 503}) as web:
        threading.Timer(0.03, web.status.clear).start()
        assert fetch(web, tmp_path) == files
        web.status[WEIGHTS] = 500
        refused(Problem.CUT_OFF, web, tmp_path)


def test_not_found_and_forbidden(tmp_path: Path, files: dict[str, bytes]) -> None:
    config = f"/lora/{CONFIG_FILE}"
    with serving(files) as web:
        assert CONFIG_FILE in refused(Problem.NOT_FOUND, web, tmp_path, f"{web.url}/other")
        web.status[config] = 403
        assert CONFIG_FILE in refused(Problem.FORBIDDEN, web, tmp_path)
        web.status = {WEIGHTS: 401}
        assert WEIGHTS_FILE in refused(Problem.FORBIDDEN, web, tmp_path)


@pytest.mark.parametrize("sized", [True, False])
def test_the_cap_is_exact_and_counts_what_is_read(
    tmp_path: Path, files: dict[str, bytes], sized: bool
) -> None:
    total = sum(map(len, files.values()))
    with serving(files, sized=sized) as web:
        assert fetch(web, tmp_path, max_bytes=total) == files
        refused(Problem.TOO_LARGE, web, tmp_path, max_bytes=total - 1)


def test_a_slow_server_is_left_at_the_deadline(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serving(files, pace_s=0.05) as web:
        began = time.monotonic()
        refused(Problem.TIMED_OUT, web, tmp_path, deadline_s=1.0)
        assert time.monotonic() - began < 3


def test_a_silent_server_is_left_too(
    tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_http, "STALL_S", 0.1)
    monkeypatch.setattr(sources, "MAX_TRIES", 2)
    with serving(files, silent_s=0.5) as web:
        refused(Problem.CUT_OFF, web, tmp_path)


def test_nobody_waits_for_what_is_not_wanted(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serving(files, pace_s=0.05) as web:
        cancel = threading.Event()
        threading.Timer(0.3, cancel.set).start()
        began = time.monotonic()
        refused(Problem.CANCELLED, web, tmp_path, cancel=cancel)
        assert time.monotonic() - began < 3


def test_changed_between_two_reads(tmp_path: Path, files: dict[str, bytes]) -> None:
    def change(path: str) -> None:
        if path == WEIGHTS:
            web.files[path] = web.files[path][:-1] + b"!"

    # Of one file: what has arrived is of the version before.
    with serving(dict(files), cuts=[50_000], after=change) as web:
        assert WEIGHTS_FILE in refused(Problem.CHANGED, web, tmp_path)
    # Behind its back: the first file, while the second is read.
    config = f"/lora/{CONFIG_FILE}"

    def change_config(path: str) -> None:
        if path == WEIGHTS:
            web.files[config] += b" "

    with serving(dict(files), after=change_config) as web:
        assert CONFIG_FILE in refused(Problem.CHANGED, web, tmp_path)


def test_redirects_lead_only_where_it_is_allowed(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serving(files) as web, serving(dict(files)) as other:
        web.redirects[WEIGHTS] = f"{other.url}{WEIGHTS}"
        refused(Problem.NOT_ALLOWED, web, tmp_path)
        assert not other.asked
        assert fetch(web, tmp_path, allow=(web.url, other.url)) == files
        for target in (
            "file:///etc/passwd",
            "ftp://127.0.0.1/x",
            "http://169.254.169.254/latest/meta-data",
            f"{web.url}/lora/../secret",
        ):
            web.redirects[WEIGHTS] = target
            refused(Problem.NOT_ALLOWED, web, tmp_path)
        web.redirects[WEIGHTS] = WEIGHTS
        assert "too often" in refused(Problem.NOT_FOUND, web, tmp_path)


def test_credentials_go_only_where_they_belong(
    tmp_path: Path, files: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(files, needs="Bearer s3cret") as web, serving(dict(files)) as other:
        path = tmp_path / "credentials.yaml"
        path.write_text(f'https: {{"{web.url}/lora": {{Authorization: "Bearer s3cret"}}}}')
        path.chmod(0o600)
        allow = (web.url, other.url)
        assert fetch(web, tmp_path, credentials_file=path, allow=allow) == files
        web.redirects[WEIGHTS] = f"{other.url}{WEIGHTS}"
        assert fetch(web, tmp_path, credentials_file=path, allow=allow) == files
        assert other.asked and not any("Authorization" in given for given in other.headers)
        path.chmod(0o640)
        sentence = refused(Problem.CREDENTIALS, web, tmp_path, credentials_file=path)
        assert "chmod 600" in sentence and "s3cret" not in sentence
    assert "s3cret" not in caplog.text


def test_a_name_is_judged_by_where_it_leads(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serving(files) as web:
        port = web.url.rpartition(":")[2]
        local = f"http://localhost:{port}/lora"
        # Plain http by scheme is for this machine only, and https never leads to it.
        assert fetch(web, tmp_path, local, allow=("http",)) == files
        refused(Problem.NOT_ALLOWED, web, tmp_path, f"https://localhost:{port}", allow=("https",))
        with pytest.raises(InvalidArgument, match="not allowed by settings"):
            fetch(web, tmp_path, allow=())
