"""Devices as the formulas need them: FLOP/s and bytes/s, with what the user states on top."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from analyzer import catalog
from analyzer.catalog import Device
from analyzer.errors import UsageError
from analyzer.roofline.expected import SwitchedLink, TorusLink

FLOPS_PER_CYCLE: Mapping[str, int] = MappingProxyType(
    {
        "8.0": 2048,
        "8.9": 1024,
        "9.0": 4096,
        "10.0": 8192,
        "gfx90a": 1024,
        "gfx942": 2048,
        "gfx950": 4096,
    }
)
"""Dense bf16 FLOPs of one SM or compute unit in a cycle, by compute capability or architecture."""


def device(name: str) -> Device:
    """A device by short key (``h100-sxm``) or by the name a framework prints.

    Raises:
        UsageError: not in ``catalog/hardware.toml``; the hint lists the keys.
    """
    found = catalog.find_device(name)
    if found is None:
        raise UsageError(
            f"unknown device {name!r}", hint="known: " + ", ".join(catalog.device_keys())
        )
    return found


def peak_flops_per_s(
    made: Device, dtype: str = "bf16", stated_tflops: float | None = None
) -> float:
    """Dense peak of a device, FLOP/s; what the user states wins.

    Raises:
        UsageError: the table has no peak for this dtype, or none at all.
    """
    if stated_tflops is not None:
        return stated_tflops * 1e12
    peak = made.peak_tflops.get(dtype)
    if peak is None:
        known = ", ".join(made.peak_tflops) or made.note or "none"
        raise UsageError(f"{made.name}: no {dtype} peak is known", hint=f"known: {known}")
    return peak.value * 1e12


def computed_peak_flops_per_s(architecture: str, processors: int, clock_hz: float) -> float:
    """Peak from first principles, for a device whose name is not known.

    Formula:
        HW-PEAK
        FLOPs per SM and cycle · SMs · boost clock

    Args:
        architecture: compute capability (9.0) or gfx name.
        processors: SMs or compute units.
        clock_hz: boost clock.

    Returns:
        dense bf16 FLOP/s.
    Source: OpenXLA XProf, device capability table.

    Raises:
        UsageError: an architecture that is not in the table.
    """
    per_cycle = FLOPS_PER_CYCLE.get(architecture)
    if per_cycle is None:
        raise UsageError(
            f"no FLOPs per cycle known for {architecture}",
            hint="known: " + ", ".join(FLOPS_PER_CYCLE),
        )
    return float(per_cycle * processors * clock_hz)


def switched_link(
    made: Device,
    node_size: int | None = None,
    *,
    scale_out_gbps: float | None = None,
    in_network: bool = False,
) -> SwitchedLink:
    """The link model of a device behind switches.

    Args:
        made: the device.
        node_size: devices of a node or NVLink domain; the table's when not given.
        scale_out_gbps: network rate of a device where the user states it.
        in_network: the switch reduces (NVLS, SHARP).

    Raises:
        UsageError: the rate inside the node is not known.
    """
    if made.scale_up_gbps is None:
        raise UsageError(f"{made.name}: no rate inside the node is known", hint=made.note)
    out = made.scale_out_gbps.value if made.scale_out_gbps else None
    out = scale_out_gbps if scale_out_gbps is not None else out
    return SwitchedLink(
        node_size or made.domain,
        made.scale_up_gbps.value * 1e9,
        out * 1e9 if out is not None else None,
        in_network,
    )


def torus_link(made: Device, axis_sizes: tuple[int, ...], *, wraps: bool = True) -> TorusLink:
    """The link model of a group that fills torus axes of these sizes.

    Raises:
        UsageError: not a torus device, or more axes than it has.
    """
    if made.ici_link_gbps is None or len(axis_sizes) > made.ici_axes:
        raise UsageError(f"{made.name} has {made.ici_axes} torus axes, not {len(axis_sizes)}")
    return TorusLink(axis_sizes, 2 * made.ici_link_gbps.value * 1e9, wraps)
