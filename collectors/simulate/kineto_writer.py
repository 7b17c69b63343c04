"""Writes a rank's record as the Kineto JSON that PyTorch 2.13 writes on NVIDIA GPUs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from collectors.simulate.costs import Device
from collectors.simulate.engine import DeviceEvent, HostEvent, RankRecord
from collectors.simulate.spec import Group, SimSpec
from collectors.simulate.tape import Collective, Stream, Thread

STREAM_IDS = {
    Stream.COMPUTE: 7,
    Stream.TENSOR: 20,
    Stream.GATHER_COPY: 24,
    Stream.GATHER: 28,
    Stream.SCATTER: 32,
    Stream.REPLICATE: 36,
    Stream.WORLD: 40,
    Stream.PEER: 44,
}
BASE_NS = 1_767_189_312_000_000_000
"""``baseTimeNanoseconds``: the start of Kineto's interval of Unix time."""
START_NS = 5_239_871_000_000_000
"""Time of the job's time 0 after the base."""

_COLLECTIVE_NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "send": "send",
    "recv": "recv",
}
_CBIDS = {
    "cudaLaunchKernel": 211,
    "cuLaunchKernelEx": 652,
    "cudaMemcpyAsync": 41,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
    "cudaEventRecordWithFlags": 370,
    "cudaStreamWaitEvent": 147,
}
_LAUNCH_CALLS = frozenset({"cudaLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync"})
_SYNC_KINDS = {"cudaStreamSynchronize": "Stream Sync", "cudaDeviceSynchronize": "Context Sync"}
_LISTED_RANKS = 30  # torch cuts longer lists


@dataclass(frozen=True, slots=True)
class ClockError:
    """What a rank's clock shows instead of the job's time."""

    offset_ns: int = 0
    drift_ppm: float = 0.0

    def shown(self, ns: int) -> int:
        """The time the clock shows at true time ``ns`` from the job's start."""
        return ns + self.offset_ns + round(ns * self.drift_ppm / 1e6)


def write_trace(
    record: RankRecord,
    groups: tuple[Group, ...],
    spec: SimSpec,
    device: Device,
    clock: ClockError | None = None,
) -> bytes:
    """One rank's trace as JSON text, one event a line.

    Args:
        record: What happened on the rank.
        groups: All process groups; the rank's own are listed in ``distributedInfo``.
        spec: The job, for the defects that only change what is written.
        device: For the device's name.
        clock: This rank's clock error, in every timestamp.
    """
    writer = _Writer(record, spec, clock or ClockError())
    own = [group for group in groups if record.rank in group.ranks]
    head = json.dumps(_header(record.rank, spec.world_size, own, device), separators=(",", ":"))
    lines = ",\n".join(writer.lines())
    return f'{head[:-1]},\n"traceEvents":[\n{lines}\n]}}\n'.encode()


def _header(rank: int, world_size: int, own: list[Group], device: Device) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "deviceProperties": [
            {
                "id": 0, "name": device.name, "totalGlobalMem": device.memory_bytes,
                "computeMajor": 9, "computeMinor": 0, "warpSize": 32, "numSms": 132,
            }
        ],
        "cuda_runtime_version": 12080,
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": world_size,
            "pg_count": len(own),
            "pg_config": [
                {
                    "pg_name": group.name, "pg_desc": group.desc, "backend_config": "cuda:nccl",
                    "pg_size": group.size, "ranks": list(group.ranks),
                }
                for group in own
            ],
            "nccl_version": "2.27.5",
        },
        "record_shapes": 0,
        "trace_id": hashlib.md5(f"rank {rank}".encode(), usedforsecurity=False).hexdigest().upper(),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }  # fmt: skip


class _Writer:
    def __init__(self, record: RankRecord, spec: SimSpec, clock: ClockError) -> None:
        self.record = record
        self.spec = spec
        self.clock = clock
        pid = 200_000 + 10 * record.rank
        self.pid = pid
        self.tids = {Thread.MAIN: pid, Thread.BACKWARD: pid + 7}
        self._launches_missing = spec.has("missing-launches")

    def lines(self) -> Iterator[str]:
        """All events."""
        yield from self._names()
        for host_event in self.record.host:
            if self._launches_missing and host_event.name in _LAUNCH_CALLS:
                continue
            yield self._host_event(host_event)
            if self.spec.sync_events and host_event.name in _SYNC_KINDS:
                yield self._sync_event(host_event)
        random = Random(f"{self.spec.seed}/drop/{self.record.rank}")  # noqa: S311 - noise
        for event in self.record.device:
            if event.work.collective and random.random() < self.spec.drop_collectives:
                continue
            yield self._device_event(event)
            if self.spec.flows and not self._launches_missing:
                yield from self._flow(event)
        yield from self._device_steps()

    def _host_event(self, event: HostEvent) -> str:
        args: dict[str, Any] = {}
        if event.external_id:
            args["External id"] = event.external_id
        if event.correlation is not None:
            args |= {"cbid": _CBIDS[event.name], "correlation": event.correlation}
        else:
            args["Record function id"] = 0
        for key, value in event.args.items():
            args |= self._host_comm_args(value) if key == "collective" else {key: value}
        tid = self.tids[event.thread]
        span = (event.start_ns, event.end_ns)
        return self._line(event.category, event.name, self.pid, tid, span, args)

    def _device_event(self, event: DeviceEvent) -> str:
        stream = STREAM_IDS[event.stream]
        args: dict[str, Any] = {
            "External id": event.external_id, "device": 0, "context": 1, "stream": stream,
            "correlation": event.correlation,
        }  # fmt: skip
        work = event.work
        if work.collective is not None:
            args |= {"grid": [24, 1, 1], "block": [512, 1, 1]}
            args |= self._comm_args(work.collective, event.seq)
        elif work.kind == "kernel":
            args |= {"grid": [132, 1, 1], "block": [384, 1, 1]}
        else:
            rate = (work.nbytes or 0) / max(1, event.end_ns - event.start_ns)
            args |= {"bytes": work.nbytes, "memory bandwidth (GB/s)": rate}
        return self._line(work.kind, work.name, 0, stream, (event.start_ns, event.end_ns), args)

    def _comm_args(self, collective: Collective, seq: int) -> dict[str, Any]:
        """Arguments as on the kernel; sizes are per rank, so a share where the op shards."""
        group, nelems = collective.group, collective.nelems
        share = nelems // group.size
        shown = ", ".join(str(rank) for rank in group.ranks[:_LISTED_RANKS])
        more = ", ..." if group.size > _LISTED_RANKS else ""
        args: dict[str, Any] = {
            "Collective name": _COLLECTIVE_NAMES[collective.op],
            "In msg nelems": share if collective.op == "all_gather" else nelems,
            "Out msg nelems": share if collective.op == "reduce_scatter" else nelems,
            "Group size": group.size,
            "dtype": collective.dtype,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": group.name,
            "Process Group Description": group.desc,
            "Process Group Ranks": f"[{shown}{more}]",
        }
        if collective.peer is not None:
            args["Dst Rank" if collective.op == "send" else "Src Rank"] = collective.peer
        identity = f"{group.name}/{seq}/{collective.peer is not None}/{group.ranks}"
        digest = hashlib.blake2b(identity.encode(), digest_size=8).digest()
        return args | {"Seq": seq, "Comms Id": int.from_bytes(digest)}

    def _host_comm_args(self, call: tuple[Collective, int]) -> dict[str, Any]:
        collective, seq = call
        group = collective.group
        own = self.record.rank if collective.peer is None else collective.peer
        args = {
            **self._comm_args(collective, seq),
            "Rank": group.ranks.index(own),
            "Is asynchronized op": 1,
            "Global rank start": group.ranks[0],
        }
        strides = {b - a for a, b in zip(group.ranks, group.ranks[1:], strict=False)}
        return args | ({"Global rank stride": strides.pop()} if len(strides) == 1 else {})

    def _sync_event(self, call: HostEvent) -> str:
        kind = _SYNC_KINDS[call.name]
        stream = STREAM_IDS[Stream.COMPUTE] if kind == "Stream Sync" else -1
        args = {
            "cuda_sync_kind": kind, "stream": stream, "correlation": call.correlation,
            "device": 0, "context": 1,
        }  # fmt: skip
        return self._line("cuda_sync", kind, 0, stream, (call.start_ns, call.end_ns), args)

    def _flow(self, event: DeviceEvent) -> Iterator[str]:
        ends = (
            ("s", self.pid, self.tids[event.thread], event.launch_start_ns, ""),
            ("f", 0, STREAM_IDS[event.stream], event.start_ns, ',"bp":"e"'),
        )
        for phase, pid, tid, at_ns, bind in ends:
            yield (
                f'{{"ph":"{phase}","id":{event.correlation},"pid":{pid},"tid":{tid},'
                f'"ts":{self._us(at_ns)},"cat":"ac2g","name":"ac2g"{bind}}}'
            )

    def _device_steps(self) -> Iterator[str]:
        """Device-side shadows of the step ranges, one per step and stream that ran work of it."""
        spans: dict[tuple[int, Stream], tuple[int, int]] = {}
        for event in self.record.device:
            key = (event.step, event.stream)
            start, end = spans.get(key, (event.start_ns, event.end_ns))
            spans[key] = (min(start, event.start_ns), max(end, event.end_ns))
        for (step, stream), span in spans.items():
            name, tid = f"ProfilerStep#{step}", STREAM_IDS[stream]
            yield self._line("gpu_user_annotation", name, 0, tid, span, {})

    def _names(self) -> Iterator[str]:
        labels = {self.tids[Thread.MAIN]: "python", self.tids[Thread.BACKWARD]: "pt_autograd_0"}
        rows = [
            ("process_name", self.pid, 0, {"name": "python"}),
            ("process_labels", self.pid, 0, {"labels": "CPU"}),
            ("process_labels", 0, 0, {"labels": "GPU 0"}),
            *(
                ("thread_name", self.pid, tid, {"name": f"thread {tid} ({name})"})
                for tid, name in labels.items()
            ),
            *(
                ("thread_name", 0, tid, {"name": f"stream {tid} "})
                for tid in sorted({STREAM_IDS[event.stream] for event in self.record.device})
            ),
        ]
        for name, pid, tid, args in rows:
            text = json.dumps(args, separators=(",", ":"))
            yield (
                f'{{"name":"{name}","ph":"M","ts":{self._us(0)},"pid":{pid},"tid":{tid},'
                f'"args":{text}}}'
            )

    def _line(
        self, cat: str, name: str, pid: int, tid: int, span: tuple[int, int], args: dict[str, Any]
    ) -> str:
        start, end = (self.clock.shown(ns) for ns in span)
        return (
            f'{{"ph":"X","cat":"{cat}","name":{json.dumps(name)},"pid":{pid},"tid":{tid},'
            f'"ts":{_decimal_us(START_NS + start)},"dur":{_decimal_us(end - start)},'
            f'"args":{json.dumps(args, separators=(",", ":"))}}}'
        )

    def _us(self, ns: int) -> str:
        return _decimal_us(START_NS + self.clock.shown(ns))


def _decimal_us(ns: int) -> str:
    """Nanoseconds as microseconds with exactly three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"
