"""The workloads keep their figures, and the same seed is the same trace."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter

import pytest

from loadtests.cast import Member
from loadtests.plan import Call, Load
from loadtests.traces import by_time, call, from_jobs, gamma, loop, prompts
from tools.simulate.workloads import Workload, slora, vtc, zipf

HUNDRED = [Member("fin", f"fin_w{n:04d}_v1", f"word{n}") for n in range(100)]


def test_gamma_gaps_have_their_rate_and_variation() -> None:
    times = gamma(50.0, 400.0, cv=2.0, seed=3)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times == sorted(times)
    assert times[-1] < 400.0
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("cv", [0.5, 1.0, 4.0])
def test_gamma_reaches_to_the_end(cv: float) -> None:
    for seed in range(50):
        times = gamma(2.0, 30.0, cv=cv, seed=seed)
        assert gamma(2.0, 60.0, cv=cv, seed=seed)[: len(times)] == times


def test_the_same_seed_is_the_same_trace() -> None:
    def load(seed: int) -> Load:
        jobs, _ = zipf(Workload(requests=300, adapters=100, rate=5.0, seed=seed))
        return Load(seconds=30.0, arrivals=from_jobs(jobs, HUNDRED, 30.0, seed=seed))

    assert load(1) == load(1)
    assert load(1).digest == load(1).digest
    assert load(1).digest != load(2).digest


def test_the_digest_is_of_every_part() -> None:
    one = Load(seconds=10.0, loops=(loop(HUNDRED[:1], 4, user="unary", seed=1, words=2),))
    other = one.model_copy(update={"seconds": 11.0})
    again = Load(seconds=10.0, loops=(loop(HUNDRED[:1], 4, user="unary", seed=2, words=2),))
    assert len({one.digest, other.digest, again.digest}) == 3
    # Of this load on every machine: a plan that changes by itself would compare two loads.
    assert one.digest.startswith("ed8188e70eaf6e8a")


def test_zipf_asks_the_first_for_a_fifth() -> None:
    jobs, _ = zipf(Workload(requests=20_000, adapters=100, rate=100.0))
    calls = from_jobs(jobs, HUNDRED, 1e9)
    asked = Counter(one.lora_id for one in calls)
    assert asked[HUNDRED[0].lora_id] / len(calls) == pytest.approx(0.193, abs=0.01)
    ten = sum(asked[member.lora_id] for member in HUNDRED[:10])
    assert ten / len(calls) == pytest.approx(0.565, abs=0.015)


def test_slora_asks_by_a_power() -> None:
    jobs, _ = slora(Workload(requests=20_000, adapters=100, rate=100.0), power=0.5)
    calls = from_jobs(jobs, HUNDRED, 1e9)
    asked = Counter(one.lora_id for one in calls)
    # P(power(a) < 0.01) is 0.01^a.
    assert asked[HUNDRED[0].lora_id] / len(calls) == pytest.approx(0.1, abs=0.01)


def test_vtc_is_on_and_off() -> None:
    jobs, _ = vtc(Workload(requests=2_000, rate=2.5, shortest=4, longest=4))
    calls = from_jobs(jobs, [Member("fin", "fin_a_v1"), Member("svc", "svc_a_v1")], 240.0)
    by_minute = Counter((one.department, int(one.at // 60)) for one in calls)
    assert by_minute == {
        ("fin", 0): 30, ("fin", 2): 30,
        ("svc", 0): 120, ("svc", 1): 120, ("svc", 2): 120, ("svc", 3): 120,
    }  # fmt: skip


def test_jobs_become_calls() -> None:
    jobs, _ = zipf(Workload(requests=50, adapters=4, rate=1.0, shortest=3, longest=5))
    calls = from_jobs(jobs, HUNDRED[:4], 20.0)
    words = {member.lora_id: member.word for member in HUNDRED}
    assert [one.user for one in calls[:4]] == ["grpc_stream", "http_stream", "unary", "grpc_stream"]
    assert all(one.at < 20.0 and one.word == words[one.lora_id] for one in calls)
    assert all(3 <= len(one.prompt.split()) <= 5 and 3 <= one.tokens <= 5 for one in calls)


def test_a_loop_takes_turns() -> None:
    calls = loop(HUNDRED[:2], 7, user="unary", seed=5, length=4, words=3)
    assert [one.lora_id for one in calls] == ["fin_w0000_v1", "fin_w0001_v1"] * 2
    assert len({one.prompt for one in calls}) == 4


def test_prompts_differ_and_come_again() -> None:
    first, again = prompts(1), prompts(1)
    texts = [first(5) for _ in range(20)]
    assert texts == [again(5) for _ in range(20)]
    assert len({*texts}) == 20
    assert all(len(text.split()) == 5 for text in texts)


def test_calls_are_put_in_order() -> None:
    def at(when: float) -> Call:
        return call(HUNDRED[0], "Hi", 1, at=when)

    assert [one.at for one in by_time([at(3), at(1)], [at(2)])] == [1, 2, 3]
