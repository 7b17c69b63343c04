"""The facts kept as data: every row's examples hold, and names that only sound alike do not."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from analyzer import catalog
from analyzer.catalog import (
    canonical_op,
    described_axis,
    dtype_bytes,
    find_device,
    host_collective,
    is_pseudo_op,
    match_kernel,
    readable,
    size_rule,
)
from analyzer.model import AXES, Work

DATA = Path(__file__).parent.parent / "data"
COMPUTE = [
    line
    for line in (DATA / "compute_kernels.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
NAMED = tomllib.loads((DATA / "comm_kernels.toml").read_text(encoding="utf-8"))
EXAMPLES = [(row, name) for row in catalog.kernel_rows() for name in row.examples]


@pytest.mark.parametrize(("row", "name"), EXAMPLES, ids=lambda value: str(value)[:60])
def test_kernel_row_matches_its_examples_and_no_earlier_row_does(
    row: catalog.KernelRow, name: str
) -> None:
    match = match_kernel(name)
    assert match is not None
    assert match.row == row.id


def test_kernel_rows_are_well_formed() -> None:
    rows = catalog.kernel_rows()
    assert len({row.id for row in rows}) == len(rows)
    assert {row.work for row in rows} == {Work.COMPUTE, Work.COMM, Work.FUSED}
    assert all(row.examples for row in rows)
    assert all(row.axis is None or row.axis in AXES for row in rows)
    assert all(row.op is None or size_rule(row.op) or row.op in NO_SIZE for row in rows)


NO_SIZE = ("dispatch", "combine", "barrier", "other")


def test_no_compute_kernel_is_called_communication() -> None:
    assert len(COMPUTE) >= 400
    wrong = [name for name in COMPUTE if (m := match_kernel(name)) and m.work != Work.COMPUTE]
    assert wrong == []


def test_nearly_every_compute_kernel_has_a_family() -> None:
    named = [name for name in COMPUTE if match_kernel(name) is not None]
    assert len(named) / len(COMPUTE) >= 0.98


def test_every_communication_kernel_is_recognised() -> None:
    table = [(work, name, op) for work, names in NAMED.items() for name, op in names.items()]
    assert len(table) >= 60
    for work, name, op in table:
        match = match_kernel(name)
        assert match is not None, name
        assert match.work == work, name
        assert not op or match.op == op, name


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("fused_moe_kernel", "moe"),
        ("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_NNT", "gemm"),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::X>>", "attention"),
        ("void at::native::elementwise_kernel<at::native::sigmoid()::{lambda()}>", "activation"),
        ("triton_poi_fused_mm_add_0", "elementwise"),
        ("triton_tem_fused_mm_0", "gemm"),
        ("void fbgemm_gpu::permute_2D_data_kernel<false, int, long, float>", "embedding"),
    ],
)  # fmt: skip
def test_family_of_compute_kernels(name: str, family: str) -> None:
    match = match_kernel(name)
    assert match is not None
    assert match.family == family


def test_readable_unfolds_simple_mangling() -> None:
    assert readable("_ZN7deep_ep9internode8dispatchILb0EEEvPi").startswith(
        "deep_ep::internode::dispatch "
    )
    assert readable(
        "_ZN2at6native54_GLOBAL__N__d8ceb000_21_DistributionNormal_cu_17e44f7d4foo"
    ).startswith("at::native")
    assert readable("void (anonymous namespace)::k<float>(int)") == "k<float>(int)"
    assert readable("_Z") == " "


@pytest.mark.parametrize(
    ("spelled", "op"),
    [
        ("allreduce", "all_reduce"), ("_allgather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"), ("c10d::alltoall_base_", "all_to_all"),
        ("all_to_allv", "all_to_allv"), ("HcomAllReduce", "all_reduce"),
        ("c10d::allgather_into_tensor_coalesced_", "all_gather"),
        ("_c10d_functional::reduce_scatter_tensor", "reduce_scatter"),
        ("_c10d_functional::all_reduce_", "all_reduce"), ("c10d::recv_any_source_", "recv"),
        ("symm_mem::one_shot_all_reduce", "all_reduce"), ("broadcast", "broadcast"),
        ("nccl:broadcast", "broadcast"), ("allreduce_coalesced", "all_reduce"),
        ("symm_mem::multimem_all_reduce_", "all_reduce"), ("SendRecv", "send_recv"),
        ("aten::mm", None), ("aten::scatter_add", None), ("wait", None),
    ],
)  # fmt: skip
def test_spellings_of_collectives(spelled: str, op: str | None) -> None:
    assert canonical_op(spelled) == op


def test_waits_are_no_collectives() -> None:
    assert is_pseudo_op("wait")
    assert is_pseudo_op("_c10d_functional::wait_tensor")
    assert not is_pseudo_op("allreduce")


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("c10d::allreduce_", "all_reduce"), ("nccl:all_gather", "all_gather"),
        ("gloo:all_to_all", "all_to_all"), ("aten::gather", None), ("gather", None),
        ("aten::scatter", None), ("torch::reduce", None), ("_c10d_functional::wait_tensor", None),
        ("record_param_comms", None), ("MyModule::all_reduce", None),
    ],
)  # fmt: skip
def test_only_communication_namespaces_make_a_host_operator_a_collective(
    name: str, op: str | None
) -> None:
    assert host_collective(name) == op


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Float8_e4m3fn", 1), ("Float8_e5m2", 1), ("c10::Float8_e4m3fn", 1), ("BFloat16", 2),
        ("c10::BFloat16", 2), ("torch.bfloat16", 2), ("Half", 2), ("Float", 4), ("float", 4),
        ("Byte", 1), ("Char", 1), ("Bool", 1), ("Long", 8), ("long int", 8), ("Double", 8),
        ("Int", 4), ("Short", 2), ("ComplexFloat", 8), ("c10::complex<float>", 8),
        ("unsigned char", 1), ("Float4_e2m1fn_x2", 1), ("Mystery", None), ("", None),
    ],
)  # fmt: skip
def test_bytes_of_dtypes(name: str, size: int | None) -> None:
    assert dtype_bytes(name) == size


@pytest.mark.parametrize(
    ("row", "desc"),
    [(row, desc) for row in catalog.group_rows() for desc in row.examples],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_group_row_matches_its_examples_and_no_earlier_row_does(
    row: catalog.GroupRow, desc: str
) -> None:
    assert described_axis(desc) == (row.axis or None)


def test_group_axes_are_canonical() -> None:
    for row in catalog.group_rows():
        assert all(part in (*AXES, "dp", "") for part in row.axis.split("+"))


@pytest.mark.parametrize("desc", ["my_custom_group", "tp_like_but_not", "mesh_foo", "42"])
def test_unknown_descriptions_say_nothing(desc: str) -> None:
    assert described_axis(desc) is None


@pytest.mark.parametrize(
    ("row", "example"), [(row, example) for row in catalog.range_rows() for example in row.examples]
)
def test_range_row_matches_its_examples(row: catalog.RangeRow, example: tuple[str, str]) -> None:
    assert catalog.ranged_axis(*example) == row.axis


@pytest.mark.parametrize(
    "name", ["Optimizer.step#AdamW.step", "ProfilerStep#3", "forward", "my_step"]
)
def test_other_ranges_say_nothing(name: str) -> None:
    assert catalog.ranged_axis(name, "all_reduce") is None


def devices() -> list[tuple[str, str]]:
    path = Path(catalog.__file__).with_name("hardware.toml")
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["device"]
    return [(row["name"], example) for row in rows for example in row["examples"]]


@pytest.mark.parametrize(("device", "name"), devices())
def test_device_names(device: str, name: str) -> None:
    found = find_device(name)
    assert found is not None
    assert found.name == device


@pytest.mark.parametrize(
    ("name", "bf16"),
    [
        ("NVIDIA H200", 989), ("NVIDIA H20", 148), ("NVIDIA H800", 989), ("NVIDIA GB200", 2500),
        ("NVIDIA B200", 2250), ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835), ("AMD Instinct MI300X", 1307), ("NVIDIA A100-SXM4-80GB", 312),
    ],
)  # fmt: skip
def test_dense_peak_and_no_neighbours_figures(name: str, bf16: float) -> None:
    found = find_device(name)
    assert found is not None
    assert found.peak_tflops["bf16"].value == bf16


def test_h800_has_its_own_link_rate_and_every_number_a_source() -> None:
    h800 = find_device("NVIDIA H800")
    assert h800 is not None
    assert h800.scale_up_gbps is not None
    assert h800.scale_up_gbps.value == 200
    for _, name in devices():
        found = find_device(name)
        assert found is not None
        numbers = [found.memory_gb, found.memory_gbps, found.scale_up_gbps, found.scale_out_gbps]
        for number in [*numbers, *found.peak_tflops.values()]:
            assert number is None or (number.source and number.as_of and number.value > 0)


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090", "", "cpu"])
def test_devices_without_facts_are_unknown(name: str) -> None:
    assert find_device(name) is None


def test_a_device_whose_peak_is_not_settled_has_none() -> None:
    found = find_device("Ascend910B")  # pages of its maker disagree: the user must state it
    assert found is not None
    assert not found.peak_tflops


def test_strategy_rows() -> None:
    rows = catalog.strategies()
    assert rows["zero3"] is rows["fsdp"]
    assert set(rows) == {
        "ddp", "zero1", "zero2", "fsdp", "zero3", "hsdp", "tp", "sp", "cp", "ulysses", "pp", "ep",
    }  # fmt: skip
    for row in rows.values():
        for axis in row.axes:
            assert axis.axis in AXES
            assert {op for ops in axis.required for op in ops} <= set(axis.ops) | {
                "send_recv",
                "all_gather",
            }
            minima = {op.exposed_minimum for op in axis.ops.values()}
            assert minima <= {"none", "first", "last", "all"}
