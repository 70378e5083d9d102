"""The gate model's life: policy, catalog, audit and gate, from start to end."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable

from ensemble.access import Policy
from ensemble.audit import GateAudit
from ensemble.gate import Gate
from ensemble.policy_source import PolicySource
from python_backend import lora_metrics, runtime
from python_backend.adapters.catalog import SnapshotReader
from python_backend.audit.writer import Writer, open_writer
from python_backend.errors import ServingError
from python_backend.messages import Decision, RawRequest
from python_backend.metrics import Metrics, Update
from python_backend.settings import Settings
from python_backend.ticket import boottime_ns

log = logging.getLogger(__name__)

#: How often the policy file is looked at when nobody asks anything, seconds.
_LOOK_EVERY_S = 0.5


class GateServer:
    """One gate with all it needs.

    Args:
        boot_id: this server's boot id.
        name: the model's name, which its audit files begin with.
        metrics: where decisions are counted; None for nowhere.

    Raises:
        PolicyError, RuntimeDirError, AuditError: what is wrong, and where.
    """

    def __init__(
        self, config: Settings, boot_id: str, name: str, metrics: Metrics | None = None
    ) -> None:
        self._metrics = metrics or Metrics(None, {})
        self._metrics.declare(lora_metrics.GATE_FAMILIES)
        self._writer: Writer | None = open_writer(config.audit_dir, name, config.audit)
        self._audit = GateAudit(self._writer, config.access.control)
        if config.access.control != "strict":
            log.warning("access control is %s: the policy refuses nobody", config.access.control)
        self._policy_path = config.policy
        self._closing = threading.Event()
        self._follower = threading.Thread(target=self._follow, name="policy", daemon=True)
        self._audit.event("start", control=config.access.control)
        try:
            policy = self._policy = PolicySource(
                config.policy, on_error=self._policy_error, on_load=self._policy_loaded
            )
            self.snapshots = SnapshotReader(config.run_dir, boot_id)
            key = runtime.ticket_key(config.run_dir)
            self._gate = Gate(config, policy, self.snapshots, key, boot_id, audit=self._audit)
        except BaseException:
            self.close()
            raise
        self._follower.start()

    def _follow(self) -> None:
        """A policy that broke is told of also while no request comes."""
        shown = False
        while not self._closing.wait(_LOOK_EVERY_S):
            self._policy.current(time.monotonic())
            broken = self._policy.error is not None
            if broken != shown:
                shown = broken
                self._metrics.put([Update(lora_metrics.POLICY_ERROR, (float(broken),))])

    def _policy_error(self, text: str) -> None:
        log.error("the policy stays as it was: %s", text)
        self._audit.event("policy_error", text=text)

    def _policy_loaded(self, policy: Policy) -> None:
        log.info("policy in use: %d principals", len(policy.principals))
        try:
            digest = hashlib.sha256(self._policy_path.read_bytes()).hexdigest()
        except OSError:  # replaced again by now; the next line will tell
            digest = ""
        self._audit.event("policy", sha256=digest)

    def decide(self, read: Callable[[], RawRequest], *, cancellable: bool = True) -> Decision:
        """The decision on the request that ``read`` reads; ``cancellable`` as in ``Gate.decide``.

        Raises:
            ServingError: the refusal, of the reader or of the gate; both are audited.
        """
        try:
            raw = self._audit.reading(read)
            decision = self._gate.decide(
                raw, now_s=time.monotonic(), now_ns=boottime_ns(), cancellable=cancellable
            )
        except ServingError as error:
            self._count("refused", error.code)
            raise
        self._count("allowed", "policy")
        return decision

    def _count(self, decision: str, reason: str) -> None:
        """``reason`` is an error code: a name that somebody asked for is never a label."""
        labels = (("decision", decision), ("reason", reason))
        self._metrics.put([Update(lora_metrics.GATE_DECISIONS, (1,), labels)])

    def close(self) -> None:
        """Ends metrics, audit file and the watch over the policy. Callable more than once."""
        self._closing.set()
        if self._follower.is_alive():
            self._follower.join()
        self._metrics.stop()
        if self._writer is not None:
            self._writer.close()
