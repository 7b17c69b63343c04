"""What one rank's host does in a job, recorded as instructions for the engine.

Programs call a :class:`Tape` as training code calls PyTorch: ranges, operators, kernels on
streams, collectives, events. Nothing runs here; the engine gives the instructions their times.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from analyzer.model import WORLD_AXIS
from collectors.simulate.costs import DTYPE_BYTES, Device, HostCosts, transfer_ns
from collectors.simulate.spec import Group, SimSpec


class Stream(StrEnum):
    """CUDA streams of a rank, named by who uses them."""

    COMPUTE = "compute"
    GATHER_COPY = "gather_copy"  # FSDP: copy into the all-gather's buffer
    GATHER = "gather"
    SCATTER = "scatter"
    REPLICATE = "replicate"  # HSDP's and DDP's gradient all-reduce
    TENSOR = "tensor"
    WORLD = "world"
    PEER = "peer"  # point to point


class Thread(StrEnum):
    """Host threads that launch work."""

    MAIN = "main"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective or point-to-point call. ``nelems`` counts the full tensor (S / element size).

    ``axis`` is what the program communicates for. It is the group's, but for calls over the world
    (gradient norm) in a mesh of one axis, which share that axis's group.
    """

    op: str  # all_reduce, all_gather, reduce_scatter, send, recv
    axis: str
    group: Group
    nelems: int
    dtype: str
    transfer_ns: int  # from the last member's start to everybody's end
    peer: int | None = None  # global rank, point to point only

    @property
    def message_bytes(self) -> int:
        """S by the convention of nccl-tests."""
        return self.nelems * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Work:
    """Something to run on a stream."""

    name: str
    ns: int
    kind: str = "kernel"  # kernel, gpu_memcpy, gpu_memset
    call: str = "cudaLaunchKernel"
    nbytes: int | None = None
    collective: Collective | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """Open a host event; ``category`` is cpu_op or user_annotation."""

    category: str
    name: str
    args: dict[str, Any] = field(default_factory=dict)
    step: int | None = None  # number of the training step this opens


@dataclass(frozen=True, slots=True)
class End:
    """Close the host event opened last."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Let the host work for a while."""

    ns: int


@dataclass(frozen=True, slots=True)
class Switch:
    """Go on in another host thread; the one left waits."""

    thread: Thread


@dataclass(frozen=True, slots=True)
class Launch:
    """Put work on a stream."""

    work: Work
    stream: Stream


@dataclass(frozen=True, slots=True)
class Record:
    """Record an event behind all work now on the stream."""

    event: int
    stream: Stream


@dataclass(frozen=True, slots=True)
class Wait:
    """Let later work of the stream wait for the event."""

    event: int
    stream: Stream


@dataclass(frozen=True, slots=True)
class Synchronize:
    """Block the host until a stream (None: the device) has finished everything on it."""

    stream: Stream | None


Instruction = Begin | End | Busy | Switch | Launch | Record | Wait | Synchronize

_C10D = {
    "all_reduce": ("c10d::allreduce_", "nccl:all_reduce"),
    "all_gather": ("c10d::_allgather_base_", "nccl:_all_gather_base"),
    "reduce_scatter": ("c10d::_reduce_scatter_base_", "nccl:_reduce_scatter_base"),
    "send": ("c10d::send", "nccl:send"),
    "recv": ("c10d::recv_", "nccl:recv"),
}
_KERNELS = {
    "all_reduce": "AllReduce_Sum_{dtype}_RING_LL",
    "all_gather": "AllGather_RING_LL",
    "reduce_scatter": "ReduceScatter_Sum_{dtype}_RING_LL",
    "send": "SendRecv",
    "recv": "SendRecv",
}
_NCCL_DTYPE = {"BFloat16": "bf16", "Float": "f32", "Long": "u64"}


class Tape:
    """Instructions of one rank, in host order.

    Args:
        rank: Global rank.
        groups: All process groups; the rank uses those it is a member of.
        spec: The job.
        device: Costs of kernels and transfers.
        host: Costs of host work.
    """

    def __init__(
        self,
        rank: int,
        groups: tuple[Group, ...],
        spec: SimSpec,
        device: Device | None = None,
        host: HostCosts | None = None,
    ) -> None:
        self.rank = rank
        self.spec = spec
        self.device = device or Device()
        self.host = host or HostCosts()
        self.instructions: list[Instruction] = []
        self.groups = {group.axis: group for group in groups if rank in group.ranks}
        self.groups[WORLD_AXIS] = groups[0]
        self._events = 0
        self._slow_host = spec.factor("host-bound")
        self._slow_rank = spec.factor("straggler", str(rank))

    # -- host -------------------------------------------------------------------------------------

    def busy(self, ns: int) -> None:
        """Spend host time."""
        self.instructions.append(Busy(round(ns * self._slow_host)))

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """One training step, ``ProfilerStep#number``."""
        with self._event(Begin("user_annotation", f"ProfilerStep#{number}", step=number)):
            yield

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """A ``record_function`` range."""
        with self._event(Begin("user_annotation", name)):
            self.busy(self.host.python_ns)
            yield

    @contextmanager
    def op(self, name: str, **args: Any) -> Iterator[None]:
        """A host operator."""
        with self._event(Begin("cpu_op", name, args)):
            yield

    @contextmanager
    def thread(self, thread: Thread) -> Iterator[None]:
        """Go on in another thread for a while."""
        self.instructions.append(Switch(thread))
        yield
        self.instructions.append(Switch(Thread.MAIN))

    def synchronize(self, stream: Stream | None) -> None:
        """Wait for a stream, or (None) the device."""
        self.instructions.append(Synchronize(stream))

    # -- device -----------------------------------------------------------------------------------

    def kernel(
        self, op: str, name: str, ns: int, stream: Stream = Stream.COMPUTE, **args: Any
    ) -> None:
        """An operator that launches one kernel."""
        work = Work(name, round(ns * self._slow_rank), call=_launch_call(name))
        with self.op(op, **args):
            self.launch(work, stream)

    def copy(self, op: str, name: str, nbytes: int, ns: int) -> None:
        """An operator that copies on the compute stream."""
        with self.op(op):
            work = Work(name, ns, "gpu_memcpy", "cudaMemcpyAsync", nbytes)
            self.launch(work, Stream.COMPUTE)

    def launch(self, work: Work, stream: Stream) -> None:
        """Launch work, with the host time around it."""
        self.busy(self.host.before_launch_ns)
        self.instructions.append(Launch(work, stream))
        self.busy(self.host.after_launch_ns)

    def record(self, stream: Stream) -> int:
        """Record an event on a stream."""
        self._events += 1
        self.instructions.append(Record(self._events, stream))
        return self._events

    def wait(self, stream: Stream, event: int) -> None:
        """Make a stream wait for an event."""
        self.instructions.append(Wait(event, stream))

    def collective(
        self,
        op: str,
        axis: str,
        nelems: int,
        dtype: str,
        stream: Stream,
        peer: int | None = None,
    ) -> None:
        """A collective on the axis's group, as c10d issues it; synchronise by events around it."""
        group = self.groups[axis]
        ranks = group.ranks if peer is None else tuple(sorted((self.rank, peer)))
        nbytes, kind = nelems * DTYPE_BYTES[dtype], op.replace("recv", "send")
        ns = transfer_ns(kind, nbytes, ranks, self.spec.ranks_per_node, self.device)
        slow = self.spec.factor("slow-link", axis)
        collective = Collective(op, axis, group, nelems, dtype, round(ns * slow), peer)
        kernel = _KERNELS[op].format(dtype=_NCCL_DTYPE[dtype])
        name = f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)"
        work = Work(name, 0, call="cuLaunchKernelEx", collective=collective)
        c10d, label = _C10D[op]
        with self.op(c10d):
            self.busy(self.host.collective_ns // 2)
            annotation = Begin("user_annotation", label)
            with self.op("record_param_comms"), self._event(annotation):
                self.launch(work, stream)
            self.busy(self.host.collective_ns // 2)

    @contextmanager
    def _event(self, begin: Begin) -> Iterator[None]:
        self.instructions.append(begin)
        yield
        self.instructions.append(End())


def _launch_call(kernel: str) -> str:
    """The driver's extended call for cuBLAS kernels, the runtime's for the rest."""
    return "cuLaunchKernelEx" if kernel.startswith("nvjet") else "cudaLaunchKernel"
