"""A device mesh and the rank arithmetic on it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from analyzer.model import WORLD_AXIS


@dataclass(frozen=True, slots=True)
class Mesh:
    """A device mesh: axis -> degree, outermost first."""

    axes: Mapping[str, int]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return prod(self.axes.values())

    def stride(self, axis: str) -> int:
        """Distance of neighbours on an axis in global ranks."""
        names = list(self.axes)
        return prod(self.axes[inner] for inner in names[names.index(axis) + 1 :])

    def coordinates(self, rank: int) -> dict[str, int]:
        """A rank's position on every axis."""
        return {axis: rank // self.stride(axis) % degree for axis, degree in self.axes.items()}

    def group(self, axes: Sequence[str], rank: int) -> tuple[int, ...]:
        """Ranks that differ from ``rank`` only on ``axes``."""
        position = self.coordinates(rank)
        choices = [range(d) if a in axes else [position[a]] for a, d in self.axes.items()]
        return tuple(
            sum(index * self.stride(axis) for axis, index in zip(self.axes, combo, strict=True))
            for combo in itertools.product(*choices)
        )

    def axis_of(self, ranks: Sequence[int]) -> str | None:
        """The axis, or axes joined by ``+``, whose group these ranks are; None if there is none.

        All ranks are :data:`~analyzer.model.WORLD_AXIS` where the mesh has several axes.
        """
        if not ranks or max(ranks) >= self.size or len(set(ranks)) != len(ranks):
            return None
        real = [axis for axis, degree in self.axes.items() if degree > 1]
        first = self.coordinates(ranks[0])
        moving = [a for a in real if any(self.coordinates(r)[a] != first[a] for r in ranks)]
        if prod(self.axes[axis] for axis in moving) != len(ranks):
            return None
        if set(self.group(moving, ranks[0])) != set(ranks):
            return None
        if len(moving) > 1 and len(ranks) == self.size:
            return WORLD_AXIS
        return "+".join(moving) or None
