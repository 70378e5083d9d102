"""What may wait at all: places in front of the engine, and tokens per minute. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from python_backend.admission.limits import Limits, Share
from python_backend.errors import InvalidArgument, Overloaded

_DEFAULT = Share()
_MINUTE_S = 60.0


class TokenBucket:
    """Tokens per minute, with a minute's worth to begin with.

    Args:
        per_minute: tokens that come in a minute; also the most that is ever there.
    """

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.per_minute = per_minute
        self._level, self._at_s = float(per_minute), now_s

    def take(self, tokens: int, now_s: float) -> float:
        """Takes ``tokens`` and returns 0, or takes none and returns the seconds until there are."""
        passed = max(0.0, now_s - self._at_s)
        self._level = min(self.per_minute, self._level + passed * self.per_minute / _MINUTE_S)
        self._at_s = now_s
        if tokens > self._level:
            return (tokens - self._level) * _MINUTE_S / self.per_minute
        self._level -= tokens
        return 0.0

    def give_back(self, tokens: int) -> None:
        """Returns tokens that were taken and not used."""
        self._level = min(self.per_minute, self._level + tokens)


class Bounds:
    """Counts what is pending, queued or running, by department, in sequences and prompt tokens."""

    def __init__(self, limits: Limits, shares: Mapping[str, Share] | None = None) -> None:
        self._limits = limits
        self._shares = dict(shares or {})
        self._buckets: dict[str, TokenBucket] = {}
        #: Sequences pending, by department.
        self.pending: dict[str, int] = {}
        #: Sequences and prompt tokens pending, of all departments.
        self.total = self.tokens = 0

    def set_shares(self, shares: Mapping[str, Share]) -> None:
        """Takes over a changed policy; a bucket whose size has changed begins anew."""
        self._shares = dict(shares)

    def enter(self, department: str, seats: int, retry_s: float) -> None:
        """Takes a place for ``seats`` sequences.

        Args:
            retry_s: what to tell those who find no place, seconds.

        Raises:
            Overloaded: all places are taken, of the department or of all.
        """
        limits = self._limits
        if self.pending.get(department, 0) + seats > limits.max_pending_per_department:
            raise Overloaded("too many of your requests are under way.", retry_after=retry_s)
        if self.total + seats > limits.max_pending:
            raise Overloaded("too many requests are under way.", retry_after=retry_s)
        self.pending[department] = self.pending.get(department, 0) + seats
        self.total += seats

    def leave(self, department: str, seats: int) -> None:
        """Gives a place back."""
        self.total -= seats
        left = self.pending[department] - seats
        if left:
            self.pending[department] = left
        else:
            del self.pending[department]

    def add_tokens(self, tokens: int, retry_s: float) -> None:
        """Counts a prompt's tokens. Raises ``Overloaded`` where too many are pending."""
        # A lone prompt always fits: the engine's own limit bounds it.
        if self.tokens and self.tokens + tokens > self._limits.max_pending_tokens:
            raise Overloaded("too many prompt tokens are under way.", retry_after=retry_s)
        self.tokens += tokens

    def remove_tokens(self, tokens: int) -> None:
        """Takes a prompt's tokens off again."""
        self.tokens -= tokens

    def spend(self, department: str, tokens: int, now_s: float) -> bool:
        """Takes the most tokens a request can use off its department's minute.

        Returns:
            Whether the department has such a bound, so that ``refund`` makes sense.

        Raises:
            Overloaded: not enough are left; says when there will be.
            InvalidArgument: a whole minute does not hold so many.
        """
        per_minute = self._shares.get(department, _DEFAULT).tokens_per_minute
        if per_minute is None:
            self._buckets.pop(department, None)
            return False
        if tokens > per_minute:
            raise InvalidArgument(
                "max_tokens",
                f"prompt and answers may need {tokens} tokens; your department has {per_minute} "
                "a minute",
            )
        bucket = self._buckets.get(department)
        if bucket is None or bucket.per_minute != per_minute:
            bucket = self._buckets[department] = TokenBucket(per_minute, now_s)
        if wait_s := bucket.take(tokens, now_s):
            raise Overloaded(
                "your department has used its tokens of this minute.", retry_after=_up(wait_s)
            )
        return True

    def refund(self, department: str, tokens: int) -> None:
        """Gives back what a request has not used."""
        if (bucket := self._buckets.get(department)) is not None:
            bucket.give_back(tokens)


def _up(seconds: float) -> float:
    """Whole seconds, at least one: what a caller can do something with."""
    return float(max(1, -int(-seconds // 1)))
