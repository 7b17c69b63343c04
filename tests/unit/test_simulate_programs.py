"""Programs issue the collectives a strategy has, and expose what closed forms say."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from collectors.simulate import Defect, SimSpec, SimulatedJob, parse_mesh, simulate
from collectors.simulate.engine import DeviceEvent, RankRecord
from collectors.simulate.tape import Stream


def job(mesh: str, strategy: str, *defects: str, **kwargs) -> SimulatedJob:
    options = {"steps": 1, "layers": 3, "vocab": 8192, "grad_norm": False} | kwargs
    parsed = tuple(Defect.parse(d) for d in defects)
    return simulate(SimSpec(parse_mesh(mesh), strategy, defects=parsed, **options))


def collectives(record: RankRecord, axis: str, op: str | None = None) -> list[DeviceEvent]:
    events = [e for e in record.device if e.work.collective]
    events = [e for e in events if e.work.collective.axis == axis]
    chosen = [e for e in events if op in (None, e.work.collective.op)]
    return sorted(chosen, key=lambda e: e.start_ns)


def exposed_ns(record: RankRecord, event: DeviceEvent) -> int:
    """Part of an event's time without compute, nanosecond by nanosecond."""
    busy = [e for e in record.device if e.work.kind == "kernel" and not e.work.collective]
    covered = set()
    for other in busy:
        covered.update(range(max(other.start_ns, event.start_ns), min(other.end_ns, event.end_ns)))
    return event.end_ns - event.start_ns - len(covered)


def counts(record: RankRecord) -> Counter[tuple[str, str]]:
    calls = (e.work.collective for e in record.device if e.work.collective)
    return Counter((call.axis, call.op) for call in calls)


def axis(simulated: SimulatedJob, name: str, rank: int = 0, step: int = 0) -> dict:
    return simulated.truth["ranks"][rank]["steps"][step]["axes"][name]


# -- what is issued --------------------------------------------------------------------------


def test_fsdp_gathers_twice_but_the_last_unit_and_scatters_once():
    units = 3 + 1  # blocks (the embedding is in the first) and the head
    assert counts(job("dp_shard=2", "fsdp").records[0]) == {
        ("dp_shard", "all_gather"): 2 * units - 1,
        ("dp_shard", "reduce_scatter"): units,
    }


def test_hsdp_adds_an_all_reduce_of_every_shard():
    found = counts(job("dp_replicate=2,dp_shard=2", "hsdp").records[0])
    assert found[("dp_replicate", "all_reduce")] == found[("dp_shard", "reduce_scatter")] == 4


def test_tensor_parallel_all_reduces():
    layers = 3  # two forward, two backward; one for the embedding, one for the head
    assert counts(job("tp=2", "tp").records[0]) == {("tp", "all_reduce"): 4 * layers + 2}


def test_sequence_parallel_gathers_and_scatters():
    assert counts(job("tp=2", "tp_sp").records[0]) == {
        ("tp", "all_gather"): 4 * 3 + 2,
        ("tp", "reduce_scatter"): 4 * 3 + 2,
    }


def test_ddp_buckets_hold_every_gradient_once():
    simulated = job("dp_replicate=4", "ddp", hidden=1024, vocab=2048)
    h, ffn, vocab = 1024, simulated.spec.inner, 2048
    parameters = 3 * (4 * h * h + 3 * h * ffn + 2 * h) + 2 * vocab * h + h
    events = collectives(simulated.records[0], "dp_replicate")
    sizes = [e.work.collective.nelems for e in events]
    assert sum(sizes) == parameters
    assert all(4 * size >= 25 << 20 for size in sizes[1:-1])


def test_small_collectives_reduce_each_parameter():
    events = job("dp_replicate=4", "ddp", "small-collectives", hidden=512).records[0]
    assert len(collectives(events, "dp_replicate")) == 3 * 9 + 3


def test_gradient_norm_is_reduced_over_the_world_where_parameters_are_sharded():
    sharded = counts(job("dp_shard=2,tp=2", "fsdp_tp", grad_norm=True).records[0])
    assert sharded[("world", "all_reduce")] == 1
    one_axis = counts(job("dp_shard=2", "fsdp", grad_norm=True).records[0])
    assert one_axis[("world", "all_reduce")] == 1  # on the same group as the axis
    replicated = job("dp_replicate=4", "ddp", grad_norm=True).records[0]
    assert {axis for axis, _ in counts(replicated)} == {"dp_replicate"}


def test_steps_are_alike():
    records = job("dp_shard=2,tp=2", "fsdp_tp", steps=3).records
    per_step = [
        Counter(e.work.name for e in records[0].device if e.step == 10 + k) for k in (0, 1, 2)
    ]
    assert per_step[0] == per_step[1] == per_step[2]


@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [
        ("dp_replicate=4", "ddp"),
        ("dp_shard=2,tp=2", "fsdp_tp"),
        ("dp_replicate=2,dp_shard=2,tp=2", "hsdp_tp_sp"),
    ],
)
def test_streams_are_serial_and_collectives_end_together(mesh, strategy):
    simulated = job(mesh, strategy, steps=2, hidden=1024, jitter=0.05)
    ends: dict[tuple, set[int]] = {}
    for record in simulated.records:
        by_stream: dict[Stream, list[DeviceEvent]] = {}
        for event in record.device:
            by_stream.setdefault(event.stream, []).append(event)
            assert event.start_ns >= event.launch_end_ns
            if call := event.work.collective:
                ends.setdefault((call.group, event.seq), set()).add(event.end_ns)
        for events in by_stream.values():
            assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(events))
    assert all(len(instants) == 1 for instants in ends.values())


# -- what is exposed --------------------------------------------------------------------------


def test_ddp_of_one_bucket_exposes_its_all_reduce():
    """All gradients (under 1 MiB) leave in one bucket behind the last backward kernel."""
    simulated = job("dp_replicate=4", "ddp", layers=1, hidden=64, vocab=64, sequence=256)
    (event,) = collectives(simulated.records[0], "dp_replicate")
    nbytes = 4 * (4 * 64**2 + 3 * 64 * 256 + 2 * 64 + 2 * 64 * 64 + 64)
    assert event.work.collective.message_bytes == nbytes
    # base 24 us, 2 (n - 1) hops of 1 us, 2 (n - 1) / n of the bytes at 360 GB/s
    expected = 24_000 + 6_000 + round(1.5 * nbytes / 360)
    assert axis(simulated, "dp_replicate")["comm_ns"] == expected
    assert axis(simulated, "dp_replicate")["exposed_ns"] == expected


def test_ddp_exposes_what_outlasts_the_backward_pass():
    simulated = job("dp_replicate=4", "ddp", hidden=1024, vocab=2048)
    (record, *_) = simulated.records
    events = collectives(record, "dp_replicate")
    backward_end = max(
        e.end_ns for e in record.device if e.stream is Stream.COMPUTE and "adam" not in
        e.work.name.lower()
    )  # fmt: skip
    figures = axis(simulated, "dp_replicate")
    assert figures["exposed_ns"] == max(e.end_ns for e in events) - backward_end
    assert 0 < figures["exposed_ns"] < figures["comm_ns"] / 2


@pytest.mark.parametrize("strategy", ["tp", "tp_sp"])
def test_tensor_parallelism_is_all_exposed(strategy):
    simulated = job("tp=2", strategy)
    figures = axis(simulated, "tp")
    per_rank = 2 * 4096 * 4096  # bytes of the activations
    # an all-reduce moves as much as an all-gather and a reduce-scatter together
    one = 26_000 + round(per_rank / 360) if strategy == "tp" else 25_000 + round(per_rank / 720)
    assert figures["comm_ns"] == figures["count"] * one
    assert figures["exposed_ns"] == figures["comm_ns"]


def test_healthy_fsdp_hides_all_but_the_first_gather_and_the_last_scatter():
    (record, *_) = job("dp_shard=2", "fsdp").records
    gathers = collectives(record, "dp_shard", "all_gather")
    scatters = collectives(record, "dp_shard", "reduce_scatter")
    assert [exposed_ns(record, e) for e in gathers[1:]] == [0] * (len(gathers) - 1)
    assert [exposed_ns(record, e) for e in scatters[:-1]] == [0] * (len(scatters) - 1)
    for event in (gathers[0], scatters[-1]):
        assert exposed_ns(record, event) == event.end_ns - event.start_ns


def test_without_prefetch_every_gather_is_exposed():
    simulated = job("dp_shard=2", "fsdp", "no-prefetch")
    figures = axis(simulated, "dp_shard")["ops"]["all_gather"]
    assert figures["exposed_ns"] == figures["comm_ns"]


def test_late_reduce_scatters_start_behind_the_backward_pass():
    (record, *_) = job("dp_shard=2", "fsdp", "late-reduce-scatter").records
    last_matmul = max(e.end_ns for e in record.device if e.work.name.startswith("nvjet"))
    assert all(e.start_ns > last_matmul for e in collectives(record, "dp_shard", "reduce_scatter"))


def test_a_slow_link_scales_one_axis():
    healthy = job("dp_shard=2,tp=2", "fsdp_tp")
    slow = job("dp_shard=2,tp=2", "fsdp_tp", "slow-link:tp=3")
    assert axis(slow, "tp")["comm_ns"] == pytest.approx(
        3 * axis(healthy, "tp")["comm_ns"], rel=1e-6
    )
    before, after = (collectives(j.records[0], "dp_shard")[0] for j in (healthy, slow))
    assert before.work == after.work


def test_a_straggler_makes_the_others_wait():
    """The slow rank's kernels take half as long again; the others wait in the collectives."""
    options = {"hidden": 1024, "layers": 4}
    healthy = job("tp=4", "tp", **options)
    slow = job("tp=4", "tp", "straggler:2=1.5", **options)
    compute = [r["steps"][0]["compute_ns"] for r in slow.truth["ranks"]]
    assert compute[2] == pytest.approx(1.5 * compute[0], rel=1e-3)
    waits = [
        axis(slow, "tp", rank)["comm_ns"] - axis(healthy, "tp", rank)["comm_ns"]
        for rank in range(4)
    ]
    assert waits[2] == 0
    assert all(waits[rank] > 0.1 * compute[0] for rank in (0, 1, 3))


# -- the host --------------------------------------------------------------------------


def test_a_healthy_host_runs_ahead_and_a_slow_one_does_not():
    def lead(*defects):
        (record, *_) = job("dp_shard=2", "fsdp", *defects, hidden=1024, steps=2).records
        leads = sorted(e.start_ns - e.launch_start_ns for e in record.device if e.step == 11)
        return leads[len(leads) // 2]

    assert lead() > 20 * lead("host-bound=12")


def test_syncing_every_layer_blocks_the_host_in_each():
    (record, *_) = job("dp_shard=2", "fsdp", "sync-every-layer").records
    calls = [e for e in record.host if e.name == "cudaStreamSynchronize"]
    assert len(calls) == 2 * 3
    copies = [e for e in record.device if e.work.kind == "gpu_memcpy" and "DtoH" in e.work.name]
    for call, copy in zip(calls, copies, strict=True):
        assert call.end_ns == copy.end_ns + 6_000  # the call returns 6 us after the copy


def test_a_data_stall_is_in_the_dataloader():
    """Both stalls precede the second step's first kernel; the device still runs in the second."""
    stalled = job("dp_shard=2", "fsdp", "data-stall=30000", steps=2, hidden=1024)
    for record, rank in zip(stalled.records, stalled.truth["ranks"], strict=True):
        last_end = max(e.end_ns for e in record.device if e.step == 10)
        still_busy = last_end - record.steps[1].start_ns
        assert still_busy > 0
        loader = 2 * (30_000_000 + 2_000)  # and the range around it
        assert rank["steps"][0]["idle_ns"]["data"] == loader - still_busy
        assert rank["steps"][1]["idle_ns"]["data"] == 0


def test_backward_runs_on_its_own_thread():
    (record, *_) = job("dp_shard=2", "fsdp").records
    nodes = [e for e in record.host if e.name.startswith("autograd::engine")]
    forward = {e.args["Sequence number"] for e in record.host if e.args.get("Fwd thread id") == 0}
    assert {e.thread.value for e in nodes} == {"backward"}
    assert {e.args["Sequence number"] for e in nodes} == forward


def test_equal_specs_give_equal_jobs_and_seeds_matter():
    options = {"jitter": 0.05, "hidden": 512, "clock_skew_ns": 1000}
    one, same, other = (job("dp_shard=2", "fsdp", seed=seed, **options) for seed in (1, 1, 2))
    assert [one.trace(rank) for rank in (0, 1)] == [same.trace(rank) for rank in (0, 1)]
    assert one.truth == same.truth
    assert one.truth != other.truth
