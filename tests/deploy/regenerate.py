"""Writes what is derived: the PrometheusRule, each overlay's golden. See ``git diff`` then.

``python -m tests.deploy.regenerate``
"""

from __future__ import annotations

from tests.deploy import kustomize


def main() -> None:
    """Writes them all."""
    kustomize.RULES.write_text(kustomize.prometheus_rule(), "utf-8")
    kustomize.GOLDEN.mkdir(exist_ok=True)
    for overlay in kustomize.OVERLAYS:
        (kustomize.GOLDEN / f"{overlay}.txt").write_text(kustomize.summary(overlay), "utf-8")
        print(kustomize.GOLDEN / f"{overlay}.txt")


if __name__ == "__main__":
    main()
