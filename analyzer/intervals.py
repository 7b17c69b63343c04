"""Interval algebra on numpy int64 arrays.

An :class:`Intervals` is a *union*: half-open intervals ``[start, end)``, sorted, disjoint, none of
them empty, touching ones joined. :func:`merge` makes one from raw starts and ends in any order;
everything else takes unions and yields unions, so results compare equal exactly when the covered
instants are the same. All functions are linear in their input once it is sorted.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

IntArray: TypeAlias = NDArray[np.int64]


class Intervals(NamedTuple):
    """A union of half-open intervals: sorted, disjoint, non-empty, not touching."""

    starts: IntArray
    ends: IntArray


def empty() -> Intervals:
    """The union that covers nothing."""
    return Intervals(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def merge(starts: ArrayLike, ends: ArrayLike) -> Intervals:
    """The union of any intervals: touching ones are joined, those with ``end <= start`` dropped."""
    starts = np.asarray(starts, dtype=np.int64)
    ends = np.asarray(ends, dtype=np.int64)
    solid = ends > starts
    if not solid.all():
        starts, ends = starts[solid], ends[solid]
    if starts.size == 0:
        return empty()
    if np.any(starts[1:] < starts[:-1]):
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    opens = np.flatnonzero(np.concatenate(([True], starts[1:] > reach[:-1])))
    return Intervals(starts[opens], reach[np.append(opens[1:], starts.size) - 1])


def total(union: Intervals) -> int:
    """Covered length."""
    return int(np.sum(union.ends - union.starts))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Instants covered by both."""
    first = np.searchsorted(b.ends, a.starts, side="right")
    behind = np.searchsorted(b.starts, a.ends, side="left")
    counts = np.maximum(behind - first, 0)
    of_a = np.repeat(np.arange(a.starts.size), counts)
    run_start = np.cumsum(counts) - counts  # where each interval of a begins in the output
    of_b = np.arange(of_a.size) - run_start[of_a] + first[of_a]
    return Intervals(
        np.maximum(a.starts[of_a], b.starts[of_b]), np.minimum(a.ends[of_a], b.ends[of_b])
    )


def clip(union: Intervals, lo: int, hi: int) -> Intervals:
    """The part inside ``[lo, hi)``."""
    return intersect(union, merge([lo], [hi]))


def gaps(union: Intervals, lo: int, hi: int) -> Intervals:
    """Instants of ``[lo, hi)`` that are not covered."""
    inside = clip(union, lo, hi)
    return merge(np.append(lo, inside.ends), np.append(inside.starts, hi))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Instants covered by ``a`` and not by ``b``."""
    if a.starts.size == 0:
        return a
    return intersect(a, gaps(b, int(a.starts[0]), int(a.ends[-1])))


def covered_before(points: ArrayLike, union: Intervals) -> IntArray:
    """Length of the union that lies before each point."""
    points = np.asarray(points, dtype=np.int64)
    if union.starts.size == 0:
        return np.zeros(points.shape, dtype=np.int64)
    lengths = union.ends - union.starts
    done = np.concatenate(([0], np.cumsum(lengths)))
    at = np.searchsorted(union.starts, points, side="right")  # intervals begun by then
    overshoot = np.where(at > 0, np.maximum(union.ends[at - 1] - points, 0), 0)
    covered: IntArray = done[at] - overshoot
    return covered


def overlap(starts: ArrayLike, ends: ArrayLike, union: Intervals) -> IntArray:
    """How much of each interval (any order, may overlap one another) the union covers."""
    lengths: IntArray = covered_before(ends, union) - covered_before(starts, union)
    return np.maximum(lengths, 0)


def distinct(*parts: IntArray) -> IntArray:
    """All values once, ascending.

    A stable sort merges parts that are sorted already, which numpy's hashing ``unique`` does not.
    """
    values = np.sort(np.concatenate(parts), kind="stable")
    once: IntArray = values[np.concatenate(([True], values[1:] > values[:-1]))[: values.size]]
    return once


def locate(points: ArrayLike, starts: IntArray, ends: IntArray) -> IntArray:
    """Index of the interval that holds each point, -1 where none does.

    ``starts`` must be sorted; the last interval that began at or before the point is asked. That
    is exact for disjoint intervals and finds the innermost of properly nested ones only when the
    innermost is the last begun.
    """
    points = np.asarray(points, dtype=np.int64)
    if starts.size == 0:
        return np.full(points.shape, -1, dtype=np.int64)
    at = np.searchsorted(starts, points, side="right") - 1
    return np.where((at >= 0) & (points < ends[np.maximum(at, 0)]), at, -1).astype(np.int64)
