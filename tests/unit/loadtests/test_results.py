"""What a run leaves behind is read back as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests import results
from loadtests.results import Fault, Machine, ResultsProblem, Run, Sample, Verdict
from tests.unit.loadtests.records import request

RUN = Run(
    scenario="isolation",
    configuration="protected",
    options={"seconds": 40.0},
    started="2026-01-01T00:00:00+00:00",
    seconds=40.0,
    machine=Machine(cpus=2, memory_bytes=8 << 30, gpu=None),
    versions={"vllm": "0.32.0"},
    settings={"admission": {"reserve_seats": 0}},
    protections={"fair queue": True},
    trace="0" * 64,
    budget=(Verdict(name="wrong_routes", measured=0.0, limit=0.0, ok=True, samples=120),),
    ok=True,
)


def test_a_run_comes_back(tmp_path: Path) -> None:
    results.write_run(tmp_path, RUN)
    assert results.read_run(tmp_path) == RUN
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResultsProblem, match=r"run\.json: No such file.*finished run"):
        results.read_run(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"format": 1', '"format": 2', "format: Input should be 1"),
        ('"scenario"', '"scenaro"', "scenario: Field required"),
        ('"ok": true\n}', '"ok": true', "Invalid JSON"),
    ],
)
def test_a_wrong_run_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    results.write_run(tmp_path, RUN)
    file = tmp_path / "run.json"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ResultsProblem, match=said):
        results.read_run(tmp_path)


def test_parts_are_merged_by_when_they_were_due(tmp_path: Path) -> None:
    first = [request(0.1), request(0.9)]
    second = [request(0.5), request(0.1, sent=0.2)]
    results.write_lines(tmp_path / "requests.0.jsonl", first)
    results.write_lines(tmp_path / "requests.1.jsonl", second)
    assert results.merge(tmp_path) == 4
    assert list(results.requests(tmp_path)) == [second[1], first[0], second[0], first[1]]
    assert [path.name for path in tmp_path.iterdir()] == ["requests.jsonl"]


def test_what_a_killed_writer_leaves_is_read(tmp_path: Path) -> None:
    file = tmp_path / results.REQUESTS
    with file.open("w") as writing:
        results.append(writing, request())
        writing.write('{"t": 0.7, "se')
    assert list(results.requests(tmp_path)) == [request()]


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / results.REQUESTS
    text = request().model_dump_json()
    file.write_text(text + "\n" + text.replace("grpc_stream", "gopher") + "\n")
    with pytest.raises(ResultsProblem, match=r"requests\.jsonl:2: user: Input should be"):
        list(results.requests(tmp_path))


def test_samples_and_faults_come_back(tmp_path: Path) -> None:
    down = Sample(t=1, rss={"a": 1}, fds={}, threads={}, shm=0, series=0, metrics=None)
    up = Sample(
        t=2,
        rss={"a": 1},
        fds={"a": 2},
        threads={"a": 3},
        shm=4,
        series=5,
        metrics={'lora_breaker_state{signal="routing"}': 0.0},
    )
    fault = Fault(t=3.0, fault="kill_engine", target="vllm_lora", healed=20.5, down=19.0)
    results.write_lines(tmp_path / results.SAMPLES, [down, up])
    assert list(results.samples(tmp_path)) == [down, up]
    assert list(results.faults(tmp_path)) == []
    results.write_lines(tmp_path / results.FAULTS, [fault])
    assert list(results.faults(tmp_path)) == [fault]
