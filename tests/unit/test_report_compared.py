"""What reports say of several ranks: document, schema, terminal and page."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from analyzer.api import Options, analyze
from collectors.simulate import Defect, SimSpec, simulate, write
from reports.html import render_html
from reports.json_ import schema_text
from reports.terminal import render_terminal

VALIDATOR = jsonschema.Draft202012Validator(json.loads(schema_text()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FSDP x TP on 4 ranks, of which rank 3 computes 1.4 times as long, on wrong clocks."""
    folder = tmp_path_factory.mktemp("job")
    spec = SimSpec(
        {"dp_shard": 2, "tp": 2}, "fsdp_tp", layers=3, hidden=1024, vocab=1024, sequence=1024,
        defects=(Defect.parse("straggler:3=1.4"),), clock_skew_ns=4_000_000,
    )  # fmt: skip
    write(simulate(spec), folder)
    return folder


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    return analyze(sorted(folder.glob("rank*")), options=Options(timeline=False)).document


@pytest.fixture(scope="module")
def single(folder: Path) -> dict[str, Any]:
    return analyze(folder / "rank0.json.gz", options=Options(timeline=False)).document


def terminal(document: dict[str, Any]) -> str:
    buffer = io.StringIO()
    render_terminal(document, Console(file=buffer, width=80))
    return buffer.getvalue()


def test_document_satisfies_the_schema_and_compares_all_ranks(document: dict[str, Any]) -> None:
    VALIDATOR.validate(document)
    clock = document["clock"]
    truth = json.loads(json.dumps(clock["offset_ns"]))
    assert set(truth) == {"0", "1", "2", "3"}
    assert (truth["0"], clock["reference_rank"], clock["refused_groups"]) == (0, 0, [])
    assert all(low <= truth[r] <= high for r, (low, high) in clock["bound_ns"].items())
    for axis in ("dp_shard", "tp"):
        figures = document["axes"][axis]
        assert figures["split_pct"] == 100
        assert 0 < figures["busbw_gbps"] < figures["spec_gbps"] == 450
        assert 0 < figures["link_efficiency"] < 1
        assert figures["unexplained_ns"] is None
        ops = figures["ops"].values()
        assert abs(sum(op["wait_ns"] for op in ops) - figures["wait_ns"]) <= len(ops)
    assert document["coverage"]["unmatched"] == []
    assert document["coverage"]["unmatched_total"] == 0
    assert {row["axis"] for row in document["busbw"]} == {"dp_shard", "tp", "world"}


def test_wait_and_transfer_make_up_the_communication_of_serial_axes(
    document: dict[str, Any],
) -> None:
    """TP's collectives never overlap each other, and simulated members end together exactly."""
    tp = document["axes"]["tp"]
    assert tp["wait_ns"] + tp["transfer_ns"] == pytest.approx(tp["comm_ns"], abs=2)


def test_reasons_only_for_what_is_null(document: dict[str, Any]) -> None:
    figures = {key for key in document["null_reasons"] if key.startswith("axes.")}
    assert figures == {"axes.unexplained_ns"}
    assert "clock" not in document["null_reasons"]


def test_one_rank_says_why_it_has_no_waits_and_what_is_unexplained(
    single: dict[str, Any],
) -> None:
    VALIDATOR.validate(single)
    assert single["clock"] == {"offset_ns": {}, "residual_ns": None}
    assert single["waits"] == {}
    tp = single["axes"]["tp"]
    assert tp["wait_ns"] is tp["busbw_gbps"] is tp["split_pct"] is None
    for key in ("axes.wait_ns", "axes.busbw_gbps", "clock"):
        assert "two ranks" in single["null_reasons"][key]
    assert tp["spec_gbps"] == 450
    assert 0 <= tp["unexplained_ns"] <= tp["comm_ns"]


def test_terminal_names_the_latest_rank_within_80_columns(
    document: dict[str, Any], single: dict[str, Any]
) -> None:
    text = terminal(document)
    assert max(map(len, text.splitlines())) <= 80
    table = text.split("Waiting for other ranks, and links, per step")[1]
    (row,) = [line for line in table.splitlines() if line.startswith("tp ")]
    assert "rank 3:" in row
    assert "clocks of the ranks: largest offset" in text
    assert "Waiting for other ranks" not in terminal(single)


def test_page_shades_waits_and_lists_bandwidth(
    document: dict[str, Any], single: dict[str, Any]
) -> None:
    page = render_html(document)
    waits = page.split('id="waits"')[1].split("</section>")[0]
    assert "heat-5" in waits
    assert "Bus bandwidth by message size" in waits
    assert waits.count("<tr") >= 4 + len(document["busbw"])
    assert 'href="#waits"' in page
    assert 'id="waits"' not in render_html(single)


def test_documents_of_earlier_programs_are_still_rendered(document: dict[str, Any]) -> None:
    """Keys are only ever added: a stored document may lack the newer ones."""
    older = json.loads(json.dumps(document))
    for key in ("waits", "busbw"):
        del older[key]
    for key in ("unmatched", "unmatched_total", "desynchronised"):
        del older["coverage"][key]
    for axis in older["axes"].values():
        for row in (axis, *axis["ops"].values()):
            del row["split_pct"]
            row["wait_ns"] = row["transfer_ns"] = None
    older["clock"] = {"offset_ns": {}, "residual_ns": None}
    assert "Waiting for other ranks" not in terminal(older)
    assert 'id="waits"' not in render_html(older)
