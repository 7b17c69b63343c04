"""COM004: what tensor parallelism costs; never a defect."""

from __future__ import annotations

import pytest
from measure_builder import MS, Comm, measured, outcome, strategy, unmeasurable

from analyzer.model import Severity, Verdict


def exposed_for(ms: float, op: str = "all_reduce", **fields: object):
    comm = [Comm("tp", op, 40, 40 + ms / 2), Comm("tp", op, 80, 80 + ms / 2)]
    compute = [(0, 40), (40 + ms / 2, 80), (80 + ms / 2, 100)]
    return measured(comm, compute=compute, inferred=strategy("tp"), mesh={"tp": 8}, **fields)


def test_fires_as_information_even_at_a_third_of_the_step() -> None:
    result = outcome("COM004", exposed_for(30, must_expose={"tp": 28}))
    (finding,) = result.findings
    assert finding.severity is Severity.INFO
    assert result.verdict is Verdict.PASS
    assert finding.measured.value == pytest.approx(30.0)
    assert finding.roofline == pytest.approx(28.0)
    assert finding.savings_ns == 30 * MS
    assert "2 collectives a step over 8 ranks, 15.0 ms each" in finding.advice
    assert "2.00 ms of it is beyond their typical duration" in finding.advice
    assert "SequenceParallel" in finding.advice


def test_fires_with_async_tp_named_where_sequence_parallelism_runs() -> None:
    comm = [Comm("tp", "all_gather", 40, 42), Comm("tp", "reduce_scatter", 50, 52)]
    (finding,) = outcome("COM004", measured(comm, compute=[(0, 40), (42, 50)])).findings
    assert finding.advice.count("equence parallel") == 0
    assert "enable_async_tensor_parallel" in finding.advice
    assert finding.roofline is None


def test_quiet_when_hidden_or_negligible() -> None:
    assert outcome("COM004", exposed_for(0.098)).findings == ()
    assert len(outcome("COM004", exposed_for(0.1)).findings) == 1
    hidden = measured([Comm("tp", "all_gather", 10, 20)], compute=[(0, 50)])
    assert outcome("COM004", hidden).findings == ()


def test_not_applicable_without_tensor_parallelism() -> None:
    result = outcome("COM004", measured([Comm("dp_shard", "all_gather", 50, 60)]))
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert result.reason == "no tensor-parallel communication"
    assert outcome("COM004", unmeasurable("x")).verdict is Verdict.NOT_APPLICABLE
