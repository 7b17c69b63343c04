"""TRC001: what the trace lacks."""

from __future__ import annotations

import pytest
from measure_builder import Comm, measured, outcome, unmeasurable

from analyzer.measure.results import Coverage
from analyzer.model import LeftOut, Severity, Verdict
from rules import run

COMM = [Comm("dp_shard", "all_gather", 10, 30)]


def covered(**fields: object) -> Coverage:
    whole = {"ranks_expected": 1, "ranks_seen": (0,), "steps_total": 4,
             "steps_with_device_events": 4, "unclassified_pct": 0.0}  # fmt: skip
    return Coverage(**{**whole, **fields})


@pytest.mark.parametrize(
    ("coverage", "title"),
    [
        ({"unclassified_pct": 5.1}, "5.1 % of device time could not be classed"),
        ({"truncated_inputs": ("a.json", "b.json")}, "Input files cut off: 2"),
        ({"steps_with_device_events": 1}, "Steps without device events: 3 of 4"),
    ],
)
def test_fires_a_warning(coverage: dict[str, object], title: str) -> None:
    result = outcome("TRC001", measured(COMM, coverage=covered(**coverage)))
    (finding,) = result.findings
    assert (result.verdict, finding.severity, finding.title) == (
        Verdict.WARN,
        Severity.WARNING,
        title,
    )


@pytest.mark.parametrize(
    ("coverage", "title", "advice"),
    [
        ({"ranks_expected": 8}, "Ranks missing: 7 of 8", "all ranks' files"),
        ({"left_out": (LeftOut("x.json", "not a trace"),)}, "Input files not analysed: 1",
         "x.json: not a trace."),
        ({"dropped_events": {"negative duration": 2, "no name": 5}}, "Events dropped: 7",
         "5 no name; 2 negative duration."),
        ({"repaired_events": {"clipped": 3}}, "Events repaired: 3", "3 clipped."),
        ({"steps_with_device_events": 3}, "Steps without device events: 1 of 4", "warm-up"),
    ],
)  # fmt: skip
def test_fires_as_information(coverage: dict[str, object], title: str, advice: str) -> None:
    result = outcome("TRC001", measured(COMM, coverage=covered(**coverage)))
    (finding,) = result.findings
    assert (result.verdict, finding.severity, finding.title) == (Verdict.PASS, Severity.INFO, title)
    assert advice in finding.advice


def test_fires_on_unknown_axes_conflicts_and_missing_launches() -> None:
    comm = [*COMM, Comm("unknown", "all_reduce", 40, 42, launched=False)]
    conflicts = tuple(f"group {i}: mesh says tp, description says ep" for i in range(5))
    findings = outcome("TRC001", measured(comm, conflicts=conflicts)).findings
    assert {f.title for f in findings} == {
        "9.1 % of communication time has no known axis",
        "Axis labels with sources that disagree: 5",
        "50 % of the collectives have no launch on the host",
    }
    (disagree,) = [f for f in findings if "disagree" in f.title]
    assert disagree.advice.endswith("and 2 more.")


def test_quiet_on_a_complete_trace_and_just_under_the_limits() -> None:
    assert outcome("TRC001", measured(COMM)).verdict is Verdict.PASS
    assert outcome("TRC001", measured(COMM)).findings == ()
    assert outcome("TRC001", measured(COMM, coverage=covered(unclassified_pct=5.0))).findings == ()
    unknown = [*COMM, Comm("unknown", "all_reduce", 40, 41)]  # 1 of 21 ms: 4.8 %
    assert outcome("TRC001", measured(unknown)).findings == ()
    launched = [Comm("dp_shard", "all_gather", i, i + 1, launched=i > 0) for i in range(5)]
    assert outcome("TRC001", measured(launched)).findings == ()


def test_quiet_about_launches_on_host_side_traces() -> None:
    comm = [Comm("dp_shard", "all_gather", 10, 30, launched=False)]
    assert outcome("TRC001", measured(comm, host_side=True)).findings == ()


def test_not_applicable_only_when_switched_off() -> None:
    # It also speaks about traces of which nothing can be measured: that is when it is needed.
    empty = unmeasurable("no step")
    result = outcome("TRC001", empty)
    assert result.verdict is Verdict.PASS
    off = run(empty, levels={"trace-quality": "off"})
    assert next(o for o in off if o.rule == "TRC001").verdict is Verdict.NOT_APPLICABLE
