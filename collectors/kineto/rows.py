"""Rows of each kind of event, gathered column by column while the file streams past."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import polars as pl

from collectors.kineto.columns import IntColumn, TextColumn, TimeColumn, as_text
from collectors.kineto.events import Args, Event, args_of

# column -> the args it comes from, the first that is present counts
Fields = Mapping[str, tuple[str, ...]]

_EXTERNAL = ("external_id", "external_id_old")

COMM_INTS: Fields = {
    "in_nelems": ("in_nelems", "in_nelems_old"),
    "out_nelems": ("out_nelems", "out_nelems_old"),
    "group_size": ("group_size",),
    "seq": ("seq",),
    "comms_id": ("comms_id",),
    "src_rank": ("src_rank",),
    "dst_rank": ("dst_rank",),
    "peer": ("peer",),
    "rank_start": ("rank_start",),
    "rank_stride": ("rank_stride",),
}
COMM_TEXTS: Fields = {
    "collective": ("collective",),
    "dtype": ("dtype",),
    "group_name": ("group_name", "group_id_old"),
    "group_desc": ("group_desc",),
    "group_ranks": ("group_ranks",),
    "in_split": ("in_split",),
    "out_split": ("out_split",),
}
# an event with any of these has collective arguments
_COMM_EVIDENCE = (
    "collective",
    "group_name",
    "group_size",
    "in_nelems",
    "in_nelems_old",
    "comms_id",
)

_WRAPPED = ("comms_id", "address")
_EMBEDDED = ("pid", "tid", "stream")
_NARROW = ("device", "device_type")
_MAX_INT32 = 2**31 - 1
# peers and splits; causal masks; strides
_CONCRETE = ("c10d", "attention", "flash_attn", "convolution")


class Rows:
    """One growing table.

    Args:
        ints: integer columns and the arguments they come from.
        raws: columns that keep an argument's JSON text.
        texts: text columns.
        comm: gather collective arguments (see :class:`CommRows`).
        tag: a text column more: ``kind`` (of event), or ``track`` (``pid`` NUL ``tid``).
    """

    def __init__(
        self,
        ints: Fields,
        raws: Fields | None = None,
        texts: Fields | None = None,
        *,
        comm: CommRows | None = None,
        tag: str = "",
    ) -> None:
        self.count = 0
        self._fields = {**ints, **(raws or {}), **(texts or {})}
        self._start, self._end, self._name = TimeColumn(), TimeColumn(), TextColumn()
        self._ints = {c: int_column(c) for c in (*ints, "pid", "tid")}
        self._raws = {c: TextColumn() for c in raws or {}}
        self._texts = {c: TextColumn() for c in texts or {}}
        self._tag, self._tags = tag, TextColumn()
        self._comm = comm

    def extend(
        self, events: Sequence[Event], start: np.ndarray, end: np.ndarray, kind: str = ""
    ) -> None:
        """Append complete events with their times in ns."""
        self._start.append(start)
        self._end.append(end)
        names, pids, tids = zip(*map(attrgetter("name", "pid", "tid"), events), strict=True)
        if set(map(type, names)) != {str}:
            names = tuple("" if n is None else as_text(n) for n in names)
        self._name.extend(names)
        self._ints["pid"].extend(pids)
        self._ints["tid"].extend(tids)
        if self._tag == "track":
            self._tags.extend([f"{p}\0{t}" for p, t in zip(pids, tids, strict=True)])
        elif self._tag:
            self._tags.extend([kind] * len(events))
        args = list(map(args_of, events))
        for column, values in columns_of(args, self._fields).items():
            if column == "concrete_inputs":
                self._raws[column].extend_raw(_of_few(names, values))
            elif column in self._ints:
                self._ints[column].extend(values)
            elif column in self._raws:
                self._raws[column].extend_raw(values)
            else:
                self._texts[column].extend(values)
        if self._comm is not None:
            self._comm.extend(args, self.count)
        self.count += len(events)

    def frame(self) -> pl.DataFrame:
        """The table, with ``start_ns``, ``end_ns`` and ``name`` first; gives up its storage."""
        columns = [
            pl.Series("start_ns", self._start.array()),
            pl.Series("end_ns", self._end.array()),
            self._name.series("name"),
        ]
        for group in (self._ints, self._raws, self._texts):
            columns += [column.series(name) for name, column in group.items()]
        if self._tag:
            columns.append(self._tags.series(self._tag))
        return pl.DataFrame(columns)

    def count_bad(self, into: Counter[str]) -> None:
        """Add the values that should be integers and are not to a report."""
        count_bad(self._ints, into)


class CommRows:
    """Collective arguments of the events of one table, one row an event that has any."""

    def __init__(self) -> None:
        self._event = TimeColumn()
        self._ints = {c: int_column(c) for c in COMM_INTS}
        self._texts = {c: TextColumn() for c in COMM_TEXTS}

    def extend(self, args: Sequence[Args], first: int) -> None:
        """Append the rows of ``args`` that have collective arguments; ``first`` is its row id."""
        evidence = list(zip(*map(attrgetter(*_COMM_EVIDENCE), args), strict=True))
        present = [values for values in evidence if values.count(None) < len(args)]
        if not present:
            return
        found = {i for values in present for i, v in enumerate(values) if v is not None}
        rows = sorted(found)
        chosen = [args[i] for i in rows]
        self._event.append(np.array(rows, dtype=np.int64) + first)
        for column, values in columns_of(chosen, {**COMM_INTS, **COMM_TEXTS}).items():
            target = self._ints[column] if column in self._ints else self._texts[column]
            target.extend(values)

    def frame(self, place: np.ndarray, source: str) -> pl.DataFrame:
        """The table; ``place[row id]`` is the event id after sorting."""
        events = place[self._event.array()]
        columns = [pl.Series("event", events, dtype=pl.Int64)]
        columns += [c.series(n) for n, c in self._ints.items()]
        columns += [c.series(n) for n, c in self._texts.items()]
        return pl.DataFrame(columns).with_columns(pl.lit(source).alias("source"))

    def count_bad(self, into: Counter[str]) -> None:
        """Add the values that should be integers and are not to a report."""
        count_bad(self._ints, into)


def _of_few(names: Sequence[str], values: Sequence[Any]) -> Sequence[Any]:
    """Of few operators the concrete inputs are used (_CONCRETE); the rest is bulk."""
    texts = list(map(str, names))  # a damaged name may be anything, also what cannot be hashed
    wanted = {n for n in set(texts) if any(part in n for part in _CONCRETE)}
    if not wanted:
        return (None,) * len(values)
    return [v if n in wanted else None for n, v in zip(texts, values, strict=True)]


def int_column(name: str) -> IntColumn:
    """An integer column with the leniency its meaning needs."""
    limit = _MAX_INT32 if name in _NARROW else None
    return IntColumn(wrap=name in _WRAPPED, embedded=name in _EMBEDDED, limit=limit)


def count_bad(columns: Mapping[str, IntColumn], into: Counter[str]) -> None:
    """Add the values that should be integers and are not to a report."""
    for name, column in columns.items():
        if column.bad:
            into[f"unusable {name} left empty"] += column.bad


def columns_of(args: Sequence[Args], fields: Fields) -> dict[str, tuple[Any, ...]]:
    """Values of each column over all rows; aliases are tried where the first is missing."""
    names = list(dict.fromkeys(a for aliases in fields.values() for a in aliases))
    if not names:
        return {}
    getter = attrgetter(*names)
    if len(names) == 1:
        by_name: dict[str, tuple[Any, ...]] = {names[0]: tuple(map(getter, args))}
    else:
        by_name = dict(zip(names, zip(*map(getter, args), strict=True), strict=True))
    columns = {}
    for column, aliases in fields.items():
        values = by_name[aliases[0]]
        for alias in aliases[1:]:
            other = by_name[alias]
            if None in values and other.count(None) < len(other):
                pairs = zip(values, other, strict=True)
                values = tuple(o if v is None else v for v, o in pairs)
        columns[column] = values
    return columns


def op_rows(comm: CommRows) -> Rows:
    """Host operators."""
    ints: Fields = {"external_id": _EXTERNAL, "sequence": ("sequence",), "fwd_tid": ("fwd_tid",)}
    raws: Fields = {
        "input_dims": ("input_dims", "input_dims_old"),
        "input_types": ("input_types",),
        "concrete_inputs": ("concrete_inputs",),
    }
    return Rows(ints, raws, comm=comm)


def range_rows() -> Rows:
    """User annotations."""
    return Rows(
        {}, {"input_dims": ("input_dims", "input_dims_old"), "input_types": ("input_types",)}
    )


def launch_rows() -> Rows:
    """Runtime and driver calls."""
    return Rows({"correlation": ("correlation",), "external_id": _EXTERNAL})


def device_rows(comm: CommRows) -> Rows:
    """Kernels, copies and memsets."""
    ints: Fields = {
        "device": ("device",),
        "stream": ("stream",),
        "correlation": ("correlation",),
        "external_id": _EXTERNAL,
        "graph_id": ("graph_id",),
        "bytes": ("bytes", "size"),
    }
    return Rows(ints, comm=comm, tag="kind")


def sync_rows() -> Rows:
    """Waits on device tracks."""
    ints: Fields = {
        "stream": ("stream",),
        "correlation": ("correlation",),
        "wait_on_stream": ("wait_on_stream",),
        "wait_on_correlation": ("wait_on_correlation",),
    }
    return Rows(ints, texts={"sync_kind": ("sync_kind",)})


def memory_rows() -> Rows:
    """Allocator events."""
    ints: Fields = {
        "address": ("address",),
        "bytes": ("memory_bytes",),
        "device_type": ("device_type",),
        "device": ("device_id",),
        "total_allocated": ("total_allocated",),
        "total_reserved": ("total_reserved",),
    }
    return Rows(ints)


def track_rows() -> Rows:
    """Events whose table is known only when all track names are."""
    return Rows(
        {"correlation": ("correlation", "connection_id"), "external_id": _EXTERNAL}, tag="track"
    )
