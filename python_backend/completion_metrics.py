"""Completions as metrics, beside whoever else wants to hear of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from python_backend import lora_metrics as names
from python_backend.adapters.naming import BASE
from python_backend.completion import Completion, CompletionSink
from python_backend.metrics import Update

#: Adapters with a series of their own; those that come later share ``OTHER``. Triton never removes
#: a series, so without a cap a busy catalog would fill its memory.
MAX_ADAPTERS = 200
OTHER = "other"

Put = Callable[[Sequence[Update]], None]


class MetricsSink:
    """Counts each completion, then hands it on. Lives on the engine's event loop.

    Args:
        inner: the sink that decides whether calls may begin (the audit).
    """

    def __init__(self, inner: CompletionSink, put: Put, max_adapters: int = MAX_ADAPTERS) -> None:
        self._inner, self._put, self._max = inner, put, max_adapters
        self._adapters: set[str] = set()

    def check(self) -> None:
        """See ``CompletionSink``."""
        self._inner.check()

    def record(self, completion: Completion) -> None:
        """See ``CompletionSink``."""
        self._inner.record(completion)
        self._put(self.updates(completion))

    def updates(self, completion: Completion) -> list[Update]:
        """What a completion moves; nothing for cancels and for operators' commands.

        A call without a valid ticket has no department: what it says of itself is no label.
        """
        ticket = completion.ticket
        if ticket is not None and ticket.operation != "generate":
            return []
        name = ticket.department if ticket else "none"
        department = (("department", name),)
        ended = (*department, ("outcome", completion.outcome))
        found = [Update(names.REQUESTS, (1,), ended)]
        if ticket is None:
            return found
        found.append(Update(names.REQUEST_SECONDS, (completion.latency_s,), department))
        if completion.ttft_s is not None:
            found.append(Update(names.FIRST_TOKEN_SECONDS, (completion.ttft_s,), department))
        for kind, count in (("in", completion.input_tokens), ("out", completion.output_tokens)):
            if count:
                found.append(Update(names.TOKENS, (count,), (*department, ("kind", kind))))
        lora_id = "+".join(part.lora_id for part in ticket.parts) or BASE
        if completion.mode:
            how = (("mode", completion.mode), ("outcome", completion.outcome))
            found.append(Update(names.FUSIONS, (1,), how))
        found.append(Update(names.ADAPTER_REQUESTS, (1,), (("lora_id", self._label(lora_id)),)))
        return found

    def _label(self, lora_id: str) -> str:
        if lora_id not in self._adapters:
            if len(self._adapters) >= self._max:
                return OTHER
            self._adapters.add(lora_id)
        return lora_id
