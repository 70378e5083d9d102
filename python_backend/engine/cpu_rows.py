"""The LoRA products of few rows, compiled by numba: one call a layer.

A product by oneDNN costs 11 to 25 µs a call however small it is, and a layer of several slices
needs several; for the rows of a decode step that is most of the time. Here each row is multiplied
with its own slot's weights in fp32, and rounded to the model's type after the shrink, the expand
and the sum, as in the reference. Sums of products are reordered for vector registers, nothing
else is.

numba comes with vLLM; where it is missing or cannot compile for this processor, ``cpu_kernels``
does without. Nothing is cached on disk: numba would read it back by unpickling.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import numpy as np

log = logging.getLogger(__name__)

#: Ranks are computed in steps of so many; weights are padded with zeros to a multiple.
RANK_STEP = 4
#: What it is compiled for.
KINDS = frozenset({"bfloat16", "float32"})


@functools.cache
def compiled(kind: str) -> Any | None:
    """The product, compiled for this processor (a second), or None where that cannot be done.

    It computes, in place and without the interpreter's lock, for each number k and slice j:
    ``y[rows[k], offsets[j]:…] += (x[rows[k]] @ a[slots[k], :, j].T * scale) @
    b[slots[k], :, ends[j]:ends[j + 1]]``.

    Args:
        kind: ``bfloat16`` or ``float32``, of everything; None for any other.

    Args of what is returned, all C-contiguous, bfloat16 as uint16: ``y`` [T, O'], ``x`` [T, I],
    ``a`` [S, R, n, I], ``b`` [S, R, sum of O]; int64 ``rows``, ``slots``, ``ranks`` [K] (a
    multiple of ``RANK_STEP``), ``offsets`` [n], ``ends`` [n + 1]; ``scale`` a float32.
    """
    if kind not in KINDS:
        return None
    try:
        return _compile(kind)
    except ImportError:
        log.warning("numba is not installed: adapters are slower without")
    except Exception:  # Whatever numba and LLVM make of a processor, the engine starts.
        log.exception("numba could not compile the products of adapters: they are slower without")
    return None


def _compile(kind: str) -> Any:
    from llvmlite import ir
    from numba import float32, int64, njit, types, uint16, uint32, void
    from numba.extending import intrinsic

    @intrinsic
    def as_float(_: Any, bits: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], ir.FloatType())

        return float32(uint32), generate

    @intrinsic
    def as_bits(_: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], ir.IntType(32))

        return uint32(float32), generate

    inline = njit(inline="always")
    # Not "fast": that would also assume that there is no NaN and no infinity.
    loop = njit(fastmath={"reassoc", "contract", "nsz"}, nogil=True, error_model="numpy")

    if kind == "float32":

        @inline
        def wide(value: Any) -> Any:
            return value

        @inline
        def narrow(value: Any) -> Any:
            return value

    else:

        @inline
        def wide(value: Any) -> Any:
            return as_float(np.uint32(np.uint32(value) << np.uint32(16)))

        @inline
        def narrow(value: Any) -> Any:
            """To the nearest, ties to even; a NaN stays one."""
            bits = as_bits(value)
            odd = (bits >> np.uint32(16)) & np.uint32(1)
            rounded = np.uint32(bits + np.uint32(0x7FFF) + odd)
            return np.uint16(rounded >> np.uint32(16)) if value == value else np.uint16(0x7FC0)

    # Functions of their own: loops over plain rows are what the compiler turns into vectors.
    @loop
    def widen(to: Any, values: Any) -> None:
        for i in range(to.size):
            to[i] = wide(values[i])

    @loop
    def dot(x: Any, a0: Any, a1: Any, a2: Any, a3: Any) -> Any:
        s0 = s1 = s2 = s3 = np.float32(0)
        for i in range(x.size):
            s0 += x[i] * wide(a0[i])
            s1 += x[i] * wide(a1[i])
            s2 += x[i] * wide(a2[i])
            s3 += x[i] * wide(a3[i])
        return s0, s1, s2, s3

    @loop
    def gather(to: Any, b0: Any, b1: Any, b2: Any, b3: Any, low: Any) -> None:
        l0, l1, l2, l3 = low
        for o in range(to.size):
            to[o] += l0 * wide(b0[o]) + l1 * wide(b1[o]) + l2 * wide(b2[o]) + l3 * wide(b3[o])

    @loop
    def finish(y: Any, total: Any) -> None:
        for o in range(y.size):
            y[o] = narrow(wide(y[o]) + wide(narrow(total[o])))

    item = float32 if kind == "float32" else uint16
    arrays = {dim: types.Array(item, dim, "C") for dim in (2, 3, 4)}
    numbers = types.Array(int64, 1, "C")
    signature = void(
        arrays[2], arrays[2], arrays[4], arrays[3],
        numbers, numbers, numbers, numbers, numbers, float32,
    )  # fmt: skip

    @njit(signature, nogil=True, error_model="numpy")
    def add(
        y: Any, x: Any, a: Any, b: Any, rows: Any, slots: Any, ranks: Any, offsets: Any, ends: Any,
        scale: Any,
    ) -> None:  # fmt: skip
        row = np.empty(x.shape[1], np.float32)
        total = np.empty(b.shape[2], np.float32)
        for k in range(rows.size):
            t, s = rows[k], slots[k]
            widen(row, x[t])
            for j in range(offsets.size):
                begin = ends[j]
                # The engine may pad a layer's output less than the adapter's.
                width = min(ends[j + 1] - begin, y.shape[1] - offsets[j])
                end = begin + width
                part = total[begin:end]
                part[:] = 0
                for r in range(0, ranks[k], 4):
                    s0, s1, s2, s3 = dot(
                        row, a[s, r, j], a[s, r + 1, j], a[s, r + 2, j], a[s, r + 3, j]
                    )
                    low = (
                        wide(narrow(s0 * scale)), wide(narrow(s1 * scale)),
                        wide(narrow(s2 * scale)), wide(narrow(s3 * scale)),
                    )  # fmt: skip
                    gather(
                        part,
                        b[s, r, begin:end], b[s, r + 1, begin:end],
                        b[s, r + 2, begin:end], b[s, r + 3, begin:end],
                        low,
                    )  # fmt: skip
                finish(y[t, offsets[j] : offsets[j] + width], part)

    return add


def as_array(tensor: Any) -> Any:
    """A tensor's own memory as numba takes it."""
    import torch

    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def kind_of(*tensors: Any) -> str:
    """The type that all of these have, if it is one for ``compiled`` and they lie in one piece."""
    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors}
    whole = all(tensor.is_contiguous() for tensor in tensors)
    return kinds.pop() if whole and len(kinds) == 1 and kinds <= KINDS else ""
