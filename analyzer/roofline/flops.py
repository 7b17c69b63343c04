"""Matrix-multiply FLOPs of a token, the conventions in use, and utilisation.

Four conventions print four numbers for one run (up to 4.8 percentage points of MFU at 4k tokens, a
factor of two at 128k): a figure is only meaningful with its :class:`Convention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from analyzer.errors import MeshscopeError
from analyzer.roofline.model_dims import ModelDims, attention_parameters, mtp_parameters, parameters

TRAIN_PASSES = 3  # forward, input gradient, weight gradient: each one forward's FLOPs


class Convention(StrEnum):
    """Who counts what; see ``convention_flops_per_token``."""

    PALM = "palm"
    TORCHTITAN = "torchtitan"
    MEGATRON = "megatron"
    K22 = "k22"
    K22_HARDWARE = "k22-hardware"
    SC21 = "sc21"


class Recompute(StrEnum):
    """Activation recomputation."""

    NONE = "none"
    SELECTIVE = "selective"  # the attention core only
    FULL = "full"  # every layer


class ImplausibleFigureError(MeshscopeError, ValueError):
    """A figure that cannot be: utilisation above 100 % means a wrong peak, count or time."""


@dataclass(frozen=True, slots=True)
class LayerFlops:
    """Forward FLOPs of one token in one layer."""

    qkv: float
    attention: float  # scores and weighted values
    out: float
    mlp: float
    router: float = 0.0

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return self.qkv + self.attention + self.out + self.mlp + self.router


def effective_sequence(lengths: Sequence[int]) -> float:
    """Sequence length that stands for packed documents in attention FLOPs.

    Formula:
        FLOPS-PACKED
        s = sum(s_i^2) / sum(s_i)

    Args:
        lengths: tokens of each document, attention masked to it.

    Returns:
        tokens.
    Source: Megatron-LM counts attention per document the same way.
    Valid: per-document attention masks.
    """
    return sum(n * n for n in lengths) / sum(lengths)


def layer_forward_flops(
    dims: ModelDims, sequence: float, *, causal: bool, moe: bool = False
) -> LayerFlops:
    """Forward FLOPs of one token in one layer, by operation.

    Formula:
        FLOPS-LAYER
        qkv 2·D·(N_h+2·K_h)·H; scores and values 4·s·N_h·H (half of it when causal)
        out 2·N_h·H·D; mlp 6·D·F gated, 4·D·F plain; MoE 6·D·(F_e·k + F_shared) + 2·D·E
        MLA scores and values 2·s·N_h·(d_nope+d_rope+d_v)

    Args:
        dims: dimensions of the model.
        sequence: s, tokens.
        causal: count only the lower triangle of the scores.
        moe: a layer with routed experts.

    Returns:
        FLOPs a token.
    Source: scaling-book, transformers chapter; one multiply-add is 2 FLOPs.
    Valid: padded capacity counts as hardware, not model FLOPs, and is not in here.
    """
    heads, width = dims.heads, dims.hidden
    out = 2.0 * heads * dims.value_dim * width
    if dims.mla:
        norms = (dims.mla.q_rank or 0) + dims.mla.kv_rank
        qkv = 2.0 * (attention_parameters(dims) - norms) - out
    else:
        qkv = 2.0 * width * (heads + 2 * dims.kv_heads) * dims.head_dim
    attention = 2.0 * sequence * heads * (dims.query_key_dim + dims.value_dim)
    attention /= 2 if causal else 1
    matrices = 3 if dims.gated else 2
    if moe and dims.moe:
        wide = dims.moe.expert_ffn * dims.moe.top_k + dims.moe.shared_ffn
        gate = 2.0 * width if dims.moe.shared_gate else 0.0
        mlp, router = 2.0 * matrices * width * wide + gate, 2.0 * width * dims.moe.experts
    else:
        mlp, router = 2.0 * matrices * width * dims.ffn, 0.0
    return LayerFlops(qkv, attention, out, mlp, router)


def forward_flops_per_token(dims: ModelDims, sequence: float, *, causal: bool) -> float:
    """Forward FLOPs of one token through the whole model, operation by operation.

    Formula:
        FLOPS-FORWARD
        sum over layers of FLOPS-LAYER + 2·D·V

    Args:
        dims: dimensions of the model.
        sequence: s, tokens.
        causal: count only the lower triangle of the scores.

    Returns:
        FLOPs a token; the input embedding is a look-up and costs none.
    Source: scaling-book, transformers chapter.
    """
    dense = layer_forward_flops(dims, sequence, causal=causal).total
    sparse = layer_forward_flops(dims, sequence, causal=causal, moe=True).total
    body = dense * (dims.layers - dims.moe_layers) + sparse * dims.moe_layers
    return body + 2.0 * dims.hidden * dims.vocab


def model_flops_per_token(
    dims: ModelDims, sequence: float, *, causal: bool, mtp: bool = False
) -> float:
    """FLOPs of training on one token.

    Formula:
        FLOPS-TRAIN
        6·P_mm + 12·L·N_h·H·s (full) or + 6·L·N_h·H·s (causal)

    Args:
        dims: dimensions of the model; P_mm are its active parameters without the input embedding.
        sequence: s, tokens.
        causal: count only the lower triangle of the scores.
        mtp: add the multi-token-prediction layers.

    Returns:
        FLOPs a token, forward and backward, nothing recomputed.
    Source: scaling-book, transformers chapter; agrees with Megatron-Bridge's published pairs of
        tokens/s and TFLOP/s to 0.1 % (dense) and 0.2 % (DeepSeek-V3 with MTP).
    """
    per_layer = sequence * dims.heads * (dims.query_key_dim + dims.value_dim)
    attention = (3.0 if causal else 6.0) * per_layer
    extra = dims.mtp_layers if mtp else 0
    weights = parameters(dims).matmul + (mtp_parameters(dims) if mtp else 0)
    return 6.0 * weights + attention * (dims.layers + extra)


def convention_flops_per_token(dims: ModelDims, sequence: float, convention: Convention) -> float:
    """FLOPs of training on one token as a given project counts them.

    Formula:
        FLOPS-CONVENTION
        palm: 6·P + 12·L·N_h·H·s, P with embeddings, full attention
        torchtitan: 6·(P - input embedding) + 6·L·N_h·(d_qk+d_v)·s, full attention
        megatron: 3 · FLOPS-FORWARD with causal attention, with multi-token prediction
        k22: 72·L·h^2·(1 + s/6h + V/12hL); sc21: 96·L·h^2·(1 + s/6h + V/16Lh)
        k22-hardware: 72·L·h^2·(1 + s/3h + V/12hL)

    Args:
        dims: dimensions of the model; ``k22`` and ``sc21`` assume MHA and a plain 4h feed-forward.
        sequence: s, tokens.
        convention: who counts. ``sc21`` includes full, ``k22-hardware`` selective recomputation: a
            utilisation made with them is a hardware utilisation. The latter counts attention twice
            as a whole, where FLOPS-EXECUTED adds its forward only.

    Returns:
        FLOPs a token.
    Source: PaLM (arXiv 2204.02311) appendix B, torchtitan, Megatron-LM, arXiv 2205.05198 eq. 7
        and 8, arXiv 2104.04473 eq. 3.
    """
    h, layers = dims.hidden, dims.layers
    if convention is Convention.PALM:
        mixing = 12.0 * layers * dims.heads * dims.head_dim * sequence
        return 6.0 * parameters(dims).active + mixing
    if convention is Convention.TORCHTITAN:
        return model_flops_per_token(dims, sequence, causal=False)
    if convention is Convention.MEGATRON:
        extra = mtp_parameters(dims) * 6.0
        extra += (
            3.0 * dims.mtp_layers * sequence * dims.heads * (dims.query_key_dim + dims.value_dim)
        )
        return TRAIN_PASSES * forward_flops_per_token(dims, sequence, causal=True) + extra
    base = 96.0 if convention is Convention.SC21 else 72.0
    attention = sequence / (3 * h if convention is Convention.K22_HARDWARE else 6 * h)
    return base * layers * h * h * (1 + attention) + 6.0 * dims.vocab * h


def executed_flops_per_token(
    dims: ModelDims,
    sequence: float,
    *,
    recompute: Recompute,
    causal: bool,
    flash_backward: bool = False,
) -> float:
    """FLOPs the device executes for one trained token: what HFU counts.

    Formula:
        FLOPS-EXECUTED
        FLOPS-TRAIN + forward of all layers (full) or + 4·s·N_h·H·L (selective, full attention)
        + 2·s·N_h·H·L where the attention backward recomputes the scores (flash)

    Args:
        dims: dimensions of the model.
        sequence: s, tokens.
        recompute: what backward computes again.
        causal: count only the lower triangle of the scores.
        flash_backward: the attention kernel recomputes scores in backward (2.5 forwards, not 2).

    Returns:
        FLOPs a token.
    Source: derived: a forward more of what is recomputed; 4/3 of the model FLOPs with full
        recomputation ("6ND becomes 8ND", scaling-book).
    """
    attention = layer_forward_flops(dims, sequence, causal=causal).attention * dims.layers
    total = model_flops_per_token(dims, sequence, causal=causal)
    if recompute is Recompute.FULL:
        forward = forward_flops_per_token(dims, sequence, causal=causal)
        total += forward - 2.0 * dims.hidden * dims.vocab
    elif recompute is Recompute.SELECTIVE:
        total += attention
    return total + (attention / 2 if flash_backward else 0.0)


def utilization(
    tokens_per_s: float, flops_per_token: float, devices: int, peak_flops_per_s: float
) -> float:
    """Share of the devices' peak a run reaches: MFU with model FLOPs, HFU with executed ones.

    Formula:
        FLOPS-MFU
        MFU = tokens/s · FLOPs/token / (devices · C)

    Args:
        tokens_per_s: throughput of the whole job.
        flops_per_token: by a named convention.
        devices: devices as the framework counts them.
        peak_flops_per_s: C, dense peak of the dtype the matmuls run in.

    Returns:
        0 to 1.

    Raises:
        ImplausibleFigureError: the result is above 1.
    Source: PaLM (arXiv 2204.02311), appendix B.
    """
    value = tokens_per_s * flops_per_token / (devices * peak_flops_per_s)
    if value > 1:
        raise ImplausibleFigureError(
            f"utilisation of {value:.1%} is above 100 %",
            hint="check the peak's dtype, sparsity, the device count and the step time",
        )
    return value


def training_time_s(
    parameters_active: float,
    tokens: float,
    devices: int,
    flops_per_s: float,
    recompute: Recompute = Recompute.NONE,
) -> float:
    """Time of a training run from its tokens.

    Formula:
        FLOPS-RUN-TIME
        t = 6·P·T / (n·X), 8·P·T / (n·X) with full recomputation

    Args:
        parameters_active: P a token uses.
        tokens: T of the whole run.
        devices: n.
        flops_per_s: X, achieved FLOP/s of one device (peak times utilisation).
        recompute: full recomputation adds a forward.

    Returns:
        seconds.
    Source: arXiv 2104.04473 eq. 4.
    Valid: attention small beside the weights (s well below 8·D).
    """
    passes = 8.0 if recompute is Recompute.FULL else 6.0
    return passes * parameters_active * tokens / (devices * flops_per_s)
