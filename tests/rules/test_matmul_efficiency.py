"""CMP001: matrix multiplies far below the roofline."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from measure_builder import MS, measured, outcome

from analyzer.measure.results import ComputeFamily, ComputeSummary, Measurements
from analyzer.model import Severity, Verdict


def family(time_ms: float, efficiency: float | None, **more: Any) -> ComputeFamily:
    roof = 800e12
    values: dict[str, Any] = {
        "family": "gemm", "dtype": "bf16", "calls": 24.0, "time_ns": round(time_ms * MS),
        "flops": 1e12, "bytes": 1e9, "intensity": 1e3, "peak_flops_per_s": 989e12,
        "achieved_flops_per_s": None if efficiency is None else roof * efficiency / 100,
        "roofline_flops_per_s": None if efficiency is None else roof,
        "efficiency_pct": efficiency, "share_pct": time_ms,
    }  # fmt: skip
    return ComputeFamily(**{**values, **more})


def job(*families: ComputeFamily, warnings: tuple[str, ...] = (), **more: Any) -> Measurements:
    """A step of 100 ms."""
    reasons = more.pop("reasons", {})
    summary = ComputeSummary(
        "operator shapes", 989e12, "bf16", 3.35e12, 1e12, 1e12, 0.0, 100.0, 40.0, 40.0,
        families, reasons, warnings,
    )  # fmt: skip
    return dataclasses.replace(measured(compute=[(0, 100)], step=100), compute=summary, **more)


def test_fires_on_the_time_above_the_target() -> None:
    """40 ms at 25 % would take 40 * 25 / 60 ms at the target."""
    result = outcome("CMP001", job(family(40, 25)))
    (finding,) = result.findings
    assert result.verdict is Verdict.WARN
    assert finding.savings_ns == 40 * MS - round(40 * MS * 25 / 60)
    assert (finding.savings_kind, finding.severity) == ("estimate", Severity.WARNING)
    assert finding.measured.value == pytest.approx(40)
    assert finding.roofline == pytest.approx(40 * 25 / 60)
    assert "gemm in bf16 reaches 25.0 % of the roofline (200 of 800 TFLOP/s)" in finding.title


def test_quiet_on_good_short_or_unknown_families() -> None:
    healthy = job(family(60, 65), family(1, 10, family="attention"), family(5, None, dtype=None))
    assert outcome("CMP001", healthy).verdict is Verdict.PASS
    assert outcome("CMP001", healthy).findings == ()
    assert len(outcome("CMP001", healthy, target_pct=80.0).findings) == 1


def test_small_losses_are_only_stated() -> None:
    (finding,) = outcome("CMP001", job(family(4, 30))).findings
    assert finding.severity is Severity.INFO


def test_b39_impossible_figures_are_errors() -> None:
    result = outcome("CMP001", job(family(40, None), warnings=("MFU is not given: 156 %",)))
    assert result.verdict is Verdict.FAIL
    (finding,) = result.findings
    assert (finding.severity, finding.savings_ns) == (Severity.ERROR, None)
    assert "156 %" in finding.title


def test_not_applicable_without_a_roofline() -> None:
    lost = job(family(40, None), reasons={"peak_flops_per_s": "no peak is known of device 'X'"})
    nothing = job()
    for m, why in ((lost, "no peak is known"), (nothing, "no roofline")):
        result = outcome("CMP001", m)
        assert result.verdict is Verdict.NOT_APPLICABLE
        assert why in result.reason
    assert outcome("CMP001", measured(compute=[(0, 9)])).verdict is Verdict.NOT_APPLICABLE
    host = job(family(40, 25), host_side=True)
    assert outcome("CMP001", host).verdict is Verdict.NOT_APPLICABLE
