"""All comparisons of a job's ranks, put together."""

from __future__ import annotations

from collections.abc import Sequence

from analyzer import schema
from analyzer.crossrank.bandwidth import Network
from analyzer.crossrank.calls import calls_of
from analyzer.crossrank.clock import estimate
from analyzer.crossrank.leftover import unmatched
from analyzer.crossrank.match import match
from analyzer.crossrank.results import CrossRank
from analyzer.crossrank.split import axis_figures, busbw, in_kept_steps, split, waits
from analyzer.crossrank.traffic import traffic
from analyzer.model import LabeledRank


def compare_ranks(ranks: Sequence[LabeledRank], network: Network) -> CrossRank | None:
    """Match, align and split the communication of several ranks; None for a single one.

    Args:
        ranks: labelled ranks, all of one job.
        network: its links (:func:`analyzer.crossrank.bandwidth.network_of`).
    """
    if len(ranks) < 2:
        return None
    calls = calls_of(ranks)
    matched = match(calls)
    hosts = {rank.trace.rank: rank.trace.meta.host for rank in ranks}
    clock = estimate(matched.instances, hosts)
    splits = split(matched.instances, clock, network)
    kept = in_kept_steps(splits, ranks)
    return CrossRank(
        clock=clock,
        network=network,
        instances=matched.instances,
        splits=schema.conform(splits, schema.SPLITS),
        figures=axis_figures(kept),
        waits=waits(kept, ranks),
        busbw=busbw(kept),
        unmatched=unmatched(calls, matched.instances, matched.desynchronised, clock, ranks),
        desynchronised=matched.desynchronised,
        traffic=traffic(ranks, calls.groups),
    )
