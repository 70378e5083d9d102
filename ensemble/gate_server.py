"""The gate model's life: policy, catalog, audit and gate, from start to end."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable

from ensemble.access import Policy
from ensemble.audit import GateAudit
from ensemble.enforcement import Trace
from ensemble.gate import Gate
from ensemble.policy_source import PolicySource
from python_backend import runtime
from python_backend.adapters.catalog import SnapshotReader
from python_backend.audit.writer import Writer, open_writer
from python_backend.errors import ServingError
from python_backend.messages import Decision, RawRequest
from python_backend.settings import Settings
from python_backend.ticket import boottime_ns

log = logging.getLogger(__name__)


class GateServer:
    """One gate with all it needs.

    Args:
        boot_id: this server's boot id.
        name: the model's name, which its audit files begin with.

    Raises:
        PolicyError, RuntimeDirError, AuditError: what is wrong, and where.
    """

    def __init__(self, config: Settings, boot_id: str, name: str) -> None:
        self._writer: Writer | None = open_writer(config.audit_dir, name, config.audit)
        self._audit = GateAudit(self._writer, config.access.control)
        if config.access.control != "strict":
            log.warning("access control is %s: the policy refuses nobody", config.access.control)
        self._policy_path = config.policy
        self._audit.event("start", control=config.access.control)
        try:
            policy = PolicySource(
                config.policy, on_error=self._policy_error, on_load=self._policy_loaded
            )
            self.snapshots = SnapshotReader(config.run_dir, boot_id)
            key = runtime.ticket_key(config.run_dir)
            self._gate = Gate(config, policy, self.snapshots, key, boot_id, audit=self._audit)
        except BaseException:
            self.close()
            raise

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

    def decide(self, read: Callable[[], RawRequest]) -> Decision:
        """The decision on the request that ``read`` reads.

        Raises:
            ServingError: the refusal, of the reader or of the gate; both are audited.
        """
        try:
            raw = read()
        except ServingError as error:
            self._audit.decided(RawRequest(), Trace(), error)
            raise
        return self._gate.decide(raw, now_s=time.monotonic(), now_ns=boottime_ns())

    def close(self) -> None:
        """Ends the audit file. Callable more than once."""
        if self._writer is not None:
            self._writer.close()
