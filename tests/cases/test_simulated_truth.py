"""The whole pipeline on simulated jobs: every figure equals the simulator's truth exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from analyzer.api import Analysis, analyze
from collectors.simulate import Defect, SimSpec, simulate, write
from collectors.simulate.spec import parse_mesh

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


def measured_step(result: Analysis, rank: int, step: int) -> dict[str, Any]:
    """One step's budget in the form of truth.json."""
    rows = result.measurements.budget.filter(rank=rank, step=step)
    out: dict[str, Any] = {"exposed_comm_ns": {}, "idle_ns": {}, "time_ns": rows["ns"].sum()}
    for state, detail, ns in rows.select("state", "detail", "ns").iter_rows():
        if state == "exposed_comm":
            out["exposed_comm_ns"][detail] = ns
        elif state == "idle":
            out["idle_ns"][detail] = ns
        else:
            out[f"{state}_ns"] = ns
    return out


def measured_axes(result: Analysis, rank: int, step: int) -> dict[str, Any]:
    """One step's per-axis and per-op figures in the form of truth.json."""
    axes: dict[str, Any] = {}
    columns = ("count", "bytes", "comm_ns", "exposed_ns")
    rows = result.measurements.axis_step.filter(rank=rank, step=step)
    for row in rows.sort("axis", "op").iter_rows(named=True):
        figures = {name: row[name] for name in columns}
        if row["op"]:
            axes[row["axis"]]["ops"][row["op"]] = figures
        else:
            axes[row["axis"]] = figures | {"ops": {}}
    return axes


def assert_equals_truth(result: Analysis, truth: dict[str, Any]) -> None:
    """Compare every figure of every rank and step, to the nanosecond."""
    compared = 0
    for of_rank in truth["ranks"]:
        rank = of_rank["rank"]
        for index, expected in enumerate(of_rank["steps"]):
            got = measured_step(result, rank, index)
            for key in ("time_ns", "compute_ns", "memcpy_ns"):
                assert got[key] == expected[key], (rank, index, key)
            assert got["exposed_comm_ns"] == expected["exposed_comm_ns"], (rank, index)
            assert got["idle_ns"] == expected["idle_ns"], (rank, index)
            assert measured_axes(result, rank, index) == expected["axes"], (rank, index)
            compared += 1
    assert compared == result.measurements.steps.height > 0


@pytest.mark.parametrize("name", sorted(p.name for p in SAMPLES.iterdir() if p.is_dir()))
def test_every_sample_equals_its_truth(name: str) -> None:
    truth = json.loads((SAMPLES / name / "truth.json").read_text())
    strategy = truth["strategy"]
    result = analyze(SAMPLES / name, expect=strategy)
    assert_equals_truth(result, truth)
    assert result.document["job"]["mesh"] == truth["mesh"]
    assert result.exposed_comm_pct == pytest.approx(truth["mean"]["exposed_comm_pct"], abs=1e-9)
    assert result.document["exposed_comm_pct"] == result.exposed_comm_pct


@pytest.mark.parametrize(
    ("mesh", "strategy", "defects"),
    [
        ("dp_replicate=2,dp_shard=2", "hsdp", []),
        ("dp_replicate=2,dp_shard=2,tp=2", "hsdp_tp", ["late-reduce-scatter"]),
        ("dp_shard=2,tp=2", "fsdp_tp_sp", []),
        ("dp_replicate=2,tp=2", "ddp_tp", ["sync-every-layer"]),
        ("tp=4", "tp", []),
        ("dp_shard=4", "fsdp", ["data-stall", "straggler:1=1.3"]),
        ("dp_shard=2,tp=2", "fsdp_tp", ["slow-link:dp_shard=8"]),
    ],
)
def test_other_jobs_equal_their_truth(
    tmp_path: Path, mesh: str, strategy: str, defects: list[str]
) -> None:
    spec = SimSpec(
        mesh=parse_mesh(mesh),
        strategy=strategy,
        layers=3,
        hidden=1024,
        defects=tuple(Defect.parse(text) for text in defects),
    )
    write(simulate(spec), tmp_path)
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert_equals_truth(analyze(tmp_path, expect=strategy), truth)


@pytest.mark.parametrize("mesh", ["dp_shard=2,tp=2", "dp_replicate=2,dp_shard=2,tp=2"])
def test_unlabelled_groups_still_get_their_axes(tmp_path: Path, mesh: str) -> None:
    strategy = "fsdp_tp" if mesh.count("=") == 2 else "hsdp_tp"
    spec = SimSpec(
        mesh=parse_mesh(mesh),
        strategy=strategy,
        layers=3,
        hidden=1024,
        defects=(Defect.parse("unlabelled"),),
    )
    write(simulate(spec), tmp_path)
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert_equals_truth(analyze(tmp_path), truth)
