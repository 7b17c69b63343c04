"""Collectives on a hierarchy: GPUs in nodes, nodes in a network.

``W`` of a level is one direction and what one of its children can send.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a tree: how many children meet there, and what each can send into it."""

    children: int
    bytes_per_s: float


def tree_gather_s(size_bytes: float, levels: Sequence[Level]) -> float:
    """All-gather or reduce-scatter over a tree of switches.

    Formula:
        COLL-TREE-AG
        T = S·max_i (d_i-1)/(d_i·W_i); an all-reduce without in-network reduction takes twice that

    Args:
        size_bytes: S, the gathered array.
        levels: innermost first; W_i is the egress of a child of level i (of a whole node at the
            second level).

    Returns:
        seconds.
    Source: scaling-book, GPU chapter.
    Valid: bandwidth-bound; traffic of all levels overlaps.
    """
    return size_bytes * max(
        (level.children - 1) / (level.children * level.bytes_per_s) for level in levels
    )


def sharded_gather_s(size_bytes: float, levels: Sequence[Level], inner_shards: int) -> float:
    """All-gather over an outer mesh axis of an array that an inner axis shards too.

    Formula:
        COLL-TREE-AG-SHARDED
        T = S·max_i (d_i-1)/(d_i·max(Y, S_{i-1})·W_i), S_{i-1} GPUs below a child's level

    Args:
        size_bytes: S, the array before either axis shards it.
        levels: innermost first; W_i is the egress of ONE GPU into level i. A level the outer axis
            does not cross has one child.
        inner_shards: Y.

    Returns:
        seconds.
    Source: scaling-book, GPU chapter.
    Valid: bandwidth-bound. Sharding inside a node does not speed up the outer axis until Y spans
        more than a node.
    """
    worst, below = 0.0, 1
    for level in levels:
        share = max(inner_shards, below) * level.bytes_per_s
        worst = max(worst, (level.children - 1) / (level.children * share))
        below *= level.children
    return size_bytes * worst


@dataclass(frozen=True, slots=True)
class HierarchicalTime:
    """The bracket of a hierarchical all-reduce."""

    inside_s: float  # both passes inside the node
    between_s: float

    @property
    def least_s(self) -> float:
        """Everything inside the nodes overlaps."""
        return max(self.inside_s, self.between_s)

    @property
    def most_s(self) -> float:
        """Nothing overlaps."""
        return self.inside_s + self.between_s


def hierarchical_all_reduce_s(
    size_bytes: float, node_ranks: int, nodes: int, node_bytes_per_s: float, nic_bytes_per_s: float
) -> HierarchicalTime:
    """All-reduce as reduce-scatter in the node, all-reduce between, all-gather in the node.

    Formula:
        COLL-HIER-AR
        (g-1)/g·S/W_g + 2(k-1)/k·(S/g)/W_nic + (g-1)/g·S/W_g

    Args:
        size_bytes: S.
        node_ranks: g.
        nodes: k.
        node_bytes_per_s: W_g, egress of a GPU inside its node.
        nic_bytes_per_s: W_nic, egress of a GPU into the network.

    Returns:
        both parts; the time lies between their maximum and their sum.
    Source: ml-engineering, network chapter; scaling-book, GPU chapter.
    Valid: as many network ports as GPUs, rail-aligned.
    """
    inside = 2 * (node_ranks - 1) / node_ranks * size_bytes / node_bytes_per_s
    between = 2 * (nodes - 1) / nodes * (size_bytes / node_ranks) / nic_bytes_per_s
    return HierarchicalTime(inside, between)


def flat_ring_all_reduce_s(size_bytes: float, ranks: int, node_bytes_per_s: float) -> float:
    """All-reduce on rings through all nodes, one channel per network port.

    Formula:
        COLL-FLAT-AR
        T = 2(n-1)/n·S/W_n

    Args:
        size_bytes: S.
        ranks: n.
        node_bytes_per_s: W_n, egress of a whole NODE; a single port is n/k times too slow.

    Returns:
        seconds.
    Source: ml-engineering, network chapter.
    """
    return 2 * (ranks - 1) / ranks * size_bytes / node_bytes_per_s


def hierarchical_all_to_all_s(
    size_bytes: float, node_ranks: int, nodes: int, node_bytes_per_s: float, nic_bytes_per_s: float
) -> float:
    """All-to-all over nodes; a hierarchy does not help it.

    Formula:
        COLL-HIER-A2A
        T = max( S·(g-1)/n / W_g, S·(n-g)/n / W_nic ), n = g·k

    Args:
        size_bytes: S, send buffer of a rank.
        node_ranks: g.
        nodes: k.
        node_bytes_per_s: W_g, egress of a GPU inside its node.
        nic_bytes_per_s: W_nic, egress of a GPU into the network.

    Returns:
        seconds.
    Source: scaling-book, GPU chapter.
    Valid: even splits; kernels that send one copy per node (DeepEP) move less.
    """
    ranks = node_ranks * nodes
    inside = size_bytes * (node_ranks - 1) / ranks / node_bytes_per_s
    return max(inside, size_bytes * (ranks - node_ranks) / ranks / nic_bytes_per_s)


def nic_share_bytes_per_s(busbw_bytes_per_s: float, ranks: int, nodes: int) -> float:
    """What each network port carried in a multi-node all-reduce of a given bus bandwidth.

    Formula:
        COLL-NIC-RATE
        busbw·(k-1)/(n-1)

    Args:
        busbw_bytes_per_s: bus bandwidth over all ranks.
        ranks: n.
        nodes: k.

    Returns:
        bytes/s of one GPU's port.
    Source: ml-engineering, network chapter.
    """
    return busbw_bytes_per_s * (nodes - 1) / (ranks - 1)
