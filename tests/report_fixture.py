"""A small FSDP x TP job made by hand, for the tests of reports.

The layout of every step is written down here event by event, and the budget is found by brute
force (every elementary segment between two event borders is asked what runs in it), so reports
are tested on figures that add up without any other part of the program.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise

import polars as pl

from analyzer import schema
from analyzer.measure.results import AxisSummary, Budget, Coverage, Measurements, RankSummary
from analyzer.model import (
    AxisLabel,
    Evidence,
    EvidenceRow,
    Finding,
    GateResult,
    LeftOut,
    Outcome,
    Quantity,
    Severity,
    Verdict,
)
from analyzer.strategy import Strategy

US = 1_000
ORIGIN = 1_700_000_000_000_000_000
RANKS = tuple(range(8))
STEPS = 4
LAYERS = 6
HOSTILE = (
    '</script><img src=x onerror="alert(1)">\u202egnp.exe\u202c & "quoted" | `tick` '
    "[bold]x[/bold] \x1b[31m@team"
)


@dataclass(frozen=True)
class Event:
    start: int
    end: int
    stream: int
    name: str
    work: str
    axis: str | None = None
    op: str | None = None
    size: int | None = None


def step_events(rank: int, start: int, hostile: bool) -> list[Event]:
    """One step: forward layers with all-gathers and TP all-reduces, backward, optimizer."""
    slow = 60 * US if rank == 3 else 0
    events: list[Event] = []
    t = start

    def add(duration: int, *rest: object, at: int | None = None) -> int:
        begin = t if at is None else at
        events.append(Event(begin, begin + duration, *rest))  # type: ignore[arg-type]
        return begin + duration

    gather = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    reduce = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    scatter = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    gemm = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"
    t = add(30 * US, 7, "Memcpy HtoD (Pinned -> Device)", "memcpy")
    t = add(180 * US, 20, gather, "comm", "dp_shard", "all_gather", 32 << 20)
    for layer in range(2 * LAYERS):
        backward = layer >= LAYERS
        if layer % LAYERS < LAYERS - 1:
            add(150 * US, 20, gather, "comm", "dp_shard", "all_gather", 32 << 20)
        if backward:
            add(
                260 * US,
                20,
                scatter,
                "comm",
                "dp_shard",
                "reduce_scatter",
                64 << 20,
                at=t + 160 * US,
            )
        name = HOSTILE if hostile and layer == 2 else gemm
        t = add((300 if not backward else 560) * US, 7, name, "compute")
        t = add((90 * US) + slow, 24, reduce, "comm", "tp", "all_reduce", 16 << 20)
        t += 6 * US
        t = add(40 * US, 7, "void at::native::vectorized_elementwise_kernel<4>", "compute")
    t += 120 * US
    return [*events, Event(t, t + 400 * US, 7, "multi_tensor_apply_kernel<FusedAdam>", "compute")]


def activity_of(rank: int, hostile: bool = False) -> tuple[pl.DataFrame, list[int]]:
    """The rank's ACTIVITY table and its step borders."""
    rows: list[dict[str, object]] = []
    borders = [ORIGIN + rank * 3 * US]
    for step in range(STEPS):
        events = step_events(rank, borders[-1], hostile)
        for e in events:
            rows.append(
                {
                    "start_ns": e.start, "end_ns": e.end, "lane": 0, "stream": e.stream,
                    "name": e.name, "work": e.work, "axis": e.axis, "op": e.op,
                    "message_bytes": e.size, "phase": "unknown", "step": step, "event": len(rows),
                }
            )  # fmt: skip
        borders.append(max(e.end for e in events) + 50 * US)
    frame = pl.DataFrame(rows, infer_schema_length=None).sort("lane", "start_ns", "end_ns")
    return schema.conform(frame, schema.ACTIVITY), borders


def sweep(activity: pl.DataFrame, lo: int, hi: int) -> Counter[tuple[str, str]]:
    """(state, detail) -> ns by looking at every elementary segment of the window."""
    events = [e for e in activity.iter_rows(named=True) if e["end_ns"] > lo and e["start_ns"] < hi]
    edges = {lo, hi} | {t for e in events for t in (e["start_ns"], e["end_ns"])}
    cuts = sorted(t for t in edges if lo <= t <= hi)
    found: Counter[tuple[str, str]] = Counter()
    for a, b in pairwise(cuts):
        running = [e for e in events if e["start_ns"] <= a and e["end_ns"] >= b]
        axes = sorted({e["axis"] for e in running if e["work"] == "comm"})
        if any(e["work"] == "compute" for e in running):
            found["compute", ""] += b - a
        elif axes:
            for i, axis in enumerate(axes):
                found["exposed_comm", axis] += (b - a) // len(axes) + (i < (b - a) % len(axes))
        elif running:
            found["memcpy", ""] += b - a
        else:
            found["idle", "sync" if b - a > 100 * US else "host_bound"] += b - a
    return found


def as_budget(parts: Counter[tuple[str, str]], n: int = 1) -> Budget:
    """Parts of ``n`` equal steps as their mean (the fixture's durations divide evenly)."""
    details = {
        s: {d: v // n for (t, d), v in parts.items() if t == s} for s in ("exposed_comm", "idle")
    }
    compute, memcpy = parts["compute", ""] // n, parts["memcpy", ""] // n
    time = compute + memcpy + sum(details["exposed_comm"].values()) + sum(details["idle"].values())
    return Budget(time, compute, details["exposed_comm"], 0, memcpy, details["idle"])


def make_measurements(
    ranks: tuple[int, ...] = RANKS, hostile: bool = False
) -> tuple[Measurements, dict[int, pl.DataFrame]]:
    """Measurements of the job and its activity tables. The first step is not kept."""
    activity: dict[int, pl.DataFrame] = {}
    steps: list[dict[str, object]] = []
    budget: list[dict[str, object]] = []
    origin: dict[int, int] = {}
    per_rank: list[RankSummary] = []
    whole: Counter[tuple[str, str]] = Counter()
    for rank in ranks:
        activity[rank], borders = activity_of(rank, hostile)
        origin[rank] = borders[0]
        mine: Counter[tuple[str, str]] = Counter()
        for step in range(STEPS):
            lo, hi = borders[step], borders[step + 1]
            parts = sweep(activity[rank], lo, hi)
            kept = step > 0
            steps.append(
                {
                    "rank": rank, "index": step, "label": f"ProfilerStep#{step + 10}", "lane": 0,
                    "start_ns": lo, "end_ns": hi, "host_start_ns": None, "host_end_ns": None,
                    "device_events": activity[rank].filter(pl.col("step") == step).height,
                    "kept": kept, "reason": "" if kept else "incomplete: capture began inside it",
                }
            )  # fmt: skip
            for (state, detail), ns in parts.items():
                budget.append(
                    {"rank": rank, "lane": 0, "step": step, "kept": kept, "state": state,
                     "detail": detail, "ns": ns}
                )  # fmt: skip
            if kept:
                mine.update(parts)
        mean = as_budget(mine, STEPS - 1)
        per_rank.append(RankSummary(rank, 0, STEPS - 1, mean, pct(mean)))
        whole.update(mine)
    mean = as_budget(whole, (STEPS - 1) * len(ranks))
    step_types = {"rank": pl.Int32, "index": pl.Int32, "lane": pl.Int32}
    return (
        Measurements(
            inputs=tuple(f"traces/rank{r}.json.gz" for r in ranks) if not hostile else (HOSTILE,),
            world_size=8,
            ranks=ranks,
            device="NVIDIA H100 80GB HBM3",
            framework="pytorch",
            backend="nccl",
            mesh={"dp_shard": 4, "tp": 2},
            mesh_source="process group descriptions",
            axis_labels={
                "dp_shard": AxisLabel("dp_shard", Evidence.GROUP_DESC, 0.95, 4, "mesh_dp_shard"),
                "tp": AxisLabel("tp", Evidence.GROUP_DESC, 0.95, 2, "mesh_tp"),
            },
            strategy=Strategy("fsdp_tp", ("fsdp", "tp")),
            strategy_why="all-gather and reduce-scatter on dp_shard, all-reduce on tp",
            expect=Strategy("fsdp_tp", ("fsdp", "tp")),
            host_side=False,
            step_source="ProfilerStep",
            steps=pl.DataFrame(steps, infer_schema_length=None).cast(step_types),
            budget=schema.conform(pl.DataFrame(budget), schema.BUDGET),
            axis_step=schema.AXIS_STEP.empty(),
            comm_events=schema.COMM_EVENTS.empty(),
            host_step=schema.HOST_STEP.empty(),
            mean=mean,
            per_rank=tuple(per_rank),
            axes=axis_summaries(mean),
            exposed_comm_pct=sum(r.exposed_comm_pct for r in per_rank) / len(per_rank),
            bubble_pct=0.0,
            coverage=Coverage(
                ranks_expected=8,
                ranks_seen=ranks,
                steps_total=STEPS,
                steps_with_device_events=STEPS,
                unclassified_pct=0.4,
                dropped_events={"negative duration": 2},
                left_out=(LeftOut("traces/notes.txt", "not a trace"),),
            ),
            origin_ns=origin,
            warnings=("2 events with negative duration were dropped",),
        ),
        activity,
    )


def pct(budget: Budget) -> float:
    return 100 * budget.exposed_total_ns / budget.time_ns


def axis_summaries(mean: Budget) -> tuple[AxisSummary, ...]:
    """Per step: 11 all-gathers, 6 reduce-scatters, 12 TP all-reduces as laid out above."""
    tp = mean.exposed_comm_ns["tp"]
    shard = mean.exposed_comm_ns["dp_shard"]
    gather, scatter, minimum = 1_680 * US, 1_560 * US, 12 * 90 * US
    mib = float(1 << 20)
    first = "the first all-gather of the step"
    waited = "every all-reduce is waited for"
    hidden = 100 * (1 - shard / (gather + scatter))
    both = AxisSummary(
        "dp_shard", "", 17, 736 * mib, gather + scatter, shard, hidden, 180 * US, first
    )
    return (
        both,
        AxisSummary(
            "dp_shard", "all_gather", 11, 352 * mib, gather, shard, 100 - 100 * shard / gather
        ),
        AxisSummary("dp_shard", "reduce_scatter", 6, 384 * mib, scatter, 0, 100.0),
        AxisSummary("tp", "", 12, 192 * mib, tp, tp, 0.0, minimum, waited),
        AxisSummary("tp", "all_reduce", 12, 192 * mib, tp, tp, 0.0, minimum),
    )


def evidence_of(
    m: Measurements,
    activity: dict[int, pl.DataFrame],
    rank: int,
    step: int,
    op: str,
    note: str = "",
) -> EvidenceRow:
    """The longest such collective of a step, as a rule would point at it."""
    rows = activity[rank].filter((pl.col("step") == step) & (pl.col("op") == op))
    row = rows.with_columns(ns=pl.col("end_ns") - pl.col("start_ns")).sort("ns", descending=True)
    first = row.row(0, named=True)
    start = first["start_ns"] - m.origin_ns[rank]
    return EvidenceRow(rank, first["name"], start, first["ns"], step, note)


def make_outcomes(m: Measurements, activity: dict[int, pl.DataFrame]) -> tuple[Outcome, ...]:
    """A failing rule with evidence, an info one, and one of every other verdict."""
    assert m.mean is not None
    last = m.ranks[-1]
    step = m.mean.time_ns
    syncs = Finding(
        rule="HST002",
        title="The host waits for the device inside the step",
        severity=Severity.WARNING,
        axis=None,
        measured=Quantity(1.7, "%"),
        threshold=1.0,
        savings_ns=m.mean.idle_ns.get("sync", 0),
        ranks=m.ranks,
        steps=(1, 2, 3),
        evidence=tuple(
            EvidenceRow(r, "cudaStreamSynchronize", 20_000 * US, 120 * US, 2, "drains the stream")
            for r in m.ranks[:2]
        ),
        advice="Move .item() and .cpu() calls out of the step, or read them a step later.",
        doc="docs/rules/synchronisation-in-step.md",
    )
    tensor = Finding(
        rule="COM004",
        title="Tensor-parallel all-reduces stand on the critical path",
        severity=Severity.INFO,
        axis="tp",
        measured=Quantity(12.5, "%"),
        savings_ns=m.mean.exposed_comm_ns["tp"],
        ranks=(3,),
        steps=(1,),
        evidence=(evidence_of(m, activity, last, 1, "all_reduce"),),
        advice="Overlap them with async tensor parallelism, or lower the degree.",
        doc="docs/rules/tensor-parallel-critical-path.md",
    )
    gather = Finding(
        rule="COM002",
        title="All-gathers start only after the compute before them",
        severity=Severity.ERROR,
        axis="dp_shard",
        measured=Quantity(180.0, "us"),
        threshold=20.0,
        roofline=0.0,
        savings_ns=step // 12,
        savings_kind="estimate",
        ranks=(0, 1, 2, 3),
        steps=(1, 2),
        evidence=(
            evidence_of(m, activity, m.ranks[0], 1, "all_gather", "no prefetch"),
            evidence_of(m, activity, last, 3, "all_gather", "no prefetch"),
        ),
        advice="Call set_modules_to_forward_prefetch on each FSDP unit.",
        doc="docs/rules/serialized-all-gather.md",
    )
    return (
        Outcome("COM002", "serialized-all-gather", Verdict.FAIL, "", (gather,)),
        Outcome("COM004", "tensor-parallel-critical-path", Verdict.PASS, "", (tensor,)),
        Outcome("HST002", "synchronisation-in-step", Verdict.WARN, "", (syncs,)),
        Outcome("HST003", "data-stall", Verdict.PASS),
        Outcome("STR001", "strategy-mismatch", Verdict.NOT_APPLICABLE, "no --expect was given"),
        Outcome("ACME01", "house-rule", Verdict.ERROR, "KeyError: 'layer'"),
    )


GATES = (
    GateResult("max-exposed-comm 15%", 15.0, 12.8, True),
    GateResult("max-exposed-comm tp=8%", 8.0, 11.4, False),
    GateResult("max-bubble 5%", 5.0, None, None, "waits cannot be told from transfers"),
)


def with_hostile_text(
    m: Measurements, outcomes: tuple[Outcome, ...]
) -> tuple[Measurements, tuple[Outcome, ...]]:
    """The same job with text no renderer may take for its own markup."""
    first = outcomes[0].findings[0]
    row = replace(first.evidence[0], name=HOSTILE, note=HOSTILE)
    finding = replace(first, title=f"Title {HOSTILE}", advice=f"Advice {HOSTILE}", evidence=(row,))
    hostile = replace(
        m, device=HOSTILE, warnings=(HOSTILE,), conflicts=(HOSTILE,), strategy_why=HOSTILE
    )
    return hostile, (replace(outcomes[0], findings=(finding,)), *outcomes[1:])
