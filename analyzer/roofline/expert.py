"""Expert parallelism: bytes of dispatch and combine, and when they are worth their compute."""

from __future__ import annotations

import math

from analyzer.roofline.exposure import Mark, Traffic


def distinct_targets(experts: int, top_k: int, groups: int) -> float:
    """Expected groups (ranks or nodes) among the experts of one token.

    Formula:
        EP-DISTINCT
        Z·(1 - C(E - E/Z, k)/C(E, k))

    Args:
        experts: E.
        top_k: k.
        groups: Z, each with E/Z experts.

    Returns:
        groups a token is sent to, once each.
    Source: derived: k experts drawn uniformly without replacement.
    """
    outside = experts - experts // groups
    return groups * (1 - math.comb(outside, top_k) / math.comb(experts, top_k))


def dispatch_bytes(
    tokens: float, copies: float, hidden: int, element_bytes: float, overhead_bytes: float = 0.0
) -> float:
    """Send buffer of a dispatch or combine.

    Formula:
        EP-BYTES
        S = T·copies·(D·e + overhead)

    Args:
        tokens: T of this rank.
        copies: k for a plain all-to-all, EP-DISTINCT where a kernel sends one copy a target.
        hidden: D.
        element_bytes: e, 1 for fp8, 2 for bf16.
        overhead_bytes: scales and indices of one copy.

    Returns:
        bytes; capacity padding replaces T·k by E·capacity, whatever the load.
    Source: DeepSeek-V3 (arXiv 2412.19437), section 3.2.
    """
    return tokens * copies * (hidden * element_bytes + overhead_bytes)


def remote_nodes(target_nodes: int, nodes: int) -> float:
    """Expected nodes other than its own that a token is sent to under node-limited routing.

    Formula:
        EP-REMOTE-NODES
        r = M_n·(k_n - 1)/k_n

    Args:
        target_nodes: M_n, nodes a token may reach.
        nodes: k_n.

    Returns:
        copies that cross the network.
    Source: derived; DeepSeek-V3 limits a token to 4 nodes.
    Valid: a token reaches all M_n nodes, its own no more often than others.
    """
    return target_nodes * (nodes - 1) / nodes


def ep_traffic(
    dispatch_size_bytes: float,
    combine_size_bytes: float,
    moe_layers: float,
    ranks: int,
    microbatches: int = 1,
    *,
    overlapped: bool = False,
) -> tuple[Traffic, ...]:
    """Dispatches and combines of a step.

    Formula:
        EP-TRAFFIC
        2 forward and 2 backward all-to-alls a MoE layer and micro-batch

    Args:
        dispatch_size_bytes: S of a dispatch, EP-BYTES.
        combine_size_bytes: S of a combine.
        moe_layers: MoE layers on this rank.
        ranks: Z.
        microbatches: of a step.
        overlapped: another micro-batch computes beside them.

    Returns:
        critical unless overlapped. Backward runs the combine's gradient as a dispatch and the other
        way round.
    Source: DeepSeek-V3 (arXiv 2412.19437), section 3.2.
    """
    mark = Mark.HIDEABLE if overlapped else Mark.CRITICAL
    by = "another micro-batch" if overlapped else ""
    calls = moe_layers * microbatches
    return tuple(
        Traffic("ep", op, phase, calls, size, ranks, mark, "EP-TRAFFIC", by)
        for phase in ("forward", "backward")
        for op, size in (("dispatch", dispatch_size_bytes), ("combine", combine_size_bytes))
    )


def expert_compute_bound(
    ffn: float, top_k: int, ranks: int, balance: float, node_size: int = 8
) -> bool:
    """Whether expert compute outweighs its all-to-alls between nodes.

    Formula:
        EP-BOUND
        4BkDF/(Z·C) > 4BD(Z-g)/(W·Z)·min(g·k/Z, 1)

    Args:
        ffn: F of an expert.
        top_k: k.
        ranks: Z.
        balance: alpha = C/W of the network between nodes, W of a whole node.
        node_size: g.

    Returns:
        True when compute-bound.
    Source: scaling-book, GPU chapter.
    Valid: uniform routing, plain feed-forward experts, overlap.
    """
    return top_k * ffn > balance * (ranks - node_size) * min(node_size * top_k / ranks, 1.0)
