"""The best setup of every mesh, the ranking, and why the others lose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from analyzer.errors import UsageError
from analyzer.plan.estimate import Parts, estimate
from analyzer.plan.footprint import fits, footprint
from analyzer.plan.layout import Mesh, Setup, meshes, setups
from analyzer.plan.machine import Machine
from analyzer.plan.request import DATA_WORDS, Request
from analyzer.roofline.flops import Recompute, model_flops_per_token

PIPELINE_SIZES = 3
"""Micro-batch sizes tried on a pipeline, the smallest that fit: more only widens the bubble."""

EQUAL = 1e-3
"""A prediction within this share of the best one is no reason to prefer either."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A mesh with its best setup. Without a setup the batch does not divide over it."""

    mesh: Mesh
    setup: Setup | None
    memory: Mapping[str, float]
    fits: bool
    parts: Parts | None
    comm_s: Mapping[str, float]  # all communication of an axis, hidden or not
    tokens_per_s: float
    mfu: float | None
    code: str = ""  # best, memory, batch, or the part that costs most against the best
    why: str = ""

    @property
    def step_s(self) -> float | None:
        """Predicted step."""
        return self.parts.step_s if self.parts else None


def evaluate(
    request: Request, machine: Machine, setup: Setup, idle_share: float = 0.0
) -> Candidate:
    """Price one setup."""
    memory = footprint(request, machine, setup)
    parts, rows = estimate(request, machine, setup, idle_share)
    comm: dict[str, float] = {}
    for row in rows:
        comm[row.row.axis] = comm.get(row.row.axis, 0.0) + row.total_s
    speed = setup.tokens / parts.step_s
    flops = model_flops_per_token(request.dims, request.sequence, causal=True, mtp=True)
    mfu = speed * flops / (machine.devices * machine.peak_flops_per_s)
    return Candidate(setup.mesh, setup, memory, fits(machine, memory), parts, comm, speed, mfu)


def worth_pricing(request: Request, machine: Machine, mesh: Mesh) -> list[Setup]:
    """Setups of a mesh among which its best one is.

    Without a pipeline the largest micro-batch that fits: it gathers weights least often. With one,
    small ones compete with large ones, interleaved where that fits. Where nothing fits, the setup
    that comes closest.
    """
    every = setups(request, machine, mesh)
    if not every:
        return []
    found: list[Setup] = []
    for recompute in (Recompute.NONE, Recompute.FULL):
        some = [s for s in every if s.recompute is recompute]
        good = (s for s in some if fits(machine, footprint(request, machine, s)))
        if mesh.pp == 1:
            found += islice(good, 1)
        else:
            fitting = list(good)
            sizes = sorted({s.sequences for s in fitting})[:PIPELINE_SIZES]
            chunked = {s.sequences for s in fitting if s.chunks > 1}
            found += [
                s
                for s in fitting
                if s.sequences in sizes and (s.chunks > 1 or s.sequences not in chunked)
            ]
    return found or [next(s for s in reversed(every) if s.chunks == 1)]


def search(request: Request, machine: Machine, idle_share: float = 0.0) -> list[Candidate]:
    """All meshes, best first: those that fit by speed, then those that do not.

    Raises:
        UsageError: no mesh is allowed at all.
    """
    found = []
    for mesh in meshes(request, machine):
        priced = [
            evaluate(request, machine, setup, idle_share)
            for setup in worth_pricing(request, machine, mesh)
        ]
        found.append(max(priced, key=lambda c: c.tokens_per_s) if priced else _undivided(mesh))
    if not found:
        raise UsageError("no mesh fills these devices with this strategy and model")
    found.sort(key=_order)
    best = found[0]
    if not best.fits:
        return [_named(c, best, request, machine) for c in found]
    return [replace(best, code="best", why=""), *(
        _named(c, best, request, machine) for c in found[1:]
    )]  # fmt: skip


def _undivided(mesh: Mesh) -> Candidate:
    return Candidate(mesh, None, {}, False, None, {}, 0.0, None)


def _order(candidate: Candidate) -> tuple[float | int, ...]:
    """Speed first; among equals the simpler mesh."""
    mesh = candidate.mesh
    group = 0 if candidate.fits else 1 if candidate.setup else 2
    over = 0.0 if candidate.fits else sum(candidate.memory.values())
    return (group, over, -candidate.tokens_per_s, mesh.pp, mesh.tp, mesh.cp, mesh.ep,
            DATA_WORDS.index(mesh.data_word), mesh.dp_replicate)  # fmt: skip


def _named(candidate: Candidate, best: Candidate, request: Request, machine: Machine) -> Candidate:
    """A losing candidate with what it loses by."""
    if candidate.setup is None or candidate.parts is None:
        per = request.batch_tokens / request.sequence / candidate.mesh.replicas
        why = f"batch: {per:.2g} sequences for each of {candidate.mesh.replicas} data ranks"
        return replace(candidate, code="batch", why=why)
    if not candidate.fits:
        return replace(candidate, code="memory", why=memory_reason(candidate.memory, machine))
    losses = part_losses(candidate, best)
    slower = sum(losses.values())
    if slower <= EQUAL * (best.step_s or 0.0):
        return replace(candidate, code="equal", why="as fast as the best, less simple")
    worst = sorted(losses, key=lambda name: -losses[name])
    named = [name for name in worst[:2] if losses[name] > 0.2 * slower]
    text = ", ".join(f"{name} +{seconds(losses[name])}" for name in named)
    return replace(candidate, code=worst[0], why=text)


def part_losses(candidate: Candidate, best: Candidate) -> dict[str, float]:
    """Seconds each part takes more than in the best candidate, for as many tokens."""
    if candidate.parts is None or best.parts is None:
        return {}
    scale = candidate.tokens_per_s * candidate.parts.step_s
    scale = best.tokens_per_s * best.parts.step_s / scale
    mine, theirs = named_parts(candidate.parts), named_parts(best.parts)
    return {
        name: mine.get(name, 0.0) * scale - theirs.get(name, 0.0)
        for name in dict.fromkeys((*mine, *theirs))
    }


def named_parts(parts: Parts) -> dict[str, float]:
    """The parts of a step by name, exposed communication by axis."""
    exposed = {f"exposed {axis}": time for axis, time in parts.exposed_s.items()}
    return {
        "compute": parts.compute_s,
        "recompute": parts.recompute_s,
        **exposed,
        "bubble": parts.bubble_s,
        "optimizer": parts.optimizer_s,
        "idle": parts.idle_s,
    }


def memory_reason(memory: Mapping[str, float], machine: Machine) -> str:
    """How much too large a footprint is, and its largest category."""
    total, largest = sum(memory.values()), max(memory, key=lambda name: memory[name])
    return (
        f"memory: {total / 1e9:,.0f} of {machine.memory_bytes / 1e9:,.0f} GB, "
        f"{largest} {memory[largest] / 1e9:,.0f} GB"
    )


def seconds(value: float) -> str:
    """A time for people: three digits and a unit."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}"
    return "0 s" if value == 0 else f"{value / 1e-9:.3g} ns"


def families(ranked: Sequence[Candidate]) -> list[Candidate]:
    """The best candidate of every family of strategies, in ranking order."""
    found: dict[str, Candidate] = {}
    for candidate in ranked:
        found.setdefault(candidate.mesh.family, candidate)
    return list(found.values())


def first(ranked: Iterable[Candidate], **wanted: int | str) -> Candidate | None:
    """The best fitting candidate whose mesh has these fields."""
    for candidate in ranked:
        mesh = candidate.mesh
        if candidate.fits and all(getattr(mesh, k) == v for k, v in wanted.items()):
            return candidate
    return None
