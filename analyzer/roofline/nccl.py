"""NCCL's own prediction of a collective's time: a prior where nothing was measured.

Constants of NCCL 2.19 (``src/graph/tuning.cc``): the numbers its tuner chooses algorithms with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Protocol(StrEnum):
    """How NCCL moves data: two low-latency protocols and the high-bandwidth one."""

    LL = "ll"
    LL128 = "ll128"
    SIMPLE = "simple"


class Fabric(StrEnum):
    """What connects two neighbours."""

    NVLINK = "nvlink"
    PCI = "pci"
    NET = "net"


BASE_US: Mapping[str, Mapping[Protocol, float]] = MappingProxyType(
    {
        "tree": {Protocol.LL: 6.8, Protocol.LL128: 14.0, Protocol.SIMPLE: 8.4},
        "ring": {Protocol.LL: 6.6, Protocol.LL128: 14.0, Protocol.SIMPLE: 8.4},
    }
)
HOP_US: Mapping[tuple[str, Fabric], Mapping[Protocol, float]] = MappingProxyType(
    {
        ("ring", Fabric.NVLINK): {Protocol.LL: 0.6, Protocol.LL128: 1.9, Protocol.SIMPLE: 3.4},
        ("tree", Fabric.NVLINK): {Protocol.LL: 0.6, Protocol.LL128: 1.25, Protocol.SIMPLE: 4.0},
        ("ring", Fabric.PCI): {Protocol.LL: 1.0, Protocol.LL128: 2.5, Protocol.SIMPLE: 5.7},
        ("ring", Fabric.NET): {Protocol.LL: 2.7, Protocol.LL128: 4.0, Protocol.SIMPLE: 14.0},
        ("tree", Fabric.NET): {Protocol.LL: 5.0, Protocol.LL128: 8.5, Protocol.SIMPLE: 14.0},
    }
)
NVLS_US = 25.0
RATE_SHARE: Mapping[Protocol, float] = MappingProxyType(
    {Protocol.LL: 0.5, Protocol.LL128: 0.92, Protocol.SIMPLE: 1.0}
)
NVLS_SHARE: Mapping[str, float] = MappingProxyType({"hopper": 0.85, "blackwell": 0.74})
TREE_SHARE = 0.92
MULTI_NODE_SIMPLE = 1.4  # multi-node Simple ring all-reduce: NCCL scales the latency


def ring_steps(op: str, ranks: int, nodes: int) -> tuple[int, int]:
    """Steps of a ring and how many of them cross nodes.

    Formula:
        NCCL-RING-STEPS
        n_steps = 2(n-1) all_reduce, n-1 all_gather and reduce_scatter; n_inter = 2(k-1) or k-1

    Args:
        op: canonical collective.
        ranks: n.
        nodes: k.

    Returns:
        all steps and the steps between nodes.
    Source: NCCL 2.19, src/graph/tuning.cc.
    """
    rounds = 2 if op == "all_reduce" else 1
    return rounds * (ranks - 1), rounds * (nodes - 1)


def ring_latency_s(
    op: str, ranks: int, nodes: int, protocol: Protocol, inside: Fabric = Fabric.NVLINK
) -> float:
    """Latency part of NCCL's prediction for a ring.

    Formula:
        NCCL-RING-LATENCY
        base + (n_steps - n_inter)·intra + n_inter·inter; multi-node Simple all-reduce times 1.4

    Args:
        op: canonical collective.
        ranks: n.
        nodes: k.
        protocol: NCCL protocol.
        inside: fabric inside a node.

    Returns:
        seconds.
    Source: NCCL 2.19, src/graph/tuning.cc.
    """
    steps, inter = ring_steps(op, ranks, nodes)
    hop = HOP_US["ring", inside][protocol]
    latency = BASE_US["ring"][protocol] + (steps - inter) * hop
    latency += inter * HOP_US["ring", Fabric.NET][protocol]
    if nodes > 1 and protocol is Protocol.SIMPLE and op == "all_reduce":
        latency *= MULTI_NODE_SIMPLE
    return latency * 1e-6


def tree_latency_s(ranks: int, nodes: int, protocol: Protocol) -> float:
    """Latency part of NCCL's prediction for an all-reduce on trees.

    Formula:
        NCCL-TREE-LATENCY
        base + 2·[(n/k - 1)·intra + log2(k)·inter]

    Args:
        ranks: n.
        nodes: k.
        protocol: NCCL protocol.

    Returns:
        seconds.
    Source: NCCL 2.19, src/graph/tuning.cc.
    """
    inside = (ranks / nodes - 1) * HOP_US["tree", Fabric.NVLINK][protocol]
    between = math.log2(nodes) * HOP_US["tree", Fabric.NET][protocol]
    return (BASE_US["tree"][protocol] + 2 * (inside + between)) * 1e-6


def nccl_time_s(
    op: str, size_bytes: float, ranks: int, nodes: int, bytes_per_s: float
) -> tuple[float, str]:
    """NCCL's predicted time: the least over rings with each protocol and trees for all-reduce.

    Formula:
        NCCL-PRIOR
        t = latency + f·S/(W·share); share = 1/2 LL, 0.92 LL128, 1 Simple, times 0.92 for a tree,
        whose f is 2

    Args:
        op: all_reduce, all_gather or reduce_scatter.
        size_bytes: S.
        ranks: n.
        nodes: k.
        bytes_per_s: W, bus bandwidth of the graph NCCL found.

    Returns:
        seconds, and the algorithm with its protocol.
    Source: NCCL 2.19, src/graph/tuning.cc.
    Valid: a prior for choosing between algorithms; measured curves replace it.
    """
    rounds = 2 if op == "all_reduce" else 1
    factor = rounds * (ranks - 1) / ranks
    found: list[tuple[float, str]] = []
    for protocol in Protocol:
        rate = bytes_per_s * RATE_SHARE[protocol]
        ring = ring_latency_s(op, ranks, nodes, protocol) + factor * size_bytes / rate
        found.append((ring, f"ring {protocol}"))
        if op == "all_reduce" and nodes > 1:
            tree = 2 * size_bytes / (rate * TREE_SHARE)
            found.append((tree_latency_s(ranks, nodes, protocol) + tree, f"tree {protocol}"))
    return min(found)
