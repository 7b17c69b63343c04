"""Every public trace against its reviewed row, and against what others know about it.

The golden rows say what the program says; the catalogue (counted by other means when the traces
were collected) and the truth written into the small real runs say what it must say.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
from collections import Counter
from typing import Any

import polars as pl
import pytest
from tools.corpus_table import (
    GOLDEN,
    TRACES,
    differences,
    inputs,
    read_golden,
    row_of,
)

from analyzer.api import analyze
from analyzer.label import label_job
from collectors import open_job
from collectors.discovery import rank_from_groups

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not (TRACES / "CATALOG.tsv").exists(), reason="needs MESHSCOPE_TRACES"),
]

QUICK = (
    "kineto/colossalai/examples/inference/log/7f9abe8a4e8c_7101.1700560457683344186.pt.trace.json",
    "kineto/deepseek/train.json",
    "kineto/hta/tests/data/execution_trace/benchmark_simple_add_et.json.gz",
    "kineto/hta/tests/data/rank_non_gpu/rank_non_gpu.json.gz",
    "kineto/torchtitan_fsdp4/profiling/traces/iteration_6/*.json.gz",
    "kineto/tracelens/tests/rocprof/908_results.json.gz",
    "kineto/tracelens/tests/traces/mi210/gpu_only_trace/gpu_only_trace.json.gz",
    "npu/msprof_analyze/test/ut/advisor/timeline_advice/trace_view.json.gz",
)
"""One of each producer and outcome; the rest is marked slow."""


def catalogue() -> list[dict[str, str]]:
    if not (TRACES / "CATALOG.tsv").exists():
        return []
    with (TRACES / "CATALOG.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


CATALOGUE = catalogue()


@pytest.mark.parametrize("name", QUICK)
def test_one_of_each_kind(name: str) -> None:
    assert differences([row_of(name)], read_golden()) == []


@pytest.mark.slow
def test_every_trace() -> None:
    names = [name for name in inputs() if name not in QUICK]
    assert differences(map(row_of, names), read_golden()) == []
    assert set(read_golden()) == {*names, *QUICK}


def test_every_trace_in_kineto_form_gives_a_result() -> None:
    """The catalogue's `chrome` files all do; every other file has one line that says why not."""
    kinds = {entry["file"]: entry["type"] for entry in CATALOGUE}
    for name, row in read_golden().items():
        if "*" in name or kinds[name] == "chrome":
            assert row["outcome"] == "ok", name
        else:
            assert row["outcome"].startswith(f"exit 2: {name}: "), name


def test_golden_budgets_add_up() -> None:
    measured = [r for r in read_golden().values() if r["compute_pct"]]
    assert len(measured) > 100
    for row in measured:
        exposed = [float(part.split("=")[1]) for part in row["exposed_pct"].split()]
        parts = [*exposed, *(float(row[k]) for k in ("compute_pct", "memcpy_pct", "idle_pct"))]
        assert all(math.isfinite(part) and part >= 0 for part in parts), row["input"]
        assert sum(parts) == pytest.approx(100, abs=0.005 * len(parts) + 1e-9), row["input"]


# ---- the catalogue -------------------------------------------------------------------------------

POINT_TO_POINT = {"all_to_all", "send_recv"}  # one and the same kernel
CATALOGUE_NAMES = {
    "send/recv": POINT_TO_POINT,
    "ep_dispatch": {"dispatch"},
    "ep_combine": {"combine"},
}


def counted() -> list[Any]:
    folders = ("kineto", "npu", "et", "pipeline")
    rows = [r for r in CATALOGUE if r["type"] == "chrome" and r["file"].startswith(folders)]
    return [pytest.param(r, id=r["file"]) for r in rows if r["comm"] not in ("", "{}")]


@pytest.mark.parametrize("entry", counted())
def test_collectives_are_those_the_catalogue_counted(entry: dict[str, str]) -> None:
    """Number and total microseconds of communication, by kind where the kernel's name has one."""
    (rank,) = label_job(open_job([TRACES / entry["file"]])).ranks
    work, op = pl.col("work").cast(pl.String), pl.col("op").cast(pl.String)
    comm = rank.activity.filter(work.is_in(["comm", "fused"])).select(
        op, (pl.col("end_ns") - pl.col("start_ns")).alias("ns")
    )
    expected = json.loads(entry["comm"])
    assert comm.height == sum(count for count, _ in expected.values())
    assert comm["ns"].sum() / 1e3 == pytest.approx(
        sum(us for _, us in expected.values()), abs=2 * len(expected)
    )
    for kind, (count, us) in expected.items():
        if kind in {"other", "generic(ambiguous)"}:
            continue
        of_kind = comm.filter(pl.col("op").is_in(CATALOGUE_NAMES.get(kind, {kind})))
        if "other" not in expected:
            assert of_kind.height == count
            assert of_kind["ns"].sum() / 1e3 == pytest.approx(us, abs=2)
    kernels = rank.activity.filter(~work.is_in(["memcpy", "memset"])).height
    assert kernels == int(entry["kernels"])


def test_collectives_tell_the_rank_that_the_trace_states() -> None:
    seen = 0
    for path in (TRACES / "kineto").rglob("*rank*.json.gz"):
        if not re.search(r"modded_nanogpt|torchtitan", str(path)):
            continue
        (trace,) = open_job([path]).ranks
        assert rank_from_groups(trace.comm_args) == trace.meta.rank
        assert trace.meta.rank_source == "distributedInfo"
        seen += 1
    assert seen == 14


def union_us(spans: list[tuple[float, float]]) -> float:
    total, reach = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def whole_traces() -> list[Any]:
    rows = read_golden().values() if GOLDEN.exists() else ()
    # MTIA writes waits as kernels: they are told apart by name, which is not repeated here
    names = [r["input"] for r in rows if r["steps_from"] == "whole trace" and r["compute_pct"]]
    return [n for n in names if n.startswith("kineto") and "mtia" not in n]


@pytest.mark.parametrize("name", whole_traces())
def test_one_window_is_what_a_sweep_over_the_file_gives(name: str) -> None:
    """Without steps and communication the budget is plain unions of the file's own spans."""
    row, data = read_golden()[name], (TRACES / name).read_bytes()
    document = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    spans: dict[str, list[tuple[float, float]]] = {"kernel": [], "copy": []}
    for event in document["traceEvents"]:
        kind = str(event.get("cat", "")).lower().removeprefix("gpu_")
        kind = {"memcpy": "copy", "memset": "copy"}.get(kind, kind)
        if kind in spans:
            start = float(event["ts"])
            spans[kind].append((start, start + float(event["dur"])))
    busy = spans["kernel"] + spans["copy"]
    window = max(end for _, end in busy) - min(start for start, _ in busy)
    assert float(row["step_ms"]) == pytest.approx(window / 1e3, abs=0.001)
    compute = union_us(spans["kernel"])
    assert float(row["compute_pct"]) == pytest.approx(100 * compute / window, abs=0.006)
    idle = window - union_us(busy)
    assert float(row["idle_pct"]) == pytest.approx(100 * idle / window, abs=0.006)


# ---- truth of the small real runs ----------------------------------------------------------------


def runs() -> list[Any]:
    return [pytest.param(name, id=name) for name in inputs() if name.startswith("torch_cpu")]


def truth(name: str) -> dict[str, Any]:
    with gzip.open((TRACES / name).parent / "rank0.json.gz") as file:
        written: dict[str, Any] = json.load(file)["lab"]
    return written


@pytest.mark.slow
@pytest.mark.parametrize("name", runs())
def test_axes_are_those_that_were_run(name: str) -> None:
    lab = truth(name)
    document = analyze(sorted((TRACES / name).parent.glob("rank*.json.gz"))).document
    axes, job = document["axes"], document["job"]
    mesh = lab.get("mesh") or {"dim_names": ["dp_replicate"], "shape": [lab["world_size"]]}
    degrees = dict(zip(mesh["dim_names"], mesh["shape"], strict=True))
    assert {axis for axis in axes if axis != "world"} == set(degrees)
    assert {axis: axes[axis]["degree"] for axis in degrees} == degrees
    assert job["world_size"] == lab["world_size"] == math.prod(mesh["shape"])
    assert list(job["mesh"]) == mesh["dim_names"]
    assert job["host_side"]


def test_golden_covers_every_kind_of_anchor_and_producer() -> None:
    anchors = Counter(row["steps_from"] for row in read_golden().values())
    for anchor in ("ProfilerStep", "ProfilerStep (host side)", "optimizer", "whole trace"):
        assert anchors[anchor]
