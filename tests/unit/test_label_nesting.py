"""Innermost interval around an instant, against the obvious search."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.label.nesting import OUTSIDE, innermost

Interval = tuple[int, int, int]


@st.composite
def nested(draw: st.DrawFn, lo: int = 0, hi: int = 60, depth: int = 3) -> list[tuple[int, int]]:
    """Properly nested intervals inside [lo, hi)."""
    if depth == 0 or hi - lo < 2:
        return []
    cuts = sorted(draw(st.lists(st.integers(lo, hi), min_size=0, max_size=4, unique=True)))
    found: list[tuple[int, int]] = []
    for start, end in zip(cuts[::2], cuts[1::2], strict=False):
        found.append((start, end))
        found += draw(nested(lo=start, hi=end, depth=depth - 1))
    return found


def brute(intervals: list[Interval], at: int, thread: int) -> tuple[int, int] | None:
    around = [(s, e) for s, e, t in intervals if t == thread and s <= at < e]
    return min(around, key=lambda i: (i[1] - i[0], -i[0])) if around else None


@settings(max_examples=200, deadline=None)
@given(
    threads=st.lists(nested(), min_size=1, max_size=3),
    points=st.lists(st.tuples(st.integers(-5, 70), st.integers(0, 3)), max_size=20),
    seed=st.integers(0, 100),
)
def test_innermost_equals_the_obvious_search(
    threads: list[list[tuple[int, int]]], points: list[tuple[int, int]], seed: int
) -> None:
    intervals = [(s, e, t) for t, own in enumerate(threads) for s, e in sorted(set(own))]
    np.random.default_rng(seed).shuffle(intervals)
    schema = ["start_ns", "end_ns", "tid"]
    table = pl.DataFrame(
        [tuple(map(int, i)) for i in intervals],
        schema=dict.fromkeys(schema, pl.Int64),
        orient="row",
    ).with_columns(pl.lit(1, dtype=pl.Int64).alias("pid"))
    asked = pl.DataFrame(
        points, schema={"at_ns": pl.Int64, "tid": pl.Int64}, orient="row"
    ).with_columns(pl.lit(1, dtype=pl.Int64).alias("pid"))
    for row, (at, thread) in zip(innermost(table, asked).tolist(), points, strict=True):
        expected = brute([tuple(map(int, i)) for i in intervals], at, thread)  # type: ignore[misc]
        found = None if row == OUTSIDE else table.select("start_ns", "end_ns").row(row)
        assert found == expected


def test_nulls_and_other_processes_are_outside() -> None:
    table = pl.DataFrame({"start_ns": [0], "end_ns": [10], "pid": [1], "tid": [1]})
    asked = pl.DataFrame({"at_ns": [5, 5, None, 5], "pid": [1, 2, 1, 1], "tid": [1, 1, 1, None]})
    assert innermost(table, asked).tolist() == [0, OUTSIDE, OUTSIDE, OUTSIDE]


def test_overlapping_without_nesting_takes_the_later_one() -> None:
    table = pl.DataFrame({"start_ns": [0, 5], "end_ns": [10, 20], "pid": [1, 1], "tid": [1, 1]})
    asked = pl.DataFrame({"at_ns": [3, 7, 15, 25], "pid": [1] * 4, "tid": [1] * 4})
    assert innermost(table, asked).tolist() == [0, 1, 1, OUTSIDE]
