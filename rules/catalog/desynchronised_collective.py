"""Ranks of a group that call different things at the same position.

## What it measures
Calls of one group with the same sequence number (or, without numbers, at the same position of a
step) whose operation or message size differs between members. Such calls are never matched with
each other, and no wait is given for them.

## Roofline
None: all members of a group call the same collectives in the same order.

## Why it matters
Mismatched collectives hang the job, or mix up data when their sizes happen to fit. In a trace that
ended well they mean that ranks took different branches, or that the trace lacks events, and then
figures that compare these ranks are not to be trusted.

## How to fix
- `TORCH_DISTRIBUTED_DEBUG=DETAIL` checks every call's shape across ranks and names the first that
  differs; the NCCL flight recorder (`TORCH_FR_BUFFER_SIZE`) shows the calls before it.
- No collective inside a branch that depends on rank-local data (a skipped micro-batch, an unused
  parameter, a failed data item).
- `find_unused_parameters=True` or a static graph in DDP; equal numbers of batches on all ranks
  (`drop_last=True`).

## Example
At position 17 of the tensor-parallel group rank 0 reduces 4 MiB, rank 1 gathers 8 MiB.

## When it is silent
When all members agree. Uneven all-to-alls differ in size by design and do not count.

## References
- PyTorch documentation, `torch.distributed`: Debugging, Flight Recorder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from analyzer.model import EvidenceRow, Finding, Quantity, Severity
from rules.evidence import ROWS, ranks_of, steps_of
from rules.needs import SEVERAL_RANKS
from rules.spec import ALL_AXES, Rule, option
from rules.wording import listed_ranks, size

if TYPE_CHECKING:
    from analyzer.measure.results import Measurements


@dataclass(frozen=True, slots=True)
class Options:
    """Limits of the rule."""

    max_positions: int = option(0, "Positions of an axis at which ranks may disagree.")


def check(m: Measurements, o: Options) -> Iterator[Finding]:
    """One finding an axis."""
    if m.crossrank is None:
        return
    for (axis,), calls in m.crossrank.desynchronised.group_by("axis", maintain_order=True):
        positions = calls["position"].n_unique()
        if positions <= o.max_positions:
            continue
        noun = "position" if positions == 1 else "positions"
        first = calls.filter(pl.col("position") == calls["position"].min())
        what = "; ".join(f"rank {row['rank']}: {_call(row)}" for row in first.head(4).to_dicts())
        yield RULE.finding(
            f"Ranks disagree on {axis} collectives at {positions} {noun}",
            Severity.WARNING,
            Quantity(float(positions), "positions"),
            axis=str(axis),
            threshold=float(o.max_positions),
            ranks=ranks_of(calls),
            steps=steps_of(calls.filter(pl.col("step") >= 0)),
            evidence=tuple(_evidence(m, row) for row in calls.head(ROWS).to_dicts()),
            advice=f"At the first one, {what}. Look for a collective in a branch that only "
            f"{listed_ranks(ranks_of(first)).lower()} took differently; run with "
            "TORCH_DISTRIBUTED_DEBUG=DETAIL to have every call checked.",
        )


def _call(row: dict[str, Any]) -> str:
    return str(row["op"]) + ("" if row["bytes"] is None else f" of {size(row['bytes'])}")


def _evidence(m: Measurements, row: dict[str, Any]) -> EvidenceRow:
    return EvidenceRow(
        rank=row["rank"],
        name=row["op"],
        start_ns=row["start_ns"] - m.origin_ns.get(row["rank"], 0),
        dur_ns=row["end_ns"] - row["start_ns"],
        step=row["step"] if row["step"] >= 0 else None,
        note=_call(row) + ("" if row["seq"] is None else f", sequence number {row['seq']}"),
    )


RULE = Rule(
    code="COM006",
    name="desynchronised-collective",
    title="Ranks that call different collectives at the same position",
    axes=ALL_AXES,
    needs=(SEVERAL_RANKS,),
    severity=Severity.WARNING,
    options=Options,
    check=check,
    since="0.1",
)
