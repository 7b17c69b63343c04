"""Closed forms of pipeline schedules against the schedules played pass by pass, and the papers."""

from __future__ import annotations

import pipeline_schedules as played
import pytest

from analyzer.roofline import pipeline
from analyzer.roofline.pipeline import PassTimes, Schedule, Shape

ONE = PassTimes(1.0, 1.0, 1.0)


def orders(schedule: Schedule, shape: Shape) -> tuple[played.Orders, int]:
    """The schedule's orders and how many stages the model is cut into."""
    p, m, v = shape.ranks, shape.microbatches, shape.chunks
    made = {
        Schedule.GPIPE: lambda: played.gpipe(p, m),
        Schedule.ONE_F_ONE_B: lambda: played.one_f_one_b(p, m),
        Schedule.INTERLEAVED: lambda: played.interleaved(p, m, v),
        Schedule.ZB_H1: lambda: played.zero_bubble_h1(p, m),
        Schedule.ZB_H2: lambda: played.zero_bubble_h2(p, m),
        Schedule.ZBV: lambda: played.zbv(p, m),
        Schedule.DUALPIPE: lambda: played.dualpipe(p, m),
    }[schedule]()
    return made, p if schedule is Schedule.DUALPIPE else p * v


def run(schedule: Schedule, shape: Shape, times: PassTimes, t_comm: float = 0) -> played.Played:
    # DualPipe hosts two stages a rank, each with the whole rank's share of one direction
    cut = 1 if schedule is Schedule.DUALPIPE else shape.chunks
    made, stages = orders(schedule, shape)
    by_kind = {
        played.F: times.forward_s / cut,
        played.B: times.input_grad_s / cut,
        played.W: times.weight_grad_s / cut,
        played.FULL: (times.input_grad_s + times.weight_grad_s) / cut,
    }
    return played.play(made, by_kind, stages, t_comm)


GOLDEN = [
    (Schedule.GPIPE, Shape(8, 24), 21.0, 24),
    (Schedule.ONE_F_ONE_B, Shape(8, 24), 21.0, 8),
    (Schedule.INTERLEAVED, Shape(8, 24, 2), 10.5, 11.5),
    (Schedule.INTERLEAVED, Shape(8, 24, 4), 5.25, 9.75),
    (Schedule.ZB_H1, Shape(8, 24), 7.0, 8),
    (Schedule.ZB_H2, Shape(8, 24), 0.0, 15),
    (Schedule.ZBV, Shape(8, 24, 2), 0.0, 8),
    (Schedule.DUALPIPE, Shape(8, 20), 6.0, 9),
]


@pytest.mark.parametrize(("schedule", "shape", "idle", "peak"), GOLDEN)
def test_golden_bubbles_and_peaks(
    schedule: Schedule, shape: Shape, idle: float, peak: float
) -> None:
    found = pipeline.bubble(schedule, shape, ONE)
    assert found.time_s == idle
    assert found.over_ideal == idle / (3 * shape.microbatches)
    assert found.over_total == pytest.approx(found.over_ideal / (1 + found.over_ideal))
    assert pipeline.in_flight(schedule, shape, 0) == peak


@pytest.mark.parametrize(("schedule", "shape", "idle", "peak"), GOLDEN)
def test_playing_agrees(schedule: Schedule, shape: Shape, idle: float, peak: float) -> None:
    seen = run(schedule, shape, ONE)
    assert max(seen.bubbles()) == pytest.approx(idle, abs=1e-9)
    made, _ = orders(schedule, shape)
    chunks = 1 if schedule is Schedule.DUALPIPE else shape.chunks
    held = played.peak_in_flight(made, chunks)
    assert held[0] == peak
    for rank in range(shape.ranks):
        assert pipeline.in_flight(schedule, shape, rank) == held[rank]


UNEQUAL = [
    PassTimes(1.0, 1.0, 1.0),
    PassTimes(10.0, 9.5, 6.0),
    PassTimes(18.522, 18.086, 9.337),
    PassTimes(3.0, 3.5, 3.0),
]


@pytest.mark.parametrize("times", UNEQUAL)
@pytest.mark.parametrize("p", [2, 4, 8, 16])
@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [
        (Schedule.GPIPE, 1),
        (Schedule.ONE_F_ONE_B, 1),
        (Schedule.INTERLEAVED, 2),
        (Schedule.INTERLEAVED, 3),
        (Schedule.ZB_H1, 1),
        (Schedule.ZB_H2, 1),
    ],
)
def test_closed_forms_equal_the_schedule_played(
    schedule: Schedule, chunks: int, p: int, times: PassTimes
) -> None:
    shape = Shape(p, 3 * p, chunks)
    seen = run(schedule, shape, times)
    found = pipeline.bubble(schedule, shape, times)
    assert found.time_s == pytest.approx(max(seen.bubbles()), abs=1e-9)
    assert found.over_total == pytest.approx(max(seen.bubbles()) / seen.longest(), abs=1e-12)
    for rank, idle in enumerate(seen.bubbles()):
        by_rank = pipeline.rank_bubble_s(schedule, shape, times, rank)
        assert by_rank == pytest.approx(idle, abs=1e-9)


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 16), (8, 20), (16, 40)])
def test_dualpipe_played(p: int, m: int) -> None:
    times = PassTimes(1.0, 1.0, 1.0)
    seen = run(Schedule.DUALPIPE, Shape(p, m), times)
    found = pipeline.bubble(Schedule.DUALPIPE, Shape(p, m), times)
    assert found.time_s == pytest.approx(max(seen.bubbles()))
    assert found.over_total == pytest.approx((p - 2) / (3 * m + p - 2))


@pytest.mark.parametrize("p", [4, 8])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_fewer_micro_batches_than_ranks(p: int, m: int) -> None:
    times = PassTimes(2.0, 2.5, 1.5)
    for schedule in (Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.ZB_H2):
        found = pipeline.bubble(schedule, Shape(p, m), times)
        span = {
            Schedule.ONE_F_ONE_B: (m + p - 1) * times.work_s,
        }.get(schedule, (m + p - 1) * (2.0 + 2.5) + 1.5)  # Zero Bubble paper, appendix H
        assert found.time_s == pytest.approx(span - m * times.work_s)


@pytest.mark.parametrize(
    ("schedule", "shape", "hops"),
    [
        (Schedule.GPIPE, Shape(8, 24), 14),
        (Schedule.ONE_F_ONE_B, Shape(8, 24), 54),
        (Schedule.ZB_H1, Shape(8, 24), 28),
        (Schedule.ZB_H2, Shape(8, 24), 14),
        (Schedule.INTERLEAVED, Shape(8, 24, 2), 30),
        (Schedule.INTERLEAVED, Shape(4, 16, 3), 22),
        (Schedule.ONE_F_ONE_B, Shape(4, 32), 52),
        (Schedule.ZB_H1, Shape(16, 32), 60),
    ],
)
def test_exposed_transfers(schedule: Schedule, shape: Shape, hops: float) -> None:
    assert pipeline.transfer_s(schedule, shape, 1.0) == pytest.approx(hops)
    t_comm = 1e-3
    added = run(schedule, shape, ONE, t_comm).longest() - run(schedule, shape, ONE).longest()
    assert added == pytest.approx(hops * t_comm, rel=1e-6)


ZERO_BUBBLE = [
    # Zero Bubble Pipeline Parallelism (arXiv 2401.10241): p, m, then the profiled milliseconds of
    # F, B, W and one transfer (appendix D), then bubble rates of 1F1B, ZB-H1 and ZB-H2 (table 5)
    (8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585, 0.1083),
    (8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.1242, 0.0837),
    (8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674, 0.0444),
    (8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323, 0.0698),
    (8, 32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.1045, 0.0559),
    (8, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0554, 0.0294),
    (16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1397, 0.0672),
    (16, 64, 11.307, 11.254, 8.101, 0.379, 0.2082, 0.1088, 0.0516),
    (16, 128, 11.325, 11.308, 8.109, 0.378, 0.1251, 0.0576, 0.0266),
    (32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1421, 0.0641),
    (32, 128, 10.408, 10.204, 7.703, 0.408, 0.2168, 0.1106, 0.0490),
    (32, 256, 10.402, 10.248, 7.698, 0.460, 0.1352, 0.0594, 0.0257),
]
RATED = (Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.ZB_H2)


@pytest.mark.parametrize("row", ZERO_BUBBLE, ids=lambda row: f"p{row[0]}m{row[1]}F{row[2]}")
def test_zero_bubble_table_5(row: tuple[float, ...]) -> None:
    p, m, f, b, w, t_comm, *rates = row
    shape, times = Shape(int(p), int(m)), PassTimes(f, b, w)
    for schedule, published in zip(RATED, rates, strict=True):
        idle = pipeline.bubble(schedule, shape, times).time_s
        moved = pipeline.transfer_s(schedule, shape, t_comm)
        assert idle is not None
        assert moved is not None
        by_formula = (idle + moved) / (idle + moved + m * times.work_s)
        assert by_formula == pytest.approx(published, abs=1e-4)
        span = run(schedule, shape, times, t_comm).longest()
        assert (span - m * times.work_s) / span == pytest.approx(published, abs=1e-4)


INTERLEAVED_RATES = [  # table 5, column 1F1B-I, in the order of the rows above
    0.1055, 0.0818, 0.0443, 0.0808, 0.0628, 0.0320, 0.1104, 0.0852, 0.0445, 0.1493, 0.1164, 0.0624,
]  # fmt: skip
INTERLEAVED_CHUNKS = [3, 3, 3, 4, 4, 4, 3, 3, 3, 2, 2, 2]  # one layer a chunk; not printed


@pytest.mark.parametrize("row", range(12))
def test_zero_bubble_table_5_interleaved(row: int) -> None:
    p, m, f, b, w, t_comm, *_ = ZERO_BUBBLE[row]
    shape = Shape(int(p), int(m), INTERLEAVED_CHUNKS[row])
    times = PassTimes(f, b, w)
    idle = pipeline.bubble(Schedule.INTERLEAVED, shape, times).time_s
    moved = pipeline.transfer_s(Schedule.INTERLEAVED, shape, t_comm)
    assert idle is not None
    assert moved is not None
    rate = (idle + moved) / (idle + moved + m * times.work_s)
    assert rate == pytest.approx(INTERLEAVED_RATES[row], abs=0.0036)


FINGERPRINTS = [
    (Schedule.ONE_F_ONE_B, Shape(8, 24), [8, 7, 6, 5, 4, 3, 2, 1], False),
    (Schedule.GPIPE, Shape(8, 24), [24] * 8, False),
    (Schedule.INTERLEAVED, Shape(8, 24, 2), [23, 21, 19, 17, 15, 13, 11, 9], False),
    (Schedule.ZB_H1, Shape(8, 24), [8, 7, 6, 5, 4, 3, 2, 1], True),
    (Schedule.ZB_H2, Shape(8, 24), [15, 13, 11, 9, 7, 5, 3, 1], True),
    (Schedule.ZBV, Shape(8, 24, 2), [16] * 8, True),
    (Schedule.DUALPIPE, Shape(8, 20, 2), [8, 8, 8, 9, 9, 8, 8, 8], True),
]


@pytest.mark.parametrize(("schedule", "shape", "counts", "split"), FINGERPRINTS)
def test_fingerprints(schedule: Schedule, shape: Shape, counts: list[int], split: bool) -> None:
    ranks = range(shape.ranks)
    assert [pipeline.forwards_before_backward(schedule, shape, r) for r in ranks] == counts
    made, _ = orders(schedule, shape)
    assert played.forwards_before_backward(made) == counts
    found = pipeline.matching_schedules(
        counts, shape.microbatches, shape.chunks, split_backward=split
    )
    assert found == (schedule,)


def test_unknown_order_matches_nothing() -> None:
    assert pipeline.matching_schedules([5, 5, 5, 5], 12, 1, split_backward=False) == ()
    # the right counts with the wrong number of chunks
    assert pipeline.matching_schedules([8, 7, 6, 5, 4, 3, 2, 1], 24, 2, split_backward=False) == ()
    assert pipeline.matching_schedules([16] * 8, 24, 1, split_backward=True) == ()


def test_no_closed_form_is_said() -> None:
    unequal = pipeline.bubble(Schedule.ZBV, Shape(8, 24, 2), PassTimes(1, 1.2, 0.8))
    assert unequal.time_s is None
    assert "F = B = W" in unequal.reason
    ragged = pipeline.bubble(Schedule.INTERLEAVED, Shape(8, 20, 2), ONE)
    assert ragged.time_s is None
    assert pipeline.transfer_s(Schedule.ZBV, Shape(8, 24, 2), 1) is None
    assert pipeline.bubble(Schedule.DUALPIPE, Shape(8, 10), ONE).time_s is None


def test_published_ratios_of_paired_and_v_schedules() -> None:
    # DeepSeek-V3 table 2 with F = B = W: p = 8, m = 20: 66 slots, 6 idle
    found = pipeline.bubble(Schedule.DUALPIPE, Shape(8, 20), ONE)
    assert found.time_s == 6
    assert 60 + found.time_s == 66
    # the same machine as DualPipeV: 8 ranks host 16 half stages, each pass half as long
    halves = PassTimes(0.5, 0.5, 0.5)
    cut = pipeline.bubble(Schedule.DUALPIPE_V, Shape(16, 20), halves).time_s
    assert cut == pytest.approx((16 / 2 - 1) * (1.5 + 1.0 - 1.5))
    assert pipeline.in_flight(Schedule.DUALPIPE_V, Shape(16, 20), 0) == 17
    assert pipeline.bubble(Schedule.CHIMERA, Shape(8, 24), ONE).time_s == 9
    assert pipeline.in_flight(Schedule.CHIMERA, Shape(8, 24), 0) is None
    # a measured block of a forward beside a backward replaces F + B + W
    hidden = PassTimes(1.0, 1.0, 1.0, paired_s=2.5)
    assert pipeline.bubble(Schedule.DUALPIPE, Shape(8, 20), hidden).time_s == 3 * (2.5 + 2 - 3)


def test_llama_3_message_against_a_stage_forward() -> None:
    # L3 405B, b = 1, s = 8192, Y = 8: 33.5 MB, 0.67 ms at 50 GB/s, 1.3 % of a 52 ms forward
    row, _ = pipeline.pp_traffic(8192 * 16_384 * 2, Shape(16, 16), tensor_degree=8)
    assert row.size_bytes == pytest.approx(33.5e6, rel=0.002)
    assert row.size_bytes / 50e9 == pytest.approx(0.67e-3, rel=0.005)
    assert row.calls == 16
