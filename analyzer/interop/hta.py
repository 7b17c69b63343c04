"""Our tables as an HTA ``TraceAnalysis`` (extra ``hta``): its analyses without its parser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from analyzer.errors import MissingExtraError
from analyzer.interop.pandas import import_pandas, to_pandas
from analyzer.intervals import IntArray
from analyzer.model import Job, RankTrace

if TYPE_CHECKING:
    import pandas as pd

_KIND_CATEGORY = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
_SIDE_CATEGORY = {"host": "user_annotation", "device": "gpu_user_annotation"}
_DRIVER_CALL = r"^cu[A-Z]"  # cuLaunchKernel and its like; cudaLaunchKernel is runtime
_STEP_NUMBER = r"ProfilerStep\s*#\s*(\d+)"
_ARGUMENTS = ("pid", "tid", "stream", "correlation", "external_id", "bytes")
"""Integer columns of HTA's frames; -1 stands for "none"."""


def to_hta(job: Job, *, include_last_profiler_step: bool = False) -> Any:
    """Hand a job to HTA.

    Args:
        job: What :func:`collectors.open_job` read.
        include_last_profiler_step: As in HTA's ``TraceAnalysis``: by default HTA drops what the
            last ProfilerStep launched.

    Returns:
        ``hta.trace_analysis.TraceAnalysis``, loaded: one DataFrame a rank with HTA's columns index,
        ts, dur, end (us), name, cat (symbol ids), pid, tid, stream, correlation,
        index_correlation, external_id, bytes and iteration, aligned and filtered by HTA itself.
        Times are float us from the job's first event, so nanoseconds survive, and HTA's rounding
        to whole microseconds does not apply. Not carried over: Python frames, operator shapes,
        collective arguments and flows; analyses that read the raw file again (overlays) do not
        work.

    Raises:
        MissingExtraError: HTA or pandas is not installed.
    """
    import_pandas()
    try:
        from hta.common.trace import Trace
        from hta.trace_analysis import TraceAnalysis
    except ModuleNotFoundError as error:
        message = "HolisticTraceAnalysis is not installed"
        raise MissingExtraError(message, "pip install 'meshscope[hta]'") from error
    rows = {rank.rank: _events(rank) for rank in job.ranks}
    symbols = _symbols(list(rows.values()))
    origin_ns = min(int(table["start_ns"].min()) for table in rows.values())  # type: ignore[arg-type]
    trace = Trace(trace_files={})
    trace.symbol_table.add_symbols(symbols)
    trace.trace_files = {rank.rank: rank.meta.path for rank in job.ranks}
    trace.meta_data = {rank.rank: _metadata(rank, origin_ns) for rank in job.ranks}
    trace.traces = {rank: _frame(table, symbols, origin_ns) for rank, table in rows.items()}
    trace.align_and_filter_trace(include_last_profiler_step)
    for rank, frame in trace.traces.items():
        trace.traces[rank] = frame.set_index("index", drop=False).rename_axis(None)
    trace.is_parsed = True
    analysis = TraceAnalysis.__new__(TraceAnalysis)  # its __init__ would parse files
    analysis.t = trace
    return analysis


def _events(rank: RankTrace) -> pl.DataFrame:
    """All events of one rank in one table: start_ns, end_ns, name, cat, :data:`_ARGUMENTS`."""

    def rows(table: pl.DataFrame, category: pl.Expr, *, side: str, **renamed: str) -> pl.DataFrame:
        own = {name: name for name in _ARGUMENTS if name in table.columns} | renamed
        return table.select(
            "start_ns", "end_ns",
            name=pl.col("name").cast(pl.String),
            cat=category,
            side=pl.lit(side),
            **{
                name: pl.col(own[name]).cast(pl.Int64).fill_null(-1) if name in own else pl.lit(-1)
                for name in _ARGUMENTS
            },
        )  # fmt: skip

    driver = pl.col("name").cast(pl.String).str.contains(_DRIVER_CALL)
    runtime = pl.when(driver).then(pl.lit("cuda_driver")).otherwise(pl.lit("cuda_runtime"))
    side = pl.col("side").cast(pl.String).replace_strict(_SIDE_CATEGORY)
    kind = pl.col("kind").cast(pl.String).replace_strict(_KIND_CATEGORY)
    return pl.concat(
        [
            rows(rank.ops, pl.lit("cpu_op"), side="host"),
            rows(rank.ranges, side, side="host"),
            rows(rank.launches, runtime, side="host"),
            rows(rank.device, kind, side="device", pid="device", tid="stream"),
            rows(rank.syncs, pl.lit("cuda_sync"), side="device", tid="stream"),
        ],
        how="vertical_relaxed",
    )


def _symbols(tables: list[pl.DataFrame]) -> list[str]:
    texts = [table[column].alias("symbol") for table in tables for column in ("name", "cat")]
    return pl.concat(texts).unique(maintain_order=True).to_list()


def _frame(rows: pl.DataFrame, symbols: list[str], origin_ns: int) -> pd.DataFrame:
    """One rank's table with HTA's columns, before HTA aligns and filters it."""
    number = pl.Enum(symbols)
    start, end = pl.col("start_ns"), pl.col("end_ns")
    # Counted from 1: an index_correlation of 0 means "launched, but not in the trace".
    events = rows.with_row_index("index", offset=1).with_columns(pl.col("index").cast(pl.Int64))
    links = _links(events)
    iteration = _iterations(events, links)
    return to_pandas(
        events.select(
            "index",
            pl.col("cat", "name").cast(number).to_physical().cast(pl.Int64),
            *_ARGUMENTS,
            ts=(start - origin_ns) / 1000,
            dur=(end - start) / 1000,
            end=(end - origin_ns) / 1000,
            index_correlation=pl.Series(links),
            iteration=pl.Series(iteration),
        )
    )


def _links(events: pl.DataFrame) -> IntArray:
    """``index_correlation``: index of the launch or of the launched, 0 without partner, else -1."""
    linkable = events.filter(pl.col("correlation") >= 0)
    host = linkable.filter(pl.col("side") == "host")
    device = linkable.filter(pl.col("side") == "device")
    pairs = host.join(device, on="correlation", suffix="_device")
    links: IntArray = np.minimum(events["correlation"].to_numpy(), 0)
    links[pairs["index"].to_numpy() - 1] = pairs["index_device"].to_numpy()
    links[pairs["index_device"].to_numpy() - 1] = pairs["index"].to_numpy()
    return links


def _iterations(events: pl.DataFrame, links: IntArray) -> IntArray:
    """ProfilerStep number of every event: by time on the host, by launch on the device, else -1."""
    starts = events["start_ns"].to_numpy()
    found = np.full(starts.size, -1, dtype=np.int64)
    steps = events.select(
        "start_ns", "end_ns", number=pl.col("name").str.extract(_STEP_NUMBER).cast(pl.Int64)
    ).drop_nulls()
    for start, end, number in steps.iter_rows():  # few, and HTA lets the last one win
        found[(starts >= start) & (starts < end)] = number
    on_device = (events["side"] == "device").to_numpy()
    linked = np.where(links > 0, found[links - 1], -1)
    return np.where(on_device, linked, found)


def _metadata(rank: RankTrace, origin_ns: int) -> dict[str, Any]:
    meta = rank.meta
    distributed = {"backend": meta.backend, "rank": rank.rank, "world_size": meta.world_size}
    return {
        "baseTimeNanoseconds": origin_ns,  # of ts = 0 in these frames
        "distributedInfo": distributed,
        "deviceProperties": [{"name": name} for name in meta.device_names],
    }
