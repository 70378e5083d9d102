"""What the doctor says of everything but GPUs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.unit.tools.doctor.house import CUDA, GIB, ROOMY, bad, facts, only, settings
from tools.doctor.checks import CHECKS, run
from tools.doctor.facts import AdapterFolder, AdapterRoot, Facts, Link, ModelFiles, Versions
from tools.doctor.finding import Result
from tools.policy.check import Remark

MB = 1_000_000


def root(*folders: AdapterFolder, **more: Any) -> AdapterRoot:
    return AdapterRoot(folders=folders, **more)


def one(size_bytes: int = MB, rank: int = 16) -> AdapterFolder:
    return AdapterFolder("fin_risk_v1", rank, size_bytes)


def test_nothing_at_all_is_findings_and_no_crash() -> None:
    found = run(Facts(settings=None, settings_problem="x.yaml: no such file\nx.yaml: key: wrong"))
    assert [f.reason for f in found if f.check == "settings"] == [
        "x.yaml: no such file",
        "x.yaml: key: wrong",
    ]
    assert {f.check for f in found if f.result is Result.FAILURE} == {
        "settings",
        "python",
        "vllm",
        "shm",
    }


def test_every_finding_but_a_good_one_has_a_cure() -> None:
    for found in (Facts(settings=None, settings_problem="wrong"), facts("none"), facts("volta")):
        for finding in run(found):
            assert bool(finding.cure) is (finding.result is not Result.OK), finding


def test_a_check_that_is_skipped() -> None:
    found = Facts(settings=None)
    assert {f.check for f in run(found, CHECKS.keys() - {"shm"})} == {"shm"}


@pytest.mark.parametrize(
    ("changed", "check", "result"),
    [
        ({"python": (3, 10)}, "python", Result.FAILURE),
        ({"python": (3, 13)}, "python", Result.WARNING),
        ({"vllm": ""}, "vllm", Result.FAILURE),
        ({"vllm": "0.19.1"}, "vllm", Result.FAILURE),
        ({"vllm": "0.33.0"}, "vllm", Result.WARNING),
        ({"vllm": "0.32.0"}, "vllm", Result.WARNING),
        ({"vllm": "0.24.0+cu130"}, "vllm", Result.OK),
        ({"triton": "24.09"}, "triton", Result.WARNING),
        ({"triton": ""}, "triton", Result.ADVICE),
        ({"triton_problem": "no tritonserver; run: make setup"}, "triton", Result.FAILURE),
        ({"triton": "24.10", "triton_assembled": True}, "triton", Result.ADVICE),
        ({"triton": "24.10", "numpy": "2.1.0"}, "numpy", Result.FAILURE),
    ],
)
def test_versions(changed: dict[str, Any], check: str, result: Result) -> None:
    versions: Versions = dataclasses.replace(CUDA, **changed)
    assert only(facts(versions=versions), check).result is result


def test_the_assembled_triton_is_for_loopback() -> None:
    versions = dataclasses.replace(CUDA, triton="24.10", triton_assembled=True)
    assert only(facts(versions=versions, host="0.0.0.0"), "triton").result is Result.WARNING


def test_memory_of_a_cpu() -> None:
    cpu = {"versions": dataclasses.replace(CUDA, vllm_cpu=True)}

    def judged(memory: int, engine: dict[str, Any], taken: int = 0) -> Result:
        free = memory - taken
        machine = dataclasses.replace(ROOMY, memory_bytes=memory, memory_free_bytes=free)
        return only(facts("none", engine, machine=machine, **cpu), "memory").result

    kv = {"kv_cache_memory_bytes": 4 * GIB}
    assert judged(64 * GIB, kv) is Result.OK
    assert judged(64 * GIB, {}) is Result.ADVICE
    # Weights 15 GiB, KV cache 4, eight slots 0.7.
    assert judged(21 * GIB, kv) is Result.WARNING
    assert judged(19 * GIB, kv) is Result.FAILURE
    # What is taken may be a server's that is about to end.
    assert judged(64 * GIB, kv, taken=50 * GIB) is Result.WARNING
    unknown = ModelFiles("/m", is_folder=True, shape_problem="model_type 'gpt2' has no formula")
    assert only(facts(model=unknown), "memory").result is Result.ADVICE


@pytest.mark.parametrize(
    ("mib", "tier_mib", "result"),
    [
        (64, 0, Result.WARNING),
        (16, 0, Result.FAILURE),
        (1024, 0, Result.OK),
        (1024, 512, Result.WARNING),
        (1024, 2048, Result.FAILURE),
        (4096, 2048, Result.OK),
    ],
)
def test_shared_memory(mib: int, tier_mib: int, result: Result) -> None:
    machine = dataclasses.replace(ROOMY, shm_bytes=mib << 20, shm_free_bytes=mib << 20)
    given = settings(tiers={"shm_bytes": tier_mib << 20})
    assert only(facts(machine=machine, settings=given), "shm").result is result


def test_bounds_of_the_system() -> None:
    few = dataclasses.replace(
        ROOMY, open_files=1024, threads=512, locked_bytes=64 << 10, rdma=("mlx5_0",)
    )
    assert len(bad(facts(machine=few), "ulimits")) == 2
    two = facts("four_nvlink", {"tensor_parallel_size": 4}, machine=few)
    assert len(bad(two, "ulimits")) == 3
    fewer = settings(limits={"max_pending": 0x7FFF})
    assert "33791" in bad(facts(settings=fewer, machine=few), "ulimits")[0].cure
    taken = dataclasses.replace(ROOMY, ports_problem="port 8000 cannot be used; stop what holds it")
    finding = only(facts(machine=taken), "ports")
    assert (finding.result, finding.cure) == (Result.FAILURE, "stop what holds it")


def test_the_state_directory() -> None:
    small = dataclasses.replace(ROOMY, state_free_bytes=300 * MB)
    assert only(facts(machine=small), "state").result is Result.OK
    for size, result in ((100, Result.ADVICE), (200, Result.WARNING)):
        found = facts(machine=small, adapters=root(one(size * MB)))
        assert only(found, "state").result is result
    again = dataclasses.replace(small, staged_bytes=200 * MB)
    assert only(facts(machine=again, adapters=root(one(200 * MB))), "state").result is (
        Result.ADVICE
    )
    full = dataclasses.replace(ROOMY, state_free_bytes=MB)
    assert only(facts(machine=full), "state").result is Result.FAILURE
    shut = dataclasses.replace(ROOMY, state_problem="it cannot be written")
    assert only(facts(machine=shut), "state").result is Result.FAILURE


@pytest.mark.parametrize(
    ("changed", "check", "result"),
    [
        ({"is_folder": False}, "model", Result.WARNING),
        ({"config": None, "config_problem": "config.json: not JSON"}, "model", Result.FAILURE),
        ({"weights": {}}, "model", Result.FAILURE),
        ({"weights": {}, "other_weights": ("pytorch_model.bin",)}, "model", Result.WARNING),
        ({"weights": {"model.safetensors": 0}}, "model", Result.FAILURE),
        ({"missing": ("model-00002-of-00002.safetensors",)}, "model", Result.FAILURE),
        ({"pointers": ("model.safetensors",)}, "model", Result.FAILURE),
        ({"unreadable": ("tokenizer.json",)}, "model", Result.FAILURE),
        ({"tokenizer": False}, "tokenizer", Result.FAILURE),
        ({"chat_template": False}, "tokenizer", Result.ADVICE),
    ],
)
def test_the_models_files(changed: dict[str, Any], check: str, result: Result) -> None:
    model = dataclasses.replace(facts().model, **changed)
    found = [f for f in run(facts(model=model)) if f.check == check]
    assert found[0].result is result


def test_adapters() -> None:
    broken = AdapterFolder("fin_tax_v1", problem="missing_weights: copy the whole adapter.")
    found = root(one(), broken, writable_by_all=True, strangers=("风控_v1", "Fin Risk", "FIN", "x"))
    reasons = [f.reason for f in bad(facts(adapters=found), "adapters")]
    assert len(reasons) == 2 and "everybody" in reasons[0] and "fin_tax_v1" in reasons[1]
    named = [f.reason for f in bad(facts(adapters=found), "adapter-names")]
    assert [
        word in reason
        for word, reason in zip(("ASCII", "spaces", "capital", "no lora_id"), named, strict=True)
    ] == [True] * 4
    assert all(reason.isascii() for reason in named)
    gone = root(problem="adapters.root /a: No such file or directory")
    assert only(facts(adapters=gone), "adapters").result is Result.FAILURE
    assert only(facts(adapters=AdapterRoot()), "adapters").result is Result.ADVICE


def test_signatures() -> None:
    given = settings(signing={"keys_file": "/keys.yaml", "require": ["fin_*"]})
    good, forged = (
        dataclasses.replace(one(), signed=True),
        dataclasses.replace(one(), signature_problem="bad_signature: extra.txt is not signed"),
    )
    assert only(facts(settings=given, adapters=root(good)), "signatures").result is Result.OK
    assert [f.result for f in bad(facts(settings=given, adapters=root(forged)), "signatures")] == [
        Result.WARNING
    ]
    many = root(good, unverified=3)
    assert [f.result for f in bad(facts(settings=given, adapters=many), "signatures")] == [
        Result.ADVICE
    ]
    loose = settings(signing={"keys_file": "/keys.yaml"})
    assert only(facts(settings=loose, adapters=root(good)), "signatures").result is Result.ADVICE
    keyless = root(good, keys_problem="signing.keys_file: others may read it; chmod 600")
    assert only(facts(adapters=keyless), "signatures").result is Result.FAILURE


@pytest.mark.parametrize(
    ("mbit_s", "size", "result"),
    [
        (1_000, 10 * MB, Result.WARNING),
        (10_000, 500 * MB, Result.OK),
        (10_000, 501 * MB, Result.ADVICE),
        (10_000, 1_000 * MB, Result.ADVICE),
        (10_000, 1_001 * MB, Result.WARNING),
        (25_000, 1_001 * MB, Result.OK),
        (None, 10 * MB, Result.ADVICE),
    ],
)
def test_the_way_adapters_travel(mbit_s: int | None, size: int, result: Result) -> None:
    machine = dataclasses.replace(ROOMY, links=(Link("eth0", mbit_s),))
    there = root(one(size), remote="nfs4")
    assert only(facts(machine=machine, adapters=there), "network").result is result
    rdma = dataclasses.replace(machine, rdma=("mlx5_0",))
    assert only(facts(machine=rdma, adapters=there), "network").result is Result.OK
    local = root(one(size))
    assert only(facts(machine=machine, adapters=local), "network").result is Result.OK
    fetched = settings(sources={"allow": ["s3"]})
    assert only(facts(machine=machine, adapters=local, settings=fetched), "network").result is (
        result
    )


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"access": {"control": "permissive"}}, "permissive"),
        ({"audit": {"enabled": False}}, "no audit"),
        ({"observation": {"enabled": False}}, "no breaker"),
        ({"admission": {"reserve_slots": 8}}, "8 of 8 slots"),
        ({"aliases": {"risk": "fin_risk_v9"}}, "fin_risk_v9"),
        ({"tiers": {"warm": ["fin_risk_v8"]}}, "fin_risk_v8"),
        ({"access": {"allowed_lora_ids": ["fin_risk_v7"]}}, "fin_risk_v7"),
        ({"tiers": {"warm": "all", "host_bytes": MB - 1}}, "tiers.warm"),
    ],
)
def test_odd_settings(sections: dict[str, Any], text: str) -> None:
    (finding,) = bad(facts(settings=settings(**sections), adapters=root(one())), "settings")
    assert text in finding.reason
    assert finding.result in (Result.ADVICE, Result.WARNING)


def test_the_policys_remarks() -> None:
    remarks = (Remark(3, "a key has expired"), Remark(9, "all keys have expired", error=True))
    found = bad(facts(policy_remarks=remarks), "policy")
    assert [(f.result, f.reason) for f in found] == [
        (Result.WARNING, "policy.yaml:3: a key has expired"),
        (Result.WARNING, "policy.yaml:9: all keys have expired"),
    ]
    assert bad(facts(policy_problem="policy.yaml: x"), "policy")[0].result is Result.FAILURE
