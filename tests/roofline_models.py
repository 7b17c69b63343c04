"""Model dimensions that several theory tests share."""

from __future__ import annotations

from analyzer.roofline.model_dims import ModelDims


def megatron_gpt(heads: int, hidden: int, layers: int) -> ModelDims:
    """A GPT as in Megatron-LM's papers: 51,200 padded tokens, 2048 positions, biases, tied head."""
    return ModelDims(
        "gpt", layers, hidden, 4 * hidden, heads, heads, hidden // heads, 51_200, gated=False,
        tied_embeddings=True, positions=2048, norm_bias=True, qkv_bias=True, out_bias=True,
        mlp_bias=True,
    )  # fmt: skip
