"""The conditions of theory, each with the numbers put in.

They are rooflines: peak FLOP/s, datasheet link rates, everything overlapped. The predicted step
time uses what is reached in practice instead and may disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from analyzer.plan.footprint import counted
from analyzer.plan.layout import Mesh, Setup
from analyzer.plan.machine import Machine, divisors
from analyzer.plan.request import Request
from analyzer.roofline.combined import mixed_floor, mixed_ratio, optimal_mesh
from analyzer.roofline.compute import machine_balance
from analyzer.roofline.context import ring_block_floor
from analyzer.roofline.data_parallel import pod_tokens_floor, tokens_per_device_floor
from analyzer.roofline.expert import expert_compute_bound
from analyzer.roofline.memory import state_bytes
from analyzer.roofline.model_dims import ModelDims
from analyzer.roofline.pipeline import PassTimes, bubble
from analyzer.roofline.tensor import tensor_degree_limit


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition: ``value`` must exceed ``limit`` (or stay below it) for it to hold."""

    id: str
    formula: str  # id in docs/theory.md
    title: str
    holds: bool | None
    value: float | None
    limit: float | None
    unit: str
    text: str  # the formula with its numbers
    note: str = ""


@dataclass(frozen=True, slots=True)
class MixedMesh:
    """The best mesh of FSDP with tensor parallelism: as real numbers, and as the machine allows."""

    data: float
    tensor: float
    whole_data: int
    whole_tensor: int


def plain(value: float) -> str:
    """A number with up to four digits: ``4e6``, ``9.89e14``, ``13824``."""
    text = f"{value:.4g}" if value >= 1e6 or value != int(value) else str(int(value))
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}{e}{int(exponent)}" if e else text


def _times(factor: float) -> str:
    return f"·{factor:g}" if factor != 1 else ""


def effective_ffn(dims: ModelDims) -> int:
    """F a token passes: of its experts together in a mixture of experts."""
    moe = dims.moe
    return moe.top_k * moe.expert_ffn + moe.shared_ffn if moe else dims.ffn


def sparsity(dims: ModelDims) -> float:
    """E/k: feed-forward width stored over width a token uses, shared experts in both."""
    moe = dims.moe
    stored = moe.experts * moe.expert_ffn + moe.shared_ffn if moe else dims.ffn
    return stored / effective_ffn(dims)


def mixed_mesh(request: Request, machine: Machine) -> MixedMesh:
    """MIX-OPT, and its nearest whole mesh: the divisor next to Y on a logarithmic scale."""
    axes = machine.data_axes(2), 1
    chips = machine.node_size if machine.torus else machine.devices
    batch = request.batch_tokens * chips / machine.devices
    data, tensor = optimal_mesh(
        batch, effective_ffn(request.dims) * sparsity(request.dims), chips, *axes
    )
    wanted = max(1.0, tensor)
    degree = min(divisors(chips), key=lambda d: (abs(math.log(d / wanted)), d))
    return MixedMesh(data, tensor, chips // degree, degree)


def conditions(request: Request, machine: Machine, setup: Setup | None) -> list[Condition]:
    """All conditions that say something about this model on this machine.

    Args:
        request: model and batch.
        machine: the hardware.
        setup: the recommended one; conditions on a mesh are judged on it.
    """
    return [
        *_memory(request, machine),
        *_data(request, machine),
        *_tensor(request, machine, setup),
        *_mixed(request, machine),
        *_pods(request, machine),
        *_inner(request, machine, setup),
    ]


def _memory(request: Request, machine: Machine) -> Iterator[Condition]:
    total = counted(request.dims).total
    accounting, room = request.accounting, machine.memory_bytes
    per = f"{accounting.total:g}·{total / 1e9:.1f}e9"
    for id_, stage, title in (
        ("states-replicated", 0, "pure data parallelism: states fit on every device"),
        ("states-sharded", 3, "FSDP over all devices: states fit"),
    ):
        shards = machine.devices if stage else 1
        held = state_bytes(total, accounting, stage, shards)
        over = f"/{shards}" if stage else ""
        text = f"{per}{over} = {held / 1e9:,.2f} GB <= {room / 1e9:,.0f} GB"
        note = f"bytes a parameter by the {accounting.name} accounting, nothing but states"
        yield Condition(id_, "MEM-STATES", title, held <= room, held, room, "bytes", text, note)


def _data(request: Request, machine: Machine) -> Iterator[Condition]:
    sparse = sparsity(request.dims)
    axes = machine.data_axes(1)
    peak, rate = machine.peak_flops_per_s, machine.data_rate()
    floor = tokens_per_device_floor(peak, rate, axes, sparse)
    mine = request.batch_tokens / machine.devices
    rates = f"{plain(peak)}/({plain(rate)}·{axes})" + _times(sparse)
    text = f"{plain(request.batch_tokens)}/{machine.devices} = {mine:,.0f} > {rates} = {floor:,.0f}"
    note = (
        f"smallest batch {plain(floor * machine.devices)} tokens; for FSDP read B as one "
        "micro-batch: each gathers the weights again"
    )
    yield Condition(
        "data-parallel", "DP-FLOOR", "DP and FSDP: B/N > C/(W·M_X)", mine > floor, mine, floor,
        "tokens a device", text, note,
    )  # fmt: skip


def _tensor(request: Request, machine: Machine, setup: Setup | None) -> Iterator[Condition]:
    ffn, peak = effective_ffn(request.dims), machine.peak_flops_per_s
    degree = setup.mesh.tp if setup else 1
    where = "on one axis" if machine.torus else "in the node"
    places = [("tensor", where, machine.link_bytes_per_s)]
    if not machine.torus and machine.devices > machine.node_size:
        places.append(("tensor-network", "across nodes", machine.data_rate()))
    for id_, where, rate in places:
        limit = tensor_degree_limit(ffn, peak, rate)
        largest = max((d for d in divisors(machine.devices) if d < limit), default=1)
        inside = machine.torus or degree <= machine.node_size
        judged = id_ == "tensor" if inside else id_ == "tensor-network"
        yield Condition(
            id_, "TP-LIMIT", f"tensor parallelism {where}: Y < M_Y·F·W/C",
            degree < limit if judged and degree > 1 else None, float(degree) if judged else None,
            limit, "degree", f"Y < {ffn}·{plain(rate)}/{plain(peak)} = {limit:.1f}",
            f"largest divisor below it: {largest}",
        )  # fmt: skip


def _mixed(request: Request, machine: Machine) -> Iterator[Condition]:
    # Stored weights set FSDP's bytes, used ones the compute: F counts k/E in the floor and the
    # ratio, E/k in the best mesh.
    sparse, chips = sparsity(request.dims), machine.devices
    ffn, stored = effective_ffn(request.dims) / sparse, effective_ffn(request.dims) * sparse
    m_x = machine.data_axes(2)
    alphas = (
        machine_balance(machine.peak_flops_per_s, machine.data_rate()),
        machine_balance(machine.peak_flops_per_s, machine.link_bytes_per_s),
    )
    alpha = math.sqrt(alphas[0] * alphas[1])
    mine = request.batch_tokens / chips
    inside = not machine.torus
    for id_, serial, reading in (
        ("mixed-disjoint", False, "axes on links of their own, overlapped"),
        ("mixed-shared", True, "axes share links, or run one after the other"),
    ):
        floor = mixed_floor(alpha, ffn, m_x, 1, serial=serial)
        factor = "4·" if serial else ""
        text = f"{mine:,.0f} > {factor}{alpha:,.0f}^2/({m_x}·1·{plain(ffn)}) = {floor:,.0f}"
        note = f"reading: {reading}"
        if inside:
            note += (
                "; no verdict: tensor parallelism inside a node does not make FSDP's traffic "
                "between nodes smaller, DP-FLOOR stays"
            )
        yield Condition(
            id_, "MIX-FLOOR", "FSDP + TP: B/N > alpha^2/(M_X·M_Y·F)",
            None if inside else mine > floor, mine, floor, "tokens a device", text, note,
        )  # fmt: skip
    best = mixed_mesh(request, machine)
    ratio = mixed_ratio(request.batch_tokens, ffn, chips, alpha, m_x, 1)
    text = (
        f"X_opt = sqrt({plain(request.batch_tokens)}/{plain(stored)}·{m_x}/1·{chips}) = "
        f"{best.data:,.0f}, Y_opt = {best.tensor:.2f}: X={best.whole_data}, Y={best.whole_tensor}"
    )
    yield Condition(
        "mixed-best", "MIX-OPT", "best FSDP + TP mesh", None, best.data, None, "degree", text,
        f"compute over communication there (MIX-RATIO): {ratio:.2f}",
    )  # fmt: skip


def _pods(request: Request, machine: Machine) -> Iterator[Condition]:
    what = "slice" if machine.torus else "node"
    if machine.network_bytes_per_s is None:
        return
    rate, peak = machine.network_bytes_per_s, machine.peak_flops_per_s
    sparse, mine = sparsity(request.dims), request.batch_tokens / machine.pods
    floor = pod_tokens_floor(peak, rate) * sparse
    text = (
        f"{plain(request.batch_tokens)}/{machine.pods} = {mine:,.0f} > {plain(peak)}/{plain(rate)}"
        f"{_times(sparse)} = {floor:,.0f}"
    )
    several = machine.pods > 1
    yield Condition(
        "pods", "DP-POD-FLOOR", f"gradients between {what}s: B per {what} > C/W_dcn",
        mine > floor if several else None, mine, floor, f"tokens a {what}", text,
        "" if several else f"one {what}: nothing crosses the network",
    )  # fmt: skip


def _inner(request: Request, machine: Machine, setup: Setup | None) -> Iterator[Condition]:
    """Conditions of the recommended mesh: pipeline, context and expert parallelism."""
    if setup is None:
        return
    mesh = setup.mesh
    if mesh.pp > 1:
        found = bubble(setup.schedule, setup.shape, PassTimes(1, 1, 1))
        m, v = setup.microbatches, setup.chunks
        share = found.over_ideal or 0.0
        yield Condition(
            "bubble", "PP-BUBBLE", "pipeline bubble, of the work", None, share, None, "share",
            f"({mesh.pp}-1)/({m}·{v}) = {share:.1%} ({setup.schedule})",
        )  # fmt: skip
    if mesh.cp > 1:
        dims = request.dims
        outer = mesh.tp * mesh.cp > machine.node_size
        rate = (machine.network_bytes_per_s if outer else None) or machine.link_bytes_per_s
        floor = ring_block_floor(
            machine.peak_flops_per_s, rate, dims.kv_heads / dims.heads, causal=True
        )
        block = request.sequence / mesh.cp
        yield Condition(
            "context", "CP-RING-FLOOR", "ring attention: s/CP > 2·(C/W)·(K_h/N_h)", block > floor,
            block, floor, "tokens",
            f"{request.sequence}/{mesh.cp} = {block:,.0f} > 2·{plain(machine.peak_flops_per_s)}/"
            f"{plain(rate)}·{dims.kv_heads}/{dims.heads} = {floor:,.0f}",
        )  # fmt: skip
    yield from _expert(request, machine, mesh)


def _expert(request: Request, machine: Machine, mesh: Mesh) -> Iterator[Condition]:
    moe = request.dims.moe
    if moe is None or mesh.ep <= machine.node_size or machine.torus:
        return
    rate = machine.node_size * (machine.network_bytes_per_s or 0.0)
    alpha = machine_balance(machine.peak_flops_per_s, rate)
    spread = mesh.ep - machine.node_size
    limit = alpha * spread * min(machine.node_size * moe.top_k / mesh.ep, 1.0)
    value = float(moe.top_k * moe.expert_ffn)
    holds = expert_compute_bound(moe.expert_ffn, moe.top_k, mesh.ep, alpha, machine.node_size)
    yield Condition(
        "expert", "EP-BOUND", "experts compute longer than they exchange", holds, value, limit, "",
        f"{moe.top_k}·{moe.expert_ffn} = {value:,.0f} > {alpha:,.0f}·{spread}·"
        f"min({machine.node_size}·{moe.top_k}/{mesh.ep}, 1) = {limit:,.0f}",
    )  # fmt: skip
