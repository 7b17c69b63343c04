"""FLOPs and bytes of an operator from the shapes its trace recorded (``record_shapes=True``).

One operator is one row of ``_RULES``: where its operands stand among the arguments, and what they
cost. Everything here works on *distinct* argument texts, never on a column of events.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec
import polars as pl

from analyzer import catalog
from analyzer.roofline.compute import gemm_flops

GEMM, GROUPED_GEMM, ATTENTION, CONV = "gemm", "grouped_gemm", "attention", "conv"

Shape = tuple[int, ...]

_DTYPES: tuple[tuple[str, str], ...] = (
    (r"bfloat16|bf16", "bf16"),
    (r"float8|fp8|f8e", "fp8"),
    (r"float4|fp4", "fp4"),
    (r"half|float16|fp16", "fp16"),
    (r"double|float64", "fp64"),
    (r"float|fp32", "fp32"),
    (r"char|int8|byte", "int8"),
)
_RESULT_BYTES: Mapping[str, int] = MappingProxyType({"fp8": 2, "fp4": 2, "int8": 4})
"""Bytes of a result element where operands are narrower than what is written."""

_MAX_DIMS, _MAX_SIZE = 8, 2**40  # anything beyond is damage, and would overflow a float

BACKWARD_EXECUTED = 2.5
"""Attention backward against forward: five matmuls for two, the scores being recomputed."""
BACKWARD_MODEL = 2.0


@dataclass(frozen=True, slots=True)
class OpWork:
    """What one call of an operator computes and must move."""

    family: str  # gemm, grouped_gemm, attention or conv
    flops: float  # executed
    model_flops: float  # without what a fused attention backward recomputes
    bytes: float | None  # every operand and result read or written once
    dtype: str | None  # bf16, fp8, ...: the key of a device's peak
    assumed_full: bool = False  # attention counted in full because its mask is not known


@dataclass(frozen=True, slots=True)
class _Call:
    """Arguments of one call: the dimensions, types and values the profiler wrote."""

    dims: Sequence[Any]
    types: Sequence[Any]
    values: Sequence[Any]

    def shape(self, index: int) -> Shape | None:
        """Dimensions of a tensor argument, None where there is no tensor (or a list of them)."""
        dims = self.dims[index] if index < len(self.dims) else None
        if not isinstance(dims, list) or not 0 < len(dims) <= _MAX_DIMS:
            return None
        sound = all(isinstance(d, int) and 0 <= d < _MAX_SIZE for d in dims)
        return tuple(dims) if sound else None

    def type(self, index: int) -> str:
        """Element type of an argument as written."""
        return str(self.types[index]) if index < len(self.types) else ""

    def value(self, index: int) -> str:
        """Value of a plain argument as written, empty when not recorded."""
        return str(self.values[index]) if index < len(self.values) else ""

    def numbers(self, index: int) -> tuple[int, ...] | None:
        """A list argument such as a stride, None when not recorded."""
        text = self.value(index)
        if not text.startswith("["):
            return None
        return tuple(int(number) for number in re.findall(r"\d{1,9}", text))


Rule = Callable[[_Call], OpWork | None]


def op_work(name: str, dims: str | None, types: str | None, values: str | None) -> OpWork | None:
    """FLOPs and bytes of one call.

    Args:
        name: operator name.
        dims: ``Input Dims`` as raw JSON.
        types: ``Input type`` as raw JSON.
        values: ``Concrete Inputs`` as raw JSON.

    Returns:
        None for an operator that is not counted or whose shapes do not tell.
    """
    rule = _RULES.get(name)
    if rule is None or dims is None:
        return None
    lists = [_list(text) for text in (dims, types, values)]
    return rule(_Call(*lists))


def counted(ops: pl.DataFrame) -> pl.DataFrame:
    """Rows of schema.OPS whose operator has a rule (tried on distinct names only)."""
    distinct = ops.get_column("name").unique()
    known = distinct.filter(distinct.cast(pl.String).is_in(list(_RULES)))
    return ops.filter(pl.col("name").is_in(known.implode()))


def with_work(ops: pl.DataFrame) -> pl.DataFrame:
    """Host operators with the figures of :class:`OpWork` as columns.

    Args:
        ops: rows with name, input_dims, input_types and concrete_inputs of schema.OPS.

    Returns:
        ``ops`` in the same order with family, flops, model_flops, bytes, dtype and assumed_full
        (null where :func:`op_work` knows nothing).
    """
    keys = ["name", "input_dims", "input_types", "concrete_inputs"]
    texts = ops.with_columns(pl.col(keys).cast(pl.String))
    distinct = texts.select(keys).unique()
    works = [op_work(*row) for row in distinct.iter_rows()]
    columns = {
        field: pl.Series(
            field, [None if w is None else getattr(w, field) for w in works], dtype=dtype
        )
        for field, dtype in _COLUMNS.items()
    }
    known = distinct.with_columns(**columns)
    return texts.join(known, on=keys, how="left", nulls_equal=True, maintain_order="left")


_COLUMNS: Mapping[str, pl.DataType] = MappingProxyType(
    {
        "family": pl.String(),
        "flops": pl.Float64(),
        "model_flops": pl.Float64(),
        "bytes": pl.Float64(),
        "dtype": pl.String(),
        "assumed_full": pl.Boolean(),
    }
)


def _list(text: str | None) -> Sequence[Any]:
    if text is None:
        return ()
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return ()
    return value if isinstance(value, list) else ()


def dtype_key(written: str) -> str | None:
    """``c10::BFloat16`` as the key of a device's peak (``bf16``), None when it has none."""
    text = written.lower()
    return next((key for pattern, key in _DTYPES if re.search(pattern, text)), None)


def _bytes(read: float, written: float, type_: str) -> float | None:
    """Bytes of elements read and written; results of narrow operands are wider than these."""
    element = catalog.dtype_bytes(type_) if type_ else None
    if element is None:
        return None
    return read * element + written * _RESULT_BYTES.get(dtype_key(type_) or "", element)


# ---- matrix multiplies --------------------------------------------------------------------------


def _gemm(call: _Call, a: int, b: int, *, transposed: bool = False) -> OpWork | None:
    """``A @ B`` with batch dimensions broadcast; ``transposed``: B is a weight, out x in."""
    left, right = call.shape(a), call.shape(b)
    if left is None or right is None:
        return None
    if transposed:
        right = (*right[:-2], *reversed(right[-2:]))
    if len(right) == 1:
        right = (right[0], 1)
    if len(left) == 1:
        left = (1, left[0])
    if left[-1] != right[-2]:
        return None
    if len(right) == 2:  # a weight: all leading dimensions of A are rows
        left = (math.prod(left[:-1]), left[-1])
    batch = _broadcast(left[:-2], right[:-2])
    rows, inner, columns = left[-2], left[-1], right[-1]
    return _product(
        GEMM,
        batch * gemm_flops(rows, inner, columns),
        math.prod(left) + math.prod(right),
        batch * rows * columns,
        call.type(a),
    )


def _broadcast(left: Shape, right: Shape) -> int:
    """Elements of two shapes broadcast against each other, aligned at their ends."""
    size = max(len(left), len(right))
    ones = ((1,) * (size - len(shape)) + shape for shape in (left, right))
    return math.prod(max(pair) if min(pair) else 0 for pair in zip(*ones, strict=True))


def _product(family: str, flops: float, read: float, written: float, type_: str) -> OpWork:
    return OpWork(family, flops, flops, _bytes(read, written, type_), dtype_key(type_))


def _grouped(call: _Call, offsets: int) -> OpWork | None:
    """Grouped matmul; the ragged dimension counts once, over all groups together."""
    left, right, ends = call.shape(0), call.shape(1), call.shape(offsets)
    if left is None or right is None or min(len(left), len(right)) < 2 or left[-1] != right[-2]:
        return None
    rows, inner, columns = left[-2], left[-1], right[-1]
    if len(left) == len(right) == 3:
        groups = left[0]
        flops, written = groups * gemm_flops(rows, inner, columns), groups * rows * columns
    else:
        flops, written = gemm_flops(rows, inner, columns), rows * columns
        if len(left) == len(right) == 2:  # K is ragged: every group writes a whole result
            written *= math.prod(ends or (1,))
    read = math.prod(left) + math.prod(right)
    return _product(GROUPED_GEMM, flops, read, written, call.type(0))


# ---- convolutions -------------------------------------------------------------------------------


def _conv_forward(call: _Call) -> OpWork | None:
    """2 FLOPs for each output element and each weight that reaches it."""
    data, weight = call.shape(0), call.shape(1)
    if data is None or weight is None or len(data) != len(weight):
        return None
    stride, padding, dilation = (call.numbers(index) for index in (3, 4, 5))
    if not stride or not padding or not dilation or min(stride) < 1:
        return None
    transposed = call.value(6) == "True"
    groups, extra = call.value(8), call.numbers(7) or (0,)
    space = []
    for axis, size in enumerate(data[2:]):
        s, p, d, e = (v[axis % len(v)] for v in (stride, padding, dilation, extra))
        reach = d * (weight[axis + 2] - 1)
        span = (size - 1) * s - 2 * p + reach + e if transposed else (size + 2 * p - reach - 1) // s
        space.append(span + 1)
    if min(space, default=0) < 1:
        return None
    channels = weight[1] * int(groups if groups.isdigit() else 1) if transposed else weight[0]
    return _conv(data, weight, (data[0], channels, *space), call.type(0), transposed, 1)


def _conv_backward(call: _Call) -> OpWork | None:
    """Each gradient that is asked for costs one forward: of the input, of the weight."""
    out, data, weight = (call.shape(index) for index in range(3))
    if out is None or data is None or weight is None:
        return None
    mask = re.findall("True|False", call.value(10))
    passes = mask[:2].count("True") if len(mask) == 3 else 2
    return _conv(data, weight, out, call.type(0), call.value(7) == "True", passes)


def _conv(
    data: Shape, weight: Shape, out: Shape, type_: str, transposed: bool, passes: int
) -> OpWork:
    reached = math.prod(data if transposed else out)
    flops = passes * 2.0 * reached * math.prod(weight[1:])
    moved = math.prod(data) + math.prod(weight) + math.prod(out)
    return _product(CONV, flops, passes * moved, 0, type_)


# ---- attention ----------------------------------------------------------------------------------


def _attention(
    call: _Call, causal: int, *, first: int = 0, heads_at: int = 1, mask: int | None = None,
    backward: bool = False,
) -> OpWork | None:  # fmt: skip
    """Scores and weighted values; half of them where the mask is known to be causal.

    Args:
        call: arguments.
        causal: argument that says ``is_causal``.
        first: argument Q; K and V follow.
        heads_at: dimension of the heads: 1 in ``[b, h, s, d]``, 2 in ``[b, s, h, d]``.
        mask: argument of a mask or bias, whose zeros nobody knows.
        backward: gradients of Q, K and V.
    """
    q, k, v = (call.shape(first + index) for index in range(3))
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4:
        return None
    along = 3 - heads_at
    heads, rows, columns = q[heads_at], q[along], k[along]
    flops = 2.0 * q[0] * heads * rows * columns * (q[3] + v[3])
    told = call.value(causal)
    masked = mask is not None and call.shape(mask) is not None
    if told == "True" and rows == columns:
        flops /= 2
        assumed = False
    else:
        assumed = masked or told != "False"
    out = math.prod(q[:3]) * v[3]
    moved = math.prod(q) + math.prod(k) + math.prod(v) + out
    executed, needed = (BACKWARD_EXECUTED, BACKWARD_MODEL) if backward else (1.0, 1.0)
    type_ = call.type(first)
    return OpWork(
        ATTENTION,
        executed * flops,
        needed * flops,
        _bytes(2 * moved if backward else moved, 0, type_),  # gradients: as much again
        dtype_key(type_),
        assumed,
    )


_SDPA = "aten::_scaled_dot_product_"

_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **{
            f"aten::{name}": partial(_gemm, a=0, b=1)
            for name in ("mm", "bmm", "matmul", "mv", "_scaled_mm", "_int_mm")
        },
        **{
            f"aten::{name}": partial(_gemm, a=1, b=2)
            for name in ("addmm", "baddbmm", "addmv", "_addmm_activation")
        },
        "aten::linear": partial(_gemm, a=0, b=1, transposed=True),
        "aten::_grouped_mm": partial(_grouped, offsets=2),
        "aten::_scaled_grouped_mm": partial(_grouped, offsets=4),
        "aten::convolution": _conv_forward,
        "aten::convolution_backward": _conv_backward,
        "aten::scaled_dot_product_attention": partial(_attention, causal=5, mask=3),
        f"{_SDPA}flash_attention": partial(_attention, causal=4),
        f"{_SDPA}flash_attention_for_cpu": partial(_attention, causal=4, mask=5),
        f"{_SDPA}efficient_attention": partial(_attention, causal=6, mask=3),
        f"{_SDPA}cudnn_attention": partial(_attention, causal=6, mask=3),
        f"{_SDPA}flash_attention_backward": partial(_attention, causal=11, first=1, backward=True),
        f"{_SDPA}flash_attention_for_cpu_backward": partial(
            _attention, causal=7, first=1, mask=8, backward=True
        ),
        f"{_SDPA}efficient_attention_backward": partial(
            _attention, causal=11, first=1, mask=4, backward=True
        ),
        f"{_SDPA}cudnn_attention_backward": partial(
            _attention, causal=14, first=1, mask=8, backward=True
        ),
        "flash_attn::_flash_attn_forward": partial(_attention, causal=5, heads_at=2),
        "flash_attn::_flash_attn_backward": partial(
            _attention, causal=11, first=1, heads_at=2, backward=True
        ),
        "FlashAttnFunc": partial(_attention, causal=5, heads_at=2),
    }
)
"""Operator -> rule. Wrappers are listed too: of nested ones only the innermost is counted."""
