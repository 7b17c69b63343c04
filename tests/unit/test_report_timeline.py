"""The timeline: which windows are chosen, and what its slices say."""

from __future__ import annotations

import base64
import gzip
import json
from itertools import accumulate

import polars as pl
import pytest
from report_fixture import HOSTILE, US, make_measurements, sweep

from analyzer import schema
from analyzer.measure.results import Measurements
from reports.html.pack import columns, pack
from reports.text import visible
from reports.timeline import SLICES, Timeline, build_timeline

Job = tuple[Measurements, dict[int, pl.DataFrame]]


@pytest.fixture(scope="module")
def job() -> Job:
    return make_measurements()


@pytest.fixture(scope="module")
def timeline(job: Job) -> Timeline:
    m, activity = job
    return build_timeline(activity, m.steps, m.budget, origin_ns=m.origin_ns)


def build(job: Job, **options: object) -> Timeline:
    m, activity = job
    return build_timeline(activity, m.steps, m.budget, origin_ns=m.origin_ns, **options)  # type: ignore[arg-type]


def shown(timeline: Timeline) -> list[tuple[int, int]]:
    return [(w.rank, w.step) for w in timeline.windows]


def test_small_jobs_are_shown_whole(job: Job, timeline: Timeline) -> None:
    assert shown(timeline) == [(rank, step) for rank in range(8) for step in (1, 2, 3)]
    assert timeline.slices.columns == list(SLICES)
    assert timeline.left_out == ""
    streams = timeline.slices.filter(~pl.col("work").is_in(["idle", "exposed"]))
    kept = sum(frame.filter(pl.col("step") > 0).height for frame in job[1].values())
    assert streams.height == kept


def test_opens_with_the_most_exposed_rank(timeline: Timeline) -> None:
    assert timeline.default is not None
    assert timeline.default[0] == 3


def test_windows_are_relative_to_the_first_step(job: Job, timeline: Timeline) -> None:
    first = timeline.windows[0]
    row = job[0].steps.row(by_predicate=(pl.col("rank") == 0) & (pl.col("index") == 1), named=True)
    assert first.start_ns == row["start_ns"] - job[0].origin_ns[0]
    assert first.end_ns - first.start_ns == row["end_ns"] - row["start_ns"]
    assert first.label == "ProfilerStep#11"


def test_lost_time_equals_a_brute_force_sweep(job: Job, timeline: Timeline) -> None:
    """Axes never overlap each other in this job, so exposed slices must equal the budget's."""
    m, activity = job
    lost = {lane.rank: index for index, lane in enumerate(timeline.lanes) if lane.summary}
    for window in timeline.windows:
        start = window.start_ns + m.origin_ns[window.rank]
        end = window.end_ns + m.origin_ns[window.rank]
        truth = sweep(activity[window.rank], start, end)
        mine = timeline.slices.filter(
            (pl.col("lane") == lost[window.rank]) & (pl.col("step") == window.step)
        )
        for axis in ("dp_shard", "tp"):
            assert (
                mine.filter(pl.col("axis") == axis)["dur_ns"].sum() == truth["exposed_comm", axis]
            )
        idle = sum(ns for (state, _), ns in truth.items() if state == "idle")
        assert mine.filter(pl.col("work") == "idle")["dur_ns"].sum() == idle


def test_exposed_part_of_each_collective(timeline: Timeline) -> None:
    tp = timeline.slices.filter((pl.col("axis") == "tp") & (pl.col("work") == "comm"))
    assert (tp["exposed_ns"] == tp["dur_ns"]).all()
    scatter = timeline.slices.filter(pl.col("op") == "reduce_scatter")
    assert scatter["exposed_ns"].sum() == 0
    gather = timeline.slices.filter((pl.col("op") == "all_gather") & (pl.col("lane") == 2))
    assert gather["exposed_ns"].to_list().count(180 * US) == 3  # the first one of each step


def test_lanes_name_what_runs_on_them(timeline: Timeline) -> None:
    labels = [lane.label for lane in timeline.lanes if lane.rank == 0]
    assert labels == ["lost time", "compute · 7", "dp_shard · 20", "tp · 24"]


def test_several_devices_get_lanes_of_their_own(job: Job) -> None:
    m, activity = job
    two = pl.concat(
        [activity[0], activity[0].with_columns(pl.lit(1, dtype=pl.Int32).alias("lane"))]
    )
    steps = pl.concat([m.steps, m.steps.with_columns(pl.lit(1, dtype=pl.Int32).alias("lane"))])
    timeline = build_timeline(
        {0: schema.check(two.select(schema.ACTIVITY.names), schema.ACTIVITY)},
        steps.filter(pl.col("rank") == 0),
        m.budget.filter(pl.col("rank") == 0),
        origin_ns=m.origin_ns,
    )
    assert [lane.label for lane in timeline.lanes if lane.summary] == [
        "device 0 lost time",
        "device 1 lost time",
    ]


def test_cap_takes_worst_then_median_then_wanted(job: Job) -> None:
    per_step = job[1][0].filter(pl.col("step") == 1).height
    assert shown(build(job, cap=per_step)) == [(3, 1)]
    assert shown(build(job, cap=1)) == [(3, 1)]  # never nothing
    two = shown(build(job, cap=2 * per_step))
    assert (3, 1) in two
    assert len(two) == 2
    three = shown(build(job, cap=3 * per_step, wanted=[(7, 3)]))
    assert set(three) == {*two, (7, 3)}
    every_rank = shown(build(job, cap=9 * per_step, wanted=[(7, 3)]))
    assert {rank for rank, _ in every_rank} == set(range(8))


def test_what_is_left_out_is_said(job: Job) -> None:
    text = build(job, cap=1).left_out
    assert text.startswith("23 of 24 steps are not in the timeline")
    assert "1 of 8 ranks" in text


def test_wanted_steps_that_do_not_exist_are_ignored(job: Job) -> None:
    assert len(build(job, wanted=[(99, 1), (0, 77)]).windows) == 24


def test_without_a_kept_step_those_with_events_are_shown(job: Job) -> None:
    m, activity = job
    steps = m.steps.with_columns(
        kept=pl.lit(value=False),
        device_events=pl.when(pl.col("index") == 2).then(pl.col("device_events")).otherwise(0),
    )
    timeline = build_timeline(activity, steps, schema.BUDGET.empty(), origin_ns=m.origin_ns)
    assert {step for _, step in shown(timeline)} == {2}


def test_nothing_to_show() -> None:
    m, _ = make_measurements(ranks=(0,))
    empty = schema.ACTIVITY.empty()
    timeline = build_timeline({0: empty}, m.steps, m.budget, origin_ns=m.origin_ns)
    assert timeline.windows == ()
    assert timeline.default is None
    assert timeline.summary()["slices"] == 0
    assert build_timeline({}, m.steps.clear(), m.budget.clear(), origin_ns={}).lanes == ()


def test_packing_loses_nothing(timeline: Timeline) -> None:
    data = json.loads(gzip.decompress(base64.b64decode(pack(timeline))))
    starts: list[int] = []
    at = 0
    for count in data["count"]:
        starts += accumulate(data["start"][at : at + count])
        at += count
    slices = timeline.slices
    assert starts == slices["start_ns"].to_list()
    assert data["dur"] == slices["dur_ns"].to_list()
    kinds = [data["kinds"][k] for k in data["kind"]]
    assert [data["names"][k[0]] for k in kinds] == slices["name"].to_list()
    assert [k[1] for k in kinds] == slices["work"].to_list()
    assert [k[2] for k in kinds] == slices["axis"].to_list()
    assert data["exposed"] == slices.filter(pl.col("work") == "comm")["exposed_ns"].to_list()
    assert len(data["lanes"]) == len(data["count"]) == len(timeline.lanes)
    assert pack(timeline) == pack(timeline)


def test_packed_slices_are_small(timeline: Timeline) -> None:
    assert len(pack(timeline)) / timeline.slices.height < 8  # bytes each


def test_packed_names_are_visible_text() -> None:
    m, activity = make_measurements(ranks=(0,), hostile=True)
    timeline = build_timeline(activity, m.steps, m.budget, origin_ns=m.origin_ns)
    assert visible(HOSTILE) in columns(timeline)["names"]
