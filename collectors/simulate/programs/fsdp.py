"""Fully sharded data parallelism (FSDP2), and HSDP with its outer all-reduce.

Units are gathered before use and their gradients reduce-scattered after their backward pass, on
their own streams, ordered by the events FSDP2 uses:

* the first gather of a step waits for the optimizer of the step before;
* the copy into the gather buffer of unit u+1 waits until unit u was copied out of it, so one unit
  is in flight beside the one that computes;
* in the backward pass, unit u-1 is gathered when unit u starts;
* the copy into the scatter buffer of a unit waits for the reduce-scatter before it.

So the first all-gather and the last reduce-scatter are exposed at least.
"""

from __future__ import annotations

from collectors.simulate.costs import memory_ns
from collectors.simulate.model import BF16, FP32, Unit
from collectors.simulate.programs.base import Parallelism
from collectors.simulate.tape import Stream, Tape

COPY_IN = "void at::native::(anonymous namespace)::multi_tensor_copy_kernel<c10::BFloat16>"
COPY_OUT = (
    "at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**, char**, long)"
)
CHUNK_CAT = "void at::native::detail::chunk_cat_cuda_kernel<float, c10::BFloat16>"


class FullySharded(Parallelism):
    """FSDP2 over ``dp_shard``, with an all-reduce over ``dp_replicate`` when the mesh has one."""

    def __init__(self, tape: Tape, units: tuple[Unit, ...]) -> None:
        super().__init__(tape)
        self.units = units
        self.shards = tape.spec.degree("dp_shard")
        self.replicas = tape.spec.degree("dp_replicate")
        self._prefetch = not tape.spec.has("no-prefetch")
        self._late = tape.spec.has("late-reduce-scatter")
        self._gathered: dict[int, int] = {}  # unit -> event of its all-gather
        self._copied_out: int | None = None  # event of the last copy out of the gather buffer
        self._scattered: int | None = None  # event of the last reduction
        self._held: list[int] = []

    def begin_step(self) -> None:
        """All units are sharded, nothing is in flight."""
        self._gathered = {}
        self._copied_out = self._scattered = None
        self._held = []

    def before_forward(self, index: int) -> None:
        """Gather the unit and copy it out on the compute stream."""
        if index == 0:
            with self.tape.range("FSDP::root_pre_forward"):
                self._copied_out = self.tape.record(Stream.COMPUTE)
        with self.tape.range(f"FSDP::pre_forward ({self.units[index].name})"):
            self._gather(index)
            self._copy_out(index)

    def after_forward(self, index: int) -> None:
        """Reshard (no device work); the last unit stays gathered, its backward comes next."""
        with self.tape.range(f"FSDP::post_forward ({self.units[index].name})"):
            if index != len(self.units) - 1:
                del self._gathered[index]

    def before_backward(self, index: int) -> None:
        """Have the unit gathered, and gather the one before it ahead of time."""
        with self.tape.range(f"FSDP::pre_backward ({self.units[index].name})"):
            if index != len(self.units) - 1:
                self._gather(index)
                self._copy_out(index)
            if self._prefetch and index > 0:
                with self.tape.range(f"FSDP::backward_prefetch for {self.units[index - 1].name}"):
                    self._gather(index - 1)

    def after_backward(self, index: int) -> None:
        """Reduce the unit's gradients."""
        self._gathered.pop(index, None)
        with self.tape.range(f"FSDP::post_backward_reduce ({self.units[index].name})"):
            if self._late:
                self._held.append(index)
            else:
                self._reduce(index)

    def after_backward_pass(self) -> None:
        """Let the optimizer wait for the last reduction."""
        with self.tape.range("FSDP::root_post_backward_callback"):
            for index in self._held:
                self._reduce(index)
            if self._scattered is not None:
                self.tape.wait(Stream.COMPUTE, self._scattered)

    def local_parameters(self, units: tuple[Unit, ...]) -> int:
        """This rank's shard."""
        return sum(self._shard(unit) for unit in units)

    def _shard(self, unit: Unit) -> int:
        return -(-unit.parameters // self.shards)  # padded to equal shards

    def _gather(self, index: int) -> None:
        if index in self._gathered:
            return
        unit, tape = self.units[index], self.tape
        shard = self._shard(unit)
        with tape.range(f"FSDP::all_gather ({unit.name})"):
            if not self._prefetch:
                self._copied_out = tape.record(Stream.COMPUTE)
            if self._copied_out is not None:
                tape.wait(Stream.GATHER_COPY, self._copied_out)
            ns = memory_ns(2 * shard * BF16, tape.device)
            tape.kernel("fsdp::all_gather_copy_in", COPY_IN, ns, Stream.GATHER_COPY)
            tape.wait(Stream.GATHER, tape.record(Stream.GATHER_COPY))
            nelems = shard * self.shards
            tape.collective("all_gather", "dp_shard", nelems, "BFloat16", Stream.GATHER)
            self._gathered[index] = tape.record(Stream.GATHER)

    def _copy_out(self, index: int) -> None:
        unit, tape = self.units[index], self.tape
        with tape.range(f"FSDP::all_gather_copy_out ({unit.name})"):
            tape.wait(Stream.COMPUTE, self._gathered[index])
            ns = memory_ns(2 * self._shard(unit) * self.shards * BF16, tape.device)
            tape.kernel("fsdp::split_with_sizes_copy", COPY_OUT, ns)
            self._copied_out = tape.record(Stream.COMPUTE)

    def _reduce(self, index: int) -> None:
        tape, shard = self.tape, self._shard(self.units[index])
        if self._scattered is not None:
            tape.wait(Stream.COMPUTE, self._scattered)
        nelems = shard * self.shards
        ns = memory_ns(nelems * (BF16 + FP32), tape.device)
        tape.kernel("fsdp::chunk_cat", CHUNK_CAT, ns)
        tape.wait(Stream.SCATTER, tape.record(Stream.COMPUTE))
        tape.collective("reduce_scatter", "dp_shard", nelems, "Float", Stream.SCATTER)
        self._scattered = tape.record(Stream.SCATTER)
        if self.replicas > 1:
            tape.wait(Stream.REPLICATE, self._scattered)
            tape.collective("all_reduce", "dp_replicate", shard, "Float", Stream.REPLICATE)
            self._scattered = tape.record(Stream.REPLICATE)
