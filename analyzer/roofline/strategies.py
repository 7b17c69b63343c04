"""What a strategy sends: one call for every word of ``--expect``.

A :class:`Plan` holds the model, the batch and the mesh; :func:`traffic` prices the words on it, per
rank and step. Pipeline ranks are taken as equal, embedding and head as FSDP units of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from analyzer.errors import UsageError
from analyzer.roofline import context, data_parallel, expert, pipeline, tensor
from analyzer.roofline.exposure import Traffic
from analyzer.roofline.model_dims import ModelDims, parameters


@dataclass(frozen=True, slots=True)
class Options:
    """Choices that change bytes: element sizes, and what is kept or overlapped."""

    weight_bytes: float = 2
    grad_bytes: float = 4
    activation_bytes: float = 2
    dispatch_bytes: float = 2
    reshard: bool = True  # FSDP drops weights after forward
    regather: bool = True  # sequence parallelism gathers inputs again in backward
    async_tensor: bool = False
    ring: bool = True  # context parallelism: ring, else all-gather
    overlapped_experts: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Model, batch of one rank and mesh.

    ``mesh`` maps axis names to degrees; ``sequences`` are those of one micro-batch on one rank.
    """

    dims: ModelDims
    sequence: int
    sequences: int
    microbatches: int
    mesh: Mapping[str, int]
    chunks: int = 1
    options: Options = field(default_factory=Options)

    def degree(self, axis: str) -> int:
        """Ranks on an axis, 1 where the mesh does not have it."""
        return self.mesh.get(axis, 1)

    @property
    def local_tokens(self) -> float:
        """Tokens of a micro-batch on one context-parallel rank."""
        return self.sequence * self.sequences / self.degree("cp")

    @property
    def activation_bytes(self) -> float:
        """Bytes of a micro-batch's activation, whole width, on one context-parallel rank."""
        return self.local_tokens * self.dims.hidden * self.options.activation_bytes

    @property
    def local_layers(self) -> float:
        """Layers on one pipeline rank."""
        return self.dims.layers / self.degree("pp")

    def units(self) -> list[float]:
        """Parameters of the FSDP units on one rank before sharding: embedding, layers, head."""
        count, dims = parameters(self.dims), self.dims
        tp, ep, stages = self.degree("tp"), self.degree("ep"), self.degree("pp")
        sparse = 0.0
        if dims.moe:
            routed = count.experts / dims.moe_layers
            sparse = (count.moe_layer - routed + routed / ep) / tp
        dense = count.dense_layer / tp
        layers = [dense] * (dims.layers - dims.moe_layers) + [sparse] * dims.moe_layers
        if stages == 1:
            head = [count.head / tp] if count.head else []
            return [count.embedding / tp, *layers, *head]
        return layers[: round(self.local_layers)]

    @property
    def local_parameters(self) -> float:
        """Parameters on one rank before data-parallel sharding."""
        return sum(self.units())


def traffic(word: str, plan: Plan) -> tuple[Traffic, ...]:
    """Traffic of one strategy word, per rank and step.

    Args:
        word: ddp, zero1, zero2, fsdp (zero3), hsdp, tp, sp, cp, ulysses, pp or ep.
        plan: model, batch and mesh.

    Returns:
        one row per operation, phase and mark; empty when the axis has one rank.

    Raises:
        UsageError: an unknown word, or expert parallelism of a dense model.
    """
    made = _WORDS.get(word)
    if made is None:
        raise UsageError(f"unknown strategy {word!r}", hint="words: " + ", ".join(_WORDS))
    return tuple(row for row in made(plan) if row.ranks > 1)


def _ddp(plan: Plan) -> tuple[Traffic, ...]:
    return data_parallel.ddp_traffic(
        plan.local_parameters, plan.degree("dp_replicate"), plan.options.grad_bytes
    )


def _zero1(plan: Plan) -> tuple[Traffic, ...]:
    o = plan.options
    return data_parallel.zero_traffic(
        plan.local_parameters, plan.degree("dp_shard"), o.weight_bytes, o.grad_bytes
    )


def _zero2(plan: Plan) -> tuple[Traffic, ...]:
    o = plan.options
    return data_parallel.zero_traffic(
        plan.local_parameters, plan.degree("dp_shard"), o.weight_bytes, o.grad_bytes,
        plan.microbatches,
    )  # fmt: skip


def _fsdp(plan: Plan) -> tuple[Traffic, ...]:
    o = plan.options
    return data_parallel.fsdp_traffic(
        plan.units(), plan.degree("dp_shard"), o.weight_bytes, o.grad_bytes, plan.microbatches,
        reshard=o.reshard,
    )  # fmt: skip


def _hsdp(plan: Plan) -> tuple[Traffic, ...]:
    o = plan.options
    return data_parallel.hsdp_traffic(
        plan.units(), plan.degree("dp_shard"), plan.degree("dp_replicate"), o.weight_bytes,
        o.grad_bytes, plan.microbatches,
    )  # fmt: skip


def _tp(plan: Plan) -> tuple[Traffic, ...]:
    return tensor.tp_traffic(
        plan.activation_bytes, plan.local_layers, plan.degree("tp"), plan.microbatches
    )


def _sp(plan: Plan) -> tuple[Traffic, ...]:
    o = plan.options
    return tensor.sp_traffic(
        plan.activation_bytes,
        plan.local_layers,
        plan.degree("tp"),
        plan.microbatches,
        regather=o.regather,
        decomposed=o.async_tensor,
    )


def _cp(plan: Plan) -> tuple[Traffic, ...]:
    o, tp = plan.options, plan.degree("tp")
    width = plan.dims.kv_heads * plan.dims.head_dim // tp
    degree = plan.degree("cp")
    if o.ring:
        return context.ring_traffic(
            width, plan.local_tokens, plan.local_layers, degree, plan.microbatches,
            o.activation_bytes,
        )  # fmt: skip
    return context.gather_traffic(
        width, plan.local_tokens * degree, plan.local_layers, degree, plan.microbatches,
        o.activation_bytes,
    )  # fmt: skip


def _ulysses(plan: Plan) -> tuple[Traffic, ...]:
    tp, h = plan.degree("tp"), plan.dims.head_dim
    return context.ulysses_traffic(
        plan.dims.heads * h // tp, plan.dims.kv_heads * h // tp, plan.local_tokens,
        plan.local_layers, plan.degree("cp"), plan.microbatches, plan.options.activation_bytes,
    )  # fmt: skip


def _pp(plan: Plan) -> tuple[Traffic, ...]:
    if plan.degree("pp") == 1:
        return ()
    shape = pipeline.Shape(plan.degree("pp"), plan.microbatches, plan.chunks)
    return pipeline.pp_traffic(plan.activation_bytes, shape, plan.degree("tp"))


def _ep(plan: Plan) -> tuple[Traffic, ...]:
    moe, o = plan.dims.moe, plan.options
    if moe is None:
        raise UsageError(f"{plan.dims.name} has no experts to parallelise")
    share = plan.dims.moe_layers / plan.degree("pp")
    size = expert.dispatch_bytes(plan.local_tokens, moe.top_k, plan.dims.hidden, o.dispatch_bytes)
    back = expert.dispatch_bytes(plan.local_tokens, moe.top_k, plan.dims.hidden, o.activation_bytes)
    return expert.ep_traffic(
        size, back, share, plan.degree("ep"), plan.microbatches, overlapped=o.overlapped_experts
    )


_WORDS: Mapping[str, Callable[[Plan], tuple[Traffic, ...]]] = MappingProxyType(
    {
        "ddp": _ddp,
        "zero1": _zero1,
        "zero2": _zero2,
        "fsdp": _fsdp,
        "zero3": _fsdp,
        "hsdp": _hsdp,
        "tp": _tp,
        "sp": _sp,
        "cp": _cp,
        "ulysses": _ulysses,
        "pp": _pp,
        "ep": _ep,
    }
)
