from __future__ import annotations

from python_backend.adapters.staging_guard import StagingGuard


def test_work_waits_for_every_staging() -> None:
    guard, done = StagingGuard(), list[int]()
    assert guard.when_idle(lambda: done.append(1))
    with guard.staging(), guard.staging():
        assert not guard.when_idle(lambda: done.append(2))
    try:
        with guard.staging():
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert guard.when_idle(lambda: done.append(3))
    assert done == [1, 3]
