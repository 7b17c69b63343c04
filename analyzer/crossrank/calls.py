"""Communication events of all ranks in one table, ready to be matched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from analyzer.groups import P2P_OPS
from analyzer.intervals import IntArray
from analyzer.model import UNKNOWN_AXIS, LabeledRank, Work

UNKNOWN_OP = "other"
NO_GROUP, NO_PEER = "the ranks of its group are not known", "its peer is not known"
KEEP = [
    "rank", "lane", "step", "number", "axis", "op", "group", "group_name", "group_size", "bytes",
    "seq", "src_rank", "dst_rank", "start_ns", "end_ns", "event",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Calls:
    """What all ranks called.

    Attributes:
        collectives: calls on groups whose ranks are known.
        transfers: point-to-point calls, one row a direction: ``src_rank`` sends to ``dst_rank``.
        lone: calls nothing can be matched to, with the ``reason``.
        groups: group key -> sorted ranks.
        traced: ranks whose trace was read.
    """

    collectives: pl.DataFrame
    transfers: pl.DataFrame
    lone: pl.DataFrame
    groups: dict[str, tuple[int, ...]]
    traced: tuple[int, ...]


def calls_of(ranks: Sequence[LabeledRank]) -> Calls:
    """Plain communication of all ranks; kernels that also compute do not show when they wait.

    ``number`` is the step as the job counts it (:func:`step_numbers`), -1 outside every step.
    """
    numbers = step_numbers(ranks)
    frames = [_of_rank(rank, own) for rank, own in zip(ranks, numbers, strict=True)]
    calls = pl.concat(frames)
    keys = calls["group"].drop_nulls().unique().to_list()
    groups = {key: tuple(map(int, key.split(","))) for key in keys if _lists_ranks(key)}
    p2p = pl.col("op").is_in(sorted(P2P_OPS))
    known = pl.col("group").is_in(list(groups))
    collectives = calls.filter(~p2p & known & (pl.col("group_size") > 1))
    transfers = _halves(calls.filter(p2p))
    peerless = calls.filter(p2p).join(transfers, on=["rank", "lane", "event"], how="anti")
    groupless = calls.filter(~p2p & ~known.fill_null(value=False))
    lone = pl.concat(
        frame.with_columns(pl.lit(reason).alias("reason"))
        for frame, reason in ((groupless, NO_GROUP), (peerless, NO_PEER))
    )
    return Calls(collectives, transfers, lone, groups, tuple(rank.trace.rank for rank in ranks))


def _lists_ranks(key: str) -> bool:
    return re.fullmatch(r"\d+(,\d+)+", key) is not None


def _of_rank(rank: LabeledRank, numbers: dict[int, int]) -> pl.DataFrame:
    comm = rank.activity.filter(pl.col("work").cast(pl.String) == Work.COMM.value)
    return comm.with_columns(
        pl.lit(rank.trace.rank, dtype=pl.Int32).alias("rank"),
        pl.col("step").replace_strict(numbers, default=-1, return_dtype=pl.Int64).alias("number"),
        pl.col("axis").cast(pl.String).fill_null(UNKNOWN_AXIS),
        pl.col("op").cast(pl.String).fill_null(UNKNOWN_OP),
        pl.col("group", "group_name").cast(pl.String),
        pl.col("message_bytes").alias("bytes"),
    ).select(KEEP)


def _halves(calls: pl.DataFrame) -> pl.DataFrame:
    """One row a direction: a kernel that sends and receives takes part in two transfers."""
    own = pl.col("rank").cast(pl.Int64)
    sends = calls.filter(pl.col("dst_rank").is_not_null()).with_columns(own.alias("src_rank"))
    receives = calls.filter(
        pl.col("src_rank").is_not_null() & (pl.col("op") != "send")
    ).with_columns(own.alias("dst_rank"))
    return pl.concat([sends.filter(pl.col("op") != "recv"), receives])


def step_numbers(ranks: Sequence[LabeledRank]) -> list[dict[int, int]]:
    """Per rank: ``steps.index`` -> number of the step in the job.

    Captures may begin at different steps. ``ProfilerStep#12`` is numbered by the job itself; other
    steps are counted from the first rank's on, each rank shifted so that their starts lie closest
    in Unix time.
    """
    labels = [_labels(rank) for rank in ranks]
    if all(number is not None for own in labels for number in own.values()):
        return [{k: n for k, n in own.items() if n is not None} for own in labels]
    starts = [_starts(rank) for rank in ranks]
    first = next((own for own in starts if own.size), np.empty(0, dtype=np.int64))
    return [{index: index + _shift(own, first) for index in range(own.size)} for own in starts]


def _labels(rank: LabeledRank) -> dict[int, int | None]:
    rows = rank.steps.select("index", pl.col("label").cast(pl.String)).unique().iter_rows()
    found = {index: re.fullmatch(r"ProfilerStep#(\d+)", label) for index, label in rows}
    return {index: int(match[1]) if match else None for index, match in found.items()}


def _starts(rank: LabeledRank) -> IntArray:
    starts = rank.steps.group_by("index").agg(pl.col("start_ns").min()).sort("index")["start_ns"]
    return starts.to_numpy().astype(np.int64)


def _shift(own: IntArray, other: IntArray) -> int:
    """The k for which ``own[i]`` and ``other[i + k]`` are closest in the median."""
    best, found = None, 0
    for k in range(1 - own.size, other.size):
        size = min(own.size, other.size - k) - max(0, -k)
        at = max(0, -k)
        apart = float(np.median(np.abs(own[at : at + size] - other[at + k : at + k + size])))
        if best is None or (apart, abs(k)) < best:
            best, found = (apart, abs(k)), k
    return found
