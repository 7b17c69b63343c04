"""Data parallelism: DDP, ZeRO, FSDP, HSDP and gradients across pods."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from analyzer.roofline.exposure import Mark, Traffic

BUCKET_BYTES = 25 * 2**20
"""Default gradient bucket of PyTorch DDP."""

BACKWARD_BEFORE = "backward of the layers before"
FORWARD_BEFORE = "forward of the unit before"


def tokens_per_device_floor(
    flops_per_s: float, bytes_per_s: float, axes: int = 1, sparsity: float = 1.0
) -> float:
    """Tokens a device needs between two exchanges of data-parallel traffic to hide it.

    Formula:
        DP-FLOOR
        B/X > C/(W·M_X) · E/k, from 8BDF/(X·C) > 8DF/(W·M_X)

    Args:
        flops_per_s: C of a device.
        bytes_per_s: W, rate of a device on the link of the data-parallel axis (both links of a
            torus axis).
        axes: M_X, torus axes the data-parallel traffic uses.
        sparsity: E/k, experts stored over experts used.

    Returns:
        tokens a device: of an optimizer step for DDP, ZeRO-1 and FSDP without resharding, of a
        micro-batch for FSDP that gathers weights again in each.
    Source: scaling-book, training chapter.
    Valid: many replicas (else times (X-1)/X), matmuls only, bf16 weights and gradients, everything
        overlapped.
    """
    return flops_per_s / (bytes_per_s * axes) * sparsity


def pod_tokens_floor(flops_per_s: float, dcn_bytes_per_s: float) -> float:
    """Tokens a pod needs a step to hide gradient traffic between pods.

    Formula:
        DP-POD-FLOOR
        B per pod > C/W_dcn, from 8BDF/(N·C) > 8DF/(M·W_dcn)

    Args:
        flops_per_s: C of a chip.
        dcn_bytes_per_s: W_dcn, data-center network rate of a chip.

    Returns:
        tokens; independent of the chips in the pod.
    Source: scaling-book, training chapter.
    """
    return flops_per_s / dcn_bytes_per_s


def ddp_traffic(
    parameters: float, replicas: int, grad_bytes: float, bucket_bytes: float = BUCKET_BYTES
) -> tuple[Traffic, ...]:
    """Gradient all-reduces of DDP.

    Formula:
        DP-DDP
        ceil(g_b·P/bucket) all-reduces; 2(X-1)/X·g_b·P wire bytes a step

    Args:
        parameters: P on this rank.
        replicas: X.
        grad_bytes: g_b, bytes of a gradient on the wire.
        bucket_bytes: bucket size.

    Returns:
        all buckets but the last hide under backward, the last has nothing left beside it.
    Source: PyTorch Distributed (arXiv 2006.15704).
    Valid: gradient accumulation communicates in the last micro-batch only (no_sync).
    """
    total = grad_bytes * parameters
    calls = max(1, math.ceil(total / bucket_bytes))
    row = Traffic(
        "dp_replicate",
        "all_reduce",
        "backward",
        calls,
        total / calls,
        replicas,
        Mark.HIDEABLE,
        "DP-DDP",
        BACKWARD_BEFORE,
    )
    return tuple(_with_last(row))


def zero_traffic(
    parameters: float,
    shards: int,
    weight_bytes: float,
    grad_bytes: float,
    scatters: int = 1,
    bucket_bytes: float = BUCKET_BYTES,
) -> tuple[Traffic, ...]:
    """Gradient reduce-scatter and parameter all-gather of ZeRO-1 and ZeRO-2.

    Formula:
        DP-ZERO
        (X-1)/X·(G·g_b + p_b)·P wire bytes a step, G = 1 for ZeRO-1

    Args:
        parameters: P on this rank.
        shards: X.
        weight_bytes: p_b.
        grad_bytes: g_b.
        scatters: G, reduce-scatters of every gradient a step (the micro-batches for ZeRO-2 that
            keeps no full gradients).
        bucket_bytes: bucket size.

    Returns:
        reduce-scatters beside backward, all-gathers beside the next forward; the last and the
        first bucket have nothing beside them.
    Source: ZeRO (arXiv 1910.02054).
    """
    grads, weights = grad_bytes * parameters, weight_bytes * parameters
    n_grads = max(1, math.ceil(grads / bucket_bytes))
    n_weights = max(1, math.ceil(weights / bucket_bytes))
    scatter = Traffic(
        "dp_shard",
        "reduce_scatter",
        "backward",
        n_grads * scatters,
        grads / n_grads,
        shards,
        Mark.HIDEABLE,
        "DP-ZERO",
        BACKWARD_BEFORE,
    )
    gather = Traffic(
        "dp_shard",
        "all_gather",
        "optimizer",
        n_weights,
        weights / n_weights,
        shards,
        Mark.HIDEABLE,
        "DP-ZERO",
        "forward of the first layers",
    )
    return (*_with_last(scatter), *_with_last(gather))


def fsdp_traffic(
    unit_parameters: Sequence[float],
    shards: int,
    weight_bytes: float,
    grad_bytes: float,
    microbatches: int = 1,
    *,
    reshard: bool = True,
) -> tuple[Traffic, ...]:
    """Weight all-gathers and gradient reduce-scatters of FSDP (ZeRO-3).

    Formula:
        DP-FSDP
        reshard: (X-1)/X·(2·p_b + g_b)·P·G wire bytes a step; kept: (X-1)/X·(p_b + g_b)·P·G

    Args:
        unit_parameters: P_u of the units in forward order.
        shards: X.
        weight_bytes: p_b.
        grad_bytes: g_b.
        microbatches: G.
        reshard: weights are dropped after forward and gathered again in backward.

    Returns:
        the first unit's first all-gather and last reduce-scatter are edges, the rest hides.
    Source: PyTorch FSDP (arXiv 2304.11277); scaling-book, training chapter.
    Valid: prefetch of one unit; a framework that keeps the last unit saves one all-gather.
    """
    first = unit_parameters[0]
    gathers = ["forward", "backward"] if reshard else ["forward"]
    rows = [
        *((op_phase, "all_gather", weight_bytes, FORWARD_BEFORE) for op_phase in gathers),
        ("backward", "reduce_scatter", grad_bytes, BACKWARD_BEFORE),
    ]
    found: list[Traffic] = []
    for phase, op, element, hidden_by in rows:
        for unit, count in Counter(unit_parameters).items():
            row = Traffic(
                "dp_shard",
                op,
                phase,
                count * microbatches,
                element * unit,
                shards,
                Mark.HIDEABLE,
                "DP-FSDP",
                hidden_by,
            )
            edge = unit == first and (op == "reduce_scatter" or phase == "forward")
            found += _with_last(row) if edge else [row]
    return tuple(found)


def hsdp_traffic(
    unit_parameters: Sequence[float],
    shards: int,
    replicas: int,
    weight_bytes: float,
    grad_bytes: float,
    microbatches: int = 1,
) -> tuple[Traffic, ...]:
    """FSDP inside a group, all-reduce of the gradient shards between groups.

    Formula:
        DP-HSDP
        (S-1)/S·(2·p_b + g_b)·P·G + 2(R-1)/R·g_b·P/S wire bytes a step

    Args:
        unit_parameters: P_u of the units in forward order.
        shards: S.
        replicas: R.
        weight_bytes: p_b.
        grad_bytes: g_b.
        microbatches: G.

    Returns:
        the traffic of DP-FSDP and one all-reduce a unit, of which the first unit's is an edge.
    Source: PyTorch FSDP (arXiv 2304.11277).
    Valid: shards are all-reduced once a step.
    """
    sharded = fsdp_traffic(unit_parameters, shards, weight_bytes, grad_bytes, microbatches)
    reduces: list[Traffic] = []
    for unit, count in Counter(unit_parameters).items():
        row = Traffic(
            "dp_replicate",
            "all_reduce",
            "backward",
            count,
            grad_bytes * unit / shards,
            replicas,
            Mark.HIDEABLE,
            "DP-HSDP",
            BACKWARD_BEFORE,
        )
        reduces += _with_last(row) if unit == unit_parameters[0] else [row]
    return (*sharded, *reduces)


def pod_traffic_s(
    parameters: float, pods: int, pod_chips: int, grad_bytes: float, dcn_bytes_per_s: float
) -> float:
    """Time of the gradient all-reduce between pods.

    Formula:
        DP-POD
        2(R-1)/R·g_b·P / (M·W_dcn)

    Args:
        parameters: P of the model.
        pods: R.
        pod_chips: M.
        grad_bytes: g_b.
        dcn_bytes_per_s: W_dcn of a chip.

    Returns:
        seconds.
    Source: scaling-book, training chapter.
    Valid: gradients sharded over the pod before they cross.
    """
    return 2 * (pods - 1) / pods * grad_bytes * parameters / (pod_chips * dcn_bytes_per_s)


def _with_last(row: Traffic) -> list[Traffic]:
    """The row with one of its calls set apart as an edge of the step."""
    edge = replace(row, calls=1, mark=Mark.EDGE, hidden_by="")
    return [edge] if row.calls <= 1 else [replace(row, calls=row.calls - 1), edge]
