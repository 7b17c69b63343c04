"""The hooks a kind of parallelism may implement. The default does nothing."""

from __future__ import annotations

from collectors.simulate.model import Unit
from collectors.simulate.tape import Tape


class Parallelism:
    """One kind of parallelism on one rank.

    The training step calls the hooks of every kind in turn; a hook adds the communication (and
    its copies and events) that belongs there. State lives for one step and is reset by
    :meth:`begin_step`.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def begin_step(self) -> None:
        """Before anything of a step."""

    def before_forward(self, index: int) -> None:
        """Before the forward pass of unit ``index``."""

    def after_forward(self, index: int) -> None:
        """After the forward pass of unit ``index``."""

    def before_backward(self, index: int) -> None:
        """Before the backward pass of unit ``index``."""

    def after_backward(self, index: int) -> None:
        """After the backward pass of unit ``index``."""

    def gradient_ready(self, elements: int) -> None:
        """A parameter's gradient has been computed."""

    def after_backward_pass(self) -> None:
        """After the backward pass of all units."""

    def gather(self) -> None:
        """Where a tensor-parallel region is entered, in either pass."""

    def reduce(self) -> None:
        """Where a tensor-parallel region is left, in either pass."""

    def local_parameters(self, units: tuple[Unit, ...]) -> int:
        """Parameters the optimizer updates on this rank, 0 to have no say."""
        del units
        return 0
