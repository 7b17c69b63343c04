"""Builds Kineto JSON as PyTorch writes it, event by event, for unit and case tests.

An independent writer: it shares no code with the readers it tests. All times are microseconds
relative to ``base_ns``; a ``str`` keeps its decimals exactly (``"1789035343287912.456"``), which a
float of that size could not.

    trace = TraceBuilder(rank=0, world_size=2, groups=[Group("1", "mesh_tp", (0, 1))])
    trace.step(0, 0, 1000)
    trace.kernel("nvjet_gemm", 100, 200)
    trace.collective("all_reduce", 250, 150, group="1", nelems=4096)
    trace.write(tmp_path / "rank0.json.gz")
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kineto_format import (
    C10D_OPS,
    LAUNCH_CALLS,
    NCCL_DTYPES,
    NCCL_KERNELS,
    SYNC_CALLS,
    Exact,
    Group,
    Time,
    add,
    comm_args,
    cut_list,
    dumps,
    number,
)

__all__ = ["Exact", "Group", "TraceBuilder", "comm_args", "cut_list", "dumps"]

HOST_PID = 4000
MAIN_TID = 4000
BACKWARD_TID = 4001
BASE_NS = 1_767_189_312_000_000_000


class TraceBuilder:
    """Collects events of one rank and writes them as one Kineto file.

    Every method returns the builder (chainable), but :meth:`kernel`, :meth:`runtime`, :meth:`op`
    and :meth:`collective` return the correlation or external id they used.

    Args:
        rank: This rank, for ``distributedInfo`` and collectives.
        world_size: Ranks of the job.
        groups: Process groups of this rank, as :class:`Group` or ``(name, desc, ranks)``. A group
            ``0`` / ``default_pg`` over the world is always there.
        device_name: ``deviceProperties`` name; empty writes none.
        base_ns: ``baseTimeNanoseconds``; ``None`` leaves the key out (older PyTorch).
        compact: Without blanks after separators.
        distributed_info: Whether to write ``distributedInfo``.
        backend: Backend named in ``distributedInfo``.
    """

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        groups: Iterable[Group | tuple[str, str, Sequence[int]]] = (),
        device_name: str = "NVIDIA H100 80GB HBM3",
        base_ns: int | None = BASE_NS,
        *,
        compact: bool = False,
        distributed_info: bool = True,
        backend: str = "nccl",
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.device_name = device_name
        self.base_ns = base_ns
        self.compact = compact
        self.distributed_info = distributed_info
        self.backend = backend
        self.events: list[dict[str, Any]] = []
        self.metadata: dict[str, Any] = {}
        named = [Group(name, desc, tuple(ranks)) for name, desc, ranks in groups]
        world = Group("0", "default_pg", tuple(range(world_size)))
        if all(group.name != world.name for group in named):
            named.insert(0, world)
        self.groups = {group.name: group for group in named}
        self._correlation = 100
        self._external = 0
        self._seq: dict[str, int] = {}

    # -- device side ------------------------------------------------------------------------------

    def kernel(
        self,
        name: str,
        ts: Time,
        dur: Time,
        stream: int = 7,
        *,
        launch_ts: Time | None = None,
        launch_dur: Time = 5,
        launch: bool = True,
        launch_name: str | None = None,
        tid: int = MAIN_TID,
        op: str | None = None,
        comm: Mapping[str, Any] | None = None,
        device: int = 0,
        graph_id: int | None = None,
        correlation: int | None = None,
        external_id: int | None = None,
        cat: str = "kernel",
        **args: Any,
    ) -> int:
        """A kernel with the call that launched it (10 us earlier unless told); its correlation.

        ``op`` puts a linked cpu_op of that name around the launch, ``comm`` adds collective
        arguments, ``args`` anything else.
        """
        correlation = self._next_correlation() if correlation is None else correlation
        launched = add(ts, -10) if launch_ts is None else number(launch_ts)
        if op is not None:
            external_id = self.op(op, add(launched, -2), add(launch_dur, 4), tid=tid)
        link: dict[str, Any] = {} if external_id is None else {"External id": external_id}
        if launch:
            call = launch_name or LAUNCH_CALLS.get(cat.lower(), "cudaLaunchKernel")
            self.runtime(call, launched, launch_dur, correlation=correlation, tid=tid, **link)
        event_args: dict[str, Any] = {
            **link, "queued": 0, "device": device, "context": 1, "stream": stream,
            "correlation": correlation, "grid": [132, 1, 1], "block": [256, 1, 1],
        }  # fmt: skip
        if graph_id is not None:
            event_args |= {"graph id": graph_id, "graph node id": correlation}
        self._complete(cat, name, device, stream, ts, dur, {**event_args, **(comm or {}), **args})
        return correlation

    def memcpy(
        self,
        ts: Time,
        dur: Time,
        stream: int = 7,
        *,
        name: str = "Memcpy HtoD (Pinned -> Device)",
        nbytes: int = 4096,
        **kwargs: Any,
    ) -> int:
        """A copy with its ``cudaMemcpyAsync``; takes the keywords of :meth:`kernel`."""
        return self.kernel(name, ts, dur, stream, cat="gpu_memcpy", bytes=nbytes, **kwargs)

    def memset(
        self, ts: Time, dur: Time, stream: int = 7, *, nbytes: int = 4096, **kwargs: Any
    ) -> int:
        """A memset with its ``cudaMemsetAsync``; takes the keywords of :meth:`kernel`."""
        name = "Memset (Device)"
        return self.kernel(name, ts, dur, stream, cat="gpu_memset", bytes=nbytes, **kwargs)

    def collective(
        self,
        op: str,
        ts: Time,
        dur: Time,
        *,
        group: str | Group,
        nelems: int,
        dtype: str = "BFloat16",
        stream: int = 20,
        seq: int | None = None,
        name: str | None = None,
        launch_ts: Time | None = None,
        tid: int = MAIN_TID,
        comm: Mapping[str, Any] | None = None,
        kernel_args: bool = True,
        record: bool = True,
        **kwargs: Any,
    ) -> int:
        """An NCCL kernel, its ``record_param_comms`` and c10d op, and its launch (torch 2.13).

        ``op`` is canonical (all_gather, reduce_scatter, all_reduce, send, ...), ``nelems`` as in
        :func:`comm_args`. ``seq`` counts up per group unless given; ``comm`` overrides arguments;
        ``kernel_args=False`` writes none on the kernel, ``record=False`` no host ops.
        """
        member = self.groups[group] if isinstance(group, str) else group
        if seq is None:
            seq = self._seq[member.name] = self._seq.get(member.name, 0) + 1
        arguments = {**comm_args(op, member, nelems, dtype, seq=seq), **(comm or {})}
        launched = add(ts, -10) if launch_ts is None else number(launch_ts)
        external = None
        if record:
            self.op(C10D_OPS[op], add(launched, -6), 14, tid=tid)
            external = self.op(
                "record_param_comms", add(launched, -4), 11, tid=tid, **arguments,
                **self._host_only_args(member),
            )  # fmt: skip
        if name is None:
            kernel = NCCL_KERNELS[op].format(dtype=NCCL_DTYPES.get(dtype, dtype.lower()))
            name = f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)"
        return self.kernel(
            name, ts, dur, stream, launch_ts=launched, tid=tid, external_id=external,
            launch_name="cuLaunchKernelEx", comm=arguments if kernel_args else None, **kwargs,
        )  # fmt: skip

    def device_range(
        self, name: str, ts: Time, dur: Time, *, stream: int = 7, device: int = 0
    ) -> TraceBuilder:
        """A device-side shadow of a host range (``gpu_user_annotation``)."""
        args = {"External id": self._next_external()}
        return self._complete("gpu_user_annotation", name, device, stream, ts, dur, args)

    def sync(
        self,
        name: str,
        ts: Time,
        dur: Time,
        stream: int = 7,
        *,
        tid: int = MAIN_TID,
        call: bool = True,
        event: bool = True,
        device: int = 0,
        **args: Any,
    ) -> int:
        """A ``cuda_sync`` event (``Stream Sync``, ...) and its waiting host call; correlation."""
        correlation = self._next_correlation()
        if call:
            call_name = SYNC_CALLS.get(name, "cudaStreamSynchronize")
            self.runtime(call_name, ts, dur, correlation=correlation, tid=tid)
        if event:
            sync_args = {
                "cuda_sync_kind": name, "stream": stream, "correlation": correlation,
                "device": device, "context": 1, **args,
            }  # fmt: skip
            self._complete("cuda_sync", name, device, stream, ts, dur, sync_args)
        return correlation

    # -- host side --------------------------------------------------------------------------------

    def step(
        self, n: int, ts: Time, dur: Time, *, device_side: bool = False, **kwargs: Any
    ) -> TraceBuilder:
        """``ProfilerStep#n`` on the host, or (``device_side``) its shadow on the device instead."""
        write = self.device_range if device_side else self.range
        return write(f"ProfilerStep#{n}", ts, dur, **kwargs)

    def range(
        self, name: str, ts: Time, dur: Time, *, tid: int = MAIN_TID, **args: Any
    ) -> TraceBuilder:
        """A ``record_function`` range (``user_annotation``)."""
        host_args = {"External id": self._next_external(), "Record function id": 0, **args}
        return self._complete("user_annotation", name, HOST_PID, tid, ts, dur, host_args)

    def op(self, name: str, ts: Time, dur: Time, *, tid: int = MAIN_TID, **args: Any) -> int:
        """A ``cpu_op``; returns its external id."""
        external = self._next_external()
        op_args = {"External id": external, "Record function id": 0, "Ev Idx": external, **args}
        self._complete("cpu_op", name, HOST_PID, tid, ts, dur, op_args)
        return external

    def runtime(
        self,
        name: str,
        ts: Time,
        dur: Time,
        *,
        correlation: int | None = None,
        tid: int = MAIN_TID,
        cat: str | None = None,
        **args: Any,
    ) -> int:
        """A runtime or driver call; returns its correlation."""
        correlation = self._next_correlation() if correlation is None else correlation
        category = cat or (
            "cuda_driver" if name.startswith("cu") and name[2].isupper() else "cuda_runtime"
        )
        self._complete(category, name, HOST_PID, tid, ts, dur, {**args, "correlation": correlation})
        return correlation

    def memory(
        self,
        ts: Time,
        nbytes: int,
        *,
        address: int = 0x7F0000000000,
        total_allocated: int = 0,
        total_reserved: int = 0,
        device_type: int = 1,
        device: int = 0,
    ) -> TraceBuilder:
        """An allocator event; ``nbytes`` is negative for a free."""
        args = {
            "Total Reserved": total_reserved, "Total Allocated": total_allocated, "Bytes": nbytes,
            "Addr": address, "Device Id": device, "Device Type": device_type,
        }  # fmt: skip
        event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]"}
        return self.raw({**event, "pid": HOST_PID, "tid": MAIN_TID, "ts": number(ts), "args": args})

    def thread_name(
        self, name: str, tid: int = MAIN_TID, pid: int | str = HOST_PID
    ) -> TraceBuilder:
        """A ``thread_name`` metadata event."""
        event = {"name": "thread_name", "ph": "M", "ts": 0, "pid": pid, "tid": tid}
        return self.raw({**event, "args": {"name": name}})

    def raw(self, event: Mapping[str, Any]) -> TraceBuilder:
        """Any event, as it is."""
        self.events.append(dict(event))
        return self

    # -- output -----------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """The trace as a dictionary; exact decimals survive only in :meth:`json`."""
        document: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": []}
        if self.device_name:
            device = {
                "id": 0,
                "name": self.device_name,
                "totalGlobalMem": 85028372480,
                "numSms": 132,
            }
            document["deviceProperties"] = [device]
        if self.distributed_info:
            document["distributedInfo"] = {
                "backend": self.backend, "rank": self.rank, "world_size": self.world_size,
                "pg_count": len(self.groups),
                "pg_config": [self._group_entry(group) for group in self.groups.values()],
            }  # fmt: skip
        document["displayTimeUnit"] = "ms"
        if self.base_ns is not None:
            document["baseTimeNanoseconds"] = self.base_ns
        return {**document, **self.metadata, "traceEvents": [dict(e) for e in self.events]}

    def json(self) -> bytes:
        """The trace as JSON text."""
        return dumps(self.document(), compact=self.compact)

    def write(self, path: Path | str) -> Path:
        """Write the trace, gzipped when the name ends in ``.gz``; returns the path."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = self.json()
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        return path

    # -- details ----------------------------------------------------------------------------------

    def _complete(
        self, cat: str, name: str, pid: int, tid: int, ts: Time, dur: Time, args: dict[str, Any]
    ) -> TraceBuilder:
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid}
        return self.raw({**event, "ts": number(ts), "dur": number(dur), "args": args})

    def _group_entry(self, group: Group) -> dict[str, Any]:
        return {
            "pg_name": group.name,
            "pg_desc": group.desc,
            "backend_config": f"cuda:{self.backend}",
            "pg_size": len(group.ranks),
            "ranks": list(group.ranks),
        }

    def _host_only_args(self, group: Group) -> dict[str, Any]:
        own = {"Rank": group.ranks.index(self.rank) if self.rank in group.ranks else 0}
        start, *rest = group.ranks
        strides = {b - a for a, b in zip(group.ranks, rest, strict=False)}
        own |= {"Global rank start": start}
        if len(strides) == 1:
            own["Global rank stride"] = strides.pop()
        return {**own, "Is asynchronized op": 1}

    def _next_correlation(self) -> int:
        self._correlation += 1
        return self._correlation

    def _next_external(self) -> int:
        self._external += 1
        return self._external
