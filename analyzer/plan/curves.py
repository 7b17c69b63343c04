"""Compute and communication of every strategy as functions of batch and chips, for the page.

The scaling-book's model: the feed-forward block, bf16, no attention, links at their datasheet
rate, compute at a share of the peak. A row of coefficients describes a model or a machine, so that
a script can evaluate the same formulas:

    math     4BDF/(N·C) forward, 8BDF/(N·C) backward, times L
    dp       0, 8DF/R(1)              fsdp   4DF/R(1), 8DF/R(1)
    tp       4BD/T(N), 4BD/T(N)
    fsdp+tp  max of 4BD·Y/N/T(Y) and 4DF/R(Y) forward, of twice that backward

R(Y) is the rate at which the copies of one weight shard travel, the other 1/Y of the weights
travelling beside them; weights of a mixture of experts count E/k times. T(Y) is the rate of a
tensor-parallel group of Y.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from analyzer import catalog
from analyzer.errors import UsageError
from analyzer.plan.conditions import effective_ffn, sparsity
from analyzer.plan.machine import Machine, Stated, build_machine
from analyzer.plan.request import Request
from analyzer.roofline.model_dims import ModelDims, find_model

STRATEGIES = ("dp", "fsdp", "tp", "fsdp+tp")
SHOWN_MODELS = (
    "llama2-13b", "llama3-8b", "llama3-70b", "llama3-405b", "qwen3-32b", "gpt3-175b",
    "mixtral-8x7b", "deepseek-v3",
)  # fmt: skip
SHOWN_MACHINES = ("a100-sxm", "h100-sxm", "h800-sxm", "b200", "gb200", "mi300x", "tpu-v5e",
                  "tpu-v5p", "tpu-v6e")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelRow:
    """L, D and F of a model, and experts stored over experts used (1 in a dense model)."""

    name: str
    layers: int
    hidden: int
    ffn: int
    sparsity: float = 1.0


@dataclass(frozen=True, slots=True)
class MachineRow:
    """Rates of a machine.

    ``node`` devices share ``node · network`` bytes/s on the way out; a torus has no node (0) and
    ``axes`` axes of rate ``link``.
    """

    name: str
    flops: float
    link: float
    network: float
    node: int
    axes: int


@dataclass(frozen=True, slots=True)
class Point:
    """Where the curves are evaluated."""

    batch: float
    chips: int
    tensor: int
    efficiency: float = 1.0  # share of the peak that compute reaches


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a step: compute, communication, and the larger of both in each phase."""

    math_s: float
    comm_s: float
    step_s: float


def data_rate(machine: MachineRow, chips: int, tensor: int) -> float:
    """R(Y): bytes/s of the weights' traffic when tensor parallelism of degree Y shards them too.

    On a torus Y·W·M_X. Behind switches the narrower of the link inside the node, Y·W, and of the
    way out, max(Y, g)·W_nic (COLL-TREE-AG-SHARDED for many devices).
    """
    if machine.axes:
        beside = machine.axes - 1 if tensor > 1 else machine.axes
        return tensor * machine.link * max(1, beside)
    inside = tensor * machine.link
    if chips <= machine.node:
        return inside
    return min(inside, max(tensor, machine.node) * machine.network)


def tensor_rate(machine: MachineRow, tensor: int) -> float:
    """T(Y): bytes/s of a tensor-parallel group: the link, or a node's way out beyond a node."""
    if machine.axes or tensor <= machine.node:
        return machine.link
    return min(machine.link, machine.node * machine.network)


def times(model: ModelRow, machine: MachineRow, point: Point) -> Mapping[str, Times]:
    """Every strategy at a point, all layers of the model.

    Returns:
        strategy -> seconds. ``tp`` runs over all chips, ``fsdp+tp`` with ``point.tensor``.
    """
    b, d, f = point.batch, model.hidden, model.ffn
    stored = f * model.sparsity  # what data parallelism moves, be it used or not
    n, y = point.chips, point.tensor
    scale = model.layers
    math = 4 * b * d * f / (n * machine.flops * point.efficiency)
    whole = data_rate(machine, n, 1)
    lone = 4 * b * d / tensor_rate(machine, n)
    mixed = max(
        4 * b * d * y / n / tensor_rate(machine, y), 4 * d * stored / data_rate(machine, n, y)
    )
    if y == 1:
        mixed = 4 * d * stored / whole
    comm = {
        "dp": (0.0, 8 * d * stored / whole),
        "fsdp": (4 * d * stored / whole, 8 * d * stored / whole),
        "tp": (lone, lone),
        "fsdp+tp": (mixed, 2 * mixed),
    }
    return {
        name: Times(
            3 * math * scale,
            (forward + backward) * scale,
            (max(math, forward) + max(2 * math, backward)) * scale,
        )
        for name, (forward, backward) in comm.items()
    }


def model_row(dims: ModelDims) -> ModelRow:
    """Coefficients of a model; a mixture of experts as wide as what a token passes."""
    return ModelRow(dims.name, dims.layers, dims.hidden, effective_ffn(dims), sparsity(dims))


def machine_row(machine: Machine) -> MachineRow:
    """Coefficients of a machine."""
    return MachineRow(
        machine.name,
        machine.peak_flops_per_s,
        machine.link_bytes_per_s,
        machine.network_bytes_per_s or 0.0,
        0 if machine.torus else machine.node_size,
        len(machine.slice_shape),
    )


def table(request: Request, machine: Machine, tensor: int) -> dict[str, object]:
    """Everything the page needs: models and machines, the requested ones first, and the point."""
    models = {row.name: row for row in (model_row(request.dims), *_models())}
    machines = {row.name: row for row in (machine_row(machine), *_machines())}
    point = Point(request.batch_tokens, machine.devices, tensor)
    here = times(model_row(request.dims), machine_row(machine), point)
    return {
        "models": [asdict(row) for row in models.values()],
        "machines": [asdict(row) for row in machines.values()],
        "point": asdict(point),
        "times": {name: asdict(made) for name, made in here.items()},
    }


def _models() -> list[ModelRow]:
    known = catalog.models()
    return [model_row(find_model(name)) for name in SHOWN_MODELS if name in known]


def _machines() -> list[MachineRow]:
    rows = []
    for key in SHOWN_MACHINES:
        try:
            rows.append(machine_row(build_machine(key, 4096, (), 1, Stated())))
        except UsageError:
            continue  # a figure is not known: nothing to draw
    return rows
