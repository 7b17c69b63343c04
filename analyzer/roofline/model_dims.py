"""Dimensions of a transformer and the parameters that follow from them.

The counts are exact: biases, norms, routers and tied embeddings included, so that they can be held
against the totals model cards print.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from analyzer import catalog
from analyzer.errors import UsageError


@dataclass(frozen=True, slots=True)
class MlaDims:
    """Multi-head latent attention (DeepSeek-V2): ranks of the compressions and head parts."""

    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    q_rank: int | None = None  # None: queries are not compressed


@dataclass(frozen=True, slots=True)
class MoeDims:
    """Mixture-of-experts layers; every layer but the first ``dense_layers`` is one."""

    experts: int
    top_k: int
    expert_ffn: int
    shared_ffn: int = 0  # width of all shared experts together
    dense_layers: int = 0
    shared_gate: bool = False  # a D x 1 gate on the shared expert (Qwen)
    router_bias: bool = False
    score_bias: bool = False  # one number an expert that only steers selection (DeepSeek-V3)
    expert_bias: bool = False


@dataclass(frozen=True, slots=True)
class ModelDims:
    """A decoder-only transformer.

    ``ffn`` is the width of dense feed-forward layers (0 when every layer is a mixture of experts).
    The fields behind ``mtp_layers`` describe small terms that make counts exact.
    """

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    gated: bool = True
    tied_embeddings: bool = False
    moe: MoeDims | None = None
    mla: MlaDims | None = None
    mtp_layers: int = 0  # multi-token-prediction layers, trained beside the model
    norms_per_layer: int = 2
    norm_bias: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    sinks: bool = False  # a learned attention sink a head
    positions: int = 0  # learned position embeddings
    source: str = ""

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.moe.dense_layers if self.moe else 0

    @property
    def query_key_dim(self) -> int:
        """Width of a head in the scores."""
        return self.mla.nope_dim + self.mla.rope_dim if self.mla else self.head_dim

    @property
    def value_dim(self) -> int:
        """Width of a head in the attention output."""
        return self.mla.value_dim if self.mla else self.head_dim


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters of a model, all layers together unless named otherwise."""

    embedding: int  # input (and position) embedding
    head: int  # 0 when tied to the embedding
    attention: int
    mlp: int  # dense feed-forward layers and shared experts
    experts: int  # routed experts
    router: int
    norms: int
    active_experts: int  # routed experts one token passes
    score_bias: int  # steers routing, multiplies nothing: stored, not active
    tied_head: int  # V·D where the head reuses the embedding
    dense_layer: int  # one layer without routed experts, 0 where there is none
    moe_layer: int  # one layer with all its routed experts, 0 in a dense model

    @property
    def total(self) -> int:
        """All parameters."""
        body = self.attention + self.mlp + self.experts + self.router + self.norms
        return self.embedding + self.head + body + self.score_bias

    @property
    def active(self) -> int:
        """Parameters one token uses, input embedding included."""
        return self.total - self.score_bias - self.experts + self.active_experts

    @property
    def matmul(self) -> int:
        """Active parameters without the input embedding: 6 FLOPs each and trained token."""
        return self.active - self.embedding + self.tied_head


def parameters(dims: ModelDims) -> ParameterCount:
    """Exact parameter count of a decoder-only transformer.

    Formula:
        PARAM-TRANSFORMER
        P = 2·V·D + L·[D·N_h·H + 2·D·K_h·H + N_h·H·D + c·D·F + 2·D] + D, c = 3 gated, 2 plain
        MoE layer: 3·D·F_e·E + 3·D·F_shared + D·E; a token uses 3·D·F_e·k of the experts
        MLA attention: D·r_q + r_q + r_q·N_h·(d_nope+d_rope) + D·(r_kv+d_rope) + r_kv
        + r_kv·N_h·(d_nope+d_v) + N_h·d_v·D

    Args:
        dims: dimensions of the model.

    Returns:
        counts by part; multi-token-prediction layers are not among them.
    Source: scaling-book, transformers chapter; Megatron-LM's memory estimator for GQA, MLA and
        shared experts.
    Valid: decoder-only transformers whose small terms ``dims`` describes.
    """
    embedding = dims.vocab * dims.hidden + dims.positions * dims.hidden
    tied = dims.tied_embeddings
    head = dims.vocab * dims.hidden
    moe_layers, dense_layers = dims.moe_layers, dims.layers - dims.moe_layers
    attention = attention_parameters(dims)
    norm = dims.hidden * (2 if dims.norm_bias else 1)
    norms = dims.norms_per_layer * norm
    dense = _mlp(dims, dims.ffn, bias=dims.mlp_bias)
    experts = shared = router = active = 0
    if dims.moe:
        one = _mlp(dims, dims.moe.expert_ffn, bias=dims.moe.expert_bias)
        experts, active = one * dims.moe.experts, one * dims.moe.top_k
        shared = _mlp(dims, dims.moe.shared_ffn, bias=False)
        shared += dims.hidden if dims.moe.shared_gate else 0
        router = dims.hidden * dims.moe.experts
        router += dims.moe.experts if dims.moe.router_bias else 0
    return ParameterCount(
        embedding=embedding,
        head=0 if tied else head,
        attention=attention * dims.layers,
        mlp=dense * dense_layers + shared * moe_layers,
        experts=experts * moe_layers,
        router=router * moe_layers,
        norms=norms * dims.layers + norm,
        active_experts=active * moe_layers,
        score_bias=moe_layers * dims.moe.experts if dims.moe and dims.moe.score_bias else 0,
        tied_head=head if tied else 0,
        dense_layer=attention + dense + norms if dense_layers else 0,
        moe_layer=attention + shared + experts + router + norms if dims.moe else 0,
    )


def attention_parameters(dims: ModelDims) -> int:
    """Parameters of one attention block, the norm before it not counted.

    Formula:
        PARAM-ATTENTION
        D·N_h·H + 2·D·K_h·H + N_h·H·D, or the MLA sum of PARAM-TRANSFORMER

    Args:
        dims: dimensions of the model.

    Returns:
        parameters of one layer.
    Source: scaling-book, transformers chapter; DeepSeek-V2 (arXiv 2405.04434) for MLA.
    """
    d, n_h, k_h, h = dims.hidden, dims.heads, dims.kv_heads, dims.head_dim
    if dims.mla:
        mla = dims.mla
        query = n_h * (mla.nope_dim + mla.rope_dim)
        down = d * mla.q_rank + mla.q_rank if mla.q_rank else 0
        up = (mla.q_rank or d) * query
        kv = d * (mla.kv_rank + mla.rope_dim) + mla.kv_rank
        return (
            down
            + up
            + kv
            + mla.kv_rank * n_h * (mla.nope_dim + mla.value_dim)
            + (n_h * mla.value_dim * d)
        )
    small = (n_h + 2 * k_h) * h if dims.qkv_bias else 0
    small += d if dims.out_bias else 0
    small += 2 * h if dims.qk_norm else 0
    small += n_h if dims.sinks else 0
    return d * n_h * h + 2 * d * k_h * h + n_h * h * d + small


def mtp_parameters(dims: ModelDims) -> int:
    """Parameters of the multi-token-prediction layers one token uses, shared head included.

    Formula:
        PARAM-MTP
        mtp · (one active layer + 2·D·D + V·D + 3·D)

    Args:
        dims: dimensions of the model.

    Returns:
        active parameters; 0 without such layers.
    Source: DeepSeek-V3 (arXiv 2412.19437), section 2.2: a projection of two concatenated states,
        one transformer block, the model's own output head.
    """
    count = parameters(dims)
    layer = count.dense_layer
    if dims.moe:
        layer = count.moe_layer - (count.experts - count.active_experts) // dims.moe_layers
    return dims.mtp_layers * (
        layer + 2 * dims.hidden**2 + dims.vocab * dims.hidden + 3 * dims.hidden
    )


def _mlp(dims: ModelDims, ffn: int, *, bias: bool) -> int:
    matrices = 3 if dims.gated else 2
    extra = (matrices - 1) * ffn + dims.hidden if bias else 0
    return matrices * dims.hidden * ffn + extra


def find_model(name: str) -> ModelDims:
    """Dimensions of a published model by name or alias, spelled with any case and separators.

    Raises:
        UsageError: no such model in ``catalog/models.toml``; the hint lists the closest names.
    """
    rows = {_plain(key): row for key, row in catalog.models().items()}
    rows |= {_plain(str(row["name"])): row for row in rows.values()}
    row = rows.get(_plain(name))
    if row is None:
        known = [str(made["name"]) for made in rows.values()]
        by_plain = {_plain(made): made for made in known}
        close = difflib.get_close_matches(_plain(name), by_plain, n=5, cutoff=0.4)
        listed = [by_plain[key] for key in close] or sorted(set(known))
        raise UsageError(f"unknown model {name!r}", hint="known: " + ", ".join(listed))
    return dims_of(row)


def dims_of(row: Mapping[str, Any]) -> ModelDims:
    """Dimensions from a table with the keys of :class:`ModelDims`; other keys are ignored.

    Raises:
        UsageError: a dimension is missing or not a positive number.
    """
    values = {f.name: row[f.name] for f in fields(ModelDims) if f.name in row}
    for part, kind in (("moe", MoeDims), ("mla", MlaDims)):
        if part in values:
            values[part] = kind(**values[part])
    needed = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab")
    bad = [key for key in needed if not isinstance(values.get(key), int) or values[key] < 1]
    if bad:
        raise UsageError(f"model {row.get('name', '?')}: no usable {', '.join(bad)}")
    return ModelDims(**{"ffn": 0, "name": "", **values})


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum() or c == ".")
