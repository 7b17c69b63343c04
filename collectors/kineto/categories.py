"""What each event category means, as data: category names changed with every era and producer.

Keys are lower case: before 2022 Kineto wrote ``Operator`` and ``Kernel``, later ``cpu_op`` and
``kernel``. Events without a category (Ascend, XLA, generic Chrome traces) are told apart by the
names of the process and thread they lie on, see :func:`track_kind`.
"""

from __future__ import annotations

import re
from enum import Enum


class Kind(Enum):
    """Where an event goes."""

    OP = "op"  # host operator -> ops
    RANGE = "range"  # user annotation on the host -> ranges
    DEVICE_RANGE = "device_range"  # its shadow on a device track -> ranges
    LAUNCH = "launch"  # runtime or driver call -> launches
    KERNEL = "kernel"  # -> device
    MEMCPY = "memcpy"  # -> device
    MEMSET = "memset"  # -> device
    SYNC = "sync"  # waits recorded on device tracks -> syncs
    MEMORY = "memory"  # allocator instants -> memory
    SKIP = "skip"  # known, carries nothing that is analysed; counted
    TRACK = "track"  # decided by its process and thread names once all are known


CATEGORIES: dict[str, Kind] = {
    # host operators
    "cpu_op": Kind.OP,
    "operator": Kind.OP,  # torch 1.8 .. 1.12
    "hpu_op": Kind.OP,
    # user annotations
    "user_annotation": Kind.RANGE,
    "gpu_user_annotation": Kind.DEVICE_RANGE,
    "xpu_user_annotation": Kind.DEVICE_RANGE,
    # runtime and driver calls
    "cuda_runtime": Kind.LAUNCH,
    "cuda_driver": Kind.LAUNCH,
    "runtime": Kind.LAUNCH,  # torch 1.8 .. 1.12
    "hip_runtime": Kind.LAUNCH,
    "hip_driver": Kind.LAUNCH,
    "xpu_runtime": Kind.LAUNCH,
    "xpu_driver": Kind.LAUNCH,
    "mtia_runtime": Kind.LAUNCH,
    "glow_runtime": Kind.LAUNCH,
    "privateuse1_runtime": Kind.LAUNCH,
    "privateuse1_driver": Kind.LAUNCH,
    "enqueue": Kind.LAUNCH,  # Ascend host task queue
    "dequeue": Kind.LAUNCH,
    # device work
    "kernel": Kind.KERNEL,
    "concurrent_kernel": Kind.KERNEL,
    "mtia_ccp_events": Kind.KERNEL,
    "mtia_workloadd": Kind.KERNEL,
    "privateuse1_kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "memcpy": Kind.MEMCPY,  # torch 1.8 .. 1.12
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
    # waits on device tracks
    "cuda_sync": Kind.SYNC,
    "xpu_sync": Kind.SYNC,
    "privateuse1_sync": Kind.SYNC,
    "synchronization": Kind.SYNC,
    # allocator
    "cpu_instant_event": Kind.MEMORY,
    # flows between events; correlation ids carry the same links
    "ac2g": Kind.SKIP,
    "fwdbwd": Kind.SKIP,
    "async": Kind.SKIP,
    "async_cpu_to_gpu": Kind.SKIP,
    "async_gpu": Kind.SKIP,
    "async_npu": Kind.SKIP,
    "async_task_queue": Kind.SKIP,
    "hosttodevice": Kind.SKIP,
    "critical_path": Kind.SKIP,  # drawn by HTA
    # known, not analysed
    "python_function": Kind.SKIP,
    "trace": Kind.SKIP,  # the span "PyTorch Profiler (0)"
    "overhead": Kind.SKIP,
    "external_correlation": Kind.SKIP,
    "gpu_pm_counter": Kind.SKIP,
    "cuda_profiler_range": Kind.SKIP,
    "mtia_counters": Kind.SKIP,
    "mtia_insight": Kind.SKIP,
    "collective_comm": Kind.SKIP,  # repeats what record_param_comms says
    # no category: by track
    "": Kind.TRACK,
}

# Names that override their category: MTIA writes waits and copies as ccp events, too.
NAME_KINDS: dict[str, dict[str, Kind]] = {
    "mtia_ccp_events": {
        "event_wait": Kind.SYNC,
        "event_record": Kind.SYNC,
        "dma_request": Kind.MEMCPY,
    },
}

# Names that override the kind of an uncategorised device track: Ascend's tasks.
_TASK_KINDS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"^(NOTIFY|EVENT)_(WAIT|RECORD|RESET)", re.IGNORECASE), Kind.SYNC),
    (re.compile(r"^(MEMCPY_ASYNC|SDMA|REDUCE_ASYNC)", re.IGNORECASE), Kind.MEMCPY),
)

# (process name, thread name) -> kind; the first match wins.
_TRACKS: tuple[tuple[re.Pattern[str], re.Pattern[str], Kind], ...] = tuple(
    (re.compile(process), re.compile(thread), kind)
    for process, thread, kind in (
        # Ascend (msprof trace_view.json)
        (r"^Ascend Hardware", r"^Step Trace", Kind.DEVICE_RANGE),
        (r"^Ascend Hardware", r"", Kind.KERNEL),
        (r"^Step Trace", r"", Kind.DEVICE_RANGE),
        (r"^CANN", r"", Kind.LAUNCH),
        (
            r"^(HCCL|Communication)\b",
            r"^(Group .* Communication|Communication Kernel)",
            Kind.KERNEL,
        ),
        (r"^(HCCL|Communication)\b", r"", Kind.SKIP),  # planes: parts of the group's operations
        (r"^(Overlap Analysis|AI Core Freq|HBM|NPU.MEM)", r"", Kind.SKIP),  # derived, counters
        # XLA (trace.json.gz next to an xplane.pb)
        (r"^/device:(TPU|GPU):", r"^(XLA Ops|Stream #)", Kind.KERNEL),
        (r"^/device:", r"^(Steps|XLA Modules|XLA TraceMe|Framework)", Kind.DEVICE_RANGE),
        (r"^/device:", r"", Kind.SKIP),
        # a GPU track whose events carry no category
        (r"^(GPU|XPU) \d+", r"^[Ss]tream", Kind.KERNEL),
    )
)


def category_kind(category: object) -> Kind | None:
    """The kind of a category name, None for one nobody has told us about."""
    return CATEGORIES.get(category.lower() if isinstance(category, str) else "")


def track_kind(process: str, thread: str) -> Kind:
    """The kind of uncategorised complete events on a track: host operators unless known."""
    for process_pattern, thread_pattern, kind in _TRACKS:
        if process_pattern.search(process) and thread_pattern.search(thread):
            return kind
    return Kind.OP


def task_kind(name: str) -> Kind:
    """The kind of an event on an uncategorised kernel track, by its name."""
    for pattern, kind in _TASK_KINDS:
        if pattern.search(name):
            return kind
    return Kind.KERNEL
