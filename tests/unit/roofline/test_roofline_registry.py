"""The registry of formulas, their page, the hardware table and reliability."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from analyzer import catalog
from analyzer.errors import UsageError
from analyzer.roofline import expected, hardware, registry, reliability

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "analyzer" / "roofline"
NOT_FORMULAS = {
    # look-ups and readers
    "model_dims.find_model",
    "model_dims.dims_of",
    "achievable.measured_curve",
    "hardware.device",
    "hardware.peak_flops_per_s",
    "hardware.switched_link",
    "hardware.torus_link",
}
NOT_CHAPTERS = {"registry", "strategies", "hf_config", "__init__"}


def test_every_public_function_is_a_formula() -> None:
    modules = [module for names in registry.CHAPTERS.values() for module in names]
    found = {made.function for made in registry.formulas().values()}
    for module in modules:
        for name, _ in registry.public_functions(module):
            assert (f"{module}.{name}" in found) != (f"{module}.{name}" in NOT_FORMULAS)
    on_disk = {path.stem for path in PACKAGE.glob("*.py")}
    assert set(modules) | NOT_CHAPTERS == on_disk


@pytest.mark.parametrize("ident", registry.formulas())
def test_formulas_are_complete(ident: str) -> None:
    made = registry.formulas()[ident]
    assert re.fullmatch(r"[A-Z]+(-[A-Z0-9]+)+", ident)
    assert made.text
    assert made.source
    assert made.returns
    assert made.symbols
    assert made.summary.endswith(".")


def test_duplicate_ids_are_refused() -> None:
    one, two = list(registry.formulas().values())[:2]
    assert one.id != two.id
    assert len({made.function for made in registry.formulas().values()}) == len(registry.formulas())


def test_ids_used_in_results_exist() -> None:
    used = set()
    for path in PACKAGE.glob("*.py"):
        code = re.sub(r'"""(?:.|\n)*?"""', "", path.read_text())  # docstrings aside
        used |= set(re.findall(r'"((?:COLL|DP|TP|CP|EP|PP)-[A-Z0-9-]+)"', code))
    assert len(used) > 15
    assert used <= set(registry.formulas())


def test_parse() -> None:
    made = registry.parse(
        "m.f",
        "Time of it.\n\nFormula:\n    X-Y\n    a = b\n    + c\n\nArgs:\n"
        "    b: one\n        thing.\n"
        "    c: other.\n\nReturns:\n    seconds.\nSource: a book.\nValid: here\n    and there.",
    )
    assert made == registry.Formula(
        "X-Y", "a = b\n+ c", "m.f", "Time of it.", {"b": "one thing.", "c": "other."}, "seconds.",
        "a book.", "here and there.",
    )  # fmt: skip
    assert registry.parse("m.g", "No formula.") is None


def test_theory_page_is_in_step_with_the_code() -> None:
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    assert page == registry.theory_page(), "run: python -m analyzer.roofline.registry"
    for ident in registry.formulas():
        assert f"### {ident}\n" in page


def test_only_the_standard_library() -> None:
    modules = ", ".join(f"analyzer.roofline.{path.stem}" for path in PACKAGE.glob("[a-z]*.py"))
    code = (
        f"import sys, {modules}; print({{'numpy', 'polars', 'pandas', 'torch'}} & set(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "set()"


# ---- hardware ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", catalog.device_keys())
def test_devices_by_key_and_by_printed_name(key: str) -> None:
    made = hardware.device(key)
    assert made.key == key
    row = next(row for row in catalog.load("hardware")["device"] if row["key"] == key)
    for name in row["examples"]:
        assert hardware.device(name).key == key


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H800", "h800-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("Tesla V100-SXM2-32GB", "v100-sxm"),
        ("AMD Instinct MI300X", "mi300x"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v3", "tpu-v3"),
    ],
)
def test_names_frameworks_print(name: str, key: str) -> None:
    assert hardware.device(name).key == key


def test_dense_peaks_and_links() -> None:
    h100 = hardware.device("h100-sxm")
    assert hardware.peak_flops_per_s(h100) == 989e12
    assert hardware.peak_flops_per_s(h100, "fp8") == 1979e12
    assert hardware.peak_flops_per_s(h100, stated_tflops=800) == 800e12
    link = hardware.switched_link(h100)
    assert (link.node_size, link.node_bytes_per_s, link.nic_bytes_per_s) == (8, 450e9, 50e9)
    assert hardware.switched_link(hardware.device("gb200")).node_size == 72
    assert hardware.switched_link(h100, scale_out_gbps=100).nic_bytes_per_s == 100e9
    assert hardware.torus_link(hardware.device("tpu-v5p"), (16, 16)).axis_bytes_per_s == 1.8e11


def test_torus_rates_agree_with_the_sum_over_links() -> None:
    for key in catalog.device_keys():
        made = hardware.device(key)
        if made.ici_link_gbps and made.scale_up_gbps:
            assert made.scale_up_gbps.value == 2 * made.ici_axes * made.ici_link_gbps.value


@pytest.mark.parametrize(
    ("architecture", "processors", "clock_ghz", "tflops"),
    [  # data sheets: H100 SXM, A100 SXM, L40S, B200, MI250X die, MI300X, MI355X
        ("9.0", 132, 1.83, 989),
        ("8.0", 108, 1.41, 312),
        ("8.9", 142, 2.49, 362),
        ("10.0", 148, 1.855, 2250),
        ("gfx90a", 110, 1.7, 191.5),
        ("gfx942", 304, 2.1, 1307),
        ("gfx950", 256, 2.4, 2517),
    ],
)
def test_peaks_from_first_principles(
    architecture: str, processors: int, clock_ghz: float, tflops: float
) -> None:
    found = hardware.computed_peak_flops_per_s(architecture, processors, clock_ghz * 1e9)
    assert found / 1e12 == pytest.approx(tflops, rel=0.002)


def test_unknown_and_contradictory_devices_ask_for_numbers() -> None:
    with pytest.raises(UsageError, match="h100-sxm"):
        hardware.device("GeForce 256")
    with pytest.raises(UsageError, match="contradict"):
        hardware.peak_flops_per_s(hardware.device("ascend-910b"))
    assert hardware.peak_flops_per_s(hardware.device("ascend-910b"), stated_tflops=376) == 376e12
    with pytest.raises(UsageError, match="no rate inside the node"):
        hardware.switched_link(hardware.device("h100-nvl"))
    with pytest.raises(UsageError, match="torus axes"):
        hardware.torus_link(hardware.device("h100-sxm"), (8,))
    with pytest.raises(UsageError, match="no FLOPs per cycle"):
        hardware.computed_peak_flops_per_s("7.0", 80, 1.5e9)
    with pytest.raises(UsageError, match="no fp4 peak"):
        hardware.peak_flops_per_s(hardware.device("h100-sxm"), "fp4")


def test_default_hop_latencies_are_nccls() -> None:
    assert pytest.approx(0.6e-6) == expected.HOP_S
    assert pytest.approx(2.7e-6) == expected.NET_HOP_S


# ---- reliability ------------------------------------------------------------------------------


def test_llama_3_interruptions() -> None:
    # arXiv 2407.21783: 419 unexpected interruptions of 16,384 GPUs in 54 days
    assert pytest.approx(reliability.DEVICE_HOURS_PER_FAILURE, rel=1e-4) == 16_384 * 54 * 24 / 419
    assert reliability.job_mtbf_s(16_384) / 3600 == pytest.approx(3.09, abs=0.005)
    assert reliability.interruptions_per_day(16_384) == pytest.approx(419 / 54, rel=1e-4)
    per_gpu_year = reliability.interruptions_per_day(1) * 365
    assert per_gpu_year == pytest.approx(0.173, abs=5e-4)


def test_checkpoint_interval_is_best() -> None:
    mtbf, cost = 11_000.0, 60.0
    best = reliability.checkpoint_interval_s(cost, mtbf)
    assert best == pytest.approx((2 * cost * mtbf) ** 0.5)
    at_best = reliability.goodput(best, cost, mtbf)
    assert all(reliability.goodput(best * x, cost, mtbf) < at_best for x in (0.5, 0.9, 1.1, 2))
    assert reliability.goodput(best, cost, mtbf, restart_s=550) == pytest.approx(at_best - 0.05)
    assert reliability.goodput(1, 60, 10) == 0


def test_goodput_against_a_played_year() -> None:
    """Failures at random times; work since the last checkpoint is lost."""
    import random

    draw = random.Random(11)
    mtbf, cost, interval, restart = 20_000.0, 50.0, 1400.0, 300.0
    wall = useful = 0.0
    fail = draw.expovariate(1 / mtbf)
    while wall < 3e7:
        if wall + interval + cost <= fail:
            wall += interval + cost
            useful += interval
        else:
            wall = fail + restart
            fail = wall + draw.expovariate(1 / mtbf)
    assert reliability.goodput(interval, cost, mtbf, restart) == pytest.approx(
        useful / wall, abs=0.01
    )
