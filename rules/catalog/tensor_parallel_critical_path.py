"""Tensor-parallel collectives that the computation waits for: their cost, and what would hide it.

## What it measures
The time per step in which tensor-parallel collectives (with sequence parallelism: the same group,
all-gathers and reduce-scatters) run and no compute kernel does, and how much of it goes beyond the
typical duration of these collectives, i.e. is waiting for a peer.

## Roofline
Plain tensor parallelism needs every collective's result at once: its exposed minimum is all of it.
Only decomposing the matrix multiplications (async TP) lowers that. The time is therefore shown as a
cost with its remedies, never as a defect: the finding has severity info.

## Why it matters
These collectives are paid in every layer, forward and backward, independent of batch size; they are
what limits the tensor-parallel degree.

## How to fix
- Plain all-reduces: turn on sequence parallelism (torch `SequenceParallel`, Megatron-LM
  `--sequence-parallel`). The bytes stay the same, the norms run sharded and async TP becomes
  possible.
- Async TP: `torch._inductor.config._micro_pipeline_tp = True` with symmetric memory (torchtitan
  `enable_async_tensor_parallel`), Megatron-LM `--tp-comm-overlap`.
- A smaller degree: the time falls with the degree as long as the model fits; keep the group inside
  one node.
- Fewer bytes: fp8 all-gathers (torchao `Float8ColwiseParallel`, `Float8RowwiseParallel`).

## Example
LLaMA-3-70B, tensor-parallel over 8 H100, 8192 tokens: eight 134 MB collectives a layer of 0.26 ms
each stand against 5.3 ms of matrix multiplications, 28 % if nothing overlaps.

## When it is silent
Without tensor-parallel communication, and when its exposed time is below `info_pct` of the step.

## References
- Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023.
- PyTorch, "Introducing Async Tensor Parallelism in PyTorch", 2024.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from analyzer.model import Finding, Quantity, Severity
from rules.evidence import comm_evidence, ranks_of, steps_of
from rules.judge import PCT_OF_STEP
from rules.needs import KEPT_STEP
from rules.reading import axis_parts, comm_events, ops_on, share_pct
from rules.spec import Need, Rule, option
from rules.wording import ms, pct

if TYPE_CHECKING:
    from analyzer.measure.results import AxisSummary, Measurements

AXES = ("tp", "etp")


@dataclass(frozen=True, slots=True)
class Options:
    """Limits of the rule."""

    info_pct: float = option(0.1, "Below this exposed share nothing is said.", unit=PCT_OF_STEP)


def _tensor_parallel(m: Measurements) -> list[AxisSummary]:
    return [a for a in m.axes if not a.op and a.count > 0 and axis_parts(a.axis) & set(AXES)]


def check(m: Measurements, o: Options) -> Iterator[Finding]:
    """One finding a tensor-parallel axis that is exposed at all."""
    for axis in _tensor_parallel(m):
        share = share_pct(m, axis.exposed_ns)
        if share < o.info_pct:
            continue
        events = comm_events(m, AXES).filter(pl.col("axis") == axis.axis)
        shown = events.filter(pl.col("exposed_ns") > 0)
        minimum_ns = axis.expected_exposed_ns
        yield RULE.finding(
            f"{axis.axis} collectives take {ms(axis.exposed_ns)} a step on the critical path",
            Severity.INFO,
            Quantity(share, PCT_OF_STEP),
            axis=axis.axis,
            threshold=o.info_pct,
            roofline=None if minimum_ns is None else share_pct(m, minimum_ns),
            savings_ns=axis.exposed_ns,
            ranks=ranks_of(shown),
            steps=steps_of(shown),
            evidence=comm_evidence(m, shown, "exposed_ns"),
            advice=_advice(m, axis),
        )


def _advice(m: Measurements, axis: AxisSummary) -> str:
    degree = m.mesh.get(axis.axis)
    over = f" over {degree} ranks" if degree else ""
    mean_ns = axis.comm_ns / axis.count
    text = f"{axis.count:.0f} collectives a step{over}, {ms(mean_ns)} each on average"
    if axis.overlap_pct is not None:
        text += f", {pct(axis.overlap_pct)} hidden"
    waiting_ns = axis.exposed_ns - (axis.expected_exposed_ns or axis.exposed_ns)
    if share_pct(m, waiting_ns) >= 1.0:
        text += f"; {ms(waiting_ns)} of it is beyond their typical duration: waiting for a peer"
    if "reduce_scatter" in ops_on(m, axis.axis):
        remedy = (
            "Async tensor parallelism runs them beside the matrix multiplications they feed "
            "(torch._inductor.config._micro_pipeline_tp, torchtitan enable_async_tensor_parallel, "
            "Megatron --tp-comm-overlap)"
        )
    else:
        remedy = (
            "Sequence parallelism (torch SequenceParallel, Megatron --sequence-parallel) replaces "
            "the all-reduces by all-gathers and reduce-scatters that async tensor parallelism "
            "(_micro_pipeline_tp, Megatron --tp-comm-overlap) can hide"
        )
    return (
        f"{text}. The strategy puts them on the critical path; this is a cost, not a defect. "
        f"{remedy}; a smaller degree or fp8 all-gathers (torchao Float8ColwiseParallel) cost less "
        f"to begin with. Worth at most {ms(axis.exposed_ns)} a step."
    )


TENSOR_PARALLEL = Need(
    "tensor-parallel communication",
    lambda m: None if _tensor_parallel(m) else "no tensor-parallel communication",
)

RULE = Rule(
    code="COM004",
    name="tensor-parallel-critical-path",
    title="Cost of tensor-parallel collectives on the critical path",
    axes=AXES,
    needs=(KEPT_STEP, TENSOR_PARALLEL),
    severity=Severity.INFO,
    options=Options,
    check=check,
    since="0.1",
)
