"""The verdict card says what dominates, in words that fit the numbers."""

from __future__ import annotations

from typing import Any

import pytest
from report_fixture import GATES, make_measurements, make_outcomes

from reports.document import build_document
from reports.verdict import verdict
from reports.view import worth

MS = 1_000_000


@pytest.fixture(scope="module")
def full() -> dict[str, Any]:
    m, activity = make_measurements(ranks=(2, 3))
    return build_document(m, make_outcomes(m, activity), GATES)


def with_step(document: dict[str, Any], **parts: Any) -> dict[str, Any]:
    step: dict[str, Any] = {
        "compute_ns": 0, "exposed_comm_ns": {}, "bubble_ns": 0, "memcpy_ns": 0, "idle_ns": {},
    } | parts  # fmt: skip
    flat = [step["compute_ns"], step["bubble_ns"] or 0, step["memcpy_ns"]]
    nested = [*step["exposed_comm_ns"].values(), *step["idle_ns"].values()]
    step["time_ns"] = sum(flat) + sum(nested)
    return document | {"step": step, "findings": [], "gates": []}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"compute_ns": 99 * MS, "memcpy_ns": MS}, "Compute-bound: the device computes 99.0 %"),
        ({"compute_ns": 100 * MS}, "Compute-bound: the device computes 100.0 %"),
        (
            {"compute_ns": 30 * MS, "idle_ns": {"host_bound": 70 * MS}},
            "Dominated by an idle device, 70.0 % of the step: the host had not launched",
        ),
        (
            {"compute_ns": 80 * MS, "exposed_comm_ns": {"ep": 20 * MS}},
            "The largest cost besides compute is exposed ep communication, 20.0 % of the step",
        ),
        ({"compute_ns": 90 * MS, "bubble_ns": 10 * MS}, "is the pipeline bubble, 10.0 %"),
        ({"compute_ns": 90 * MS, "memcpy_ns": 10 * MS}, "is copies that nothing hides, 10.0 %"),
    ],
)
def test_headline_names_the_largest_loss(full: dict[str, Any], parts: Any, words: str) -> None:
    assert words in verdict(with_step(full, **parts)).headline


def test_what_the_strategy_must_expose_is_not_called_a_loss(full: dict[str, Any]) -> None:
    exposed = {"tp": full["axes"]["tp"]["expected_exposed_ns"]}
    headline = verdict(with_step(full, compute_ns=5 * MS, exposed_comm_ns=exposed)).headline
    assert "which the strategy puts on the critical path" in headline
    exposed = {"tp": 2 * exposed["tp"]}
    headline = verdict(with_step(full, compute_ns=5 * MS, exposed_comm_ns=exposed)).headline
    assert "critical path" not in headline


def test_why_holds_the_numbers(full: dict[str, Any]) -> None:
    why = verdict(full).why
    assert why[0] == "gate max-exposed-comm tp=8% fails with 11.4 %"
    assert why[1] == "step 7.93 ms: compute 6.04 ms, exposed communication 1.62 ms (20.3 %)"
    assert (
        why[2]
        == "exposed tp 1.44 ms (18.2 %): none of tp communication is hidden, 1.08 ms cannot be"
    )
    assert why[-1] == "rank 3 is worst: 23.9 % exposed, against 20.3 % on average"


def test_next_is_the_first_finding_and_its_worth(full: dict[str, Any]) -> None:
    card = verdict(full)
    assert card.action == "Call set_modules_to_forward_prefetch on each FSDP unit."
    assert card.worth == worth(full["findings"][0], full) == "about 661 us a step (8.3 %)"


def test_info_findings_are_stated_not_demanded(full: dict[str, Any]) -> None:
    infos = [f for f in full["findings"] if f["severity"] == "info"]
    card = verdict(full | {"findings": infos})
    assert card.action.startswith("No defect found. The most there is to gain: Tensor-parallel")
    assert verdict(full | {"findings": []}).action.startswith("Nothing to fix")


@pytest.mark.parametrize(
    ("severities", "passed", "tone"),
    [
        ([], [], "good"),
        (["info"], [True], "good"),
        (["warning"], [True], "attention"),
        ([], [None], "attention"),
        (["error"], [], "bad"),
        ([], [True, False], "bad"),
    ],
)
def test_tone(full: dict[str, Any], severities: Any, passed: Any, tone: str) -> None:
    findings = [full["findings"][0] | {"severity": s} for s in severities]
    gates = [full["gates"][0] | {"passed": p} for p in passed]
    assert verdict(full | {"findings": findings, "gates": gates}).tone == tone


def test_no_step_no_verdict(full: dict[str, Any]) -> None:
    reasons = full["null_reasons"] | {"step": "30 of 32 steps hold no device event"}
    card = verdict(full | {"step": None, "findings": [], "null_reasons": reasons})
    assert card.headline == "No verdict: no step could be measured."
    assert card.why == ("30 of 32 steps hold no device event",)
    assert card.tone == "unknown"


@pytest.mark.parametrize(
    ("kind", "shown"),
    [("upper bound", "up to 1 ms a step"), ("estimate", "about 1 ms"), ("replayed", "1 ms a step")],
)
def test_worth_says_what_kind_of_number_it_is(full: dict[str, Any], kind: str, shown: str) -> None:
    finding = full["findings"][0] | {"savings_ns": MS, "savings_kind": kind}
    assert worth(finding, full).startswith(shown)
    assert worth(finding | {"savings_ns": None}, full) == ""
