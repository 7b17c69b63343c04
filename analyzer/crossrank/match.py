"""The same collective on every member rank.

A process group runs its collectives in one order on all members. Where the trace numbers them
(``Seq``), equal numbers of a group are one collective. Else they are counted within each step, and
counting is checked: kinds and sizes must agree and the members must leave together; a block of a
rank that fails is paired by time (:mod:`analyzer.crossrank.resync`), so that a capture that begins
later or lacks a call costs that call alone. Transfers are counted per sender and receiver in the
same way.

Calls at one position whose kinds or sizes disagree are listed as desynchronised and never paired.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from analyzer import schema
from analyzer.crossrank.calls import Calls
from analyzer.crossrank.graph import solve
from analyzer.crossrank.resync import align, tolerance_ns
from analyzer.groups import P2P_OPS
from analyzer.intervals import IntArray

SAME_SIZE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", *P2P_OPS)
"""Operations of which every member has the same S; splits of others may differ."""
BLOCK = ["communicator", "rank", "number"]
P2P_KIND, ALL_TO_ALL = "transfer", "all_to_all"
MOST_UNPAIRED = 0.1  # share of calls that pairing by time may leave out where counts agree
TRUSTED_NS = 100_000  # blocks whose ends scatter less are paired by counting


@dataclass(frozen=True, slots=True)
class Matched:
    """schema.INSTANCES and schema.DESYNCHRONISED."""

    instances: pl.DataFrame
    desynchronised: pl.DataFrame


def match(calls: Calls) -> Matched:
    """Number the collectives and transfers of all ranks so that equal numbers are one instance."""
    collectives = _with_communicator(calls.collectives).with_columns(
        pl.col("op").replace("all_to_allv", ALL_TO_ALL).alias("kind"),
        pl.col("group_size").alias("expected"),
        pl.col("group")
        .replace_strict(_traced_members(calls), return_dtype=pl.Int32, default=0)
        .alias("traced"),
    )
    pairs = _numbered(calls.transfers, ["group", "src_rank", "dst_rank"], "communicator")
    traced = [pl.col(side).is_in(list(calls.traced)).cast(pl.Int32) for side in _SIDES]
    transfers = pairs.with_columns(
        (pl.col("communicator") + collectives["communicator"].n_unique()).cast(pl.UInt32),
        pl.lit(P2P_KIND).alias("kind"),
        pl.lit(2, dtype=pl.Int64).alias("expected"),
        pl.lit(None, dtype=pl.Int64).alias("seq"),
        (traced[0] + traced[1]).alias("traced"),
    )
    everything = pl.concat([collectives, transfers.select(collectives.columns)])
    numbered = pl.col("seq").is_not_null().all().over("communicator")
    positioned = pl.concat(
        [_by_sequence(everything.filter(numbered)), _by_order(everything.filter(~numbered))]
    )
    return _instances(_numbered(positioned, ["communicator", "number", "position"], "instance"))


_SIDES = ("src_rank", "dst_rank")


def _traced_members(calls: Calls) -> dict[str, int]:
    traced = set(calls.traced)
    return {key: sum(rank in traced for rank in ranks) for key, ranks in calls.groups.items()}


def _numbered(frame: pl.DataFrame, keys: list[str], name: str) -> pl.DataFrame:
    """``frame`` with a number for each distinct combination of ``keys``."""
    distinct = frame.select(keys).unique(maintain_order=True).with_row_index(name)
    return frame.join(distinct, on=keys, how="left", nulls_equal=True, maintain_order="left")


def _with_communicator(calls: pl.DataFrame) -> pl.DataFrame:
    """Tell process groups over the same ranks apart.

    Their names are counters of each process: equal where all members created the same groups,
    else the order of creation identifies a group.
    """
    name = pl.col("group_name").fill_null("")
    names = (
        calls.select("rank", "group", name)
        .unique()
        .sort("rank", "group", pl.col("group_name").cast(pl.Int64, strict=False), "group_name")
        .with_columns(pl.int_range(pl.len()).over("rank", "group").alias("turn"))
    )
    spelled = (
        names.group_by("group", "rank")
        .agg(pl.col("group_name").str.join("\n"))
        .group_by("group")
        .agg((pl.col("group_name").n_unique() == 1).alias("agree"))
    )
    told = names.join(spelled, on="group").with_columns(
        pl.when("agree").then("group_name").otherwise(pl.col("turn").cast(pl.String)).alias("told")
    )
    keyed = calls.with_columns(name).join(
        told.select("rank", "group", "group_name", "told"),
        on=["rank", "group", "group_name"], how="left", maintain_order="left",
    )  # fmt: skip
    return _numbered(keyed, ["group", "told"], "communicator").drop("told")


def _by_sequence(calls: pl.DataFrame) -> pl.DataFrame:
    """Position by sequence number; parts of one call (copy-engine copies) become one row."""
    whole = ["communicator", "rank", "lane", "seq"]
    if calls.select(whole).is_duplicated().any():
        others = [name for name in calls.columns if name not in (*whole, "start_ns", "end_ns")]
        calls = (
            calls.group_by(whole, maintain_order=True)
            .agg(pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col(others).first())
            .select(calls.columns)
        )
    return calls.with_columns(
        pl.lit(0, dtype=pl.Int64).alias("number"),
        pl.col("seq").alias("position"),
        pl.lit("sequence").alias("matched"),
    )


# ---- by order -----------------------------------------------------------------------------------


def _by_order(calls: pl.DataFrame) -> pl.DataFrame:
    """Position by counting within (communicator, rank, step), by time where that fails."""
    size = pl.when(pl.col("kind") != ALL_TO_ALL).then("bytes").alias("_size")
    placed = _numbered(calls.with_columns(size), ["kind", "_size"], "code")
    placed = placed.sort(*BLOCK, "start_ns", "end_ns").with_columns(
        pl.int_range(pl.len()).over(BLOCK).alias("position"), pl.lit("order").alias("matched")
    )
    blocks = _blocks(placed)
    suspects = blocks.filter(~pl.col("sound"))
    if suspects.height:
        placed = _resynchronised(placed, suspects)
    return placed.drop("_size", "code")


def _blocks(placed: pl.DataFrame) -> pl.DataFrame:
    """Every block beside the reference of its communicator and step: the fullest, lowest rank.

    ``expected_ns`` is how far the block's clock is behind the reference's, by all blocks whose
    kinds and sizes agree. A block is ``sound`` when its own do and its ends lie where expected;
    ends of transfers tell nothing, since a sender may be done long before.
    """
    counts = placed.group_by(BLOCK).agg(pl.len().alias("count"), pl.col("end_ns").alias("ends"))
    reference = (
        counts.sort("count", "rank", descending=[True, False])
        .group_by("communicator", "number", maintain_order=True)
        .agg(pl.col("rank").first().alias("reference"))
    )
    beside = placed.join(reference, on=["communicator", "number"]).join(
        placed.select(
            "communicator", "number", "position", pl.col("rank").alias("reference"),
            pl.col("end_ns").alias("other_ns"), pl.col("code").alias("other_code"),
        ),
        on=["communicator", "number", "position", "reference"], how="left",
    )  # fmt: skip
    apart = pl.col("end_ns") - pl.col("other_ns")
    compared = (
        beside.group_by(*BLOCK, "reference")
        .agg(
            (pl.col("code") == pl.col("other_code")).all().alias("alike"),
            apart.median().alias("apart_ns"),
            (apart - apart.median()).abs().median().alias("scatter_ns"),
            pl.len().alias("count"),
            (pl.col("kind") == P2P_KIND).all().alias("transfer"),
            pl.col("end_ns"),
        )
        .filter(pl.col("rank") != pl.col("reference"))
    )
    full = counts.select("communicator", "number", pl.col("rank").alias("reference"),
                         pl.col("count").alias("full"))  # fmt: skip
    compared = compared.join(full, on=["communicator", "number", "reference"])
    compared = compared.with_columns(
        (pl.col("alike") & (pl.col("count") == pl.col("full"))).alias("alike"),
        pl.Series(
            "allowed_ns", [tolerance_ns(e.to_numpy()) for e in compared["end_ns"]], dtype=pl.Int64
        ),
    ).drop("end_ns")
    compared = compared.with_columns(_expected(compared))
    near = (pl.col("apart_ns") - pl.col("expected_ns")).abs() <= pl.col("allowed_ns")
    steady = pl.col("scatter_ns") <= pl.max_horizontal("allowed_ns", TRUSTED_NS)
    timely = pl.col("transfer") | (near & steady)
    return compared.with_columns((pl.col("alike") & timely).alias("sound"))


def _expected(compared: pl.DataFrame) -> pl.Series:
    """Clock differences that most blocks agree on; 0 (Unix time) between ranks that none joins."""
    ranks = np.unique(compared.select("rank", "reference").to_numpy())
    clean = compared.filter(pl.col("alike") & ~pl.col("transfer"))
    a, b = (np.searchsorted(ranks, clean[name].to_numpy()) for name in ("reference", "rank"))
    offsets = solve(
        ranks.size, a, b, clean["apart_ns"].to_numpy().astype(float),
        clean["count"].to_numpy().astype(float),
    )  # fmt: skip
    at = [np.searchsorted(ranks, compared[name].to_numpy()) for name in ("rank", "reference")]
    return pl.Series("expected_ns", offsets[at[0]] - offsets[at[1]], dtype=pl.Float64)


def _resynchronised(placed: pl.DataFrame, suspects: pl.DataFrame) -> pl.DataFrame:
    """New positions for the rows of suspect blocks; what finds no partner gets one of its own."""
    rows = placed.with_row_index("row")
    parts = rows.partition_by(BLOCK, as_dict=True)
    position = placed["position"].to_numpy().copy()
    by_time = np.zeros(placed.height, dtype=bool)
    lone = placed.height  # positions no counted call has
    keys = ["communicator", "number", "rank", "reference", "expected_ns", "alike"]
    for communicator, number, rank, reference, expected, alike in (
        suspects.select(keys).sort(keys[:3]).iter_rows()
    ):
        own, other = parts[communicator, rank, number], parts[communicator, reference, number]
        ends, others = own["end_ns"].to_numpy(), other["end_ns"].to_numpy()
        codes = [part["code"].to_numpy().astype(np.int64) for part in (own, other)]
        found = align(ends, codes[0], others, codes[1], expected)
        if alike and not _better(ends, others, found, expected):
            continue
        fresh = np.arange(lone, lone + found.size)
        lone += found.size
        at = own["row"].to_numpy()
        position[at] = np.where(
            found >= 0, other["position"].to_numpy()[np.maximum(found, 0)], fresh
        )
        by_time[at] = True
    return placed.with_columns(
        pl.Series("position", position, dtype=pl.Int64),
        pl.when(pl.Series(by_time)).then(pl.lit("time")).otherwise("matched").alias("matched"),
    )


def _better(ends: IntArray, others: IntArray, found: IntArray, expected_ns: float) -> bool:
    """Whether pairing by time fits so much better that counting must have been off.

    It leaves out hardly anything and halves the distance from the expected offset; else ends just
    scatter, as they do where ranks share few processors.
    """
    paired = found >= 0
    if np.sum(~paired) > max(1, MOST_UNPAIRED * found.size) or not paired.any():
        return False
    counted = np.median(np.abs(ends - others - expected_ns))
    timed = np.median(np.abs(ends[paired] - others[found[paired]] - expected_ns))
    return bool(timed < counted / 2)


# ---- checks -------------------------------------------------------------------------------------


def _instances(rows: pl.DataFrame) -> Matched:
    sized = pl.col("op").is_in(list(SAME_SIZE)) & pl.col("bytes").is_not_null()
    agree = (pl.col("kind").n_unique() == 1) & (pl.col("bytes").filter(sized).n_unique() <= 1)
    checked = rows.with_columns(
        agree.over("instance").alias("agree"),
        pl.col("rank").n_unique().over("instance").cast(pl.Int32).alias("seen"),
        # a member pairs by time when any member did
        pl.when((pl.col("matched") == "time").any().over("instance"))
        .then(pl.lit("time"))
        .otherwise("matched")
        .alias("matched"),
    )
    order = ["instance", "rank"]
    odd = checked.filter(~pl.col("agree")).with_columns(pl.col("instance").alias("position"))
    return Matched(
        schema.conform(checked.filter("agree").sort(order), schema.INSTANCES),
        schema.conform(odd.sort(order), schema.DESYNCHRONISED),
    )
