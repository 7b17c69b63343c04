"""FLOPs of public traces against what is known of their models by other means."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import polars as pl
import pytest

from analyzer.label import label_job
from analyzer.measure import measure_job
from analyzer.measure.compute import matmuls
from analyzer.measure.results import ComputeSummary
from analyzer.roofline.flops import forward_flops_per_token
from analyzer.roofline.model_dims import ModelDims, parameters
from collectors import open_job

TRACES = Path(
    os.environ.get("MESHSCOPE_TRACES", Path(__file__).parents[2] / ".." / "shared" / "traces")
)
pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not (TRACES / "CATALOG.tsv").exists(), reason="needs MESHSCOPE_TRACES"),
]

TINY = ModelDims(
    name="tiny", layers=4, hidden=256, ffn=512, heads=8, kv_heads=8, head_dim=32, vocab=1024
)
"""The small model of the CPU runs; written into each trace under `lab`."""


@cache
def summary(folder: str) -> ComputeSummary:
    job = open_job([TRACES / folder])
    found = measure_job(label_job(job), job).compute
    assert found is not None
    return found


@cache
def calls(folder: str) -> pl.DataFrame:
    frame = matmuls(label_job(open_job([TRACES / folder])).ranks)
    total = (pl.col("flops") * pl.col("calls")).alias("flops")
    return frame.filter(pl.col("step") == pl.col("step").max()).with_columns(total)


def gflops(folder: str, where: pl.Expr) -> dict[int, float]:
    """10^9 FLOPs of the last step by rank."""
    sums = calls(folder).filter(where).group_by("rank").agg(pl.col("flops").sum() / 1e9)
    return dict(sums.sort("rank").iter_rows())


DDP = "torch_cpu/ddp/rank*.json.gz"  # beside other captures of the same ranks
GEMMS = pl.col("family") == "gemm"


@pytest.mark.parametrize(
    ("folder", "each", "devices_a_batch"),
    [
        (DDP, 8.8584, 1), ("torch_cpu/fsdp2", 8.8584, 1), ("torch_cpu/hsdp", 8.8584, 1),
        ("torch_cpu/zero2", 8.8584, 1), ("torch_cpu/fsdp_async", 8.8584, 1),
        ("torch_cpu/tp_sp", 2.2146, 4), ("torch_cpu/fsdp_tp", 4.4292, 2),
    ],
)  # fmt: skip
def test_matmuls_of_every_strategy_are_6_parameters_tokens(
    folder: str, each: float, devices_a_batch: int
) -> None:
    """DTensor logs every product twice: the sum over ranks is right only innermost."""
    found = gflops(folder, GEMMS)
    assert len(found) >= 2
    assert all(value == pytest.approx(each, abs=5e-5) for value in found.values())
    assert each * devices_a_batch == pytest.approx(8.8584, abs=1e-4)


def test_pipeline_stages_add_up_to_the_model() -> None:
    assert sum(gflops("torch_cpu/pp_1f1b", GEMMS).values()) == pytest.approx(5.6371, abs=5e-5)
    assert sum(gflops("torch_cpu/pp_interleaved", GEMMS).values()) == pytest.approx(
        5.6371, abs=5e-5
    )


def test_causal_attention_is_halved_and_its_backward_recomputes() -> None:
    """4 sequences of 128 tokens, 8 heads of 32: 2 b h s^2 d forward when causal."""
    closed = 4 * 2 * 4 * 8 * 128**2 * 32 / 1e9
    attention = pl.col("family") == "attention"
    assert gflops(DDP, attention & (pl.col("role") == "forward"))[0] == pytest.approx(closed)
    assert gflops(DDP, attention & (pl.col("role") == "gradient"))[0] == pytest.approx(2.5 * closed)
    assert not calls(DDP)["assumed_full"].any()


def test_host_side_traces_have_no_roofline() -> None:
    found = summary(DDP)
    assert (found.mfu_pct, found.peak_flops_per_s, found.known_pct) == (None, None, 100)
    assert found.model_flops_per_step == pytest.approx(8.8584e9 + 3 * 0.134217728e9, rel=1e-5)
    assert all(f.achieved_flops_per_s and f.efficiency_pct is None for f in found.families)


RESNET = "kineto/tracelens/tests/traces/mi300/resnet_act_checkpoint.json.gz"


def test_resnet18_with_checkpointing() -> None:
    """torchvision prints 1.814 GMAC an image for ResNet-18; all but the stem runs again."""
    images, stem = 10, 2 * 64 * 112 * 112 * 3 * 49
    roles = {
        role: gflops(RESNET, pl.col("role") == role)[0] for role in ("forward", "gradient", "rerun")
    }
    assert roles["forward"] / images / 2 == pytest.approx(1.814, abs=5e-4)
    convolutions = gflops(RESNET, (pl.col("role") == "forward") & ~GEMMS)[0]
    assert roles["rerun"] == pytest.approx(convolutions - images * stem / 1e9)
    # two gradients for each, but the stem needs none of its input
    assert roles["gradient"] == pytest.approx(2 * roles["forward"] - images * stem / 1e9)
    found = summary(RESNET)
    assert found.hfu_pct is not None
    assert found.mfu_pct is not None
    assert found.hfu_pct / found.mfu_pct == pytest.approx(
        sum(roles.values()) / (roles["forward"] + roles["gradient"])
    )


TITAN = "kineto/torchtitan_fsdp4/profiling/traces/iteration_6"


def test_torchtitan_debug_model_on_gpus() -> None:
    """Every second layer is checkpointed: half of the layers' forward runs again."""
    forward = gflops(TITAN, GEMMS & (pl.col("role") == "forward"))
    gradient = gflops(TITAN, GEMMS & (pl.col("role") == "gradient"))
    assert len(forward) == 4
    assert gradient[0] == pytest.approx(2 * forward[0])
    attention = pl.col("family") == "attention"
    again = gflops(TITAN, attention & (pl.col("role") == "rerun"))
    assert again[0] == pytest.approx(
        gflops(TITAN, attention & (pl.col("role") == "forward"))[0] / 2
    )
    found = summary(TITAN)
    assert found.known_pct == 100
    assert (found.peak_dtype, found.peak_flops_per_s) == ("bf16", 989e12)
    assert found.mfu_pct is not None
    assert found.hfu_pct is not None
    assert 1 < found.mfu_pct < found.hfu_pct < 2
    assert all(f.efficiency_pct is not None and f.efficiency_pct < 100 for f in found.families)


QWEN = "kineto/tracelens/tests/traces/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"


def test_an_inference_trace_with_lost_operators_gives_families_but_no_total() -> None:
    """24 layers of Qwen1.5-0.5B over 16 x 559 tokens; early kernels have no operator."""
    layer = 4 * 1024**2 + 3 * 1024 * 2816
    found = gflops(QWEN, GEMMS & (pl.col("dtype") == "bf16"))[0]
    assert found * 1e9 == pytest.approx(2 * 24 * layer * 16 * 559)
    whole = summary(QWEN)
    assert whole.mfu_pct is None
    assert "only 70 %" in whole.reasons["mfu_pct"]


def test_no_public_trace_beats_its_device() -> None:
    """Whatever is measured on a GPU stays below the dense peak of its dtype."""
    for folder in (
        "kineto/hta/tests/data/trace_diff/control/control.json.gz",
        "kineto/modded_nanogpt/records/track_1_short/2025-10-31_AdamSyncGradientHook/"
        "3608dcfe__modded-nanogpt-hook-gpu-rank-00-chrome-trace.json.gz",
        RESNET,
        TITAN,
        QWEN,
    ):
        found = summary(folder)
        assert found.warnings == ()
        for family in found.families:
            if family.achieved_flops_per_s and family.peak_flops_per_s:
                assert family.achieved_flops_per_s < family.peak_flops_per_s


def test_model_dimensions_agree_with_operator_shapes() -> None:
    """The same step counted from the model and from its operators."""
    from_shapes = gflops(DDP, pl.col("role") == "forward")[0] * 1e9
    assert forward_flops_per_token(TINY, 128, causal=True) * 512 == pytest.approx(from_shapes)
    assert 6 * parameters(TINY).matmul * 512 == pytest.approx(8.8584e9, rel=2e-3)  # norms besides
