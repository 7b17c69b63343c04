"""Documentation is true: generated pages in sync, commands and options documented, links live."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main
from tools.docs import pages

from analyzer.cli import app

ROOT = Path(__file__).resolve().parents[2]
CLI_PAGE = (ROOT / "docs" / "cli.md").read_text()
MARKDOWN = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("sample_traces/*.md")]
)


def test_generated_pages_are_in_sync() -> None:
    stale = [str(p.relative_to(ROOT)) for p, text in pages().items() if p.read_text() != text]
    assert stale == [], "run: make docs"


def test_every_command_and_option_of_analyze_is_documented() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    for name in group.commands:
        assert f"`{name}" in CLI_PAGE, name
    for parameter in group.commands["analyze"].params:
        for option in [o for o in parameter.opts if o.startswith("--")]:
            assert f"`{option}" in CLI_PAGE, option


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), target
