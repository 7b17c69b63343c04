"""Tensor parallelism: activations exchanged around every sharded region.

Megatron's scheme. Without sequence parallelism a region's output is all-reduced (and its input
gradient in the backward pass); with it, inputs are all-gathered and outputs reduce-scattered.
Producer and consumer are neighbours on the compute stream, so all of it is exposed.
"""

from __future__ import annotations

from collectors.simulate.programs.base import Parallelism
from collectors.simulate.tape import Stream, Tape


class TensorParallel(Parallelism):
    """Tensor parallelism over ``tp``, with DTensor's functional collectives."""

    def __init__(self, tape: Tape, activation_elements: int) -> None:
        super().__init__(tape)
        self.nelems = activation_elements
        self._sequence = "sp" in tape.spec.words

    def gather(self) -> None:
        """All-gather the sequence (sequence parallelism only)."""
        if self._sequence:
            self._exchange("all_gather", "all_gather_into_tensor")

    def reduce(self) -> None:
        """All-reduce, or with sequence parallelism reduce-scatter."""
        if self._sequence:
            self._exchange("reduce_scatter", "reduce_scatter_tensor")
        else:
            self._exchange("all_reduce", "all_reduce")

    def _exchange(self, op: str, functional: str) -> None:
        tape = self.tape
        tape.wait(Stream.TENSOR, tape.record(Stream.COMPUTE))
        with tape.op(f"_c10d_functional::{functional}"):
            tape.collective(op, "tp", self.nelems, "BFloat16", Stream.TENSOR)
        with tape.op("_c10d_functional::wait_tensor"):
            tape.wait(Stream.COMPUTE, tape.record(Stream.TENSOR))
