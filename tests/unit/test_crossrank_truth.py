"""Matching, clocks and splits against simulated jobs whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analyzer.crossrank import compare_ranks
from analyzer.crossrank.bandwidth import network_of
from analyzer.crossrank.results import CrossRank
from analyzer.label import label_job
from analyzer.measure import measure_job
from collectors import open_job
from collectors.simulate import Defect, SimSpec, SimulatedJob, simulate, write
from collectors.simulate.job import ORIGIN_NS
from collectors.simulate.truth import instance_truth
from rules import Registry, run
from rules.registry import find_rule

FSDP_TP = {"mesh": {"dp_shard": 4, "tp": 2}, "strategy": "fsdp_tp"}
HSDP_TP = {"mesh": {"dp_replicate": 2, "dp_shard": 2, "tp": 2}, "strategy": "hsdp_tp"}
SMALL = {"layers": 3, "hidden": 512, "vocab": 512, "sequence": 512, "jitter": 0.05}
WRONG_CLOCKS = {"clock_skew_ns": 50_000_000, "clock_drift_ppm": 50.0}


def job_in(folder: Path, **spec: Any) -> SimulatedJob:
    job = simulate(SimSpec(**{**FSDP_TP, **SMALL, **spec}))
    write(job, folder)
    return job


def compared(folder: Path, ranks: range | list[int] | None = None) -> CrossRank:
    paths = sorted(folder.glob("rank*")) if ranks is None else [
        folder / f"rank{rank}.json.gz" for rank in ranks
    ]  # fmt: skip
    labeled = label_job(open_job([str(path) for path in paths]))
    found = compare_ranks(labeled.ranks, network_of([r.trace.meta for r in labeled.ranks]))
    assert found is not None
    return found


def offset_errors(job: SimulatedJob, found: CrossRank) -> list[float]:
    """Estimated minus injected offset of every rank, both against the lowest one seen."""
    clock = found.clock
    reference = min(clock.offset_ns)

    def injected(rank: int) -> float:
        running = clock.at_ns - ORIGIN_NS
        return job.clock_offset_ns[rank] + job.clock_drift_ppm[rank] * 1e-6 * running

    return [ns - injected(r) + injected(reference) for r, ns in clock.offset_ns.items()]


@pytest.mark.parametrize("job", [FSDP_TP, HSDP_TP], ids=["fsdp_tp", "hsdp_tp"])
@pytest.mark.parametrize("seed", range(3))
def test_complete_data_gives_the_truth_under_wrong_clocks(
    tmp_path: Path, job: dict[str, Any], seed: int
) -> None:
    made = job_in(tmp_path, **job, **WRONG_CLOCKS, seed=seed)
    found = compared(tmp_path)
    assert max(map(abs, offset_errors(made, found))) < 20_000
    truth = instance_truth(made.records)
    whole = found.instances.group_by("instance").agg("seen", "expected").explode("seen", "expected")
    assert found.instances["instance"].n_unique() == len(truth)
    assert (whole["seen"] == whole["expected"]).all()
    assert found.unmatched.is_empty()
    for axis in {entry["axis"] for entry in truth}:
        own = found.splits.filter(axis=axis)
        mine = [entry for entry in truth if entry["axis"] == axis]
        waits = sum(sum(entry["wait_ns"].values()) for entry in mine)
        transfers = sum(entry["transfer_ns"] for entry in mine)
        assert own["wait_ns"].sum() == pytest.approx(waits, rel=0.01)
        assert own.unique("instance")["transfer_ns"].sum() == pytest.approx(transfers, rel=0.01)


def test_exact_clocks_give_every_wait_and_transfer_exactly(tmp_path: Path) -> None:
    """Instance by instance, member by member, to the nanosecond."""
    made = job_in(tmp_path)
    found = compared(tmp_path)
    keys = found.instances.select("instance", "rank", "group", "op").join(
        found.splits.select("instance", "rank", "wait_ns", "transfer_ns", "late_rank"),
        on=["instance", "rank"],
    )
    got = sorted(
        (row["group"], row["op"], row["rank"], row["wait_ns"], row["transfer_ns"])
        for row in keys.iter_rows(named=True)
    )
    expected = sorted(
        (",".join(map(str, e["group"])), e["op"], rank, wait, e["transfer_ns"])
        for e in instance_truth(made.records)
        for rank, wait in e["wait_ns"].items()
    )
    assert got == expected


@pytest.mark.parametrize("job", [FSDP_TP, HSDP_TP], ids=["fsdp_tp", "hsdp_tp"])
@pytest.mark.parametrize("ranks", [[0, 3, 4, 7], [1, 2, 5, 6], [0, 1, 2, 3]])
def test_lost_collectives_and_missing_ranks_leave_the_clocks_right(
    tmp_path: Path, job: dict[str, Any], ranks: list[int]
) -> None:
    """Half of the ranks, a tenth of their collectives lost, clocks 50 ms and 50 ppm off."""
    made = job_in(tmp_path, **job, **WRONG_CLOCKS, drop_collectives=0.1, seed=7)
    found = compared(tmp_path, ranks)
    assert sorted(found.clock.offset_ns) == ranks
    assert max(map(abs, offset_errors(made, found))) < 20_000
    assert found.unmatched["count"].sum() > 0


def test_drift_is_found_where_the_capture_is_long_enough(tmp_path: Path) -> None:
    """130 ms at up to 50 ppm: microseconds of drift, known to a few parts in a million."""
    made = job_in(tmp_path, hidden=4096, sequence=4096, layers=4, **WRONG_CLOCKS, seed=3)
    found = compared(tmp_path)
    injected = dict(enumerate(made.clock_drift_ppm))
    assert max(map(abs, injected.values())) > 20
    for rank, ppm in found.clock.drift_ppm.items():
        assert ppm == pytest.approx(injected[rank], abs=3)
    assert max(found.clock.residual_ns.values()) < 500


def test_ranks_without_numbers_match_like_those_with(tmp_path: Path) -> None:
    """Without sequence numbers order alone finds the same instances, on clocks 50 ms apart."""
    job_in(tmp_path, **WRONG_CLOCKS, seed=5)
    labeled = label_job(open_job([str(p) for p in sorted(tmp_path.glob("rank*"))]))
    network = network_of([r.trace.meta for r in labeled.ranks])
    numbered = compare_ranks(labeled.ranks, network)
    blind = [_without_numbers(rank) for rank in labeled.ranks]
    ordered = compare_ranks(blind, network)
    assert numbered is not None
    assert ordered is not None

    def pairs(found: CrossRank) -> set[tuple[tuple[int, int], ...]]:
        groups = found.instances.group_by("instance").agg(pl.struct("rank", "event"))
        return {
            tuple(sorted((m["rank"], m["event"]) for m in members)) for members in groups["rank"]
        }

    assert set(ordered.instances["matched"].unique()) == {"order"}
    assert pairs(ordered) == pairs(numbered)


def _without_numbers(rank: Any) -> Any:
    import dataclasses

    bare = rank.activity.with_columns(pl.lit(None, dtype=pl.Int64).alias("seq"))
    return dataclasses.replace(rank, activity=bare)


# ---- late ranks ---------------------------------------------------------------------------------


def late_ranks(folder: Path) -> set[tuple[str | None, tuple[int, ...]]]:
    job = open_job([str(p) for p in sorted(folder.glob("rank*"))])
    m = measure_job(label_job(job), job)
    (outcome,) = run(m, registry=Registry((find_rule("SKW001"),)))
    return {(f.axis, f.ranks) for f in outcome.findings}


TINY = {"layers": 2, "hidden": 256, "vocab": 256, "sequence": 256, "jitter": 0.05}


@pytest.mark.parametrize("block", range(5))
def test_healthy_jobs_have_no_late_rank(tmp_path: Path, block: int) -> None:
    """50 seeded draws of small healthy jobs: noise and ties are nobody's fault."""
    for seed in range(10 * block, 10 * block + 10):
        mesh = {"dp_shard": 2, "tp": 2} if seed % 2 else {"dp_shard": 4}
        folder = tmp_path / str(seed)
        job_in(folder, **TINY, mesh=mesh, strategy="fsdp_tp" if seed % 2 else "fsdp", seed=seed)
        assert late_ranks(folder) == set(), seed


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_rank_is_late(tmp_path: Path, seed: int) -> None:
    """Rank 2 of 4 computes 1.3 times as long: it is late on its axis, and nobody else is."""
    slow = (Defect.parse("straggler:2=1.3"),)
    job_in(
        tmp_path, mesh={"dp_shard": 4}, strategy="fsdp", defects=slow, seed=seed, steps=4,
        hidden=2048, sequence=2048, **WRONG_CLOCKS,
    )  # fmt: skip
    found = late_ranks(tmp_path)
    assert ("dp_shard", (2,)) in found
    assert {ranks for _, ranks in found} == {(2,)}
