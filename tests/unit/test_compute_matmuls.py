"""Which operators count, what they ran for, and whose kernels are whose."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import polars as pl
import pytest
from tables import AUTOGRAD, event, labeled, span

from analyzer.measure.compute import innermost_ops, matmuls

STEP = [span("ProfilerStep#0", 0, 10_000)]
SHAPE = [[16, 32], [32, 64]]
FLOPS = 2 * 16 * 32 * 64


def op(name: str, start: int, end: int, dims: Any = SHAPE, **more: Any) -> dict[str, Any]:
    types = json.dumps(["c10::BFloat16", "c10::BFloat16"])
    shape = {} if dims is None else {"input_dims": json.dumps(dims), "input_types": types}
    return span(name, start, end, **shape, **more)


def gemm(start: int, launch: int | None, dur: int = 100, **more: Any) -> dict[str, Any]:
    row = {"family": "gemm", "name": "nvjet_tst_128x256", "launch_ns": launch, **more}
    return event(start, start + dur, **row)


def calls(rows: list[dict[str, Any]], ops: list[dict[str, Any]], **trace: Any) -> pl.DataFrame:
    return matmuls([labeled(rows, ops=ops, ranges=[*STEP, *trace.pop("ranges", [])], **trace)])


def figures(frame: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(frame.select(columns).iter_rows(), key=str)


def test_of_wrappers_only_the_innermost_counts() -> None:
    """linear > matmul > mm is one product, and DTensor's global shape is no product at all."""
    ops = [
        op("aten::linear", 100, 200, [[16, 32], [64, 32]]),
        op("aten::matmul", 110, 190),
        op("aten::mm", 110, 180, [[64, 32], [32, 64]]),  # DTensor: the global shape
        op("aten::mm", 120, 170),
        op("aten::t", 130, 140, [[64, 32]]),
        op("aten::mm", 300, 400),
        op("aten::mm", 120, 170, tid=9),  # another thread, another operator
    ]
    kernels = [gemm(500, 150), gemm(700, 350), gemm(900, 150, launch_tid=9)]
    found = calls(kernels, ops)
    assert figures(found, "calls", "flops", "time_ns") == [(3, FLOPS, 300)]


def test_equal_and_touching_intervals() -> None:
    rows = [op("a", 0, 10), op("b", 0, 10), op("c", 10, 20), op("d", 10, 10), op("e", 15, 25)]
    frame = pl.DataFrame(rows).with_columns(pl.lit(1).alias("pid"))
    # b lies in a, d in c; e begins in c and outlives it: rounded times, not nesting
    assert sorted(innermost_ops(frame)["name"]) == ["b", "d", "e"]


def test_all_kernels_of_an_operator_are_its_time_and_its_work_counts_once() -> None:
    split = [gemm(500, 150), gemm(620, 160, 40, name="splitKreduce_kernel"),
             event(700, 730, launch_ns=170, family="elementwise")]  # fmt: skip
    found = calls(split, [op("aten::addmm", 100, 200, [[64], *SHAPE])])
    assert figures(found, "calls", "flops", "time_ns") == [(1, FLOPS, 170)]


def test_a_kernel_without_launch_finds_its_operator_by_external_id() -> None:
    ops = [op("aten::mm", 100, 200, external_id=7), op("aten::mm", 300, 400, external_id=8)]
    rank = labeled([gemm(500, None), gemm(700, None)], ops=ops, ranges=STEP)
    ids = pl.Series("external_id", [8, None], dtype=pl.Int64)
    linked = rank.trace.device.sort("event").with_columns(ids)
    rank = dataclasses.replace(rank, trace=dataclasses.replace(rank.trace, device=linked))
    found = matmuls([rank])
    assert figures(found, "calls", "flops", "family") == [(1, FLOPS, "gemm"), (1, None, "gemm")]


def test_operators_without_kernels_computed_nothing() -> None:
    """Shape propagation on fake or meta tensors logs operators too."""
    found = calls([event(500, 600, launch_ns=450)], [op("aten::mm", 100, 200)])
    assert found.is_empty()


def test_kernels_without_shapes_are_kept_as_unknown() -> None:
    ops = [op("aten::mm", 100, 200, None)]
    graph = gemm(800, 900)
    moe = [gemm(1000, 950, family="moe", name="cutlass_grouped_gemm"),
           gemm(1200, 950, family="moe", name="moe_permute_kernel")]  # fmt: skip
    copy = event(1400, 1500, launch_ns=950, family="copy")
    found = calls([gemm(500, 150), graph, *moe, copy], ops)
    assert figures(found, "family", "calls", "flops", "dtype") == [
        ("gemm", 2, None, None), ("grouped_gemm", 1, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n", "tf32"),
        ("cutlass_80_tensorop_s1688gemm_128x256", "tf32"),
        ("ampere_sgemm_128x64_tn", "fp32"),
    ],
)
def test_fp32_operands_may_be_multiplied_in_tf32(name: str, dtype: str) -> None:
    single = op("aten::mm", 100, 200) | {"input_types": '["float", "float"]'}
    assert calls([gemm(500, 150, name=name)], [single])["dtype"].to_list() == [dtype]


def test_roles() -> None:
    """Autograd numbers forward operators and backward nodes; only nodes name a forward thread."""
    node = {"tid": AUTOGRAD, "fwd_tid": 1}
    ops = [
        op("aten::linear", 100, 200, [[16, 32], [64, 32]], sequence=5, fwd_tid=0),
        op("aten::mm", 120, 180),
        op("autograd::engine::evaluate_function: MmBackward0", 300, 900, None, sequence=5, **node),
        op("MmBackward0", 310, 890, None, sequence=5, **node),
        op("aten::linear", 400, 500, [[16, 32], [64, 32]], sequence=8, fwd_tid=0, tid=AUTOGRAD),
        op("aten::mm", 420, 480, tid=AUTOGRAD),  # checkpointing: forward again
        op("aten::mm", 600, 700, tid=AUTOGRAD),
        op("aten::mm", 1100, 1200),  # in the optimizer (Muon)
        op("aten::mm", 1400, 1500),  # no number anywhere: inference
    ]
    launches = ((150, 1), (450, AUTOGRAD), (650, AUTOGRAD), (1150, 1), (1450, 1))
    rows = [
        gemm(2000 + 200 * i, at, 10 * (i + 1), launch_tid=t) for i, (at, t) in enumerate(launches)
    ]
    found = calls(rows, ops, ranges=[span("Optimizer.step#Muon.step", 1000, 1300)])
    assert figures(found, "role", "calls", "time_ns") == [
        ("forward", 2, 60), ("gradient", 1, 30), ("optimizer", 1, 40), ("rerun", 1, 20),
    ]  # fmt: skip


def test_steps_are_the_kernels_on_a_device() -> None:
    two = [span("ProfilerStep#0", 0, 1000), span("ProfilerStep#1", 1000, 2000)]
    ops = [op("aten::mm", 100, 200), op("aten::mm", 1100, 1200)]
    rank = labeled([gemm(500, 150), gemm(1500, 1150)], ops=ops, ranges=two)
    assert figures(matmuls([rank]), "step", "calls") == [(0, 1), (1, 1)]


def test_host_side_times_are_the_operators_own() -> None:
    two = [span("ProfilerStep#0", 0, 1000), span("ProfilerStep#1", 1000, 2000)]
    ops = [op("aten::linear", 100, 220, [[16, 32], [64, 32]]), op("aten::mm", 120, 200),
           op("aten::mm", 1100, 1250), op("aten::mm", 2500, 2600)]  # fmt: skip
    rank = labeled([event(100, 220), event(1100, 1250)], ops=ops, ranges=two, host_side=True)
    found = matmuls([rank])
    assert figures(found, "step", "calls", "flops", "time_ns")[1:] == [
        (0, 1, FLOPS, 80), (1, 1, FLOPS, 150),
    ]  # fmt: skip
    assert figures(found, "step", "time_ns")[0] == (-1, 100)


def test_no_rank_and_no_operator() -> None:
    assert matmuls([]).is_empty()
    assert calls([], []).is_empty()
