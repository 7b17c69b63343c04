"""The result document: keys, figures, order, and its JSON Schema."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest
from report_fixture import (
    GATES,
    HOSTILE,
    as_budget,
    make_measurements,
    make_outcomes,
    sweep,
    with_hostile_text,
)

from analyzer import schema
from analyzer.measure.results import Measurements
from analyzer.model import Outcome, Quantity, Severity, Verdict
from reports.document import NOT_MEASURED, build_document
from reports.json_ import render_json, schema_text
from reports.timeline import build_timeline

SCHEMA = json.loads(schema_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

# The binding key list: top level, and the nested objects whose members are named.
BINDING = {
    "": "schema tool_version inputs warnings job step exposed_comm_pct exposed_comm_pct_worst "
    "bubble_pct mfu_pct axes clock pipeline moe memory findings per_rank gates coverage",
    "job": "world_size ranks_seen device framework mesh strategy expect steps_kept steps_dropped",
    "step": "time_ns compute_ns exposed_comm_ns bubble_ns memcpy_ns idle_ns",
    "exposed_comm_pct_worst": "rank pct",
    "axes.tp": "degree count bytes comm_ns exposed_ns overlap_pct wait_ns transfer_ns "
    "unexplained_ns busbw_gbps spec_gbps link_efficiency expected_exposed_ns evidence confidence "
    "ops",
    "clock": "offset_ns residual_ns",
    "findings.0": "rule title severity axis ranks measured roofline threshold unit savings_ns "
    "savings_kind evidence advice doc",
    "per_rank.0": "rank step",
    "gates.0": "gate limit value passed",
    "coverage": "ranks_expected ranks_seen steps_with_device_events unclassified_pct "
    "dropped_events truncated_inputs",
}


@pytest.fixture(scope="module")
def job() -> tuple[Measurements, dict[int, pl.DataFrame]]:
    return make_measurements()


@pytest.fixture(scope="module")
def document(job: tuple[Measurements, dict[int, pl.DataFrame]]) -> dict[str, Any]:
    m, activity = job
    timeline = build_timeline(activity, m.steps, m.budget, origin_ns=m.origin_ns)
    return build_document(m, make_outcomes(m, activity), GATES, timeline=timeline)


def nothing_measured(m: Measurements) -> Measurements:
    return replace(
        m,
        steps=m.steps.with_columns(kept=pl.lit(value=False), reason=pl.lit("no device events")),
        budget=schema.BUDGET.empty(),
        mean=None,
        per_rank=(),
        axes=(),
        axis_labels={},
        exposed_comm_pct=None,
        bubble_pct=None,
        expect=None,
        null_reasons={"step": "no step could be kept", "exposed_comm_pct": "no step could be kept"},
    )


def at(document: Any, path: str) -> Any:
    for key in filter(None, path.split(".")):
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_document_satisfies_schema(document: dict[str, Any]) -> None:
    VALIDATOR.validate(document)


@pytest.mark.parametrize("path", BINDING)
def test_document_has_binding_keys(document: dict[str, Any], path: str) -> None:
    assert set(BINDING[path].split()) <= set(at(document, path))


def test_document_without_a_kept_step_is_null_not_zero(job: Any) -> None:
    m = nothing_measured(job[0])
    document = build_document(m, (), ())
    VALIDATOR.validate(document)
    figures = ("step", "exposed_comm_pct", "exposed_comm_pct_worst", "bubble_pct", "mfu_pct")
    assert [document[key] for key in figures] == [None] * len(figures)
    assert set(document["steps"]["compute_ns"]) == {None}
    assert document["null_reasons"]["step"] == "no step could be kept"
    assert document["job"]["steps_kept"] == []


def test_unknown_bubble_is_null_everywhere(job: Any) -> None:
    m = job[0]
    m = replace(m, mean=replace(m.mean, bubble_ns=None), bubble_pct=None)
    document = build_document(m, (), ())
    VALIDATOR.validate(document)
    assert document["step"]["bubble_ns"] is None
    assert set(document["steps"]["bubble_ns"]) == {None}


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        ("step.compute_ns", -1),
        ("step.compute_ns", 1.5),
        ("exposed_comm_pct", 101),
        ("job.mesh.tp", 0),
        ("findings.0.severity", "fatal"),
        ("gates.2.reason", ""),
        ("rules.0.verdict", "maybe"),
        ("schema", "meshscope.analysis/2"),
    ],
)
def test_schema_refuses_wrong_values(document: dict[str, Any], path: str, bad: object) -> None:
    broken = json.loads(json.dumps(document))
    parent, _, key = path.rpartition(".")
    at(broken, parent)[key] = bad
    assert not VALIDATOR.is_valid(broken)


@pytest.mark.parametrize(
    "path", [p for p in BINDING if p and p != "axes.tp"] + ["axes.tp.ops.all_reduce"]
)
def test_schema_demands_every_key(document: dict[str, Any], path: str) -> None:
    for key in list(at(document, path)):
        if key in ("expected_why", "evidence_why"):
            continue
        broken = json.loads(json.dumps(document))
        del at(broken, path)[key]
        assert not VALIDATOR.is_valid(broken), key


def test_schema_describes_every_key_of_the_document(document: dict[str, Any]) -> None:
    undescribed = set(_undescribed(SCHEMA, document, ""))
    assert undescribed == set()


def _undescribed(node: dict[str, Any], value: Any, where: str) -> list[str]:
    """Paths of object members that the schema neither names nor gives a type for."""
    nodes = _resolve(node)
    found: list[str] = []
    if isinstance(value, dict):
        for key, member in value.items():
            named = [n["properties"][key] for n in nodes if key in n.get("properties", {})]
            named += [n["additionalProperties"] for n in nodes if "additionalProperties" in n]
            found += [] if named else [f"{where}.{key}"]
            for schema_of_member in named:
                found += _undescribed(schema_of_member, member, f"{where}.{key}")
    elif isinstance(value, list):
        items = [n["items"] for n in nodes if "items" in n]
        found += [] if items or not value else [f"{where}[]"]
        found += [u for n in items for v in value for u in _undescribed(n, v, f"{where}[]")]
    return found


def _resolve(node: dict[str, Any]) -> list[dict[str, Any]]:
    nodes = [node]
    if "$ref" in node:
        nodes += _resolve(SCHEMA["$defs"][node["$ref"].rsplit("/", 1)[1]])
    for keyword in ("anyOf", "allOf"):
        nodes += [n for option in node.get(keyword, []) for n in _resolve(option)]
    return nodes


def test_step_rows_equal_a_brute_force_sweep(job: Any, document: dict[str, Any]) -> None:
    m, activity = job
    columns = document["steps"]
    windows = {(r["rank"], r["index"]): r for r in m.steps.iter_rows(named=True)}
    for i, rank in enumerate(columns["rank"]):
        window = windows[rank, columns["step"][i]]
        truth = as_budget(sweep(activity[rank], window["start_ns"], window["end_ns"]))
        assert columns["time_ns"][i] == truth.time_ns == window["end_ns"] - window["start_ns"]
        assert columns["compute_ns"][i] == truth.compute_ns
        assert columns["memcpy_ns"][i] == truth.memcpy_ns
        for axis, ns in columns["exposed_comm_ns"].items():
            assert ns[i] == truth.exposed_comm_ns.get(axis, 0)
        for cause, ns in columns["idle_ns"].items():
            assert ns[i] == truth.idle_ns.get(cause, 0)


def test_budgets_add_up(document: dict[str, Any]) -> None:
    for step in (document["step"], *(r["step"] for r in document["per_rank"])):
        parts = step["compute_ns"] + step["bubble_ns"] + step["memcpy_ns"]
        parts += sum(step["exposed_comm_ns"].values()) + sum(step["idle_ns"].values())
        assert parts == step["time_ns"]


def test_worst_rank_is_the_slow_one(document: dict[str, Any]) -> None:
    worst = document["exposed_comm_pct_worst"]
    assert worst["rank"] == 3  # its all-reduces take 60 us longer
    assert worst["pct"] == max(r["exposed_comm_pct"] for r in document["per_rank"])


def test_dropped_step_is_listed_once_with_its_ranks(document: dict[str, Any]) -> None:
    job = document["job"]
    assert job["steps_dropped"] == [
        {
            "step": 0,
            "label": "ProfilerStep#10",
            "reason": "incomplete: capture began inside it",
            "ranks": list(range(8)),
        }
    ]
    assert [s["label"] for s in job["steps_kept"]] == [f"ProfilerStep#{n}" for n in (11, 12, 13)]


def test_axes_follow_report_order_and_hold_their_ops(document: dict[str, Any]) -> None:
    assert list(document["axes"]) == ["dp_shard", "tp"]
    shard = document["axes"]["dp_shard"]
    assert list(shard["ops"]) == ["all_gather", "reduce_scatter"]
    assert (shard["degree"], shard["count"], shard["bytes"]) == (4, 17, 736 * 2**20)


def test_findings_order_errors_then_worth_then_info(job: Any) -> None:
    m, activity = job
    base = make_outcomes(m, activity)[0].findings[0]
    variants = {
        "mismatch": (Severity.ERROR, None),
        "small": (Severity.WARNING, 5),
        "large": (Severity.WARNING, 50),
        "stated": (Severity.INFO, 500),
    }
    findings = tuple(
        replace(base, title=title, severity=severity, savings_ns=ns)
        for title, (severity, ns) in variants.items()
    )
    outcomes = (Outcome("X", "x", Verdict.FAIL, "", tuple(reversed(findings))),)
    titles = [f["title"] for f in build_document(m, outcomes, ())["findings"]]
    assert titles == ["mismatch", "large", "small", "stated"]


def test_nan_is_refused(job: Any) -> None:
    m, activity = job
    finding = replace(
        make_outcomes(m, activity)[0].findings[0], measured=Quantity(float("nan"), "%")
    )
    outcome = Outcome("X", "x", Verdict.FAIL, "", (finding,))
    with pytest.raises(ValueError, match="measured is nan"):
        build_document(m, (outcome,), ())


def test_json_is_deterministic_and_round_trips(job: Any, document: dict[str, Any]) -> None:
    text = render_json(document)
    assert json.loads(text) == document
    m, activity = make_measurements()
    timeline = build_timeline(activity, m.steps, m.budget, origin_ns=m.origin_ns)
    again = build_document(m, make_outcomes(m, activity), GATES, timeline=timeline)
    assert render_json(again) == text


def test_json_keeps_plain_lists_on_one_line(document: dict[str, Any]) -> None:
    line = next(x for x in render_json(document).splitlines() if '"time_ns": [' in x)
    assert (
        json.loads("{" + line.strip().rstrip(",") + "}")["time_ns"] == document["steps"]["time_ns"]
    )


def test_json_refuses_nan() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        render_json({"a": [float("nan")]})


def test_undecodable_file_names_become_valid_text(job: Any) -> None:
    m = replace(job[0], inputs=("bad\udcff.json",))
    text = render_json(build_document(m, (), ()))
    assert json.loads(text.encode("utf-8"))["inputs"] == ["bad?.json"]


def test_hostile_text_is_kept_as_it_is(job: Any) -> None:
    m, outcomes = with_hostile_text(job[0], make_outcomes(*job))
    document = build_document(m, outcomes, ())
    VALIDATOR.validate(document)
    assert document["job"]["device"] == HOSTILE


def test_reasons_name_figures_that_are_null(document: dict[str, Any]) -> None:
    for key in NOT_MEASURED:
        value = at(document, key.replace("axes.", "axes.tp."))
        assert value in (None, {"offset_ns": {}, "residual_ns": None}), key


def test_timeline_summary_says_what_is_shown(document: dict[str, Any]) -> None:
    assert document["timeline"]["windows_shown"] == document["timeline"]["windows_total"] == 24
    assert document["timeline"]["left_out"] == ""


def test_every_key_is_documented(document: dict[str, Any]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    for path in ("", "job", "step", "findings.0", "gates.0"):
        for key in at(document, path):
            assert f"`{key}`" in page, f"{path}.{key}"
