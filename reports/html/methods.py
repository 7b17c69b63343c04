"""Where every figure comes from: its meaning, formula and window, in words."""

from __future__ import annotations

from typing import NamedTuple


class Method(NamedTuple):
    """The provenance of one figure. ``key`` is its path in the result document."""

    key: str
    name: str
    meaning: str
    formula: str
    window: str


STEP = "each kept step of each rank and device"
MEAN = "mean over kept steps, ranks and devices"

METHODS: tuple[Method, ...] = (
    Method(
        "step.time_ns",
        "Step time",
        "The length of a step's window. Windows of a rank neither overlap nor leave gaps, so idle "
        "time at a step's head and tail counts.",
        "from the step's first device event to the first device event of the next step, without "
        "work that runs ahead: what starts, off the stream that computes most, before that stream "
        "(for copies, before every kernel) has finished the step before counts by time in the "
        "window it runs in; the first step starts with its host-side marker if that is earlier, "
        "the last one ends with it if that is later. Devices of a rank with only a few stray "
        "events are left out",
        MEAN,
    ),
    Method(
        "step.compute_ns",
        "Compute",
        "Time during which at least one compute kernel runs. Kernels that compute and communicate "
        "in one, and kernels that nothing could class, count as compute.",
        "| union of compute kernels |, clipped to the window",
        MEAN,
    ),
    Method(
        "step.exposed_comm_ns",
        "Exposed communication of an axis",
        "Time during which communication runs and no compute kernel does.",
        "| union of the axis' communication minus union of compute |; instants at which several "
        "axes communicate are shared equally among them, so that the budget adds up",
        MEAN,
    ),
    Method(
        "step.bubble_ns",
        "Pipeline bubble",
        "Time a pipeline stage waits for another one. Not given where waiting cannot be told from "
        "transferring.",
        "point-to-point time without compute that is not transfer",
        MEAN,
    ),
    Method(
        "step.memcpy_ns",
        "Copies",
        "Time during which only copies or memsets run. Copies do not hide communication.",
        "| union of copies minus union of compute and communication |",
        MEAN,
    ),
    Method(
        "step.idle_ns",
        "Idle, by cause",
        "Time during which nothing runs on the device. Causes: data (inside a data-loader range), "
        "sync (the host is blocked in a synchronisation), host bound (the next kernel had not been "
        "launched), other (launched and not running, or no launch recorded).",
        "window minus everything that runs; a gap is split at the launch of the event that ends it",
        MEAN,
    ),
    Method(
        "exposed_comm_pct",
        "Exposed communication, share",
        "The headline and the gated figure. The bubble is not part of it.",
        "100 × Σ over axes of exposed communication / step time",
        f"the share of {STEP}, then their mean; the worst rank's mean stands beside it",
    ),
    Method(
        "bubble_pct",
        "Bubble, share",
        "The pipeline bubble's share of the step.",
        "100 × bubble / step time",
        f"the share of {STEP}, then their mean",
    ),
    Method(
        "axes.count",
        "Operations of an axis",
        "Communication events per step.",
        "number of events",
        MEAN,
    ),
    Method(
        "axes.bytes",
        "Bytes of an axis",
        "Message sizes by the nccl-tests convention: output of an all-gather, input of a "
        "reduce-scatter, else the message. Not given when the size of any event is unknown.",
        "Σ of message sizes",
        MEAN,
    ),
    Method(
        "axes.comm_ns",
        "Communication time of an axis",
        "Standalone: axes may overlap each other, so these do not add up to the step.",
        "| union of the axis' operations |",
        MEAN,
    ),
    Method(
        "axes.exposed_ns",
        "Exposed time of an axis",
        "Standalone: unlike in the budget, instants shared by several axes count fully for each.",
        "| union of the axis' operations minus union of compute |",
        MEAN,
    ),
    Method(
        "axes.overlap_pct",
        "Hidden",
        "The part of an axis' communication that runs beside compute.",
        "100 × (1 − exposed / communication time)",
        "of the sums over kept steps, ranks and devices",
    ),
    Method(
        "axes.expected_exposed_ns",
        "Must expose",
        "What no schedule of this strategy can hide, because the next computation needs its result "
        "and nothing else can run meanwhile.",
        "Σ over the operations that cannot be hidden of min(own duration, median duration of the "
        "same operation and size on the rank); operations the strategy does not describe count as "
        "measured",
        MEAN,
    ),
    Method(
        "axes.wait_ns",
        "Wait",
        "Time the ranks of a collective wait for the last of them to start. Only of collectives "
        "that all members recorded on clocks that agree.",
        "Σ of latest start over members − own start, on aligned clocks",
        MEAN,
    ),
    Method(
        "axes.transfer_ns",
        "Transfer",
        "Time from the last member's start to the end.",
        "Σ of end − latest start, the least over members",
        MEAN,
    ),
    Method(
        "axes.unexplained_ns",
        "Unexplained",
        "Where waits cannot be told from transfers: time above what such a transfer usually takes "
        "on this link.",
        "Σ of max(0, duration − expected time at the rate usually reached for that size)",
        MEAN,
    ),
    Method(
        "axes.busbw_gbps",
        "Bus bandwidth",
        "By the convention of nccl-tests, with the size of the group; decimal GB/s. Comparable "
        "with the link's rate for rings inside one level.",
        "Σ f S / Σ transfer; f = 2(n−1)/n for all-reduce, (n−1)/n for all-gather, reduce-scatter "
        "and all-to-all, else 1",
        "all compared collectives of kept steps",
    ),
    Method(
        "axes.link_efficiency",
        "Of the link",
        "How close transfers come to the datasheet: latency and bytes on the links a group spans.",
        "Σ expected time at datasheet rate / Σ transfer",
        "all compared collectives of kept steps",
    ),
    Method(
        "clock.offset_ns",
        "Clock offset",
        "A rank's clock minus that of the lowest rank, from the ends of collectives both took part "
        "in, over other ranks where the two never meet.",
        "median difference of ends, drift taken out; clamped to what no collective contradicts",
        "the whole capture",
    ),
    Method(
        "compute",
        "Matrix multiplies",
        "FLOPs and least memory traffic of matrix multiplies, attention and convolutions from the "
        "shapes of their operators, over the time of the kernels these launched. Of nested "
        "operators the innermost counts.",
        "2 M K N for a product; attention 4 b h s² d, half of it when causal, its backward 2.5 "
        "times that; roofline = Σ FLOPs / Σ max(FLOPs / dense peak, bytes / memory bandwidth)",
        MEAN,
    ),
    Method(
        "mfu_pct",
        "MFU and HFU",
        "Share of the device's dense peak, of the dtype most FLOPs run in, that the model needs "
        "(MFU), and that was executed with what ran twice (HFU). Above 100 % it is not given: then "
        "the peak, the count or the time is wrong.",
        "FLOPs of one device in a step / (step time × peak)",
        MEAN,
    ),
    Method(
        "findings.savings_ns",
        "Worth of a finding",
        "What the step would save if this alone were fixed. Upper bound: the whole cost is taken "
        "as recoverable. Estimate: from a model the rule's page describes.",
        "given with each rule's documentation",
        "per step, mean over the finding's ranks and steps",
    ),
    Method(
        "coverage.unclassified_pct",
        "Unclassified",
        "Device time of kernels that no evidence could class. Above 5 % gates give no verdict.",
        "100 × unclassified busy time / device busy time",
        "all kept steps",
    ),
)
