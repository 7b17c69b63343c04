"""FSDP and tensor parallelism together: the best mesh, and the smallest batch it can run.

The per-layer costs are those of a plain two-matrix feed-forward block in bf16, as in the
scaling-book's training chapter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """FLOPs of one device, and bytes of the arrays it communicates, in one layer."""

    forward_flops: float
    backward_flops: float
    forward_bytes: float
    backward_bytes: float


def layer_costs(
    strategy: str, batch_tokens: float, hidden: float, ffn: float, data: int = 1, tensor: int = 1
) -> LayerCosts:
    """Compute and communication of a feed-forward layer under a strategy.

    Formula:
        MIX-LAYER
        FLOPs 4BDF/(XY) forward, 8BDF/(XY) backward
        bytes dp 0, 8DF; fsdp 4DF, 8DF; tp 4BD, 4BD; fsdp+tp 4BD/X + 4DF/Y, 8BD/X + 8DF/Y

    Args:
        strategy: dp, fsdp, tp or fsdp+tp.
        batch_tokens: B.
        hidden: D.
        ffn: F.
        data: X.
        tensor: Y.

    Returns:
        FLOPs and bytes of one device.
    Source: scaling-book, training chapter, summary table. Its mixed row charges the second
        gathering of activations in backward; its tensor-parallel row does not.

    Raises:
        ValueError: an unknown strategy.
    """
    b, d, f, x, y = batch_tokens, hidden, ffn, data, tensor
    bytes_ = {
        "dp": (0.0, 8 * d * f),
        "fsdp": (4 * d * f, 8 * d * f),
        "tp": (4 * b * d, 4 * b * d),
        "fsdp+tp": (4 * b * d / x + 4 * d * f / y, 8 * b * d / x + 8 * d * f / y),
    }.get(strategy)
    if bytes_ is None:
        raise ValueError(f"strategy must be dp, fsdp, tp or fsdp+tp, not {strategy!r}")
    return LayerCosts(4 * b * d * f / (x * y), 8 * b * d * f / (x * y), *bytes_)


def optimal_mesh(
    batch_tokens: float, ffn: float, chips: int, data_axes: int = 1, tensor_axes: int = 1
) -> tuple[float, float]:
    """Split of the chips between FSDP and tensor parallelism with the least communication.

    Formula:
        MIX-OPT
        X = sqrt(B/F · M_X/M_Y · N), Y = N/X

    Args:
        batch_tokens: B.
        ffn: F.
        chips: N.
        data_axes: M_X, torus axes of FSDP.
        tensor_axes: M_Y, torus axes of tensor parallelism.

    Returns:
        X and Y, real numbers: round to what the machine allows.
    Source: scaling-book, training chapter.
    Valid: on switched GPUs M_X = M_Y = 1; tensor parallelism inside the node does not make FSDP
        cheaper until it spans more than a node.
    """
    data = math.sqrt(batch_tokens / ffn * data_axes / tensor_axes * chips)
    return data, chips / data


def mixed_floor(
    balance: float, ffn: float, data_axes: int = 1, tensor_axes: int = 1, *, serial: bool = False
) -> float:
    """Tokens a chip needs for FSDP with tensor parallelism at its best mesh to be compute-bound.

    Formula:
        MIX-FLOOR
        B/N > alpha^2/(M_X·M_Y·F); 4 times that when both share links

    Args:
        balance: alpha = C/W, W of one axis.
        ffn: F.
        data_axes: M_X.
        tensor_axes: M_Y.
        serial: both axes use the same links, or run one after the other.

    Returns:
        tokens a chip.
    Source: scaling-book, training chapter: the text of February 2025 adds the two (serial), the
        later one overlaps them.
    """
    floor = balance**2 / (data_axes * tensor_axes * ffn)
    return 4 * floor if serial else floor


def mixed_ratio(
    batch_tokens: float,
    ffn: float,
    chips: int,
    balance: float,
    data_axes: int = 1,
    tensor_axes: int = 1,
) -> float:
    """Compute over communication of FSDP with tensor parallelism at its best mesh.

    Formula:
        MIX-RATIO
        T_math/T_comm = sqrt(B·F·M_X·M_Y) / (alpha·sqrt(N))

    Args:
        batch_tokens: B.
        ffn: F.
        chips: N.
        balance: alpha = C/W.
        data_axes: M_X.
        tensor_axes: M_Y.

    Returns:
        ratio, compute-bound above 1.
    Source: scaling-book, training chapter.
    Valid: the two axes overlap each other and compute.
    """
    return math.sqrt(batch_tokens * ffn * data_axes * tensor_axes) / (balance * math.sqrt(chips))
