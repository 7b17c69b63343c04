"""What links reach in practice: measured curves, as fractions of the datasheet rate.

A curve is a benchmark's bus bandwidth by payload. Its latency is taken out first, so that the
fraction describes the bytes alone and the latency of another group can be put back in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from analyzer import catalog
from analyzer.roofline.nccl import Protocol, ring_latency_s

RING_CEILING = 0.82
"""Most an NVLink ring reaches: 367 of 450 GB/s on H100, 740 of 900 on B200 (ml-engineering)."""
IN_NETWORK_GAIN = 1.31
"""All-reduce with in-network reduction against the ring, 8 GPUs: 482.26 against 367.61 GB/s
(ml-engineering)."""
COPY_FRACTION = 0.88
"""A point-to-point copy over NVLink (ml-engineering)."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Fraction of the spec rate by message size, latency excluded."""

    sizes_bytes: tuple[float, ...]  # ascending
    fractions: tuple[float, ...]
    source: str

    def at(self, size_bytes: float) -> float:
        """The fraction at a size: a power of S between neighbours, constant beyond both ends."""
        return interpolate(size_bytes, self.sizes_bytes, self.fractions)


def interpolate(size_bytes: float, sizes_bytes: Sequence[float], values: Sequence[float]) -> float:
    """A value between measured sizes.

    Formula:
        LINK-INTERPOLATE
        linear in log S and log value between neighbours, constant beyond both ends

    Args:
        size_bytes: S.
        sizes_bytes: measured sizes, ascending.
        values: measured values, positive.

    Returns:
        the value at S.
    Source: derived: with both axes logarithmic, time grows with size wherever the measured one did.
    """
    if size_bytes <= sizes_bytes[0]:
        return values[0]
    for i in range(1, len(sizes_bytes)):
        low, high = sizes_bytes[i - 1], sizes_bytes[i]
        if size_bytes <= high:
            share = math.log(size_bytes / low) / math.log(high / low)
            return float(values[i - 1] ** (1 - share) * values[i] ** share)
    return values[-1]


def link_fraction(
    size_bytes: float,
    busbw_bytes_per_s: float,
    ranks: int,
    nodes: int,
    link_bytes_per_s: float,
) -> float:
    """Fraction of a link's rate that an all-reduce of a measured bus bandwidth used.

    Formula:
        LINK-FRACTION
        eta = ideal / (t - latency), t = f·S/busbw; ideal = 2(n-1)/n·S/W in a node,
        2(k-1)/k·(S/(n/k))/W across nodes

    Args:
        size_bytes: S.
        busbw_bytes_per_s: bus bandwidth by nccl-tests.
        ranks: n.
        nodes: k.
        link_bytes_per_s: W, one direction, of a GPU inside its node or into the network.

    Returns:
        fraction of W.
    Source: derived; latency is NCCL-RING-LATENCY of the LL protocol.
    """
    time_s = 2 * (ranks - 1) / ranks * size_bytes / busbw_bytes_per_s
    if nodes > 1:
        ideal = 2 * (nodes - 1) / nodes * size_bytes / (ranks / nodes) / link_bytes_per_s
    else:
        ideal = 2 * (ranks - 1) / ranks * size_bytes / link_bytes_per_s
    return ideal / (time_s - ring_latency_s("all_reduce", ranks, nodes, Protocol.LL))


@cache
def measured_curve(*, across_nodes: bool) -> Curve:
    """The default curve of a level, from the benchmark in ``catalog/hardware.toml``."""
    row = next(row for row in catalog.benchmarks() if (row.nodes > 1) == across_nodes)
    sizes = tuple(float(size) for size, _ in row.points)
    fractions = tuple(
        link_fraction(size, busbw * 1e9, row.ranks, row.nodes, row.link_gbps * 1e9)
        for size, busbw in row.points
    )
    if not across_nodes:
        fractions = tuple(min(value, RING_CEILING) for value in fractions)
    return Curve(sizes, fractions, row.source)
