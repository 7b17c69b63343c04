"""Meshes worth considering, and how a batch falls on one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from analyzer.plan.machine import Machine, divisors
from analyzer.plan.request import Request
from analyzer.roofline.flops import Recompute
from analyzer.roofline.memory import Accounting
from analyzer.roofline.model_dims import ModelDims
from analyzer.roofline.pipeline import Schedule, Shape
from analyzer.roofline.strategies import Options, Plan

BATCH_SLACK = 0.1
"""A whole number of sequences a rank may change the batch by this much."""
LEAST_BLOCK = 2048
"""Context parallelism below this many tokens a rank leaves attention kernels too little work."""
STAGE_SLACK = 1.1
"""Pipeline stages may hold this much more than their fair share of layers."""
LARGEST_MICROBATCH = 1 << 17
"""Tokens of a micro-batch on a data rank beyond which nothing gains."""
CHUNK_CHOICES = 2
"""Largest numbers of chunks tried beside one: fewer only widen the bubble."""
AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")


@dataclass(frozen=True, slots=True)
class Mesh:
    """Degrees, outermost first; expert parallelism is folded over the data axes."""

    data_word: str  # ddp, zero1, fsdp or hsdp
    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1

    @property
    def replicas(self) -> int:
        """Ranks that see different sequences."""
        return self.dp_replicate * self.dp_shard

    @property
    def shards(self) -> int:
        """Ranks that share one copy of states: context-parallel ranks hold the same weights."""
        return self.dp_shard * (self.cp if self.data_word != "ddp" else 1)

    @property
    def stage(self) -> int:
        """ZeRO stage of the data word."""
        return {"ddp": 0, "zero1": 1}.get(self.data_word, 3)

    def degrees(self) -> dict[str, int]:
        """Axis -> degree, outermost first, axes of one rank left out."""
        return {axis: getattr(self, axis) for axis in AXES if getattr(self, axis) > 1}

    @property
    def family(self) -> str:
        """Strategy words in use, joined by +."""
        words = [self.data_word] if self.replicas * self.cp > 1 else []
        words += [axis for axis in ("tp", "pp", "cp", "ep") if getattr(self, axis) > 1]
        return "+".join(words) or "single"

    @property
    def text(self) -> str:
        """The mesh as ``--mesh`` takes it."""
        return ",".join(f"{axis}={degree}" for axis, degree in self.degrees().items()) or "1"


@dataclass(frozen=True, slots=True)
class Setup:
    """A mesh with the choices left on it: micro-batches, chunks, recomputation."""

    mesh: Mesh
    sequences: int  # of a micro-batch on a rank; 1 on a torus, where tokens are split freely
    sequence: int
    microbatches: int
    recompute: Recompute
    chunks: int = 1

    @property
    def shape(self) -> Shape:
        """The pipeline's shape."""
        return Shape(self.mesh.pp, self.microbatches, self.chunks)

    @property
    def schedule(self) -> Schedule:
        """Interleaved where a rank hosts several chunks."""
        return Schedule.INTERLEAVED if self.chunks > 1 else Schedule.ONE_F_ONE_B

    @property
    def tokens(self) -> int:
        """Tokens of the global batch."""
        return self.sequence * self.sequences * self.microbatches * self.mesh.replicas

    def plan(self, dims: ModelDims, options: Options) -> Plan:
        """What ``strategies.traffic`` takes. States are sharded over context ranks too."""
        mesh = self.mesh.degrees()
        return Plan(
            dims, self.sequence, self.sequences, self.microbatches, mesh, self.chunks, options
        )


def options(request: Request) -> Options:
    """Element sizes on the wire."""
    return Options(grad_bytes=request.grad_bytes)


def meshes(request: Request, machine: Machine) -> Iterator[Mesh]:
    """Every mesh that fills the machine and suits the model.

    Tensor parallelism divides the heads and stays in a node unless asked otherwise; stages hold at
    most a tenth more layers than their share; expert groups divide the experts and the data ranks.
    On a torus the axes are data and tensor parallelism.
    """
    for tp in _tensor_degrees(request, machine):
        for pp in _stage_counts(request, machine, machine.devices // tp):
            for cp in _context_degrees(request, machine, machine.devices // tp // pp):
                data = machine.devices // tp // pp // cp
                for ep in _expert_degrees(request, data * cp):
                    yield from _data_meshes(request, machine, data, (pp, cp, tp, ep))


def _tensor_degrees(request: Request, machine: Machine) -> list[int]:
    inside = machine.node_size if not machine.torus else machine.slice_shape[0]
    return [
        d
        for d in divisors(machine.devices)
        if request.dims.heads % d == 0
        and (d <= inside or request.tensor_across_nodes)
        and request.wanted.allows("tp", d)
    ]


def _stage_counts(request: Request, machine: Machine, ranks: int) -> list[int]:
    layers = request.dims.layers
    if machine.torus:
        return [1] if request.wanted.allows("pp", 1) else []
    return [
        d
        for d in divisors(ranks)
        if d <= layers
        and -(-layers // d) * d <= STAGE_SLACK * layers
        and request.wanted.allows("pp", d)
    ]


def _context_degrees(request: Request, machine: Machine, ranks: int) -> list[int]:
    if machine.torus:
        return [1] if request.wanted.allows("cp", 1) else []
    return [
        d
        for d in divisors(ranks)
        if (d == 1 or (request.sequence % d == 0 and request.sequence // d >= LEAST_BLOCK))
        and request.wanted.allows("cp", d)
    ]


def _expert_degrees(request: Request, ranks: int) -> list[int]:
    moe = request.dims.moe
    allowed = [d for d in divisors(ranks) if d == 1 or (moe and moe.experts % d == 0)]
    return [d for d in allowed if request.wanted.allows("ep", d)]


def _data_meshes(
    request: Request, machine: Machine, data: int, rest: tuple[int, int, int, int]
) -> Iterator[Mesh]:
    pp, cp, tp, ep = rest
    pods = machine.pods if machine.torus else 1
    for word in request.wanted.data:
        if word == "ddp" and pods == 1:
            splits = [(data, 1)]
        elif word == "hsdp":
            copies = [pods] if machine.torus else divisors(data)
            splits = [(r, data // r) for r in copies if r not in (1, data)]
        elif data * cp == 1 or pods > 1:
            continue  # nothing to shard over, or weights and whole gradients between slices
        else:
            splits = [(1, data)]
        for replicate, shard in splits:
            inside = (shard if word != "ddp" else data) * cp
            if inside % ep == 0:  # expert groups may not straddle copies of the model
                yield Mesh(word, pp, replicate, shard, cp, tp, ep)


def sequences_a_rank(request: Request, mesh: Mesh) -> int | None:
    """Whole sequences a data rank gets, None when no whole number comes near the batch.

    A batch that divides is kept as it is. Any other one is rounded to a multiple of the pipeline
    stages times the largest power of two near it: 4e6 tokens become 512 sequences of 8192.
    """
    exact = request.batch_tokens / request.sequence / mesh.replicas
    if exact >= 1 and exact == int(exact):
        return int(exact)
    for base in (mesh.pp, 1):
        unit = base
        while 2 * unit <= exact * (1 + BATCH_SLACK):
            unit *= 2
        while unit >= base:
            count = max(1, round(exact / unit)) * unit
            if abs(count / exact - 1) <= BATCH_SLACK:
                return count
            unit //= 2
    return None


def setups(request: Request, machine: Machine, mesh: Mesh) -> list[Setup]:
    """The choices on a mesh, without recomputation first, larger micro-batches first.

    Empty when the batch does not divide into whole sequences. Micro-batch sizes divide a rank's
    sequences; a pipeline may host chunks where its micro-batches are a multiple of its stages.
    """
    if machine.torus:
        tokens = max(1, round(request.batch_tokens / mesh.replicas))
        sizes = [(1, max(1, round(tokens / m)), m) for m in (1, 2, 4, 8, 16, 32) if m <= tokens]
    else:
        count = sequences_a_rank(request, mesh)
        if count is None:
            return []
        most = max(1, LARGEST_MICROBATCH // request.sequence)
        small = [b for b in divisors(count) if b <= most]
        sizes = [(b, request.sequence, count // b) for b in reversed(small)]
    found = []
    for recompute in (Recompute.NONE, Recompute.FULL):
        for sequences, sequence, microbatches in sizes:
            plain = Setup(mesh, sequences, sequence, microbatches, recompute)
            chunks = _chunks(request.dims.layers, plain)
            found += [replace(plain, chunks=count) for count in chunks]
    return found


def _chunks(layers: int, setup: Setup) -> list[int]:
    """Model chunks a pipeline rank can host: they divide its layers, and stages micro-batches."""
    pp = setup.mesh.pp
    if pp == 1 or setup.microbatches % pp:
        return [1]
    several = [v for v in (2, 4, 8) if -(-layers // pp) % v == 0]
    return [1, *several[-CHUNK_CHOICES:]]


def accounting_of(accounting: Accounting) -> tuple[tuple[str, Accounting], ...]:
    """The accounting taken apart: weights, gradients and optimizer state each on its own."""
    return (
        ("weights", Accounting(accounting.name, accounting.weights, 0, 0)),
        ("gradients", Accounting(accounting.name, 0, accounting.grads, 0)),
        ("optimizer", Accounting(accounting.name, 0, 0, accounting.optimizer)),
    )
