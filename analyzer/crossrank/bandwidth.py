"""What a collective should take on the link its group spans."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from analyzer import catalog, schema
from analyzer.model import TraceMeta
from analyzer.roofline.collectives import busbw_factor
from analyzer.roofline.expected import (
    CollectiveCall,
    SwitchedLink,
    expected_time,
    placement,
)
from analyzer.roofline.hardware import switched_link

NODE, NETWORK = "node", "network"
DEFAULT_NODE = 8
PRICED = {
    "level": pl.String, "spec_gbps": pl.Float64, "spec_ns": pl.Int64, "typical_ns": pl.Int64,
    "factor": pl.Float64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Network:
    """The links of a job.

    Attributes:
        node_size: ranks that share a node's links; nodes hold consecutive ranks.
        source: where ``node_size`` comes from.
        link: rates, None when the device is not in the hardware table.
        why: why there is no link.
    """

    node_size: int
    source: str
    link: SwitchedLink | None
    why: str = ""

    def level_of(self, ranks: Sequence[int]) -> str:
        """The link level a group spans."""
        return NODE if placement(ranks, self.node_size).nodes == 1 else NETWORK

    def rate_gbps(self, level: str) -> float | None:
        """Datasheet rate of a level: one direction, per rank, decimal GB/s."""
        if self.link is None:
            return None
        rate = self.link.node_bytes_per_s if level == NODE else self.link.nic_bytes_per_s
        return None if rate is None else rate / 1e9


def network_of(metas: Sequence[TraceMeta], gpus_per_node: int | None = None) -> Network:
    """The links of a job by its device and how its ranks lie on nodes.

    The node's size is the stated one, else what the host names of all ranks say where they agree
    with each other (equally many consecutive ranks a host), else the device's scale-up domain. A
    domain larger than a host (NVL72) is the node: its links are what counts.
    """
    name = next((n for meta in metas for n in meta.device_names), "")
    device = catalog.find_device(name) if name else None
    domain = device.domain if device else DEFAULT_NODE
    size, source = domain, f"{domain} a node assumed"
    by_host = _ranks_per_host(metas)
    if gpus_per_node is not None:
        size, source = gpus_per_node, "stated"
    elif by_host is not None and domain <= DEFAULT_NODE:
        size, source = by_host, "host names"
    if device is None:
        named = repr(name) if name else "a trace without a device"
        return Network(size, source, None, f"no link rates are known for {named}")
    if device.scale_up_gbps is None:
        return Network(size, source, None, f"no rate inside the node is known for {device.name}")
    return Network(size, source, switched_link(device, size))


def _ranks_per_host(metas: Sequence[TraceMeta]) -> int | None:
    """Ranks a host, when all ranks were read and hosts hold equally many consecutive ones."""
    world = next((m.world_size for m in metas if m.world_size), None)
    hosts = [m.host for m in sorted(metas, key=lambda m: m.rank or 0)]
    if len(hosts) != world or not all(hosts):
        return None
    counts = set(Counter(hosts).values())
    changes = sum(one != other for one, other in itertools.pairwise(hosts))
    contiguous = changes == len(set(hosts)) - 1
    return counts.pop() if len(counts) == 1 and contiguous else None


def priced(frame: pl.DataFrame, network: Network) -> pl.DataFrame:
    """``frame`` (op, group, bytes) with what each call should take.

    Added: ``level``, ``spec_gbps``, ``spec_ns`` (alpha-beta at datasheet rate), ``typical_ns`` (at
    the rate usually reached for that size), ``factor`` (bus bandwidth factor by the size of the
    group); null where the ranks, the size or the rate are not known.
    """
    keys = ["op", "group", "bytes"]
    distinct = frame.select(keys).unique(maintain_order=True)
    known: dict[tuple[str, int | None, tuple[int, ...]], tuple[object, ...]] = {}
    rows = []
    for op, group, size in distinct.iter_rows():
        ranks = _placed(_ranks(group), network.node_size)
        if (op, size, ranks) not in known:
            known[op, size, ranks] = _price(op, size, ranks, network)
        rows.append(known[op, size, ranks])
    table = pl.concat([distinct, pl.DataFrame(rows, schema=PRICED, orient="row")], how="horizontal")
    return frame.join(table, on=keys, how="left", nulls_equal=True, maintain_order="left")


def _ranks(group: str | None) -> tuple[int, ...]:
    parts = (group or "").split(",")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def _placed(ranks: tuple[int, ...], node_size: int) -> tuple[int, ...]:
    """The group moved to the first node: groups that lie alike cost alike."""
    shift = ranks[0] // node_size * node_size if ranks else 0
    return tuple(rank - shift for rank in ranks)


def _price(
    op: str, size: int | None, ranks: tuple[int, ...], network: Network
) -> tuple[object, ...]:
    if len(ranks) < 2:
        return (None,) * len(PRICED)
    factor = busbw_factor(op, len(ranks))
    level = network.level_of(ranks)
    rate = network.rate_gbps(level)
    if size is None or factor is None or rate is None or network.link is None:
        return level, rate, None, None, factor
    time = expected_time(CollectiveCall(op, size, ranks), network.link)
    return level, rate, time.t_spec_ns, time.t_typ_ns, factor


def busbw_table(calls: pl.DataFrame) -> pl.DataFrame:
    """schema.BUSBW from one row an instance: priced, with ``transfer_ns`` and ``bus_bytes``."""
    sized = calls.filter((pl.col("bytes") > 0) & (pl.col("transfer_ns") > 0))
    bucket = (2 ** pl.col("bytes").log(2).floor()).cast(pl.Int64).alias("size_bytes")
    told = pl.col("spec_ns").is_not_null()
    rows = (
        sized.with_columns(bucket)
        .group_by("axis", "op", "level", "group_size", "size_bytes")
        .agg(
            pl.len().alias("count"),
            pl.col("bytes").mean().alias("mean_bytes"),
            pl.col("transfer_ns").median().round().alias("transfer_ns"),
            _ratio(pl.col("bus_bytes"), pl.col("transfer_ns")).alias("busbw_gbps"),
            pl.col("spec_gbps").first(),
            pl.col("spec_ns").median().round().alias("spec_ns"),
            pl.col("typical_ns").median().round().alias("typical_ns"),
            _ratio(pl.col("spec_ns").filter(told), pl.col("transfer_ns").filter(told)).alias(
                "link_efficiency"
            ),
        )
        .sort("axis", "op", "group_size", "size_bytes")
    )
    return schema.conform(rows, schema.BUSBW)


def _ratio(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """Sum over sum where every part is known; bytes a nanosecond are GB/s."""
    known = (part.null_count() == 0) & (whole.sum() > 0)
    return pl.when(known).then(part.sum() / whole.sum())
