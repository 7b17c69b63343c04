"""Shared by the interop tests: a labelled rank from a built trace, and where HTA is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import polars as pl
from builders import TraceBuilder

from analyzer.model import LabeledRank, RankTrace
from collectors import open_job

CORPUS = Path(
    os.environ.get("MESHSCOPE_TRACES", Path(__file__).parent.parent.parent / "shared" / "traces")
)


@cache
def hta_python() -> Path | None:
    """The interpreter that has HTA: $MESHSCOPE_HTA_PYTHON, else this one, else none."""
    if named := os.environ.get("MESHSCOPE_HTA_PYTHON"):
        probe = [named, "-c", "import hta"]
        return Path(named) if subprocess.run(probe, capture_output=True).returncode == 0 else None
    return Path(sys.executable) if find_spec("hta") else None


def read(builder: TraceBuilder, directory: Path, name: str = "rank0.json") -> RankTrace:
    """The built trace, through the project's own reader."""
    (trace,) = open_job([builder.write(directory / name)]).ranks
    return trace


def labeled(
    trace: RankTrace,
    windows: Sequence[tuple[int, int]],
    *,
    works: Mapping[str, str] | None = None,
    lane: int = 0,
) -> LabeledRank:
    """``trace`` labelled by hand: step windows in us from ``base_ns``, work by kernel name.

    Names that ``works`` does not list are communication when they begin with ``nccl``, else what
    their kind says. Only the columns that the cross-check reads are there.
    """
    stated = dict(works or {})
    work = [
        stated.get(name) or ("comm" if name.startswith("nccl") else _work(kind))
        for name, kind in trace.device.select("name", "kind").iter_rows()
    ]
    base = trace.meta.base_ns
    starts = [base + start * 1000 for start, _ in windows]
    ends = [base + end * 1000 for _, end in windows]
    steps = pl.DataFrame(
        {
            "index": range(len(windows)),
            "lane": [lane] * len(windows),
            "start_ns": starts,
            "end_ns": ends,
            "kept": [True] * len(windows),
        },
        schema_overrides={"index": pl.Int32, "lane": pl.Int32},
    )
    activity = pl.DataFrame({"event": trace.device["event"], "work": work})
    return LabeledRank(trace, activity, steps, "by hand", host_side=False)


def _work(kind: str) -> str:
    return "compute" if kind == "kernel" else kind
