"""What comparing ranks yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from analyzer.crossrank.bandwidth import Network
    from analyzer.crossrank.clock import Clock


@dataclass(frozen=True, slots=True)
class CrossRank:
    """Tables by their name in :mod:`analyzer.schema`, the clock model and the links.

    ``figures`` holds the sums of :func:`analyzer.crossrank.split.axis_figures`.
    """

    clock: Clock
    network: Network
    instances: pl.DataFrame
    splits: pl.DataFrame
    figures: pl.DataFrame
    waits: pl.DataFrame
    busbw: pl.DataFrame
    unmatched: pl.DataFrame
    desynchronised: pl.DataFrame
    traffic: pl.DataFrame
