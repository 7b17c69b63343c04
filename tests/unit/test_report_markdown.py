"""The Markdown report: figures, table shape, and foreign text that stays text."""

from __future__ import annotations

import re
from typing import Any

import pytest
from report_fixture import GATES, HOSTILE, make_measurements, make_outcomes, with_hostile_text

from reports.document import build_document
from reports.markdown import code, prose, render_markdown


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    m, activity = make_measurements()
    return build_document(m, make_outcomes(m, activity), GATES)


def test_figures(document: dict[str, Any]) -> None:
    text = render_markdown(document)
    assert text.startswith(
        "## ❌ The largest cost besides compute is exposed tp communication, 15.3 %"
    )
    assert "| exposed tp | 1.170 | 15.3 % |" in text
    assert "| `tp` | 2 | 12 | 192 MiB | 1.170 | 1.170 | 0.0 % | 1.080 | group desc |" in text
    assert "| ❌ FAIL | `max-exposed-comm tp=8%` | 11.4 % |  |" in text
    assert "Worth about 638 us a step (8.3 %)." in text


def test_every_table_row_has_as_many_cells_as_its_head(document: dict[str, Any]) -> None:
    m, activity = make_measurements(ranks=(0,))
    m, outcomes = with_hostile_text(m, make_outcomes(m, activity))
    for text in (render_markdown(document), render_markdown(build_document(m, outcomes, GATES))):
        tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
        assert len(tables) == 3
        for table in tables:
            cells = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
            assert len(cells) == 1, table


def test_prose_cannot_form_markup() -> None:
    escaped = prose(HOSTILE)
    unescaped = re.sub(r"\\.", "", escaped)
    assert not set("<>*`|[]&") & set(unescaped)
    assert "@team" not in escaped
    assert "#\u2060" in prose("step #10")
    assert prose("set_modules of fsdp_tp") == "set_modules of fsdp_tp"
    assert prose("_x_") == r"\_x\_"


@pytest.mark.parametrize("raw", ["plain", "a`b", "``", "`", "x|y", "end`"])
def test_code_spans_close(raw: str) -> None:
    span = code(raw)
    fence = re.match("`+", span).group()  # type: ignore[union-attr]
    inside = span[len(fence) : -len(fence)]
    assert span.endswith(fence)
    assert fence not in re.findall("`+", inside)
    assert inside.strip().replace("\\|", "|") == raw


def test_hostile_text_stays_text() -> None:
    m, activity = make_measurements(ranks=(0,))
    m, outcomes = with_hostile_text(m, make_outcomes(m, activity))
    text = render_markdown(build_document(m, outcomes, GATES))
    outside_code = re.sub(r"(`+).*?\1", "", text)
    assert not re.search(r"(?<!\\)<(?!/?(?:details|summary|sub|br)>)", outside_code)
    assert "\u202e" not in text
    assert "\x1b" not in text


def test_many_findings_are_cut_and_counted(document: dict[str, Any]) -> None:
    text = render_markdown(document | {"findings": document["findings"] * 5})
    assert "- and 5 more" in text


def test_without_a_step(document: dict[str, Any]) -> None:
    text = render_markdown(document | {"step": None, "axes": {}, "findings": [], "gates": []})
    assert text.startswith("## ❔ No verdict")
    assert "where the time goes" not in text
