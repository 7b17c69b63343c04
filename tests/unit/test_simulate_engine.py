"""The engine's rules, on tapes small enough to work out by hand."""

from __future__ import annotations

import pytest

from collectors.simulate.costs import Device, HostCosts, transfer_ns
from collectors.simulate.engine import DeadlockError, RankRecord, run
from collectors.simulate.spec import SimSpec, process_groups
from collectors.simulate.tape import Stream, Tape

HOST = HostCosts(
    before_launch_ns=1000, launch_ns=500, after_launch_ns=0, event_ns=0, collective_ns=0,
    sync_call_ns=0, sync_return_ns=700, start_latency_ns=100, python_ns=0,
)  # fmt: skip
DEVICE = Device(base_latency_ns=10_000, node_hop_ns=0, node_link_rate=1e9)
COMPUTE, GATHER = Stream.COMPUTE, Stream.GATHER


def make_tapes(ranks: int = 1) -> list[Tape]:
    spec = SimSpec({"dp_shard": ranks}, "fsdp")
    return [Tape(rank, process_groups(spec), spec, DEVICE, HOST) for rank in range(ranks)]


def spans(record: RankRecord) -> list[tuple[int, int]]:
    return [(event.start_ns, event.end_ns) for event in record.device]


def test_streams_run_in_order_and_the_host_runs_ahead():
    (tape,) = make_tapes()
    for ns in (10_000, 20_000):
        tape.kernel("aten::mm", "gemm", ns)
    (record,) = run([tape])
    # Launches at 1000 and 2500, each 500 long; the kernel may start 100 later.
    assert [(e.launch_start_ns, e.launch_end_ns) for e in record.device] == [
        (1000, 1500),
        (2500, 3000),
    ]
    assert spans(record) == [(1600, 11_600), (11_600, 31_600)]


def test_a_device_that_waits_for_launches():
    (tape,) = make_tapes()
    for _ in range(2):
        tape.kernel("aten::add", "add", 200)
    (record,) = run([tape])
    assert spans(record) == [(1600, 1800), (3100, 3300)]


def test_streams_overlap_but_for_events():
    (tape,) = make_tapes()
    tape.kernel("a", "a", 10_000)
    tape.kernel("b", "b", 10_000, GATHER)
    tape.wait(GATHER, tape.record(COMPUTE))
    tape.kernel("c", "c", 10_000, GATHER)
    (record,) = run([tape])
    a, b, c = spans(record)
    assert (a, b) == ((1600, 11_600), (3100, 13_100))
    assert c == (13_100, 23_100)  # a's event was done before b was


def test_waiting_for_an_event_that_is_later():
    (tape,) = make_tapes()
    tape.kernel("a", "a", 50_000)
    tape.wait(GATHER, tape.record(COMPUTE))
    tape.kernel("b", "b", 10_000, GATHER)
    (record,) = run([tape])
    assert spans(record)[1] == (51_600, 61_600)


def test_an_event_covers_only_work_recorded_before_it():
    (tape,) = make_tapes()
    tape.kernel("a", "a", 10_000)
    event = tape.record(COMPUTE)
    tape.kernel("b", "b", 90_000)
    tape.wait(GATHER, event)
    tape.kernel("c", "c", 10_000, GATHER)
    (record,) = run([tape])
    assert spans(record)[2] == (11_600, 21_600)


def test_synchronising_blocks_the_host_until_the_stream_is_done():
    (tape,) = make_tapes()
    tape.kernel("a", "a", 50_000)
    tape.synchronize(COMPUTE)
    tape.kernel("b", "b", 1000)
    (record,) = run([tape])
    call = next(e for e in record.host if e.name == "cudaStreamSynchronize")
    assert (call.start_ns, call.end_ns) == (1500, 51_600 + 700)
    assert record.device[1].launch_start_ns == 52_300 + 1000


def test_synchronising_the_device_waits_for_all_streams():
    (tape,) = make_tapes()
    tape.kernel("a", "a", 10_000)
    tape.kernel("b", "b", 90_000, GATHER)
    tape.synchronize(None)
    (record,) = run([tape])
    assert record.host[-1].end_ns == record.device[1].end_ns + 700


def test_synchronising_an_unused_device():
    (tape,) = make_tapes()
    tape.synchronize(None)
    tape.synchronize(COMPUTE)
    (record,) = run([tape])
    assert [e.end_ns >= e.start_ns for e in record.host] == [True, True]


def test_collectives_end_together_after_the_last_start():
    tapes = make_tapes(2)
    for tape in tapes:
        tape.kernel("a", "a", 10_000 * (1 + tape.rank))
        tape.wait(GATHER, tape.record(COMPUTE))
        tape.collective("all_gather", "dp_shard", 2000, "BFloat16", GATHER)
    early, late = run(tapes)
    assert early.device[1].start_ns == 11_600
    assert late.device[1].start_ns == 21_600
    # 10 us latency plus half of 4000 bytes at 1 byte a ns
    assert early.device[1].end_ns == late.device[1].end_ns == 21_600 + 10_000 + 2000


def test_work_behind_a_collective_waits_for_it_on_every_rank():
    tapes = make_tapes(2)
    for tape in tapes:
        if tape.rank:
            tape.busy(1_000_000)
        tape.collective("all_reduce", "dp_shard", 1, "Float", GATHER)
        tape.wait(COMPUTE, tape.record(GATHER))
        tape.kernel("a", "a", 1000)
        tape.synchronize(COMPUTE)
        tape.kernel("b", "b", 1000)
    first, second = run(tapes)
    assert first.device[1].start_ns == second.device[0].end_ns
    assert first.device[2].launch_start_ns > second.device[0].end_ns
    assert first.device[0].seq == second.device[0].seq == 1


def test_the_order_of_ranks_does_not_matter():
    def job(order):
        tapes = make_tapes(4)
        for tape in tapes:
            tape.kernel("a", "a", 7000 * (tape.rank + 1))
            tape.collective("all_reduce", "dp_shard", 1000, "Float", GATHER)
            tape.wait(COMPUTE, tape.record(GATHER))
            tape.kernel("b", "b", 1000)
            tape.synchronize(COMPUTE)
        records = run([tapes[rank] for rank in order], jitter=0.1, seed=3)
        return {record.rank: spans(record) for record in records}

    assert job([0, 1, 2, 3]) == job([3, 1, 0, 2])


def test_point_to_point_pairs_by_source_destination_and_order():
    tapes = make_tapes(3)
    tapes[0].collective("send", "dp_shard", 1000, "BFloat16", Stream.PEER, peer=2)
    tapes[0].collective("send", "dp_shard", 3000, "BFloat16", Stream.PEER, peer=2)
    tapes[2].busy(500_000)
    tapes[2].collective("recv", "dp_shard", 1000, "BFloat16", Stream.PEER, peer=0)
    tapes[2].collective("recv", "dp_shard", 3000, "BFloat16", Stream.PEER, peer=0)
    sender, idle, receiver = run(tapes)
    assert idle.device == []
    assert [e.end_ns for e in sender.device] == [e.end_ns for e in receiver.device]
    assert sender.device[0].end_ns == receiver.device[0].start_ns + 10_000 + 2000


def test_a_missing_member_is_a_deadlock():
    tapes = make_tapes(2)
    tapes[0].collective("all_reduce", "dp_shard", 1, "Float", GATHER)
    with pytest.raises(DeadlockError, match="all_reduce"):
        run(tapes)


def test_members_that_disagree_are_an_error():
    tapes = make_tapes(2)
    for tape in tapes:
        tape.collective("all_reduce", "dp_shard", 10 + tape.rank, "Float", GATHER)
    with pytest.raises(DeadlockError, match="disagree"):
        run(tapes)


def test_jitter_stays_in_its_bounds_and_depends_on_the_seed():
    def durations(seed):
        (tape,) = make_tapes()
        for _ in range(200):
            tape.kernel("a", "a", 100_000)
        (record,) = run([tape], jitter=0.1, seed=seed)
        return [e.end_ns - e.start_ns for e in record.device]

    assert all(90_000 <= ns <= 110_000 for ns in durations(1))
    assert max(durations(1)) > 105_000
    assert durations(1) == durations(1) != durations(2)


@pytest.mark.parametrize(
    ("op", "ranks", "expected_ns"),
    [
        # base 24 us, 1 us a hop; 360 MB at 360 GB/s is 1 ms
        ("all_gather", (0, 1, 2, 3), 24_000 + 3_000 + 750_000),
        ("reduce_scatter", (0, 2), 24_000 + 1_000 + 500_000),
        ("all_reduce", (0, 1, 2, 3), 24_000 + 6_000 + 1_500_000),
        ("send", (0, 1), 24_000 + 1_000 + 1_000_000),
        # two nodes, one member each: 36 GB/s and one slow hop
        ("all_gather", (0, 8), 24_000 + 8_000 + 5_000_000),
        # two nodes, two members each share the nodes' NICs: 72 GB/s
        ("all_reduce", (6, 7, 8, 9), 24_000 + 2 * 8_000 + 4 * 1_000 + 7_500_000),
        ("send", (7, 8), 24_000 + 8_000 + 10_000_000),
        ("all_gather", (5,), 24_000),
    ],
)
def test_ring_model(op, ranks, expected_ns):
    assert transfer_ns(op, 360_000_000, ranks, 8, Device()) == expected_ns
