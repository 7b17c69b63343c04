"""Predicted times and memory against hand-made numbers and brute force."""

from __future__ import annotations

from itertools import product

import pytest
from plan_helpers import job

from analyzer.plan.estimate import Timed, estimate, exposed_by_axis, step_traffic, timed
from analyzer.plan.footprint import fits, footprint, model_states_bytes
from analyzer.plan.layout import Mesh, Setup, meshes, sequences_a_rank, setups
from analyzer.plan.machine import Stated, build_machine, divisors, near_equal
from analyzer.plan.request import Request, Wanted, read_model
from analyzer.plan.search import evaluate, named_parts, part_losses, search
from analyzer.roofline.data_parallel import pod_traffic_s
from analyzer.roofline.expected import NET_HOP_S
from analyzer.roofline.exposure import Cost, Mark, Traffic, exposed_minimum_s
from analyzer.roofline.flops import Recompute
from analyzer.roofline.memory import ACCOUNTINGS
from analyzer.roofline.strategies import traffic


def setup(mesh: Mesh, sequences: int = 1, microbatches: int = 1, **more: object) -> Setup:
    return Setup(mesh, sequences, 8192, microbatches, Recompute.NONE, **more)  # type: ignore[arg-type]


def test_ddp_of_llama3_8b_in_a_node() -> None:
    """28.1 GB of bf16 gradients on the wire, 62.5 ms at the datasheet rate."""
    request, machine = job(devices="8", link_efficiency={"dp_replicate": 1.0})
    request = Request(request.dims, 2**17, 8192, Wanted(), request.accounting, grad_bytes=2)
    rows = step_traffic(request, setup(Mesh("ddp", dp_replicate=8)))
    total = sum(row.total_s for row in timed(rows, machine, Mesh("ddp", dp_replicate=8)))
    assert total == pytest.approx(62.5e-3, rel=0.02)  # latency of 1,200 buckets on top


def test_fsdp_unit_of_llama3_8b() -> None:
    """A layer of 218.1M parameters: all-gather 848 us, fp32 reduce-scatter 1.70 ms."""
    request, machine = job(devices="8", link_efficiency={"dp_shard": 1.0})
    mesh = Mesh("fsdp", dp_shard=8)
    found = timed(step_traffic(request, setup(mesh)), machine, mesh)
    layers = [row for row in found if row.row.size_bytes in (2 * 218_112_000, 4 * 218_112_000)]
    by_op = {row.row.op: row.time_s for row in layers}
    assert by_op["all_gather"] == pytest.approx(848e-6, rel=0.01)
    assert by_op["reduce_scatter"] == pytest.approx(1.70e-3, rel=0.01)


def test_tensor_parallel_layer_of_llama3_70b() -> None:
    """A 134 MB message takes 261 us in a node of H100."""
    request, machine = job("llama3-70b", devices="8", link_efficiency={"tp": 1.0})
    mesh = Mesh("fsdp", tp=8)
    rows = timed(step_traffic(request, setup(mesh)), machine, mesh)
    assert {round(row.row.size_bytes / 1e6) for row in rows} == {134}
    assert rows[0].time_s == pytest.approx(261e-6, rel=0.01)


def test_traffic_is_that_of_the_strategy_words() -> None:
    request, _ = job("llama3-70b", devices="64")
    mesh = Mesh("fsdp", pp=2, dp_shard=8, tp=4)
    made = setup(mesh, 1, 4)
    from analyzer.plan.layout import options

    plan = made.plan(request.dims, options(request))
    assert step_traffic(request, made) == [*traffic("fsdp", plan), *traffic("sp", plan)]


def test_context_ranks_share_weights_and_gradients() -> None:
    request, _ = job(devices="16")
    with_context = step_traffic(request, setup(Mesh("fsdp", dp_shard=4, cp=4)))
    gathers = {row.ranks for row in with_context if row.axis == "dp_shard"}
    assert gathers == {16}


def test_experts_are_gathered_by_the_ranks_that_share_them() -> None:
    request, _ = job("mixtral-8x7b", devices="32")
    rows = step_traffic(request, setup(Mesh("fsdp", dp_shard=32, ep=8)))
    ranks = {axis: {r.ranks for r in rows if r.axis == axis} for axis in ("dp_shard", "edp", "ep")}
    assert ranks == {"dp_shard": {32}, "edp": {4}, "ep": {8}}
    gathered = sum(r.calls * r.size_bytes for r in rows
                   if r.axis in ("dp_shard", "edp") and r.phase == "forward")  # fmt: skip
    held = 46_702_792_704 - 7 / 8 * 8 * 3 * 4096 * 14336 * 32  # seven eighths of experts elsewhere
    assert gathered == pytest.approx(2 * held, rel=1e-4)


def test_expert_layers_of_a_pipeline_are_not_taken_for_dense_ones() -> None:
    """DeepSeek-V3's first layers are dense; stages must carry the experts all the same."""
    request, _ = job("deepseek-v3", devices="64")
    rows = step_traffic(request, setup(Mesh("fsdp", pp=32, dp_shard=2)))
    forward = sum(r.calls * r.size_bytes for r in rows if r.phase == "forward")
    assert forward > 2 * 671e9 / 32 * 0.9


def costs(rows: list[Timed]) -> list[Cost]:
    return [Cost(r.row.mark, r.time_s, r.row.calls, r.level) for r in rows]


def test_exposed_by_axis_of_one_axis_is_the_theoretical_minimum() -> None:
    request, machine = job("llama3-70b", devices="64")
    mesh = Mesh("fsdp", dp_shard=64)
    rows = timed(step_traffic(request, setup(mesh)), machine, mesh)
    for window in (0.0, 0.5, 5.0, 50.0):
        mine = exposed_by_axis(rows, {"dp_shard": window})
        assert sum(mine.values()) == pytest.approx(
            exposed_minimum_s(costs(rows), {"network": window})
        )


def test_exposed_by_axis_never_undercuts_the_minimum_and_shares_links() -> None:
    def row(axis: str, mark: Mark, time: float, level: str) -> Timed:
        return Timed(Traffic(axis, "all_gather", "forward", 1, 1, 2, mark, ""), time, level)

    rows = [row("tp", Mark.HIDEABLE, 3.0, "node"), row("dp_shard", Mark.HIDEABLE, 4.0, "node"),
            row("dp_replicate", Mark.HIDEABLE, 5.0, "network"),
            row("tp", Mark.CRITICAL, 1.0, "node")]  # fmt: skip
    windows = {"tp": 5.0, "dp_shard": 5.0, "dp_replicate": 2.0}
    found = exposed_by_axis(rows, windows)
    assert found == {"tp": 1.0, "dp_shard": 2.0, "dp_replicate": 3.0}
    least = exposed_minimum_s(costs(rows), {"node": 5.0, "network": 2.0})
    assert sum(found.values()) >= least


def test_gradients_between_slices_are_the_closed_form() -> None:
    """LLaMA-3 70B on two slices of 8960 v5p chips: 2.5 ms of bf16 gradients (DP-POD)."""
    total, shape = 2 * 8960, (16, 20, 28)
    stated = Stated(link_efficiency={"dp_replicate": 1.0})
    machine = build_machine("tpu-v5p", total, shape, 2, stated)
    request, _ = job("llama3-70b")
    request = Request(request.dims, 2e6, 8192, Wanted(), request.accounting, grad_bytes=2)
    mesh = Mesh("hsdp", dp_replicate=2, dp_shard=8960)
    made = Setup(mesh, 1, 112, 1, Recompute.NONE)
    rows = [r for r in timed(step_traffic(request, made), machine, mesh)
            if r.row.axis == "dp_replicate"]  # fmt: skip
    assert {row.level for row in rows} == {"network"}
    expected = pod_traffic_s(70_553_706_496, 2, 8960, 2, 6.25e9)
    assert expected == pytest.approx(2.5e-3, rel=0.02)
    latency = sum(row.row.calls for row in rows) * 2 * NET_HOP_S
    assert sum(row.total_s for row in rows) == pytest.approx(expected + latency, rel=1e-2)


def test_compute_is_flops_over_rate() -> None:
    request, machine = job("llama3-70b", devices="64", efficiency=0.5)
    parts, _ = estimate(request, machine, setup(Mesh("fsdp", dp_shard=64), 1, 2))
    tokens = 8192 * 2  # a device
    assert parts.compute_s == pytest.approx(449_230_454_784 * tokens / (989e12 * 0.5))
    assert parts.step_s == pytest.approx(sum(named_parts(parts).values()))
    assert parts.bubble_s == 0.0


def test_full_recomputation_costs_a_third_of_the_layers() -> None:
    request, machine = job("llama3-70b", devices="64")
    made = Setup(Mesh("fsdp", dp_shard=64), 1, 8192, 1, Recompute.FULL)
    parts, _ = estimate(request, machine, made)
    assert parts.recompute_s / parts.compute_s == pytest.approx(1 / 3, rel=0.02)


def test_pipeline_bubble_is_the_closed_form() -> None:
    request, machine = job("llama3-70b", devices="8", link_efficiency={"pp": 1.0})
    for chunks, microbatches in ((1, 12), (2, 16)):
        made = setup(Mesh("fsdp", pp=8), 1, microbatches, chunks=chunks)
        parts, _ = estimate(request, machine, made)
        share = 7 / (microbatches * chunks)
        assert parts.bubble_s / parts.compute_s == pytest.approx(share)


def test_zero_paper_memory() -> None:
    """ZeRO (arXiv 1910.02054): 7.5B parameters on 64 ranks, 16 B each: 120, 31.4 and 1.9 GB."""
    dims = read_model("layers=40,hidden=3968,ffn=15872,heads=31,vocab=1")
    request, _ = job(devices="64")
    request = Request(dims, 2**20, 8192, Wanted(), ACCOUNTINGS["zero"])
    from analyzer.plan.footprint import counted

    scale = 7.5e9 / counted(dims).total
    words = {"ddp": 120e9, "zero1": 31.4e9, "fsdp": 1.9e9}
    for word, expected in words.items():
        mesh = Mesh(word, **({"dp_replicate": 64} if word == "ddp" else {"dp_shard": 64}))
        total = sum(model_states_bytes(request, mesh).values()) * scale
        assert total == pytest.approx(expected, rel=0.02)


def test_memory_of_states_adds_up_over_a_pipeline() -> None:
    """All stages together hold the model once; the heaviest has an equal share and an end."""
    request, _ = job("llama3-70b", devices="64")
    held = sum(model_states_bytes(request, Mesh("fsdp", pp=16, tp=4)).values())
    assert held == pytest.approx(16 / 64 * (68_452_352_000 + 16 * 128256 * 8192), rel=1e-3)


def test_larger_footprints_do_not_fit() -> None:
    request, machine = job("llama3-70b", devices="8")
    memory = footprint(request, machine, setup(Mesh("ddp", dp_replicate=8)))
    assert memory["reserve"] == pytest.approx(8e9)
    assert not fits(machine, memory)
    assert fits(machine, dict.fromkeys(memory, 1e9))


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b"])
def test_every_mesh_is_considered(model: str) -> None:
    """Against all products of divisors, by brute force."""
    request, machine = job(model, devices="16")
    found = {(m.pp, m.dp_replicate, m.dp_shard, m.cp, m.tp, m.ep) for m in meshes(request, machine)}
    experts = request.dims.moe.experts if request.dims.moe else 1
    sizes = [1, 2, 4, 8, 16]
    expected = set()
    for pp, r, s, cp, tp, ep in product(sizes, repeat=6):
        if pp * r * s * cp * tp != 16 or tp > 8 or cp > 4 or experts % ep:
            continue
        inside = r * s * cp if s == 1 else s * cp
        if inside % ep == 0:
            expected.add((pp, r, s, cp, tp, ep))
    assert found == expected


@pytest.mark.parametrize(
    ("model", "devices", "batch"), [("llama3-8b", "16", 2**20), ("llama3-70b", "64", 2**21)]
)
def test_the_winner_is_the_best_of_all_setups(model: str, devices: str, batch: int) -> None:
    """What the search does not price could not have won."""
    request, machine = job(model, devices=devices, batch=batch)
    best = search(request, machine)[0]
    fastest = 0.0
    for mesh in meshes(request, machine):
        for made in setups(request, machine, mesh):
            if fits(machine, footprint(request, machine, made)):
                fastest = max(fastest, evaluate(request, machine, made).tokens_per_s)
    assert best.code == "best"
    assert best.tokens_per_s == pytest.approx(fastest, rel=1e-3)


def test_every_loser_has_a_reason_that_accounts_for_its_loss() -> None:
    request, machine = job("llama3-70b", devices="64", batch=2**21)
    best, *others = search(request, machine)
    assert best.why == ""
    for other in others:
        assert other.code
        assert other.why
        if other.fits and other.parts and best.step_s and other.step_s:
            same_tokens = other.step_s * best.tokens_per_s * best.step_s
            same_tokens /= other.tokens_per_s * other.step_s
            lost = sum(part_losses(other, best).values())
            assert lost == pytest.approx(same_tokens - best.step_s)
            assert lost >= 0


def test_sequences_near_the_batch() -> None:
    request, _ = job("llama3-70b", devices="512", batch=4e6)
    assert sequences_a_rank(request, Mesh("fsdp", dp_shard=64)) == 8
    assert sequences_a_rank(request, Mesh("fsdp", dp_shard=512)) == 1
    assert sequences_a_rank(request, Mesh("fsdp", dp_shard=2048)) is None
    exact = Request(request.dims, 8192 * 48, 8192, Wanted(), request.accounting)
    assert sequences_a_rank(exact, Mesh("fsdp", pp=32, dp_shard=16)) == 3


def test_factors() -> None:
    assert near_equal(4096, 3) == (16, 16, 16)
    assert near_equal(1024, 2) == (32, 32)
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
