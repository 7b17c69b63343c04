"""Finding which call of one rank is which of another when counting alone does not tell.

Members of a collective leave it together, so with the right pairing the differences of their ends
all equal the offset between the two clocks. Each pair of calls of the same kind and size votes for
its difference; the difference with the most votes is the offset, and calls pair up where their
ends, shifted by it, meet.
"""

from __future__ import annotations

import numpy as np

from analyzer.intervals import IntArray

LEAST_TOLERANCE_NS = 100_000
MOST_TOLERANCE_NS = 20_000_000
MAX_VOTES = 4_000_000  # pairs of calls that are asked; beyond, the expected offset decides
ENOUGH = 0.5  # share of the possible pairs that the expected offset has to explain


def tolerance_ns(ends: IntArray) -> int:
    """How far ends of one collective may lie apart: a quarter of the usual time between two."""
    gaps = np.diff(np.sort(ends))
    usual = float(np.median(gaps)) if gaps.size else 0.0
    return int(min(max(usual / 4, LEAST_TOLERANCE_NS), MOST_TOLERANCE_NS))


def align(
    ends: IntArray, kinds: IntArray, others: IntArray, other_kinds: IntArray, expected_ns: float
) -> IntArray:
    """For each call of one rank the index of the same call of the other, -1 where there is none.

    Args:
        ends: when the calls of a rank ended, on its clock.
        kinds: a code of each call's operation and size.
        others: ends of the other rank, on its own clock.
        other_kinds: codes of the other rank.
        expected_ns: how far ``ends`` are thought to be behind ``others``; it wins where it explains
            half of what can be paired, and decides between differences with equally many votes.

    Returns:
        indices into ``others``. Calls whose ends meet but whose kinds differ are paired last: the
        caller reports them as desynchronised.
    """
    allowed = tolerance_ns(np.concatenate([ends, others]) if ends.size < 2 else ends)
    offset = expected_ns
    if ends.size * others.size <= MAX_VOTES:
        offset = _vote(ends, kinds, others, other_kinds, expected_ns, allowed)
    shifted = ends - round(offset)
    found = np.full(ends.size, -1, dtype=np.int64)
    for kind in np.intersect1d(kinds, other_kinds):
        mine, theirs = np.flatnonzero(kinds == kind), np.flatnonzero(other_kinds == kind)
        near = _nearest(shifted[mine], others[theirs], allowed)
        found[mine[near >= 0]] = theirs[near[near >= 0]]
    mine = np.flatnonzero(found < 0)
    theirs = np.setdiff1d(np.arange(others.size), found)
    near = _nearest(shifted[mine], others[theirs], allowed)
    found[mine[near >= 0]] = theirs[near[near >= 0]]
    return found


def _vote(
    ends: IntArray,
    kinds: IntArray,
    others: IntArray,
    other_kinds: IntArray,
    expected_ns: float,
    allowed: int,
) -> float:
    alike = kinds[:, None] == other_kinds[None, :]
    apart = np.sort((ends[:, None] - others[None, :])[alike])
    if apart.size == 0:
        return expected_ns
    votes = np.searchsorted(apart, apart + allowed, side="right") - np.arange(apart.size)
    near = int(np.sum(np.abs(apart - expected_ns) <= allowed))
    if near >= ENOUGH * min(ends.size, others.size):
        close = apart[np.abs(apart - expected_ns) <= allowed]
        return float(np.median(close))
    best = np.flatnonzero(votes == votes.max())
    centres = np.array([np.median(apart[i : i + votes[i]]) for i in best])
    return float(centres[np.argmin(np.abs(centres - expected_ns))])


def _nearest(values: IntArray, others: IntArray, allowed: int) -> IntArray:
    """Index of the other value closest to each, where both are each other's closest; else -1."""
    found = np.full(values.size, -1, dtype=np.int64)
    if values.size == 0 or others.size == 0:
        return found
    forth, back = _closest(values, others), _closest(others, values)
    mutual = back[forth] == np.arange(values.size)
    close = np.abs(others[forth] - values) <= allowed
    found[mutual & close] = forth[mutual & close]
    return found


def _closest(values: IntArray, others: IntArray) -> IntArray:
    order = np.argsort(others, kind="stable")
    ranked = others[order]
    after = np.clip(np.searchsorted(ranked, values), 0, ranked.size - 1)
    before = np.maximum(after - 1, 0)
    nearer = np.where(
        np.abs(ranked[before] - values) <= np.abs(ranked[after] - values), before, after
    )
    return np.asarray(order[nearer], dtype=np.int64)
