"""What measuring yields and what rules and reports read: tables plus a few job-level facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from analyzer.model import AxisLabel, LeftOut
from analyzer.strategy import Strategy

if TYPE_CHECKING:
    import polars as pl

    from analyzer.crossrank.results import CrossRank


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the job the figures rest on."""

    ranks_expected: int | None
    ranks_seen: tuple[int, ...]
    steps_total: int
    steps_with_device_events: int
    unclassified_pct: float | None  # share of device busy time no evidence could class
    dropped_events: Mapping[str, int] = field(default_factory=dict)
    repaired_events: Mapping[str, int] = field(default_factory=dict)
    truncated_inputs: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def missed_inputs(self) -> tuple[LeftOut, ...]:
        """Inputs that should have been analysed: all left out but bystanders of other kinds."""
        return tuple(item for item in self.left_out if not item.bystander)

    @property
    def device_figures_ok(self) -> bool:
        """False when most steps hold no device event: no device figure may then be given."""
        seen = self.steps_with_device_events
        return seen > 0 and 2 * seen >= self.steps_total


@dataclass(frozen=True, slots=True)
class Budget:
    """Means over kept steps, integers that add up to ``time_ns`` exactly."""

    time_ns: int
    compute_ns: int
    exposed_comm_ns: Mapping[str, int]
    bubble_ns: int | None  # None: a pipeline runs but its waits cannot be told from transfers
    memcpy_ns: int
    idle_ns: Mapping[str, int]

    @property
    def exposed_total_ns(self) -> int:
        """Exposed communication over all axes."""
        return sum(self.exposed_comm_ns.values())


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank's (and device's) mean step."""

    rank: int
    lane: int
    steps_kept: int
    budget: Budget
    exposed_comm_pct: float


@dataclass(frozen=True, slots=True)
class AxisSummary:
    """Per step means over kept steps and ranks of one axis (or one op of it)."""

    axis: str
    op: str  # "" for the whole axis
    count: float
    bytes: float | None
    comm_ns: int
    exposed_ns: int
    overlap_pct: float | None  # None when there is no communication
    expected_exposed_ns: int | None = None  # what the strategy cannot hide, None when not known
    expected_why: str = ""
    wait_ns: int | None = None  # waiting for other members; None where it could not be split off
    transfer_ns: int | None = None
    unexplained_ns: int | None = None  # where nothing is split: time above the usual transfer
    busbw_gbps: float | None = None
    spec_gbps: float | None = None  # of the link level its groups span, one direction
    link_efficiency: float | None = None  # expected time at datasheet rate / transfer
    split_pct: float | None = None  # communication events that wait and transfer rest on


@dataclass(frozen=True, slots=True)
class ComputeFamily:
    """Per step means of matrix multiplies, attention or convolutions of one dtype.

    Figures that rest on FLOPs are None where shapes did not tell them.
    """

    family: str
    dtype: str | None
    calls: float
    time_ns: int  # kernels' durations (or, in CPU traces, operators') added up
    flops: float | None
    bytes: float | None  # least memory traffic
    intensity: float | None  # FLOPs a byte
    achieved_flops_per_s: float | None
    peak_flops_per_s: float | None  # dense, of its dtype
    roofline_flops_per_s: float | None  # the same calls, each at min(peak, intensity x bandwidth)
    efficiency_pct: float | None  # achieved / roofline
    share_pct: float  # of the step's time


@dataclass(frozen=True, slots=True)
class ComputeSummary:
    """FLOPs of the mean step of one device, and its utilisation."""

    convention: str  # how model FLOPs are counted
    peak_flops_per_s: float | None  # dense
    peak_dtype: str | None
    memory_bytes_per_s: float | None
    model_flops_per_step: float | None
    executed_flops_per_step: float | None
    rerun_flops_per_step: float | None  # of the executed ones: activation checkpointing
    known_pct: float | None  # share of matmul time whose FLOPs are known
    mfu_pct: float | None
    hfu_pct: float | None
    families: tuple[ComputeFamily, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)  # figure -> why it is None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything rules and reports read.

    Tables: schema.BUDGET, AXIS_STEP, COMM_EVENTS, HOST_STEP; ``steps`` is schema.STEPS with a
    leading i32 ``rank`` column.
    """

    inputs: tuple[str, ...]
    world_size: int | None
    ranks: tuple[int, ...]
    device: str  # device name as written, "CPU" for host-side figures
    framework: str
    backend: str
    mesh: Mapping[str, int | None]  # axis -> degree
    mesh_source: str
    axis_labels: Mapping[str, AxisLabel]  # the weakest evidence behind each axis
    strategy: Strategy  # inferred from the trace
    strategy_why: str
    expect: Strategy | None  # what the user stated
    host_side: bool
    step_source: str
    steps: pl.DataFrame
    budget: pl.DataFrame
    axis_step: pl.DataFrame
    comm_events: pl.DataFrame
    host_step: pl.DataFrame
    mean: Budget | None  # None when no step could be kept
    per_rank: tuple[RankSummary, ...]
    axes: tuple[AxisSummary, ...]
    exposed_comm_pct: float | None
    bubble_pct: float | None
    coverage: Coverage
    origin_ns: Mapping[int, int]  # rank -> start of its first window: zero of evidence times
    warnings: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()  # label sources that disagree
    null_reasons: Mapping[str, str] = field(default_factory=dict)  # figure -> why it is null
    crossrank: CrossRank | None = None  # None for a single rank
    compute: ComputeSummary | None = None  # None without a mean step or without matmuls

    @property
    def worst_rank(self) -> RankSummary | None:
        """The rank with the highest exposed communication share."""
        return max(self.per_rank, key=lambda r: r.exposed_comm_pct, default=None)
