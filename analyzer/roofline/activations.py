"""Activation memory of transformer layers and of the output head."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from analyzer.roofline.model_dims import ModelDims


class Saving(StrEnum):
    """What is recomputed instead of kept."""

    NONE = "none"
    SELECTIVE = "selective"  # the attention core: also what a fused attention kernel keeps
    FULL = "full"


@dataclass(frozen=True, slots=True)
class LayerInput:
    """One micro-batch at a layer: s tokens a sequence, b sequences, h wide, a heads."""

    sequence: float
    sequences: float
    hidden: float
    heads: int

    @property
    def sbh(self) -> float:
        """s·b·h."""
        return self.sequence * self.sequences * self.hidden

    @property
    def scores(self) -> float:
        """5·a·s/h: the attention core's share, in units of s·b·h."""
        return 5 * self.heads * self.sequence / self.hidden


def layer_activation_bytes(
    layer: LayerInput, tensor_degree: int = 1, *, sequence_parallel: bool, saving: Saving
) -> float:
    """Activations of one GPT layer kept for backward, bf16 with dropout.

    Formula:
        MEM-ACT-GPT
        none sbh(34 + 5as/h); TP sbh(10 + 24/t + 5as/(ht)); TP+SP sbh/t(34 + 5as/h)
        selective without 5as/h; full 2sbh

    Args:
        layer: s, b, h and a; s is the local length under context parallelism.
        tensor_degree: t.
        sequence_parallel: norms and dropouts are sharded over t too.
        saving: what backward recomputes.

    Returns:
        bytes of one layer and micro-batch.
    Source: arXiv 2205.05198, table 2.
    Valid: plain feed-forward of 4h, MHA, dropout.
    """
    if saving is Saving.FULL:
        return 2 * layer.sbh
    scores = layer.scores if saving is Saving.NONE else 0.0
    if sequence_parallel:
        return layer.sbh / tensor_degree * (34 + scores)
    return layer.sbh * (10 + (24 + scores) / tensor_degree)


def llama_activation_bytes(dims: ModelDims, tokens: float, tensor_degree: int = 1) -> float:
    """Activations of one gated, grouped-query layer kept for backward, bf16, fused attention.

    Formula:
        MEM-ACT-LLAMA
        2·b·s·[2D + D + (N_h+2K_h)H + N_h·H + D + 2F + F] / t

    Args:
        dims: dimensions of the model.
        tokens: b·s of a micro-batch on this rank.
        tensor_degree: t with sequence parallelism.

    Returns:
        bytes of one layer and micro-batch.
    Source: derived, operation by operation: two norm inputs, inputs of both blocks, Q K V, the
        attention output, gate and up, their product.
    Valid: no dropout, no recomputation, dense layer.
    """
    width = 4 * dims.hidden + 3 * dims.ffn
    width += (2 * dims.heads + 2 * dims.kv_heads) * dims.head_dim
    return 2 * tokens * width / tensor_degree


def stage_activation_bytes(
    layer_bytes: float, layers: int, stages: int, rank: int = 0, chunks: int = 1
) -> float:
    """Activations a pipeline rank holds at its peak under (interleaved) 1F1B.

    Formula:
        MEM-ACT-STAGE
        (p-r)·L/p layers' worth; interleaved on rank 0 times 1 + (p-1)/(p·v)

    Args:
        layer_bytes: one layer and micro-batch.
        layers: L of the model.
        stages: p.
        rank: r.
        chunks: v.

    Returns:
        bytes: on the first rank all L layers' worth, whatever p is.
    Source: arXiv 2205.05198, section 4.2.3.
    Valid: m >= p.
    """
    if chunks > 1:
        held = (2 * (stages - rank - 1) + (chunks - 1) * stages + 1) / chunks
    else:
        held = stages - rank
    return layer_bytes * layers / stages * held


def logits_bytes(
    tokens: float, vocab: int, tensor_degree: int = 1, element_bytes: float = 4
) -> float:
    """Logits of a micro-batch: the spike on the last stage.

    Formula:
        MEM-LOGITS
        e·b·s·V/Y

    Args:
        tokens: b·s.
        vocab: V.
        tensor_degree: Y of a vocabulary-parallel head.
        element_bytes: e, 4 for fp32.

    Returns:
        bytes of one copy; a bf16 copy and the gradient come on top unless the loss is chunked.
    Source: arXiv 2205.05198, section 4.2.3.
    """
    return element_bytes * tokens * vocab / tensor_degree


def output_tensor_bytes(layer: LayerInput, in_flight: float) -> float:
    """What freeing the stage's output tensors saves.

    Formula:
        MEM-ACT-OUTPUT
        2·s·b·h·r

    Args:
        layer: s, b and h.
        in_flight: r, micro-batches in flight.

    Returns:
        bytes.
    Source: arXiv 2205.05198, appendix B.
    """
    return 2 * layer.sbh * in_flight


def checkpoint_bytes(tokens: float, layers: int, widths: float) -> float:
    """Checkpointed activations of a whole model, bf16.

    Formula:
        MEM-ACT-CHECKPOINTS
        2·L·B·(widths kept)

    Args:
        tokens: B, all tokens of the batch.
        layers: L.
        widths: sum of the widths kept a layer: D for one block input, D + 2F after the big
            matmuls.

    Returns:
        bytes over all devices.
    Source: scaling-book, training chapter.
    """
    return 2 * layers * tokens * widths
