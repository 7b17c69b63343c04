"""The known truth of a simulated job: where each step's time really went.

Computed from the simulated intervals by a plain sweep over every instant at which anything starts
or ends, sharing no code with the analyzer it is there to test. Definitions:

* **Window** of a step: from its first device event (by launch) to the next step's; the first one
  starts at the earlier of its host start and its first device event, the last one ends at the
  later of its host end and its last device event.
* **State** of an instant, first match: compute kernel, communication (its axes), copy, idle.
  Axes that communicate together without compute share that time equally: per step, the total of
  each combination of axes is divided, the remainder going to the first axes in canonical order.
* **Idle** gap ``[a, b)``, ended by device events starting at ``b`` whose earliest launch call
  started at ``l``: ``[a, min(l, b))`` is host time, split into ``data`` (inside the dataloader),
  ``sync`` (the launching thread is inside a synchronising call) and ``host_bound``; the rest of
  the gap is ``other``. Behind the last device event, host time lasts until the window ends.
* **Standalone** figures of an axis: union of its intervals within the window, and that minus
  compute; ``count`` and ``bytes`` are of the collectives launched in the step.

Truth is what happened, also where a defect keeps it out of the files (``missing-launches``).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analyzer.model import axis_sort_key
from collectors.simulate.engine import DeviceEvent, RankRecord, instance_key
from collectors.simulate.programs.step import DATALOADER
from collectors.simulate.tape import Thread

SYNC_CALLS = frozenset({"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"})

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Window:
    """A step's window on one rank."""

    step: int
    start_ns: int
    end_ns: int


def job_truth(records: Sequence[RankRecord], origin_ns: int) -> dict[str, Any]:
    """Truth of all ranks and the means over all steps and ranks.

    Args:
        records: What happened.
        origin_ns: Unix time of the job's time 0, added to the windows' bounds.
    """
    ranks = [
        {"rank": record.rank, "steps": [_shift(step, origin_ns) for step in rank_truth(record)]}
        for record in records
    ]
    return {"ranks": ranks, "mean": _mean(ranks)}


def instance_truth(records: Sequence[RankRecord]) -> list[dict[str, Any]]:
    """Wait and transfer of every collective and transfer, in true time.

    One entry an instance: axis, op, ranks of the group, sequence number, ``transfer_ns`` (from the
    last member's start to the end of all) and, by rank, ``wait_ns`` (from its own start on).
    """
    members: dict[tuple[Any, ...], list[tuple[int, DeviceEvent]]] = defaultdict(list)
    for record in records:
        for event in record.device:
            if event.work.collective is not None:
                key = instance_key(event.work.collective, record.rank, event.seq)
                members[key].append((record.rank, event))
    entries = []
    for joined in members.values():
        call = joined[0][1].work.collective
        latest = max(event.start_ns for _, event in joined)
        entries.append(
            {
                "axis": call and call.axis,
                "op": call and call.op,
                "group": call and call.group.ranks,
                "seq": joined[0][1].seq,
                "transfer_ns": min(event.end_ns for _, event in joined) - latest,
                "wait_ns": {rank: latest - event.start_ns for rank, event in joined},
            }
        )
    return entries


def rank_truth(record: RankRecord) -> list[dict[str, Any]]:
    """One entry a step: window, budget and standalone figures of each axis."""
    host = _Host(record)
    return [_step_truth(record, window, host) for window in windows(record)]


def windows(record: RankRecord) -> list[Window]:
    """Step windows, which touch and do not overlap. Steps without device events have none."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for event in record.device:
        first[event.step] = min(first.get(event.step, event.start_ns), event.start_ns)
        last[event.step] = max(last.get(event.step, event.end_ns), event.end_ns)
    marks = [mark for mark in record.steps if mark.number in first]
    if not marks:
        return []
    starts = [first[mark.number] for mark in marks]
    starts[0] = min(starts[0], marks[0].start_ns)
    ends = [*starts[1:], max(marks[-1].end_ns, last[marks[-1].number])]
    return [
        Window(mark.number, start, end)
        for mark, start, end in zip(marks, starts, ends, strict=True)
    ]


def axis_of(event: DeviceEvent) -> str | None:
    """The axis an event communicates on, None when it does not communicate."""
    collective = event.work.collective
    return None if collective is None else collective.axis


def _step_truth(record: RankRecord, window: Window, host: _Host) -> dict[str, Any]:
    inside = [e for e in record.device if e.start_ns < window.end_ns and e.end_ns > window.start_ns]
    shared: dict[tuple[str, ...], int] = defaultdict(int)
    states = {"compute_ns": 0, "memcpy_ns": 0}
    idle: dict[str, int] = dict.fromkeys(("data", "sync", "host_bound", "other"), 0)
    for start, end, state, axes in _states(inside, window):
        if state == "comm":
            shared[axes] += end - start
        elif state != "idle":
            states[f"{state}_ns"] += end - start
    next_up = [e for e in record.device if e.start_ns == window.end_ns]
    for gap in _gaps([*inside, *next_up], window):
        for cause, ns in host.split(gap, window.end_ns):
            idle[cause] += ns
    return {
        "step": window.step,
        "start_ns": window.start_ns,
        "end_ns": window.end_ns,
        "time_ns": window.end_ns - window.start_ns,
        "compute_ns": states["compute_ns"],
        "exposed_comm_ns": _share(shared),
        "memcpy_ns": states["memcpy_ns"],
        "idle_ns": idle,
        "axes": _standalone(record, inside, window),
    }


def _states(
    events: Sequence[DeviceEvent], window: Window
) -> Iterator[tuple[int, int, str, tuple[str, ...]]]:
    """Elementary intervals of the window with their state and, for comm, the active axes."""
    deltas: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for event in events:
        kind = axis_of(event) or ("compute" if event.work.kind == "kernel" else "memcpy")
        deltas[max(event.start_ns, window.start_ns)].append((kind, 1))
        deltas[min(event.end_ns, window.end_ns)].append((kind, -1))
    deltas[window.start_ns] += []
    deltas[window.end_ns] += []
    running: dict[str, int] = defaultdict(int)
    for start, end in itertools.pairwise(sorted(deltas)):
        for kind, delta in deltas[start]:
            running[kind] += delta
        active = {kind for kind, count in running.items() if count}
        axes = active - {"compute", "memcpy"}
        if "compute" in active:
            yield start, end, "compute", ()
        elif axes:
            yield start, end, "comm", tuple(sorted(axes, key=axis_sort_key))
        else:
            yield start, end, "memcpy" if active else "idle", ()


def _gaps(
    events: Sequence[DeviceEvent], window: Window
) -> Iterator[tuple[int, int, DeviceEvent | None]]:
    """Idle gaps of the window, each with the first-launched event that ends it.

    ``events`` include those that start as the window ends, which end its last gap.
    """
    free_ns = window.start_ns
    for event in sorted(events, key=lambda e: (e.start_ns, e.launch_start_ns)):
        if event.start_ns > free_ns:
            yield free_ns, event.start_ns, event
        free_ns = max(free_ns, event.end_ns)
    if window.end_ns > free_ns:
        yield free_ns, window.end_ns, None


def _share(shared: dict[tuple[str, ...], int]) -> dict[str, int]:
    exposed: dict[str, int] = defaultdict(int)
    for axes, total in shared.items():
        each, rest = divmod(total, len(axes))
        for position, axis in enumerate(axes):
            exposed[axis] += each + (position < rest)
    return {axis: exposed[axis] for axis in sorted(exposed, key=axis_sort_key)}


def _standalone(
    record: RankRecord, inside: Sequence[DeviceEvent], window: Window
) -> dict[str, dict[str, Any]]:
    """Per axis, and per collective of it: count, bytes, comm_ns, exposed_ns."""
    launched = [e for e in record.device if e.step == window.step]
    compute = _union(
        (e.start_ns, e.end_ns) for e in inside if axis_of(e) is None and e.work.kind == "kernel"
    )
    figures: dict[str, dict[str, Any]] = {}
    axes = {axis for e in (*inside, *launched) if (axis := axis_of(e)) is not None}
    for axis in sorted(axes, key=axis_sort_key):
        runs = [e for e in inside if axis_of(e) == axis]
        owns = [e for e in launched if axis_of(e) == axis]
        ops = sorted({_op(e) for e in (*runs, *owns)})
        figures[axis] = _figures(runs, owns, compute, window) | {
            "ops": {
                op: _figures(
                    [e for e in runs if _op(e) == op], [e for e in owns if _op(e) == op],
                    compute, window,
                )
                for op in ops
            }
        }  # fmt: skip
    return figures


def _op(event: DeviceEvent) -> str:
    return event.work.collective.op if event.work.collective else ""


def _figures(
    runs: Iterable[DeviceEvent], owns: Sequence[DeviceEvent], compute: list[Span], window: Window
) -> dict[str, int]:
    union = _union((max(e.start_ns, window.start_ns), min(e.end_ns, window.end_ns)) for e in runs)
    hidden = sum(
        max(0, min(end, busy_end) - max(start, busy_start))
        for start, end in union
        for busy_start, busy_end in compute
    )
    comm_ns = sum(end - start for start, end in union)
    sizes = (e.work.collective.message_bytes for e in owns if e.work.collective)
    return {
        "count": len(owns),
        "bytes": sum(sizes),
        "comm_ns": comm_ns,
        "exposed_ns": comm_ns - hidden,
    }


def _union(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


class _Host:
    """Where the host was: in the dataloader, in a synchronising call of a thread, or working."""

    def __init__(self, record: RankRecord) -> None:
        self.data = [(e.start_ns, e.end_ns) for e in record.host if e.name == DATALOADER]
        self.sync: dict[Thread, list[Span]] = defaultdict(list)
        for event in record.host:
            if event.name in SYNC_CALLS:
                self.sync[event.thread].append((event.start_ns, event.end_ns))

    def split(
        self, gap: tuple[int, int, DeviceEvent | None], window_end_ns: int
    ) -> Iterator[tuple[str, int]]:
        """An idle gap by cause."""
        start, end, event = gap
        launched = window_end_ns if event is None else event.launch_start_ns
        thread = Thread.MAIN if event is None else event.thread
        host_end = max(start, min(launched, end))
        yield "other", end - host_end
        bounds = {start, host_end}
        spans = (*self.data, *self.sync[thread])
        bounds |= {t for span in spans for t in span if start < t < host_end}
        for a, b in itertools.pairwise(sorted(bounds)):
            if any(s <= a and b <= e for s, e in self.data):
                yield "data", b - a
            elif any(s <= a and b <= e for s, e in self.sync[thread]):
                yield "sync", b - a
            else:
                yield "host_bound", b - a


def _shift(step: dict[str, Any], origin_ns: int) -> dict[str, Any]:
    return step | {key: step[key] + origin_ns for key in ("start_ns", "end_ns")}


def _mean(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over all steps and ranks: the budget in ns and the shares of the step in percent."""
    steps = [(rank["rank"], step) for rank in ranks for step in rank["steps"]]
    if not steps:
        return {}
    rows = [step for _, step in steps]
    exposed_pct: dict[int, list[float]] = defaultdict(list)
    for rank, step in steps:
        share = 100 * sum(step["exposed_comm_ns"].values()) / step["time_ns"]
        exposed_pct[rank].append(share)
    per_rank = {rank: sum(shares) / len(shares) for rank, shares in exposed_pct.items()}
    worst = max(per_rank, key=lambda rank: per_rank[rank])
    axes = sorted({axis for row in rows for axis in row["exposed_comm_ns"]}, key=axis_sort_key)
    return {
        "time_ns": _average(row["time_ns"] for row in rows),
        "compute_ns": _average(row["compute_ns"] for row in rows),
        "exposed_comm_ns": {
            axis: _average(row["exposed_comm_ns"].get(axis, 0) for row in rows) for axis in axes
        },
        "memcpy_ns": _average(row["memcpy_ns"] for row in rows),
        "idle_ns": {
            cause: _average(row["idle_ns"][cause] for row in rows) for cause in rows[0]["idle_ns"]
        },
        "exposed_comm_pct": sum(per_rank.values()) / len(per_rank),
        "exposed_comm_pct_worst": {"rank": worst, "pct": per_rank[worst]},
    }


def _average(values: Iterable[int]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)
