from __future__ import annotations

import sys
from dataclasses import replace

import polars as pl
import pytest
from builders import TraceBuilder
from interop_helpers import read

from analyzer.errors import MissingExtraError
from analyzer.interop.pandas import to_pandas
from analyzer.model import Job
from analyzer.schema import TRACE_TABLES

ABOVE_FLOAT = 2**53 + 1  # float64 would round it


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"meshscope\[pandas\]"):
        to_pandas(pl.DataFrame({"a": [1]}))


def test_columns_keep_their_values_and_types():
    pd = pytest.importorskip("pandas")
    made = to_pandas(
        pl.DataFrame(
            {
                "whole": [1, ABOVE_FLOAT],
                "holes": [None, ABOVE_FLOAT],
                "name": ["gemm", None],
                "coded": pl.Series(["a", "b"], dtype=pl.Enum(["b", "a", "unused"])),
                "yes": [True, None],
                "share": [0.5, None],
                "sizes": [[1, 2], []],
            },
            schema_overrides={"holes": pl.Int64},
        )
    )
    assert made["whole"].tolist() == [1, ABOVE_FLOAT]
    assert made["whole"].dtype == "int64"
    assert made["holes"].dtype == "Int64"
    assert pd.isna(made["holes"][0])
    assert made["holes"][1] == ABOVE_FLOAT
    assert isinstance(made["name"].dtype, pd.CategoricalDtype)
    assert made["name"][0] == "gemm"
    assert pd.isna(made["name"][1])
    assert made["coded"].tolist() == ["a", "b"]
    assert list(made["coded"].cat.categories) == ["a", "b"]
    assert made["yes"].dtype == "boolean"
    assert made["share"].isna().tolist() == [False, True]
    assert made["sizes"].tolist() == [[1, 2], []]


def test_an_empty_table_keeps_its_columns():
    pytest.importorskip("pandas")
    for table in TRACE_TABLES:
        made = to_pandas(table.empty())
        assert list(made.columns) == table.names
        assert len(made) == 0


def two_ranks(tmp_path) -> Job:
    traces = []
    for rank in (0, 1):
        built = TraceBuilder(rank=rank, world_size=2)
        built.kernel(f"gemm_{rank}", 100, "20.125", op="aten::mm")
        built.collective("all_reduce", 130, 10, group="0", nelems=64)
        traces.append(read(built, tmp_path, f"rank{rank}.json"))
    return Job(tuple(traces))


def test_a_trace_yields_every_table(tmp_path):
    pytest.importorskip("pandas")
    trace = two_ranks(tmp_path).ranks[0]
    frames = to_pandas(trace)
    assert list(frames) == [table.name for table in TRACE_TABLES]
    for table in TRACE_TABLES:
        assert list(frames[table.name].columns) == table.names
        assert len(frames[table.name]) == getattr(trace, table.name).height
    device = frames["device"]
    assert (device["end_ns"] - device["start_ns"]).tolist() == [20_125, 10_000]
    assert device["name"].tolist()[0] == "gemm_0"


def test_a_job_yields_all_ranks(tmp_path):
    pytest.importorskip("pandas")
    job = two_ranks(tmp_path)
    device = to_pandas(job)["device"]
    assert device["rank"].tolist() == [0, 0, 1, 1]
    assert device["name"][device["rank"] == 1].tolist()[0] == "gemm_1"
    anonymous = replace(job.ranks[0], meta=replace(job.ranks[0].meta, rank=None))
    assert to_pandas(Job((anonymous,)))["device"]["rank"].tolist() == [0, 0]
