"""Memory of a setup on its heaviest device, by category."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from analyzer.plan.layout import Mesh, Setup, accounting_of
from analyzer.plan.machine import Machine
from analyzer.plan.request import Request
from analyzer.roofline.activations import (
    LayerInput,
    Saving,
    layer_activation_bytes,
    llama_activation_bytes,
    logits_bytes,
)
from analyzer.roofline.flops import Recompute
from analyzer.roofline.memory import Accounting, fsdp_working_bytes, state_bytes
from analyzer.roofline.model_dims import ModelDims, ParameterCount, parameters
from analyzer.roofline.pipeline import in_flight

WIRE_BYTES = 2  # gathered weights are bf16
LOGIT_BYTES = 4 + 2 + 2  # an fp32 copy, the bf16 product, its gradient


@lru_cache(maxsize=64)
def counted(dims: ModelDims) -> ParameterCount:
    """Parameters of a model, counted once."""
    return parameters(dims)


@lru_cache(maxsize=8192)
def _states(dims: ModelDims, accounting: Accounting, mesh: Mesh) -> tuple[tuple[str, float], ...]:
    has = held(dims, mesh.pp, mesh.tp, mesh.ep)
    expert_shards = max(1, mesh.shards // mesh.ep)
    return tuple(
        (
            name,
            state_bytes(has.dense, part, mesh.stage, mesh.shards)
            + state_bytes(has.experts, part, mesh.stage, expert_shards),
        )
        for name, part in accounting_of(accounting)
    )


@dataclass(frozen=True, slots=True)
class Held:
    """Parameters of the heaviest pipeline rank before data-parallel sharding."""

    dense: float
    experts: float
    unit: float  # the largest FSDP unit


@lru_cache(maxsize=4096)
def held(dims: ModelDims, pp: int, tp: int, ep: int) -> Held:
    """What one rank of a stage holds: its share of layers, and the embedding or the head."""
    count = counted(dims)
    share = -(-dims.layers // pp) / dims.layers
    body = (count.attention + count.mlp + count.router + count.norms) * share / tp
    ends = count.embedding + count.head if pp == 1 else max(count.embedding, count.tied_head)
    experts = count.experts * share / (tp * ep)
    layer = max(count.dense_layer, 0) / tp
    if dims.moe:
        routed = count.experts / dims.moe_layers
        layer = max(layer, (count.moe_layer - routed + routed / ep) / tp)
    return Held(body + ends / tp, experts, max(layer, count.embedding / tp))


def model_states_bytes(request: Request, mesh: Mesh) -> dict[str, float]:
    """Weights, gradients and optimizer state of the heaviest rank (MEM-STATES).

    Experts are sharded over the data ranks that hold the same ones.
    """
    return dict(_states(request.dims, request.accounting, mesh))


def layer_bytes(dims: ModelDims, tokens: float, tp: int, *, full: bool) -> float:
    """Activations of one layer kept for backward: all of them, or its input alone.

    A MoE layer is taken as a dense one of the width its tokens pass, its copies for dispatch and
    combine beside it.
    """
    if full:
        layer = LayerInput(tokens, 1, dims.hidden, dims.heads)
        kept = layer_activation_bytes(layer, tp, sequence_parallel=True, saving=Saving.FULL)
        return kept / tp  # sequence parallelism shards the input
    if not dims.gated:
        layer = LayerInput(tokens, 1, dims.hidden, dims.heads)
        return layer_activation_bytes(layer, tp, sequence_parallel=True, saving=Saving.SELECTIVE)
    if dims.moe is None:
        return llama_activation_bytes(dims, tokens, tp)
    copies = 2 * 2 * tokens * dims.moe.top_k * dims.hidden / tp
    return llama_activation_bytes(_passed(dims), tokens, tp) + copies


@lru_cache(maxsize=64)
def _passed(dims: ModelDims) -> ModelDims:
    """The dense model whose layers are as wide as what a token passes of the experts."""
    if dims.moe is None:
        return dims
    return replace(dims, ffn=dims.moe.top_k * dims.moe.expert_ffn + dims.moe.shared_ffn)


def footprint(request: Request, machine: Machine, setup: Setup) -> dict[str, float]:
    """Bytes on the heaviest device, by category.

    Categories are weights, gradients, optimizer, gathered (what FSDP unshards), activations,
    logits, and a reserve for the allocator, communication buffers and the runtime.
    """
    dims, mesh = request.dims, setup.mesh
    tokens = setup.sequence * setup.sequences / mesh.cp
    full = setup.recompute is Recompute.FULL
    layers = -(-dims.layers // mesh.pp)
    kept = layer_bytes(dims, tokens, mesh.tp, full=full) * layers
    working = layer_bytes(dims, tokens, mesh.tp, full=False) if full else 0.0
    first = kept * float(in_flight(setup.schedule, setup.shape, 0) or 1) + working
    last = kept + working
    logits = logits_bytes(tokens, dims.vocab, mesh.tp, LOGIT_BYTES)
    found = model_states_bytes(request, mesh)
    if mesh.stage == 3 and mesh.shards > 1:
        unit = held(dims, mesh.pp, mesh.tp, mesh.ep).unit
        found["gathered"] = fsdp_working_bytes(unit, WIRE_BYTES, request.grad_bytes)
    else:
        found["gathered"] = 0.0
    first_heavier = mesh.pp > 1 and first > last + logits
    found["activations"] = first if first_heavier or mesh.pp == 1 else last
    found["logits"] = 0.0 if first_heavier else logits
    found["reserve"] = request.reserve * machine.memory_bytes
    return found


def fits(machine: Machine, memory: Mapping[str, float]) -> bool:
    """Whether a footprint is within the device."""
    return sum(memory.values()) <= machine.memory_bytes
