"""What a step cannot hide: critical communication, heads and tails, and what no window covers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Mark(StrEnum):
    """How a collective sits in the step."""

    CRITICAL = "critical"  # the producer just finished and the consumer needs it now
    DECOMPOSED = "decomposed"  # critical, cut into chunks beside the matmul's chunks
    HIDEABLE = "hideable"  # independent compute can run beside it
    EDGE = "edge"  # hideable, but at the start or end of the step with no compute beside it


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a strategy sends on one axis with one operation: counts and sizes of a step and rank."""

    axis: str
    op: str
    phase: str  # forward, backward or optimizer
    calls: float
    size_bytes: float  # S of a call, nccl-tests convention
    ranks: int
    mark: Mark
    formula_id: str
    hidden_by: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """A traffic's time: all its calls together, the link they share, and the matmul beside it."""

    mark: Mark
    time_s: float  # one call
    calls: float = 1.0
    link: str = ""
    matmul_s: float = 0.0  # DECOMPOSED: the matmul of one call
    chunks: int = 1  # DECOMPOSED: ring size


def decomposed_exposed_s(comm_s: float, matmul_s: float, chunks: int) -> float:
    """What stays exposed of a collective decomposed beside its matmul (async tensor parallel).

    Formula:
        EXPOSE-DECOMPOSED
        max(0, t - T_mm·(n-1)/n)

    Args:
        comm_s: t of the collective.
        matmul_s: T_mm of the matmul it feeds or drains.
        chunks: n, ring size: one chunk of compute always has nothing beside it.

    Returns:
        seconds.
    Source: derived from Wang et al., Overlap Communication with Dependent Computation (ASPLOS '23).
    """
    return max(0.0, comm_s - matmul_s * (chunks - 1) / chunks)


def split_exposed_s(comm_s: float, splits: int) -> float:
    """What stays exposed of a collective pipelined with its matmul in q splits.

    Formula:
        EXPOSE-SPLIT
        t / q

    Args:
        comm_s: t of the collective.
        splits: q.

    Returns:
        seconds, at least.
    Source: Megatron-Bridge (q = 4).
    """
    return comm_s / splits


def exposed_minimum_s(costs: Iterable[Cost], windows_s: Mapping[str, float]) -> float:
    """Least exposed communication of a step.

    Formula:
        EXPOSE-MIN
        sum CRIT + sum_decomposed max(0, t - T_mm(n-1)/n) + head + tail
        + max over links max(0, sum HIDE_link - window_link)

    Args:
        costs: every collective of the step with its mark. Hideable ones on one link add, those on
            different links run side by side.
        windows_s: link -> compute that can run beside its hideable traffic.

    Returns:
        seconds.
    Source: derived; the marks are those of the scaling-book's algorithms.
    Valid: perfect overlap of everything that can overlap.
    """
    fixed = 0.0
    hideable: defaultdict[str, float] = defaultdict(float)
    for cost in costs:
        if cost.mark is Mark.HIDEABLE:
            hideable[cost.link] += cost.time_s * cost.calls
        elif cost.mark is Mark.DECOMPOSED:
            left = decomposed_exposed_s(cost.time_s, cost.matmul_s, cost.chunks)
            fixed += left * cost.calls
        else:
            fixed += cost.time_s * cost.calls
    overflow = [total - windows_s.get(link, 0.0) for link, total in hideable.items()]
    return fixed + max(0.0, *overflow) if overflow else fixed


def step_bound_s(compute_s: float, exposed_s: float, sm_tax: float = 1.0) -> float:
    """Least time of a step.

    Formula:
        EXPOSE-STEP
        T_step >= kappa·T_compute + exposed minimum

    Args:
        compute_s: T_compute alone.
        exposed_s: EXPOSE-MIN.
        sm_tax: kappa of COMPUTE-SM-TAX; 1 where copy engines or the NIC move the data.

    Returns:
        seconds.
    Source: derived.
    """
    return compute_s * sm_tax + exposed_s
