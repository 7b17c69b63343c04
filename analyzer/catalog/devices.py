"""Devices and link benchmarks: the rows of ``hardware.toml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from analyzer.catalog.files import load


@dataclass(frozen=True, slots=True)
class Sourced:
    """A number with where it was read and when."""

    value: float
    source: str
    as_of: str


@dataclass(frozen=True, slots=True)
class Device:
    """One row of ``hardware.toml``; units there. A missing number is None, never derived."""

    name: str
    memory_gb: Sourced | None = None
    memory_gbps: Sourced | None = None
    scale_up_gbps: Sourced | None = None
    scale_out_gbps: Sourced | None = None
    peak_tflops: Mapping[str, Sourced] = field(default_factory=dict)
    note: str = ""
    key: str = ""
    domain: int = 8
    ici_axes: int = 0
    ici_link_gbps: Sourced | None = None
    matmul_fraction: Sourced | None = None


@cache
def find_device(name: str) -> Device | None:
    """The device a framework's name or a short key means, None when it is not in the table."""
    for row in load("hardware")["device"]:
        if name.lower() == row["key"] or re.search(row["match"], name, re.IGNORECASE):
            return _device(row)
    return None


@cache
def device_keys() -> tuple[str, ...]:
    """Short names of all devices."""
    return tuple(row["key"] for row in load("hardware")["device"])


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Measured all-reduce bus bandwidth: (bytes, GB/s) by payload."""

    source: str
    ranks: int
    nodes: int
    link_gbps: float
    points: tuple[tuple[float, float], ...]


@cache
def benchmarks() -> tuple[Benchmark, ...]:
    """The benchmarks of ``hardware.toml``."""
    table = load("hardware")
    return tuple(
        Benchmark(
            table["sources"][row["source"]]["title"],
            row["ranks"],
            row["nodes"],
            row["link_gbps"],
            tuple((size, busbw) for size, busbw in row["points"]),
        )
        for row in table["benchmark"]
    )


def _device(row: Mapping[str, Any]) -> Device:
    sources = load("hardware")["sources"]

    def sourced(cell: Mapping[str, Any] | None) -> Sourced | None:
        if cell is None:
            return None
        source = sources[cell["source"]]
        return Sourced(float(cell["value"]), source["title"], source["as_of"])

    peaks = {dtype: sourced(cell) for dtype, cell in row["peak_tflops"].items()}
    return Device(
        name=row["name"],
        memory_gb=sourced(row.get("memory_gb")),
        memory_gbps=sourced(row.get("memory_gbps")),
        scale_up_gbps=sourced(row.get("scale_up_gbps")),
        scale_out_gbps=sourced(row.get("scale_out_gbps")),
        peak_tflops={dtype: peak for dtype, peak in peaks.items() if peak is not None},
        note=row.get("note", ""),
        key=row["key"],
        domain=row.get("domain", 8),
        ici_axes=row.get("ici_axes", 0),
        ici_link_gbps=sourced(row.get("ici_link_gbps")),
        matmul_fraction=sourced(row.get("matmul_fraction")),
    )
