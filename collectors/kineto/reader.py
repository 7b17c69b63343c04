"""One trace file to one :class:`analyzer.model.RankTrace`."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from analyzer.errors import InputError, NotATraceError
from analyzer.model import IngestReport, RankTrace, TraceMeta
from collectors import Progress
from collectors.kineto import metadata as meta
from collectors.kineto.gather import Gathered, Gatherer
from collectors.kineto.stream import EventStream
from collectors.kineto.tables import Tables, build_tables
from collectors.sources import JsonStream, Source, open_source

_BLOCK_BYTES = 1 << 20


def read_source(
    source: Source, *, rank: int | None = None, progress: Callable[[Progress], None] | None = None
) -> RankTrace:
    """Read one trace.

    Memory: the file is never held. Peak RSS was measured (``benchmarks/ingest.py``) as about 65 MB
    for the libraries, 60 MB for a chunk of decoded events, and 0.25 (with stacks) to 0.45 bytes
    (without) a byte of uncompressed JSON: 0.35 and 0.55 GB for a trace of 1 GB.

    Args:
        source: the file or archive member.
        rank: overrides the rank the trace names.
        progress: called with the compressed bytes read.

    Raises:
        InputError: it is not a trace, or holds no events.
    """
    began = time.perf_counter()
    with open_source(source, _BLOCK_BYTES, progress) as stream, _no_gc():
        events = EventStream(stream.read, source.label)
        gathered = _gather(events, stream)
        if not gathered.phases - {None}:
            raise _no_events(source, events, gathered)
        base = meta.base_ns(events.metadata)
        tables = build_tables(gathered, base)
    report = IngestReport(
        events=gathered.events,
        dropped=dict(events.dropped + gathered.dropped),
        repaired=_repaired(events, gathered, tables),
        truncated=events.truncated or bool(stream.damage),
        notes=_notes(events, gathered, tables, stream),
        json_bytes=stream.done,
        seconds=time.perf_counter() - began,
    )
    return RankTrace(
        meta=_meta(source, rank, events, gathered, tables),
        report=report,
        device=tables.device,
        comm_args=tables.comm_args,
        launches=tables.launches,
        ops=tables.ops,
        ranges=tables.ranges,
        syncs=tables.syncs,
        memory=tables.memory,
    )


def _gather(events: EventStream, stream: JsonStream) -> Gathered:
    gatherer = Gatherer()
    try:
        for chunk in events:
            gatherer.add(chunk)
    except InputError:
        if stream.damage:  # that is the problem, not what the remains look like
            raise InputError(f"{stream.label}: {stream.damage}") from None
        raise
    return gatherer.finish()


@contextmanager
def _no_gc() -> Iterator[None]:
    """Millions of short-lived objects would make the collector scan them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _no_events(source: Source, events: EventStream, gathered: Gathered) -> InputError:
    if events.truncated and not gathered.events:
        return InputError(f"{source.label}: cut off before the first complete event")
    if gathered.events or gathered.dropped:
        return NotATraceError(
            f"{source.label}: JSON, but not a Kineto or Chrome trace: a list of other things"
        )
    return InputError(f"{source.label}: the trace holds no events")


def _repaired(events: EventStream, gathered: Gathered, tables: Tables) -> dict[str, int]:
    repaired = dict(events.repaired + gathered.repaired)
    if tables.hygiene.clipped:
        repaired["clipped absurd duration"] = tables.hygiene.clipped
    return repaired


def _notes(
    events: EventStream, gathered: Gathered, tables: Tables, stream: JsonStream
) -> tuple[str, ...]:
    notes = [*events.notes, *tables.hygiene.notes]
    if stream.damage:
        notes.append(stream.damage)
    if gathered.unpadded:
        notes.append(
            "fractions of times are nanosecond counts without leading zeros (Kineto, March 2024)"
        )
    if gathered.unknown:
        notes.append(
            f"unknown categories, read by the track they are on: {_listed(gathered.unknown)}"
        )
    if +gathered.skipped:
        notes.append(f"counted, not kept: {_listed(+gathered.skipped)}")
    return tuple(notes)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{n:,} {what}" for what, n in counts.most_common())


def _meta(
    source: Source, rank: int | None, events: EventStream, gathered: Gathered, tables: Tables
) -> TraceMeta:
    metadata = events.metadata
    info = meta.distributed_info(metadata)
    own_rank = meta.as_rank(info.get("rank"))
    embedded = metadata.get(meta.EMBEDDED_KEY)
    embedded = embedded if isinstance(embedded, dict) else {}
    if rank is not None:
        chosen, origin = rank, "--rank"
    elif own_rank is not None:
        chosen, origin = own_rank, "distributedInfo"
    else:
        chosen, origin = None, ""
    return TraceMeta(
        path=source.label,
        rank=chosen,
        rank_source=origin,
        world_size=meta.as_rank(info.get("world_size")),
        backend=str(info.get("backend") or ""),
        device_names=meta.device_names(metadata),
        device_kind=_device_kind(gathered, tables),
        producer=_producer(metadata, gathered),
        base_ns=meta.base_ns(metadata),
        host=str(metadata.get("host_name") or metadata.get("hostname") or ""),
        groups=meta.process_groups(info),
        mesh=meta.embedded_mesh(embedded),
        embedded=embedded,
        thread_names=gathered.thread_names,
    )


def _device_kind(gathered: Gathered, tables: Tables) -> str:
    """What kind of device the trace shows work on; ``cpu`` when it shows none."""
    if tables.device.is_empty():
        return "cpu"
    if any(c.startswith("mtia") for c in gathered.categories):
        return "mtia"
    if any(p.startswith(("Ascend", "HCCL", "Communication")) for p in tables.device_processes):
        return "npu"
    if any("TPU" in p for p in tables.device_processes):
        return "tpu"
    return "gpu"


def _producer(metadata: dict[str, object], gathered: Gathered) -> str:
    """Who wrote the trace: pytorch, msprof, xla, or another Chrome trace writer."""
    processes = gathered.process_names.values()
    if any(p in ("CANN", "Ascend Hardware") for p in processes):
        return "msprof"
    if any(p.startswith(("/device:", "/host:")) for p in processes):
        return "xla"
    if "schemaVersion" in metadata or gathered.categories & {"cpu_op", "operator", "kernel"}:
        return "pytorch"
    return "chrome"
