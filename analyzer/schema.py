"""Every table that crosses a package border: its columns, types, units and meaning.

This is the single place where columns are declared; :func:`check` enforces it at the borders and
``docs/schema.md`` is generated from it. Times are int64 nanoseconds, sizes int64 bytes. Columns of
type ``str`` may be stored as polars String, Categorical or Enum (dictionary encoding keeps a table
of a million events small).
"""

from __future__ import annotations

from analyzer.table import Column, Table, check, conform, reference_page

__all__ = ["Column", "Table", "check", "conform"]

SCHEMA_VERSION = 2
"""Raised whenever a table's columns change; part of the cache key."""


C = Column

DEVICE = Table(
    "device",
    "Work on a device: kernels, copies, memsets. Sorted by (device, start_ns, end_ns).",
    (
        C("start_ns", "i64", "Start, Unix ns (trace time plus baseTimeNanoseconds)."),
        C("end_ns", "i64", "End; never before start."),
        C("name", "str", "Kernel or copy name as written."),
        C("kind", "str", "kernel, memcpy or memset."),
        C("device", "i32", "Device index; 0 where the trace does not say."),
        C("stream", "i64", "Stream or queue; -1 where the trace does not say."),
        C("correlation", "i64", "Joins with launches.correlation.", null=True),
        C("external_id", "i64", "Joins with ops.external_id.", null=True),
        C("graph_id", "i64", "Set when a captured graph replayed the event.", null=True),
        C("bytes", "i64", "Bytes moved by a copy or memset.", null=True),
        C("event", "i64", "Row id that comm_args.event refers to (source = device)."),
    ),
)

COMM_ARGS = Table(
    "comm_args",
    "Collective arguments found on device events or host ops, one row an event that has any.",
    (
        C("source", "str", "device or op: which table `event` refers to."),
        C("event", "i64", "The `event` id of the row in device or ops."),
        C("collective", "str", "Name as written (_allgather_base, send, ...).", null=True),
        C("in_nelems", "i64", "Elements of this rank's input.", null=True),
        C("out_nelems", "i64", "Elements of this rank's output.", null=True),
        C("dtype", "str", "Element type as written (BFloat16, Float8_e4m3fn, ...).", null=True),
        C("group_size", "i64", "Members of the process group.", null=True),
        C("group_name", "str", "Process group name (a per-process counter, repeats).", null=True),
        C("group_desc", "str", "Process group description (mesh_tp, ...).", null=True),
        C("group_ranks", "str", "Ranks as written; may be cut with `...`.", null=True),
        C("in_split", "str", "Input split sizes of all_to_allv, as written.", null=True),
        C("out_split", "str", "Output split sizes, as written.", null=True),
        C("seq", "i64", "Sequence number within the group.", null=True),
        C("comms_id", "i64", "Hash equal on all ranks of one collective (uint64 bits).", null=True),
        C("src_rank", "i64", "Global rank of the sender (recv).", null=True),
        C("dst_rank", "i64", "Global rank of the receiver (send).", null=True),
        C("peer", "i64", "The `Rank` argument: for send/recv the peer's group rank.", null=True),
        C("rank_start", "i64", "First global rank of the group.", null=True),
        C("rank_stride", "i64", "Stride of the group's global ranks.", null=True),
    ),
)

LAUNCHES = Table(
    "launches",
    "Runtime and driver calls on the host (launches, copies, synchronisations, event calls).",
    (
        C("start_ns", "i64", "Start of the call."),
        C("end_ns", "i64", "End of the call."),
        C("name", "str", "cudaLaunchKernel, hipMemcpyAsync, cudaStreamSynchronize, ..."),
        C("pid", "i64", "Process.", null=True),
        C("tid", "i64", "Thread.", null=True),
        C("correlation", "i64", "Joins with device.correlation.", null=True),
        C("external_id", "i64", "Joins with ops.external_id.", null=True),
    ),
)

OPS = Table(
    "ops",
    "Host operators (aten, c10d, autograd, ...). Sorted by start_ns.",
    (
        C("start_ns", "i64", "Start."),
        C("end_ns", "i64", "End."),
        C("name", "str", "Operator name."),
        C("pid", "i64", "Process.", null=True),
        C("tid", "i64", "Thread.", null=True),
        C("external_id", "i64", "Joins with device.external_id.", null=True),
        C("sequence", "i64", "Autograd sequence number: links forward and backward.", null=True),
        C("fwd_tid", "i64", "Forward thread index; > 0 only in backward.", null=True),
        C("input_dims", "str", "Input Dims as raw JSON.", null=True),
        C("input_types", "str", "Input type as raw JSON.", null=True),
        C("concrete_inputs", "str", "Concrete Inputs, raw JSON: c10d, attention, conv.", null=True),
        C("event", "i64", "Row id that comm_args.event refers to (source = op)."),
    ),
)

RANGES = Table(
    "ranges",
    "User annotations: record_function ranges on the host and their shadow on device tracks.",
    (
        C("start_ns", "i64", "Start."),
        C("end_ns", "i64", "End."),
        C("name", "str", "Range name."),
        C("side", "str", "host or device."),
        C("pid", "i64", "Process (host side).", null=True),
        C("tid", "i64", "Thread (host side) or stream (device side).", null=True),
        C("device", "i32", "Device index (device side).", null=True),
        C("input_dims", "str", "Input Dims as raw JSON (gloo events carry them).", null=True),
        C("input_types", "str", "Input type as raw JSON.", null=True),
    ),
)

SYNCS = Table(
    "syncs",
    "cuda_sync events: waits recorded on device tracks. Never device work.",
    (
        C("start_ns", "i64", "Start."),
        C("end_ns", "i64", "End."),
        C("name", "str", "Stream Sync, Event Sync, Stream Wait Event, Context Sync, ..."),
        C("stream", "i64", "Stream waited on or waiting.", null=True),
        C("correlation", "i64", "Joins with launches.correlation.", null=True),
        C("wait_on_stream", "i64", "Stream that recorded the event waited for.", null=True),
        C("wait_on_correlation", "i64", "Correlation of that event record.", null=True),
    ),
)

MEMORY = Table(
    "memory",
    "Allocator events ([memory] instants).",
    (
        C("time_ns", "i64", "When."),
        C("address", "i64", "Address (uint64 bits).", null=True),
        C("bytes", "i64", "Allocated (> 0) or freed (< 0) bytes.", null=True),
        C("device_type", "i32", "0 CPU, 1 CUDA, ...", null=True),
        C("device", "i32", "Device index.", null=True),
        C("total_allocated", "i64", "Allocator's running total in use.", null=True),
        C("total_reserved", "i64", "Allocator's running total reserved.", null=True),
    ),
)

TRACE_TABLES: tuple[Table, ...] = (DEVICE, COMM_ARGS, LAUNCHES, OPS, RANGES, SYNCS, MEMORY)

ACTIVITY = Table(
    "activity",
    "Labelled work of one rank: device events, or in CPU traces operators and gloo collectives. "
    "Sorted by (lane, start_ns, end_ns).",
    (
        C("start_ns", "i64", "Start."),
        C("end_ns", "i64", "End."),
        C("lane", "i32", "Device index; 0 in CPU traces."),
        C("stream", "i64", "Stream (thread in CPU traces)."),
        C("name", "str", "Event name."),
        C("work", "str", "model.Work: compute, comm, fused, memcpy, memset, unknown."),
        C("family", "str", "Kernel family: gemm, attention, nccl, deepep, ...", null=True),
        C("axis", "str", "Parallel axis of comm and fused work.", null=True),
        C("op", "str", "Canonical collective: all_reduce, ... (comm, fused).", null=True),
        C("group", "str", "Group key: sorted ranks as `0,1,2,3`, else `name:size`.", null=True),
        C("group_size", "i64", "Members of the group.", null=True),
        C("message_bytes", "i64", "Size S by the nccl-tests convention.", null=True),
        C("dtype", "str", "Element type of a collective.", null=True),
        C("seq", "i64", "Sequence number within the group.", null=True),
        C("group_name", "str", "Process group as this rank names it.", null=True),
        C("src_rank", "i64", "Global rank of the sender (recv, send_recv).", null=True),
        C("dst_rank", "i64", "Global rank of the receiver (send, send_recv).", null=True),
        C("in_split", "str", "Rows sent to each member (all_to_allv), as written.", null=True),
        C("evidence", "str", "model.Evidence of the axis label.", null=True),
        C("confidence", "f64", "0..1, of the axis label.", null=True),
        C("phase", "str", "model.Phase."),
        C("step", "i32", "Row in steps (`index`), -1 outside every step."),
        C("launch_ns", "i64", "Start of the host call that launched it.", null=True),
        C("launch_tid", "i64", "Thread of that call.", null=True),
        C("graph_id", "i64", "Captured graph that replayed it.", null=True),
        C("range_name", "str", "Innermost host user range around the launch.", null=True),
        C("event", "i64", "Row id in device (or ops in CPU traces)."),
    ),
)

STEPS = Table(
    "steps",
    "Step windows of one rank and lane; windows of one lane neither overlap nor leave gaps.",
    (
        C("index", "i32", "0-based position in the capture, equal on all lanes of the rank."),
        C("label", "str", "As the trace names it: ProfilerStep#5, or step 0."),
        C("lane", "i32", "Device index."),
        C("start_ns", "i64", "Window start (definitions 2)."),
        C("end_ns", "i64", "Window end."),
        C("host_start_ns", "i64", "Host-side marker start.", null=True),
        C("host_end_ns", "i64", "Host-side marker end.", null=True),
        C("device_events", "i64", "Device events that belong to the step."),
        C("kept", "bool", "Counts in averages."),
        C("reason", "str", "Why it is not kept; empty when kept."),
    ),
)

BUDGET = Table(
    "budget",
    "Where each step's time went; per (rank, lane, step) the rows add up to the window exactly.",
    (
        C("rank", "i32", "Rank."),
        C("lane", "i32", "Device index."),
        C("step", "i32", "steps.index."),
        C("kept", "bool", "The step counts in averages."),
        C("state", "str", "compute, exposed_comm, bubble, memcpy or idle."),
        C("detail", "str", "Axis of exposed_comm, cause of idle, else empty."),
        C("ns", "i64", "Time in this state."),
    ),
)

AXIS_STEP = Table(
    "axis_step",
    "Standalone communication figures; axes may overlap each other. op = '' sums over all ops.",
    (
        C("rank", "i32", "Rank."),
        C("lane", "i32", "Device index."),
        C("step", "i32", "steps.index."),
        C("kept", "bool", "The step counts in averages."),
        C("axis", "str", "Axis."),
        C("op", "str", "Canonical collective, '' for the whole axis."),
        C("count", "i64", "Communication events in the step."),
        C("bytes", "i64", "Sum of message sizes S; null where any is unknown.", null=True),
        C("comm_ns", "i64", "|union of its ops| within the window."),
        C("exposed_ns", "i64", "|union of its ops minus union of compute|."),
    ),
)

COMM_EVENTS = Table(
    "comm_events",
    "Every communication event inside a kept step, with what hides it.",
    (
        C("rank", "i32", "Rank."),
        C("lane", "i32", "Device index."),
        C("step", "i32", "steps.index."),
        C("start_ns", "i64", "Start."),
        C("end_ns", "i64", "End."),
        C("name", "str", "Event name."),
        C("axis", "str", "Axis."),
        C("op", "str", "Canonical collective."),
        C("group", "str", "Group key.", null=True),
        C("group_size", "i64", "Members.", null=True),
        C("message_bytes", "i64", "S.", null=True),
        C("phase", "str", "model.Phase."),
        C("stream", "i64", "Stream."),
        C("exposed_ns", "i64", "Part of its duration during which no compute runs on the lane."),
        C("launch_ns", "i64", "Start of the launching host call.", null=True),
        C("range_name", "str", "Innermost host range around the launch.", null=True),
        C("compute_after_ns", "i64", "Compute left in the step after its end."),
        C("compute_before_ns", "i64", "Compute already done in the step before its start."),
    ),
)

HOST_STEP = Table(
    "host_step",
    "Host side of each step: synchronising calls and how far ahead of the device the host runs.",
    (
        C("rank", "i32", "Rank."),
        C("lane", "i32", "Device index."),
        C("step", "i32", "steps.index."),
        C("kept", "bool", "The step counts in averages."),
        C("sync_calls", "i64", "Blocking synchronisations inside the step."),
        C("sync_ns", "i64", "Host time blocked in them."),
        C("drain_ns", "i64", "Device idle that syncs left, at most the time they blocked."),
        C("launches", "i64", "Kernel launches."),
        C("median_lead_ns", "i64", "Median of kernel start minus launch start.", null=True),
    ),
)

MEMBER = (
    C("rank", "i32", "Member."),
    C("lane", "i32", "Device index."),
    C("step", "i32", "steps.index of this rank, -1 outside every step."),
    C("start_ns", "i64", "Start on this rank's clock."),
    C("end_ns", "i64", "End on this rank's clock."),
    C("event", "i64", "activity.event."),
)

INSTANCES = Table(
    "instances",
    "Collectives matched across ranks, one row a member that recorded it. Of point-to-point "
    "transfers each is an instance, so a kernel that sends and receives has two rows.",
    (
        C("instance", "i64", "Same collective, same number."),
        C("axis", "str", "Axis."),
        C("op", "str", "Canonical collective of this member's event."),
        C("group", "str", "Group key: sorted ranks."),
        C("group_size", "i64", "Members of the group."),
        *MEMBER,
        C("bytes", "i64", "Size S of this member.", null=True),
        C("seen", "i32", "Members that recorded it."),
        C("traced", "i32", "Members whose trace was read."),
        C("expected", "i32", "Members it had: the group's, 2 of a transfer."),
        C("matched", "str", "How: sequence, order or time."),
    ),
)

SPLITS = Table(
    "splits",
    "Wait and transfer of every instance that all members recorded on clocks that agree.",
    (
        C("instance", "i64", "instances.instance."),
        C("axis", "str", "Axis."),
        C("op", "str", "Canonical collective."),
        C("group", "str", "Group key: sorted ranks."),
        *MEMBER,
        C("wait_ns", "i64", "Latest aligned start over members minus own start."),
        C("transfer_ns", "i64", "End minus latest start, the least over members."),
        C("late_rank", "i32", "Who started last; null where nobody is clearly last.", null=True),
        C("late_ns", "i64", "How long after the last but one it started; 0 without late rank."),
        C("bytes", "i64", "S of the instance: of the worst member.", null=True),
        C("bus_bytes", "f64", "f S, f by operation and group size.", null=True),
        C("spec_ns", "i64", "Expected time at the link's datasheet rate.", null=True),
    ),
)

WAITS = Table(
    "waits",
    "Wait and transfer by rank: means per kept step of the rank.",
    (
        C("rank", "i32", "Rank."),
        C("axis", "str", "Axis."),
        C("wait_ns", "i64", "Waiting for other members, per step."),
        C("transfer_ns", "i64", "Transfer, per step."),
        C("caused_ns", "i64", "Longest wait of another member that this rank alone caused."),
        C("instances", "i64", "Instances in kept steps."),
        C("late", "i64", "Of these, how many it clearly started last."),
    ),
)

BUSBW = Table(
    "busbw",
    "Bus bandwidth by size of message, against the link's roofline.",
    (
        C("axis", "str", "Axis."),
        C("op", "str", "Canonical collective."),
        C("level", "str", "Link level the groups span: node or network.", null=True),
        C("group_size", "i64", "Members of a group."),
        C("size_bytes", "i64", "Power of two at or below S."),
        C("count", "i64", "Instances."),
        C("mean_bytes", "f64", "Mean S."),
        C("transfer_ns", "i64", "Median transfer."),
        C("busbw_gbps", "f64", "Sum of f S over sum of transfers, decimal GB/s.", null=True),
        C("spec_gbps", "f64", "Datasheet rate of the level, one direction.", null=True),
        C("spec_ns", "i64", "Median expected time at the datasheet rate.", null=True),
        C("typical_ns", "i64", "Median expected time at the rate usually reached.", null=True),
        C("link_efficiency", "f64", "Sum of spec_ns over sum of transfers.", null=True),
    ),
)

UNMATCHED = Table(
    "unmatched",
    "Communication that is in no instance all traced members recorded.",
    (
        C("axis", "str", "Axis."),
        C("op", "str", "Canonical collective."),
        C("rank", "i32", "Who recorded it."),
        C("reason", "str", "Why it stands alone."),
        C("count", "i64", "Events."),
    ),
)

DESYNCHRONISED = Table(
    "desynchronised",
    "Calls at the same position of a group whose kinds or sizes disagree. They are never paired.",
    (
        C("position", "i64", "Number of the position; same position, same number."),
        C("axis", "str", "Axis."),
        C("group", "str", "Group key: sorted ranks."),
        C("seq", "i64", "Sequence number, where the trace has one.", null=True),
        *MEMBER,
        C("op", "str", "What this member called."),
        C("bytes", "i64", "Size S of this member.", null=True),
    ),
)

TRAFFIC = Table(
    "traffic",
    "What each member of an all-to-all sent to which other, from its split sizes.",
    (
        C("axis", "str", "Axis."),
        C("group", "str", "Group key: sorted ranks."),
        C("src_rank", "i32", "Global rank of the sender."),
        C("dst_rank", "i32", "Global rank of the receiver."),
        C("count", "i64", "Calls."),
        C("rows", "i64", "Sent rows (split sizes count along the first dimension)."),
    ),
)

MEASURE_TABLES: tuple[Table, ...] = (BUDGET, AXIS_STEP, COMM_EVENTS, HOST_STEP)
CROSSRANK_TABLES: tuple[Table, ...] = (
    INSTANCES, SPLITS, WAITS, BUSBW, UNMATCHED, DESYNCHRONISED, TRAFFIC,
)  # fmt: skip
ALL_TABLES: tuple[Table, ...] = (
    *TRACE_TABLES, ACTIVITY, STEPS, *MEASURE_TABLES, *CROSSRANK_TABLES,
)  # fmt: skip


def to_markdown(tables: tuple[Table, ...] = ALL_TABLES) -> str:
    """The reference page ``docs/schema.md``."""
    return reference_page(tables)
