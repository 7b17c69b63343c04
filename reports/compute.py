"""The compute part of the result document, and what all renderers say alike about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from reports import text

if TYPE_CHECKING:
    from analyzer.measure.results import ComputeFamily, ComputeSummary, Measurements

COLUMNS = ("family", "dtype", "ms", "share", "TFLOP", "TFLOP/s", "roofline", "reached")
"""Heads of the table of families; ``roofline`` is in TFLOP/s, ``reached`` achieved / roofline."""


def document_part(m: Measurements) -> dict[str, Any] | None:
    """``compute`` of the document."""
    return None if m.compute is None else _summary(m.compute)


def _summary(compute: ComputeSummary) -> dict[str, Any]:
    return {
        "convention": compute.convention,
        "peak_flops_per_s": compute.peak_flops_per_s,
        "peak_dtype": compute.peak_dtype,
        "memory_bytes_per_s": compute.memory_bytes_per_s,
        "model_flops_per_step": compute.model_flops_per_step,
        "executed_flops_per_step": compute.executed_flops_per_step,
        "rerun_flops_per_step": compute.rerun_flops_per_step,
        "known_pct": compute.known_pct,
        "hfu_pct": compute.hfu_pct,
        "families": [_family(family) for family in compute.families],
    }


def _family(family: ComputeFamily) -> dict[str, Any]:
    return {
        "family": family.family,
        "dtype": family.dtype,
        "calls": family.calls,
        "time_ns": family.time_ns,
        "flops": family.flops,
        "bytes": family.bytes,
        "intensity": family.intensity,
        "achieved_flops_per_s": family.achieved_flops_per_s,
        "peak_flops_per_s": family.peak_flops_per_s,
        "roofline_flops_per_s": family.roofline_flops_per_s,
        "efficiency_pct": family.efficiency_pct,
        "share_pct": family.share_pct,
    }


def is_shown(document: Mapping[str, Any]) -> bool:
    """Whether there is anything to say: FLOPs of a family, or of the model."""
    compute = document["compute"]
    return compute is not None and (
        compute["model_flops_per_step"] is not None
        or any(row["flops"] is not None for row in compute["families"])
    )


def headline(document: Mapping[str, Any]) -> str:
    """MFU and HFU with what they are held against, or why they are not given."""
    compute, mfu = document["compute"], document["mfu_pct"]
    if mfu is None:
        return f"MFU not given: {text.visible(document['null_reasons'].get('mfu_pct', ''))}"
    hfu = "" if compute["hfu_pct"] is None else f", HFU {text.percent(compute['hfu_pct'])}"
    peak = tera(compute["peak_flops_per_s"])
    return (
        f"MFU {text.percent(mfu)}{hfu} of {peak} TFLOP/s dense {compute['peak_dtype']}; "
        f"counted by {text.visible(compute['convention'])}"
    )


def rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The table of families as text, one cell for each of :data:`COLUMNS`."""
    families = document["compute"]["families"]
    ms = text.Milliseconds([row["time_ns"] for row in families])
    return [
        (
            text.words(row["family"]),
            row["dtype"] or text.NONE,
            ms(row["time_ns"]),
            text.percent(row["share_pct"]),
            tera(row["flops"]),
            tera(row["achieved_flops_per_s"]),
            tera(row["roofline_flops_per_s"]),
            text.percent(row["efficiency_pct"]),
        )
        for row in families
    ]


def tera(value: float | None) -> str:
    """FLOPs or FLOP/s in units of 1e12, three significant digits; what is not zero reads so."""
    if value is None:
        return text.NONE
    scaled = value / 1e12
    if scaled and scaled < 0.01:
        return f"{scaled:.1g}" if scaled >= 1e-4 else "<0.0001"
    digits = 0 if scaled >= 100 else 1 if scaled >= 10 else 2
    return f"{scaled:,.{digits}f}"
