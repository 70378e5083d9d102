"""The command: what it writes, and what it says of folders that cannot be used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from click.testing import Result
from markupsafe import escape
from typer.testing import CliRunner

from loadtests import results
from tests.unit.tools.report import folders
from tests.unit.tools.report.folders import UNPROTECTED, fault, looks, refused, request
from tools.report.command import report
from tools.report.figures import Report


def call(*arguments: object) -> Result:
    app = typer.Typer()
    app.command()(report)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A run before and a run after, with everything that a page can show."""
    state = 'lora_breaker_state{signal="routing"}'
    heap = 'lora_memory_fragmentation_ratio{pool="heap"}'
    seen = looks(
        *((0, 1.0, {state: 0.0, heap: 0.2}), (4, 1.5, {state: 2.0, heap: 0.3})),
        *((5, 0.0, None), (8, 1.2, {state: 3.0, heap: 0.1})),
    )
    asked = [
        *(request(t / 4, lora_id=f"fin_risk_v{t % 3}") for t in range(12)),
        request(4, department="svc", total=2.0),
        refused(5, "unavailable", ttft=0.1),
        refused(6, "not_found", kind="forbidden"),
    ]
    before = folders.write(tmp_path / "before", asked, seen, **UNPROTECTED)
    return before, folders.write(tmp_path / "after", asked, seen, [fault(4.5, 3.0, 2.5)])


def test_it_writes_a_page_and_its_figures(tmp_path: Path) -> None:
    done = call(*pair(tmp_path), "--out", tmp_path / "out", "--price-per-hour", "2", "--goal", 9)
    assert done.exit_code == 0, done.output
    made = Report.model_validate_json((tmp_path / "out" / "report.json").read_text("utf-8"))
    assert [one.label for one in made.sides] == ["unprotected", "protected"]
    assert made.plan.price_per_hour == 2
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    for name in ("ttft", "total", "curve", "answers", "memory", "fragmentation", "refusals"):
        assert f'id="plot-{name}"' in page
    assert 'id="plot-breakers"' in page
    for text in ("148 GB → 82 GB", "3.2 % → 0.7 %", "1200 ms → 420 ms", "→ 3.92 %", "40 % →"):
        assert text in page
    assert "protected missed its budget: errors." in page
    assert '0.5 <span class="n">n=8</span> <span class="bad">missed</span>' in page
    for assumption in made.plan.assumptions:
        assert str(escape(assumption)) in page
    assert done.output.split() == [str(tmp_path / "out" / f"report.{n}") for n in ("json", "html")]


def test_the_page_asks_nobody_for_anything(tmp_path: Path) -> None:
    call(*pair(tmp_path), "--out", tmp_path)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "default-src 'none'" in page
    assert not re.search(r"<(?:script|link|img|iframe)[^>]*\s(?:src|href)=", page)


def test_names_in_results_are_text_on_the_page(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    asked = [request(0, department=evil), request(1), refused(2, "<b>odd</b>")]
    first = folders.write(tmp_path / "a", asked, **{**UNPROTECTED, "configuration": evil})
    second = folders.write(tmp_path / "b", asked)
    assert call(first, second, "--out", tmp_path).exit_code == 0
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "<img" not in re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert "<b>odd" not in page


def cut(folder: Path, name: str) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:-20])


def spoiled(folder: Path, name: str) -> None:
    lines = (folder / name).read_text().splitlines(keepends=True)
    (folder / name).write_text("".join([lines[0], '{"t": "soon"}\n', *lines[1:]]))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    before, _ = pair(tmp_path)
    refused_with(call(before, tmp_path / "gone"), [f"{tmp_path}/gone: no such folder"])


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    before, after = pair(tmp_path)
    (after / "run.json").unlink()
    refused_with(call(before, after), [f"{after}/run.json: No such file"])


def test_other_traces_cannot_be_compared(tmp_path: Path) -> None:
    before, _ = pair(tmp_path)
    other = folders.write(tmp_path / "other", [request(0)], trace="b" * 64)
    refused_with(call(before, other), ["other traces (aaaaaaaaaaaa and bbbbbbbbbbbb)"])


@pytest.mark.parametrize("name", [results.REQUESTS, results.SAMPLES, results.FAULTS])
def test_damage_is_named_by_file_and_line(tmp_path: Path, name: str) -> None:
    before, after = pair(tmp_path)
    lines = len((after / name).read_text().splitlines())
    whole = (after / name).read_bytes()
    cut(after, name)
    refused_with(call(before, after), [f"{after / name}:{lines}: the line is cut off"])
    (after / name).write_bytes(whole)
    spoiled(after, name)
    refused_with(call(before, after), [f"{after / name}:2: "])


def test_a_run_without_requests_is_refused(tmp_path: Path) -> None:
    before, after = pair(tmp_path)
    (after / results.REQUESTS).write_text("")
    refused_with(call(before, after), [f"{after / results.REQUESTS}: no requests"])


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = call(*pair(tmp_path), "--goal", 9, "--out", tmp_path / "file" / "out")
    refused_with(done, [f"--out {tmp_path}/file/out: Not a directory"])


@pytest.mark.parametrize("option", ["--goal=0", "--rate=0", "--price-per-hour=-1", "--seats=0"])
def test_a_wrong_option_is_named(tmp_path: Path, option: str) -> None:
    done = call(*pair(tmp_path), option)
    assert done.exit_code == 2
    assert option.split("=")[0] in done.output


def refused_with(done: Result, texts: Sequence[str]) -> None:
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    for text in texts:
        assert text in line
