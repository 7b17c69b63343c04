"""What rules share: figures in words, severities, expectations and the compute algebra."""

from __future__ import annotations

import random

import polars as pl
import pytest
from measure_builder import MS, Comm, measured, ops_of, strategy, unmeasurable

from analyzer.model import Severity
from analyzer.strategy import Strategy
from rules import reading
from rules.judge import ShareOptions, judge
from rules.wording import ms, pct, size


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0.000 ms"), (1234, "0.001 ms"), (456_789, "0.457 ms"), (1_234_567, "1.23 ms"),
     (12_345_678, "12.3 ms"), (123_456_789, "123 ms")],
)  # fmt: skip
def test_durations_in_words(ns: int, text: str) -> None:
    assert ms(ns) == text


def test_sizes_and_shares_in_words() -> None:
    assert [size(n) for n in (4, 1023, 1536, 25 * 2**20, 3 * 2**30)] == [
        "4.0 B", "1023 B", "1.5 KiB", "25 MiB", "3.0 GiB",
    ]  # fmt: skip
    assert pct(12.345) == "12.3 %"


def test_severity_has_no_dead_zone() -> None:
    limits = ShareOptions()
    judged = [judge(share / 100, limits) for share in range(1000)]
    assert [j for j in judged if j is None] == [None] * 10
    assert judged[10:100] == [(Severity.INFO, 0.1)] * 90
    assert judged[100:500] == [(Severity.WARNING, 1.0)] * 400
    assert judged[500:] == [(Severity.ERROR, 5.0)] * 500


def test_the_stated_strategy_comes_before_the_inferred_one() -> None:
    m = measured(inferred=strategy("fsdp", "tp"), expect=strategy("zero2"))
    assert reading.expectation(m, "dp_shard").word == "zero2"
    assert reading.expectation(m, "tp").word == "tp"
    assert reading.expectation(m, "ep") is None
    assert reading.expectation(m, "dp_shard+cp").word == "zero2"
    joined = Strategy("x", ("x",), {"dp_shard+cp": ops_of("dp_shard+cp", "x", None)})
    assert reading.expectation(measured(expect=joined), "dp_shard+cp").word == "x"


def test_events_are_chosen_by_axis_part_and_sorted() -> None:
    comm = [Comm("dp_shard+cp", "all_gather", 9, 10), Comm("dp_shard", "all_gather", 3, 5),
            Comm("dp_shard", "all_gather", 1, 2), Comm("tp", "all_gather", 0, 1),
            Comm("dp_shard", "reduce_scatter", 6, 7)]  # fmt: skip
    m = measured(comm, ranks=(1, 0), steps=1)
    coded = pl.Enum(["all_gather", "reduce_scatter", "never_seen"])
    m.comm_events.replace_column(m.comm_events.columns.index("op"), m.comm_events["op"].cast(coded))
    found = reading.comm_events(m, ["dp_shard"], ["all_gather", "absent"])
    assert found.select("axis", "rank", "dur_ns").rows() == [
        ("dp_shard", 0, MS), ("dp_shard", 0, 2 * MS), ("dp_shard", 1, MS), ("dp_shard", 1, 2 * MS),
        ("dp_shard+cp", 0, MS), ("dp_shard+cp", 1, MS),
    ]  # fmt: skip


def test_compute_since_previous_against_the_timeline() -> None:
    """The algebra on before, duration and exposed equals looking at the intervals themselves."""
    rng = random.Random(7)
    for _ in range(50):
        edges = sorted(rng.sample(range(100), 10))
        compute = list(zip(edges[::2], edges[1::2], strict=True))
        starts = sorted(rng.sample(range(90), 6))
        spans = [(a, a + rng.randint(1, 12)) for a in starts]
        m = measured([Comm("dp_shard", "all_gather", *span) for span in spans], compute=compute,
                     steps=1)  # fmt: skip
        events = reading.comm_events(m, ["dp_shard"]).with_columns(
            since=reading.compute_since_previous()
        )
        busy = [any(a <= t < b for a, b in compute) for t in range(120)]
        truth = [None] + [
            sum(busy[max(end for _, end in spans[:i]) : start]) * MS
            for i, (start, _) in enumerate(spans)
            if i
        ]
        assert events["since"].to_list() == truth


def test_means_are_over_kept_windows() -> None:
    m = measured(ranks=(0, 1, 2), steps=4)
    assert reading.windows(m) == 12
    assert reading.per_step(m, 12 * MS) == MS
    assert reading.windows(unmeasurable("none")) == 1
    with pytest.raises(ValueError, match="no step was kept"):
        reading.share_pct(unmeasurable("none"), 1)
