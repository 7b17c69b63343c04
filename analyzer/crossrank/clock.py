"""How far the ranks' clocks are apart, from the collectives they left together.

Kineto stamps events with each host's own clock. Members of a synchronous collective end it within
microseconds of each other, so the difference of two ranks' ends is their clocks' difference plus
little noise; starts say nothing, since ranks arrive when they can. Per pair of ranks: the slope by
Tukey's resistant line (medians of the first and last third), then the median difference. Ranks that
never meet are joined over those that both meet (:func:`analyzer.crossrank.graph.solve`).

Nobody ends a synchronous collective before its last member has started: ``start_b - end_a <=
offset_b - offset_a <= end_b - start_a``. These hard bounds, carried along all paths, clamp the
estimate and give its error bar. Broadcasts and the like do not bind all members and are left out.

Ranks of one host share a clock. Host names can lie (containers), so this only decides where the
measured offset is inside its own noise: then it is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from analyzer.crossrank.graph import FloatArray, bounds, components, solve
from analyzer.intervals import IntArray

SYNCHRONOUS = ("all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all")
MAX_RESIDUAL_NS = 50_000
"""Above this median disagreement of two members' ends a group's waits are not shown."""
ALL_PAIRS = 16  # members up to which every pair is looked at; above, all against the lowest
NOISE_NS = 1_000.0  # agreement better than this does not make a pair weigh more
SIGNIFICANT = 3.0  # a drift counts when it moves the ends by this many residuals
MAX_DRIFT = 200e-6  # no oscillator is that far off: noise
RESOLUTION_NS = 10.0  # of the best profilers' clocks
MIN_THIRD = 3  # meetings in a third of the capture, for its median to withstand an outlier


@dataclass(frozen=True, slots=True)
class Clock:
    """Clock model of a job: a rank's time minus the reference's, by linear drift.

    Attributes:
        reference: rank -> rank its offset is against: the lowest one it is joined to.
        offset_ns: rank -> offset at ``at_ns``.
        drift_ppm: rank -> drift against the reference, 0 where none is significant.
        bound_ns: rank -> (least, largest) offset possible; None where nothing bounds it.
        at_ns: when the offsets hold, Unix ns.
        residual_ns: group -> worst median disagreement of two members' ends.
        spread_ns: rank -> its best median disagreement with any other rank.
    """

    reference: Mapping[int, int] = field(default_factory=dict)
    offset_ns: Mapping[int, int] = field(default_factory=dict)
    drift_ppm: Mapping[int, float] = field(default_factory=dict)
    bound_ns: Mapping[int, tuple[int, int] | None] = field(default_factory=dict)
    at_ns: int = 0
    residual_ns: Mapping[str, int] = field(default_factory=dict)
    spread_ns: Mapping[int, int] = field(default_factory=dict)

    @property
    def worst_residual_ns(self) -> int | None:
        """Largest residual of a group: the error bar of every comparison; None without groups."""
        return max(self.residual_ns.values(), default=None)

    @property
    def refused(self) -> tuple[str, ...]:
        """Groups whose members disagree too much to be compared."""
        return tuple(g for g, ns in self.residual_ns.items() if ns > MAX_RESIDUAL_NS)

    def aligned(self, frame: pl.DataFrame) -> pl.DataFrame:
        """``frame`` with ``start_ns`` and ``end_ns`` on the reference's clock.

        Rows of ranks without an offset are dropped.
        """
        model = pl.DataFrame(
            {
                "rank": list(self.offset_ns),
                "_offset": list(self.offset_ns.values()),
                "_drift": [1e-6 * self.drift_ppm[rank] for rank in self.offset_ns],
            },
            schema={"rank": pl.Int32, "_offset": pl.Int64, "_drift": pl.Float64},
        )
        joined = frame.join(model, on="rank", how="inner", maintain_order="left")
        return joined.with_columns(
            pl.col(name)
            - pl.col("_offset")
            - ((pl.col(name) - self.at_ns) * pl.col("_drift")).round().cast(pl.Int64)
            for name in ("start_ns", "end_ns")
        ).drop("_offset", "_drift")


def estimate(instances: pl.DataFrame, hosts: Mapping[int, str] | None = None) -> Clock:
    """The clock model of the ranks that share synchronous collectives.

    Args:
        instances: schema.INSTANCES.
        hosts: rank -> host, where the traces tell.
    """
    pairs = _pairs(instances.filter(pl.col("op").is_in(SYNCHRONOUS) & (pl.col("seen") > 1)))
    if pairs.is_empty():
        return Clock()
    at_ns = int(pairs.select(pl.col("end_a").median()).item())
    ranks = np.unique(pairs.select("a", "b").to_numpy())
    drift = _drifts(pairs, ranks, at_ns)
    pairs = _without_drift(pairs, ranks, drift, at_ns)
    edges = _edges(pairs)
    a, b = _ends(edges, ranks)
    offset = solve(ranks.size, a, b, edges["apart"].to_numpy(), edges["weight"].to_numpy())
    low, high = (edges[name].to_numpy().astype(float) for name in ("low", "high"))
    least, most = bounds(ranks.size, a, b, low, high)
    part = components(ranks.size, a, b)
    spread = _spread(edges, ranks, offset)
    offset = _same_host(offset, part, spread, [(hosts or {}).get(int(r), "") for r in ranks])
    sane = least <= most  # contradicting bounds say that the clocks are not linear
    offset = np.where(sane, np.clip(offset, least, most), offset)
    return Clock(
        reference={int(r): int(ranks[p]) for r, p in zip(ranks, part, strict=True)},
        offset_ns={int(r): round(x) for r, x in zip(ranks, offset, strict=True)},
        drift_ppm={int(r): float(d) * 1e6 for r, d in zip(ranks, drift, strict=True)},
        bound_ns={
            int(r): (int(lo), int(hi)) if ok and np.isfinite([lo, hi]).all() else None
            for r, lo, hi, ok in zip(ranks, least, most, sane, strict=True)
        },
        at_ns=at_ns,
        residual_ns=_residuals(pairs, ranks, offset),
        spread_ns={int(r): round(s) for r, s in zip(ranks, spread, strict=True)},
    )


def _pairs(instances: pl.DataFrame) -> pl.DataFrame:
    """Two members a row (a < b): group, instance, start and end of both."""
    member = instances.select("instance", "group", "group_size", "rank", "start_ns", "end_ns")
    lowest = pl.col("rank").min().over("instance")
    first = member.filter((pl.col("group_size") <= ALL_PAIRS) | (pl.col("rank") == lowest))
    joined = first.join(member, on="instance", suffix="_b").filter(
        pl.col("rank") < pl.col("rank_b")
    )
    return joined.select(
        "group", "instance",
        pl.col("rank").alias("a"), pl.col("rank_b").alias("b"),
        pl.col("start_ns").alias("start_a"), pl.col("end_ns").alias("end_a"),
        pl.col("start_ns_b").alias("start_b"), pl.col("end_ns_b").alias("end_b"),
    )  # fmt: skip


def _ends(edges: pl.DataFrame, ranks: np.ndarray) -> tuple[IntArray, IntArray]:
    a, b = (np.searchsorted(ranks, edges[side].to_numpy()) for side in ("a", "b"))
    return a.astype(np.int64), b.astype(np.int64)


def _drifts(pairs: pl.DataFrame, ranks: np.ndarray, at_ns: int) -> FloatArray:
    """Drift of every rank, 0 where it does not stand out of the noise."""
    when, apart = pl.col("end_a") - at_ns, pl.col("end_b") - pl.col("end_a")
    third = (pl.col("end_a").rank("ordinal") - 1) * 3 // pl.len()
    thirds = (
        pairs.with_columns(third.over("a", "b").alias("third"))
        .group_by("a", "b", "third")
        .agg(when.median().alias("when"), apart.median().alias("apart"), pl.len().alias("count"))
        .filter(pl.col("count") >= MIN_THIRD)
    )
    lines = (
        thirds.filter(pl.col("third") == 0)
        .join(thirds.filter(pl.col("third") == 2), on=["a", "b"], suffix="_last")
        .with_columns((pl.col("when_last") - pl.col("when")).alias("span"))
        .filter(pl.col("span") > 0)
        .with_columns(((pl.col("apart_last") - pl.col("apart")) / pl.col("span")).alias("slope"))
    )
    if lines.is_empty():
        return np.zeros(ranks.size)
    a, b = _ends(lines, ranks)
    span = lines["span"].to_numpy()
    drift = solve(ranks.size, a, b, lines["slope"].to_numpy(), span**2 / 1e18, floor=1e-9)
    edges = _edges(_without_drift(pairs, ranks, drift, at_ns))
    noise = dict(zip(edges.select("a", "b").iter_rows(), edges["scatter"], strict=True))
    moved, limit = np.zeros(ranks.size), np.full(ranks.size, np.inf)
    for i, j, length, *key in zip(a, b, span, lines["a"], lines["b"], strict=True):
        quiet = SIGNIFICANT * (noise[key[0], key[1]] + RESOLUTION_NS)
        for node in (i, j):
            moved[node] = max(moved[node], abs(drift[node]) * length)
            limit[node] = min(limit[node], quiet)
    credible = (moved > limit) & (np.abs(drift) <= MAX_DRIFT)
    return np.where(credible, drift, 0.0)


def _without_drift(
    pairs: pl.DataFrame, ranks: np.ndarray, drift: FloatArray, at_ns: int
) -> pl.DataFrame:
    table = pl.DataFrame({"rank": ranks, "rate": drift}, schema_overrides={"rank": pl.Int32})
    joined = pairs.join(table, left_on="a", right_on="rank", how="left", maintain_order="left")
    joined = joined.join(
        table, left_on="b", right_on="rank", how="left", suffix="_b", maintain_order="left"
    )
    return joined.with_columns(
        pl.col(name) - ((pl.col(name) - at_ns) * pl.col(rate)).round().cast(pl.Int64)
        for name, rate in (
            ("start_a", "rate"), ("end_a", "rate"), ("start_b", "rate_b"), ("end_b", "rate_b"),
        )
    ).drop("rate", "rate_b")  # fmt: skip


def _edges(pairs: pl.DataFrame) -> pl.DataFrame:
    """Per pair of ranks: median difference, its scatter, weight and hard bounds."""
    apart = pl.col("end_b") - pl.col("end_a")
    return (
        pairs.group_by("a", "b")
        .agg(
            apart.median().alias("apart"),
            (apart - apart.median()).abs().median().alias("scatter"),
            pl.len().alias("count"),
            (pl.col("start_b") - pl.col("end_a")).max().alias("low"),
            (pl.col("end_b") - pl.col("start_a")).min().alias("high"),
        )
        .with_columns(
            (pl.col("count") / (pl.col("scatter") + NOISE_NS).pow(2) * NOISE_NS**2).alias("weight")
        )
        .sort("a", "b")
    )


def _spread(edges: pl.DataFrame, ranks: np.ndarray, offset: FloatArray) -> FloatArray:
    """Per rank, how well it agrees with the rank it agrees with best."""
    a, b = _ends(edges, ranks)
    off = np.abs(offset[b] - offset[a] - edges["apart"].to_numpy()) + edges["scatter"].to_numpy()
    best = np.full(ranks.size, np.inf)
    np.minimum.at(best, a, off)
    np.minimum.at(best, b, off)
    return best


def _same_host(
    offset: FloatArray, part: IntArray, spread: FloatArray, hosts: list[str]
) -> FloatArray:
    """One value for all ranks of a host whose offsets differ by no more than their noise."""
    made = offset.copy()
    for host, root in {(h, int(p)) for h, p in zip(hosts, part, strict=True) if h}:
        here = np.flatnonzero([h == host and p == root for h, p in zip(hosts, part, strict=True)])
        noise = spread[here].max() + NOISE_NS
        if np.ptp(offset[here]) <= 2 * noise:
            made[here] = 0.0 if root in here else np.median(offset[here])
    return made


def _residuals(pairs: pl.DataFrame, ranks: np.ndarray, offset: FloatArray) -> dict[str, int]:
    """Group -> largest median disagreement of two of its members' ends, after alignment."""
    a, b = _ends(pairs, ranks)
    off = pl.Series("off", offset[b] - offset[a])
    apart = (pl.col("end_b") - pl.col("end_a") - pl.col("off")).abs()
    rows = (
        pairs.with_columns(off)
        .group_by("group", "a", "b")
        .agg(apart.median().alias("ns"))
        .group_by("group")
        .agg(pl.col("ns").max())
        .sort("group")
    )
    return {group: round(ns) for group, ns in rows.iter_rows()}
