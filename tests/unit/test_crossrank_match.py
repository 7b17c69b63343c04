"""Matching by order and by time on activity written directly as tables. Times in ns."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tables import event, labeled, span

from analyzer.crossrank.calls import calls_of, step_numbers
from analyzer.crossrank.match import Matched, match
from analyzer.model import LabeledRank

US = 1_000
TRACES = Path(
    os.environ.get("MESHSCOPE_TRACES", Path(__file__).resolve().parents[2].parent / "shared/traces")
)


def comm(start: float, end: float, **more: Any) -> dict[str, Any]:
    """A collective of ranks 0 and 1; times in microseconds."""
    row = {"group": "0,1", "group_size": 2, "group_name": "1", "message_bytes": 4096, **more}
    return event(round(start * US), round(end * US), "comm", **row)


def rank(
    number: int, rows: Sequence[Mapping[str, Any]], steps: Sequence[tuple[int, float, float]] = ()
) -> LabeledRank:
    """Steps as (number, start, end) in microseconds."""
    ranges = [span(f"ProfilerStep#{n}", round(a * US), round(b * US)) for n, a, b in steps]
    return labeled(rows, rank=number, ranges=ranges)


def matched(*ranks: LabeledRank) -> Matched:
    return match(calls_of(ranks))


def instances(found: Matched) -> list[dict[int, int]]:
    """Per instance: rank -> event row, in order of the first event."""
    seats: dict[int, dict[int, int]] = {}
    for row in found.instances.iter_rows(named=True):
        seats.setdefault(row["instance"], {})[row["rank"]] = row["event"]
    return sorted(seats.values(), key=lambda members: sorted(members.items()))


# ---- transfers ----------------------------------------------------------------------------------


def test_a_batched_kernel_takes_part_in_two_transfers() -> None:
    """A ring of three: each kernel sends to the next rank and receives from the one before."""
    ring = [
        rank(
            r,
            [
                comm(100 * k, 100 * k + 50, op="send_recv", group="0,1,2", group_size=3, axis="cp",
                     src_rank=(r - 1) % 3, dst_rank=(r + 1) % 3)
                for k in range(4)
            ],
        )
        for r in range(3)
    ]  # fmt: skip
    found = matched(*ring)
    assert found.instances.height == 3 * 4 * 2
    assert found.instances["seen"].unique().to_list() == [2]
    assert sorted(tuple(sorted(m)) for m in instances(found)) == 4 * [(0, 1)] + 4 * [(0, 2)] + 4 * [
        (1, 2)
    ]


def test_transfers_pair_in_order_per_direction_whatever_their_times() -> None:
    """Three sends 0 -> 1 that are done long before they are received, one back."""
    sends = [comm(10 * k, 10 * k + 1, op="send", dst_rank=1, axis="pp") for k in range(3)]
    receives = [
        comm(5_000 * k + 40_000, 5_000 * k + 40_010, op="recv", src_rank=0, axis="pp")
        for k in range(3)
    ]
    back = comm(60_000, 60_010, op="send", dst_rank=0, axis="pp")
    answer = comm(60_000, 60_010, op="recv", src_rank=1, axis="pp")
    found = matched(rank(0, [*sends, answer]), rank(1, [*receives, back]))
    assert instances(found) == [{0: k, 1: k} for k in range(4)]
    assert set(found.instances["matched"]) == {"order"}


def test_a_transfer_without_a_peer_is_lone() -> None:
    calls = calls_of([rank(0, [comm(0, 1, op="send_recv", axis="pp")]), rank(1, [])])
    assert calls.lone["reason"].to_list() == ["its peer is not known"]


# ---- groups -------------------------------------------------------------------------------------


def test_two_groups_over_the_same_ranks_are_kept_apart_by_their_order_of_creation() -> None:
    """Names are counters of each process: 3 and 12 on one rank are 5 and 7 on the other."""
    first = [comm(100 * k, 100 * k + 10, group_name="3", seq=k, op="all_gather") for k in range(3)]
    other = [comm(100 * k + 50, 100 * k + 60, group_name="12", seq=k) for k in range(3)]
    renamed = {"3": "5", "12": "7"}
    rows = [*first, *other]
    peer = [{**row, "group_name": renamed[row["group_name"]]} for row in rows]
    found = matched(rank(0, rows), rank(1, peer))
    assert found.desynchronised.is_empty()
    assert instances(found) == [{0: k, 1: k} for k in range(6)]


def test_parts_of_one_call_become_one_member() -> None:
    """A copy-engine all-gather is several copies with one sequence number."""
    parts = [comm(10, 20, op="all_gather", seq=1), comm(12, 25, op="all_gather", seq=1)]
    found = matched(rank(0, parts), rank(1, [comm(11, 25, op="all_gather", seq=1)]))
    rows = found.instances.select("rank", "start_ns", "end_ns").rows()
    assert rows == [(0, 10 * US, 25 * US), (1, 11 * US, 25 * US)]


def test_uneven_all_to_alls_are_one_call() -> None:
    rows = [comm(0, 10, op="all_to_allv", message_bytes=100, seq=1)]
    even = [comm(0, 10, op="all_to_all", message_bytes=80, seq=1)]
    assert matched(rank(0, rows), rank(1, even)).desynchronised.is_empty()


# ---- order and time -----------------------------------------------------------------------------

GAPS = [0, 1_000, 2_300, 3_100, 4_900, 5_600, 7_700, 8_200]


@pytest.mark.parametrize("offset", [0, 30_000])
def test_equally_many_calls_that_are_shifted_are_paired_by_time(offset: float) -> None:
    """Rank 0 lacks the step's first call, rank 1 its last: counting alone would pair neighbours.

    Two complete steps tell the clocks' difference.
    """

    def calls(step: int, skip: int | None, ahead: float) -> list[dict[str, Any]]:
        base = 20_000 * step + ahead
        return [comm(base + g, base + g + 100) for k, g in enumerate(GAPS) if k != skip]

    made = []
    for number, (skip, ahead) in enumerate([(0, 0.0), (7, offset)]):
        rows = [*calls(0, None, ahead), *calls(1, skip, ahead), *calls(2, None, ahead)]
        steps = [(s, 20_000 * s + ahead - 500, 20_000 * s + ahead + 15_000) for s in range(3)]
        made.append(rank(number, rows, steps))
    found = matched(*made)
    together = found.instances.filter(seen=2).group_by("instance").agg("end_ns")
    apart = {abs(b - a) for a, b in together["end_ns"].to_list()}
    assert apart == {offset * US}
    assert together.height == 8 + 6 + 8
    assert found.instances.filter(seen=1).height == 2


def test_scatter_does_not_undo_a_count_that_agrees() -> None:
    """Ends 3 ms apart at random around one offset, calls 1 ms apart: counting is all there is."""
    noise = np.random.default_rng(1).integers(-3_000, 3_000, 24)
    ends = np.sort(1_000 * np.arange(24) + 50_000 + noise)
    rows = [comm(1_000 * k + 50_000 - 500, 1_000 * k + 50_000) for k in range(24)]
    peer = [comm(float(e) - 1, float(e)) for e in ends]
    found = matched(rank(0, rows), rank(1, peer))
    assert instances(found) == [{0: k, 1: k} for k in range(24)]


def test_steps_without_numbers_are_shifted_to_where_their_starts_meet() -> None:
    """Rank 1's capture begins a step later; only optimizer ranges tell steps."""
    ranks = []
    for number, first in enumerate([0, 1]):
        rows = [comm(10_000 * s + 100, 10_000 * s + 200) for s in range(first, 4)]
        made = rank(number, rows, [(s, 10_000 * s, 10_000 * s + 9_000) for s in range(first, 4)])
        steps = made.steps.with_columns(label=made.steps["index"].cast(str))
        ranks.append(dataclasses.replace(made, steps=steps))
    assert step_numbers(ranks) == [{0: 0, 1: 1, 2: 2, 3: 3}, {0: 1, 1: 2, 2: 3}]


# ---- real runs ----------------------------------------------------------------------------------


def corpus(name: str) -> list[LabeledRank]:
    from analyzer.label import label_job
    from collectors import open_job

    paths = sorted(TRACES.glob(f"{name}/rank*.json.gz"))
    if not paths:
        pytest.skip("the public traces are not here")
    return list(label_job(open_job([str(path) for path in paths])).ranks)


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["pp_1f1b", "pp_fsdp_tp", "fsdp_tp", "ep_skew"])
def test_every_collective_of_a_complete_real_run_finds_its_counterpart(name: str) -> None:
    """gloo: no sequence numbers, peers counted within the group, ends milliseconds apart."""
    ranks = corpus(f"torch_cpu/{name}")
    calls = calls_of(ranks)
    found = match(calls)
    assert calls.lone.is_empty()
    assert found.desynchronised.is_empty()
    assert found.instances.height > 0
    assert (found.instances["seen"] == found.instances["expected"]).all()


@pytest.mark.corpus
def test_a_real_job_of_four_gpus_agrees_on_its_clock_and_names_who_is_late() -> None:
    """One host, so the true offsets are 0; rank 2 stalls in its data loader."""
    from analyzer.api import analyze

    folder = TRACES / "kineto/torchtitan_fsdp4/profiling/traces/iteration_6"
    if not folder.exists():
        pytest.skip("the public traces are not here")
    document = analyze(folder).document
    assert max(map(abs, document["clock"]["offset_ns"].values())) < 2_000
    assert document["clock"]["residual_ns"] < 3_000
    assert document["coverage"]["unmatched_total"] == 0
    (late,) = [f for f in document["findings"] if f["rule"] == "SKW001"]
    assert late["ranks"] == [2]
