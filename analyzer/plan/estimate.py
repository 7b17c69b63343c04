"""Time of a step and its parts: compute, what stays exposed on every axis, bubble, optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from analyzer.plan.footprint import WIRE_BYTES, held
from analyzer.plan.layout import Mesh, Setup, options
from analyzer.plan.machine import Machine, Wiring
from analyzer.plan.request import Request
from analyzer.roofline.collectives import P2P
from analyzer.roofline.data_parallel import ddp_traffic, fsdp_traffic, hsdp_traffic, zero_traffic
from analyzer.roofline.expected import CollectiveCall, CollectiveTime, expected_time
from analyzer.roofline.exposure import Mark, Traffic
from analyzer.roofline.flops import (
    Recompute,
    executed_flops_per_token,
    layer_forward_flops,
    model_flops_per_token,
)
from analyzer.roofline.model_dims import ModelDims
from analyzer.roofline.pipeline import PassTimes, bubble, transfer_s
from analyzer.roofline.strategies import Plan, traffic

INSIDE_PASSES = frozenset({"tp", "cp", "ep"})
"""Axes whose exposed time lengthens every pass, and so the bubble."""
ZERO_BUCKET, ZERO_BUCKET_A_RANK = 40e6, 1e6
"""Parameters in a bucket of Megatron's distributed optimizer: at least, and a data rank."""
QUEUE = ("tp", "cp", "ep", "dp_shard", "edp", "dp_replicate")
"""Order in which axes take the compute that hides them: what a layer waits for comes first."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A row of traffic and the time of one call."""

    row: Traffic
    time_s: float
    level: str

    @property
    def total_s(self) -> float:
        """All calls of the step."""
        return self.time_s * self.row.calls


@dataclass(frozen=True, slots=True)
class Parts:
    """Where a predicted step goes, seconds."""

    compute_s: float
    recompute_s: float
    exposed_s: Mapping[str, float]
    bubble_s: float
    optimizer_s: float
    idle_s: float

    @property
    def step_s(self) -> float:
        """Sum of the parts."""
        busy = self.compute_s + self.recompute_s + self.bubble_s
        return busy + sum(self.exposed_s.values()) + self.optimizer_s + self.idle_s


@lru_cache(maxsize=1024)
def flops_per_token(dims: ModelDims, sequence: int, recompute: Recompute) -> tuple[float, float]:
    """FLOPs of a trained token: the model's, and those recomputation adds."""
    model = model_flops_per_token(dims, sequence, causal=True, mtp=True)
    plain = model_flops_per_token(dims, sequence, causal=True)
    executed = executed_flops_per_token(dims, sequence, recompute=recompute, causal=True)
    return model, executed - plain


def step_traffic(request: Request, setup: Setup) -> list[Traffic]:
    """Every collective of a step on one rank; pipeline messages are priced by PP-P2P instead.

    Full recomputation runs the forward collectives of a layer a second time in backward.
    """
    plan = setup.plan(request.dims, options(request))
    mesh = setup.mesh
    rows = _data_rows(request, setup, plan)
    inner: list[Traffic] = []
    for word, degree in (("sp", mesh.tp), ("cp", mesh.cp), ("ep", mesh.ep)):
        inner += traffic(word, plan) if degree > 1 else ()
    if setup.recompute is Recompute.FULL:
        inner += [replace(row, phase="backward") for row in inner if row.phase == "forward"]
    return rows + inner


def _data_rows(request: Request, setup: Setup, plan: Plan) -> list[Traffic]:
    """Data-parallel traffic: dense weights over all shards, experts over those that share them.

    Layers of a mixture of experts are taken as equal, whichever stage they are on.
    """
    mesh = setup.mesh
    if mesh.data_word == "zero1" and not request.dims.moe:
        once = _of_word(request, setup, [plan.local_parameters], mesh.shards)
        return [row for row in once if row.ranks > 1]
    if not request.dims.moe:
        folded = replace(plan, mesh={**plan.mesh, **_folded(mesh)})
        return list(traffic(mesh.data_word, folded))
    has = held(request.dims, mesh.pp, mesh.tp, mesh.ep)
    layers = max(1, round(plan.local_layers))
    rows = list(_of_word(request, setup, [has.dense / layers] * layers, mesh.shards))
    if mesh.data_word == "ddp":
        copies = mesh.dp_replicate * mesh.cp // mesh.ep
        experts = ddp_traffic(has.experts, copies, request.grad_bytes)
        named = [replace(row, axis="edp") for row in experts]
    else:
        shards = mesh.shards // mesh.ep
        experts = _of_word(request, setup, [has.experts / layers] * layers, shards)
        named = [replace(row, axis="edp") if row.axis == "dp_shard" else row for row in experts]
    return [row for row in rows + named if row.ranks > 1]


def _folded(mesh: Mesh) -> dict[str, int]:
    """Data degrees with context-parallel ranks among those that share weights and gradients."""
    if mesh.data_word == "ddp":
        return {"dp_replicate": mesh.dp_replicate * mesh.cp}
    return {"dp_replicate": mesh.dp_replicate, "dp_shard": mesh.shards}


def _of_word(
    request: Request, setup: Setup, units: Sequence[float], shards: int
) -> tuple[Traffic, ...]:
    mesh, grads, m = setup.mesh, request.grad_bytes, setup.microbatches
    if mesh.data_word == "ddp":
        return ddp_traffic(sum(units), mesh.dp_replicate * mesh.cp, grads)
    if mesh.data_word == "zero1":
        bucket = grads * max(ZERO_BUCKET, ZERO_BUCKET_A_RANK * shards)
        return zero_traffic(sum(units), shards, WIRE_BYTES, grads, bucket_bytes=bucket)
    if mesh.data_word == "hsdp":
        return hsdp_traffic(units, shards, mesh.dp_replicate, WIRE_BYTES, grads, m)
    return fsdp_traffic(units, shards, WIRE_BYTES, grads, m)


@lru_cache(maxsize=1 << 16)
def _call(op: str, size: float, degree: int, stride: int, wiring: Wiring) -> CollectiveTime:
    """Expected time of a call on ranks 0, stride, 2·stride, ..."""
    ranks = tuple(range(0, degree * stride, stride))
    return expected_time(CollectiveCall(op, size, ranks), wiring.link())


def timed(rows: Sequence[Traffic], machine: Machine, mesh: Mesh) -> list[Timed]:
    """Typical time of one call of every row, at measured link efficiencies where there are some."""
    strides = {
        "tp": 1, "cp": mesh.tp, "ep": mesh.tp, "dp_shard": mesh.tp,
        "edp": mesh.tp * mesh.ep, "dp_replicate": mesh.tp * mesh.shards,
        "pp": mesh.tp * mesh.cp * mesh.replicas,
    }  # fmt: skip
    found = []
    for row in rows:
        degree = 2 if row.op in P2P else row.ranks
        wiring = machine.wiring(row.axis, degree, mesh.tp)
        stride = 1 if machine.torus else strides[row.axis]
        time = _call(row.op, row.size_bytes, degree, stride, wiring)
        efficiency = machine.link_efficiency.get(row.axis)
        typical = time.t_spec_ns / efficiency if efficiency else time.t_typ_ns
        found.append(Timed(row, typical * 1e-9, time.level))
    return found


def exposed_by_axis(rows: Sequence[Timed], windows_s: Mapping[str, float]) -> dict[str, float]:
    """Exposed communication of every axis when all that can hide does.

    Critical and edge traffic is exposed whole. Hideable traffic of an axis hides under the axis'
    window, less what other axes already hide on the same link; the axes queue in :data:`QUEUE`
    order. Never below ``exposure.exposed_minimum_s``, which lets links overflow side by side.
    """
    exposed: dict[str, float] = {}
    used: dict[str, float] = {}
    for axis in QUEUE:
        mine = [row for row in rows if row.row.axis == axis]
        if not mine:
            continue
        fixed = sum(row.total_s for row in mine if row.row.mark is not Mark.HIDEABLE)
        over = 0.0
        for level in sorted({row.level for row in mine}):
            hideable = sum(
                r.total_s for r in mine if r.level == level and r.row.mark is Mark.HIDEABLE
            )
            room = max(0.0, windows_s[axis] - used.get(level, 0.0))
            over += max(0.0, hideable - room)
            used[level] = used.get(level, 0.0) + min(hideable, room)
        exposed[axis] = fixed + over
    return exposed


def estimate(
    request: Request, machine: Machine, setup: Setup, idle_share: float = 0.0
) -> tuple[Parts, list[Timed]]:
    """Predicted step of a setup, and the traffic it was made from.

    Args:
        request: model, batch and choices.
        machine: the hardware.
        setup: the mesh with its micro-batches.
        idle_share: idle time and copies over compute time, where a result measured it.
    """
    dims, mesh = request.dims, setup.mesh
    rate = machine.peak_flops_per_s * machine.efficiency
    tokens = setup.tokens / machine.devices
    model, extra = flops_per_token(dims, request.sequence, setup.recompute)
    compute, recompute = tokens * model / rate, tokens * extra / rate
    rows = timed(step_traffic(request, setup), machine, mesh)
    exposed = exposed_by_axis(rows, _windows(request, setup, compute, recompute))
    bubble_s = 0.0
    if mesh.pp > 1:
        inside = sum(time for axis, time in exposed.items() if axis in INSIDE_PASSES)
        one = (compute + recompute + inside) / setup.microbatches / 3
        bubble_s = bubble(setup.schedule, setup.shape, PassTimes(one, one, one)).time_s or 0.0
        bubble_s += (compute + recompute) * (-(-dims.layers // mesh.pp) * mesh.pp / dims.layers - 1)
        exposed["pp"] = _boundary_s(request, machine, setup)
    parts = Parts(
        compute_s=compute,
        recompute_s=recompute,
        exposed_s=exposed,
        bubble_s=bubble_s,
        optimizer_s=_optimizer_s(request, machine, mesh),
        idle_s=idle_share * compute,
    )
    return parts, rows


def _windows(request: Request, setup: Setup, compute: float, recompute: float) -> dict[str, float]:
    """Compute that can run beside each axis' hideable traffic.

    FSDP hides under all compute. Gradients reduced once a step hide under the last micro-batch's
    backward, ZeRO-1's gathers under the first one's forward. Ring attention hides under attention.
    """
    layer = layer_forward_flops(request.dims, request.sequence, causal=True)
    attention = layer.attention / layer.total
    last = (compute * 2 / 3 + recompute) / setup.microbatches
    sharded = compute + recompute
    if setup.mesh.data_word == "zero1":
        sharded /= setup.microbatches
    return {
        "tp": compute * 2 / 3 + recompute,
        "cp": (compute + recompute) * attention,
        "ep": 0.0,
        "dp_shard": sharded,
        "edp": sharded if setup.mesh.data_word != "ddp" else last,
        "dp_replicate": last,
    }


def _boundary_s(request: Request, machine: Machine, setup: Setup) -> float:
    """Exposed messages between stages (PP-P2P)."""
    plan = setup.plan(request.dims, options(request))
    size = plan.activation_bytes / setup.mesh.tp
    row = Traffic("pp", "send_recv", "forward", 1, size, 2, Mark.CRITICAL, "PP-P2P")
    hop = timed([row], machine, setup.mesh)[0].time_s
    return transfer_s(setup.schedule, setup.shape, hop) or 0.0


def _optimizer_s(request: Request, machine: Machine, mesh: Mesh) -> float:
    """Adam reads and writes weights and state once and reads gradients, at the memory's rate."""
    has, a = held(request.dims, mesh.pp, mesh.tp, mesh.ep), request.accounting
    shards = mesh.shards if mesh.stage else 1
    local = has.dense / shards + has.experts / max(1, shards // mesh.ep if mesh.stage else 1)
    touched = 2 * (a.weights + a.optimizer) + a.grads
    return local * touched / machine.memory_bytes_per_s
