"""FLOPs and bytes of one call, each against its closed form."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.measure.shapes import _RULES, OpWork, counted, dtype_key, op_work, with_work

BF16, FP32, FP8 = "c10::BFloat16", "float", "c10::Float8_e4m3fn"
M, K, N, B = 48, 32, 80, 6
Q = [2, 8, 128, 64]  # batch, heads, sequence, head
FULL = 4 * 2 * 8 * 128 * 128 * 64


def work(
    name: str, dims: list[Any], dtype: str = BF16, values: list[str] | None = None
) -> OpWork | None:
    types = [dtype if d else "" for d in dims]
    texts = [json.dumps(part) if part is not None else None for part in (dims, types, values)]
    return op_work(name, *texts)


def flops(name: str, dims: list[Any], **more: Any) -> float:
    found = work(name, dims, **more)
    assert found is not None
    assert found.flops == found.model_flops or "backward" in name
    return found.flops


@pytest.mark.parametrize(
    ("name", "dims", "expected"),
    [
        ("aten::mm", [[M, K], [K, N]], 2 * M * K * N),
        ("aten::addmm", [[N], [M, K], [K, N], [], []], 2 * M * K * N),
        ("aten::_addmm_activation", [[N], [M, K], [K, N], [], []], 2 * M * K * N),
        ("aten::bmm", [[B, M, K], [B, K, N]], 2 * B * M * K * N),
        ("aten::baddbmm", [[B, M, N], [B, M, K], [B, K, N], [], []], 2 * B * M * K * N),
        ("aten::matmul", [[3, B, M, K], [K, N]], 2 * 3 * B * M * K * N),
        ("aten::matmul", [[3, 1, M, K], [B, K, N]], 2 * 3 * B * M * K * N),
        ("aten::matmul", [[K], [K]], 2 * K),
        ("aten::mv", [[M, K], [K]], 2 * M * K),
        ("aten::addmv", [[M], [M, K], [K]], 2 * M * K),
        ("aten::linear", [[B, M, K], [N, K], [N]], 2 * B * M * K * N),
        ("aten::_grouped_mm", [[M, K], [B, K, N], [B], [], []], 2 * M * K * N),
        ("aten::_grouped_mm", [[B, M, K], [B, K, N], [], [], []], 2 * B * M * K * N),
        ("aten::_grouped_mm", [[M, K], [K, N], [B], [], []], 2 * M * K * N),
        ("aten::_scaled_grouped_mm", [[M, K], [B, K, N], [M], [B, N], [B]], 2 * M * K * N),
    ],
)
def test_matrix_multiplies(name: str, dims: list[Any], expected: float) -> None:
    assert flops(name, dims) == expected


def test_bytes_count_every_matrix_once() -> None:
    bf16, fp8 = work("aten::mm", [[M, K], [K, N]]), work("aten::_scaled_mm", [[M, K], [K, N]], FP8)
    assert bf16 is not None
    assert fp8 is not None
    assert (bf16.bytes, bf16.dtype) == (2 * (M * K + K * N + M * N), "bf16")
    assert (fp8.bytes, fp8.dtype) == (M * K + K * N + 2 * M * N, "fp8")  # the result is bf16
    grouped = work("aten::_grouped_mm", [[M, K], [K, N], [B], [], []])
    assert grouped is not None
    assert grouped.bytes == 2 * (M * K + K * N + B * M * N)  # a result for each group
    untyped = op_work("aten::mm", json.dumps([[M, K], [K, N]]), None, None)
    assert untyped is not None
    assert (untyped.flops, untyped.bytes, untyped.dtype) == (2 * M * K * N, None, None)


STEM = [[10, 3, 224, 224], [64, 3, 7, 7], []]
STEM_FLOPS = 2 * 10 * 64 * 112 * 112 * 3 * 7 * 7


def conv(dims: list[Any], values: list[str]) -> float:
    return flops("aten::convolution", [*dims, *[[]] * 6], values=["", "", "", *values])


def test_convolutions() -> None:
    plain = ["[2, 2]", "[3, 3]", "[1, 1]", "False", "[0, 0]", "1"]
    assert conv(STEM, plain) == STEM_FLOPS
    depthwise = ["[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "32"]
    assert conv([[4, 32, 14, 14], [32, 1, 3, 3], []], depthwise) == 2 * 4 * 32 * 14 * 14 * 9
    dilated = ["[1]", "[0]", "[2]", "False", "[0]", "1"]
    assert conv([[1, 2, 10], [5, 2, 3], []], dilated) == 2 * 5 * (10 - 4) * 2 * 3
    doubled = ["[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"]  # each input reaches 2x2x6
    assert conv([[1, 3, 8, 8], [3, 6, 2, 2], []], doubled) == 2 * 3 * 64 * 6 * 4


def test_a_convolution_without_its_stride_is_not_known() -> None:
    assert work("aten::convolution", [*STEM, *[[]] * 6]) is None


@pytest.mark.parametrize(
    ("mask", "passes"),
    [("[True, True, False]", 2), ("[False, True, False]", 1), ("", 2)],
)
def test_convolution_backward_costs_a_forward_for_each_gradient(mask: str, passes: int) -> None:
    dims = [[10, 64, 112, 112], *STEM[:2], *[[]] * 8]
    values = [""] * 7 + ["False", "", "", mask]
    assert flops("aten::convolution_backward", dims, values=values) == passes * STEM_FLOPS


SDPA = "aten::_scaled_dot_product_"
ATTENTION = [
    ("aten::scaled_dot_product_attention", 0, 5),
    (f"{SDPA}flash_attention", 0, 4),
    (f"{SDPA}flash_attention_for_cpu", 0, 4),
    (f"{SDPA}efficient_attention", 0, 6),
    (f"{SDPA}cudnn_attention", 0, 6),
    (f"{SDPA}flash_attention_backward", 1, 11),
    (f"{SDPA}flash_attention_for_cpu_backward", 1, 7),
    (f"{SDPA}efficient_attention_backward", 1, 11),
    (f"{SDPA}cudnn_attention_backward", 1, 14),
    ("flash_attn::_flash_attn_forward", 0, 5),
    ("flash_attn::_flash_attn_backward", 1, 11),
]


@pytest.mark.parametrize(("name", "first", "causal"), ATTENTION)
def test_attention_forward_and_backward(name: str, first: int, causal: int) -> None:
    shape = [2, 128, 8, 64] if name.startswith("flash_attn") else Q
    dims: list[Any] = [shape] * first + [shape] * 3 + [[]] * 14
    backward = name.endswith("backward")
    executed, model = (2.5, 2.0) if backward else (1.0, 1.0)
    for told, share, assumed in (("False", 1.0, False), ("True", 0.5, False), ("", 1.0, True)):
        values = [""] * causal + [told]
        found = work(name, dims, values=values)
        assert found is not None
        assert (found.flops, found.model_flops) == (executed * share * FULL, model * share * FULL)
        assert found.assumed_full is assumed
        assert found.bytes == 2 * (8 if backward else 4) * 2 * 8 * 128 * 64


def test_attention_with_grouped_queries_and_another_length() -> None:
    dims = [[2, 8, 128, 64], [2, 2, 512, 64], [2, 2, 512, 32], [], [], []]
    found = work(f"{SDPA}flash_attention", dims, values=["", "", "", "0.", "True"])
    assert found is not None
    assert found.flops == 2 * 2 * 8 * 128 * 512 * (64 + 32)
    assert found.assumed_full  # causal over lengths that differ: which corner is masked is not told


def test_a_mask_makes_attention_full_by_assumption() -> None:
    dims = [Q, Q, Q, [128, 128], [], []]
    found = work("aten::scaled_dot_product_attention", dims, values=[""] * 5 + ["False"])
    assert found is not None
    assert (found.flops, found.assumed_full) == (FULL, True)


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("c10::BFloat16", "bf16"), ("c10::Half", "fp16"), ("float", "fp32"), ("double", "fp64"),
        ("c10::Float8_e5m2", "fp8"), ("signed char", "int8"), ("Float4_e2m1fn_x2", "fp4"),
        ("", None), ("Scalar", None), ("long int", None),
    ],
)  # fmt: skip
def test_dtypes(written: str, key: str | None) -> None:
    assert dtype_key(written) == key


@pytest.mark.parametrize(
    "dims",
    [
        None, "", "{}", "[", "[[2, 3]]", "[[2, 3], [4, 5]]", "[[], []]", '[["a"], [3]]',
        "[[2, -3], [-3, 4]]", "[[1e300, 3], [3, 4]]", "[[99999999999999999999999, 3], [3, 4]]",
        "[[[2, 3]], [[3, 4]]]", "[null, null]", "3",
    ],
)  # fmt: skip
def test_damaged_shapes_tell_nothing(dims: str | None) -> None:
    assert op_work("aten::mm", dims, None, None) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(sorted(_RULES)), JSON, JSON, JSON)
def test_no_argument_text_raises(name: str, dims: Any, types: Any, values: Any) -> None:
    found = op_work(name, *(json.dumps(part) for part in (dims, types, values)))
    assert found is None or 0 <= found.model_flops <= found.flops < float("inf")


def test_columns_follow_the_rows_whatever_repeats() -> None:
    """Works on distinct texts, in row order, with nulls; a pretty-printed text is the same."""
    one, two = json.dumps([[2, 3], [3, 4]]), json.dumps([[5, 3], [3, 4]], indent=2)
    frame = pl.DataFrame(
        {
            "name": ["aten::mm", "aten::mm", "aten::add", "aten::mm", "aten::mm"],
            "input_dims": [two, one, one, None, two],
            "input_types": [json.dumps([FP32, FP32])] * 5,
            "concrete_inputs": pl.Series([None] * 5, dtype=pl.String),
        }
    )
    assert with_work(frame)["flops"].to_list() == [120, 48, None, None, 120]
    assert counted(frame)["name"].to_list() == ["aten::mm"] * 4
