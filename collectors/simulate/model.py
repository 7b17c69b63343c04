"""The transformer that is trained, as operators with forward and backward kernels.

A decoder with RMSNorm, multi-head flash attention, rotary embedding and a gated MLP, in bf16.
Durations follow :mod:`collectors.simulate.costs`; sizes are a rank's share under tensor
parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collectors.simulate.costs import Device, attention_ns, matmul_ns, memory_ns
from collectors.simulate.spec import SimSpec

BF16 = 2
FP32 = 4

_NATIVE = "void at::native::(anonymous namespace)::"
_VECTORIZED = "void at::native::vectorized_elementwise_kernel<8, at::native::{functor}, 3>"
_SOFTMAX = (
    "cunn_SoftMax{direction}<4, float, float, float, at::native::LogSoftMax{direction}Epilogue>"
)

GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_{layout}"
FLASH_FORWARD = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
    "cutlass::bfloat16_t>, false, true>(pytorch_flash::Flash_fwd_params)"
)
FLASH_BACKWARD = (
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, "
    "64, 128, 8, 2, 4, 2>, false, true>(pytorch_flash::Flash_bwd_params)"
)
ADD = _VECTORIZED.format(functor="CUDAFunctor_add<c10::BFloat16>")
SILU_MUL = _VECTORIZED.format(functor="silu_kernel(at::TensorIteratorBase&)")
ROPE = _VECTORIZED.format(functor="BinaryFunctor<c10::complex<float>, MulFunctor>")
NORM_FORWARD = _NATIVE + "vectorized_layer_norm_kernel<c10::BFloat16, float, true>"
NORM_BACKWARD = _NATIVE + "layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float, true>"
EMBEDDING_FORWARD = _NATIVE + "indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>"
EMBEDDING_BACKWARD = _NATIVE + "compute_grad_weight<c10::BFloat16, long>"
LOSS_FORWARD = _NATIVE + _SOFTMAX.format(direction="Forward")
LOSS_BACKWARD = _NATIVE + _SOFTMAX.format(direction="Backward")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel and the operator that launches it."""

    op: str
    name: str
    ns: int


@dataclass(frozen=True, slots=True)
class Operation:
    """A forward operator, its autograd node's kernels and the parameters they give gradients of."""

    node: str
    forward: Kernel
    backward: tuple[Kernel, ...]
    parameters: tuple[int, ...] = ()  # elements of each tensor


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive operators between two points where tensor parallelism communicates.

    ``inside`` is sharded over tp: its input is gathered (``gathers``) and its output reduced
    (``reduces``); in the backward pass the two swap. ``before`` and ``after`` are not sharded.
    """

    inside: tuple[Operation, ...]
    before: tuple[Operation, ...] = ()
    after: tuple[Operation, ...] = ()
    gathers: bool = True
    reduces: bool = True

    def operations(self) -> Iterator[Operation]:
        """All operators in forward order."""
        yield from self.before
        yield from self.inside
        yield from self.after


@dataclass(frozen=True, slots=True)
class Unit:
    """A module that FSDP wraps: ``name`` is its qualified name as in ``FSDP::`` ranges."""

    name: str
    regions: tuple[Region, ...]

    @property
    def parameters(self) -> int:
        """Elements of a rank's parameters before sharding over data parallelism."""
        operations = (op for region in self.regions for op in region.operations())
        return sum(sum(op.parameters) for op in operations)


@dataclass(frozen=True, slots=True)
class Model:
    """The model as one rank sees it."""

    units: tuple[Unit, ...]  # in forward order
    loss: Operation
    activation_elements: int  # tokens x hidden, what tensor parallelism sends

    @property
    def parameters(self) -> int:
        """Elements of a rank's parameters before sharding over data parallelism."""
        return sum(unit.parameters for unit in self.units)


def build_model(spec: SimSpec, device: Device) -> Model:
    """The model of a spec on a device.

    The embedding shares a unit with the first block: alone it computes too little to hide the
    block's all-gather.
    """
    make = _Maker(spec, device)
    first = Unit("tok_embeddings, layers.0", (make.embedding(), make.attention(), make.mlp()))
    layers = tuple(
        Unit(f"layers.{index}", (make.attention(), make.mlp())) for index in range(1, spec.layers)
    )
    units = (first, *layers, make.head())
    return Model(units, make.loss(), spec.tokens * spec.hidden)


class _Maker:
    """Builds the parts; ``self.tp`` divides what tensor parallelism shards."""

    def __init__(self, spec: SimSpec, device: Device) -> None:
        self.spec = spec
        self.device = device
        self.tp = spec.degree("tp")
        self.tokens = spec.tokens
        # Sequence parallelism also shards what tensor parallelism replicates.
        self.outer_tokens = spec.tokens // (self.tp if "sp" in spec.words else 1)

    def attention(self) -> Region:
        h = self.spec.hidden
        local = h // self.tp
        flops = 2.0 * self.tokens * self.spec.sequence * local  # causal: half of 4 T s h
        name = "aten::_scaled_dot_product_flash_attention"
        core = Operation(
            "ScaledDotProductFlashAttentionBackward0",
            Kernel(name, FLASH_FORWARD, attention_ns(flops, self.device)),
            (Kernel(f"{name}_backward", FLASH_BACKWARD, attention_ns(2.5 * flops, self.device)),),
        )
        inside = (
            *(self._linear(h, local) for _ in range(3)),
            self._elementwise("aten::mul", ROPE, "MulBackward0", 4 * self.tokens * local * BF16),
            core,
            self._linear(local, h),
        )
        return Region(inside, before=(self._norm(),), after=(self._residual(),))

    def mlp(self) -> Region:
        h, local = self.spec.hidden, self.spec.inner // self.tp
        nbytes = 3 * self.tokens * local * BF16
        inside = (
            self._linear(h, local),
            self._linear(h, local),
            self._elementwise("aten::silu", SILU_MUL, "SiluBackward0", nbytes),
            self._linear(local, h),
        )
        return Region(inside, before=(self._norm(),), after=(self._residual(),))

    def embedding(self) -> Region:
        h = self.spec.hidden
        ns = memory_ns(2 * self.tokens * h * BF16, self.device)
        operation = Operation(
            "EmbeddingBackward0",
            Kernel("aten::embedding", EMBEDDING_FORWARD, ns),
            (Kernel("aten::embedding_dense_backward", EMBEDDING_BACKWARD, 2 * ns),),
            (self.spec.vocab // self.tp * h,),
        )
        return Region((operation,), gathers=False)

    def head(self) -> Unit:
        output = self._linear(self.spec.hidden, self.spec.vocab // self.tp)
        return Unit("norm, output", (Region((output,), before=(self._norm(),), reduces=False),))

    def loss(self) -> Operation:
        ns = memory_ns(2 * self.tokens * self.spec.vocab // self.tp * FP32, self.device)
        return Operation(
            "LogSoftmaxBackward0",
            Kernel("aten::_log_softmax", LOSS_FORWARD, ns),
            (Kernel("aten::_log_softmax_backward_data", LOSS_BACKWARD, ns),),
        )

    def _linear(self, inputs: int, outputs: int) -> Operation:
        ns = matmul_ns(2.0 * self.tokens * inputs * outputs, self.device)
        gradients = (
            Kernel("aten::mm", GEMM.format(layout=layout), ns) for layout in ("NNN", "NTT")
        )
        forward = Kernel("aten::mm", GEMM.format(layout="TNN"), ns)
        return Operation("MmBackward0", forward, tuple(gradients), (inputs * outputs,))

    def _norm(self) -> Operation:
        ns = memory_ns(2 * self.outer_tokens * self.spec.hidden * BF16, self.device)
        name = "aten::_fused_rms_norm"
        return Operation(
            "FusedRmsNormBackward0",
            Kernel(name, NORM_FORWARD, ns),
            (Kernel(f"{name}_backward", NORM_BACKWARD, 2 * ns),),
            (self.spec.hidden,),
        )

    def _residual(self) -> Operation:
        nbytes = 3 * self.outer_tokens * self.spec.hidden * BF16
        return self._elementwise("aten::add", ADD, "AddBackward0", nbytes)

    def _elementwise(self, op: str, name: str, node: str, nbytes: int) -> Operation:
        kernel = Kernel(op, name, memory_ns(nbytes, self.device))
        return Operation(node, kernel, (kernel,))
