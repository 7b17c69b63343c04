"""The vocabulary and number format of Kineto JSON, for :mod:`builders`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

Time = float | int | str

TORCH_NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_to_all": "all_to_all",
    "all_to_allv": "all_to_allv",
    "send": "send",
    "recv": "recv",
    "barrier": "barrier",
}
C10D_OPS = {
    "all_reduce": "c10d::allreduce_",
    "all_gather": "c10d::_allgather_base_",
    "reduce_scatter": "c10d::_reduce_scatter_base_",
    "broadcast": "c10d::broadcast_",
    "reduce": "c10d::reduce_",
    "all_to_all": "c10d::alltoall_base_",
    "all_to_allv": "c10d::alltoall_base_",
    "send": "c10d::send",
    "recv": "c10d::recv_",
    "barrier": "c10d::barrier",
}
NCCL_KERNELS = {
    "all_reduce": "AllReduce_Sum_{dtype}_RING_LL",
    "all_gather": "AllGather_RING_LL",
    "reduce_scatter": "ReduceScatter_Sum_{dtype}_RING_LL",
    "broadcast": "Broadcast_RING_LL",
    "reduce": "Reduce_Sum_{dtype}_RING_LL",
    "all_to_all": "SendRecv",
    "all_to_allv": "SendRecv",
    "send": "SendRecv",
    "recv": "SendRecv",
    "barrier": "AllReduce_Sum_{dtype}_RING_LL",
}
NCCL_DTYPES = {"BFloat16": "bf16", "Float": "f32", "Half": "f16", "Byte": "u8", "Long": "u64"}
SYNC_CALLS = {
    "Stream Sync": "cudaStreamSynchronize",
    "Event Sync": "cudaEventSynchronize",
    "Context Sync": "cudaDeviceSynchronize",
    "Device Sync": "cudaDeviceSynchronize",
    "Stream Wait Event": "cudaStreamWaitEvent",
}
LAUNCH_CALLS = {
    "kernel": "cudaLaunchKernel",
    "gpu_memcpy": "cudaMemcpyAsync",
    "gpu_memset": "cudaMemsetAsync",
}


class Group(NamedTuple):
    """A process group this rank is a member of."""

    name: str
    desc: str
    ranks: tuple[int, ...]


class Exact(float):
    """A JSON number that remembers how it was written."""

    text: str

    def __new__(cls, text: str) -> Exact:
        number = super().__new__(cls, text)
        number.text = text
        return number


def number(value: Time) -> float | int:
    return Exact(value) if isinstance(value, str) else value


def add(value: Time, delta: Time) -> float | int:
    """``value + delta`` without losing decimals when either is exact text."""
    if isinstance(value, str) or isinstance(delta, str):
        return Exact(str(Decimal(str(value)) + Decimal(str(delta))))
    return value + delta


def cut_list(items: Sequence[int], limit: int = 30) -> str:
    """A list as torch prints it into an argument: cut after ``limit`` entries."""
    shown = ", ".join(str(i) for i in items[:limit])
    return f"[{shown}, ...]" if len(items) > limit else f"[{shown}]"


def comm_args(
    op: str,
    group: Group,
    nelems: int,
    dtype: str = "BFloat16",
    *,
    seq: int | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """Collective arguments as on an NCCL kernel.

    ``nelems`` counts the full tensor (all-gather output, reduce-scatter input, else the message),
    so that nccl-tests' message size is always ``nelems`` times the element size.
    """
    size = len(group.ranks)
    args: dict[str, Any] = {
        "Collective name": TORCH_NAMES[op],
        "In msg nelems": nelems // size if op == "all_gather" else nelems,
        "Out msg nelems": nelems // size if op == "reduce_scatter" else nelems,
        "Group size": size,
        "dtype": dtype,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group.name,
        "Process Group Description": group.desc,
        "Process Group Ranks": cut_list(group.ranks),
    }
    if seq is not None:
        key = f"{group.name}/{seq}/{op in ('send', 'recv')}/{group.ranks}"
        args["Seq"] = seq
        args["Comms Id"] = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())
    return {**args, **extra}


def dumps(document: Mapping[str, Any], *, compact: bool = False) -> bytes:
    """A Kineto document as bytes: one event a line, :class:`Exact` numbers as they were written."""
    separators = (",", ":") if compact else (", ", ": ")
    events = document.get("traceEvents", [])
    head = {key: value for key, value in document.items() if key != "traceEvents"}
    lines = [_encode(event, separators) for event in events]
    opening = _encode(head, separators)[:-1] + (separators[0] if head else "")
    body = ",\n".join(lines)
    return f'{opening}"traceEvents"{separators[1]}[\n{body}\n]}}'.encode()


def _encode(value: Any, separators: tuple[str, str]) -> str:
    text = json.dumps(_mark_exact(value), separators=separators)
    return re.sub(r'"@exact:([^"]*)@"', r"\1", text)


def _mark_exact(value: Any) -> Any:
    if isinstance(value, Exact):
        return f"@exact:{value.text}@"
    if isinstance(value, Mapping):
        return {key: _mark_exact(item) for key, item in value.items()}
    return [_mark_exact(item) for item in value] if isinstance(value, list) else value
