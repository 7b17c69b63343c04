"""The parts of comparing ranks, against closed forms and hand-made cases."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer import schema
from analyzer.crossrank.bandwidth import network_of, priced
from analyzer.crossrank.clock import Clock, estimate
from analyzer.crossrank.graph import bounds, components, solve
from analyzer.crossrank.resync import align
from analyzer.model import TraceMeta

# ---- graph --------------------------------------------------------------------------------------


def test_offsets_along_a_chain_add_up() -> None:
    a, b = np.array([0, 1, 2]), np.array([1, 2, 3])
    found = solve(5, a, b, np.array([10.0, -4.0, 3.0]), np.ones(3))
    assert found == pytest.approx([0, 10, 6, 9, 0])
    assert components(5, a, b).tolist() == [0, 0, 0, 0, 4]


def test_an_edge_that_contradicts_all_others_loses_its_say() -> None:
    """Five nodes at 0, 100, ..., all joined; one of ten differences is a million off."""
    a, b = np.triu_indices(5, 1)
    true = 100.0 * np.arange(5)
    difference = true[b] - true[a]
    difference[3] += 1e6
    found = solve(5, a.astype(np.int64), b.astype(np.int64), difference, np.ones(10))
    assert found == pytest.approx(true, abs=100)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-(10**9), 10**9), min_size=2, max_size=8), st.randoms())
def test_consistent_differences_are_solved_exactly(values: list[int], random) -> None:
    nodes = np.array(values, dtype=float)
    others = [(random.randrange(i), i) for i in range(1, nodes.size)]  # a random tree
    a, b = np.array(others).T
    found = solve(nodes.size, a, b, nodes[b] - nodes[a], np.ones(a.size))
    assert found == pytest.approx(nodes - nodes[0], abs=1e-3)


def test_bounds_carry_over_ranks_that_never_meet() -> None:
    """1 is within [3, 5] of 0, 2 within [-1, 1] of 1; so 2 within [2, 6] of 0."""
    low, high = np.array([3.0, -1.0]), np.array([5.0, 1.0])
    least, most = bounds(4, np.array([0, 1]), np.array([1, 2]), low, high)
    assert least.tolist()[:3] == [0, 3, 2]
    assert most.tolist()[:3] == [0, 5, 6]
    assert (least[3], most[3]) == (0, 0)  # alone: its own reference


# ---- resynchronisation --------------------------------------------------------------------------


def kinds(n: int) -> np.ndarray:
    return np.zeros(n, dtype=np.int64)


@pytest.mark.parametrize("offset", [0, 7_000_000, -40_000_000])
@pytest.mark.parametrize("lost", [0, 4, 9])
def test_the_missing_call_is_found_by_uneven_spacing(offset: int, lost: int) -> None:
    ends = np.cumsum([1_000_000 + 130_000 * (k % 4) ** 2 for k in range(10)])
    mine = np.delete(ends, lost) + offset
    found = align(mine, kinds(9), ends, kinds(10), 0.0)
    assert found.tolist() == [k for k in range(10) if k != lost]


def test_even_spacing_is_decided_by_the_expected_offset() -> None:
    ends = 1_000_000 * np.arange(1, 11)
    for expected in (0, 1_000_000, -1_000_000):
        found = align(ends[1:] + expected, kinds(9), ends, kinds(10), float(expected))
        assert found.tolist() == list(range(1, 10))


def test_calls_of_another_kind_that_meet_are_paired_last() -> None:
    ends = np.array([1_000_000, 2_000_000, 3_000_000])
    found = align(ends, np.array([0, 1, 0]), ends, np.array([0, 2, 0]), 0.0)
    assert found.tolist() == [0, 1, 2]
    apart = align(ends + np.array([0, 900_000, 0]), np.array([0, 1, 0]), ends, kinds(3), 0.0)
    assert apart.tolist()[0] == 0
    assert apart.tolist()[2] == 2


# ---- clock --------------------------------------------------------------------------------------


def instances(rows: list[tuple[int, int, int, int]], op: str = "all_reduce") -> pl.DataFrame:
    """(instance, rank, start, end) of two-member groups."""
    frame = pl.DataFrame(rows, schema=["instance", "rank", "start_ns", "end_ns"], orient="row")
    seats = frame.with_columns(
        pl.lit("tp").alias("axis"), pl.lit(op).alias("op"), pl.lit(2).alias("group_size"),
        pl.col("rank").sort().cast(pl.String).str.join(",").over("instance").alias("group"),
        pl.lit(0).alias("lane"), pl.lit(0).alias("step"), pl.lit(None).alias("bytes"),
        pl.lit(0).alias("event"), pl.lit("sequence").alias("matched"),
        *(pl.lit(2).alias(name) for name in ("seen", "traced", "expected")),
    )  # fmt: skip
    return schema.conform(seats, schema.INSTANCES)


def ring(noise: list[int]) -> pl.DataFrame:
    """Ranks 0-1 and 1-2 meet; offsets 5 ms and -3 ms; the second member's end is off by noise."""
    rows = []
    for k, extra in enumerate(noise):
        t = 1_000_000 * k + 10_000_000
        rows += [(2 * k, 0, t, t + 100_000), (2 * k, 1, t + 5_000_000, t + 5_100_000 + extra)]
        rows += [(2 * k + 1, 1, t + 5_500_000, t + 5_600_000), (2 * k + 1, 2, t - 2_500_000,
                                                               t - 2_400_000)]  # fmt: skip
    return instances(rows)


def test_ranks_that_never_meet_are_joined_by_one_that_met_both() -> None:
    clock = estimate(ring([0, 0, 0, 0, 0]))
    assert clock.offset_ns == {0: 0, 1: 5_000_000, 2: -3_000_000}
    assert clock.residual_ns == {"0,1": 0, "1,2": 0}
    assert set(clock.reference.values()) == {0}
    low, high = clock.bound_ns[2]
    assert low <= -3_000_000 <= high
    assert high - low == 400_000  # two meetings of 100 us, either side


def test_outliers_do_not_move_the_offset() -> None:
    clock = estimate(ring([0, 0, 900_000, 0, 0, 0, 700_000, 0, 0]))
    assert clock.offset_ns[1] == 5_000_000
    assert clock.refused == ()


def test_scatter_above_the_limit_refuses_the_group_alone() -> None:
    noise = [0, 200_000, 0, 200_000, 0, 200_000]
    clock = estimate(ring(noise))
    assert clock.refused == ("0,1",)
    assert clock.residual_ns["1,2"] == 0


def test_the_hard_bound_clamps_what_the_median_gets_wrong() -> None:
    """Rank 1 leaves 90 us late every time but once: the once bounds the offset."""
    clock = estimate(ring([90_000] * 12 + [-99_000] + [90_000] * 3))
    assert clock.bound_ns[1] == (4_900_000, 5_001_000)
    assert clock.offset_ns[1] == 5_001_000


def test_rooted_collectives_do_not_bind_the_clock() -> None:
    rows = [(0, 0, 0, 100), (0, 1, 5_000, 5_100)]
    assert estimate(instances(rows, op="broadcast")) == Clock()


def test_one_host_is_one_clock_only_where_the_data_agree() -> None:
    close = instances(
        [row for k in range(6) for row in (
            (k, 0, 10_000 * k, 10_000 * k + 5_000),
            (k, 1, 10_000 * k, 10_000 * k + 5_000 + 400 * (-1) ** k + 100),
        )]
    )  # fmt: skip
    assert estimate(close, {0: "a", 1: "a"}).offset_ns == {0: 0, 1: 0}
    assert estimate(close, {0: "a", 1: "b"}).offset_ns[1] != 0
    assert estimate(ring([0] * 5), {0: "a", 1: "a", 2: "a"}).offset_ns[1] == 5_000_000


# ---- links --------------------------------------------------------------------------------------


def metas(hosts: list[str], device: str = "NVIDIA H100 80GB HBM3") -> list[TraceMeta]:
    return [
        TraceMeta(path="", rank=r, world_size=len(hosts), device_names=(device,), host=host)
        for r, host in enumerate(hosts)
    ]


@pytest.mark.parametrize(
    ("hosts", "stated", "size", "source"),
    [
        ([""] * 8, None, 8, "8 a node assumed"),
        (["a"] * 4 + ["b"] * 4, None, 4, "host names"),
        (["a"] * 4 + ["b"] * 4, 2, 2, "stated"),
        (["a", "b"] * 4, None, 8, "8 a node assumed"),  # not consecutive
        (["a"] * 6 + ["b"] * 2, None, 8, "8 a node assumed"),  # not equally many
    ],
)
def test_ranks_a_node(hosts: list[str], stated: int | None, size: int, source: str) -> None:
    network = network_of(metas(hosts), stated)
    assert (network.node_size, network.source) == (size, source)


def test_an_nvl72_domain_is_larger_than_its_hosts() -> None:
    assert network_of(metas(["a"] * 4 + ["b"] * 4, "NVIDIA GB200")).node_size == 72


def test_levels_rates_and_floors() -> None:
    """H100: 450 GB/s inside the node, 50 GB/s a device between nodes."""
    frame = pl.DataFrame(
        {
            "op": ["all_gather", "all_gather", "all_gather", "barrier"],
            "group": ["0,1", "8,9", "0,8", "0,1"],
            "bytes": [2**30, 2**30, 2**30, None],
        }
    )
    found = priced(frame, network_of(metas([""] * 16)))
    assert found["level"].to_list() == ["node", "node", "network", "node"]
    assert found["spec_gbps"].to_list() == [450, 450, 50, 450]
    assert found["spec_ns"][0] == found["spec_ns"][1] == pytest.approx(2**29 / 450, rel=0.01)
    assert found["spec_ns"][2] == pytest.approx(2**29 / 50, rel=0.01)
    assert found["spec_ns"][3] is None
    assert (found["typical_ns"].drop_nulls() > found["spec_ns"].drop_nulls()).all()


def test_an_unknown_device_prices_nothing() -> None:
    network = network_of(metas(["", ""], "Abacus 3000"))
    assert "Abacus 3000" in network.why
    frame = pl.DataFrame({"op": ["all_reduce"], "group": ["0,1"], "bytes": [8]})
    found = priced(frame, network)
    assert (found["factor"][0], found["spec_ns"][0], found["spec_gbps"][0]) == (1.0, None, None)
