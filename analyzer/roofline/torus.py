"""Collectives on a torus of inter-chip links (TPU ICI).

``W`` counts both links of an axis: twice one link's one-way rate.
"""

from __future__ import annotations

from collections.abc import Sequence

HOP_S = 1e-6


def torus_gather_s(
    size_bytes: float,
    axis_sizes: Sequence[int],
    axis_bytes_per_s: float,
    hop_s: float = HOP_S,
) -> float:
    """All-gather or reduce-scatter over wrapped axes of a torus.

    Formula:
        COLL-TORUS-AG
        T = max( T_hop·sum(|X_i|)/2, V/(W·M) ); an all-reduce takes twice that

    Args:
        size_bytes: V, full array on these axes: divide by what other axes shard.
        axis_sizes: |X_i| of the M axes used.
        axis_bytes_per_s: W of one axis, both directions.
        hop_s: T_hop.

    Returns:
        seconds; independent of |X| while bandwidth-bound.
    Source: scaling-book, sharding chapter.
    Valid: every axis wraps around.
    """
    latency = hop_s * sum(axis_sizes) / 2
    return max(latency, size_bytes / (axis_bytes_per_s * len(axis_sizes)))


def line_gather_s(
    size_bytes: float, axis_size: int, axis_bytes_per_s: float, hop_s: float = HOP_S
) -> float:
    """All-gather or reduce-scatter over an axis that does not wrap around.

    Formula:
        COLL-LINE-AG
        T = max( T_hop·(|X|-1), (|X|-1)·(V/|X|)/(W/2) )

    Args:
        size_bytes: V, full array on this axis.
        axis_size: |X|.
        axis_bytes_per_s: W of the axis, both directions.
        hop_s: T_hop.

    Returns:
        seconds.
    Source: scaling-book, sharding chapter.
    Valid: axes shorter than 16 on v5e and v6e, not a multiple of 4 on v4 and v5p.
    """
    one_way = (axis_size - 1) * (size_bytes / axis_size) / (axis_bytes_per_s / 2)
    return max(hop_s * (axis_size - 1), one_way)


def torus_all_to_all_s(
    size_bytes: float,
    axis_size: int,
    axis_bytes_per_s: float,
    *,
    wraps: bool = True,
    hop_s: float = HOP_S,
) -> float:
    """All-to-all over one axis of a torus.

    Formula:
        COLL-TORUS-A2A
        T = max( T_hop·|X|/2, V/(4·W) ) on a ring: a quarter of its all-gather
        T = max( T_hop·(|X|-1), (V/4)/(W/2) ) on a line: the cut through its middle link

    Args:
        size_bytes: V, full array over the axis.
        axis_size: |X|.
        axis_bytes_per_s: W of the axis, both directions.
        wraps: the axis is a ring.
        hop_s: T_hop.

    Returns:
        seconds.
    Source: scaling-book, sharding chapter, for the ring; derived for the line.
    Valid: even splits, even |X|.
    """
    if wraps:
        return max(hop_s * axis_size / 2, size_bytes / (4 * axis_bytes_per_s))
    return max(hop_s * (axis_size - 1), size_bytes / (2 * axis_bytes_per_s))
