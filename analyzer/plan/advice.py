"""Rules of thumb as explained checks, with this job's numbers.

The order is the lecture's (Stanford CS336): tensor parallelism inside the node, then pipeline
stages or ZeRO-3 across nodes until the model fits, then data parallelism for the rest; small
batches accumulate gradients, and recomputation may pay by a larger micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analyzer.plan.conditions import Condition, effective_ffn, plain
from analyzer.plan.footprint import counted
from analyzer.plan.machine import Machine
from analyzer.plan.request import Request
from analyzer.plan.search import Candidate, evaluate, first, seconds, worth_pricing
from analyzer.roofline.flops import Recompute
from analyzer.roofline.tensor import tensor_degree_limit

LARGEST_TENSOR = 8


@dataclass(frozen=True, slots=True)
class Check:
    """One rule of thumb: whether the recommended mesh follows it, and the numbers behind."""

    id: str
    rule: str
    follows: bool | None
    text: str


def checks(
    request: Request,
    machine: Machine,
    ranked: Sequence[Candidate],
    found: Sequence[Condition],
    idle_share: float = 0.0,
) -> list[Check]:
    """All checks on the recommended candidate; none when nothing fits.

    Args:
        request: model and batch.
        machine: the hardware.
        ranked: candidates, best first.
        found: the conditions, for the smallest batch.
        idle_share: as in the search.
    """
    best = ranked[0]
    if not best.fits or best.setup is None:
        return []
    return [
        _tensor_first(request, machine, best),
        _until_it_fits(request, machine, best),
        _rest_is_data(machine, best),
        _small_batch(request, machine, found),
        _recompute(request, machine, best, idle_share),
        *_sharding_with_stages(ranked),
    ]


def _tensor_first(request: Request, machine: Machine, best: Candidate) -> Check:
    cap = min(LARGEST_TENSOR, machine.node_size)
    limit = tensor_degree_limit(
        effective_ffn(request.dims), machine.peak_flops_per_s, machine.link_bytes_per_s
    )
    return Check(
        "tensor-first",
        f"tensor parallelism inside the node, up to {cap}",
        best.mesh.tp <= cap,
        f"tp={best.mesh.tp} here; hidden by compute only below {limit:.1f} (TP-LIMIT), and every "
        "degree is exposed as long as collectives wait for their matmul",
    )


def _until_it_fits(request: Request, machine: Machine, best: Candidate) -> Check:
    total = counted(request.dims).total * request.accounting.total
    usable = machine.memory_bytes * (1 - request.reserve)
    least = math.ceil(total / usable)
    mesh = best.mesh
    split = mesh.pp * mesh.tp * (mesh.shards if mesh.stage == 3 else 1)
    return Check(
        "until-it-fits",
        "then pipeline stages or ZeRO-3 across nodes until the model fits",
        None,
        f"states of {total / 1e9:,.0f} GB need at least {least} devices of {usable / 1e9:,.0f} GB; "
        f"the recommended mesh {f'splits weights {split} ways' if split > 1 else 'splits none'}",
    )


def _rest_is_data(machine: Machine, best: Candidate) -> Check:
    inner = machine.devices // best.mesh.replicas
    return Check(
        "rest-is-data",
        "then data parallelism over the rest",
        None,
        f"{machine.devices} devices / {inner} of one copy = {best.mesh.replicas} data ranks",
    )


def _small_batch(request: Request, machine: Machine, found: Sequence[Condition]) -> Check:
    floor = next(c for c in found if c.id == "data-parallel")
    needed = (floor.limit or 0.0) * machine.devices
    factor = math.ceil(needed / request.batch_tokens)
    enough = bool(floor.holds)
    text = f"{plain(request.batch_tokens)} tokens, DP-FLOOR asks for {plain(needed)}: "
    text += (
        "no accumulation needed for communication"
        if enough
        else f"a {factor} times larger batch by gradient accumulation would hide data-parallel "
        "traffic of DDP and ZeRO-1 (FSDP gathers again in every micro-batch)"
    )
    return Check("small-batch", "gradient accumulation for small batches", enough, text)


def _recompute(request: Request, machine: Machine, best: Candidate, idle_share: float) -> Check:
    """The best setup with recomputation against the best without, on the recommended mesh."""
    rule = "recomputation pays where it allows a larger micro-batch"
    fastest: dict[Recompute, Candidate] = {}
    for setup in worth_pricing(request, machine, best.mesh):
        made = evaluate(request, machine, setup, idle_share)
        kept = fastest.get(setup.recompute)
        if kept is None or made.tokens_per_s > kept.tokens_per_s:
            fastest[setup.recompute] = made
    if len(fastest) < 2:
        only = next(iter(fastest))
        need = "does not fit without it" if only is Recompute.FULL else "fits only without it"
        return Check("recompute", rule, None, f"this mesh {need}")
    without, again = fastest[Recompute.NONE], fastest[Recompute.FULL]
    pays = again.tokens_per_s > without.tokens_per_s
    size = {k: c.setup.sequences if c.setup else 0 for k, c in fastest.items()}
    text = (
        f"micro-batch {size[Recompute.FULL]} with it, {size[Recompute.NONE]} without; "
        f"{seconds(again.step_s or 0)} against {seconds(without.step_s or 0)}: "
        f"{'pays' if pays else 'does not pay'}"
    )
    used = best.setup is not None and best.setup.recompute is Recompute.FULL
    return Check("recompute", rule, used == pays, text)


def _sharding_with_stages(ranked: Sequence[Candidate]) -> list[Check]:
    """ZeRO-3 on a pipeline against ZeRO-1 on the same mesh, where both fit."""
    for candidate in ranked:
        mesh, setup = candidate.mesh, candidate.setup
        if not candidate.fits or mesh.pp == 1 or mesh.data_word != "fsdp" or setup is None:
            continue
        kept = first(ranked, data_word="zero1", pp=mesh.pp, tp=mesh.tp, cp=mesh.cp, ep=mesh.ep)
        if kept is None:
            continue
        ratio = kept.tokens_per_s / candidate.tokens_per_s
        return [
            Check(
                "sharding-with-stages",
                "ZeRO-3 with pipeline stages multiplies weight gathers",
                not (ranked[0].mesh.data_word == "fsdp" and ranked[0].mesh.pp > 1),
                f"{mesh.text}: {setup.microbatches} micro-batches gather weights "
                f"{2 * setup.microbatches} times a step; ZeRO-1 there gathers once and is "
                f"{ratio:.2f} times as fast",
            )
        ]
    return []
