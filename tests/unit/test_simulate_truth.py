"""The truth is right: it adds up, equals a count of nanoseconds, and follows the definitions."""

from __future__ import annotations

import numpy as np
import pytest

from analyzer.model import AXES
from collectors.simulate import Defect, SimSpec, parse_mesh, simulate
from collectors.simulate.engine import DeviceEvent, HostEvent, RankRecord, StepMark
from collectors.simulate.programs.step import DATALOADER
from collectors.simulate.spec import Group
from collectors.simulate.tape import Collective, Stream, Thread, Work
from collectors.simulate.truth import SYNC_CALLS, axis_of, job_truth, rank_truth

JOBS = [
    ("dp_shard=2,tp=2", "fsdp_tp", ()),
    ("dp_shard=2,tp=2", "fsdp_tp_sp", ("no-prefetch", "sync-every-layer")),
    ("dp_replicate=2,dp_shard=2,tp=2", "hsdp_tp", ("late-reduce-scatter", "straggler:1=1.4")),
    ("dp_shard=4", "fsdp", ("host-bound=5", "sync-every-layer", "data-stall=20")),
    ("dp_replicate=4", "ddp", ("small-collectives", "slow-link:dp_replicate=3")),
    ("tp=2", "tp", ("data-stall=900",)),
]


def make_job(mesh, strategy, defects):
    parsed = tuple(Defect.parse(d) for d in defects)
    spec = SimSpec(
        parse_mesh(mesh), strategy, defects=parsed, steps=2, layers=2, hidden=256, vocab=256,
        sequence=512, jitter=0.1, seed=5,
    )  # fmt: skip
    return simulate(spec)


def budget_sum(step):
    exposed = sum(step["exposed_comm_ns"].values())
    return step["compute_ns"] + exposed + step["memcpy_ns"] + sum(step["idle_ns"].values())


@pytest.mark.parametrize(("mesh", "strategy", "defects"), JOBS)
def test_budget_adds_up_and_windows_touch(mesh, strategy, defects):
    job = make_job(mesh, strategy, defects)
    for rank in job.truth["ranks"]:
        steps = rank["steps"]
        assert [step["step"] for step in steps] == [10, 11]
        assert all(budget_sum(step) == step["time_ns"] for step in steps)
        assert steps[0]["end_ns"] == steps[1]["start_ns"]


def count_nanoseconds(record, step):
    """The same budget and axes by looking at every nanosecond of the window."""
    start, end = step["start_ns"], step["end_ns"]
    size = end - start

    def covered(spans):
        mask = np.zeros(size, dtype=bool)
        for a, b in spans:
            mask[max(a - start, 0) : max(b - start, 0)] = True
        return mask

    def device(keep):
        return covered((e.start_ns, e.end_ns) for e in record.device if keep(e))

    compute = device(lambda e: axis_of(e) is None and e.work.kind == "kernel")
    copy = device(lambda e: e.work.kind != "kernel")
    axes = [a for a in AXES if any(axis_of(e) == a for e in record.device)]
    running = {axis: device(lambda e, axis=axis: axis_of(e) == axis) for axis in axes}
    any_comm = np.any(list(running.values()), axis=0)
    # One bit an axis: the combination of axes active at each nanosecond without compute.
    codes = sum((running[axis] & ~compute) * (1 << bit) for bit, axis in enumerate(axes))
    combinations = {
        tuple(axis for bit, axis in enumerate(axes) if code >> bit & 1): int(total)
        for code, total in zip(*np.unique(codes, return_counts=True), strict=True)
        if code
    }
    exposed = dict.fromkeys(axes, 0)
    for members, total in combinations.items():
        for position, axis in enumerate(members):
            exposed[axis] += total // len(members) + (position < total % len(members))
    idle = ~(compute | any_comm | copy)
    return {
        "compute_ns": int(compute.sum()),
        "memcpy_ns": int((copy & ~compute & ~any_comm).sum()),
        "exposed_comm_ns": {axis: ns for axis, ns in exposed.items() if ns},
        "idle_ns": idle_by_cause(record, np.flatnonzero(idle) + start, end, covered, start),
        "axes": {axis: (int(on.sum()), int((on & ~compute).sum())) for axis, on in running.items()},
    }


def idle_by_cause(record, instants, window_end, covered, start):
    """Each idle nanosecond looks for the next event and asks where its launching thread is."""
    if not len(instants):
        return dict.fromkeys(("data", "sync", "host_bound", "other"), 0)
    upcoming = sorted((e.start_ns, e.launch_start_ns, e.thread.value) for e in record.device)
    starts = np.array([s for s, _, _ in upcoming] + [np.iinfo(np.int64).max])
    launches = np.array([launch for _, launch, _ in upcoming] + [window_end])
    threads = np.array([thread for _, _, thread in upcoming] + ["main"])
    following = np.searchsorted(starts, instants, side="right")
    following[starts[following] >= window_end] = len(upcoming)
    # An event that opens the next window ends this window's last gap.
    at_end = np.flatnonzero(starts == window_end)
    if len(at_end):
        following[following == len(upcoming)] = at_end[0]
    data = covered((e.start_ns, e.end_ns) for e in record.host if e.name == DATALOADER)
    waits = [e for e in record.host if e.name in SYNC_CALLS]
    in_sync = np.zeros(len(instants), dtype=bool)
    for thread in Thread:
        spans = [(e.start_ns, e.end_ns) for e in waits if e.thread is thread]
        in_sync |= covered(spans)[instants - start] & (threads[following] == thread.value)
    other = instants >= launches[following]
    in_data = ~other & data[instants - start]
    in_sync &= ~other & ~in_data
    return {
        "data": int(in_data.sum()),
        "sync": int(in_sync.sum()),
        "host_bound": int((~other & ~in_data & ~in_sync).sum()),
        "other": int(other.sum()),
    }


@pytest.mark.parametrize(("mesh", "strategy", "defects"), JOBS)
def test_truth_equals_a_count_of_nanoseconds(mesh, strategy, defects):
    job = make_job(mesh, strategy, defects)
    for record in job.records[1:2]:
        for step in rank_truth(record):
            counted = count_nanoseconds(record, step)
            axes = counted.pop("axes")
            found = {key: step[key] for key in counted}
            found["exposed_comm_ns"] = {a: v for a, v in step["exposed_comm_ns"].items() if v}
            assert found == counted
            assert {
                axis: (figures["comm_ns"], figures["exposed_ns"])
                for axis, figures in step["axes"].items()
            } == axes


# -- hand-made records ----------------------------------------------------------------------------


def work(kind: str, axis: str | None = None) -> Work:
    group = Group("1", "", (0, 1), axis or "")
    call = Collective("all_reduce", axis, group, 10, "Float", 0) if axis else None
    return Work("w", 0, kind, collective=call)


def event(start, end, launch, *, kind="kernel", axis=None, step=0, thread=Thread.MAIN):
    stream = Stream.TENSOR if axis else Stream.COMPUTE
    made = DeviceEvent(
        work(kind, axis), stream, step, launch, launch + 1, thread, 0, 0, end - start
    )
    made.start_ns, made.end_ns = start, end
    return made


def call(name, start, end, thread=Thread.MAIN):
    return HostEvent("cuda_runtime", name, thread, start, end)


def one_step(device, host=(), end=1000):
    return rank_truth(RankRecord(0, list(host), list(device), [StepMark(0, 0, end)]))[0]


def test_head_and_tail_of_a_single_step_count():
    """Host step 0-1000 with kernels only in 100-700 has 1000, not 600."""
    step = one_step(
        [
            event(100, 300, 50),
            event(250, 400, 60, axis="tp"),
            event(500, 550, 70, kind="gpu_memcpy"),
            event(600, 700, 80),
        ]
    )
    assert step["time_ns"] == 1000
    assert step["compute_ns"] == 300
    assert step["exposed_comm_ns"] == {"tp": 100}
    assert step["memcpy_ns"] == 50
    # head: 50 until the launch, 50 after it; gaps of 100 and 50 after launches; tail of 300
    assert step["idle_ns"] == {"data": 0, "sync": 0, "host_bound": 350, "other": 200}
    assert step["axes"]["tp"]["exposed_ns"] == 100


def test_axes_share_an_instant_and_the_remainder_goes_in_canonical_order():
    device = [
        event(0, 1, 0),
        event(1, 102, 0, axis="tp"),
        event(1, 102, 0, axis="dp_shard"),
        event(102, 103, 0, axis="tp"),
    ]
    step = one_step(device, end=103)
    assert step["exposed_comm_ns"] == {"dp_shard": 51, "tp": 50 + 1}
    assert step["axes"]["tp"]["exposed_ns"] == 102


def test_data_precedes_sync_precedes_host_bound():
    host = [call("cudaStreamSynchronize", 100, 300), call(DATALOADER, 250, 400)]
    step = one_step([event(0, 100, 0), event(600, 1000, 500)], host)
    assert step["idle_ns"] == {"data": 150, "sync": 150, "host_bound": 100, "other": 100}


def test_only_the_launching_threads_synchronisation_counts():
    host = [call("cudaDeviceSynchronize", 100, 300)]
    device = [event(0, 100, 0), event(600, 1000, 500, thread=Thread.BACKWARD)]
    assert one_step(device, host)["idle_ns"]["sync"] == 0


def test_the_earliest_launch_of_simultaneous_events_ends_host_time():
    device = [event(0, 100, 0), event(600, 1000, 500), event(600, 900, 300, axis="tp")]
    idle = one_step(device)["idle_ns"]
    assert (idle["host_bound"], idle["other"]) == (200, 300)


def test_the_tail_is_host_time_and_only_in_the_last_step():
    record = RankRecord(
        0,
        [call("cudaStreamSynchronize", 250, 350)],
        [event(0, 100, 0, step=0), event(150, 200, 120, step=1)],
        [StepMark(0, 0, 90), StepMark(1, 90, 400)],
    )
    first, last = rank_truth(record)
    assert (first["end_ns"], last["end_ns"]) == (150, 400)
    assert first["idle_ns"] == {"data": 0, "sync": 0, "host_bound": 20, "other": 30}
    assert last["idle_ns"] == {"data": 0, "sync": 100, "host_bound": 100, "other": 0}


def test_work_of_a_step_that_runs_into_the_next_counts_there_in_time():
    record = RankRecord(
        0,
        [],
        [
            event(0, 100, 0, step=0),
            event(50, 300, 0, axis="tp", step=0),
            event(200, 250, 0, step=1),
        ],
        [StepMark(0, 0, 10), StepMark(1, 10, 20)],
    )
    first, last = rank_truth(record)
    assert (first["end_ns"], last["end_ns"]) == (200, 250)
    assert (first["axes"]["tp"]["comm_ns"], first["axes"]["tp"]["count"]) == (150, 1)
    assert (last["axes"]["tp"]["comm_ns"], last["axes"]["tp"]["count"]) == (50, 0)


def test_means_and_the_worst_rank():
    def record(rank, comm_end):
        device = [event(0, 100, 0), event(100, comm_end, 0, axis="tp")]
        return RankRecord(rank, [], device, [StepMark(0, 0, 50)])

    truth = job_truth([record(0, 200), record(1, 400)], 7)
    assert truth["ranks"][0]["steps"][0]["start_ns"] == 7
    mean = truth["mean"]
    assert mean["time_ns"] == 300
    assert mean["exposed_comm_ns"] == {"tp": 200}
    assert mean["exposed_comm_pct"] == pytest.approx((50 + 75) / 2)
    assert mean["exposed_comm_pct_worst"] == {"rank": 1, "pct": 75}


def test_a_rank_without_device_events_has_no_steps():
    truth = job_truth([RankRecord(0, [], [], [StepMark(0, 0, 10)])], 0)
    assert truth == {"ranks": [{"rank": 0, "steps": []}], "mean": {}}
