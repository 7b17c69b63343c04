"""Conditions, volumes and exposed minima of the strategies, against published worked examples."""

from __future__ import annotations

import itertools
import math

import pytest

from analyzer import catalog
from analyzer.errors import UsageError
from analyzer.roofline import combined, context, data_parallel, expert, exposure, tensor
from analyzer.roofline.collectives import wire_bytes
from analyzer.roofline.expected import SwitchedLink
from analyzer.roofline.exposure import Cost, Mark, Traffic
from analyzer.roofline.model_dims import find_model, parameters
from analyzer.roofline.pricing import group_ranks, price
from analyzer.roofline.strategies import Options, Plan, traffic

V5P = 4.59e14, 1.8e11  # FLOP/s; bytes/s of a torus axis
H100_NODE = 990e12, 450e9
H100_NET = 990e12, 400e9
B200_NODE, B200_NET = (2250e12, 900e9), (2250e12, 400e9)


def wired(rows: tuple[Traffic, ...], op: str | None = None) -> float:
    """Wire bytes a rank and step."""
    total = 0.0
    for row in rows:
        if op in (None, row.op):
            bytes_ = wire_bytes(row.op, row.size_bytes, row.ranks)
            assert bytes_ is not None
            total += bytes_ * row.calls
    return total


# ---- conditions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "axes", "sparsity", "tokens"),
    [
        (V5P, 1, 1, 2550),
        (V5P, 3, 1, 850),
        (H100_NODE, 1, 1, 2200),
        (H100_NET, 1, 1, 2475),
        (B200_NODE, 1, 1, 2500),
        (B200_NET, 1, 1, 5625),
        ((989e12, 200e9), 1, 1, 4945),
        (H100_NET, 1, 128 / 4, 79_200),  # GPT-OSS: 128 experts, 4 used
    ],
)
def test_data_parallel_floor(
    machine: tuple[float, float], axes: int, sparsity: float, tokens: float
) -> None:
    found = data_parallel.tokens_per_device_floor(*machine, axes, sparsity)
    assert found == pytest.approx(tokens)


@pytest.mark.parametrize(("flops", "tokens"), [(4.46e14, 71_360), (4.59e14, 73_440)])
def test_pod_floor(flops: float, tokens: float) -> None:
    assert data_parallel.pod_tokens_floor(flops, 6.25e9) == pytest.approx(tokens)


def test_scaling_book_batch_and_chips() -> None:
    floor = data_parallel.tokens_per_device_floor(*V5P, 3)
    assert floor * 8960 == pytest.approx(7.6e6, rel=0.005)
    assert 16e6 / floor == pytest.approx(18_823, abs=1)
    assert 40e6 / floor == pytest.approx(47_000, rel=0.005)


@pytest.mark.parametrize(
    ("ffn", "machine", "degree"),
    [
        (28_672, H100_NODE, 13.0),
        (30_000, V5P, 11.8),
        (50_000, V5P, 19.6),
        (28_672, H100_NET, 28_672 / 2475),
    ],
)
def test_tensor_limit(ffn: float, machine: tuple[float, float], degree: float) -> None:
    assert tensor.tensor_degree_limit(ffn, *machine) == pytest.approx(degree, abs=0.05)


def test_mixed_mesh() -> None:
    data, split = combined.optimal_mesh(49_152, 32_768, 64, 2, 1)
    assert data == pytest.approx(13.86, abs=0.005)
    assert data * split == pytest.approx(64)
    assert combined.optimal_mesh(4.19e6, 28_672, 8960, 2, 1)[0] == pytest.approx(1618, abs=1)


@pytest.mark.parametrize(
    ("ffn", "tokens"), [(32_768, 99.2), (28_672, 113.4), (13_824, 235.2), (30_000, 108.4)]
)
def test_mixed_floor(ffn: float, tokens: float) -> None:
    found = combined.mixed_floor(2550, ffn, 2, 1)
    assert found == pytest.approx(tokens, abs=0.05)
    assert combined.mixed_floor(2550, ffn, 2, 1, serial=True) == 4 * found
    assert combined.mixed_floor(2550, ffn, 1, 2) == found
    assert combined.mixed_floor(2550, ffn, 2, 2) == found / 2
    assert combined.mixed_floor(2550, ffn) == 2 * found


def test_mixed_mesh_is_optimal_and_floor_is_where_it_breaks_even() -> None:
    b, d, f, n, mx, my = 4.19e6, 8192, 28_672, 8960, 2, 1
    c, w = V5P

    def comm_s(data: float) -> float:
        return max(4 * d * f / ((n / data) * w * mx), 4 * b * d / (data * w * my))

    best, _ = combined.optimal_mesh(b, f, n, mx, my)
    # brute force over meshes: nothing beats it
    assert min(comm_s(x) for x in range(50, 8000, 10)) >= comm_s(best) * (1 - 1e-9)
    math_s = 4 * b * d * f / (n * c)
    assert combined.mixed_ratio(b, f, n, c / w, mx, my) == pytest.approx(math_s / comm_s(best))
    floor = combined.mixed_floor(c / w, f, mx, my)
    assert combined.mixed_ratio(floor * n, f, n, c / w, mx, my) == pytest.approx(1)


def test_layer_costs_give_the_conditions() -> None:
    b, d, f, x = 2550.0 * 64, 8192, 28_672, 64
    c, w = V5P
    dp = combined.layer_costs("dp", b, d, f, data=x)
    assert dp.backward_flops / c == pytest.approx(dp.backward_bytes / w)
    fsdp = combined.layer_costs("fsdp", b, d, f, data=x)
    assert fsdp.forward_flops / c == pytest.approx(fsdp.forward_bytes / w)
    y = 28_672 * w / c
    tp = combined.layer_costs("tp", b, d, f)
    assert tp.forward_flops / y / c == pytest.approx(tp.forward_bytes / w)
    mixed = combined.layer_costs("fsdp+tp", b, d, f, 64, 8)
    assert mixed.forward_bytes == 4 * b * d / 64 + 4 * d * f / 8
    assert mixed.backward_bytes == 2 * mixed.forward_bytes
    assert mixed.forward_flops == 4 * b * d * f / (64 * 8)
    assert mixed.backward_flops == 2 * mixed.forward_flops
    assert (tp.forward_bytes, tp.backward_bytes) == (4 * b * d, 4 * b * d)
    assert (dp.forward_bytes, fsdp.backward_bytes) == (0, 8 * d * f)
    with pytest.raises(ValueError, match="fsdp"):
        combined.layer_costs("zero", b, d, f)


@pytest.mark.parametrize(
    ("flops", "rate", "tokens"),
    [  # Ring Attention (arXiv 2310.01889), table 2: A100 NVLink and InfiniBand, TPU v3, v4, v5e
        (312e12, 300e9, 1040),
        (312e12, 12.5e9, 24_960),
        (123e12, 112e9, 1098),
        (275e12, 268e9, 1026),
        (196e12, 186e9, 1054),
    ],
)
def test_ring_attention_blocks(flops: float, rate: float, tokens: float) -> None:
    found = context.ring_block_floor(flops, rate)
    assert found == pytest.approx(tokens, abs=0.5)
    assert context.ring_block_floor(flops, rate, 1 / 8, causal=True) == pytest.approx(found / 4)


def test_llama_3_context_parallelism() -> None:
    # L3 405B at 128k tokens, CP16, TP8: 537 MB of keys and values a layer, 1.26 against 4.45 ms
    dims, s = find_model("llama3-405b"), 131_072
    gather, attention = context.gather_times_s(
        s, (dims.heads, dims.kv_heads), dims.head_dim, (16, 8), 989e12, 50e9
    )
    assert 4 * s * dims.kv_heads * dims.head_dim == pytest.approx(537e6, rel=0.001)
    assert gather == pytest.approx(1.26e-3, rel=0.005)
    assert attention == pytest.approx(4.45e-3, rel=0.005)
    assert gather / (gather + attention) == pytest.approx(0.22, abs=0.005)


# ---- volumes ----------------------------------------------------------------------------------


def test_ddp_llama_3_8b_on_a_node() -> None:
    # bf16 gradients: 28.1 GB on the wire, 62.5 ms of NVLink; a 25 MiB bucket 102 us
    rows = data_parallel.ddp_traffic(parameters(find_model("llama3-8b")).total, 8, 2)
    assert wired(rows) == pytest.approx(28.1e9, rel=0.001)
    assert wired(rows) / 450e9 == pytest.approx(62.5e-3, rel=0.001)
    edge = next(row for row in rows if row.mark is Mark.EDGE)
    wire = wire_bytes("all_reduce", edge.size_bytes, 8)
    assert wire is not None
    assert edge.calls == 1
    assert wire / 450e9 == pytest.approx(102e-6, rel=0.005)
    assert sum(row.calls for row in rows) == math.ceil(2 * 8_030_261_248 / (25 * 2**20))


def test_fsdp_unit_of_llama_3_8b() -> None:
    # 218.1M parameters, 436 MB; all-gather 848 us, fp32 reduce-scatter 1.70 ms on NVLink
    unit = parameters(find_model("llama3-8b")).dense_layer
    assert unit == pytest.approx(218.1e6, rel=0.001)
    assert unit * 2 == pytest.approx(436e6, rel=0.001)
    rows = data_parallel.fsdp_traffic([unit], 8, 2, 4)
    times = {row.op: wired((row,)) / 450e9 for row in rows}
    assert times["all_gather"] == pytest.approx(848e-6, rel=0.001)
    assert times["reduce_scatter"] == pytest.approx(1.70e-3, rel=0.005)


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp_volume_is_brute_force_over_units(reshard: bool, microbatches: int) -> None:
    units, shards = [10e6, 20e6, 20e6, 20e6, 30e6], 16
    rows = data_parallel.fsdp_traffic(units, shards, 2, 4, microbatches, reshard=reshard)
    by_hand = 0.0
    for _ in range(microbatches):
        for unit in units:
            gathers = 2 if reshard else 1
            by_hand += (shards - 1) / shards * unit * (2 * gathers + 4)
    assert wired(rows) == pytest.approx(by_hand)
    edges = [row for row in rows if row.mark is Mark.EDGE]
    assert sorted((row.op, row.phase, row.calls) for row in edges) == [
        ("all_gather", "forward", 1),
        ("reduce_scatter", "backward", 1),
    ]
    gathered = sum(row.calls for row in rows if row.op == "all_gather")
    assert gathered == len(units) * microbatches * (2 if reshard else 1)


def test_zero_stages_move_what_the_paper_says() -> None:
    # ZeRO (arXiv 1910.02054) section 7: stages 1 and 2 move 2 P elements, stage 3 moves 3 P
    p, n = 1e9, 64
    share = (n - 1) / n
    assert wired(data_parallel.ddp_traffic(p, n, 2)) / 2 / p == pytest.approx(2 * share)
    assert wired(data_parallel.zero_traffic(p, n, 2, 2)) / 2 / p == pytest.approx(2 * share)
    assert wired(data_parallel.fsdp_traffic([p], n, 2, 2)) / 2 / p == pytest.approx(3 * share)
    twice = data_parallel.zero_traffic(p, n, 2, 4, scatters=2)
    assert wired(twice, "reduce_scatter") == pytest.approx(2 * share * 4 * p)


def test_hsdp_volume() -> None:
    units, s, r = [10e6] * 4, 8, 4
    rows = data_parallel.hsdp_traffic(units, s, r, 2, 4)
    expected = (s - 1) / s * (2 * 2 + 4) * 40e6 + 2 * (r - 1) / r * 4 * 40e6 / s
    assert wired(rows) == pytest.approx(expected)
    assert sum(row.calls for row in rows if row.axis == "dp_replicate") == 4


def test_pods_of_llama_3_70b() -> None:
    # 8960 chips a pod, bf16 gradients over 6.25 GB/s a chip: 2.5 ms with two pods, 5 with many
    assert data_parallel.pod_traffic_s(70.5e9, 2, 8960, 2, 6.25e9) == pytest.approx(
        2.5e-3, rel=0.01
    )
    assert data_parallel.pod_traffic_s(70.5e9, 10_000, 8960, 2, 6.25e9) == pytest.approx(
        5.0e-3, rel=0.01
    )


def test_tensor_parallel_elements() -> None:
    # arXiv 2104.04473: 8·b·s·h·(t-1)/t elements a layer
    b, s, h, t = 2, 2048, 12_288, 8
    plain = tensor.tp_traffic(b * s * h * 2, 1, t)
    assert wired(plain) / 2 == pytest.approx(8 * b * s * h * (t - 1) / t)
    sharded = tensor.sp_traffic(b * s * h * 2, 1, t, regather=False)
    assert wired(sharded) == pytest.approx(wired(plain))
    again = tensor.sp_traffic(b * s * h * 2, 1, t, regather=True)
    assert wired(again) - wired(sharded) == pytest.approx(2 * (t - 1) / t * b * s * h * 2)


def test_tensor_parallel_llama_3_70b() -> None:
    # TP8, 8192 tokens, H100: messages of 134 MB, 261 us each, 2.09 ms a layer, 28 % exposed
    size = 8192 * 8192 * 2
    assert size == pytest.approx(134e6, rel=0.002)
    layer = tensor.tp_layer_comm_s(8192, 8192, 8, 450e9)
    assert layer == pytest.approx(2.09e-3, rel=0.002)
    assert layer / 8 == pytest.approx(261e-6, rel=0.002)
    rows = tensor.sp_traffic(size, 1, 8, regather=False)
    assert wired(rows) / 450e9 == pytest.approx(layer)
    weights = parameters(find_model("llama3-70b")).dense_layer
    matmul = 6 * weights * 8192 / 8 / 989e12
    assert matmul == pytest.approx(5.32e-3, rel=0.005)
    assert layer / (layer + matmul) == pytest.approx(0.28, abs=0.005)


def test_ring_and_gathered_keys_move_the_same_forward() -> None:
    width, tokens, n = 1024, 131_072, 16
    ring = context.ring_traffic(width, tokens / n, 1, n)
    gathered = context.gather_traffic(width, tokens, 1, n)
    assert wired((ring[0],)) == pytest.approx(wired((gathered[0],)))
    assert ring[0].mark is Mark.HIDEABLE
    assert gathered[0].mark is Mark.CRITICAL


def test_ulysses_elements() -> None:
    # arXiv 2309.14509: 4·N·h/P elements for MHA, forward
    n, tokens, h = 8, 65_536, 4096
    rows = context.ulysses_traffic(h, h, tokens / n, 1, n)
    forward = [row for row in rows if row.phase == "forward"]
    assert sum(row.calls * row.size_bytes for row in forward) / 2 == pytest.approx(
        4 * tokens * h / n
    )


def test_distinct_targets_by_enumeration() -> None:
    experts, k, groups = 8, 3, 4
    chosen = list(itertools.combinations(range(experts), k))
    mean = sum(len({e // 2 for e in pick}) for pick in chosen) / len(chosen)
    assert expert.distinct_targets(experts, k, groups) == pytest.approx(mean)
    assert expert.distinct_targets(256, 8, 64) == pytest.approx(7.68, abs=0.005)


def test_expert_bytes_of_the_public_deepseek_trace() -> None:
    # EP64 over 8 nodes, 4096 tokens: fp8 with scales 106 MB and 2.12 ms, bf16 205.5 MB and 4.11 ms
    copies = expert.remote_nodes(4, 8)
    assert copies == 3.5
    sent = expert.dispatch_bytes(4096, copies, 7168, 1, 224)
    back = expert.dispatch_bytes(4096, copies, 7168, 2)
    assert sent == pytest.approx(106e6, rel=0.002)
    assert sent / 50e9 == pytest.approx(2.12e-3, rel=0.002)
    assert back == pytest.approx(205.5e6, rel=0.001)
    assert back / 50e9 == pytest.approx(4.11e-3, rel=0.001)


def test_expert_condition_switches_where_the_book_says() -> None:
    # k > Z/8: F > alpha(Z-8)/k; Z well above k: F > 8·alpha
    alpha = 2475
    edge = alpha * (16 - 8) / 4
    assert expert.expert_compute_bound(edge * 1.01, 4, 16, alpha)
    assert not expert.expert_compute_bound(edge * 0.99, 4, 16, alpha)
    assert expert.expert_compute_bound(8 * alpha, 4, 4096, alpha)
    assert not expert.expert_compute_bound(8 * alpha * 0.99, 4, 4096, alpha)


# ---- exposed minimum --------------------------------------------------------------------------


def test_exposed_minimum_by_parts() -> None:
    costs = [
        Cost(Mark.CRITICAL, 2.0, 3),
        Cost(Mark.EDGE, 0.5),
        Cost(Mark.DECOMPOSED, 4.0, 1, matmul_s=4.0, chunks=4),
        Cost(Mark.HIDEABLE, 3.0, 2, "node"),
        Cost(Mark.HIDEABLE, 5.0, 1, "node"),
        Cost(Mark.HIDEABLE, 7.0, 1, "net"),
    ]
    fixed = 6.0 + 0.5 + 1.0
    assert exposure.exposed_minimum_s(costs, {"node": 11, "net": 7}) == fixed
    # links run side by side: the larger overflow counts, not the sum
    assert exposure.exposed_minimum_s(costs, {"node": 10, "net": 4}) == fixed + 3
    assert exposure.exposed_minimum_s(costs, {"node": 5, "net": 4}) == fixed + 6
    assert exposure.exposed_minimum_s(costs[:3], {}) == fixed
    assert exposure.exposed_minimum_s([], {}) == 0


def test_decomposition_and_splits() -> None:
    assert exposure.decomposed_exposed_s(4.0, 8.0, 8) == 0
    assert exposure.decomposed_exposed_s(4.0, 4.0, 4) == 1
    assert exposure.split_exposed_s(4.0, 4) == 1
    assert exposure.step_bound_s(10.0, 2.0, 1.18) == pytest.approx(13.8)


def test_fsdp_step_played_against_the_minimum() -> None:
    """Prefetching FSDP unit by unit: compute longer than communication exposes only the edges."""
    units, gather, scatter, forward, backward = 6, 1.0, 2.0, 3.0, 6.0
    link = clock = exposed = 0.0
    ready = []
    for _ in range(units):  # forward: the link gathers ahead
        link += gather
        ready.append(link)
    for unit in range(units):
        exposed += max(0.0, ready[unit] - clock)
        clock = max(clock, ready[unit]) + forward
    link = max(link, clock - forward)  # backward gathers start under the last forward
    for _ in range(units):
        link = max(link, clock - backward) + gather
        exposed += max(0.0, link - clock)
        clock = max(clock, link) + backward
        link = max(link, clock) + scatter
    exposed += link - clock
    costs = [
        Cost(Mark.EDGE, gather),
        Cost(Mark.EDGE, scatter),
        Cost(Mark.HIDEABLE, gather, 2 * units - 1, "net"),
        Cost(Mark.HIDEABLE, scatter, units - 1, "net"),
    ]
    window = units * (forward + backward)
    assert exposed >= exposure.exposed_minimum_s(costs, {"net": window})
    assert exposure.exposed_minimum_s(costs, {"net": window}) == gather + scatter


# ---- plans ------------------------------------------------------------------------------------


def plan(model: str = "llama3-70b", options: Options | None = None, **mesh: int) -> Plan:
    return Plan(find_model(model), 8192, 1, 4, mesh, options=options or Options())


def test_every_strategy_word_has_traffic() -> None:
    mesh = {"dp_replicate": 2, "dp_shard": 4, "tp": 4, "cp": 2, "pp": 2, "ep": 8}
    made = plan("mixtral-8x7b", **mesh)
    for word in catalog.strategies():
        rows = traffic(word, made)
        assert rows, word
        allowed = {axis.axis for axis in catalog.strategies()[word].axes}
        assert {row.axis for row in rows} <= allowed, word
        for row in rows:
            known = next(a for a in catalog.strategies()[word].axes if a.axis == row.axis)
            assert row.op in known.ops, (word, row.op)
    with pytest.raises(UsageError, match="words: ddp"):
        traffic("fsdp3", made)


def test_an_axis_of_one_sends_nothing() -> None:
    for word in ("ddp", "fsdp", "tp", "sp", "cp", "ulysses", "pp"):
        assert traffic(word, plan()) == ()
    with pytest.raises(UsageError, match="no experts"):
        traffic("ep", plan())


def test_plan_shards_parameters() -> None:
    total = parameters(find_model("llama3-70b")).total
    assert plan().local_parameters == pytest.approx(total, rel=1e-6)  # the last norm is not a unit
    assert plan(tp=8).local_parameters == pytest.approx(total / 8, rel=1e-6)
    assert len(plan(pp=8).units()) == 10
    mixtral = parameters(find_model("mixtral-8x7b"))
    rest = mixtral.total - mixtral.experts
    assert plan("mixtral-8x7b", ep=8).local_parameters == pytest.approx(
        rest + mixtral.experts / 8, rel=1e-6
    )


def test_context_parallel_plans_divide_heads_and_tokens() -> None:
    made = plan(cp=4, tp=8)  # 64 query and 8 key-value heads of 128, 8192 tokens, 80 layers
    tokens = 8192 / 4
    sizes = {row.size_bytes for row in traffic("ulysses", made)}
    assert sizes == {tokens * 64 * 128 / 8 * 2, tokens * 8 * 128 / 8 * 2}
    assert {row.calls for row in traffic("ulysses", made)} == {2 * 80 * 4}
    ring = {row.phase: row for row in traffic("cp", made)}
    assert ring["forward"].size_bytes == 2 * tokens * 8 * 128 / 8 * 2
    assert ring["backward"].size_bytes == 2 * ring["forward"].size_bytes
    assert ring["forward"].calls == 3 * 80 * 4
    (gathered, _) = traffic("cp", plan(options=Options(ring=False), cp=4, tp=8))
    assert gathered.size_bytes == 4 * ring["forward"].size_bytes


def test_expert_plans_count_layers_and_copies() -> None:
    made = plan("mixtral-8x7b", ep=8, pp=2)
    rows = traffic("ep", made)
    assert [row.op for row in rows] == ["dispatch", "combine"] * 2
    assert {row.size_bytes for row in rows} == {8192 * 2 * 4096 * 2}
    assert {row.calls for row in rows} == {16 * 4}


def test_plan_options_change_marks() -> None:
    hidden = plan(options=Options(async_tensor=True), tp=8)
    assert {row.mark for row in traffic("sp", hidden)} == {Mark.DECOMPOSED, Mark.HIDEABLE}
    gathered = plan(options=Options(ring=False), cp=4)
    assert {row.op for row in traffic("cp", gathered)} == {"all_gather", "reduce_scatter"}
    kept = traffic("fsdp", plan(options=Options(reshard=False), dp_shard=8))
    again = traffic("fsdp", plan(dp_shard=8))
    assert wired(again, "all_gather") == pytest.approx(2 * wired(kept, "all_gather"))


# ---- priced plans -----------------------------------------------------------------------------

H100 = SwitchedLink(8, 450e9, 50e9)


def test_groups_of_a_mesh_by_enumeration() -> None:
    mesh = {"pp": 2, "dp_shard": 3, "tp": 4}
    coordinates = list(itertools.product(range(2), range(3), range(4)))
    for i, axis in enumerate(mesh):
        same = [
            rank
            for rank, at in enumerate(coordinates)
            if all(at[j] == 0 for j in range(3) if j != i)
        ]
        assert group_ranks(mesh, axis) == tuple(same)
    assert group_ranks({**mesh, "ep": 3}, "ep") == (0, 4, 8)
    assert group_ranks({**mesh, "ep": 3}, "dp_shard") == (0, 4, 8)
    assert group_ranks({"dp_shard": 8, "ep": 4}, "ep") == (0, 1, 2, 3)
    assert group_ranks(mesh, "cp") == (0,)


def test_tensor_parallel_step_priced() -> None:
    # LLaMA-3 70B, TP8 in a node: 2.09 ms a layer at the link's rate, all of it critical
    made = Plan(find_model("llama3-70b"), 8192, 1, 1, {"tp": 8}, options=Options(regather=False))
    priced = price(traffic("sp", made), made.mesh, H100)
    assert {row.time.level for row in priced} == {"node"}
    floor = exposure.exposed_minimum_s((row.cost(typical=False) for row in priced), {})
    assert floor == pytest.approx(80 * 2.09e-3, rel=0.01)
    usual = exposure.exposed_minimum_s((row.cost(typical=True) for row in priced), {})
    assert 1.1 * floor < usual < 5 * floor


def test_fsdp_across_nodes_hides_all_but_its_edges() -> None:
    made = Plan(find_model("llama3-8b"), 8192, 2, 1, {"dp_shard": 64})
    priced = price(traffic("fsdp", made), made.mesh, H100)
    assert {row.time.level for row in priced} == {"network"}
    costs = [row.cost(typical=False) for row in priced]
    edges = sum(cost.time_s for cost in costs if cost.mark is Mark.EDGE)
    hideable = sum(cost.time_s * cost.calls for cost in costs if cost.mark is Mark.HIDEABLE)
    assert exposure.exposed_minimum_s(costs, {"network": hideable}) == pytest.approx(edges)
    assert exposure.exposed_minimum_s(costs, {"network": 0}) == pytest.approx(edges + hideable)
    # 2+2+4 bytes a parameter; 8 nodes: 7/8 of them through 8 ports of 50 GB/s binds
    by_hand = 8 * parameters(find_model("llama3-8b")).total * max(7 / 8 / 450e9, 7 / 8 / 400e9)
    assert edges + hideable == pytest.approx(by_hand, rel=0.01)


def test_pipeline_messages_go_to_the_next_stage() -> None:
    made = Plan(find_model("llama3-405b"), 8192, 1, 16, {"pp": 16, "tp": 8})
    priced = price(traffic("pp", made), made.mesh, H100)
    assert all(row.time.level == "network" for row in priced)
    assert priced[0].time.t_spec_ns == pytest.approx(0.67e6, rel=0.01)
