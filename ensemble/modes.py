"""The modes of ``fusion`` that need more than the caller's weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ensemble.access import Policy, Principal
from ensemble.enforcement import Enforcement
from ensemble.fusing import Wish
from ensemble.trained_gate import TrainedGate
from python_backend.adapters import naming
from python_backend.adapters.aliases import Chosen
from python_backend.adapters.catalog import Entry, Snapshot
from python_backend.adapters.naming import BASE
from python_backend.errors import InvalidArgument
from python_backend.fusion import distribution, expression, gating
from python_backend.fusion.expression import Terms
from python_backend.settings import Settings

_CANDIDATES = "fusion.candidates"
#: Ranks of a catalog whose engine has not said what it takes.
_ANY_RANK = 1 << 30


@dataclasses.dataclass(frozen=True)
class Asker:
    """Who asks, about what, and what there is.

    ``names`` are the adapters named outside the input ``fusion``; ``text`` gives the caller's own
    words, without the chat template's.
    """

    principal: Principal
    policy: Policy
    snapshot: Snapshot
    aliases: Chosen
    enforcement: Enforcement
    names: list[tuple[str, Any]]
    text: Callable[[], str]

    def may_use(self, lora_id: str) -> bool:
        """Whether the adapter may be proposed: allowed, served, and ready."""
        allowed = self._off or self.policy.may_use(self.principal, lora_id)
        return allowed and self.enforcement.serves(lora_id) and self.entry(lora_id) is not None

    def meant_by(self, name: str) -> str:
        """What a name stands for; of an alias the first that may be proposed."""
        targets = self.aliases.candidates(name) or (name,)
        return next(filter(self.may_use, targets), targets[0])

    @property
    def may_use_base(self) -> bool:
        """Whether the base model may have a share."""
        return self._off or self.policy.may_use_base(self.principal)

    def entry(self, lora_id: str) -> Entry | None:
        """The adapter, if it is ready."""
        return self.snapshot.ready(lora_id)

    @property
    def _off(self) -> bool:
        # Where the policy is only watched (permissive), what is chosen for a caller keeps to it.
        return self.enforcement.control == "off"


class Modes:
    """Completes wishes. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self._fusion = settings.fusion
        self._trained = TrainedGate(settings)

    def computed(self, wish: Wish, asker: Asker, now_s: float) -> Terms:
        """The weights that mode ``auto`` gives a prompt.

        Args:
            now_s: a monotonic clock, seconds.

        Raises:
            InvalidArgument: this server has not what the mode needs, or the wish does not fit it.
            NotFound: a candidate is not there, or not for this caller; or mixing is not.
            Unavailable: the trained gate cannot be used.
        """
        # Before anything is computed: what a prompt is about is told to those who may mix.
        if asker.enforcement.strict:
            if "caller" not in asker.principal.roles:
                raise asker.enforcement.refusal("role")
            if not asker.policy.may_fuse(asker.principal):
                raise asker.enforcement.refusal("fusion_not_allowed")
        reader = self._trained.current(asker.snapshot.model_dir, now_s)
        if asker.names:
            raise InvalidArgument(
                asker.names[0][0], f"mode auto chooses the adapters; name some in {_CANDIDATES}"
            )
        usable = self._usable(wish.candidates, reader.gate.names, asker)
        if not usable and not asker.may_use_base:
            raise asker.enforcement.refusal("not_allowed")
        found = reader.weights(asker.text(), usable, base=asker.may_use_base)
        auto = self._fusion.auto
        entries = {name: asker.entry(name) for name in usable}
        kept = gating.keep_largest(
            found,
            {name: entry.rank for name, entry in entries.items() if entry is not None},
            most=min(auto.max_parts, self._fusion.max_parts),
            max_rank=asker.snapshot.max_lora_rank or _ANY_RANK,
            least=auto.least,
        )
        weights = gating.quantise(kept, auto.steps)
        terms = ((name, weight) for name, weight in weights.items() if name != BASE)
        return tuple((name, round(weight, expression.DECIMALS)) for name, weight in sorted(terms))

    def check(self, mode: str, terms: Terms, sampling: Mapping[str, Any]) -> None:
        """Refuses what cannot be done in a mode: the weights that are mixed, how it is sampled.

        Raises:
            InvalidArgument: names what does not fit.
        """
        if mode == distribution.DISTRIBUTION:
            distribution.check(terms, sampling, self._fusion.distribution)

    def _usable(
        self, candidates: tuple[str, ...], known: tuple[str, ...], asker: Asker
    ) -> set[str]:
        """The adapters that may have a weight: of the candidates, or of all with a learnt key."""
        if not candidates:
            return {name for name in known if asker.may_use(name)}
        names = {asker.meant_by(name) for name in candidates}
        for name in names:
            if not asker.may_use(naming.check_lora_id(name, field=_CANDIDATES)):
                raise asker.enforcement.refusal("not_allowed")
        if not names <= set(known):
            raise InvalidArgument(_CANDIDATES, "the trained gate does not know all of them")
        return names
