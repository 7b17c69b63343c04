"""Interval algebra against a brute-force sweep of every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analyzer import intervals
from analyzer.intervals import Intervals

SPAN = 60
raw = st.lists(st.tuples(st.integers(0, SPAN), st.integers(-2, 12)), max_size=12).map(
    lambda pairs: ([s for s, _ in pairs], [s + d for s, d in pairs])
)


def instants(starts, ends) -> set[int]:
    return {t for s, e in zip(starts, ends, strict=True) for t in range(s, e)}


def covered(union: Intervals) -> set[int]:
    return instants(union.starts.tolist(), union.ends.tolist())


def assert_canonical(union: Intervals) -> None:
    assert union.starts.dtype == union.ends.dtype == np.int64
    assert (union.ends > union.starts).all()
    assert (union.starts[1:] > union.ends[:-1]).all()


@given(raw)
def test_merge_covers_the_same_instants(a):
    union = intervals.merge(*a)
    assert_canonical(union)
    assert covered(union) == instants(*a)
    assert intervals.total(union) == len(instants(*a))


@given(raw, raw)
def test_set_operations(a, b):
    left, right = intervals.merge(*a), intervals.merge(*b)
    both = intervals.intersect(left, right)
    only = intervals.subtract(left, right)
    assert_canonical(both)
    assert_canonical(only)
    assert covered(both) == instants(*a) & instants(*b)
    assert covered(only) == instants(*a) - instants(*b)


@given(raw, st.integers(-5, SPAN + 15), st.integers(-5, SPAN + 15))
def test_clip_and_gaps_split_the_window(a, lo, hi):
    union = intervals.merge(*a)
    window = set(range(lo, hi))
    inside, outside = intervals.clip(union, lo, hi), intervals.gaps(union, lo, hi)
    assert_canonical(inside)
    assert_canonical(outside)
    assert covered(inside) == instants(*a) & window
    assert covered(outside) == window - instants(*a)


@given(raw, raw)
def test_overlap_per_interval(a, b):
    union = intervals.merge(*b)
    got = intervals.overlap(a[0], a[1], union).tolist()
    assert got == [len(instants([s], [e]) & instants(*b)) for s, e in zip(*a, strict=True)]


@given(raw, st.lists(st.integers(-3, SPAN + 15), max_size=8))
def test_covered_before_and_locate(a, points):
    union = intervals.merge(*a)
    before = intervals.covered_before(points, union).tolist()
    assert before == [len([t for t in instants(*a) if t < p]) for p in points]
    found = intervals.locate(points, union.starts, union.ends).tolist()
    for point, index in zip(points, found, strict=True):
        assert (index >= 0) == (point in instants(*a))
        if index >= 0:
            assert union.starts[index] <= point < union.ends[index]


@given(st.lists(st.lists(st.integers(-9, 9), max_size=6), min_size=1, max_size=3))
def test_distinct(parts):
    arrays = [np.array(part, dtype=np.int64) for part in parts]
    assert intervals.distinct(*arrays).tolist() == sorted(set().union(*parts))


def test_epoch_nanoseconds_stay_exact():
    base = 1_789_035_343_287_912_456
    union = intervals.merge([base, base + 1], [base + 1, base + 3])
    assert union.starts.tolist() == [base]
    assert union.ends.tolist() == [base + 3]
    assert intervals.overlap([base + 2], [base + 10], union).tolist() == [1]
