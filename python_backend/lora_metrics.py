"""Our own metric families, each declared once. Every series carries ``model`` and ``version``.

Label values come from bounded sets: departments and adapters out of signed tickets (adapters
capped, the rest under ``other``), error codes, states, signals. None is text that a caller chose.
Admission's own families are in ``admission.gauges``.
"""

from __future__ import annotations

from python_backend.metrics import Family

SWITCH_RATE = "lora_switch_rate"
SWITCHES = "lora_switches_total"
SWITCH_TIME = "lora_switch_time_ratio"
FRAGMENTATION = "lora_memory_fragmentation_ratio"
MEMORY = "lora_memory_bytes"
LOAD_SECONDS = "lora_load_duration_seconds"
LOAD_MEDIAN = "lora_load_latency_seconds"
LOAD_PER_MIB = "lora_load_seconds_per_mib"
ACTIVATION_DURATION = "lora_activation_duration_seconds"
NVML_AVAILABLE = "lora_gpu_figures_available"
NVML_UTILIZATION = "lora_gpu_utilization_ratio"
NVML_PCIE = "lora_gpu_pcie_bytes_per_second"
ACTIVATION_SECONDS = "lora_activation_seconds_total"
ACTIVATIONS = "lora_activations_total"
ROUTE_CHECKS = "lora_route_checks_total"
ROUTE_ERRORS = "lora_route_error_ratio"
BREAKER_STATE = "lora_breaker_state"
BREAKER_TRANSITIONS = "lora_breaker_transitions_total"
BREAKER_REFUSALS = "lora_breaker_refusals_total"
ENGINE_REQUESTS = "lora_engine_requests"
KV_CACHE = "lora_kv_cache_usage_ratio"
MISSING = "lora_engine_missing_parts"
ADAPTERS = "lora_adapters"
RESIDENT = "lora_resident_adapters"
TIER_BYTES = "lora_tier_bytes"
REQUESTS = "lora_requests_total"
REQUEST_SECONDS = "lora_request_duration_seconds"
FIRST_TOKEN_SECONDS = "lora_time_to_first_token_seconds"  # noqa: S105 - no secret
TOKENS = "lora_tokens_total"
ADAPTER_REQUESTS = "lora_adapter_requests_total"
FUSIONS = "lora_fusions_total"
FUSION_SECONDS = "lora_fusion_build_seconds"
GATE_DECISIONS = "lora_gate_decisions_total"
POLICY_ERROR = "lora_policy_error"

_LOAD_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_ACTIVATION_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_REQUEST_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_BUILD_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_FIRST_S = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)

ENGINE_FAMILIES = (
    Family(
        SWITCH_RATE, "gauge", "Times a slot got another adapter, per second, over the last 10 s."
    ),
    Family(SWITCHES, "counter", "Times a slot got another adapter than it had held."),
    Family(SWITCH_TIME, "gauge", "Share of the last 10 s that the engine spent on activations."),
    Family(
        FRAGMENTATION,
        "gauge",
        "Unused share of what the pool holds: heap (process, shown only), device (allocator), "
        "shm (ends of pages).",
        ("pool",),
    ),
    Family(MEMORY, "gauge", "Bytes of a memory pool.", ("pool", "kind")),
    Family(
        LOAD_SECONDS,
        "histogram",
        "Seconds to read an adapter into a tier.",
        ("tier",),
        _LOAD_S,
    ),
    Family(LOAD_MEDIAN, "gauge", "Median seconds of the last 10 loads into the host's memory."),
    Family(LOAD_PER_MIB, "gauge", "Median seconds per MiB of weights of the last 10 loads."),
    Family(
        ACTIVATION_DURATION,
        "histogram",
        "Seconds to give an adapter a slot.",
        buckets=_ACTIVATION_S,
    ),
    Family(ACTIVATIONS, "counter", "Adapters given a slot."),
    Family(ACTIVATION_SECONDS, "counter", "Seconds the engine spent giving adapters a slot."),
    Family(
        ROUTE_CHECKS,
        "counter",
        "Answers and slots whose weights were compared with those asked for.",
        ("result",),
    ),
    Family(ROUTE_ERRORS, "gauge", "Share of the last 1,000 answers computed with wrong weights."),
    Family(
        BREAKER_STATE,
        "gauge",
        "0 closed, 1 warning, 2 open, 3 half-open; the worst of a signal's breakers.",
        ("signal",),
    ),
    Family(
        BREAKER_TRANSITIONS, "counter", "How often a breaker entered a state.", ("signal", "to")
    ),
    Family(BREAKER_REFUSALS, "counter", "Requests answered breaker_open.", ("signal",)),
    Family(ENGINE_REQUESTS, "gauge", "Requests inside vLLM, by its scheduler.", ("state",)),
    Family(KV_CACHE, "gauge", "Share of vLLM's KV cache that is in use."),
    Family(MISSING, "gauge", "Private parts of vLLM that it lacks; above 0, public calls only."),
    Family(NVML_AVAILABLE, "gauge", "1 where NVML tells of this machine's GPUs, else 0."),
    Family(
        NVML_UTILIZATION,
        "gauge",
        "Share of time in which a GPU of this machine ran a kernel (sm) or used its memory.",
        ("device", "kind"),
    ),
    Family(
        NVML_PCIE,
        "gauge",
        "Bytes a second over a GPU's PCIe link, rx to and tx from it.",
        ("device", "direction"),
    ),
    Family(ADAPTERS, "gauge", "Adapters in the catalog.", ("state",)),
    Family(RESIDENT, "gauge", "Adapters in a tier.", ("tier",)),
    Family(TIER_BYTES, "gauge", "Bytes of a tier.", ("tier", "kind")),
)

REQUEST_FAMILIES = (
    Family(REQUESTS, "counter", "Requests at the engine that ended.", ("department", "outcome")),
    Family(
        REQUEST_SECONDS,
        "histogram",
        "Seconds from a request's arrival at the engine to its end.",
        ("department",),
        _REQUEST_S,
    ),
    Family(
        FIRST_TOKEN_SECONDS,
        "histogram",
        "Seconds from a request's arrival at the engine to its first token.",
        ("department",),
        _FIRST_S,
    ),
    Family(TOKENS, "counter", "Tokens read and written.", ("department", "kind")),
    Family(
        ADAPTER_REQUESTS,
        "counter",
        "Requests that ended, by adapter; those beyond the first 200 adapters are 'other'.",
        ("lora_id",),
    ),
    Family(FUSIONS, "counter", "Requests for a mixture that ended.", ("mode", "outcome")),
    Family(FUSION_SECONDS, "histogram", "Seconds to make a mixture.", (), _BUILD_S),
)

GATE_FAMILIES = (
    Family(GATE_DECISIONS, "counter", "Decisions of the gate.", ("decision", "reason")),
    Family(
        POLICY_ERROR,
        "gauge",
        "1 while the policy file cannot be used and the last good one is in force, else 0.",
    ),
)
