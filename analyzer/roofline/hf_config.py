"""Model dimensions from a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from analyzer.errors import UsageError
from analyzer.roofline.model_dims import MlaDims, ModelDims, MoeDims

Config = Mapping[str, Any]


def from_hf_config(config: Config) -> ModelDims:
    """Dimensions a ``config.json`` describes, by its ``model_type``.

    Args:
        config: the parsed file. Multimodal files are read through their ``text_config``.

    Raises:
        UsageError: an architecture that is not known (the hint lists those that are), or a missing
            key.
    """
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and "hidden_size" not in config:
        config = {"model_type": config.get("model_type", ""), **inner}
    kind = str(config.get("model_type", "")).removesuffix("_text")
    read = READERS.get(kind)
    if read is None:
        raise UsageError(
            f"config.json: unknown architecture {kind or '(no model_type)'!r}",
            hint="known: " + ", ".join(sorted(READERS)),
        )
    try:
        return read(config)
    except KeyError as error:
        raise UsageError(f"config.json of a {kind} model: {error.args[0]} is missing") from error


def _llama(config: Config, **special: Any) -> ModelDims:
    heads = config["num_attention_heads"]
    hidden = config["hidden_size"]
    base: dict[str, Any] = {
        "name": config.get("_name_or_path") or config["model_type"],
        "layers": config["num_hidden_layers"],
        "hidden": hidden,
        "ffn": config["intermediate_size"],
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or hidden // heads,
        "vocab": config["vocab_size"],
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": bool(config.get("attention_bias", False)),
        "out_bias": bool(config.get("attention_bias", False)),
        "mlp_bias": bool(config.get("mlp_bias", False)),
        "source": "config.json",
    }
    return ModelDims(**{**base, **special})


def _mixtral(config: Config) -> ModelDims:
    width = config["intermediate_size"]
    moe = MoeDims(config["num_local_experts"], config["num_experts_per_tok"], width)
    return _llama(config, ffn=0, moe=moe)


def _qwen2(config: Config) -> ModelDims:
    return _llama(config, qkv_bias=True, out_bias=False)


def _qwen3(config: Config) -> ModelDims:
    return _llama(config, qk_norm=True)


def _qwen2_moe(config: Config) -> ModelDims:
    moe = MoeDims(
        config["num_experts"],
        config["num_experts_per_tok"],
        config["moe_intermediate_size"],
        shared_ffn=config["shared_expert_intermediate_size"],
        shared_gate=True,
        dense_layers=_dense_layers(config),
    )
    return _llama(config, moe=moe, qkv_bias=True, out_bias=False)


def _qwen3_moe(config: Config) -> ModelDims:
    moe = MoeDims(
        config["num_experts"],
        config["num_experts_per_tok"],
        config["moe_intermediate_size"],
        dense_layers=_dense_layers(config),
    )
    return _llama(config, moe=moe, qk_norm=True)


def _dense_layers(config: Config) -> int:
    if config.get("decoder_sparse_step", 1) != 1:
        raise UsageError("config.json: decoder_sparse_step other than 1 is not supported")
    return len(config.get("mlp_only_layers") or ())


def _deepseek(config: Config) -> ModelDims:
    experts = config.get("n_routed_experts")
    width = config.get("moe_intermediate_size", 0)
    moe = MoeDims(
        experts,
        config["num_experts_per_tok"],
        width,
        shared_ffn=(config.get("n_shared_experts") or 0) * width,
        dense_layers=config.get("first_k_dense_replace", 0),
        score_bias=config.get("topk_method") == "noaux_tc",
    ) if experts else None  # fmt: skip
    mla = MlaDims(
        kv_rank=config["kv_lora_rank"],
        nope_dim=config["qk_nope_head_dim"],
        rope_dim=config["qk_rope_head_dim"],
        value_dim=config["v_head_dim"],
        q_rank=config.get("q_lora_rank"),
    )
    return _llama(
        config,
        moe=moe,
        mla=mla,
        head_dim=mla.value_dim,
        kv_heads=config["num_attention_heads"],
        mtp_layers=config.get("num_nextn_predict_layers", 0),
    )


def _gpt_oss(config: Config) -> ModelDims:
    moe = MoeDims(
        config["num_local_experts"],
        config["num_experts_per_tok"],
        config["intermediate_size"],
        router_bias=True,
        expert_bias=True,
    )
    return _llama(config, ffn=0, moe=moe, sinks=True, qkv_bias=True, out_bias=True)


def _gemma(config: Config) -> ModelDims:
    return _llama(config, tied_embeddings=config.get("tie_word_embeddings", True))


def _gemma2(config: Config) -> ModelDims:
    return _llama(
        config, norms_per_layer=4, tied_embeddings=config.get("tie_word_embeddings", True)
    )


def _gemma3(config: Config) -> ModelDims:
    return _llama(
        config,
        norms_per_layer=4,
        qk_norm=True,
        tied_embeddings=config.get("tie_word_embeddings", True),
    )


READERS: Mapping[str, Callable[[Config], ModelDims]] = {
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt_oss": _gpt_oss,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
}
"""``model_type`` -> reader."""
