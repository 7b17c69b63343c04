"""From gathered rows to the tables of :mod:`analyzer.schema`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from analyzer import schema
from collectors.kineto.categories import Kind, task_kind, track_kind
from collectors.kineto.gather import Gathered, track_id
from collectors.kineto.hygiene import Hygiene, clip_absurd

_KINDS = pl.Enum(["kernel", "memcpy", "memset"])
_MAX_DEVICE = 4096  # a device track's pid is the device index; a real pid is not


@dataclass
class Tables:
    """The tables of one rank and what cleaning them found."""

    device: pl.DataFrame
    comm_args: pl.DataFrame
    launches: pl.DataFrame
    ops: pl.DataFrame
    ranges: pl.DataFrame
    syncs: pl.DataFrame
    memory: pl.DataFrame
    hygiene: Hygiene
    device_processes: set[str]  # names of processes whose tracks hold uncategorised device work


def build_tables(gathered: Gathered, base_ns: int) -> Tables:
    """Build, sort and check all tables. Empties ``gathered``.

    Args:
        gathered: the rows of one trace.
        base_ns: added to every time.
    """
    tracks, device_processes = _tracks(gathered)
    device, place, hygiene = _device(gathered, tracks)
    ops, op_place = _ops(gathered.ops.frame(), tracks.get(Kind.OP))
    comm = [gathered.device_comm.frame(place, "device"), gathered.op_comm.frame(op_place, "op")]
    comm_args = stack(comm).with_columns(pl.col("source").cast(pl.Enum(["device", "op"])))
    launches, _ = ordered(stack([gathered.launches.frame(), tracks.get(Kind.LAUNCH)]), "start_ns")
    syncs = stack([gathered.syncs.frame(), tracks.get(Kind.SYNC)]).with_columns(_sync_name())
    memory, _ = ordered(gathered.memory.frame().rename({"start_ns": "time_ns"}), "time_ns")
    return Tables(
        device=_final(device, schema.DEVICE, base_ns),
        comm_args=schema.conform(comm_args.sort("source", "event"), schema.COMM_ARGS),
        launches=_final(launches, schema.LAUNCHES, base_ns),
        ops=_final(ops, schema.OPS, base_ns),
        ranges=_final(_ranges(gathered, tracks.get(Kind.DEVICE_RANGE)), schema.RANGES, base_ns),
        syncs=_final(ordered(syncs, "start_ns")[0], schema.SYNCS, base_ns),
        memory=_final(memory, schema.MEMORY, base_ns),
        hygiene=hygiene,
        device_processes=device_processes,
    )


def ordered(frame: pl.DataFrame, *by: str) -> tuple[pl.DataFrame, np.ndarray]:
    """Sort stably and say where each row went (``place[old row]`` is the new one).

    Consumes ``frame`` column by column: a sorted copy beside it would double the peak memory.
    """
    order = frame.select(pl.arg_sort_by(*by, maintain_order=True)).to_series()
    columns = [frame.drop_in_place(name).gather(order) for name in frame.columns]
    place = np.empty(len(order), dtype=np.int64)
    place[order.to_numpy()] = np.arange(len(order))
    return pl.DataFrame(columns), place


def stack(frames: Sequence[pl.DataFrame | None]) -> pl.DataFrame:
    """Concatenate frames with differing columns and dictionaries; a lone one stays as it is."""
    present = [f for f in frames if f is not None]
    filled = [f for f in present if f.height] or present[:1]
    if len(filled) == 1:
        dtypes = {name: dtype for f in present for name, dtype in f.schema.items()}
        missing = [n for n in dtypes if n not in filled[0].columns]
        return filled[0].with_columns(pl.lit(None, dtype=dtypes[n]).alias(n) for n in missing)
    plain = [f.with_columns(pl.col(pl.Enum).cast(pl.String)) for f in filled]
    joined = pl.concat(plain, how="diagonal")
    texts = [name for name, dtype in joined.schema.items() if dtype == pl.String]
    return joined.with_columns(_as_enum(joined[name]) for name in texts)


def _as_enum(series: pl.Series) -> pl.Series:
    return series.cast(pl.Enum(series.drop_nulls().unique(maintain_order=True)))


def _final(frame: pl.DataFrame, table: schema.Table, base_ns: int) -> pl.DataFrame:
    times = [name for name in ("start_ns", "end_ns", "time_ns") if name in table.names]
    if base_ns:
        frame = frame.with_columns(pl.col(times) + base_ns)
    return schema.conform(frame, table)


def _device(
    gathered: Gathered, tracks: Mapping[Kind, pl.DataFrame]
) -> tuple[pl.DataFrame, np.ndarray, Hygiene]:
    """The device table, where the gathered rows went in it, and what was clipped."""
    frames = [gathered.device.frame()]
    frames += [
        tracks[kind].with_columns(pl.lit(kind.value).alias("kind"))
        for kind in (Kind.KERNEL, Kind.MEMCPY)
        if kind in tracks
    ]
    device = stack(frames).with_columns(
        pl.coalesce("device", _small(pl.col("pid")), pl.lit(0)).alias("device"),
        pl.coalesce("stream", "tid", pl.lit(-1)).alias("stream"),
        # CUPTI writes graph id 0 for kernels of no graph
        pl.when(pl.col("graph_id") != 0).then("graph_id").alias("graph_id"),
        pl.col("kind").cast(pl.String).cast(_KINDS),
    )
    device, place = ordered(device, "device", "start_ns", "end_ns")
    device, hygiene = clip_absurd(device.with_row_index("event"))
    return device, place, hygiene


def _small(pid: pl.Expr) -> pl.Expr:
    return pl.when((pid >= 0) & (pid < _MAX_DEVICE)).then(pid)


def _ops(ops: pl.DataFrame, from_tracks: pl.DataFrame | None) -> tuple[pl.DataFrame, np.ndarray]:
    frame, place = ordered(stack([ops, from_tracks]), "start_ns")
    return frame.with_row_index("event"), place


def _ranges(gathered: Gathered, from_tracks: pl.DataFrame | None) -> pl.DataFrame:
    sides = pl.Enum(["host", "device"])
    host = gathered.ranges.frame().with_columns(pl.lit("host").cast(sides).alias("side"))
    shadows = stack([gathered.device_ranges.frame(), from_tracks]).with_columns(
        pl.lit("device").cast(sides).alias("side"),
        _small(pl.col("pid")).alias("device"),
        pl.lit(None, dtype=pl.Int64).alias("pid"),
    )
    both = stack([host, shadows]).with_columns(pl.col("side").cast(sides))
    return ordered(both, "start_ns")[0]


def _sync_name() -> pl.Expr:
    """The kind of wait is an argument; the event's name repeats it or is empty."""
    kind, name = pl.col("sync_kind").cast(pl.String), pl.col("name").cast(pl.String)
    return pl.coalesce(pl.when(kind != "").then(kind), name).alias("name")


def _tracks(gathered: Gathered) -> tuple[dict[Kind, pl.DataFrame], set[str]]:
    """Events without a known category, by what their process and thread names say they are."""
    frame = gathered.tracks.frame()
    if frame.is_empty():
        return {}, set()
    kinds: dict[str, Kind] = {}
    devices: dict[str, int] = {}
    on_device = set()
    for track in frame["track"].unique().to_list():
        pid, tid = (track_id(part) for part in track.split("\0", 1))
        process = gathered.process_names.get(pid, "")
        kinds[track] = track_kind(process, gathered.thread_names.get((pid, tid), ""))
        number = re.search(r"[: ](\d+)$", process)
        index = int(number.group(1)) if number else 0
        devices[track] = index if index < _MAX_DEVICE else 0
        if kinds[track] is Kind.KERNEL:
            on_device.add(process)
    names = {n: task_kind(n).value for n in frame["name"].unique().to_list()}
    kernel = pl.col("target") == Kind.KERNEL.value
    frame = frame.with_columns(
        _mapped("track", {t: k.value for t, k in kinds.items()}).alias("target"),
        _mapped("track", devices).cast(pl.Int64).alias("device"),
    ).with_columns(pl.when(kernel).then(_mapped("name", names)).otherwise("target").alias("target"))
    found: dict[Kind, pl.DataFrame] = {}
    for target in frame["target"].unique().to_list():
        kind = Kind(target)
        part = frame.filter(pl.col("target") == target).drop("track", "target")
        if kind is Kind.SKIP:
            gathered.skipped["derived or counter track"] += part.height
        elif kind in (Kind.OP, Kind.LAUNCH):
            found[kind] = part.drop("device")
        else:
            on_track = (pl.col("tid").alias("stream"), pl.col("device").alias("pid"))
            found[kind] = part.with_columns(*on_track, *_absent("graph_id", "bytes"))
    return found, on_device


def _mapped(column: str, values: dict[str, Any]) -> pl.Expr:
    text = pl.col(column).cast(pl.String)
    return text.replace_strict(list(values), list(values.values()))


def _absent(*names: str) -> list[pl.Expr]:
    return [pl.lit(None, dtype=pl.Int64).alias(n) for n in names]
