"""Pipeline schedules played pass by pass: the independent check of the closed forms.

A schedule is the order of passes on each rank, written down from the papers that define it; `play`
starts every pass as soon as its rank is free and its inputs have arrived. No formula of
`analyzer.roofline` is used here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

F, B, W, FULL = "F", "B", "W", "BW"
"""Forward, input gradient, weight gradient, and both gradients in one piece."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of one micro-batch through one stage (``stage`` counts from the model's input)."""

    kind: str
    stage: int
    microbatch: int
    way: int = 0  # direction, for bidirectional schedules


Block = tuple[Pass, ...]
Orders = list[list[Block]]
Spans = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Played:
    """What a schedule takes: per rank the first start, the last end and the busy time."""

    spans: Spans
    busy: list[float]

    def bubbles(self) -> list[float]:
        return [
            end - start - busy for (start, end), busy in zip(self.spans, self.busy, strict=True)
        ]

    def longest(self) -> float:
        return max(end - start for start, end in self.spans)


def play(orders: Orders, times: Mapping[str, float], stages: int, t_comm: float = 0.0) -> Played:
    """Run the orders; stage s of way 0 sits where the orders put it, messages take ``t_comm``."""
    home = {(p.stage, p.way): rank for rank, row in enumerate(orders) for b in row for p in b}
    done: dict[tuple[str, int, int, int], float] = {}
    at = [0] * len(orders)
    free = [0.0] * len(orders)
    first: list[float | None] = [None] * len(orders)
    busy = [0.0] * len(orders)
    while any(at[r] < len(orders[r]) for r in range(len(orders))):
        moved = False
        for rank, row in enumerate(orders):
            while at[rank] < len(row):
                block = row[at[rank]]
                ready = _ready(block, done, home, stages, t_comm)
                if ready is None:
                    break
                start = max(free[rank], ready)
                length = sum(times[p.kind] for p in block)
                first[rank] = start if first[rank] is None else first[rank]
                free[rank] = start + length
                busy[rank] += length
                for p in block:
                    for kind in (B, W) if p.kind == FULL else (p.kind,):
                        done[kind, p.stage, p.microbatch, p.way] = free[rank]
                at[rank] += 1
                moved = True
        assert moved, "the orders deadlock"
    return Played([(f or 0.0, e) for f, e in zip(first, free, strict=True)], busy)


def _ready(
    block: Block,
    done: Mapping[tuple[str, int, int, int], float],
    home: Mapping[tuple[int, int], int],
    stages: int,
    t_comm: float,
) -> float | None:
    ready = 0.0
    for p in block:
        here = home[p.stage, p.way]
        if p.kind == W:
            needs = [(B, p.stage, 0.0)]
        elif p.kind == F:
            needs = [(F, p.stage - 1, t_comm)] if p.stage else []
        else:
            last = p.stage == stages - 1
            needs = [(F, p.stage, 0.0)] if last else [(B, p.stage + 1, t_comm)]
        for kind, stage, delay in needs:
            when = done.get((kind, stage, p.microbatch, p.way))
            if when is None:
                return None
            ready = max(ready, when + (delay if home[stage, p.way] != here else 0.0))
    return ready


def forwards_before_backward(orders: Orders) -> list[int]:
    """F passes on each rank before its first backward."""
    counts = []
    for row in orders:
        kinds = [p.kind for block in row for p in block]
        counts.append(next(i for i, kind in enumerate(kinds) if kind in (B, FULL)))
    return counts


def peak_in_flight(orders: Orders, chunks: int) -> list[float]:
    """Most micro-batches (whole-rank equivalents) each rank holds between F and B."""
    peaks = []
    for row in orders:
        now = peak = 0
        for block in row:
            # within a block the forward runs first
            for p in sorted(block, key=lambda p: p.kind != F):
                now += {F: 1, B: -1, FULL: -1, W: 0}[p.kind]
                peak = max(peak, now)
        peaks.append(peak / chunks)
    return peaks


def gpipe(p: int, m: int) -> Orders:
    """All forwards, then all backwards (Huang et al. 2019)."""
    return [
        [(Pass(F, r, i),) for i in range(m)] + [(Pass(FULL, r, i),) for i in range(m)]
        for r in range(p)
    ]


def one_f_one_b(p: int, m: int) -> Orders:
    """p-r-1 forwards of warm-up, then one forward, one backward."""
    orders: Orders = []
    for r in range(p):
        warm = min(p - r - 1, m)
        row = [(Pass(F, r, i),) for i in range(warm)]
        for i in range(m):
            if i + warm < m:
                row.append((Pass(F, r, i + warm),))
            row.append((Pass(FULL, r, i),))
        orders.append(row)
    return orders


def interleaved(p: int, m: int, v: int) -> Orders:
    """Interleaved 1F1B: micro-batches advance through the chunks in groups of p."""
    assert m % p == 0
    total = m * v

    def step(k: int, *, forward: bool) -> tuple[int, int]:
        group, inside = divmod(k, p * v)
        chunk, i = divmod(inside, p)
        return (chunk if forward else v - 1 - chunk), group * p + i

    orders: Orders = []
    for r in range(p):
        warm = min(2 * (p - r - 1) + (v - 1) * p, total)
        row: list[Block] = []

        def add(k: int, *, forward: bool, rank: int = r, row: list[Block] = row) -> None:
            chunk, i = step(k, forward=forward)
            row.append((Pass(F if forward else FULL, chunk * p + rank, i),))

        for k in range(warm):
            add(k, forward=True)
        for k in range(total):
            if k + warm < total:
                add(k + warm, forward=True)
            add(k, forward=False)
        orders.append(row)
    return orders


def zero_bubble_h1(p: int, m: int) -> Orders:
    """ZB-H1: the memory of 1F1B; W of micro-batch i follows r backwards later."""
    return _zero_bubble(p, m, lambda r: p - r, lambda r: r)


def zero_bubble_h2(p: int, m: int) -> Orders:
    """ZB-H2: 2(p-r)-1 forwards of warm-up; W lags by 2r."""
    return _zero_bubble(p, m, lambda r: 2 * (p - r) - 1, lambda r: 2 * r)


def _zero_bubble(p, m, warm_of, lag_of) -> Orders:  # type: ignore[no-untyped-def]
    orders: Orders = []
    for r in range(p):
        warm, lag = min(warm_of(r), m), lag_of(r)
        row = [(Pass(F, r, i),) for i in range(warm)]
        for i in range(m):
            row.append((Pass(B, r, i),))
            if i >= lag:
                row.append((Pass(W, r, i - lag),))
            if i + warm < m:
                row.append((Pass(F, r, i + warm),))
        row += [(Pass(W, r, i),) for i in range(max(m - lag, 0), m)]
        orders.append(row)
    return orders


def zbv(p: int, m: int) -> Orders:
    """ZBV: two chunks a rank, laid out as a V (stages r and 2p-1-r)."""
    orders: Orders = []
    for r in range(p):
        stage = (r, 2 * p - 1 - r)
        count = {(kind, c): 0 for kind in (F, B, W) for c in (0, 1)}
        row: list[Block] = []

        def add(
            *steps: tuple[str, int],
            stage: tuple[int, int] = stage,
            count: dict[tuple[str, int], int] = count,
            row: list[Block] = row,
        ) -> None:
            for kind, c in steps:
                row.append((Pass(kind, stage[c], count[kind, c]),))
                count[kind, c] += 1

        add(*[(F, 0)] * (2 * (p - r) - 1))
        add(*[(F, 1), (F, 0)] * r)
        add(*[(F, 1), (B, 1), (W, 1)] * (p - r))
        while count[F, 1] < count[F, 0] or count[F, 0] < m:
            if count[F, 0] < m:
                add((F, 0))
            add((B, 0), (W, 0), (F, 1), (B, 1), (W, 1))
        add(*[(B, 0), (B, 1)] * r)
        add(*[(B, 0), (W, 0)] * (p - r))
        add(*[(W, 1)] * (count[B, 1] - count[W, 1]))
        add(*[(W, 0)] * (count[B, 0] - count[W, 0]))
        orders.append(row)
    return orders


def dualpipe(p: int, m: int) -> Orders:
    """DualPipe: m/2 micro-batches enter from either end; ranks r and p-1-r mirror each other."""
    half = m // 2
    orders: Orders = []
    for rank in range(p):
        flipped = rank >= p // 2
        h = min(rank, p - 1 - rank)
        row: list[Block] = []
        count = {(kind, phase): 0 for kind in (F, B, W) for phase in (0, 1)}

        def one(kind: str, phase: int, rank=rank, flipped=flipped, count=count) -> Pass:  # type: ignore[no-untyped-def]
            way = phase ^ flipped
            key = B if kind == FULL else kind
            i = count[key, phase]
            count[key, phase] += 1
            return Pass(kind, rank if way == 0 else p - 1 - rank, i, way)

        waiting: list[Pass] = []  # weight gradients put off

        def put_off(phase: int, row=row, one=one, waiting=waiting) -> None:  # type: ignore[no-untyped-def]
            b = one(B, phase)
            row.append((b,))
            waiting.append(Pass(W, b.stage, b.microbatch, b.way))

        rest = p // 2 - h - 1
        row += [(one(F, 0),) for _ in range(2 * rest)]
        for _ in range(h + 1):
            row += [(one(F, 0),), (one(F, 1),)]
        for _ in range(rest):
            put_off(1)
            row += [(waiting.pop(0),), (one(F, 1),)]
        for i in range(half - p + h + 1):
            f, b = one(F, 0), one(FULL, 1)
            row += [(f,), (b,)] if i == 0 and h == p // 2 - 1 else [(f, b)]
            row.append((one(F, 1), one(FULL, 0)))
        for _ in range(rest):
            row.append((one(FULL, 1),))
            row.append((one(F, 1), one(FULL, 0)))
        split = False
        for i in range(h + 1):
            if i == (h + 1) // 2 and h % 2 == 1:
                split = True
            put_off(1) if split else row.append((one(FULL, 1),))
            if i == (h + 1) // 2 and h % 2 == 0:
                split = True
            put_off(0) if split else row.append((one(FULL, 0),))
        for _ in range(rest):
            row.append((waiting.pop(0),))
            put_off(0)
        row += [(w,) for w in waiting]
        orders.append(row)
    return orders
