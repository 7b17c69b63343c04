"""The terminal report at 80 columns, without colour, with hostile text."""

from __future__ import annotations

import io
from typing import Any

import pytest
from report_fixture import GATES, make_measurements, make_outcomes, with_hostile_text
from rich.console import Console

from reports.document import build_document
from reports.terminal import render_terminal


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    m, activity = make_measurements()
    return build_document(m, make_outcomes(m, activity), GATES)


def render(document: dict[str, Any], width: int = 80, **options: Any) -> str:
    buffer = io.StringIO()
    render_terminal(document, Console(file=buffer, width=width, **options))
    return buffer.getvalue()


def test_verdict_comes_first_and_sections_follow(document: dict[str, Any]) -> None:
    text = render(document)
    order = [
        "Verdict", "Why", "Next", "Gates", "Mean step 7.66 ms", "Communication per axis",
        "Ranks with the most", "Findings", "Warnings", "Coverage",
    ]  # fmt: skip
    positions = [text.index(word) for word in order]
    assert positions == sorted(positions)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_fits_the_width(document: dict[str, Any], width: int) -> None:
    assert max(len(line) for line in render(document, width).splitlines()) <= width


def test_no_colour_codes_without_a_terminal(document: dict[str, Any]) -> None:
    assert "\x1b" not in render(document)
    assert "\x1b[" in render(document, force_terminal=True, color_system="standard")


def test_bar_is_proportional_and_full_width(document: dict[str, Any]) -> None:
    bar = next(line for line in render(document).splitlines() if line.startswith("████"))
    step = document["step"]
    assert len(bar) == 80
    for glyph, ns in (
        ("█", step["compute_ns"]),
        ("T", step["exposed_comm_ns"]["tp"]),
        ("S", step["exposed_comm_ns"]["dp_shard"]),
        ("·", sum(step["idle_ns"].values())),
    ):
        assert abs(bar.count(glyph) - 80 * ns / step["time_ns"]) < 2


def test_figures_of_the_tables(document: dict[str, Any]) -> None:
    lines = [" ".join(line.split()) for line in render(document).splitlines()]
    assert "T exposed tp 1.170 15.3 %" in lines
    assert "dp_shard 4 17 736 MiB 3.240 0.180 94.4 % 0.180 group desc" in lines
    assert "3 8.292 6.040 1.980 23.9 % 0.242" in lines
    assert "FAIL max-exposed-comm tp=8% 11.4 %" in lines
    assert "no verdict max-bubble 5% – waits cannot be told from transfers" in lines
    assert "rule ACME01 failed to run: KeyError: 'layer'" in lines


def test_hostile_text_is_shown_not_obeyed() -> None:
    m, activity = make_measurements()
    m, outcomes = with_hostile_text(m, make_outcomes(m, activity))
    text = render(build_document(m, outcomes, GATES), 200)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]x[/bold]" in text  # rich markup stays text
    assert "\\x1b[31m@team" in text


def test_plain_ascii_terminals_get_ascii_bars(document: dict[str, Any]) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="replace")
    render_terminal(document, Console(file=stream, width=80))
    stream.flush()
    bar = next(x for x in raw.getvalue().decode("ascii").splitlines() if x.startswith("####"))
    assert set(bar) == set("#STm.")


def test_no_step_is_said_and_no_table_is_drawn(document: dict[str, Any]) -> None:
    text = render(document | {"step": None, "axes": {}, "per_rank": [], "findings": []})
    assert "No verdict: no step could be measured." in text
    assert "Mean step" not in text
    assert "none" in text
