"""The page's formulas against the theory they are made from."""

from __future__ import annotations

import pytest
from plan_helpers import job

from analyzer.plan.conditions import conditions, mixed_mesh
from analyzer.plan.curves import Point, data_rate, machine_row, model_row, table, tensor_rate, times
from analyzer.roofline.combined import layer_costs
from analyzer.roofline.data_parallel import tokens_per_device_floor
from analyzer.roofline.hierarchy import Level, sharded_gather_s
from analyzer.roofline.tensor import tensor_degree_limit


def test_bytes_and_flops_are_the_summary_table_of_the_book() -> None:
    request, machine = job("llama2-13b", "tpu-v5p", "16x16x16")
    model, row = model_row(request.dims), machine_row(machine)
    point = Point(3e6, 4096, 4, 0.5)
    found = times(model, row, point)
    for name in ("dp", "fsdp", "tp"):
        costs = layer_costs(name, point.batch, model.hidden, model.ffn, 4096)
        rate = row.link * (1 if name == "tp" else 3)
        comm = (costs.forward_bytes + costs.backward_bytes) / rate * model.layers
        assert found[name].comm_s == pytest.approx(comm)
        flops = (costs.forward_flops + costs.backward_flops) * model.layers
        assert found[name].math_s == pytest.approx(flops / (row.flops * 0.5))
    mixed = layer_costs("fsdp+tp", point.batch, model.hidden, model.ffn, 1024, 4)
    weights = layer_costs("fsdp+tp", 0, model.hidden, model.ffn, 1024, 4)
    activations = mixed.forward_bytes - weights.forward_bytes
    worst = max(activations / row.link, weights.forward_bytes / (2 * row.link))
    assert found["fsdp+tp"].comm_s == pytest.approx(3 * worst * model.layers)


def test_data_parallel_turns_compute_bound_at_its_floor() -> None:
    request, machine = job("llama3-70b", devices="512")
    model, row = model_row(request.dims), machine_row(machine)
    floor = tokens_per_device_floor(row.flops, 400e9)
    for factor, bound in ((0.99, True), (1.01, False)):
        made = times(model, row, Point(floor * factor * 512, 512, 1))["fsdp"]
        assert (made.step_s > made.math_s * (1 + 1e-9)) is bound


def test_tensor_parallel_turns_compute_bound_at_its_limit() -> None:
    request, machine = job("llama3-70b", devices="8")
    model, row = model_row(request.dims), machine_row(machine)
    limit = tensor_degree_limit(model.ffn, row.flops, row.link)
    made = times(model, row, Point(1e6, 8, 1))["tp"]
    assert made.math_s / made.comm_s == pytest.approx(limit / 8 * 3 / 2)  # backward counts double


def test_experts_that_are_stored_travel_and_those_used_compute() -> None:
    """Mixtral: compute of two experts, weights of eight; E/k enters the floor."""
    request, machine = job("mixtral-8x7b", devices="64")
    model, row = model_row(request.dims), machine_row(machine)
    floor = tokens_per_device_floor(row.flops, 400e9, sparsity=4)
    made = times(model, row, Point(floor * 64, 64, 1))["fsdp"]
    assert made.comm_s == pytest.approx(made.math_s)


@pytest.mark.parametrize("name", ["llama3-70b", "mixtral-8x7b"])
def test_best_mixed_mesh_is_where_both_axes_take_as_long(name: str) -> None:
    """MIX-OPT on a torus against a scan over real degrees, and its floor against the ratio."""
    request, machine = job(name, "tpu-v5p", "16x16x16", batch=4e6)
    model, row = model_row(request.dims), machine_row(machine)

    def comm(data: float) -> float:
        tensor = 4096 / data
        weights = model.ffn * model.sparsity / (tensor * 2)
        return max(weights, request.batch_tokens / data)

    best = min((16 * 1.001**i for i in range(5500)), key=comm)
    assert mixed_mesh(request, machine).data == pytest.approx(best, rel=2e-3)
    conditions_ = {c.id: c for c in conditions(request, machine, None)}
    floor = conditions_["mixed-disjoint"].limit
    assert floor
    math = 4 * floor * 4096 * model.ffn / (4096 * row.flops)
    least = (floor * 4096 * model.ffn * model.sparsity / (4096 * 2)) ** 0.5
    assert 4 * least / row.link == pytest.approx(math)


def test_data_rate_is_the_tree_of_switches() -> None:
    """Against COLL-TREE-AG-SHARDED of many devices, where (d-1)/d is next to 1."""
    _, machine = job("llama3-70b", devices="512")
    row = machine_row(machine)
    many = 10**9
    for tensor in (1, 2, 8, 16, 64):
        inner = many if tensor < 8 else 1
        levels = [Level(inner, 450e9), Level(many, 50e9)]
        if inner == 1:
            expected = sharded_gather_s(1.0, [Level(8, 1e99), Level(many, 50e9)], tensor)
        else:
            expected = max(
                sharded_gather_s(1.0, [levels[0]], tensor),
                sharded_gather_s(1.0, [Level(8, 1e99), levels[1]], tensor),
            )
        assert 1 / data_rate(row, 4096, tensor) == pytest.approx(expected, rel=1e-6)
    assert tensor_rate(row, 8) == 450e9
    assert tensor_rate(row, 16) == 400e9


def test_table_starts_with_what_was_asked_for() -> None:
    request, machine = job("mixtral-8x7b", "b200", "64")
    found = table(request, machine, 2)
    models, machines = found["models"], found["machines"]
    assert isinstance(models, list)
    assert isinstance(machines, list)
    assert models[0] == {"name": "Mixtral 8x7B", "layers": 32, "hidden": 4096, "ffn": 2 * 14336,
                         "sparsity": 4.0}  # fmt: skip
    assert machines[0]["name"] == "NVIDIA B200"
    assert len({row["name"] for row in machines}) == len(machines) >= 8
