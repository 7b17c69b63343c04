"""Pipeline schedules in closed form: bubble, memory, messages, and how to recognise them.

Pass times are of one micro-batch on one rank, all its chunks together: F forward, B the gradient of
the input alone, W the gradient of the weights (the DualPipe paper calls B + W the backward).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from analyzer.roofline.exposure import Mark, Traffic


class Schedule(StrEnum):
    """Order of passes on each rank."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZB_H1 = "zb-h1"
    ZB_H2 = "zb-h2"
    ZBV = "zbv"
    DUALPIPE = "dualpipe"
    DUALPIPE_V = "dualpipe-v"
    CHIMERA = "chimera"


SPLIT_BACKWARD = frozenset(
    {Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZBV, Schedule.DUALPIPE, Schedule.DUALPIPE_V}
)
"""Schedules that run the weight gradient apart from the input gradient."""


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Seconds of a micro-batch on a rank; ``paired_s``: a DualPipe block of F beside a backward."""

    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    paired_s: float | None = None

    @property
    def work_s(self) -> float:
        """F + B + W."""
        return self.forward_s + self.input_grad_s + self.weight_grad_s


@dataclass(frozen=True, slots=True)
class Shape:
    """Pipeline ranks p, micro-batches m of a step, model chunks v a rank."""

    ranks: int
    microbatches: int
    chunks: int = 1


@dataclass(frozen=True, slots=True)
class Bubble:
    """Idle time of the rank with the longest span; None with the reason where no formula holds."""

    time_s: float | None
    over_ideal: float | None  # of the work: S0's (p-1)/m
    over_total: float | None  # of work and bubble
    formula_id: str
    reason: str = ""


def bubble(schedule: Schedule, shape: Shape, times: PassTimes) -> Bubble:
    """Bubble of a schedule with equal stages and free communication.

    Formula:
        PP-BUBBLE
        gpipe, 1f1b (p-1)(F+B+W); interleaved (p-1)(F+B+W)/v
        zb-h1 (p-1)(F+B-W); zb-h2 (p-1)(F+B-2W); zbv 0 when F = B = W
        dualpipe (p/2-1)(F&B + (B+W) - 3W), F&B = F+B+W unless measured
        dualpipe-v as dualpipe on half the ranks with times of a half chunk; chimera (p-2)(F+B+W)/2
        zero-bubble schedules with m < p: (p-1)(F+B) - (m-1)W

    Args:
        schedule: order of the passes.
        shape: p, m and v. For dualpipe-v p counts the stages, twice the ranks.
        times: F, B, W of one micro-batch on one rank (of a half chunk for dualpipe-v).

    Returns:
        idle seconds in a rank's span from its first to its last pass, the largest over ranks, and
        both ratios: over_total = over_ideal/(1 + over_ideal).
    Source: arXiv 2104.04473 section 2.2 (gpipe, 1f1b, interleaved), Zero Bubble (arXiv 2401.10241)
        table 2 and appendix H, DeepSeek-V3 (arXiv 2412.19437) table 2; Chimera (arXiv 2107.06925).
    Valid: m >= p, m a multiple of p for interleaved, p and m even and m >= 2p for dualpipe;
        zero-bubble forms need W <= F + B (h1) or 2W <= F + B (h2).
    """
    time_s, reason = _bubble_s(schedule, shape, times)
    if time_s is None:
        return Bubble(None, None, None, "PP-BUBBLE", reason)
    work = times.work_s * shape.microbatches
    return Bubble(time_s, time_s / work, time_s / (work + time_s), "PP-BUBBLE")


def _bubble_s(schedule: Schedule, shape: Shape, t: PassTimes) -> tuple[float | None, str]:
    p, m, v = shape.ranks, shape.microbatches, shape.chunks
    f, b, w = t.forward_s, t.input_grad_s, t.weight_grad_s
    if schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B):
        return (p - 1) * (f + b + w), ""
    if schedule is Schedule.INTERLEAVED:
        if m % p:
            return None, "interleaved: micro-batches are not a multiple of the ranks"
        return (p - 1) * (f + b + w) / v, ""
    if schedule in (Schedule.ZB_H1, Schedule.ZB_H2) and m < p:
        return (p - 1) * (f + b) - (m - 1) * w, ""
    if schedule is Schedule.ZB_H1:
        return max(0.0, (p - 1) * (f + b - w)), ""
    if schedule is Schedule.ZB_H2:
        return max(0.0, (p - 1) * (f + b - 2 * w)), ""
    if schedule is Schedule.ZBV:
        equal = max(f, b, w) - min(f, b, w) <= 1e-9 * max(f, b, w)
        return (0.0, "") if equal else (None, "zbv: no closed form unless F = B = W")
    if schedule is Schedule.CHIMERA:
        return (p - 2) * (f + b + w) / 2, ""
    if p % 2 or m % 2 or m < (p if schedule is Schedule.DUALPIPE_V else 2 * p):
        return None, f"{schedule}: needs even counts and enough micro-batches"
    paired = t.paired_s if t.paired_s is not None else f + b + w
    return (p / 2 - 1) * (paired + b + w - 3 * w), ""


def rank_bubble_s(schedule: Schedule, shape: Shape, times: PassTimes, rank: int) -> float | None:
    """Bubble inside the span of one rank.

    Formula:
        PP-RANK-BUBBLE
        (p-1-r)/(p-1) of PP-BUBBLE for gpipe, 1f1b, interleaved, zb-h1 and zb-h2

    Args:
        schedule: order of the passes.
        shape: p, m and v.
        times: F, B, W of one micro-batch on one rank.
        rank: r, counted from the first stage.

    Returns:
        seconds between the rank's first and last pass without work; later ranks start later and end
        earlier. None for schedules without the rule.
    Source: derived, confirmed by playing the schedules pass by pass.
    """
    linear = {Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZB_H1,
              Schedule.ZB_H2}  # fmt: skip
    whole = bubble(schedule, shape, times).time_s
    if whole is None or schedule not in linear or shape.ranks < 2:
        return whole if shape.ranks < 2 else None
    return whole * (shape.ranks - 1 - rank) / (shape.ranks - 1)


def in_flight(schedule: Schedule, shape: Shape, rank: int) -> float | None:
    """Most micro-batches whose activations a rank holds.

    Formula:
        PP-IN-FLIGHT
        gpipe m; 1f1b and zb-h1 min(m, p-r); interleaved [2(p-r-1)+(v-1)p+1]/v
        zb-h2 2(p-r)-1; zbv p; dualpipe p+1; dualpipe-v PP+1 half chunks

    Args:
        schedule: order of the passes.
        shape: p, m and v.
        rank: r, counted from the first stage.

    Returns:
        micro-batches of a whole rank's layers; of half chunks for dualpipe-v. None for chimera,
        which holds p/2+1 to p.
    Source: arXiv 2104.04473, Zero Bubble (arXiv 2401.10241), DeepSeek-V3 (arXiv 2412.19437).
    Valid: the zero-bubble schedules keep part of it longer, until the weight gradient has run.
    """
    p, m, v = shape.ranks, shape.microbatches, shape.chunks
    held: dict[Schedule, float] = {
        Schedule.GPIPE: m,
        Schedule.ONE_F_ONE_B: min(m, p - rank),
        Schedule.INTERLEAVED: min(m, (2 * (p - rank - 1) + (v - 1) * p + 1) / v),
        Schedule.ZB_H1: min(m, p - rank),
        Schedule.ZB_H2: min(m, 2 * (p - rank) - 1),
        Schedule.ZBV: min(m, p),
        Schedule.DUALPIPE: min(m, p + 1),
        Schedule.DUALPIPE_V: p + 1,
    }
    return held.get(schedule)


def transfer_s(schedule: Schedule, shape: Shape, hop_s: float) -> float | None:
    """What exposed boundary transfers add to the step.

    Formula:
        PP-P2P
        gpipe 2(p-1)·t_c; 1f1b [2(p-1)·m/p + 2(p-2)]·t_c; interleaved 2(vp-1)·t_c
        zb-h1 4(p-1)·t_c; zb-h2 2(p-1)·t_c

    Args:
        schedule: order of the passes.
        shape: p, m and v.
        hop_s: t_c, one boundary message that nothing hides.

    Returns:
        seconds added to the longest rank's span; None where no formula is known.
    Source: derived, and equal to playing the schedules pass by pass.
    Valid: t_c small beside a pass, m a multiple of p, m >= 2p for the zero-bubble schedules. 1f1b
        pays two transfers a round of p micro-batches, interleaved none in steady state.
    """
    p, m, v = shape.ranks, shape.microbatches, shape.chunks
    hops: dict[Schedule, float] = {
        Schedule.GPIPE: 2 * (p - 1),
        Schedule.ONE_F_ONE_B: 2 * (p - 1) * m / p + 2 * (p - 2),
        Schedule.INTERLEAVED: 2 * (v * p - 1),
        Schedule.ZB_H1: 4 * (p - 1),
        Schedule.ZB_H2: 2 * (p - 1),
    }
    found = hops.get(schedule)
    return None if found is None else found * hop_s


def pp_traffic(
    activation_bytes: float, shape: Shape, tensor_degree: int = 1
) -> tuple[Traffic, ...]:
    """Messages between stages, one rank's sends.

    Formula:
        PP-TRAFFIC
        m·v messages of b·s·D/Y elements each way

    Args:
        activation_bytes: b·s·D of a micro-batch, bytes.
        shape: p, m and v.
        tensor_degree: Y, where sequence parallelism or scatter-gather splits the message.

    Returns:
        hideable in steady state; PP-P2P says what is not.
    Source: arXiv 2104.04473, section 3.2.
    """
    size = activation_bytes / tensor_degree
    calls = shape.microbatches * shape.chunks
    return tuple(
        Traffic("pp", "send", phase, calls, size, 2, Mark.HIDEABLE, "PP-TRAFFIC",
                "other micro-batches in steady state")
        for phase in ("forward", "backward")
    )  # fmt: skip


def forwards_before_backward(schedule: Schedule, shape: Shape, rank: int) -> int | None:
    """Forward passes (of chunks) a rank runs before its first backward.

    Formula:
        PP-FINGERPRINT
        gpipe m·v; 1f1b and zb-h1 p-r; interleaved 2(p-r-1)+(v-1)p+1; zb-h2 2(p-r)-1; zbv 2p
        dualpipe p, p+1 on the two middle ranks

    Args:
        schedule: order of the passes.
        shape: p, m and v.
        rank: r, counted from the first stage.

    Returns:
        count; None for chimera and dualpipe-v.
    Source: derived from the schedules' papers, confirmed by playing them pass by pass.
    Valid: m large enough for the warm-up.
    """
    p, m, v = shape.ranks, shape.microbatches, shape.chunks
    middle = rank in (p // 2 - 1, p // 2)
    counts = {
        Schedule.GPIPE: m * v,
        Schedule.ONE_F_ONE_B: min(p - rank, m),
        Schedule.INTERLEAVED: min(2 * (p - rank - 1) + (v - 1) * p + 1, m * v),
        Schedule.ZB_H1: min(p - rank, m),
        Schedule.ZB_H2: min(2 * (p - rank) - 1, m),
        Schedule.ZBV: 2 * p,
        Schedule.DUALPIPE: p + 1 if middle else p,
    }
    return counts.get(schedule)


def matching_schedules(
    forwards_first: Sequence[int], microbatches: int, chunks: int, *, split_backward: bool
) -> tuple[Schedule, ...]:
    """Schedules whose fingerprint fits what was seen on every rank.

    Formula:
        PP-RECOGNISE
        all schedules with PP-FINGERPRINT equal to the counts on all ranks

    Args:
        forwards_first: forward passes before the first backward, per rank from the first stage.
        microbatches: m.
        chunks: model chunks a rank hosts.
        split_backward: weight gradients run apart from input gradients.

    Returns:
        every schedule that fits: one is an answer, none is unknown.
    Source: derived.
    """
    shape = Shape(len(forwards_first), microbatches, chunks)
    hosted = {Schedule.INTERLEAVED: chunks > 1, Schedule.ZBV: chunks == 2,
              Schedule.DUALPIPE: chunks == 2}  # fmt: skip
    return tuple(
        schedule
        for schedule in Schedule
        if (schedule in SPLIT_BACKWARD) == split_backward
        and hosted.get(schedule, chunks == 1 or schedule is Schedule.GPIPE)
        and all(
            forwards_before_backward(schedule, shape, rank) == seen
            for rank, seen in enumerate(forwards_first)
        )
    )
