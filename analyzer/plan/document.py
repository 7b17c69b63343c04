"""The plan as one JSON document (schema ``meshscope.plan/1``); every report is made from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from analyzer import __version__
from analyzer.plan.advice import checks
from analyzer.plan.conditions import conditions, mixed_mesh
from analyzer.plan.curves import table
from analyzer.plan.footprint import counted
from analyzer.plan.machine import Machine
from analyzer.plan.request import Measured, Request
from analyzer.plan.search import Candidate, families, memory_reason, named_parts, search
from analyzer.roofline.activations import checkpoint_bytes
from analyzer.roofline.flops import model_flops_per_token, training_time_s
from analyzer.roofline.reliability import (
    DEVICE_HOURS_PER_FAILURE,
    checkpoint_interval_s,
    goodput,
    interruptions_per_day,
    job_mtbf_s,
)

SCHEMA = "meshscope.plan/1"
ASSUMPTIONS = (
    "communication that can hide behind independent compute does, on an idle network",
    "compute divides evenly over devices; kernels slow down neither with smaller shards nor beside "
    "communication",
    "tensor parallelism shards sequences too and is not decomposed (no async TP)",
    "context parallelism is a ring under attention; expert all-to-alls are not overlapped",
    "optimizer: Adam, one pass over states at the memory's rate",
)
TORUS_ASSUMPTIONS = (
    "tokens, not whole sequences, are split over data ranks",
    "every mesh axis fills torus axes that wrap around; no pipeline, context or expert parallelism",
)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Checkpoints and restarts of a long run."""

    checkpoint_s: float = 60.0
    restart_s: float = 600.0
    device_hours_per_failure: float = DEVICE_HOURS_PER_FAILURE


@dataclass(frozen=True, slots=True)
class Stakes:
    """What was asked for, as written: kept in the document."""

    hardware: str
    strategy: str | None
    source: str | None  # result file the efficiencies come from


def build_plan(
    request: Request,
    machine: Machine,
    stakes: Stakes,
    measured: Measured | None = None,
    upkeep: Upkeep | None = None,
) -> dict[str, Any]:
    """Search, judge and collect.

    Args:
        request: model, batch and choices.
        machine: the hardware.
        stakes: what the user wrote.
        measured: efficiencies of a result, already part of ``machine`` where they apply.
        upkeep: checkpoint and restart times.

    Returns:
        a document of ``meshscope.plan/1``; equal inputs give equal documents.
    """
    idle = measured.idle_share or 0.0 if measured else 0.0
    ranked = search(request, machine, idle)
    best = ranked[0]
    judged = conditions(request, machine, best.setup if best.fits else None)
    mixed = mixed_mesh(request, machine)
    return {
        "schema": SCHEMA,
        "tool_version": __version__,
        "request": _request(request, machine, stakes),
        "model": _model(request),
        "machine": _machine(machine),
        "assumptions": [*ASSUMPTIONS, *(TORUS_ASSUMPTIONS if machine.torus else ())],
        "measured": list(measured.notes) if measured else [],
        "totals": _totals(request, machine),
        "conditions": [asdict(row) for row in judged],
        "mixed": asdict(mixed),
        "recommended": _candidate(best, 1, best) if best.fits else None,
        "reason": "" if best.fits else "nothing fits: " + _closest(best, machine),
        "checks": [asdict(row) for row in checks(request, machine, ranked, judged, idle)],
        "strategies": [_candidate(c, ranked.index(c) + 1, best) for c in families(ranked)],
        "candidates": [_candidate(c, i, best) for i, c in enumerate(ranked, 1)],
        "reliability": _reliability(machine, best, upkeep or Upkeep()),
        "curves": table(request, machine, mixed.whole_tensor),
    }


def _closest(candidate: Candidate, machine: Machine) -> str:
    """Why not even the closest candidate works."""
    if not candidate.memory:
        return candidate.why
    return f"{candidate.mesh.family} {candidate.mesh.text} " + memory_reason(
        candidate.memory, machine
    )


def _request(request: Request, machine: Machine, stakes: Stakes) -> dict[str, Any]:
    return {
        "model": request.dims.name,
        "hardware": stakes.hardware,
        "devices": machine.devices,
        "slice": list(machine.slice_shape) or None,
        "batch_tokens": request.batch_tokens,
        "sequence": request.sequence,
        "strategy": stakes.strategy,
        "from": stakes.source,
        "accounting": request.accounting.name,
        "grad_bytes": request.grad_bytes,
        "reserve": request.reserve,
    }


def _model(request: Request) -> dict[str, Any]:
    dims, count = request.dims, counted(request.dims)
    per_token = model_flops_per_token(dims, request.sequence, causal=True, mtp=True)
    moe = dims.moe
    return {
        "name": dims.name,
        "source": dims.source,
        "parameters": count.total,
        "parameters_active": count.active,
        "layers": dims.layers,
        "hidden": dims.hidden,
        "ffn": dims.ffn,
        "heads": dims.heads,
        "kv_heads": dims.kv_heads,
        "vocab": dims.vocab,
        "experts": moe.experts if moe else None,
        "experts_per_token": moe.top_k if moe else None,
        "flops_per_token": per_token,
        "flops_convention": "causal attention, no recomputation (FLOPS-TRAIN)",
    }


def _machine(machine: Machine) -> dict[str, Any]:
    return {
        "name": machine.name,
        "devices": machine.devices,
        "node_size": machine.node_size,
        "pods": machine.pods,
        "torus": machine.torus,
        "peak_flops_per_s": machine.peak_flops_per_s,
        "efficiency": machine.efficiency,
        "memory_bytes": machine.memory_bytes,
        "link_efficiency": dict(machine.link_efficiency),
        "figures": [asdict(figure) for figure in machine.figures],
    }


def _totals(request: Request, machine: Machine) -> dict[str, Any]:
    """Sizes of the whole job, before any strategy: states, checkpointed activations, 6·B·P."""
    dims, count = request.dims, counted(request.dims)
    states = count.total * request.accounting.total
    wide = dims.moe.top_k * dims.moe.expert_ffn + dims.moe.shared_ffn if dims.moe else dims.ffn
    kept = checkpoint_bytes(request.batch_tokens, dims.layers, dims.hidden + 2 * wide)
    inputs = checkpoint_bytes(request.batch_tokens, dims.layers, dims.hidden)
    rate = machine.peak_flops_per_s * machine.efficiency
    return {
        "accounting": request.accounting.name,
        "bytes_per_parameter": request.accounting.total,
        "states_bytes": states,
        "checkpoints_bytes": kept,
        "checkpoints_inputs_bytes": inputs,
        "sharded_bytes_per_device": (states + kept) / machine.devices,
        "weights_step_s": training_time_s(
            count.active, request.batch_tokens, machine.devices, rate
        ),
    }


def _candidate(candidate: Candidate, rank: int, best: Candidate) -> dict[str, Any]:
    setup, parts = candidate.setup, candidate.parts
    found: dict[str, Any] = {
        "rank": rank if candidate.fits else None,
        "strategy": candidate.mesh.family,
        "data": candidate.mesh.data_word,
        "mesh": candidate.mesh.degrees(),
        "fits": candidate.fits,
        "code": candidate.code,
        "why": candidate.why,
        "setup": None,
        "memory_bytes": None,
        "step_s": None,
        "parts_s": None,
        "comm_s": None,
        "tokens_per_s": None,
        "mfu_pct": None,
        "slower_pct": None,
    }
    if setup is None or parts is None:
        return found
    slower = best.tokens_per_s / candidate.tokens_per_s - 1
    return found | {
        "setup": {
            "tokens": setup.tokens,
            "sequence": setup.sequence,
            "sequences": setup.sequences,
            "microbatches": setup.microbatches,
            "schedule": str(setup.schedule) if candidate.mesh.pp > 1 else None,
            "chunks": setup.chunks,
            "recompute": str(setup.recompute),
        },
        "memory_bytes": {name: float(value) for name, value in candidate.memory.items()},
        "step_s": parts.step_s,
        "parts_s": named_parts(parts),
        "comm_s": dict(candidate.comm_s),
        "tokens_per_s": candidate.tokens_per_s,
        "mfu_pct": 100 * candidate.mfu if candidate.mfu is not None else None,
        "slower_pct": 100 * slower if candidate.fits and best.fits else None,
    }


def _reliability(machine: Machine, best: Candidate, upkeep: Upkeep) -> dict[str, Any]:
    """Interruptions, the checkpoint interval that loses least, and the goodput it leaves."""
    mtbf = job_mtbf_s(machine.devices, upkeep.device_hours_per_failure)
    interval = checkpoint_interval_s(upkeep.checkpoint_s, mtbf)
    share = goodput(interval, upkeep.checkpoint_s, mtbf, upkeep.restart_s)
    day = best.tokens_per_s * share * 86_400 if best.fits else None
    return {
        "device_hours_per_failure": upkeep.device_hours_per_failure,
        "interruptions_per_day": interruptions_per_day(
            machine.devices, upkeep.device_hours_per_failure
        ),
        "mtbf_s": mtbf,
        "checkpoint_s": upkeep.checkpoint_s,
        "restart_s": upkeep.restart_s,
        "checkpoint_interval_s": interval,
        "goodput": share,
        "tokens_per_day": day,
        "formulas": ["REL-RATE", "REL-YOUNG-DALY", "REL-GOODPUT"],
    }
