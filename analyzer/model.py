"""The types that cross package borders.

Plain frozen dataclasses and string enums; no pandas, torch or rendering in here. The columns of
every table are declared in :mod:`analyzer.schema`. Times are integer nanoseconds everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

AXES: tuple[str, ...] = (
    "dp_replicate", "dp_shard", "cp", "tp", "pp", "ep", "etp", "edp", "world", "unknown",
)  # fmt: skip
"""Canonical axis names in report order. Flattened axes are joined by ``+`` in mesh order."""

UNKNOWN_AXIS = "unknown"
WORLD_AXIS = "world"

FILE_ORDER = "assumed from file order"
"""``rank_source`` of traces that were numbered because nothing tells their ranks."""


def axis_sort_key(axis: str) -> tuple[int, str]:
    """Order axes as :data:`AXES` lists them; joined axes sort behind their first part."""
    first = axis.split("+", 1)[0]
    return (AXES.index(first) if first in AXES else len(AXES), axis)


class Work(StrEnum):
    """What a device-side (or, in CPU traces, host-side) interval is doing."""

    COMPUTE = "compute"
    COMM = "comm"
    FUSED = "fused"  # computes and communicates in one kernel: counts as compute, comm overlapped
    MEMCPY = "memcpy"
    MEMSET = "memset"
    UNKNOWN = "unknown"  # a kernel no evidence could class: counts as compute, share is reported


class Evidence(StrEnum):
    """Where a label came from, strongest first (definitions: axes and strategies)."""

    MESH = "mesh"  # stated by the user or written into the trace by the collector
    GROUP_DESC = "group_desc"  # the process group's description
    RANK_SETS = "rank_sets"  # a mesh that explains all groups' rank sets
    SIGNATURE = "signature"  # op kind, size, count, place in the step, linked host op
    KERNEL_NAME = "kernel_name"  # kernel-name taxonomy
    RANGE = "range"  # an enclosing user range
    NONE = "none"


class Phase(StrEnum):
    """Part of the training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    UNKNOWN = "unknown"


class IdleCause(StrEnum):
    """Why no device work runs."""

    BUBBLE = "bubble"
    HOST_BOUND = "host_bound"
    SYNC = "sync"
    DATA = "data"
    OTHER = "other"


class Severity(StrEnum):
    """How bad a finding is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


SEVERITY_RANK: Mapping[Severity, int] = {Severity.INFO: 0, Severity.WARNING: 1, Severity.ERROR: 2}


class Verdict(StrEnum):
    """Outcome of running one rule."""

    FAIL = "fail"
    WARN = "warn"
    PASS = "pass"  # noqa: S105 - not a password
    NOT_APPLICABLE = "not_applicable"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """One communicator as the trace describes it.

    ``ranks`` is empty where the trace does not say; ``size`` then still counts the members.
    Identity across ranks is the rank set: names are per-process counters and repeat.
    """

    name: str
    desc: str = ""
    ranks: tuple[int, ...] = ()
    size: int = 0
    backend: str = ""


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What reading one file cost and lost. Nothing is dropped without being counted here."""

    events: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)  # reason -> count
    repaired: Mapping[str, int] = field(default_factory=dict)  # kind of repair -> count
    truncated: bool = False
    notes: tuple[str, ...] = ()
    json_bytes: int = 0
    seconds: float = 0.0
    from_cache: bool = False


@dataclass(frozen=True, slots=True)
class TraceMeta:
    """Facts about one rank's trace outside its events."""

    path: str
    rank: int | None = None
    rank_source: str = ""  # where the rank was read: distributedInfo, file name, --rank, assumed
    world_size: int | None = None
    backend: str = ""  # nccl, gloo, hccl, ...
    device_names: tuple[str, ...] = ()
    device_kind: str = "cpu"  # gpu, cpu, npu, mtia, tpu
    producer: str = "pytorch"
    base_ns: int = 0  # Unix time of ts = 0; added to the tables' times already
    host: str = ""
    groups: tuple[ProcessGroup, ...] = ()
    mesh: Mapping[str, int] | None = None  # axis -> degree, outermost first, from the collector
    embedded: Mapping[str, Any] = field(default_factory=dict)  # collector's own metadata
    thread_names: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (pid, tid) -> name


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's trace as typed tables (columns: :mod:`analyzer.schema`)."""

    meta: TraceMeta
    report: IngestReport
    device: pl.DataFrame  # schema.DEVICE: kernels, copies, memsets
    comm_args: pl.DataFrame  # schema.COMM_ARGS: collective arguments of device events and ops
    launches: pl.DataFrame  # schema.LAUNCHES: runtime and driver calls on the host
    ops: pl.DataFrame  # schema.OPS: host operators
    ranges: pl.DataFrame  # schema.RANGES: user annotations, host and device side
    syncs: pl.DataFrame  # schema.SYNCS: host-side waits recorded on device tracks
    memory: pl.DataFrame  # schema.MEMORY: allocator events

    @property
    def rank(self) -> int:
        """The rank, 0 for a single anonymous trace."""
        return 0 if self.meta.rank is None else self.meta.rank


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An input that was not analysed, and why.

    ``bystander``: a sound file of another kind that lay in a directory; listed, never a warning.
    """

    path: str
    reason: str
    bystander: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """All ranks of one training job, ordered by rank."""

    ranks: tuple[RankTrace, ...]
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True)
class LabeledRank:
    """One rank with every interval labelled (columns: :mod:`analyzer.schema`)."""

    trace: RankTrace
    activity: pl.DataFrame  # schema.ACTIVITY
    steps: pl.DataFrame  # schema.STEPS
    step_source: str  # ProfilerStep, device annotation, optimizer, collective, whole trace
    host_side: bool  # True: CPU trace, figures are host-side
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AxisLabel:
    """The axis given to a process group (or kernel family), with its evidence."""

    axis: str
    evidence: Evidence
    confidence: float  # 0..1
    degree: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with its unit, as it leaves the program."""

    value: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """A row that shows a finding, with trace times so that a viewer can jump there."""

    rank: int
    name: str
    start_ns: int  # relative to the rank's first step window, as the timeline shows it
    dur_ns: int
    step: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a rule found, in the form of definitions section 9."""

    rule: str
    title: str
    severity: Severity
    axis: str | None
    measured: Quantity
    threshold: float | None = None
    roofline: float | None = None
    savings_ns: int | None = None  # per step
    savings_kind: str = "upper bound"  # or "replayed", "estimate"
    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    evidence: tuple[EvidenceRow, ...] = ()
    advice: str = ""
    doc: str = ""
    explained_by: tuple[str, ...] = ()  # rules that name the cause of the same lost time


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rule said: exactly one per rule and run."""

    rule: str
    name: str
    verdict: Verdict
    reason: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class GateResult:
    """One gate. ``passed`` is None when there is no verdict; ``reason`` then says why."""

    gate: str
    limit: float | str
    value: float | None
    passed: bool | None
    reason: str = ""
    unit: str = "%"
