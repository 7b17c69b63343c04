"""Parameter counts against published checkpoints, papers and configuration files."""

from __future__ import annotations

import pytest
from roofline_models import megatron_gpt

from analyzer import catalog
from analyzer.errors import UsageError
from analyzer.roofline.hf_config import READERS, from_hf_config
from analyzer.roofline.model_dims import find_model, mtp_parameters, parameters

MODELS = sorted({row["name"] for row in catalog.models().values()})

EXACT = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "deepseek-v3": 671_026_419_200,
    "mpt-7b": 6_658_859_008,  # llm-foundry benchmarking README
}
EXACT_ACTIVE = {
    "mixtral-8x7b": 12_879_925_248,
    "mixtral-8x22b": 39_161_468_928,
    "deepseek-v3": 37_552_282_624,
}
CHECKPOINT_BYTES = {
    # total_size of model.safetensors.index.json of the published bf16 checkpoint
    "qwen2.5-7b": 15_231_233_024,
    "qwen2.5-32b": 65_527_752_704,
    "mixtral-8x7b": 93_405_585_408,
    "llama3-70b": 141_107_412_992,
    "qwen3-30b-a3b": 61_064_245_248,
}


@pytest.mark.parametrize(("name", "total"), EXACT.items())
def test_totals_exact(name: str, total: int) -> None:
    assert parameters(find_model(name)).total == total


@pytest.mark.parametrize(("name", "active"), EXACT_ACTIVE.items())
def test_active_exact(name: str, active: int) -> None:
    assert parameters(find_model(name)).active == active


@pytest.mark.parametrize(("name", "size"), CHECKPOINT_BYTES.items())
def test_totals_equal_published_checkpoints(name: str, size: int) -> None:
    assert parameters(find_model(name)).total * 2 == size


@pytest.mark.parametrize("name", MODELS)
def test_totals_match_what_publishers_say(name: str) -> None:
    row = catalog.models()[next(k for k, r in catalog.models().items() if r["name"] == name)]
    count = parameters(find_model(name))
    assert count.total / 1e9 == pytest.approx(row["published_b"], rel=0.005)
    if "published_active_b" in row:
        # some publishers count the input embedding as active, some do not; two printed digits
        stated = row["published_active_b"]
        both = count.active / 1e9, (count.matmul - count.tied_head) / 1e9
        assert min(abs(value / stated - 1) for value in both) < 0.025


@pytest.mark.parametrize("name", MODELS)
def test_layers_and_ends_add_up(name: str) -> None:
    dims = find_model(name)
    count = parameters(dims)
    last_norm = dims.hidden * (2 if dims.norm_bias else 1)
    layers = count.dense_layer * (dims.layers - dims.moe_layers) + count.moe_layer * dims.moe_layers
    ends = count.embedding + count.head + last_norm + count.score_bias
    assert layers + ends == count.total
    assert (count.experts == 0) == (dims.moe is None)


def test_deepseek_v3_without_input_embedding() -> None:
    assert parameters(find_model("DeepSeek V3")).matmul == 36_625_603_584


def test_deepseek_v3_mtp_layer_is_one_more_block_projection_and_head() -> None:
    dims = find_model("deepseek-v3")
    count = parameters(dims)
    block = count.moe_layer - (256 - 8) * 3 * 7168 * 2048
    assert mtp_parameters(dims) == block + 2 * 7168**2 + 129_280 * 7168 + 3 * 7168
    assert mtp_parameters(find_model("llama3-8b")) == 0


def test_parts_of_llama2_13b_as_the_scaling_book_lists_them() -> None:
    count = parameters(find_model("llama2-13b"))
    assert count.mlp / 1e9 == pytest.approx(8.493, abs=5e-4)
    assert count.attention / 1e9 == pytest.approx(4.194, abs=5e-4)
    assert (count.embedding + count.head) / 1e9 == pytest.approx(0.328, abs=5e-4)


def test_parts_of_llama3_70b_as_the_scaling_book_lists_them() -> None:
    count = parameters(find_model("llama3-70b"))
    assert count.mlp / 1e9 == pytest.approx(56.37, abs=0.01)
    assert count.attention / 1e9 == pytest.approx(12.08, abs=0.01)
    assert (count.embedding + count.head) / 1e9 == pytest.approx(2.10, abs=0.01)


def test_parts_of_gpt_oss_as_its_model_card_lists_them() -> None:
    # gpt-oss model card (arXiv 2508.10925), table 1: MLP, attention, embedding + unembedding
    for name, mlp, attention in (("gpt-oss-120b", 114.71, 0.96), ("gpt-oss-20b", 19.12, 0.64)):
        count = parameters(find_model(name))
        assert (count.experts + count.router) / 1e9 == pytest.approx(mlp, abs=0.01)
        assert (count.attention + count.norms) / 1e9 == pytest.approx(attention, abs=0.01)
        assert (count.embedding + count.head) / 1e9 == pytest.approx(1.16, abs=0.01)


SC21 = [  # arXiv 2104.04473, table 1: billions, attention heads, hidden size, layers
    (1.7, 24, 2304, 24),
    (3.6, 32, 3072, 30),
    (7.5, 32, 4096, 36),
    (18.4, 48, 6144, 40),
    (39.1, 64, 8192, 48),
    (76.1, 80, 10240, 60),
    (145.6, 96, 12288, 80),
    (310.1, 128, 16384, 96),
    (529.6, 128, 20480, 105),
    (1008.0, 160, 25600, 128),
]


@pytest.mark.parametrize(("billions", "heads", "hidden", "layers"), SC21)
def test_megatron_sizes(billions: float, heads: int, hidden: int, layers: int) -> None:
    total = parameters(megatron_gpt(heads, hidden, layers)).total
    assert round(total / 1e9, 1) == billions
    closed = (
        12
        * layers
        * hidden**2
        * (1 + 13 / (12 * hidden) + (51_200 + 2048) / (12 * layers * hidden))
    )  # the paper's equation 2, which leaves the last norm out
    assert total == pytest.approx(closed + 2 * hidden, rel=1e-12)


CONFIGS: dict[str, dict[str, object]] = {
    "llama3-70b": {"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
        "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 80,
        "vocab_size": 128256},
    "mistral-7b": {"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32,
        "vocab_size": 32000},
    "mixtral-8x7b": {"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32,
        "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000},
    "qwen2.5-7b": {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
        "num_attention_heads": 28, "num_key_value_heads": 4, "num_hidden_layers": 28,
        "tie_word_embeddings": False, "vocab_size": 152064},
    "qwen3-8b": {"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 36,
        "head_dim": 128, "attention_bias": False, "tie_word_embeddings": False,
        "vocab_size": 151936},
    "qwen2-57b-a14b": {"model_type": "qwen2_moe", "hidden_size": 3584, "intermediate_size": 18944,
        "num_attention_heads": 28, "num_key_value_heads": 4, "num_hidden_layers": 28,
        "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 2560,
        "shared_expert_intermediate_size": 20480, "decoder_sparse_step": 1, "vocab_size": 151936},
    "qwen3-30b-a3b": {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
        "num_attention_heads": 32, "num_key_value_heads": 4, "num_hidden_layers": 48,
        "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "mlp_only_layers": [], "vocab_size": 151936},
    "deepseek-v2": {"model_type": "deepseek_v2", "hidden_size": 5120, "intermediate_size": 12288,
        "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 60,
        "n_routed_experts": 160, "num_experts_per_tok": 6, "moe_intermediate_size": 1536,
        "n_shared_experts": 2, "first_k_dense_replace": 1, "kv_lora_rank": 512,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "topk_method": "group_limited_greedy", "vocab_size": 102400},
    "deepseek-v3": {"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
        "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
        "n_shared_experts": 1, "first_k_dense_replace": 3, "kv_lora_rank": 512,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "topk_method": "noaux_tc", "num_nextn_predict_layers": 1, "vocab_size": 129280},
    "gpt-oss-20b": {"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "num_hidden_layers": 24, "num_local_experts": 32, "num_experts_per_tok": 4,
        "attention_bias": True, "tie_word_embeddings": False, "vocab_size": 201088},
    "gemma-7b": {"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576,
        "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
        "num_hidden_layers": 28, "vocab_size": 256000},
    "gemma-2-9b": {"model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
        "num_hidden_layers": 42, "vocab_size": 256000},
    "gemma-3-27b": {"model_type": "gemma3", "vision_config": {"hidden_size": 1152},
        "text_config": {"model_type": "gemma3_text", "hidden_size": 5376,
            "intermediate_size": 21504, "num_attention_heads": 32, "num_key_value_heads": 16,
            "head_dim": 128, "num_hidden_layers": 62, "vocab_size": 262208}},
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_hugging_face_configs(name: str) -> None:
    read, known = from_hf_config(CONFIGS[name]), find_model(name)
    assert parameters(read) == parameters(known)
    assert (read.layers, read.hidden, read.heads, read.kv_heads, read.mtp_layers) == (
        known.layers, known.hidden, known.heads, known.kv_heads, known.mtp_layers,
    )  # fmt: skip


def test_every_reader_is_tested() -> None:
    tested = {config["model_type"] for config in CONFIGS.values()}
    assert tested == set(READERS)


def test_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'bert'.*deepseek_v3.*llama"):
        from_hf_config({"model_type": "bert"})


def test_missing_key_is_named() -> None:
    with pytest.raises(UsageError, match="num_hidden_layers"):
        from_hf_config({k: v for k, v in CONFIGS["llama3-70b"].items() if k != "num_hidden_layers"})


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("LLaMA-3 70B", "LLaMA-3 70B"),
        ("llama3.1-405b", "LLaMA-3.1 405B"),
        ("Qwen2.5_7B", "Qwen2 7B"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    assert find_model(spelling).name == name


def test_unknown_model_suggests() -> None:
    with pytest.raises(UsageError, match="LLaMA-3 70B"):
        find_model("llama3-71b")


def test_every_model_names_its_source() -> None:
    assert all(row["source"] for row in catalog.models().values())
