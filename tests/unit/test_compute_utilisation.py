"""Achieved FLOP/s, roofline, MFU and HFU against closed forms."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tables import event, labeled, measure, span

from analyzer.errors import UsageError
from analyzer.measure import utilisation
from analyzer.measure.compute import MATMULS
from analyzer.measure.model_run import ModelRun, stated_run, written_run
from analyzer.measure.results import Budget, ComputeSummary
from analyzer.measure.utilisation import Scope, summarize_compute
from analyzer.roofline.flops import Convention, convention_flops_per_token
from analyzer.roofline.model_dims import find_model

H100 = "NVIDIA H100 80GB HBM3"
PEAK, HBM = 989e12, 3.35e12
BIG = {"flops": 2 * 4096.0**3, "bytes": 2 * 3 * 4096.0**2}  # compute-bound: 1365 FLOP/byte
THIN = {"flops": 2 * 16 * 4096.0**2, "bytes": 2 * (4096.0**2 + 2 * 16 * 4096)}  # memory-bound


def row(**figures: Any) -> dict[str, Any]:
    made = {
        "rank": 0, "lane": 0, "step": 0, "family": "gemm", "dtype": "bf16", "role": "forward",
        "assumed_full": False, "calls": 1, "time_ns": 1_000_000, **BIG, **figures,
    }  # fmt: skip
    made.setdefault("model_flops", made["flops"])
    return made


def summarize(
    *rows: dict[str, Any], step_ns: int = 10_000_000, run: ModelRun | None = None, **scope: Any
) -> ComputeSummary:
    frame = pl.DataFrame(rows, schema=MATMULS.empty().schema)
    facts = {"windows": 1, "device": H100, "host_side": False, "world_size": 1, **scope}
    return summarize_compute(frame, Scope(Budget(step_ns, 0, {}, 0, 0, {}), **facts), run)


def test_a_family_against_the_roofline() -> None:
    """One compute-bound and one memory-bound product: the roofline is that of both one by one."""
    found = summarize(row(calls=3, time_ns=750_000), row(**THIN, time_ns=50_000))
    (family,) = found.families
    flops, moved = 3 * BIG["flops"] + THIN["flops"], 3 * BIG["bytes"] + THIN["bytes"]
    least_s = 3 * BIG["flops"] / PEAK + THIN["bytes"] / HBM
    assert THIN["flops"] / PEAK < THIN["bytes"] / HBM
    assert (family.family, family.dtype, family.calls) == ("gemm", "bf16", 4)
    assert (family.time_ns, family.flops, family.bytes) == (800_000, flops, moved)
    assert family.intensity == pytest.approx(flops / moved)
    assert family.achieved_flops_per_s == pytest.approx(flops / 800e-6)
    assert family.roofline_flops_per_s == pytest.approx(flops / least_s)
    assert family.efficiency_pct == pytest.approx(100 * least_s / 800e-6)
    assert family.share_pct == pytest.approx(8)
    assert family.peak_flops_per_s == PEAK


def test_one_shape_alone_meets_the_formula() -> None:
    (family,) = summarize(row(**THIN, time_ns=50_000)).families
    assert family.roofline_flops_per_s == pytest.approx(THIN["flops"] / THIN["bytes"] * HBM)
    (family,) = summarize(row()).families
    assert family.roofline_flops_per_s == pytest.approx(PEAK)


def test_mfu_and_hfu() -> None:
    """HFU counts reruns, what attention recomputes and the optimizer's products; MFU does not."""
    attention = {"family": "attention", "role": "gradient", "flops": 2.5e12, "model_flops": 2e12}
    found = summarize(
        row(flops=3e12), row(flops=1e12, role="rerun"), row(flops=5e11, role="optimizer"),
        row(**attention, time_ns=5_000_000), row(time_ns=5_000_000, calls=0), step_ns=20_000_000,
    )  # fmt: skip
    assert found.model_flops_per_step == 5e12
    assert found.executed_flops_per_step == 7e12
    assert found.rerun_flops_per_step == 1e12
    assert found.mfu_pct == pytest.approx(100 * 5e12 / (20e-3 * PEAK))
    assert found.hfu_pct == pytest.approx(100 * 7e12 / (20e-3 * PEAK))
    assert (found.peak_flops_per_s, found.peak_dtype, found.known_pct) == (PEAK, "bf16", 100)
    assert found.reasons == {}
    assert found.warnings == ()


def test_means_are_over_windows() -> None:
    found = summarize(row(), row(step=1), row(rank=1), windows=4)
    assert found.model_flops_per_step == 3 * BIG["flops"] / 4
    assert found.families[0].time_ns == 750_000
    assert found.families[0].calls == 0.75
    assert found.families[0].achieved_flops_per_s == pytest.approx(BIG["flops"] / 1e-3)


def test_the_peak_is_that_of_the_dtype_most_flops_run_in() -> None:
    mixed = [row(flops=3e12, dtype="fp8"), row(flops=2e12), row(flops=1e12, dtype="fp32")]
    found = summarize(*mixed, step_ns=100_000_000)
    assert (found.peak_dtype, found.peak_flops_per_s) == ("fp8", 1979e12)
    assert {f.dtype: f.peak_flops_per_s for f in found.families} == {
        "fp8": 1979e12, "bf16": 989e12, "fp32": 67e12,
    }  # fmt: skip


def test_b39_more_than_the_peak_is_an_error_not_a_boast() -> None:
    """156 % of the peak: no figure, a reason, and a warning that nobody can miss."""
    found = summarize(row(flops=1.56 * PEAK * 10e-3, time_ns=9_000_000))
    assert (found.mfu_pct, found.hfu_pct) == (None, None)
    assert "156.0% is above 100 %" in found.reasons["mfu_pct"]
    assert any(line.startswith("MFU is not given") for line in found.warnings)
    assert any("above the peak" in line for line in found.warnings)
    (family,) = found.families
    assert family.achieved_flops_per_s == pytest.approx(1.56 * PEAK / 0.9)
    assert (family.roofline_flops_per_s, family.efficiency_pct) == (None, None)


def test_cached_operands_may_beat_the_memory_roofline() -> None:
    """A small product whose operands are in the cache is no error: only the peak is a wall."""
    found = summarize(row(**THIN, time_ns=5_000))
    (family,) = found.families
    assert family.efficiency_pct is not None
    assert family.efficiency_pct > 100
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("scope", "why"),
    [
        ({"host_side": True}, "CPU trace"),
        ({"device": "Frobnicator 9000"}, "no peak is known of device 'Frobnicator 9000'"),
        ({"device": ""}, "not named"),
        ({"device": "Tesla V100-SXM2-32GB"}, "no bf16 peak"),
    ],
)
def test_without_a_peak_there_is_no_utilisation(scope: dict[str, Any], why: str) -> None:
    found = summarize(row(), **scope)
    assert (found.mfu_pct, found.hfu_pct, found.peak_dtype) == (None, None, None)
    assert why in found.reasons["mfu_pct"]
    assert found.model_flops_per_step == BIG["flops"]
    assert found.families[0].achieved_flops_per_s == pytest.approx(BIG["flops"] / 1e-3)
    assert found.families[0].efficiency_pct is None


@pytest.mark.parametrize(("unknown", "known_pct"), [(60_000, 94.34), (1_000_000, 50.0)])
def test_too_much_unknown_time_gives_no_total(unknown: int, known_pct: float) -> None:
    lost = row(flops=None, bytes=None, dtype=None, model_flops=None, time_ns=unknown)
    found = summarize(row(), lost)
    assert found.known_pct == pytest.approx(known_pct, abs=0.01)
    assert (found.model_flops_per_step, found.mfu_pct) == (None, None)
    assert f"only {known_pct:.0f} %" in found.reasons["mfu_pct"]
    assert [f.flops for f in sorted(found.families, key=lambda f: f.dtype or "")] == [
        None, BIG["flops"],
    ]  # fmt: skip


def test_little_unknown_time_is_let_pass_and_nothing_recorded_is_named() -> None:
    lost = row(flops=None, bytes=None, dtype=None, model_flops=None, time_ns=50_000)
    assert summarize(row(), lost).mfu_pct is not None
    assert "record_shapes" in summarize(lost).reasons["mfu_pct"]


@pytest.mark.parametrize(
    ("assumed", "words"),
    [((True, True), "full, masks"), ((True, False), "full where"), ((False, False), "causal")],
)
def test_the_convention_says_how_attention_counts(assumed: tuple[bool, ...], words: str) -> None:
    rows = [row(family="attention", assumed_full=full) for full in assumed]
    assert words in summarize(*rows).convention
    assert "no backward seen" in summarize(*rows).convention
    assert "no backward seen" not in summarize(*rows, row(role="gradient")).convention


LLAMA = find_model("llama3-8b")


def test_model_flops_of_a_stated_model_are_shared_by_all_devices() -> None:
    """MFU = tokens/s x FLOPs/token / (devices x peak), PaLM appendix B.

    6667 tokens/s and device of LLaMA-3 8B at 8192 are 39 % of the peak (torchtitan's README).
    """
    step_s, devices = 2.0, 8
    tokens = round(6667 * devices * step_s)
    run = ModelRun(LLAMA, tokens, 8192, Convention.TORCHTITAN)
    found = summarize(row(), step_ns=round(step_s * 1e9), run=run, world_size=devices)
    assert found.mfu_pct == pytest.approx(39.0, abs=0.1)
    assert found.convention == "torchtitan: LLaMA-3 8B, 8192 tokens a sequence"
    assert found.hfu_pct == pytest.approx(100 * BIG["flops"] / (step_s * PEAK))


def test_b39_tokens_are_those_of_the_whole_job_whatever_the_mesh() -> None:
    """One figure for a job, not one for each axis tokens are spread over."""
    run = ModelRun(LLAMA, 2**20, 32768)
    for devices in (8, 64):
        found = summarize(run=run, world_size=devices, step_ns=10**11)
        per_token = convention_flops_per_token(LLAMA, 32768, Convention.MEGATRON)
        assert found.model_flops_per_step == per_token * 2**20 / devices
    mixtral = find_model("mixtral-8x7b")  # two of eight experts, at the experts' own width
    per_token = ModelRun(mixtral, 1, 1).flops_per_step()
    assert per_token == pytest.approx(6 * (12_879_925_248 - 32000 * 4096), rel=1e-3)


def test_without_a_world_size_tokens_cannot_be_shared_out() -> None:
    found = summarize(run=ModelRun(LLAMA, 4096, 4096), world_size=None)
    assert found.mfu_pct is None
    assert "how many devices" in found.reasons["mfu_pct"]


def test_the_dtype_is_the_usual_one_where_no_shape_tells() -> None:
    lost = row(flops=None, bytes=None, dtype=None, model_flops=None)
    found = summarize(lost, run=ModelRun(LLAMA, 1024, 4096), step_ns=10**9)
    assert (found.peak_dtype, found.peak_flops_per_s) == ("bf16", PEAK)
    assert found.mfu_pct is not None
    assert found.hfu_pct is None


# ---- where the model comes from ------------------------------------------------------------------


def test_stated_models(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
             "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
             "vocab_size": 128256}
        )
    )  # fmt: skip
    named, read = stated_run("LLaMA-3 8B", 4096, 2048), stated_run(str(config), 4096, 2048)
    assert named is not None
    assert read is not None
    assert named.flops_per_step() == read.flops_per_step()
    assert stated_run(None) is None
    palm = stated_run("llama3-8b", 1, 2048, "palm")
    assert palm is not None
    assert palm.convention is Convention.PALM


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("llama3-8b", None, 4096), "needs --tokens-per-step"),
        (("llama3-8b", 4096, None), "needs --tokens-per-step"),
        ((None, 4096, None), "need --model"),
        (("llama3-8b", 1, 1, "sc21"), "'sc21'"),  # counts recomputation: that would be an HFU
        (("no such model", 1, 1), "unknown model"),
        (("nowhere/config.json", 1, 1), "cannot be read"),
    ],
)
def test_unusable_models(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        stated_run(*arguments)


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_unusable_config_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"config\.json"):
        stated_run(str(tmp_path / "config.json"), 1, 1)


def test_what_the_collector_wrote() -> None:
    table = {
        f.name: getattr(LLAMA, f.name) for f in dataclasses.fields(LLAMA) if f.name != "source"
    } | {"moe": None}
    table = {key: value for key, value in table.items() if value is not None}
    for model in ("llama3-8b", table):
        run = written_run({"model": model, "tokens_per_step": 4096, "sequence": 2048})
        assert run is not None
        assert run.flops_per_step() == ModelRun(LLAMA, 4096, 2048).flops_per_step()


@pytest.mark.parametrize(
    "written",
    [
        {}, {"model": "llama3-8b"}, {"model": "x", "tokens_per_step": 1, "sequence": 1},
        {"model": {"layers": 2}, "tokens_per_step": 1, "sequence": 1},
        {"model": "llama3-8b", "tokens_per_step": "4M", "sequence": 1},
        {"model": "llama3-8b", "tokens_per_step": 4096, "sequence": 0},
        {"model": 3, "tokens_per_step": 1, "sequence": 1},
    ],
)  # fmt: skip
def test_half_written_models_are_none(written: dict[str, Any]) -> None:
    assert written_run(written) is None


# ---- the whole way -------------------------------------------------------------------------------

SHAPES = {
    "input_dims": json.dumps([[512, 1024], [1024, 2048]]),
    "input_types": json.dumps(["c10::BFloat16"] * 2),
}


def one_rank(rank: int = 0, device: str = H100, calls: int = 1) -> Any:
    ops = [span("aten::mm", 100 * i, 100 * i + 50, **SHAPES) for i in range(calls)]
    work = [event(1000 + 2000 * i, 2000 + 2000 * i, family="gemm", launch_ns=100 * i + 10)
            for i in range(calls)]  # fmt: skip
    steps = [span("ProfilerStep#0", 0, 100_000)]
    made = labeled(work, ops=ops, ranges=steps, rank=rank, world_size=2)
    meta = dataclasses.replace(made.trace.meta, device_names=(device,))
    return dataclasses.replace(made, trace=dataclasses.replace(made.trace, meta=meta))


def test_a_job_of_two_ranks() -> None:
    """Ranks need not do the same work (pipeline stages): the figure is their mean."""
    m = measure(one_rank(calls=1), one_rank(1, calls=3))
    assert m.compute is not None
    assert m.mean is not None
    each = 2 * 512 * 1024 * 2048
    assert m.compute.model_flops_per_step == 2 * each
    assert m.compute.mfu_pct == pytest.approx(100 * 2 * each / (m.mean.time_ns * 1e-9 * PEAK))
    assert "mfu_pct" not in m.null_reasons


def test_reasons_and_warnings_reach_the_measurements() -> None:
    m = measure(one_rank(device="Frobnicator"))
    assert m.compute is not None
    assert "Frobnicator" in m.null_reasons["mfu_pct"]
    assert "Frobnicator" in m.null_reasons["compute.hfu_pct"]
    nothing = measure(labeled([event(500, 600)], ranges=[span("ProfilerStep#0", 0, 1000)]))
    assert nothing.compute is None
    assert nothing.null_reasons["mfu_pct"] == utilisation.NO_MATMUL
    assert measure(labeled([])).null_reasons["compute"] == utilisation.NO_STEP
