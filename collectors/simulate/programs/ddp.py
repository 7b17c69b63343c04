"""Distributed data parallelism: gradients all-reduced in buckets beside the backward pass."""

from __future__ import annotations

from collectors.simulate.model import FP32
from collectors.simulate.programs.base import Parallelism
from collectors.simulate.tape import Stream, Tape

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


class DataParallel(Parallelism):
    """DDP over ``dp_replicate``.

    Gradients fill buckets in the order they become ready, the first of 1 MiB, the others of
    25 MiB; a full bucket is all-reduced in fp32 on its own stream, and the compute stream waits
    for all of them when the backward pass is over. So the last bucket is exposed at least.
    """

    def __init__(self, tape: Tape) -> None:
        super().__init__(tape)
        self._held: list[int] = []  # elements of full buckets, late-reduce-scatter only
        self._bucket = 0
        self._limit = FIRST_BUCKET_BYTES
        self._unbucketed = tape.spec.has("small-collectives")
        self._late = tape.spec.has("late-reduce-scatter")

    def begin_step(self) -> None:
        """Start with an empty first bucket."""
        self._held = []
        self._bucket = 0
        self._limit = FIRST_BUCKET_BYTES

    def gradient_ready(self, elements: int) -> None:
        """Put a gradient into the bucket, and reduce the bucket when it is full."""
        self._bucket += elements
        if self._unbucketed or self._bucket * FP32 >= self._limit:
            self._close_bucket()

    def after_backward_pass(self) -> None:
        """Reduce what is left and let the optimizer wait for it."""
        if self._bucket:
            self._close_bucket()
        for elements in self._held:
            self._all_reduce(elements)
        self.tape.wait(Stream.COMPUTE, self.tape.record(Stream.REPLICATE))

    def _close_bucket(self) -> None:
        if self._late:
            self._held.append(self._bucket)
        else:
            self._all_reduce(self._bucket)
        self._bucket = 0
        self._limit = BUCKET_BYTES

    def _all_reduce(self, elements: int) -> None:
        self.tape.wait(Stream.REPLICATE, self.tape.record(Stream.COMPUTE))
        axis = "dp_replicate"
        self.tape.collective("all_reduce", axis, elements, "Float", Stream.REPLICATE)
