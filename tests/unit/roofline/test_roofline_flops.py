"""FLOPs, MFU and HFU against published pairs of throughput and TFLOP/s."""

from __future__ import annotations

import pytest
from roofline_models import megatron_gpt

from analyzer.roofline import compute
from analyzer.roofline.flops import (
    Convention,
    ImplausibleFigureError,
    Recompute,
    convention_flops_per_token,
    effective_sequence,
    executed_flops_per_token,
    forward_flops_per_token,
    layer_forward_flops,
    model_flops_per_token,
    training_time_s,
    utilization,
)
from analyzer.roofline.model_dims import find_model, parameters


@pytest.mark.parametrize(
    ("model", "sequence", "causal", "flops"),
    [
        ("llama3-70b", 8192, True, 449_230_454_784),
        ("llama3-70b", 4096, True, 433_124_327_424),
        ("llama3-405b", 8192, True, 2_523_980_857_344),
        ("llama3-8b", 8192, True, 51_471_998_976),
        ("llama3-8b", 8192, False, 57_914_449_920),
    ],
)
def test_golden(model: str, sequence: int, causal: bool, flops: int) -> None:
    assert model_flops_per_token(find_model(model), sequence, causal=causal) == flops


@pytest.mark.parametrize(("causal", "flops"), [(False, 2.8115e11), (True, 2.5045e11)])
def test_golden_deepseek_v3(causal: bool, flops: float) -> None:
    found = model_flops_per_token(find_model("deepseek-v3"), 4096, causal=causal)
    assert found == pytest.approx(flops, rel=0.005)


@pytest.mark.parametrize(
    ("model", "sequence", "tokens_per_s", "tflops", "tolerance"),
    [  # Megatron-Bridge performance summary: tokens/s and TFLOP/s of one GPU
        ("llama3-70b", 8192, 1633, 734, 0.002),
        ("llama3-70b", 4096, 1638, 710, 0.002),
        ("llama3-405b", 8192, 326, 822, 0.002),
        ("llama3-405b", 8192, 843, 2129, 0.002),
        ("deepseek-v3", 4096, 4969, 1292, 0.003),
    ],
)
def test_megatron_bridge_pairs(
    model: str, sequence: int, tokens_per_s: float, tflops: float, tolerance: float
) -> None:
    published = tflops * 1e12 / tokens_per_s
    dims = find_model(model)
    by_gemm = convention_flops_per_token(dims, sequence, Convention.MEGATRON)
    assert by_gemm == pytest.approx(published, rel=tolerance)
    in_closed_form = model_flops_per_token(dims, sequence, causal=True, mtp=True)
    assert in_closed_form == pytest.approx(by_gemm, rel=1e-3)


def test_deepseek_v3_both_conventions() -> None:
    # arXiv 2505.09343, table 4: 272.80e9 tokens a day on 2048 H800, 432 and 385 TFLOP/s
    tokens_per_s = 272.80e9 / 86_400
    dims = find_model("deepseek-v3")
    for causal, tflops, mfu in ((False, 432, 0.437), (True, 385, 0.389)):
        flops = model_flops_per_token(dims, 4096, causal=causal)
        assert flops * tokens_per_s / 2048 / 1e12 == pytest.approx(tflops, rel=0.005)
        assert utilization(tokens_per_s, flops, 2048, 989e12) == pytest.approx(mfu, abs=0.0025)


def test_mpt_7b() -> None:
    # llm-foundry benchmarking README: 9670 tokens/s and GPU, 417 TFLOP/s, 42.2 % MFU of an H100
    flops = convention_flops_per_token(find_model("mpt-7b"), 2048, Convention.PALM)
    assert 9670 * flops / 1e12 == pytest.approx(417.5, abs=0.1)
    assert utilization(9670, flops, 1, 989e12) == pytest.approx(0.422, abs=5e-4)


@pytest.mark.parametrize(("tokens_per_s", "mfu"), [(5762, 0.337), (6667, 0.3904)])
def test_torchtitan_llama_8b(tokens_per_s: float, mfu: float) -> None:
    # torchtitan, LLaMA 3.1 8B at 8192 tokens: "33 % to 39 %" of an H100
    flops = convention_flops_per_token(find_model("llama3-8b"), 8192, Convention.TORCHTITAN)
    assert utilization(tokens_per_s, flops, 1, 989e12) == pytest.approx(mfu, abs=5e-4)


K22 = [  # arXiv 2205.05198, tables 3 and 5: heads, hidden, layers, batch, GPUs, s, MFU, HFU
    (64, 6144, 48, 4, 8, 1.10, 0.415, 0.437),
    (96, 12288, 96, 64, 64, 13.75, 0.514, 0.528),
    (128, 20480, 105, 280, 280, 37.83, 0.560, 0.570),
    (160, 25600, 128, 512, 512, 71.49, 0.563, 0.570),
]


@pytest.mark.parametrize(
    ("heads", "hidden", "layers", "batch", "gpus", "seconds", "mfu", "hfu"), K22
)
def test_k22_mfu_and_hfu(
    heads: int, hidden: int, layers: int, batch: int, gpus: int, seconds: float, mfu: float,
    hfu: float,
) -> None:  # fmt: skip
    dims = megatron_gpt(heads, hidden, layers)
    tokens_per_s = batch * 2048 / seconds
    flops = convention_flops_per_token(dims, 2048, Convention.K22)
    assert utilization(tokens_per_s, flops, gpus, 312e12) == pytest.approx(mfu, rel=0.005)
    hardware = convention_flops_per_token(dims, 2048, Convention.K22_HARDWARE)
    assert utilization(tokens_per_s, hardware, gpus, 312e12) == pytest.approx(hfu, rel=0.005)
    # executed: the attention core's forward once more, a third of what the paper's equation adds
    model = model_flops_per_token(dims, 2048, causal=False)
    executed = executed_flops_per_token(dims, 2048, recompute=Recompute.SELECTIVE, causal=False)
    assert executed - model == pytest.approx((hardware - flops) / 3)


def test_sc21_counts_full_recomputation() -> None:
    dims = megatron_gpt(96, 12288, 96)
    executed = executed_flops_per_token(dims, 2048, recompute=Recompute.FULL, causal=False)
    theirs = convention_flops_per_token(dims, 2048, Convention.SC21)
    assert executed == pytest.approx(theirs, rel=1e-3)  # theirs leaves norms and biases out
    model = convention_flops_per_token(dims, 2048, Convention.K22)
    assert executed / model == pytest.approx(4 / 3, rel=0.01)


@pytest.mark.parametrize(
    ("parameters_b", "tokens", "gpus", "tflops", "days"),
    [(175, 300e9, 1024, 140, 33.9), (1008, 450e9, 3072, 163, 83.9)],
)
def test_sc21_training_time(
    parameters_b: float, tokens: float, gpus: int, tflops: float, days: float
) -> None:
    time_s = training_time_s(parameters_b * 1e9, tokens, gpus, tflops * 1e12, Recompute.FULL)
    assert time_s / 86_400 == pytest.approx(days, abs=0.05)


def test_scaling_book_llama_70b_run() -> None:
    # scaling-book, LLaMA 3 page: 15e12 tokens on 8960 v5p at 40 %: 44 days; one chip 435 years
    assert 6 * 70e9 * 15e12 == 6.3e24
    assert training_time_s(70e9, 15e12, 8960, 4.59e14 * 0.4) / 86_400 == pytest.approx(
        44.3, abs=0.1
    )
    assert training_time_s(70e9, 15e12, 1, 4.59e14) / 86_400 / 365 == pytest.approx(435, abs=1)


def test_forward_is_a_third_and_operations_add_up() -> None:
    for name in ("llama3-8b", "mixtral-8x7b", "deepseek-v3", "qwen2-57b-a14b"):
        dims = find_model(name)
        forward = forward_flops_per_token(dims, 4096, causal=False)
        train = model_flops_per_token(dims, 4096, causal=False)
        assert 3 * forward == pytest.approx(train, rel=1e-3)  # norms and biases are in 6·P only
        assert 3 * forward <= train


@pytest.mark.parametrize(
    ("name", "not_multiplied"),
    [  # norms, and biases: what 6·P counts and no matmul does
        ("llama3-8b", 65 * 4096),
        ("mixtral-8x7b", 65 * 4096),
        ("deepseek-v3", 123 * 7168 + 61 * (1536 + 512)),
        ("deepseek-v2-lite", 55 * 2048 + 27 * 512),
        ("qwen2-57b-a14b", 57 * 3584 + 28 * (28 + 2 * 4) * 128),
        ("qwen3-30b-a3b", 97 * 2048 + 48 * 2 * 128),
    ],
)
def test_operations_are_the_weights_exactly(name: str, not_multiplied: int) -> None:
    dims = find_model(name)
    weights_only = forward_flops_per_token(dims, 0, causal=False)
    assert weights_only == 2 * (parameters(dims).matmul - not_multiplied)


def test_operations_of_one_layer() -> None:
    found = layer_forward_flops(find_model("llama3-70b"), 8192, causal=False)
    d, heads, kv, h, f = 8192, 64, 8, 128, 28_672
    assert found.qkv == 2 * d * (heads + 2 * kv) * h
    assert found.attention == 4 * 8192 * heads * h
    assert found.out == 2 * heads * h * d
    assert found.mlp == 6 * d * f
    assert found.router == 0
    sparse = layer_forward_flops(find_model("deepseek-v3"), 4096, causal=False, moe=True)
    assert sparse.mlp == 6 * 7168 * 2048 * 9
    assert sparse.router == 2 * 7168 * 256
    assert sparse.attention == 2 * 4096 * 128 * (128 + 64 + 128)
    assert sparse.out == 2 * 128 * 128 * 7168


def test_brute_force_attention_of_one_layer() -> None:
    # multiply-adds of scores and weighted values, pair by pair
    dims = find_model("llama3-8b")
    s = 16
    full = sum(4 * dims.heads * dims.head_dim for _ in range(s) for _ in range(s)) / s
    assert layer_forward_flops(dims, s, causal=False).attention == full
    assert layer_forward_flops(dims, s, causal=True).attention == full / 2


def test_packed_documents() -> None:
    assert effective_sequence([4096]) == 4096
    assert effective_sequence([1024] * 4) == 1024
    lengths = [100, 300, 600]
    pairs = sum(n * n for n in lengths)
    assert effective_sequence(lengths) * sum(lengths) == pytest.approx(pairs)


def test_flash_backward_is_two_and_a_half_forwards() -> None:
    dims = find_model("llama3-8b")
    plain = executed_flops_per_token(dims, 8192, recompute=Recompute.NONE, causal=True)
    flash = executed_flops_per_token(
        dims, 8192, recompute=Recompute.NONE, causal=True, flash_backward=True
    )
    attention = layer_forward_flops(dims, 8192, causal=True).attention * dims.layers
    assert flash - plain == pytest.approx(0.5 * attention)


def test_more_than_everything_is_an_error() -> None:
    with pytest.raises(ImplausibleFigureError, match="above 100 %"):
        utilization(1e6, 1e12, 1, 989e12)


def test_attention_share_of_llama_405b() -> None:
    # full counting, GQA and F = 3.25 D: 8.3 % at 8192 tokens, 133 % at 131072
    dims = find_model("llama3-405b")
    for sequence, share in ((8192, 0.083), (131_072, 1.33)):
        attention = 12 * dims.layers * dims.heads * dims.head_dim * sequence
        assert attention / (6 * parameters(dims).matmul) == pytest.approx(share, rel=0.01)


def test_attention_dominates_above_eight_widths() -> None:
    # F = 4D gated, MHA: weights 16·D^2·2 FLOPs a token, attention 4·s·D forward
    d, s = 4096, 8 * 4096
    weights = 2 * (4 * d * d + 3 * d * 4 * d)
    assert compute.attention_share(s, d) == 1
    assert 4 * s * d / weights == pytest.approx(1)


def test_compute_roofline() -> None:
    # scaling-book: rows a bf16 matmul needs: v5e 240, H100 295, B200 281
    for c, w, rows in ((1.97e14, 8.2e11, 240), (990e12, 3.35e12, 295), (2250e12, 8e12, 281)):
        assert compute.machine_balance(c, w) == pytest.approx(rows, rel=0.005)
    flops = compute.gemm_flops(256, 8192, 8192)
    assert flops == 2 * 256 * 8192 * 8192
    traffic = compute.gemm_bytes(256, 8192, 8192)
    assert traffic == 2 * (256 * 8192 + 8192 * 8192 + 256 * 8192)
    assert compute.attainable_flops_per_s(flops, traffic, 990e12, 3.35e12) == pytest.approx(
        flops / traffic * 3.35e12
    )
    assert compute.attainable_flops_per_s(1e15, 1, 990e12, 3.35e12) == 990e12
    assert compute.attainable_flops_per_s(1e15, 0, 990e12, 3.35e12) == 990e12


def test_overlap_waves_and_sm_tax() -> None:
    assert compute.overlap_efficiency(4.0, 1.0, 4.0) == 1
    assert compute.overlap_efficiency(4.0, 1.0, 5.0) == 0
    assert compute.wave_efficiency(132, 132) == 1
    assert compute.wave_efficiency(133, 132) == pytest.approx(133 / 264)
    # DeepSeek-V3's public trace: 20 of 132 SMs communicate
    assert compute.sm_tax(20, 132) == pytest.approx(1.18, abs=0.005)
