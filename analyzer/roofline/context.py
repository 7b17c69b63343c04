"""Context parallelism: ring, all-gather, and all-to-all over heads (Ulysses)."""

from __future__ import annotations

from analyzer.roofline.exposure import Mark, Traffic


def ring_block_floor(
    flops_per_s: float,
    bytes_per_s: float,
    kv_share: float = 1.0,
    *,
    causal: bool = False,
) -> float:
    """Tokens a device must hold for ring attention to hide its key-value blocks.

    Formula:
        CP-RING-FLOOR
        c >= (C/W)·(K_h/N_h), from 4·d·c^2/C >= 4·c·d/W; twice that for causal zig-zag pairs

    Args:
        flops_per_s: C attention reaches (the peak for a bound).
        bytes_per_s: W to the next device of the ring.
        kv_share: K_h/N_h, key-value heads over query heads.
        causal: half the scores are masked, balanced over the ring by pairing blocks.

    Returns:
        tokens of the sequence a device.
    Source: Ring Attention (arXiv 2310.01889) for MHA; derived for GQA and causal masks.
    Valid: bf16, forward.
    """
    return flops_per_s / bytes_per_s * kv_share * (2 if causal else 1)


def ring_traffic(
    kv_width: int,
    block_tokens: float,
    layers: float,
    degree: int,
    microbatches: int = 1,
    element_bytes: float = 2,
) -> tuple[Traffic, ...]:
    """Key-value blocks of ring attention.

    Formula:
        CP-RING
        CP-1 messages of 2·b·(s/CP)·K_h·H a layer forward, of twice that backward (with gradients)

    Args:
        kv_width: K_h·H on this rank.
        block_tokens: b·s/CP.
        layers: layers on this rank.
        degree: CP.
        microbatches: of a step.
        element_bytes: of keys and values.

    Returns:
        hideable under the attention of the block in hand.
    Source: Ring Attention (arXiv 2310.01889).
    """
    size = 2 * block_tokens * kv_width * element_bytes
    calls = (degree - 1) * layers * microbatches
    by = "attention of the block in hand"
    return (
        Traffic("cp", "send_recv", "forward", calls, size, degree, Mark.HIDEABLE, "CP-RING", by),
        Traffic(
            "cp", "send_recv", "backward", calls, 2 * size, degree, Mark.HIDEABLE, "CP-RING", by
        ),
    )


def gather_traffic(
    kv_width: int,
    sequence_tokens: float,
    layers: float,
    degree: int,
    microbatches: int = 1,
    element_bytes: float = 2,
    *,
    regather: bool = False,
) -> tuple[Traffic, ...]:
    """Keys and values gathered before attention, their gradients scattered after it.

    Formula:
        CP-AG
        forward an all-gather, backward a reduce-scatter, of 2·b·s·K_h·H a layer

    Args:
        kv_width: K_h·H on this rank.
        sequence_tokens: b·s, whole sequence.
        layers: layers on this rank.
        degree: CP.
        microbatches: of a step.
        element_bytes: of keys and values.
        regather: backward gathers again.

    Returns:
        critical: exposed by design, O(s) beside O(s^2) of attention.
    Source: Llama 3 (arXiv 2407.21783), section 3.3.2.
    """
    size = 2 * sequence_tokens * kv_width * element_bytes
    calls = layers * microbatches
    rows = [
        Traffic("cp", "all_gather", "forward", calls, size, degree, Mark.CRITICAL, "CP-AG"),
        Traffic("cp", "reduce_scatter", "backward", calls, size, degree, Mark.CRITICAL, "CP-AG"),
    ]
    if regather:
        rows.append(
            Traffic("cp", "all_gather", "backward", calls, size, degree, Mark.CRITICAL, "CP-AG")
        )
    return tuple(rows)


def ulysses_traffic(
    query_width: int,
    kv_width: int,
    block_tokens: float,
    layers: float,
    degree: int,
    microbatches: int = 1,
    element_bytes: float = 2,
) -> tuple[Traffic, ...]:
    """All-to-alls that trade sequence shards for head shards around attention.

    Formula:
        CP-ULYSSES
        4 all-to-alls a layer forward (Q, K, V in, O out) and 4 backward:
        (n-1)/n·b·(s/n)·(2·N_h + 2·K_h)·H elements on the wire each way

    Args:
        query_width: N_h·H on this rank before the exchange.
        kv_width: K_h·H, key-value heads repeated up to n.
        block_tokens: b·s/n.
        layers: layers on this rank.
        degree: n, at most N_h.
        microbatches: of a step.
        element_bytes: of an activation.

    Returns:
        critical.
    Source: DeepSpeed Ulysses (arXiv 2309.14509).
    """
    calls = 2 * layers * microbatches
    return tuple(
        Traffic(
            "cp",
            "all_to_all",
            phase,
            calls,
            block_tokens * width * element_bytes,
            degree,
            Mark.CRITICAL,
            "CP-ULYSSES",
        )
        for phase in ("forward", "backward")
        for width in (query_width, kv_width)
    )


def gather_times_s(
    sequence_tokens: float,
    heads: tuple[int, int],
    head_dim: int,
    degrees: tuple[int, int],
    flops_per_s: float,
    bytes_per_s: float,
) -> tuple[float, float]:
    """All-gather of keys and values against causal attention, one layer forward.

    Formula:
        CP-AG-TIME
        T_AG = (CP-1)/CP·4·b·s·K_h·H/(Y·W); attention 2·b·s^2·N_h·H/(CP·Y·C)

    Args:
        sequence_tokens: s of one sequence (b = 1).
        heads: N_h and K_h of the model.
        head_dim: H.
        degrees: CP and Y.
        flops_per_s: C.
        bytes_per_s: W.

    Returns:
        seconds of the all-gather and of the attention, bf16.
    Source: derived; Llama 3 (arXiv 2407.21783) calls the former negligible at 128k tokens.
    """
    (queries, keys), (cp, tp) = heads, degrees
    gather = (cp - 1) / cp * 4 * sequence_tokens * keys * head_dim / (tp * bytes_per_s)
    attention = 2 * sequence_tokens**2 * queries * head_dim / (cp * tp * flops_per_s)
    return gather, attention
