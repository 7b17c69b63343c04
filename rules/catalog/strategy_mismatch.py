"""A stated strategy that the trace does not show.

## What it measures
The axes and kinds of collectives seen in the kept steps against those that `--expect` implies:
an axis without communication, communication on an axis nobody stated, the wrong kinds for the
strategy, the ratio of all-gathers to reduce-scatters, and stated degrees against the mesh.

## Roofline
None: this is about what runs, not how fast.

## Why it matters
A wrapper that silently fell back (FSDP applied to nothing, tensor parallelism on a mesh of size
one) trains correctly and slowly or runs out of memory. And the exposed minimum of every other
figure follows from the strategy: a wrong one makes them wrong.

## How to fix
- The statement is wrong: pass what the job runs to `--expect`.
- The job is wrong: check the device mesh, that `fully_shard`, `parallelize_module` or DDP received
  the sub-mesh that was meant, and `reshard_after_forward` (True: ZeRO-3, False: ZeRO-2).
- The labels are wrong: state the mesh with `--mesh`, outermost axis first.

## Example
`--expect fsdp_tp`, but `dp_shard` only runs all-reduces: the parameters are replicated (DDP).

## When it is silent
Without `--expect`, on axes of degree 1, on small traffic (`min_comm_pct`) of unstated axes, and on
variants of the stated strategy such as tensor parallelism with sequence parallelism.

## References
- Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020.
- PyTorch documentation, `fully_shard`, `parallelize_module`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analyzer.model import UNKNOWN_AXIS, WORLD_AXIS, Finding, Quantity, Severity
from analyzer.strategy import AxisExpectation, Strategy
from rules.judge import PCT_OF_STEP
from rules.needs import EXPECTATION, KEPT_STEP
from rules.reading import axis_parts, counts_by_part, share_pct
from rules.spec import ALL_AXES, Rule, option

if TYPE_CHECKING:
    from analyzer.measure.results import Measurements

IMPLIED = {"edp": "ep", "etp": "ep"}
"""Axes that a stated one brings with it: experts have their own data and tensor parallelism."""
RESHARDS = 1.5
"""All-gathers per reduce-scatter: 2 when parameters are gathered again for backward, else 1."""
COUNT, RATIO = "collectives a step", "all-gathers per reduce-scatter"


@dataclass(frozen=True, slots=True)
class Options:
    """Limits of the rule."""

    min_comm_pct: float = option(
        0.5, "Communication on an unstated axis below this is ignored.", unit=PCT_OF_STEP
    )


def check(m: Measurements, o: Options) -> Iterator[Finding]:
    """One finding a difference between what was stated and what was seen."""
    stated = m.expect or Strategy("")
    seen = counts_by_part(m)
    like = f" The trace looks like {m.strategy.text}." if m.strategy.text else ""
    for expected in stated.axes.values():
        ops, degree = seen.get(expected.axis, {}), m.mesh.get(expected.axis)
        if expected.degree and degree and degree != expected.degree:
            yield _wrong_degree(m, stated, expected, degree)
        elif 1 in (expected.degree, degree):
            continue
        elif not ops:
            yield _missing(m, expected, like)
        if ops and not all(either & ops.keys() for either in expected.required):
            yield _wrong_kind(m, expected, ops, like)
        elif ops:
            yield from _resharding(m, expected, ops)
    yield from _unstated(m, stated, o, like)


def _listed(ops: Mapping[str, float]) -> str:
    return ", ".join(f"{count:.0f} {op}" for op, count in sorted(ops.items(), key=lambda i: -i[1]))


def _missing(m: Measurements, expected: AxisExpectation, like: str) -> Finding:
    unlabelled = any(a.axis == UNKNOWN_AXIS and a.count > 0 for a in m.axes)
    hint = " Some groups could not be labelled: state the mesh with --mesh." if unlabelled else ""
    return RULE.finding(
        f"{expected.word} was stated, but there is no communication on {expected.axis}",
        Severity.ERROR,
        Quantity(0.0, COUNT),
        axis=expected.axis,
        ranks=m.ranks,
        advice=f"Check that {expected.word} is applied and its mesh dimension is larger than 1, or "
        f"correct --expect.{hint}{like}",
    )


def _wrong_kind(
    m: Measurements, expected: AxisExpectation, ops: Mapping[str, float], like: str
) -> Finding:
    missing = [" or ".join(sorted(any_)) for any_ in expected.required if not any_ & ops.keys()]
    if expected.axis == "dp_shard" and "all_reduce" in ops and "all_gather" not in ops:
        like = " All-reduces alone mean replicated parameters: it looks like ddp."
    elif expected.axis == "dp_replicate" and {"all_gather", "reduce_scatter"} <= ops.keys():
        like = " All-gathers and reduce-scatters mean sharded parameters: it looks like fsdp."
    return RULE.finding(
        f"{expected.word} was stated, but {expected.axis} shows no {' and no '.join(missing)}",
        Severity.ERROR,
        Quantity(0.0, COUNT),
        axis=expected.axis,
        ranks=m.ranks,
        advice=f"Seen a step on {expected.axis}: {_listed(ops)}.{like} Check how the model is "
        "wrapped, or correct --expect.",
    )


def _wrong_degree(
    m: Measurements, stated: Strategy, expected: AxisExpectation, degree: int
) -> Finding:
    read = " fsdp2 was read as fsdp over 2 ranks: for PyTorch's FSDP2 (fully_shard) write fsdp."
    api = expected.degree == 2 and "fsdp2" in re.split(r"[_+\s]+", stated.text.lower())
    return RULE.finding(
        f"{expected.axis} was stated as {expected.degree}, the trace shows {degree}",
        Severity.ERROR,
        Quantity(float(degree), "ranks"),
        axis=expected.axis,
        threshold=float(expected.degree or 0),
        ranks=m.ranks,
        advice=f"Check the device mesh of the job: {expected.axis} spans {degree} ranks."
        f"{read if api else ''}",
    )


def _resharding(
    m: Measurements, expected: AxisExpectation, ops: Mapping[str, float]
) -> Iterator[Finding]:
    """Whether parameters are gathered once or twice a step, where the strategy says which."""
    gathers, reductions = ops.get("all_gather", 0.0), ops.get("reduce_scatter", 0.0)
    if expected.axis != "dp_shard" or not gathers or not reductions:
        return
    again = gathers / reductions >= RESHARDS
    if again == (expected.word not in ("zero1", "zero2")):
        return
    found = "gathers parameters again, like ZeRO-3" if again else "keeps parameters, like ZeRO-2"
    yield RULE.finding(
        f"{expected.word} was stated; after forward the job {found}",
        Severity.WARNING if again else Severity.INFO,
        Quantity(gathers / reductions, RATIO),
        axis=expected.axis,
        threshold=RESHARDS,
        ranks=m.ranks,
        advice=f"Seen a step: {_listed(ops)}. reshard_after_forward=True (ZeRO-3) saves memory, "
        "False (ZeRO-2) saves the second all-gather.",
    )


def _unstated(m: Measurements, stated: Strategy, o: Options, like: str) -> Iterator[Finding]:
    allowed = {WORLD_AXIS, UNKNOWN_AXIS, *stated.axes}
    allowed |= {axis for axis, by in IMPLIED.items() if by in stated.axes}
    for axis in m.axes:
        share = share_pct(m, axis.comm_ns)
        if axis.op or share < o.min_comm_pct or axis_parts(axis.axis) & allowed:
            continue
        yield RULE.finding(
            f"{axis.axis} communicates, but {stated.text} has no such axis",
            Severity.WARNING,
            Quantity(share, PCT_OF_STEP),
            axis=axis.axis,
            threshold=o.min_comm_pct,
            ranks=m.ranks,
            advice=f"Add it to --expect if it is meant; state --mesh if the label is wrong.{like}",
        )


RULE = Rule(
    code="STR001",
    name="strategy-mismatch",
    title="The stated strategy is not what the trace shows",
    axes=ALL_AXES,
    needs=(EXPECTATION, KEPT_STEP),
    severity=Severity.ERROR,
    options=Options,
    check=check,
    since="0.1",
)
