"""Public cases about reading: ranks, categories, broken JSON, impossible times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import Group, TraceBuilder
from case_helpers import Cli, check, small, steps

from analyzer.api import Analysis, Options, analyze
from analyzer.errors import DuplicateRankError

Analyse = Callable[..., Analysis]
US = 1_000
MS = 1_000_000


def without_inputs(analysis: Analysis) -> dict[str, Any]:
    return {key: value for key, value in analysis.document.items() if key != "inputs"}


# ---- ranks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("compact", [True, False])
def test_m_03_compact_json_keeps_its_rank(analyse: Analyse, compact: bool) -> None:
    analysis = analyse(small(0, 2, compact=compact), small(1, 2, compact=compact))
    assert analysis.document["job"]["ranks_seen"] == [0, 1]
    assert len(analysis.document["per_rank"]) == 2


@pytest.mark.parametrize("compact", [True, False])
def test_m_03_two_files_of_one_rank_are_an_error(
    analyse: Analyse, run_cli: Cli, tmp_path: Path, compact: bool
) -> None:
    with pytest.raises(DuplicateRankError):
        analyse(small(1, 2, compact=compact), small(1, 2, compact=compact))
    line = run_cli.fails(tmp_path)
    assert "trace_0.json" in line
    assert "trace_1.json" in line
    assert "rank 1" in line


@pytest.mark.parametrize("seen", [(0, 1, 2, 3), (4, 5, 6, 7), (0, 2, 5, 7), (6,)])
def test_m_13_some_ranks_are_analysed_with_their_coverage(
    tmp_path: Path, run_cli: Cli, seen: tuple[int, ...]
) -> None:
    for rank in seen:
        small(rank, 8).write(tmp_path / f"rank{rank}.json.gz")
    gate = "exposed_comm_pct_worst <= 90"
    run = run_cli(tmp_path, "--max-exposed-comm", "90%", "--gate", gate, "--json", "-")
    document = run.document
    check(document)
    assert document["coverage"]["ranks_expected"] == 8
    assert document["coverage"]["ranks_seen"] == list(seen)
    missing = [rank for rank in range(8) if rank not in seen]
    warning = next(w for w in document["warnings"] if "have no trace" in w)
    assert warning.startswith(f"{len(missing)} of 8 ranks have no trace: {missing[0]}")
    assert document["exposed_comm_pct"] == pytest.approx(20.0)
    # each rank's own figure can be judged, the worst of all ranks cannot
    assert [g["passed"] for g in document["gates"]] == [True, None]
    assert run.code == 3


@pytest.mark.parametrize(
    ("name", "rank", "source"),
    [
        ("rank3.json", 3, "file name"),
        ("trainer-rank_3-of-8.pt.trace.json.gz", 3, "file name"),
        ("host_1234.1698955063520869240.pt.trace.json", 0, "assumed 0"),
        ("trace.json", 0, "assumed 0"),
    ],
)
def test_b_03_without_distributed_info_the_name_tells_the_rank(
    tmp_path: Path, name: str, rank: int, source: str
) -> None:
    path = small(distributed_info=False).write(tmp_path / name)
    document = analyze(path).document
    check(document)
    assert document["job"]["ranks_seen"] == [rank]
    assert document["job"]["world_size"] is None
    assert document["step"]["compute_ns"] == 500 * US


def test_b_03_the_user_tells_the_rank(tmp_path: Path) -> None:
    path = small(distributed_info=False).write(tmp_path / "trace.json")
    assert analyze(path, options=Options(rank=5)).document["job"]["ranks_seen"] == [5]


def anonymous(rank: int, ops: tuple[str, ...], ranks: tuple[int, ...]) -> TraceBuilder:
    groups = [Group("3", "mesh_tp", ranks)]
    trace = TraceBuilder(rank, 8, groups, distributed_info=False).step(0, 0, 1000)
    trace.kernel("nvjet_gemm", 100, 500, op="aten::mm")
    for n, op in enumerate(ops):
        trace.collective(op, 600 + 50 * n, 40, group="3", nelems=4096)
    return trace


def test_b_03_collectives_tell_the_rank(analyse: Analyse) -> None:
    ranks = [anonymous(rank, ("all_reduce", "all_gather"), (2, 5)) for rank in (5, 2)]
    analysis = analyse(*ranks)
    assert analysis.document["job"]["ranks_seen"] == [2, 5]


@pytest.mark.parametrize(
    ("ops", "ranks"),
    [(("send", "recv"), (2, 5)), (("all_reduce",), tuple(range(40)))],
    ids=["peers of point-to-point", "a list that was cut"],
)
def test_b_03_what_does_not_tell_the_rank(
    analyse: Analyse, ops: tuple[str, ...], ranks: tuple[int, ...]
) -> None:
    assert analyse(anonymous(5, ops, ranks)).document["job"]["ranks_seen"] == [0]


def test_b_03_several_anonymous_files_keep_apart(analyse: Analyse) -> None:
    document = analyse(*[small(distributed_info=False) for _ in range(3)]).document
    assert document["job"]["ranks_seen"] == [0, 1, 2]


# ---- numbers and links ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "origin_us", ["20.05", "1789035343287912.456"], ids=["relative", "absolute"]
)
@pytest.mark.parametrize("count", [20_000])
def test_m_05_m_16_short_kernels_keep_their_nanoseconds(
    tmp_path: Path, origin_us: str, count: int
) -> None:
    whole, _, fraction = origin_us.partition(".")
    trace = TraceBuilder(base_ns=None)
    for n in range(count):
        trace.kernel("elementwise", f"{int(whole) + n}.{fraction}", "0.9", launch=False)
    analysis = analyze(trace.write(tmp_path / "rank0.json.gz"))
    check(analysis.document)
    step = analysis.document["step"]
    assert step["time_ns"] == (count - 1) * US + 900
    assert step["compute_ns"] == count * 900 == 18 * MS
    assert analysis.document["coverage"]["dropped_events"] == {}


@pytest.mark.parametrize("first", [100, 32_700, 65_500, 2_147_483_600])
def test_m_06_ids_of_any_width_link(tmp_path: Path, first: int) -> None:
    count = 17_000 if first == 100 else 100  # more than 32 767 events, ids below that
    trace = TraceBuilder()
    for n in range(count):
        trace.kernel("elementwise", 20 + n, 0.5, launch_ts=10 + n, correlation=first + n)
    analysis = analyze(trace.write(tmp_path / "rank0.json.gz"))
    check(analysis.document)
    assert analysis.measurements.host_step["launches"].to_list() == [count]
    assert analysis.measurements.host_step["median_lead_ns"].to_list() == [10 * US]
    assert analysis.document["step"]["compute_ns"] == count * 500


def test_b_08_kernel_without_launch_and_copy_of_no_length(analyse: Analyse) -> None:
    trace = small()
    trace.kernel("nvjet_gemm", 650, 100, launch=False)
    trace.memcpy(760, 0)
    trace.memset(770, 0, launch=False)
    analysis = analyse(trace)
    step = analysis.document["step"]
    assert step["compute_ns"] == 600 * US
    assert step["memcpy_ns"] == 0
    leads = analysis.measurements.host_step["median_lead_ns"].drop_nulls()
    assert (leads >= 0).all()


def test_b_06_operators_that_begin_together_are_no_puzzle(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 1000)
    for dur in (0, 50, 0, 50):  # same start, same thread; two of them empty
        trace.op("aten::mm", 50, dur)
    trace.op("aten::linear", 50, 100)
    trace.kernel("some_kernel_nobody_knows", 100, 500, launch_ts=60)
    document = analyse(trace).document
    assert document["step"]["compute_ns"] == 500 * US
    assert document["coverage"]["unclassified_pct"] == 0  # the operator around it tells


def renamed(trace: TraceBuilder, names: dict[str, str]) -> bytes:
    data = trace.json()
    for new, old in names.items():
        data = data.replace(f'"cat": "{new}"'.encode(), f'"cat": "{old}"'.encode())
    return data


def test_b_11_categories_of_every_era_read_alike(tmp_path: Path) -> None:
    trace = small(0, 2)
    trace.memcpy(900, 50)
    old = {
        "kernel": "Kernel", "gpu_memcpy": "Memcpy", "cpu_op": "Operator",
        "cuda_runtime": "Runtime", "cuda_driver": "Runtime",
    }  # fmt: skip
    results = []
    for names in ({}, old, {"kernel": "Kernel"}):
        path = tmp_path / "rank0.json"
        path.write_bytes(renamed(trace, names))
        results.append(without_inputs(analyze(path)))
    assert results[0]["step"]["memcpy_ns"] == 50 * US
    assert results[0] == results[1] == results[2]


def test_m_17_absurd_duration_ends_where_the_next_kernel_starts(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 20_000)
    trace.kernel("nvjet_gemm", 1200, 2_000_000, op="aten::mm")
    for n in range(18):
        trace.kernel("nvjet_gemm", 1400 + 1000 * n, 100, op="aten::mm")
    document = analyse(trace).document
    assert document["step"]["time_ns"] == 20 * MS
    assert document["step"]["compute_ns"] == (200 + 18 * 100) * US
    assert sum(document["coverage"]["repaired_events"].values()) == 1
    assert any("absurd" in w for w in document["warnings"])


@pytest.mark.parametrize("dur", [-5, -0.001, -2_000_000])
def test_m_18_negative_duration_is_dropped_and_listed(analyse: Analyse, dur: float) -> None:
    trace = steps(1)
    trace.kernel("nvjet_gemm", 700, dur)
    trace.op("aten::mm", 100, dur)
    document = analyse(trace).document
    assert document["step"]["compute_ns"] == 500 * US
    assert sum(document["coverage"]["dropped_events"].values()) == 2
    assert any("dropped" in w for w in document["warnings"])


@pytest.mark.parametrize(
    "value", ["NaN", "N/A", "Infinity", "-Infinity", "1e400", '"soon"', "null"]
)
@pytest.mark.parametrize("field", ["dur", "ts"])
def test_m_18_a_time_that_is_none_is_dropped_and_listed(
    analyse: Analyse, field: str, value: str
) -> None:
    trace = small()
    trace.kernel("nvjet_gemm", 700, 111.5 if field == "dur" else 20, launch=False)
    if field == "ts":
        trace.events[-1]["ts"] = 111.5
    data = trace.json().replace(f'"{field}": 111.5'.encode(), f'"{field}": {value}'.encode())
    assert value.encode() in data
    document = analyse(data).document
    assert document["step"]["compute_ns"] == 500 * US
    assert sum(document["coverage"]["dropped_events"].values()) == 1


# ---- overlapping and overflowing kernels ---------------------------------------------------------


def test_b_17_kernels_that_overlap_on_one_stream_are_both_kept(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 1000)
    trace.kernel("kernel_a_gemm", 100, 50, op="aten::mm")
    trace.kernel("kernel_b_gemm", 140, 30, op="aten::mm")
    trace.kernel("kernel_c_gemm", 160, 0, op="aten::mm")
    analysis = analyse(trace)
    assert analysis.document["step"]["compute_ns"] == 70 * US
    assert analysis.measurements.steps["device_events"].sum() == 3
    assert any("programmatic dependent launch" in w for w in analysis.document["warnings"])
    assert analysis.document["coverage"]["repaired_events"] == {}


def test_b_18_overlaps_of_time_stamps_are_not_counted_twice(analyse: Analyse) -> None:
    trace = TraceBuilder(device_name="AMD Instinct MI300X").step(0, 0, 1000)
    trace.kernel("Cijk_Ailk_Bljk_A", "100.000", "10.030")
    trace.kernel("Cijk_Ailk_Bljk_B", "110.003", "5")
    document = analyse(trace).document
    assert document["step"]["compute_ns"] == 15_003
    assert not any("overlap" in w for w in document["warnings"])


def test_b_20_one_overflown_duration_in_a_long_trace_is_flagged(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 60_000_000)
    for n in range(1000):
        dur = 2_000_000 if n == 500 else 30_000
        trace.kernel("nvjet_gemm", 1000 + 60_000 * n, dur, op="aten::mm")
    document = analyse(trace).document
    assert document["coverage"]["repaired_events"] == {"clipped absurd duration": 1}
    # the overflown one ends where the next starts
    assert document["step"]["compute_ns"] == (999 * 30 + 60) * MS


def test_b_20_a_dense_stream_with_ties_is_not_flagged(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 30_000)
    for n in range(2000):
        # the recorder's clock ticks in microseconds: every third kernel starts with its neighbour
        trace.kernel("nvjet_gemm", 100 + 10 * (n - (n % 3 == 2)), 11, op="aten::mm")
    document = analyse(trace).document
    assert document["coverage"]["repaired_events"] == {}
    assert document["coverage"]["dropped_events"] == {}


def test_b_20_one_long_kernel_alone_on_its_stream_is_not_flagged(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 5_000_000)
    for n in range(1000):
        trace.kernel("nvjet_gemm", 1000 + 1000 * n, 500, op="aten::mm")
    trace.kernel("nvjet_gemm", 2_000_000, 2_000_000, op="aten::mm")
    document = analyse(trace).document
    assert document["coverage"]["repaired_events"] == {}
    assert document["step"]["compute_ns"] == 2500 * MS
