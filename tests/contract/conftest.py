from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.rigs import FakeRig, Rig, VllmRig


@pytest.fixture(scope="session")
def fake_rig() -> Iterator[FakeRig]:
    rig = FakeRig()
    yield rig
    rig.close()


@pytest.fixture(scope="session")
def vllm_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmRig]:
    """Takes about 20 s to start; one for all tests."""
    rig = VllmRig(tmp_path_factory.mktemp("run"))
    yield rig
    rig.run(rig.engine.stop())
    rig.close()


@pytest.fixture(params=["fake", pytest.param("vllm", marks=pytest.mark.server)])
def rig(request: pytest.FixtureRequest) -> Rig:
    """Both engines, one after the other; all that a test did not unload stays loaded."""
    found: Rig = request.getfixturevalue(f"{request.param}_rig")
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The shared engine is stopped after everything else here, in whatever order that was named."""
    here = [item for item in items if "tests/contract/" in item.path.as_posix()]
    if here:
        end = items.index(here[-1]) + 1
        stops = [item for item in here if item.name.startswith("test_stop[")]
        items[:] = [item for item in items[:end] if item not in stops] + stops + items[end:]
