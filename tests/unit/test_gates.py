"""Gates: grammar, three outcomes, exit codes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.errors import ExitCode, UsageError
from analyzer.gates import (
    bubble_gate,
    evaluate,
    exit_code,
    exposed_comm_gate,
    fail_on_gate,
    parse_gate,
)
from analyzer.model import GateResult, Severity


def document(**changes: Any) -> dict[str, Any]:
    """A small result document: 10 ms step, 1 ms exposed on tp, 0.5 ms on dp_shard."""
    base: dict[str, Any] = {
        "schema": "meshscope.analysis/1",
        "job": {"world_size": 4, "expect": "fsdp_tp", "expect_axes": ["dp_shard", "tp"]},
        "findings": [{"severity": "info"}, {"severity": "warning"}],
        "rules": [{"verdict": "warn"}, {"verdict": "not_applicable"}],
        "step": {
            "time_ns": 10_000_000,
            "compute_ns": 8_000_000,
            "exposed_comm_ns": {"tp": 1_000_000, "dp_shard": 500_000},
            "bubble_ns": 0,
            "memcpy_ns": 0,
            "idle_ns": {"host_bound": 500_000},
        },
        "exposed_comm_pct": 15.0,
        "exposed_comm_pct_worst": {"rank": 1, "pct": 18.0},
        "bubble_pct": 0.0,
        "mfu_pct": None,
        "axes": {"tp": {"exposed_ns": 1_000_000}, "dp_shard": {"exposed_ns": 500_000}},
        "null_reasons": {"mfu_pct": "model dimensions are not known"},
        "coverage": {
            "ranks_expected": 4,
            "ranks_seen": [0, 1, 2, 3],
            "unclassified_pct": 0.0,
            "truncated_inputs": [],
        },
    }
    coverage = changes.pop("coverage", {})
    base["coverage"].update(coverage)
    return base | changes


def one(gate: Any, doc: dict[str, Any]) -> GateResult:
    """Evaluate a single gate."""
    return evaluate([gate], doc)[0]


@pytest.mark.parametrize(
    ("limit", "passed"),
    [("15%", True), ("14.9%", False), ("tp=10%", True), ("tp=9.9%", False)],
)
def test_exposed_comm_limits(limit: str, passed: bool) -> None:
    assert one(exposed_comm_gate(limit), document()).passed is passed


def test_an_axis_that_was_not_seen_has_no_verdict() -> None:
    result = one(exposed_comm_gate("cp=10%"), document())
    assert result.passed is None
    assert "no cp communication" in result.reason


@pytest.mark.parametrize(
    ("expression", "passed"),
    [
        ("axes.tp.exposed_ns <= 1ms", True),
        ("axes.tp.exposed_ns < 1ms", False),
        ("axes.tp.exposed_ns<=999us", False),
        ("step.time_ns <= 0.01s and exposed_comm_pct <= 20%", True),
        ("step.time_ns <= 0.01s and exposed_comm_pct <= 10%", False),
        ("exposed_comm_pct_worst <= 18%", True),
        ("step.idle_ns.host_bound < 1e6", True),
    ],
)
def test_expressions(expression: str, passed: bool) -> None:
    assert one(parse_gate(expression), document()).passed is passed


def test_unmeasured_figure_gives_its_reason() -> None:
    result = one(parse_gate("mfu_pct >= 40%"), document())
    assert (result.passed, result.reason) == (None, "model dimensions are not known")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"coverage": {"truncated_inputs": ["a.json"]}}, "truncated input: a.json"),
        ({"coverage": {"unclassified_pct": 5.1}}, "unclassified device time is 5.1 %"),
        ({"coverage": {"unclassified_pct": None}}, "unknown"),
        ({"step": None}, "no step"),
        ({"axes": {}}, "no communication was found"),
    ],
)
def test_what_was_not_measured_never_passes(changes: dict[str, Any], reason: str) -> None:
    result = one(exposed_comm_gate("99%"), document(**changes))
    assert result.passed is None
    assert reason in result.reason


def test_no_communication_on_one_device_passes() -> None:
    doc = document(
        axes={}, exposed_comm_pct=0.0, job={"world_size": 1, "expect": None, "expect_axes": []}
    )
    assert one(exposed_comm_gate("1%"), doc).passed is True


def test_missing_ranks_spoil_only_figures_that_compare_ranks() -> None:
    doc = document(coverage={"ranks_seen": [0, 1]})
    assert one(parse_gate("exposed_comm_pct_worst <= 50%"), doc).passed is None
    assert one(parse_gate("exposed_comm_pct <= 50%"), doc).passed is True


@pytest.mark.parametrize(
    "expression",
    ["", "exposed_comm_pct", "exposed_comm_pct <= x", "1 <= 2", "axes.tp.exposed_ns <= 3%",
     "__import__('os')",
     "exposed_comm_pct <= 10ms", "nonsense <= 3", "exposed_comm_pct.tp <= 99%",
     "axes.tp.exposed_ns.x <= 1s", "axes.tp.degree <= 2GiB", "exposed_comm_pct_worst <= 1ms",
     "exposed_comm_pct <= 1e999", "step.idle_ns.host_bound <= 3%"],
)  # fmt: skip
def test_bad_expressions_are_usage_errors(expression: str) -> None:
    with pytest.raises(UsageError):
        one(parse_gate(expression), document())


@pytest.mark.parametrize(
    "limit", ["", "x", "-3%", "tp=", "15%%", "15", "0.15", "fsdp=8%", "9" * 400 + "%"]
)
def test_bad_limits_are_usage_errors(limit: str) -> None:
    with pytest.raises(UsageError):
        exposed_comm_gate(limit)


@given(st.floats(0, 100), st.floats(0, 100))
def test_a_gate_agrees_with_plain_comparison(limit: float, value: float) -> None:
    gate = parse_gate(f"exposed_comm_pct <= {limit!r}")
    assert one(gate, document(exposed_comm_pct=value)).passed is (value <= limit)


def test_bubble_gate() -> None:
    assert one(bubble_gate("10%"), document(bubble_pct=9.0)).passed is True
    assert one(bubble_gate("10%"), document(bubble_pct=11.0)).passed is False
    unsplit = document(bubble_pct=None, null_reasons={"bubble_pct": "peers are missing"})
    assert one(bubble_gate("10%"), unsplit).reason == "peers are missing"


def test_fail_on_counts_findings_at_or_above() -> None:
    assert fail_on_gate(Severity.WARNING, document()).passed is False
    assert fail_on_gate(Severity.ERROR, document()).passed is True
    assert fail_on_gate(Severity.INFO, document(findings=[])).passed is True


def test_fail_on_has_no_verdict_when_no_rule_looked() -> None:
    blind = document(findings=[], rules=[{"verdict": "not_applicable"}])
    assert fail_on_gate(Severity.INFO, blind).passed is None
    unmeasured = document(findings=[], step=None)
    assert fail_on_gate(Severity.INFO, unmeasured).passed is None
    # a finding is a finding, whatever else could not be looked at
    assert fail_on_gate(Severity.INFO, document(step=None)).passed is False


@pytest.mark.parametrize(
    ("expect_axes", "gate", "passed"),
    [
        (["dp_shard", "tp", "pp"], exposed_comm_gate("99%"), None),
        (["dp_shard", "tp", "pp"], bubble_gate("99%"), None),
        (["dp_shard", "tp", "pp"], parse_gate("step.bubble_ns <= 1s"), None),
        (["dp_shard", "tp", "pp"], exposed_comm_gate("tp=99%"), True),
        (["dp_shard", "tp", "cp"], bubble_gate("99%"), True),
        (["dp_shard", "tp"], exposed_comm_gate("99%"), True),
    ],
)
def test_a_stated_axis_that_never_communicated_spoils_the_totals(
    expect_axes: list[str], gate: Any, passed: bool | None
) -> None:
    doc = document(job={"world_size": 8, "expect": "x", "expect_axes": expect_axes})
    assert one(gate, doc).passed is passed


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([], ExitCode.OK),
        ([True], ExitCode.OK),
        ([True, None], ExitCode.NO_VERDICT),
        ([None, False, True], ExitCode.GATE_FAILED),
    ],
)
def test_exit_codes(outcomes: list[bool | None], code: ExitCode) -> None:
    assert exit_code(GateResult("g", 1.0, 1.0, passed) for passed in outcomes) is code
