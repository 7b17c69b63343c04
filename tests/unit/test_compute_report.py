"""Compute figures in every report, from the same document."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from report_fixture import make_measurements
from rich.console import Console

from analyzer.api import Options, analyze
from analyzer.errors import UsageError
from analyzer.measure.results import ComputeFamily, ComputeSummary
from reports import compute
from reports.document import build_document
from reports.html import render_html
from reports.json_ import schema_text
from reports.markdown import render_markdown
from reports.terminal import render_terminal

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "fsdp_tp_healthy"
GEMM = ComputeFamily(
    "gemm", "bf16", 24.0, 8_000_000, 4e12, 8e9, 500.0, 5e14, 989e12, 8e14, 62.5, 40.0
)
LOST = ComputeFamily(
    "attention", None, 4.0, 100_000, None, None, None, None, None, None, None, 0.5
)  # fmt: skip
SUMMARY = ComputeSummary(
    convention="operator shapes", peak_flops_per_s=989e12, peak_dtype="bf16",
    memory_bytes_per_s=3.35e12, model_flops_per_step=3e12, executed_flops_per_step=4e12,
    rerun_flops_per_step=1e12, known_pct=98.8, mfu_pct=15.2, hfu_pct=20.2, families=(GEMM, LOST),
)  # fmt: skip


def document(summary: ComputeSummary | None = SUMMARY, **reasons: str) -> dict[str, Any]:
    m, _ = make_measurements()
    m = dataclasses.replace(m, compute=summary, null_reasons=reasons)
    return build_document(m, (), ())


def terminal(of: dict[str, Any]) -> str:
    out = io.StringIO()
    render_terminal(of, Console(file=out, width=80))
    return out.getvalue()


def test_document_holds_every_figure_and_follows_its_schema() -> None:
    of = document()
    schema = json.loads(schema_text())
    Draft202012Validator(schema).validate(of)
    assert of["mfu_pct"] == 15.2
    part = schema["properties"]["compute"]["anyOf"][0]
    assert set(of["compute"]) == set(part["properties"]) == set(part["required"])
    family = part["properties"]["families"]["items"]
    assert of["compute"]["families"][0] == dataclasses.asdict(GEMM)
    assert set(of["compute"]["families"][0]) == set(family["properties"]) == set(family["required"])
    assert "compute" in schema["required"]
    page = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    for key in (*part["properties"], *family["properties"]):
        assert f"`{key}`" in page, key


def test_without_compute_everything_is_null_and_nothing_is_shown() -> None:
    of = document(None, mfu_pct="no matmul")
    Draft202012Validator(json.loads(schema_text())).validate(of)
    assert (of["compute"], of["mfu_pct"], of["null_reasons"]["mfu_pct"]) == (
        None,
        None,
        "no matmul",
    )
    assert not compute.is_shown(of)
    for report in (terminal(of), render_markdown(of), render_html(of)):
        assert "989" not in report
        assert "MFU not given" not in report


def test_terminal_and_markdown_say_the_same() -> None:
    of = document()
    shown, markdown = terminal(of), render_markdown(of)
    assert "MFU 15.2 %, HFU 20.2 % of 989 TFLOP/s dense bf16" in shown
    assert re.search(r"gemm +bf16 +8\.000 +40\.0 % +4\.00 +500 +800 +62\.5 %", shown)
    assert re.search(r"attention +– +0\.100 +0\.5 % +– +– +– +–", shown)
    assert max(map(len, shown.splitlines())) <= 80
    assert "| gemm | bf16 | 8.000 | 40.0 % | 4.00 | 500 | 800 | 62.5 % |" in markdown
    assert "MFU 15.2 %, HFU 20.2 %" in markdown


def test_a_missing_mfu_gives_its_reason() -> None:
    lost = dataclasses.replace(SUMMARY, mfu_pct=None, hfu_pct=None)
    assert compute.headline(document(lost, mfu_pct="no peak")) == "MFU not given: no peak"


def points(page: str) -> list[tuple[float, float]]:
    found = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', page)
    return [(float(x), float(y)) for x, y in found]


def test_roofline_plot_puts_points_where_they_belong() -> None:
    """A family at its roofline lies on the drawn roof, the others below it."""
    slope = dataclasses.replace(GEMM, intensity=100.0, achieved_flops_per_s=3.35e14)
    flat = dataclasses.replace(GEMM, intensity=1000.0, achieved_flops_per_s=989e12)
    page = render_html(document(dataclasses.replace(SUMMARY, families=(GEMM, slope, flat, LOST))))
    lines = re.findall(
        r'<line x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)" class="roof">', page
    )
    x1, y1, x2, y2 = map(float, lines[0])
    below, on_slope, on_flat = points(page)
    assert y1 + (on_slope[0] - x1) / (x2 - x1) * (y2 - y1) == pytest.approx(on_slope[1], abs=0.3)
    assert on_flat[1] == pytest.approx(y2, abs=0.1)
    assert below[1] > y2
    assert x1 < on_slope[0] < x2 < on_flat[0]
    assert '<section id="compute"' in page
    assert "gemm bf16: 500 FLOP/byte, 500 TFLOP/s" in page  # in words, for who cannot see it
    assert 'href="#compute"' in page


def test_without_a_device_there_is_a_table_and_no_plot() -> None:
    host = dataclasses.replace(
        GEMM, peak_flops_per_s=None, roofline_flops_per_s=None, efficiency_pct=None
    )
    summary = dataclasses.replace(
        SUMMARY, families=(host,), memory_bytes_per_s=None, mfu_pct=None, peak_flops_per_s=None
    )
    page = render_html(document(summary, mfu_pct="a CPU trace"))
    assert "MFU not given: a CPU trace" in page
    assert points(page) == []
    assert "<td>gemm</td>" in page


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "–"), (0.0, "0.00"), (4e12, "4.00"), (989e12, "989"), (2.25e15, "2,250"),
        (3.57e10, "0.04"), (3.5e9, "0.004"), (2e7, "<0.0001"),
    ],
)  # fmt: skip
def test_tera(value: float | None, written: str) -> None:
    assert compute.tera(value) == written


def test_a_stated_model_gives_the_mfu_of_a_sample_without_shapes() -> None:
    stated = Options(model="llama3-8b", tokens_per_step=1024, sequence=4096, timeline=False)
    result = analyze(SAMPLE, options=stated)
    of, c = result.document, result.document["compute"]
    seconds = of["step"]["time_ns"] * 1e-9
    assert of["mfu_pct"] == pytest.approx(
        100 * c["model_flops_per_step"] / (seconds * c["peak_flops_per_s"])
    )
    assert c["convention"] == "megatron: LLaMA-3 8B, 4096 tokens a sequence"
    assert c["hfu_pct"] is None
    assert "record_shapes" in of["null_reasons"]["compute.hfu_pct"]
    with pytest.raises(UsageError, match="need --model"):
        analyze(SAMPLE, options=Options(sequence=4096))
