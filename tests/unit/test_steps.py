"""Steps: anchors, membership by launch, windows that tile, and which steps count."""

from __future__ import annotations

from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import AUTOGRAD, activity_frame, event, labeled, measure, rank_trace, span

from analyzer.label.markers import find_markers
from analyzer.label.steps import assign_steps
from analyzer.model import IngestReport


def windows(rank, lane: int = 0) -> list[tuple[int, int]]:
    return rank.steps.filter(lane=lane).select("start_ns", "end_ns").rows()


def profiler_steps(*bounds: int) -> list[dict]:
    return [span(f"ProfilerStep#{k}", lo, hi) for k, (lo, hi) in enumerate(pairwise(bounds))]


def test_a_host_step_with_kernels_only_in_the_middle_has_its_whole_length():
    rank = labeled([event(100, 400), event(500, 700)], ranges=profiler_steps(0, 1000))
    assert windows(rank) == [(0, 1000)]
    assert rank.steps["kept"].to_list() == [True]


def test_windows_run_from_first_event_to_first_event_and_outlast_the_host():
    """The device is behind the host: step 1's kernels start after its host range is over."""
    rank = labeled(
        [
            event(20, 90, launch_ns=10), event(150, 200, launch_ns=110),
            event(230, 290, launch_ns=210), event(300, 450, launch_ns=220),
        ],
        ranges=profiler_steps(0, 100, 200, 300),
    )  # fmt: skip
    assert windows(rank) == [(0, 150), (150, 230), (230, 450)]
    assert rank.activity["step"].to_list() == [0, 1, 2, 2]
    assert rank.steps.select("host_start_ns", "host_end_ns").rows()[2] == (200, 300)


def test_the_launch_decides_whatever_thread_made_it():
    rank = labeled(
        [event(10, 20, launch_ns=5), event(150, 160, launch_ns=90, launch_tid=AUTOGRAD)],
        ranges=profiler_steps(0, 100, 200),
    )
    assert rank.activity["step"].to_list() == [0, 0]


def test_a_launch_between_two_ranges_belongs_to_the_earlier_step():
    ranges = [span("ProfilerStep#0", 0, 100), span("ProfilerStep#1", 150, 250)]
    rank = labeled([event(130, 140, launch_ns=120), event(170, 180, launch_ns=160)], ranges=ranges)
    assert rank.activity["step"].to_list() == [0, 1]


def test_launches_outside_the_capture_s_steps_belong_to_none():
    rank = labeled(
        [event(105, 120, launch_ns=90), event(130, 140, launch_ns=125), event(210, 220)],
        ranges=[span("ProfilerStep#7", 100, 200)],
    )
    assert rank.activity["step"].to_list() == [-1, 0, -1]
    assert rank.steps["label"].to_list() == ["ProfilerStep#7"]


def test_without_a_launch_the_device_annotation_decides():
    ranges = [
        *profiler_steps(0, 100, 200),
        span("ProfilerStep#0", 20, 130, side="device", tid=7, device=0),
        span("ProfilerStep#1", 140, 260, side="device", tid=7, device=0),
    ]
    rank = labeled([event(25, 30, launch_ns=None), event(120, 129, launch_ns=None)], ranges=ranges)
    assert rank.activity["step"].to_list() == [0, 0]


def test_without_launch_and_annotation_time_on_the_device_decides():
    """Step 1's first launched kernel runs at 150: what starts before it is still step 0."""
    rows = [
        event(10, 20, launch_ns=5),
        event(140, 145, launch_ns=None),
        event(150, 160, launch_ns=105),
        event(170, 175, launch_ns=None),
    ]
    rank = labeled(rows, ranges=profiler_steps(0, 100, 200))
    assert rank.activity["step"].to_list() == [0, 0, 1, 1]


@st.composite
def captures(draw):
    """Steps with gaps, several lanes and streams, launches and device times at random."""
    bounds = sorted(draw(st.lists(st.integers(0, 300), min_size=2, max_size=6, unique=True)))
    rows = []
    for _ in range(draw(st.integers(1, 14))):
        launch = draw(st.one_of(st.none(), st.integers(-20, 320)))
        start = draw(st.integers(0, 350)) if launch is None else launch + draw(st.integers(0, 90))
        more = {"lane": draw(st.integers(0, 1)), "stream": draw(st.integers(0, 2))}
        work = draw(st.sampled_from(["compute", "compute", "comm", "memcpy"]))
        rows.append(
            event(start, start + draw(st.integers(0, 40)), work, **{**more, "launch_ns": launch})
        )
    return rows, profiler_steps(*bounds)


def opening(events: list[dict], step: int) -> int | None:
    """Start of the first event of a step that does not run ahead, from the rule as written."""
    if not events:
        return None
    length = {e["stream"]: [0, 0, -e["stream"]] for e in events}
    for e in events:
        length[e["stream"]][0] += (e["end_ns"] - e["start_ns"]) * (e["work"] == "compute")
        length[e["stream"]][1] += e["end_ns"] - e["start_ns"]
    main = max(length, key=length.__getitem__)
    before = [e for e in events if e["step"] < step]
    opens = []
    for e in (e for e in events if e["step"] == step):
        must_be_over = [
            b["end_ns"]
            for b in before
            if b["stream"] == main or (e["work"] == "memcpy" and b["work"] != "memcpy")
        ]
        if e["stream"] == main or e["start_ns"] >= max(must_be_over, default=e["start_ns"]):
            opens.append(e["start_ns"])
    return min(opens, default=None)


@settings(max_examples=60, deadline=None)
@given(captures())
def test_windows_tile_and_hold_what_the_definition_says(capture):
    rows, ranges = capture
    rank = labeled(rows, ranges=ranges)
    for lane in rank.activity["lane"].unique():
        steps = rank.steps.filter(lane=lane)
        assert steps["index"].to_list() == list(range(len(ranges)))
        inside = rank.activity.filter(pl.col("lane") == lane, pl.col("step") >= 0)
        opens = [opening(inside.rows(named=True), k) for k in range(len(ranges))]
        assert (steps["end_ns"] >= steps["start_ns"]).all()
        assert steps["end_ns"][:-1].equals(steps["start_ns"][1:], check_names=False)
        for step, lo, hi, count in steps.select(
            "index", "start_ns", "end_ns", "device_events"
        ).iter_rows():
            events = inside.filter(step=step)
            assert count == events.height
            if opens[step] is None:
                assert lo == hi or not any(opens)
                continue
            after = [at for at in opens[step:] if at is not None]
            begin = min(after)  # a start behind a later one gives way
            first = step == min(k for k, at in enumerate(opens) if at is not None)
            assert lo == (min(begin, ranges[step]["start_ns"]) if first else begin)
            if len(after) == 1:
                assert hi == max(events["end_ns"].max(), ranges[step]["end_ns"])
        assert not steps.filter("kept", pl.col("start_ns") == pl.col("end_ns")).height


@settings(max_examples=40, deadline=None)
@given(captures(), st.integers(-(10**17), 10**17))
def test_shifting_the_clock_shifts_the_windows(capture, offset):
    rows, ranges = capture
    moved = [
        [
            {k: v + offset if k.endswith("_ns") and v is not None else v for k, v in row.items()}
            for row in part
        ]
        for part in capture
    ]
    here, there = labeled(rows, ranges=ranges), labeled(moved[0], ranges=moved[1])
    assert here.activity["step"].equals(there.activity["step"])
    for column in ("start_ns", "end_ns"):
        assert (here.steps[column] + offset).equals(there.steps[column])
    assert here.steps["kept"].equals(there.steps["kept"])


# -- work that runs ahead -------------------------------------------------------------------------


def queued(step: int, *, ahead: tuple[int, int] | None = None) -> list[dict]:
    """700 ns of compute and a 300 ns all-gather, one behind the other whatever the host does."""
    at, launched = 1000 * step, 200 * step + 1
    rows = [
        event(at, at + 700, launch_ns=launched),
        event(at + 700, at + 1000, "comm", launch_ns=launched),
    ]
    if ahead:
        rows.append(event(*ahead, "memcpy", launch_ns=launched, stream=30))
    return rows


@pytest.mark.parametrize("at", [602, 750, 990, 1650, 1720])
def test_a_prefetched_batch_opens_no_window(at):
    """The host issues a step every 200; step 3's batch is copied while steps 0 or 1 run."""
    rows = [row for k in range(5) for row in queued(k, ahead=(at, at + 20) if k == 3 else None)]
    rank = labeled(rows, ranges=profiler_steps(*range(0, 1200, 200)))
    assert windows(rank) == [(1000 * k, 1000 * k + 1000) for k in range(5)]
    assert rank.activity.filter(work="memcpy")["step"].to_list() == [3]
    assert measure(rank).exposed_comm_pct == 30


@pytest.mark.parametrize("pace", [50, 200, 600, 1000])
def test_exposure_does_not_depend_on_how_far_ahead_the_host_is(pace):
    rows = []
    for k in range(5):
        launch = pace * k + 1
        rows += [{**row, "launch_ns": launch} for row in queued(k, ahead=(launch + 5, launch + 25))]
    m = measure(labeled(rows, ranges=profiler_steps(*range(0, 5 * pace + 1, pace))))
    assert m.exposed_comm_pct == pytest.approx(30)
    assert m.mean.time_ns == 1000
    assert m.mean.exposed_total_ns == 300


def test_a_collective_that_only_waits_for_the_main_stream_opens_its_window():
    """Step 1's first all-gather runs before its first kernel, as soon as step 0 has computed."""
    rows = [*queued(0), event(1000, 1100, "comm", launch_ns=250), event(1100, 1500, launch_ns=260)]
    rank = labeled(rows, ranges=profiler_steps(0, 200, 400))
    assert windows(rank) == [(0, 1000), (1000, 1500)]


def test_a_step_whose_work_all_ran_ahead_has_no_window_and_takes_its_neighbour_along():
    rows = [*queued(0), event(500, 520, "memcpy", launch_ns=201, stream=30), *queued(2)]
    steps = labeled(rows, ranges=profiler_steps(*range(0, 800, 200))).steps
    assert steps.select("start_ns", "end_ns").rows() == [(0, 2000), (2000, 2000), (2000, 3000)]
    assert steps["kept"].to_list() == [False, False, True]
    assert steps["reason"].to_list() == [
        "its window reaches over a step whose work all ran ahead",
        "all its work ran ahead, in the windows of earlier steps",
        "",
    ]


def test_a_window_of_zero_length_is_never_kept():
    """Step 1, launched by a thread without regard to its stream, begins behind step 2."""
    rows = [
        event(10, 90, launch_ns=5),
        event(400, 450, launch_ns=150),
        event(300, 350, launch_ns=250),
        event(600, 650, launch_ns=350),
    ]
    rank = labeled(rows, ranges=profiler_steps(0, 100, 200, 300, 400))
    assert windows(rank) == [(0, 300), (300, 300), (300, 600), (600, 650)]
    assert rank.steps["kept"].to_list() == [True, False, True, True]
    assert rank.steps["reason"][1] == "its window is empty: all its work runs in other windows"
    m = measure(rank)
    assert m.mean.time_ns == round(650 / 3)
    assert m.budget.filter("kept").select("rank", "lane", "step").n_unique() == 3


# -- stray devices --------------------------------------------------------------------------------


def training(lane: int, *, busy: int = 700) -> list[dict]:
    return [
        row
        for k in range(3)
        for row in (
            event(1000 * k + 10, 1000 * k + 10 + busy, lane=lane),
            event(1000 * k + 10 + busy, 1000 * k + 310 + busy, "comm", lane=lane),
        )
    ]


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ("memset", "device 0 runs no kernel, device 3 does"),
        ("compute", "device 0 is busy for 0.2 % of device 3's time"),
    ],
)
def test_a_few_stray_events_on_another_device_weigh_nothing(work, reason):
    alone = measure(labeled(training(3), ranges=profiler_steps(*range(0, 4000, 1000))))
    rows = training(3) + [event(1000 * k + 100, 1000 * k + 102, work, lane=0) for k in range(3)]
    rank = labeled(rows, ranges=profiler_steps(*range(0, 4000, 1000)))
    m = measure(rank)
    assert m.exposed_comm_pct == alone.exposed_comm_pct
    assert m.mean == alone.mean
    assert {row.lane for row in m.per_rank} == {3}
    assert set(rank.steps.filter(lane=0)["reason"]) == {reason}
    assert f"{reason}: it does not count in averages" in m.warnings


@pytest.mark.parametrize(("busy", "kept"), [(700, True), (50, True), (49, False)])
def test_b42_devices_with_work_all_count(busy, kept):
    rows = [event(1000 * k + 10, 1010 + 1000 * k, lane=1) for k in range(3)]
    rows += [event(1000 * k + 10, 1000 * k + 10 + busy, lane=0) for k in range(3)]
    rank = labeled(rows, ranges=profiler_steps(*range(0, 4000, 1000)))
    assert rank.steps.filter(lane=0)["kept"].to_list() == [kept] * 3
    assert rank.steps.filter(lane=1)["kept"].to_list() == [True] * 3


def test_devices_without_any_kernel_on_the_rank_all_count():
    rows = [event(10, 100, "memcpy", lane=0), event(10, 90, "memcpy", lane=1)]
    assert labeled(rows, ranges=profiler_steps(0, 1000)).steps["kept"].to_list() == [True, True]


# -- which steps count ----------------------------------------------------------------------------


def loop(*counts: int, length: int = 1000) -> tuple[list[dict], list[dict]]:
    """One step a count, with that many kernels of 10 ns each."""
    rows = [
        event(k * length + 20 * i + 20, k * length + 20 * i + 30)
        for k, count in enumerate(counts)
        for i in range(count)
    ]
    return rows, profiler_steps(*range(0, length * (len(counts) + 1), length))


def test_m08_complete_steps_are_kept_the_last_included():
    rows, ranges = loop(20, 20, 20)
    assert labeled(rows, ranges=ranges).steps["kept"].to_list() == [True, True, True]


@pytest.mark.parametrize(
    ("counts", "kept"),
    [
        ((9, 20, 20), [False, True, True]),
        ((20, 20, 9), [True, True, False]),
        ((10, 20, 20), [True, True, True]),  # half the median is enough
        ((20, 9, 20), [True, True, True]),  # in the middle of a capture nothing is cut off
        ((9, 20), [True, True]),  # two steps say nothing about each other
    ],
)
def test_incomplete_steps_at_the_ends_are_left_out(counts, kept):
    rows, ranges = loop(*counts)
    steps = labeled(rows, ranges=ranges).steps
    assert steps["kept"].to_list() == kept
    assert all(
        ("incomplete" in reason) != k for reason, k in zip(steps["reason"], kept, strict=True)
    )


def test_b21_steps_without_device_events_are_listed_with_an_empty_window():
    rows, ranges = loop(20, 0, 20)
    steps = labeled(rows, ranges=ranges).steps
    assert steps["device_events"].to_list() == [20, 0, 20]
    assert steps["kept"].to_list() == [False, False, True]
    assert steps["reason"].to_list() == [
        "its window reaches over a step without device events", "no device events", "",
    ]  # fmt: skip
    assert steps["start_ns"][1] == steps["end_ns"][1] == steps["start_ns"][2]


def test_a_truncated_file_s_last_step_is_left_out():
    rows, ranges = loop(20, 20, 20)
    steps = labeled(rows, ranges=ranges, report=IngestReport(truncated=True)).steps
    assert steps["kept"].to_list() == [True, True, False]
    assert steps["reason"][2] == "the trace file is cut off"


@pytest.mark.parametrize(("lost", "kept"), [(4, True), (6, False)])
def test_a_step_whose_launches_have_no_device_events_is_left_out(lost, kept):
    rows, ranges = loop(20, 20)
    calls = [
        span("cudaLaunchKernel", row["launch_ns"], row["launch_ns"] + 1, correlation=n)
        for n, row in enumerate(rows)
        if n > 0  # correlation 0 is none
    ]
    calls += [
        span("cudaLaunchKernel", 1500 + n, 1501 + n, correlation=900 + n) for n in range(lost)
    ]
    calls += [span("cudaStreamSynchronize", 1600, 1700, correlation=999)]
    steps = labeled(rows, ranges=ranges, launches=calls).steps
    assert steps["kept"].to_list() == [True, kept]
    assert ("launches have no device event" in steps["reason"][1]) is not kept


@pytest.mark.parametrize(
    ("orphans", "kept"),
    [((6, 0, 1), False), ((4, 0, 0), True), ((6, 6, 6), True), ((0, 9, 9), True)],
)
def test_a_first_step_that_begins_with_earlier_work_is_left_out(orphans, kept):
    """Work launched before the capture fills the first window; lost launches are everywhere."""
    rows, ranges = loop(20, 20, 20)
    for step, count in enumerate(orphans):
        for row in rows[20 * step + 1 : 20 * step + 1 + count]:
            row["launch_ns"] = None
    steps = labeled(rows, ranges=ranges).steps
    assert steps["kept"].to_list() == [kept, True, True]
    assert steps["device_events"].to_list() == [20, 20, 20]


# -- anchors --------------------------------------------------------------------------------------


def test_b32_intersecting_and_repeated_ranges_still_give_steps():
    ranges = [
        span("ProfilerStep#1", 0, 110),
        span("ProfilerStep#1", 0, 108, tid=AUTOGRAD),
        span("ProfilerStep#2", 100, 210),
        span("train", 50, 110),
    ]
    rank = labeled([event(20, 30), event(150, 160), event(115, 120)], ranges=ranges)
    assert rank.steps["label"].to_list() == ["ProfilerStep#1", "ProfilerStep#2"]
    assert rank.activity["step"].to_list() == [0, 1, 1]


def test_markers_inside_another_marker_split_no_step():
    ranges = [
        *profiler_steps(0, 1000, 2000),
        span("ProfilerStep#9", 300, 400, tid=AUTOGRAD),
        span("ProfilerStep#10", 1900, 2000),
    ]
    rank = labeled([event(350, 360), event(500, 700), event(1950, 1990)], ranges=ranges)
    assert rank.steps["label"].to_list() == ["ProfilerStep#0", "ProfilerStep#1"]
    assert rank.activity["step"].to_list() == [0, 0, 1]
    assert "2 step markers lie inside another one and were ignored" in rank.notes


def test_unnumbered_profiler_steps_are_told_apart_by_time():
    ranges = [span("ProfilerStep*", 0, 100), span("ProfilerStep*", 100, 200)]
    rank = labeled([event(20, 30), event(150, 160)], ranges=ranges)
    assert rank.activity["step"].to_list() == [0, 1]


def test_device_annotations_alone():
    ranges = [
        span(f"ProfilerStep#{k}", 100 * k, 100 * k + 90, side="device", tid=stream, device=0)
        for k in range(2)
        for stream in (7, 20)
    ]
    rank = labeled([event(5, 30, launch_ns=None), event(110, 160)], ranges=ranges)
    assert rank.step_source == "device annotation"
    assert rank.activity["step"].to_list() == [0, 1]
    assert windows(rank) == [(5, 110), (110, 160)]
    assert rank.steps["host_start_ns"].null_count() == 2


def test_collector_ranges():
    ranges = [span("analyzer.step rank=0 n=5", 0, 100), span("analyzer.step rank=0 n=6", 100, 200)]
    rank = labeled([event(20, 30), event(150, 160)], ranges=ranges)
    assert rank.step_source == "step range"
    assert windows(rank) == [(0, 150), (150, 200)]


def optimizer_capture(*, tail: bool):
    rows = [event(20, 30), event(60, 70), event(120, 130), event(160, 170)]
    rows += [event(220, 230)] if tail else []
    ranges = [
        span("Optimizer.step#Adam.step", lo, hi)
        for lo, hi in ((80, 85), (90, 95), (180, 185), (190, 195))
    ]
    node = "autograd::engine::evaluate_function: MmBackward0"
    return rows, {"ranges": ranges, "ops": [span(node, 50, 60), span(node, 150, 160)]}


def test_m20_optimizer_ranges_end_steps_and_two_optimizers_make_one():
    rows, trace = optimizer_capture(tail=False)
    rank = labeled(rows, **trace)
    assert rank.step_source == "optimizer"
    assert rank.activity["step"].to_list() == [0, 0, 1, 1]
    assert windows(rank) == [(20, 120), (120, 170)]
    assert rank.steps["kept"].to_list() == [True, True]


def test_what_follows_the_last_optimizer_is_an_incomplete_step():
    rows, trace = optimizer_capture(tail=True)
    rank = labeled(rows, **trace)
    assert rank.steps["kept"].to_list() == [True, True, False]
    assert rank.steps["reason"][2] == "the capture ends inside it"


def test_m20_repeating_collectives():
    """Three periods of all-gather, all-gather, reduce-scatter."""
    rows = [
        event(100 * k + 30 * i + 10, 100 * k + 30 * i + 30, "comm", op=op)
        for k in range(3)
        for i, op in enumerate(("all_gather", "all_gather", "reduce_scatter"))
    ]
    rank = labeled(rows)
    assert rank.step_source == "collective"
    assert windows(rank) == [(10, 110), (110, 210), (210, 290)]
    assert "period of 3" in rank.notes[0]


@pytest.mark.parametrize("ops", [["all_reduce"] * 9, ["all_gather", "all_reduce", "barrier"]])
def test_m20_collectives_without_a_period_leave_one_step(ops):
    rows = [event(30 * i + 10, 30 * i + 30, "comm", op=op) for i, op in enumerate(ops)]
    rank = labeled(rows)
    assert rank.step_source == "whole trace"
    assert windows(rank) == [(10, rows[-1]["end_ns"])]
    assert rank.steps["kept"].to_list() == [True]
    assert rank.steps["host_start_ns"].null_count() == 1


def test_b04_one_profiler_step_around_a_whole_loop_says_so():
    rows, _ = loop(20, 20, 20, 20)
    ranges = [span("ProfilerStep#0", 0, 4000), span("ProfilerStep#1", 4000, 4010)]
    ranges += [span("Optimizer.step#SGD.step", 1000 * k + 900, 1000 * k + 950) for k in range(4)]
    rank = labeled(rows, ranges=ranges)
    assert rank.steps["kept"].to_list() == [True, False]
    assert "one ProfilerStep holds 4 optimizer steps" in rank.notes[0]


# -- host-side traces and empty ones --------------------------------------------------------------


def test_host_side_windows_are_the_host_ranges_tiled():
    ranges = [span("ProfilerStep#0", 0, 95), span("ProfilerStep#1", 100, 200)]
    rows = [event(20, 60, launch_ns=None), event(150, 230, "comm", launch_ns=150)]
    rank = labeled(rows, ranges=ranges, host_side=True)
    assert windows(rank) == [(0, 100), (100, 230)]
    assert rank.activity["step"].to_list() == [0, 1]


def test_no_events_and_no_markers_give_no_steps():
    events = activity_frame([])
    result = assign_steps(rank_trace(events), events)
    assert result.steps.is_empty()
    assert result.source == "whole trace"


def test_markers_without_any_event_are_listed():
    rank = labeled([], ranges=profiler_steps(0, 100, 200))
    assert rank.steps["reason"].to_list() == ["no device events"] * 2


def test_all_lanes_share_the_index():
    rows = [event(20, 30), event(150, 160), event(25, 40, lane=1), event(170, 180, lane=1)]
    rank = labeled(rows, ranges=profiler_steps(0, 100, 200))
    assert windows(rank, 0) == [(0, 150), (150, 200)]
    assert windows(rank, 1) == [(0, 170), (170, 200)]


def test_markers_locate():
    events = activity_frame([event(20, 30)])
    markers = find_markers(rank_trace(events, ranges=profiler_steps(0, 100, 200)), events)
    times = pl.Series([-1, 0, 99, 100, 199, 200]).to_numpy()
    assert markers.locate(times).tolist() == [-1, 0, 0, 1, 1, -1]
