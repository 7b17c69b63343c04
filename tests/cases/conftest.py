"""Fixtures of the public cases: a job from builders through the whole pipeline, and the CLI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import TraceBuilder
from case_helpers import Cli, check

from analyzer.api import Analysis, analyze


@pytest.fixture
def run_cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


@pytest.fixture
def analyse(tmp_path: Path) -> Callable[..., Analysis]:
    """Write one file a rank and analyse them as one job."""

    def run(*ranks: TraceBuilder | bytes, **options: Any) -> Analysis:
        for number, rank in enumerate(ranks):
            data = rank.json() if isinstance(rank, TraceBuilder) else rank
            (tmp_path / f"trace_{number}.json").write_bytes(data)
        analysis = analyze(tmp_path, **options)
        check(analysis.document)
        return analysis

    return run
