"""The training step: forward, loss, backward, gradient norm and optimizer over a model's units."""

from __future__ import annotations

from typing import Any

from analyzer.model import WORLD_AXIS
from collectors.simulate.costs import Device, HostCosts, memory_ns
from collectors.simulate.model import FP32, Kernel, Model, Operation, Region, build_model
from collectors.simulate.programs.base import Parallelism
from collectors.simulate.programs.ddp import DataParallel
from collectors.simulate.programs.fsdp import FullySharded
from collectors.simulate.programs.tensor import TensorParallel
from collectors.simulate.spec import Group, SimSpec
from collectors.simulate.tape import Stream, Tape, Thread

_MULTI_TENSOR = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::{metadata}, at::native::(anonymous namespace)::{functor}>"
)
ADAM = _MULTI_TENSOR.format(
    metadata="FusedOptimizerTensorListMetadata<4>",
    functor="FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>",
)
NORM = _MULTI_TENSOR.format(metadata="TensorListMetadata<1>", functor="LpNormFunctor<float, 1>")
SCALE = _MULTI_TENSOR.format(
    metadata="TensorListMetadata<1>", functor="BinaryOpScalarTensorFunctor<float, 1, 1, 0>"
)
DATALOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
ADAM_BYTES_PER_PARAMETER = 28  # read p, g, m, v and write p, m, v in fp32


def record_job(
    spec: SimSpec, groups: tuple[Group, ...], device: Device, host: HostCosts
) -> list[Tape]:
    """One tape per rank for the whole job."""
    model = build_model(spec, device)
    tapes = []
    for rank in range(spec.world_size):
        tape = Tape(rank, groups, spec, device, host)
        program = Step(tape, model, parallelisms(tape, model))
        for number in range(spec.first_step, spec.first_step + spec.steps):
            program.record(number)
        tape.synchronize(None)  # the profiler stops after the device is done
        tapes.append(tape)
    return tapes


def parallelisms(tape: Tape, model: Model) -> list[Parallelism]:
    """The kinds of parallelism of a strategy, in the order their hooks are called."""
    kinds: list[Parallelism] = []
    if tape.spec.degree("tp") > 1:
        kinds.append(TensorParallel(tape, model.activation_elements))
    if tape.spec.degree("dp_shard") > 1:
        kinds.append(FullySharded(tape, model.units))
    elif tape.spec.degree("dp_replicate") > 1:
        kinds.append(DataParallel(tape))
    return kinds


class Step:
    """Records training steps of one rank."""

    def __init__(self, tape: Tape, model: Model, kinds: list[Parallelism]) -> None:
        self.tape = tape
        self.model = model
        self.kinds = kinds
        self._sequence = 0  # autograd sequence number
        self._nodes: dict[Operation, list[int]] = {}  # forward sequence numbers, last used last

    def record(self, number: int) -> None:
        """Record the step with that number."""
        with self.tape.step(number):
            for kind in self.kinds:
                kind.begin_step()
            self._data()
            self._forward()
            with self.tape.thread(Thread.BACKWARD):
                self._backward()
            self._optimizer()

    def _data(self) -> None:
        tape = self.tape
        stall_ns = round(1000 * tape.spec.factor("data-stall", default=0))
        with tape.range(DATALOADER):
            tape.busy(stall_ns or tape.host.data_ns)
        nbytes = tape.spec.tokens * 8
        tape.copy("aten::copy_", "Memcpy HtoD (Pinned -> Device)", nbytes, 2_000 + nbytes // 20)

    def _forward(self) -> None:
        for index, unit in enumerate(self.model.units):
            for kind in self.kinds:
                kind.before_forward(index)
            for region in unit.regions:
                self._region_forward(region)
            for kind in self.kinds:
                kind.after_forward(index)
            self._item_if_defective(index)
        self._operation_forward(self.model.loss)

    def _region_forward(self, region: Region) -> None:
        for operation in region.before:
            self._operation_forward(operation)
        if region.gathers:
            self._gather()
        for operation in region.inside:
            self._operation_forward(operation)
        if region.reduces:
            self._reduce()
        for operation in region.after:
            self._operation_forward(operation)

    def _backward(self) -> None:
        self._operation_backward(self.model.loss)
        for index in reversed(range(len(self.model.units))):
            for kind in self.kinds:
                kind.before_backward(index)
            for region in reversed(self.model.units[index].regions):
                self._region_backward(region)
            for kind in self.kinds:
                kind.after_backward(index)
            self._item_if_defective(index)
        for kind in self.kinds:
            kind.after_backward_pass()

    def _region_backward(self, region: Region) -> None:
        for operation in reversed(region.after):
            self._operation_backward(operation)
        if region.reduces:
            self._gather()
        for operation in reversed(region.inside):
            self._operation_backward(operation)
        if region.gathers:
            self._reduce()
        for operation in reversed(region.before):
            self._operation_backward(operation)

    def _gather(self) -> None:
        for kind in self.kinds:
            kind.gather()

    def _reduce(self) -> None:
        for kind in self.kinds:
            kind.reduce()

    def _operation_forward(self, operation: Operation) -> None:
        self._sequence += 1
        self._nodes.setdefault(operation, []).append(self._sequence)
        kernel = operation.forward
        args: dict[str, Any] = {"Sequence number": self._sequence, "Fwd thread id": 0}
        self.tape.kernel(kernel.op, kernel.name, kernel.ns, **args)

    def _operation_backward(self, operation: Operation) -> None:
        args: dict[str, Any] = {"Sequence number": self._nodes[operation].pop(), "Fwd thread id": 1}
        with self.tape.op(f"autograd::engine::evaluate_function: {operation.node}", **args):
            for kernel in operation.backward:
                self.tape.kernel(kernel.op, kernel.name, kernel.ns)
        for elements in operation.parameters:
            for kind in self.kinds:
                kind.gradient_ready(elements)

    def _item_if_defective(self, index: int) -> None:
        """``.item()`` of a device scalar behind each layer: the host waits for the stream."""
        tape = self.tape
        if not tape.spec.has("sync-every-layer") or index == len(self.model.units) - 1:
            return
        with tape.op("aten::item"):
            tape.copy("aten::_local_scalar_dense", "Memcpy DtoH (Device -> Pageable)", 4, 1_600)
            tape.synchronize(Stream.COMPUTE)

    def _optimizer(self) -> None:
        tape = self.tape
        shards = sum(kind.local_parameters(self.model.units) for kind in self.kinds)
        parameters = shards or self.model.parameters
        ns = memory_ns(parameters * FP32, tape.device)
        if tape.spec.grad_norm:
            self._clip(Kernel("aten::_foreach_norm", NORM, ns))
        with tape.range("Optimizer.step#AdamW.step"):
            adam = memory_ns(parameters * ADAM_BYTES_PER_PARAMETER, tape.device)
            tape.kernel("aten::_fused_adamw_", ADAM, adam)
        with tape.range("Optimizer.zero_grad#AdamW.zero_grad"):
            tape.busy(tape.host.before_launch_ns)

    def _clip(self, norm: Kernel) -> None:
        """Scale by the norm of all gradients; each rank of a sharded model holds a part of them."""
        tape = self.tape
        tape.kernel(norm.op, norm.name, norm.ns)
        sharded = tape.spec.degree("dp_shard") * tape.spec.degree("tp") > 1
        if sharded:
            stream = Stream.WORLD
            tape.wait(stream, tape.record(Stream.COMPUTE))
            tape.collective("all_reduce", WORLD_AXIS, 1, "Float", stream)
            tape.wait(Stream.COMPUTE, tape.record(stream))
        tape.kernel("aten::_foreach_mul_", SCALE, 2 * norm.ns)
