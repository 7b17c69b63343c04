"""The hardware of a plan: figures with their sources, and the link every mesh axis runs on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from analyzer.catalog import Device, Sourced
from analyzer.errors import UsageError
from analyzer.roofline.expected import LinkModel, SwitchedLink, TorusLink
from analyzer.roofline.hardware import device, peak_flops_per_s, torus_link

DEFAULT_EFFICIENCY = 0.5
"""Share of the peak assumed where the catalogue knows of no large matmuls."""
STEP_SHARE = 0.7
"""What all kernels of a step reach together, of what large matmuls do: attention, norms and
elementwise work are slower. It puts predictions of public runs (Llama 3, torchtitan, Megatron) on
both sides of what they report."""
NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the machine and where it comes from."""

    name: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class Stated:
    """What the user states on top of the catalogue; None leaves the catalogue's figure."""

    peak_tflops: float | None = None
    memory_gb: float | None = None
    memory_gbps: float | None = None
    link_gbps: float | None = None
    network_gbps: float | None = None
    node_size: int | None = None
    efficiency: float | None = None
    efficiency_source: str = "stated"
    link_efficiency: Mapping[str, float] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class Wiring:
    """What tells two links apart, and little else: calls are looked up by it."""

    node_size: int
    bytes_per_s: float
    network_bytes_per_s: float | None
    torus_axes: tuple[int, ...] = ()

    def link(self) -> LinkModel:
        """The link as the formulas take it."""
        if self.torus_axes:
            return TorusLink(self.torus_axes, self.bytes_per_s)
        return SwitchedLink(self.node_size, self.bytes_per_s, self.network_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices, their rates, and how they are wired: nodes behind switches, or slices of a torus."""

    name: str
    devices: int
    node_size: int  # devices of a node or NVLink domain; of a slice on a torus
    peak_flops_per_s: float
    efficiency: float
    memory_bytes: float
    memory_bytes_per_s: float
    link_bytes_per_s: float  # egress of a device in its node; both links of one axis on a torus
    network_bytes_per_s: float | None  # of a device, between nodes or slices
    slice_shape: tuple[int, ...]  # empty behind switches
    figures: tuple[Figure, ...]
    link_efficiency: Mapping[str, float]  # axis -> measured share of the datasheet rate

    @property
    def torus(self) -> bool:
        """Chips on a torus (TPU), not GPUs behind switches."""
        return bool(self.slice_shape)

    @property
    def pods(self) -> int:
        """Nodes, or slices of a torus."""
        return max(1, math.ceil(self.devices / self.node_size))

    def data_axes(self, tensor: int) -> int:
        """M_X: torus axes left to data-parallel traffic beside tensor parallelism."""
        return max(1, len(self.slice_shape) - (1 if tensor > 1 else 0)) if self.torus else 1

    def data_rate(self) -> float:
        """Bytes/s a device sends of what data parallelism exchanges, before M_X is counted.

        On GPUs a tree of switches: the narrower of a device's link and its node's way out, which
        its whole node shares (COLL-TREE-AG).
        """
        if self.torus or self.devices <= self.node_size:
            return self.link_bytes_per_s
        return min(self.link_bytes_per_s, self.node_size * (self.network_bytes_per_s or 0.0))

    def wiring(self, axis: str, degree: int, tensor: int) -> Wiring:
        """The network a mesh axis runs on.

        On a torus every axis takes whole torus axes: tensor parallelism one, data parallelism the
        others, and copies in other slices the data-center network.
        """
        if not self.torus:
            return Wiring(self.node_size, self.link_bytes_per_s, self.network_bytes_per_s)
        if axis == "dp_replicate" and self.pods > 1 and self.network_bytes_per_s:
            return Wiring(1, self.network_bytes_per_s, self.network_bytes_per_s)
        axes = 1 if axis == "tp" else self.data_axes(tensor)
        whole = degree == self.node_size
        sizes = self.slice_shape if whole else near_equal(degree, axes)
        return Wiring(0, self.link_bytes_per_s, None, sizes)


def near_equal(number: int, parts: int) -> tuple[int, ...]:
    """Factors of a number as close to each other as its divisors allow, largest first."""
    factors: list[int] = []
    rest = number
    for left in range(parts, 1, -1):
        ideal = rest ** (1 / left)
        best = min(divisors(rest), key=lambda d: (abs(math.log(d / ideal)), -d))
        factors.append(best)
        rest //= best
    return tuple(sorted([*factors, rest], reverse=True))


def divisors(number: int) -> list[int]:
    """All divisors in ascending order."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def build_machine(
    key: str, devices: int, shape: tuple[int, ...], pods: int, stated: Stated, dtype: str = "bf16"
) -> Machine:
    """The machine from the catalogue and what the user states.

    Args:
        key: short key or name of a device in ``catalog/hardware.toml``.
        devices: all of them.
        shape: torus shape of one slice where the user gives it.
        pods: slices of a torus.
        stated: figures that replace the catalogue's.
        dtype: of the matmuls.

    Raises:
        UsageError: an unknown device, a figure that is not known and not stated, or a torus shape
            on a device behind switches.
    """
    made = device(key)
    read = _Reader(made)
    on_torus = made.ici_axes > 0
    _check_wiring(made, shape, pods)
    peak = _peak(read, dtype, stated)
    memory = read.take("memory", made.memory_gb, stated.memory_gb, "GB", "--memory-gb")
    memory_rate = read.take(
        "memory rate", made.memory_gbps, stated.memory_gbps, "GB/s", "--memory-gbps"
    )
    known = made.ici_link_gbps if on_torus else made.scale_up_gbps
    name = "torus link" if on_torus else "link in the node"
    link = read.take(name, known, stated.link_gbps, "GB/s", "--link-gbps")
    network = read.optional("network", made.scale_out_gbps, stated.network_gbps)
    node = devices // pods if on_torus else stated.node_size or made.domain
    if devices > node and network is None:
        raise read.missing("network rate between nodes", "--network-gbps")
    if on_torus and not shape:
        shape = near_equal(node, made.ici_axes)
    return Machine(
        name=made.name,
        devices=devices,
        node_size=node,
        peak_flops_per_s=peak * 1e12,
        efficiency=_efficiency(read, made, stated),
        memory_bytes=memory * 1e9,
        memory_bytes_per_s=memory_rate * 1e9,
        link_bytes_per_s=link * 1e9 * (2 if on_torus else 1),
        network_bytes_per_s=network * 1e9 if network is not None else None,
        slice_shape=shape,
        figures=tuple(read.figures),
        link_efficiency=stated.link_efficiency,
    )


def _check_wiring(made: Device, shape: tuple[int, ...], pods: int) -> None:
    """Torus options only for a torus, and no more axes than it has."""
    if made.ici_axes:
        if shape:
            torus_link(made, shape)
        return
    if shape:
        raise UsageError(f"--devices: {made.name} has no torus, give a number")
    if pods > 1:
        raise UsageError(f"--pods: {made.name} has no torus slices; --node-size sets its nodes")


def _peak(read: _Reader, dtype: str, stated: Stated) -> float:
    """Dense peak, TFLOP/s."""
    made = read.made
    if stated.peak_tflops is None and made.peak_tflops:
        peak_flops_per_s(made, dtype)  # names the dtypes that are known
    known = made.peak_tflops.get(dtype)
    return read.take(f"{dtype} peak", known, stated.peak_tflops, "TFLOP/s", "--peak-tflops")


def _efficiency(read: _Reader, made: Device, stated: Stated) -> float:
    """Share of the peak that compute reaches: stated, measured, of the catalogue, or assumed."""
    name = "compute efficiency"
    if stated.efficiency is not None:
        read.note(name, stated.efficiency, "of peak", stated.efficiency_source)
        return stated.efficiency
    if made.matmul_fraction is not None:
        value = STEP_SHARE * made.matmul_fraction.value
        source = f"{STEP_SHARE:g} of large matmuls' {made.matmul_fraction.value:.0%}"
        read.note(name, value, "of peak", f"{source} ({made.matmul_fraction.source})")
        return value
    read.note(name, DEFAULT_EFFICIENCY, "of peak", "assumed")
    return DEFAULT_EFFICIENCY


class _Reader:
    """Takes figures from a device or from the user, and remembers which."""

    def __init__(self, made: Device) -> None:
        self.made = made
        self.figures: list[Figure] = []

    def note(self, name: str, value: float, unit: str, source: str) -> None:
        self.figures.append(Figure(name, value, unit, source))

    def optional(self, name: str, known: Sourced | None, stated: float | None) -> float | None:
        if stated is not None:
            self.note(name, stated, "GB/s", "stated")
            return stated
        if known is not None:
            self.note(name, known.value, "GB/s", known.source)
            return known.value
        return None

    def take(
        self, name: str, known: Sourced | None, stated: float | None, unit: str, flag: str
    ) -> float:
        if stated is not None:
            self.note(name, stated, unit, "stated")
            return stated
        if known is None:
            raise self.missing(name, flag)
        self.note(name, known.value, unit, known.source)
        return known.value

    def missing(self, name: str, flag: str) -> UsageError:
        return UsageError(f"{self.made.name}: no {name} is known", hint=f"state {flag}")
