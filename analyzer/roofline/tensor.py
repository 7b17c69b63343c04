"""Tensor parallelism, with and without sequence parallelism."""

from __future__ import annotations

from analyzer.roofline.exposure import Mark, Traffic

GATHERS_A_LAYER = 4  # forward and backward, attention and feed-forward


def tensor_degree_limit(ffn: float, flops_per_s: float, bytes_per_s: float, axes: int = 1) -> float:
    """Largest tensor-parallel degree whose communication stays below its compute.

    Formula:
        TP-LIMIT
        Y < M_Y·F·W/C, from 4BDF/(Y·C) > 4BD/(W·M_Y)

    Args:
        ffn: F, feed-forward width.
        flops_per_s: C of a device.
        bytes_per_s: W of a device on the axis.
        axes: M_Y, torus axes used.

    Returns:
        degree; independent of batch and dtype.
    Source: scaling-book, training chapter.
    Valid: plain two-matrix feed-forward, everything overlapped.
    """
    return axes * ffn * bytes_per_s / flops_per_s


def tp_traffic(
    activation_bytes: float,
    layers: float,
    degree: int,
    microbatches: int = 1,
) -> tuple[Traffic, ...]:
    """Activation all-reduces of Megatron's tensor parallelism.

    Formula:
        TP-AR
        4 all-reduces of b·s·D a layer and micro-batch: 8·b·s·D·(Y-1)/Y elements on the wire

    Args:
        activation_bytes: b·s·D of a micro-batch, bytes.
        layers: layers on this rank.
        degree: Y.
        microbatches: of a step.

    Returns:
        two forward all-reduces are critical, two backward ones can hide under the weight gradient.
    Source: arXiv 2104.04473, section 3.2.
    """
    calls = 2 * layers * microbatches
    forward = Traffic(
        "tp", "all_reduce", "forward", calls, activation_bytes, degree, Mark.CRITICAL, "TP-AR"
    )
    backward = Traffic(
        "tp",
        "all_reduce",
        "backward",
        calls,
        activation_bytes,
        degree,
        Mark.HIDEABLE,
        "TP-AR",
        "weight gradient of the same layer",
    )
    return forward, backward


def sp_traffic(
    activation_bytes: float,
    layers: float,
    degree: int,
    microbatches: int = 1,
    *,
    regather: bool = True,
    decomposed: bool = False,
) -> tuple[Traffic, ...]:
    """All-gathers and reduce-scatters of tensor parallelism with sequence parallelism.

    Formula:
        TP-SP
        4 all-gathers and 4 reduce-scatters of b·s·D a layer and micro-batch (the bytes of TP-AR),
        and 2 all-gathers more where inputs are gathered again for the weight gradient

    Args:
        activation_bytes: b·s·D of a micro-batch, bytes.
        layers: layers on this rank.
        degree: Y.
        microbatches: of a step.
        regather: gathered inputs are not kept.
        decomposed: chunks run beside the matmul's chunks (async-TP).

    Returns:
        all critical but the second gathering, which hides under the input gradient.
    Source: arXiv 2205.05198, section 4.2.
    """
    mark = Mark.DECOMPOSED if decomposed else Mark.CRITICAL
    beside = "chunks of its matmul" if decomposed else ""
    calls = GATHERS_A_LAYER // 2 * layers * microbatches
    rows = [
        Traffic("tp", op, phase, calls, activation_bytes, degree, mark, "TP-SP", beside)
        for phase in ("forward", "backward")
        for op in ("all_gather", "reduce_scatter")
    ]
    if regather:
        rows.append(
            Traffic(
                "tp",
                "all_gather",
                "backward",
                calls,
                activation_bytes,
                degree,
                Mark.HIDEABLE,
                "TP-SP",
                "input gradient of the same layer",
            )
        )
    return tuple(rows)


def tp_layer_comm_s(tokens: float, hidden: int, degree: int, bytes_per_s: float) -> float:
    """Communication of one layer's forward and backward at the link's full rate, bf16.

    Formula:
        TP-LAYER-TIME
        8·(Y-1)/Y·2·b·s·D/W

    Args:
        tokens: b·s.
        hidden: D.
        degree: Y.
        bytes_per_s: W.

    Returns:
        seconds.
    Source: arXiv 2104.04473, section 3.2.
    """
    return 8 * (degree - 1) / degree * 2 * tokens * hidden / bytes_per_s
