"""Communication per axis, op and event; unavoidable exposure; means that add up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import event, labeled, measure, span

from analyzer.measure.caveats import compact
from analyzer.measure.summary import shares
from analyzer.model import IngestReport
from analyzer.strategy import AxisExpectation, OpExpectation, Strategy

STEPS = [span(f"ProfilerStep#{k}", 1000 * k - 10, 1000 * k + 990) for k in range(2)]
BIG, SMALL = 1 << 20, 1 << 10


def gather(start: int, end: int, **more) -> dict:
    return event(start, end, "comm", axis="dp_shard", op="all_gather", message_bytes=BIG) | more


def scatter(start: int, end: int, **more) -> dict:
    return gather(start, end, op="reduce_scatter", **more)


def sharded(t: int = 0) -> list[dict]:
    """One FSDP step: the first gather alone, the others under compute, the last scatter alone."""
    return [
        gather(t + 0, t + 100), event(t + 100, t + 600), gather(t + 150, t + 250),
        gather(t + 300, t + 400), scatter(t + 450, t + 650, message_bytes=SMALL),
        scatter(t + 650, t + 700),
    ]  # fmt: skip


def fsdp(**ops: str) -> Strategy:
    expectation = AxisExpectation(
        axis="dp_shard",
        degree=None,
        word="fsdp",
        required=(),
        ops={
            op: OpExpectation(op, critical=False, exposed_minimum=minimum)
            for op, minimum in ops.items()
        },
    )
    return Strategy("fsdp", ("fsdp",), {"dp_shard": expectation})


def summary(m, op: str = "", axis: str = "dp_shard"):
    return next(a for a in m.axes if (a.axis, a.op) == (axis, op))


def test_axis_figures_against_the_closed_form():
    m = measure(labeled(sharded() + sharded(1000), ranges=STEPS))
    assert m.axis_step.filter(step=1, op="").row(0, named=True) == {
        "rank": 0, "lane": 0, "step": 1, "kept": True, "axis": "dp_shard", "op": "", "count": 5,
        "bytes": 4 * BIG + SMALL, "comm_ns": 300 + 250, "exposed_ns": 100 + 50 + 50,
    }  # fmt: skip
    whole = summary(m)
    assert (whole.count, whole.bytes, whole.comm_ns, whole.exposed_ns) == (
        5.0, 4 * BIG + SMALL, 550, 200,
    )  # fmt: skip
    assert whole.overlap_pct == pytest.approx(100 * (1 - 200 / 550))
    assert [(a.op, a.count) for a in m.axes] == [
        ("", 5.0), ("all_gather", 3.0), ("reduce_scatter", 2.0),
    ]  # fmt: skip


def test_bytes_are_unknown_where_one_size_is():
    m = measure(labeled([event(0, 9), gather(10, 20), gather(30, 40, message_bytes=None)]))
    assert summary(m).bytes is None
    assert m.axis_step["bytes"].null_count() == m.axis_step.height


def test_b47_one_axis_seen_on_one_rank_is_averaged_over_all_windows():
    """Two ranks, one of them communicates 100 ns exposed: 50 per rank, as in the budget."""
    busy = labeled([event(0, 10), gather(10, 110)])
    quiet = labeled([event(0, 110)], rank=1)
    m = measure(busy, quiet)
    assert summary(m).exposed_ns == 50 == m.mean.exposed_comm_ns["dp_shard"]
    assert summary(m).count == 0.5
    assert m.exposed_comm_pct == pytest.approx((100 * 100 / 110 + 0) / 2)
    assert m.worst_rank.rank == 0


def test_events_carry_what_hides_them_and_the_compute_around_them():
    m = measure(labeled(sharded() + sharded(1000), ranges=STEPS))
    events = m.comm_events.filter(step=1).select(
        "start_ns", "exposed_ns", "compute_before_ns", "compute_after_ns"
    )
    assert events.rows() == [
        (1000, 100, 0, 500),
        (1150, 0, 50, 350),
        (1300, 0, 200, 200),
        (1450, 50, 350, 0),
        (1650, 50, 500, 0),
    ]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_event_exposure_against_a_sweep(data):
    spans = data.draw(
        st.lists(
            st.tuples(st.integers(0, 60), st.integers(0, 20), st.booleans()), min_size=1, max_size=9
        )
    )
    rows = [event(s, s + d, "comm" if comm else "compute") for s, d, comm in spans]
    events = measure(labeled(rows)).comm_events
    computing = {t for s, d, comm in spans if not comm for t in range(s, s + d)}
    for start, end, exposed, before, after in events.select(
        "start_ns", "end_ns", "exposed_ns", "compute_before_ns", "compute_after_ns"
    ).iter_rows():
        assert exposed == len(set(range(start, end)) - computing)
        assert before == len([t for t in computing if t < start])
        assert after == len([t for t in computing if t >= end])


def test_events_of_steps_that_are_left_out_are_not_listed():
    rank = labeled(sharded() + sharded(1000), ranges=STEPS, report=IngestReport(truncated=True))
    m = measure(rank)
    assert m.comm_events["step"].unique().to_list() == [0]
    assert m.axis_step.filter(kept=False).height > 0
    assert any("cut off" in warning for warning in m.warnings)


# -- what no schedule can hide --------------------------------------------------------------------


def test_expected_exposure_is_the_first_gather_and_the_last_scatter():
    m = measure(
        labeled(sharded() + sharded(1000), ranges=STEPS),
        strategy=fsdp(all_gather="first", reduce_scatter="last"),
    )
    assert summary(m, "all_gather").expected_exposed_ns == 100
    assert summary(m, "reduce_scatter").expected_exposed_ns == 50
    assert summary(m).expected_exposed_ns == 150
    assert summary(m).expected_why == (
        "fsdp: the step's first all_gather and the step's last reduce_scatter cannot be hidden"
    )


def test_a_straggling_instance_is_expected_at_the_median_of_its_kind():
    rows = [gather(0, 500), event(500, 600), gather(600, 700), event(700, 800), gather(800, 900)]
    m = measure(labeled(rows), strategy=fsdp(all_gather="first"))
    assert summary(m).expected_exposed_ns == 100
    m = measure(labeled(rows), strategy=fsdp(all_gather="all"))
    assert summary(m).expected_exposed_ns == 300
    m = measure(labeled(rows), strategy=fsdp(all_gather="none"))
    assert summary(m).expected_exposed_ns == 0
    assert "can be hidden" in summary(m).expected_why


def test_what_was_hidden_after_all_is_not_expected_to_be_exposed():
    rows = [event(0, 80), gather(0, 100), event(100, 500), gather(500, 600)]
    m = measure(labeled(rows), strategy=fsdp(all_gather="first"))
    assert summary(m).exposed_ns == 120
    assert summary(m).expected_exposed_ns == 20


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 400), st.integers(1, 90), st.sampled_from(["", "all_gather", "barrier"])
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["all", "first", "last", "none"]),
)
def test_expected_exposure_never_exceeds_the_exposure(spans, minimum):
    rows = [
        gather(s, s + d, op=op, stream=20 + n) if op else event(s, s + d)
        for n, (s, d, op) in enumerate(spans)
    ]
    m = measure(labeled(rows, ranges=STEPS), strategy=fsdp(all_gather=minimum))
    for axis in m.axes:
        assert axis.expected_exposed_ns is None or axis.expected_exposed_ns <= axis.exposed_ns


def test_an_op_the_strategy_does_not_describe_is_not_judged():
    rows = [event(0, 10), gather(10, 20), event(20, 30), gather(30, 70, op="broadcast")]
    m = measure(labeled(rows), strategy=fsdp(all_gather="none"))
    assert summary(m, "broadcast").expected_exposed_ns is None
    assert summary(m, "broadcast").expected_why == "broadcast is not part of fsdp"
    assert summary(m).expected_exposed_ns == 40
    assert "not judged: broadcast" in summary(m).expected_why


def test_an_axis_the_strategy_does_not_mention_has_no_expectation():
    rows = [event(0, 10), gather(10, 20, axis="ep", op="all_to_all")]
    m = measure(labeled(rows), strategy=fsdp(all_gather="none"))
    assert summary(m, axis="ep").expected_exposed_ns is None
    assert summary(m, axis="ep").expected_why == "strategy fsdp says nothing about ep"
    m = measure(labeled(rows))
    assert summary(m, axis="ep").expected_why == (
        "no strategy known to say what must be exposed on ep"
    )


# -- means and coverage ---------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=8), st.integers(1, 50))
def test_rounded_shares_add_up_and_are_off_by_less_than_one(sums, count):
    parts = shares(sums, count)
    assert sum(parts) == (sum(sums) + count // 2) // count
    assert all(abs(part * count - value) < count for part, value in zip(parts, sums, strict=True))


def test_means_are_over_kept_steps_and_ranks_and_add_up():
    first = labeled([event(0, 100), gather(100, 201), event(1000, 1500)], ranges=STEPS)
    second = labeled([event(0, 1000), event(1000, 1990)], ranges=STEPS, rank=1)
    m = measure(first, second)
    assert m.mean.time_ns == 1000
    assert m.mean.compute_ns in (647, 648)  # 2590 / 4
    assert m.mean.exposed_comm_ns == {"dp_shard": 25}
    parts = (m.mean.compute_ns, m.mean.exposed_total_ns, m.mean.memcpy_ns, m.mean.bubble_ns)
    assert sum(parts) + sum(m.mean.idle_ns.values()) == 1000
    assert m.exposed_comm_pct == pytest.approx(100 * 101 / 1010 / 4)
    assert [(r.rank, r.steps_kept) for r in m.per_rank] == [(0, 2), (1, 2)]
    assert m.origin_ns == {0: -10, 1: -10}


def test_b21_when_most_steps_are_empty_no_device_figure_is_given():
    ranges = [span(f"ProfilerStep#{k}", 1000 * k, 1000 * (k + 1)) for k in range(32)]
    m = measure(labeled([event(3100, 3990), event(17_100, 17_110)], ranges=ranges))
    assert (m.coverage.steps_total, m.coverage.steps_with_device_events) == (32, 2)
    assert m.mean is None
    assert m.exposed_comm_pct is None
    assert m.bubble_pct is None
    assert m.axes == () == m.per_rank
    assert m.null_reasons["exposed_comm_pct"] == "only 2 of 32 steps have device events"
    assert m.steps.height == 32


def test_b04_one_full_step_and_an_empty_one_behind_it_still_give_figures():
    ranges = [span("ProfilerStep#0", 0, 1000), span("ProfilerStep#1", 1000, 1002)]
    m = measure(labeled([event(0, 400), event(600, 1000)], ranges=ranges))
    assert m.mean.compute_ns == 800
    assert m.coverage.device_figures_ok


def test_nothing_to_measure():
    m = measure(labeled([]))
    assert m.mean is None
    assert m.null_reasons["step"] == "the traces hold neither device work nor operators"
    assert m.budget.is_empty()
    assert m.coverage.unclassified_pct is None


def test_warnings_name_what_is_missing():
    report = IngestReport(dropped={"negative duration": 2}, repaired={"unescaped quote": 1})
    rank = labeled([event(0, 90), event(90, 100, "unknown")], report=report, world_size=8)
    m = measure(rank)
    assert "7 of 8 ranks have no trace: 1-7" in m.warnings
    assert "events dropped on reading: 2 negative duration" in m.warnings
    assert "events repaired on reading: 1 unescaped quote" in m.warnings
    assert m.coverage.unclassified_pct == 10
    assert any(w.startswith("10.0 % of device time") for w in m.warnings)


def test_host_side_figures_say_so():
    m = measure(labeled([event(0, 100), gather(100, 200)], host_side=True))
    assert m.host_side
    assert m.device == "CPU"
    assert "no device events: figures are host-side" in m.warnings


@given(st.sets(st.integers(0, 30)))
def test_compact_lists_name_every_number(numbers):
    named = set()
    for part in filter(None, compact(numbers).split(", ")):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == numbers
