"""The compute roofline: matrix multiplies against memory, and time against its two bounds."""

from __future__ import annotations

import math


def gemm_flops(rows: float, inner: float, columns: float) -> float:
    """FLOPs of a matrix multiply.

    Formula:
        GEMM-FLOPS
        2·M·K·N

    Args:
        rows: M.
        inner: K.
        columns: N.

    Returns:
        FLOPs.
    Source: one multiply and one add a term.
    """
    return 2.0 * rows * inner * columns


def gemm_bytes(rows: float, inner: float, columns: float, element_bytes: float = 2) -> float:
    """Least memory traffic of a matrix multiply.

    Formula:
        GEMM-BYTES
        e·(M·K + K·N + M·N)

    Args:
        rows: M.
        inner: K.
        columns: N.
        element_bytes: e, of all three matrices.

    Returns:
        bytes, every matrix read or written once.
    Source: scaling-book, roofline chapter.
    """
    return element_bytes * (rows * inner + inner * columns + rows * columns)


def attainable_flops_per_s(
    flops: float, memory_bytes: float, peak_flops_per_s: float, memory_bytes_per_s: float
) -> float:
    """Roofline of a kernel.

    Formula:
        COMPUTE-ROOFLINE
        min(C, I·W_hbm), I = FLOPs / bytes

    Args:
        flops: work of the kernel.
        memory_bytes: what it must move.
        peak_flops_per_s: C, dense peak of its dtype.
        memory_bytes_per_s: W_hbm.

    Returns:
        FLOP/s.
    Source: Williams et al., Roofline (CACM 2009).
    """
    if memory_bytes == 0:
        return peak_flops_per_s
    return min(peak_flops_per_s, flops / memory_bytes * memory_bytes_per_s)


def machine_balance(flops_per_s: float, bytes_per_s: float) -> float:
    """FLOPs a device can do while one byte moves over a link.

    Formula:
        COMPUTE-BALANCE
        alpha = C / W

    Args:
        flops_per_s: C.
        bytes_per_s: W of the memory or the link.

    Returns:
        FLOPs a byte; for memory also the rows a bf16 matmul needs to be compute-bound.
    Source: scaling-book, roofline chapter.
    Valid: as a row count where rows are far fewer than the weights' dimensions.
    """
    return flops_per_s / bytes_per_s


def attention_share(sequence: float, hidden: float) -> float:
    """FLOPs of attention relative to the weights' FLOPs.

    Formula:
        COMPUTE-ATTENTION-SHARE
        s / (8·D)

    Args:
        sequence: s, tokens.
        hidden: D.

    Returns:
        ratio; attention dominates above 1.
    Source: scaling-book, transformers chapter.
    Valid: F = 4D gated, MHA with N_h·H = D, full (not causal) counting, no recomputation.
    """
    return sequence / (8 * hidden)


def overlap_efficiency(math_s: float, comm_s: float, observed_s: float) -> float:
    """How much of the smaller of two costs was hidden behind the larger.

    Formula:
        COMPUTE-OVERLAP
        (T_math + T_comm - T_obs) / min(T_math, T_comm)

    Args:
        math_s: T_math.
        comm_s: T_comm.
        observed_s: T_obs of both together.

    Returns:
        1 when the smaller is hidden completely, 0 when they ran one after the other.
    Source: scaling-book, roofline chapter: max(T_math, T_comm) <= T <= T_math + T_comm.
    """
    return (math_s + comm_s - observed_s) / min(math_s, comm_s)


def wave_efficiency(tiles: int, processors: int) -> float:
    """Share of the processors that work when tiles run in whole waves.

    Formula:
        COMPUTE-WAVES
        x / ceil(x), x = tiles / SMs

    Args:
        tiles: output tiles of a kernel.
        processors: SMs that take them.

    Returns:
        0 to 1.
    Source: NVIDIA, Matrix Multiplication Background (wave quantization).
    """
    waves = tiles / processors
    return waves / math.ceil(waves)


def sm_tax(comm_processors: int, processors: int) -> float:
    """Slowdown of compute while communication kernels hold some of its processors.

    Formula:
        COMPUTE-SM-TAX
        kappa = 1 / (1 - sm_comm / sm)

    Args:
        comm_processors: SMs that communication kernels occupy.
        processors: SMs of the device.

    Returns:
        factor on compute time, an upper bound.
    Source: derived.
    Valid: communication driven by SMs, compute limited by SMs.
    """
    return 1 / (1 - comm_processors / processors)
