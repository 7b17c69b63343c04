"""Memory of states and activations against the ZeRO, Megatron and scaling-book tables."""

from __future__ import annotations

import pytest

from analyzer.roofline import activations, combined, data_parallel, memory
from analyzer.roofline.activations import LayerInput, Saving
from analyzer.roofline.memory import ACCOUNTINGS
from analyzer.roofline.model_dims import find_model, parameters

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("zero", 16),
        ("bf16-states", 12),
        ("megatron", 18),
        ("megatron-fp16", 20),
        ("megatron-fp32", 16),
        ("scaling-book", 10),
        ("fsdp", 16),
    ],
)
def test_accountings(name: str, total: float) -> None:
    assert ACCOUNTINGS[name].total == total
    assert memory.state_bytes(1, ACCOUNTINGS[name], 0, 8) == total
    assert memory.state_bytes(1, ACCOUNTINGS[name], 3, 8) == total / 8


@pytest.mark.parametrize(
    ("name", "stage", "fixed", "sharded"),
    [
        ("zero", 1, 4, 12),
        ("zero", 2, 2, 14),
        ("bf16-states", 1, 4, 8),
        ("bf16-states", 2, 2, 10),
        ("megatron", 1, 6, 12),
        ("megatron-fp16", 1, 4, 16),
        ("megatron-fp32", 1, 8, 8),
    ],
)
def test_stages(name: str, stage: int, fixed: float, sharded: float) -> None:
    found = memory.state_bytes(1, ACCOUNTINGS[name], stage, 64)
    assert found == pytest.approx(fixed + sharded / 64)


def test_largest_models_on_eight_a100() -> None:
    found = [memory.largest_model(80e9, ACCOUNTINGS["bf16-states"], z, 8) / 1e9 for z in range(4)]
    assert found == pytest.approx([6.67, 16, 24.6, 53.3], abs=0.05)


def test_zero_paper_figure_1() -> None:
    # 7.5B parameters, 64 ranks: 120, 31.4, 16.6 and 1.9 GB
    found = [memory.state_bytes(7.5e9, ACCOUNTINGS["zero"], z, 64) / 1e9 for z in range(4)]
    assert found == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)


def test_unknown_stage() -> None:
    with pytest.raises(ValueError, match="0 to 3"):
        memory.state_bytes(1, ACCOUNTINGS["zero"], 4, 8)


def test_scaling_book_largest_on_v5p() -> None:
    assert memory.largest_model(96e9, ACCOUNTINGS["scaling-book"], 0, 1) / 1e9 == pytest.approx(9.6)


# ---- activations ------------------------------------------------------------------------------

GPT3 = LayerInput(sequence=2048, sequences=1, hidden=12_288, heads=96)
MT_NLG = LayerInput(sequence=2048, sequences=1, hidden=20_480, heads=128)


def test_attention_core_share() -> None:
    # arXiv 2205.05198: 5as/h is 80 for GPT-3 and 64 for MT-NLG, which saves 70 % and 65 %
    for layer, scores, saved in ((GPT3, 80, 0.70), (MT_NLG, 64, 0.65)):
        assert layer.scores == scores
        kept = activations.layer_activation_bytes(
            layer, 8, sequence_parallel=True, saving=Saving.SELECTIVE
        )
        whole = activations.layer_activation_bytes(
            layer, 8, sequence_parallel=True, saving=Saving.NONE
        )
        assert 1 - kept / whole == pytest.approx(saved, abs=0.005)


@pytest.mark.parametrize(
    ("tensor", "sequence_parallel", "saving", "gib"),
    [
        (1, False, Saving.NONE, 2.67),
        (8, False, Saving.NONE, 0.539),
        (8, True, Saving.NONE, 0.334),
        (8, True, Saving.SELECTIVE, 0.0996),
        (8, True, Saving.FULL, 0.0469),
    ],
)
def test_gpt3_layer(tensor: int, sequence_parallel: bool, saving: Saving, gib: float) -> None:
    found = activations.layer_activation_bytes(
        GPT3, tensor, sequence_parallel=sequence_parallel, saving=saving
    )
    assert found / GIB == pytest.approx(gib, rel=0.002)


def test_output_tensors_of_the_530b_model() -> None:
    # arXiv 2205.05198, appendix B: 2.73 GiB with 35 stages, one sequence a micro-batch
    layer = LayerInput(sequence=2048, sequences=1, hidden=20_480, heads=128)
    assert activations.output_tensor_bytes(layer, 35) / GIB == pytest.approx(2.73, abs=0.005)


def test_first_stage_holds_a_whole_model() -> None:
    for stages in (1, 4, 8):
        assert activations.stage_activation_bytes(1.0, 96, stages) == pytest.approx(96)
    assert activations.stage_activation_bytes(1.0, 96, 8, rank=7) == 12
    interleaved = activations.stage_activation_bytes(1.0, 96, 8, chunks=3)
    assert interleaved == pytest.approx(96 * (1 + 7 / 24))  # arXiv 2205.05198, section 4.2.3


def test_llama_layer_tally() -> None:
    dims = find_model("llama3-8b")
    d, f, q, kv = 4096, 14_336, 4096, 1024
    tensors = {
        "input of the first norm": d, "input of the projections": d, "queries": q, "keys": kv,
        "values": kv, "attention output": q, "input of the second norm": d,
        "input of gate and up": d, "gate": f, "up": f, "their product": f,
    }  # fmt: skip
    found = activations.llama_activation_bytes(dims, 8192)
    assert found == 2 * 8192 * sum(tensors.values())
    assert activations.llama_activation_bytes(dims, 8192, 8) == found / 8


def test_logits_of_llama_3() -> None:
    assert activations.logits_bytes(8192, 128_256) == 4_202_692_608
    assert activations.logits_bytes(8192, 128_256, 8) == 4_202_692_608 / 8


def test_kv_cache() -> None:
    # scaling-book: 8k tokens, 64 layers, 8192 wide, int8: 8 GiB
    assert memory.kv_cache_bytes(8192, 64, 8192, 1) == 8 * GIB


# ---- allocator --------------------------------------------------------------------------------


def test_allocator_rounding() -> None:
    mib = 2**20
    assert [memory.allocation_bytes(n) for n in (1, 512, 513)] == [512, 512, 1024]
    sizes = (1, mib, mib + 1, 10 * mib - 512, 10 * mib, 10 * mib + 1, 23 * mib)
    assert [memory.segment_bytes(n) // mib for n in sizes] == [2, 2, 20, 20, 10, 12, 24]
    assert memory.fragmentation(60e9, 80e9) == 0.25
    assert memory.fsdp_working_bytes(1e9, 2, 4) == 8e9


# ---- scaling-book, training chapter, LLaMA-2 13B on TPU v5p -----------------------------------

LLAMA_13B = parameters(find_model("llama2-13b")).total
D, F, L = 5120, 13_824, 40


def test_scaling_book_question_1() -> None:
    assert pytest.approx(13.0, abs=0.05) == LLAMA_13B / 1e9


def test_scaling_book_question_2() -> None:
    states = memory.state_bytes(LLAMA_13B, ACCOUNTINGS["scaling-book"], 0, 1)
    assert states == pytest.approx(130e9, rel=0.002)
    kept = activations.checkpoint_bytes(16e6, L, D + 2 * F)
    assert kept == pytest.approx(42e12, rel=0.005)


def test_scaling_book_question_3() -> None:
    chips, batch, balance = 16**3, 3e6, 2550
    states = memory.state_bytes(LLAMA_13B, ACCOUNTINGS["scaling-book"], 0, 1)
    assert states > 96e9  # pure data parallelism does not fit
    kept = activations.checkpoint_bytes(batch, L, D + 2 * F)
    assert kept == pytest.approx(7.86e12, rel=0.001)
    assert (kept + states) / chips == pytest.approx(1.95e9, rel=0.005)
    floor = data_parallel.tokens_per_device_floor(4.59e14, 1.8e11, 3)
    assert floor * chips == pytest.approx(3.48e6, rel=0.001)
    assert floor * chips > batch  # FSDP alone is communication-bound
    mixed = combined.mixed_floor(balance, F, 2, 1)
    assert mixed == pytest.approx(235, abs=0.5)
    assert batch / chips == pytest.approx(732, abs=0.5)
    assert batch / chips > mixed  # FSDP with tensor parallelism is not
    data, _ = combined.optimal_mesh(batch, F, chips, 2, 1)
    assert data == pytest.approx(1333, abs=1)
    step_s = 6 * batch * 13e9 / (chips * 4.6e14 * 0.4)
    assert step_s == pytest.approx(0.31, abs=0.005)


def test_scaling_book_llama_70b_memory() -> None:
    # LLaMA 3 page: 140 GB of weights, 560 GB of optimizer state, 20.9 TB of activations: 225 chips
    states = memory.state_bytes(70e9, ACCOUNTINGS["scaling-book"], 0, 1)
    assert states == pytest.approx(140e9 + 560e9)
    kept = activations.checkpoint_bytes(4e6, 80, 4 * 8192)
    assert kept == pytest.approx(20.9e12, rel=0.005)
    assert (states + kept) / 96e9 == pytest.approx(225, abs=1)
