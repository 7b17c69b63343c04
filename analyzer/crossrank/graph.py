"""Values on a graph of ranks from differences along its edges."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from analyzer.intervals import IntArray

FloatArray: TypeAlias = NDArray[np.float64]

ROUNDS = 12
FLOOR_NS = 100.0  # differences below this count as agreement when outliers are weighed down


def components(size: int, a: IntArray, b: IntArray) -> IntArray:
    """Lowest node of each node's connected part."""
    label = np.arange(size)
    while True:
        low = np.minimum(label[a], label[b])
        after = label.copy()
        np.minimum.at(after, a, low)
        np.minimum.at(after, b, low)
        after = after[after]
        if np.array_equal(after, label):
            return label.astype(np.int64)
        label = after


def solve(
    size: int, a: IntArray, b: IntArray, difference: FloatArray, weight: FloatArray,
    floor: float = FLOOR_NS,
) -> FloatArray:  # fmt: skip
    """Node values whose differences ``x[b] - x[a]`` fit best; 0 at the lowest node of each part.

    Least squares on the graph's Laplacian, reweighted by 1 / residual, which makes it least
    absolute deviations: an edge that contradicts the others loses its say.

    Args:
        size: nodes.
        a: one end of each edge.
        b: the other end.
        difference: measured ``x[b] - x[a]``.
        weight: trust in each edge, > 0.
        floor: residuals below this are not told apart.
    """
    values = np.zeros(size)
    part = components(size, a, b)
    for root in np.unique(part):
        nodes = np.flatnonzero(part == root)
        if nodes.size == 1:
            continue
        at = np.searchsorted(nodes, a)
        mine = part[a] == root
        first, second = at[mine], np.searchsorted(nodes, b[mine])
        values[nodes] = _solve_part(
            nodes.size, first, second, difference[mine], weight[mine], floor
        )
    return values


def _solve_part(
    size: int, a: NDArray[np.intp], b: NDArray[np.intp], y: FloatArray, w: FloatArray, floor: float
) -> FloatArray:
    x = np.zeros(size)
    trust = w.copy()
    for _ in range(ROUNDS):
        laplacian = np.zeros((size, size))
        np.add.at(laplacian, (a, a), trust)
        np.add.at(laplacian, (b, b), trust)
        np.add.at(laplacian, (a, b), -trust)
        np.add.at(laplacian, (b, a), -trust)
        right = np.bincount(b, trust * y, size) - np.bincount(a, trust * y, size)
        before = x
        x = np.zeros(size)
        x[1:] = np.linalg.solve(laplacian[1:, 1:], right[1:])
        if np.abs(x - before).max() <= floor / 100:
            break
        trust = w / np.maximum(np.abs(x[b] - x[a] - y), floor)
    return x


def bounds(
    size: int, a: IntArray, b: IntArray, low: FloatArray, high: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Least and largest ``x`` of every node against the lowest of its part.

    ``low <= x[b] - x[a] <= high`` on every edge, carried along all paths (Bellman and Ford).
    """
    root = components(size, a, b) == np.arange(size)
    least = np.where(root, 0.0, -np.inf)
    most = np.where(root, 0.0, np.inf)
    for _ in range(size):
        down, up = least.copy(), most.copy()
        np.maximum.at(down, b, least[a] + low)
        np.maximum.at(down, a, least[b] - high)
        np.minimum.at(up, b, most[a] + high)
        np.minimum.at(up, a, most[b] - low)
        down[root], up[root] = 0.0, 0.0
        if np.array_equal(down, least) and np.array_equal(up, most):
            break
        least, most = down, up
    return least, most
