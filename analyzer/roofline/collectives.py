"""Sizes, wire bytes and alpha-beta times of collectives on one level of a network.

Sizes follow nccl-tests: the *output* of an all-gather, the *input* of a reduce-scatter, else the
tensor; of an uneven all-to-all the worst rank's larger buffer.
"""

from __future__ import annotations

import math

from analyzer import catalog

P2P = frozenset({"send", "recv", "send_recv"})
ROOTED = frozenset({"broadcast", "reduce"})
SCATTERED = frozenset(
    {"all_gather", "reduce_scatter", "all_to_all", "all_to_allv", "gather", "scatter"}
    | {"dispatch", "combine"}
)


def message_bytes(op: str, input_bytes: float, output_bytes: float) -> float | None:
    """Size S of a call from its buffers on one rank.

    Formula:
        COLL-SIZE
        all_gather: output; all_to_allv, gather, scatter, broadcast, recv: the larger; else input

    Args:
        op: canonical collective.
        input_bytes: send buffer.
        output_bytes: receive buffer.

    Returns:
        bytes; None for an operation without a size (barrier).
    Source: nccl-tests, doc/PERFORMANCE.md and the GetBw functions.
    """
    rule = catalog.size_rule(op)
    if rule is None:
        return None
    return {"in": input_bytes, "out": output_bytes}.get(rule, max(input_bytes, output_bytes))


def busbw_factor(op: str, ranks: int) -> float | None:
    """Factor f between algorithm and bus bandwidth.

    Formula:
        COLL-BUSBW
        busbw = f·S/t; f = 2(n-1)/n all_reduce, (n-1)/n all_gather, reduce_scatter, all_to_all(v),
        gather, scatter; 1 broadcast, reduce, send, recv

    Args:
        op: canonical collective.
        ranks: n, group size.

    Returns:
        factor; None for an operation without one (barrier).
    Source: nccl-tests, doc/PERFORMANCE.md.
    Valid: comparable with a link's rate only for flat rings and trees: in-network reduction can
        exceed it, hierarchies have no single wire rate.
    """
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if op in SCATTERED:
        return (ranks - 1) / ranks
    return 1.0 if op in P2P | ROOTED else None


def wire_bytes(op: str, size_bytes: float, ranks: int) -> float | None:
    """Bytes a rank puts on its link (the root, where there is one).

    Formula:
        COLL-WIRE
        f·S with f of COLL-BUSBW

    Args:
        op: canonical collective.
        size_bytes: S.
        ranks: n, group size.

    Returns:
        bytes; None for an operation without a size.
    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    factor = busbw_factor(op, ranks)
    return None if factor is None else factor * size_bytes


def busbw_bytes_per_s(op: str, size_bytes: float, ranks: int, time_s: float) -> float | None:
    """Bus bandwidth of a measured call.

    Formula:
        COLL-BUSBW-RATE
        f·S / t

    Args:
        op: canonical collective.
        size_bytes: S.
        ranks: n.
        time_s: t, transfer alone: a rank's own duration also holds its wait for the last peer.

    Returns:
        bytes/s, None where f is not defined.
    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    bytes_ = wire_bytes(op, size_bytes, ranks)
    return None if bytes_ is None else bytes_ / time_s


def ring_all_reduce_s(
    size_bytes: float, ranks: int, bytes_per_s: float, hop_s: float = 0.0
) -> float:
    """All-reduce on a ring.

    Formula:
        COLL-RING-AR
        t = 2(n-1)·a + 2(n-1)/n·S/W

    Args:
        size_bytes: S, tensor.
        ranks: n.
        bytes_per_s: W, egress of a rank.
        hop_s: a, latency of a step.

    Returns:
        seconds.
    Source: Patarasuk and Yuan 2009; nccl-tests, doc/PERFORMANCE.md.
    """
    return 2 * ring_gather_s(size_bytes, ranks, bytes_per_s, hop_s)


def ring_gather_s(size_bytes: float, ranks: int, bytes_per_s: float, hop_s: float = 0.0) -> float:
    """All-gather or reduce-scatter on a ring.

    Formula:
        COLL-RING-AG
        t = (n-1)·a + (n-1)/n·S/W

    Args:
        size_bytes: S, output of the all-gather or input of the reduce-scatter.
        ranks: n.
        bytes_per_s: W, egress of a rank.
        hop_s: a, latency of a step.

    Returns:
        seconds.
    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    return (ranks - 1) * hop_s + (ranks - 1) / ranks * size_bytes / bytes_per_s


def direct_gather_s(size_bytes: float, ranks: int, bytes_per_s: float, hop_s: float = 0.0) -> float:
    """All-gather or reduce-scatter on a switch, every peer directly.

    Formula:
        COLL-DIRECT-AG
        t = a + (n-1)/n·S/W

    Args:
        size_bytes: S, output of the all-gather or input of the reduce-scatter.
        ranks: n.
        bytes_per_s: W, egress of a rank.
        hop_s: a.

    Returns:
        seconds.
    Source: derived: each rank must receive (n-1)/n·S, and one hop suffices.
    """
    return hop_s + (ranks - 1) / ranks * size_bytes / bytes_per_s


def point_to_point_s(size_bytes: float, bytes_per_s: float, hop_s: float = 0.0) -> float:
    """One message, or a broadcast or reduce pipelined through all ranks.

    Formula:
        COLL-P2P
        t = a + S/W

    Args:
        size_bytes: S.
        bytes_per_s: W, egress of a rank.
        hop_s: a.

    Returns:
        seconds.
    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    return hop_s + size_bytes / bytes_per_s


def tree_all_reduce_s(
    size_bytes: float,
    node_ranks: int,
    nodes: int,
    bytes_per_s: float,
    hop_s: tuple[float, float] = (0.0, 0.0),
) -> float:
    """All-reduce on a double binary tree over nodes, a chain inside each.

    Formula:
        COLL-TREE-AR
        t = 2·[(g-1)·a_i + log2(k)·a_x] + 2·S/W

    Args:
        size_bytes: S.
        node_ranks: g, ranks a node.
        nodes: k.
        bytes_per_s: W, egress of a rank.
        hop_s: latencies (a_i inside a node, a_x between nodes).

    Returns:
        seconds.
    Source: Sanders, Speck and Träff 2009; NCCL 2.19 tuning model.
    """
    inside, between = hop_s
    hops = (node_ranks - 1) * inside + (math.log2(nodes) * between if nodes > 1 else 0.0)
    return 2 * hops + 2 * size_bytes / bytes_per_s


def halving_doubling_all_reduce_s(
    size_bytes: float, ranks: int, bytes_per_s: float, hop_s: float = 0.0
) -> float:
    """All-reduce by recursive halving and doubling.

    Formula:
        COLL-RHD-AR
        t = 2·log2(n)·a + 2(n-1)/n·S/W

    Args:
        size_bytes: S.
        ranks: n.
        bytes_per_s: W, egress of a rank.
        hop_s: a, latency of a step.

    Returns:
        seconds.
    Source: Thakur, Rabenseifner and Gropp 2005.
    Valid: n a power of two; full bisection.
    """
    return 2 * math.log2(ranks) * hop_s + 2 * (ranks - 1) / ranks * size_bytes / bytes_per_s


def one_shot_all_reduce_s(
    size_bytes: float, ranks: int, bytes_per_s: float, hop_s: float = 0.0
) -> float:
    """All-reduce where every rank reads every peer's tensor.

    Formula:
        COLL-ONESHOT-AR
        t = a + (n-1)·S/W

    Args:
        size_bytes: S.
        ranks: n.
        bytes_per_s: W, egress of a rank.
        hop_s: a.

    Returns:
        seconds.
    Source: custom all-reduce kernels (PyTorch symmetric memory, TensorRT-LLM).
    Valid: small S inside one switch.
    """
    return hop_s + (ranks - 1) * size_bytes / bytes_per_s


def two_shot_all_reduce_s(
    size_bytes: float, ranks: int, bytes_per_s: float, hop_s: float = 0.0
) -> float:
    """All-reduce as a direct reduce-scatter and a direct all-gather.

    Formula:
        COLL-TWOSHOT-AR
        t = 2·a + 2(n-1)/n·S/W

    Args:
        size_bytes: S.
        ranks: n.
        bytes_per_s: W, egress of a rank.
        hop_s: a.

    Returns:
        seconds.
    Source: custom all-reduce kernels (PyTorch symmetric memory, TensorRT-LLM).
    Valid: one switch.
    """
    return 2 * hop_s + 2 * (ranks - 1) / ranks * size_bytes / bytes_per_s


def in_network_all_reduce_s(size_bytes: float, bytes_per_s: float, hop_s: float = 0.0) -> float:
    """All-reduce added up inside the switch (NVLS, SHARP).

    Formula:
        COLL-NVLS-AR
        t = 2·a + S/W

    Args:
        size_bytes: S.
        bytes_per_s: W, egress of a rank.
        hop_s: a.

    Returns:
        seconds.
    Source: scaling-book, GPU chapter.
    Valid: a bound: about 1.3 times the ring's speed is what is seen (480 against 370 GB/s busbw).
    """
    return 2 * hop_s + size_bytes / bytes_per_s


def direct_all_to_all_s(
    size_bytes: float, ranks: int, bytes_per_s: float, hop_s: float = 0.0
) -> float:
    """All-to-all on a switch, every pair directly.

    Formula:
        COLL-A2A
        t = a + (n-1)/n·S/W

    Args:
        size_bytes: S, send buffer of a rank.
        ranks: n.
        bytes_per_s: W, egress of a rank.
        hop_s: a.

    Returns:
        seconds.
    Source: nccl-tests, doc/PERFORMANCE.md.
    """
    return hop_s + (ranks - 1) / ranks * size_bytes / bytes_per_s


def sparse_all_to_all_share(shards: int, targets: int) -> float:
    """Part of a dense all-to-all that remains when a token goes to k random shards, sent once each.

    Formula:
        COLL-A2A-SPARSE
        (1 - ((Z-1)/Z)^k)·(Z-1)/Z relative to sending every token to every shard

    Args:
        shards: Z.
        targets: k, independent uniform choices of a token.

    Returns:
        share of the bytes, 0 to 1; min(k/Z, 1) is its simple bound.
    Source: scaling-book, GPU chapter, appendix.
    """
    return (1 - ((shards - 1) / shards) ** targets) * (shards - 1) / shards
