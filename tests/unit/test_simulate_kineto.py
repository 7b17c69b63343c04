"""What is written: valid Kineto JSON whose times, joins and arguments say what happened."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from collectors.simulate import Defect, SimSpec, SimulatedJob, parse_mesh, simulate, write
from collectors.simulate.kineto_writer import BASE_NS, START_NS, STREAM_IDS


def make_job(mesh="dp_shard=2,tp=2", strategy="fsdp_tp", *defects: str, **kwargs) -> SimulatedJob:
    options = {"steps": 2, "layers": 2, "hidden": 512, "vocab": 512, "sequence": 1024} | kwargs
    parsed = tuple(Defect.parse(d) for d in defects)
    return simulate(SimSpec(parse_mesh(mesh), strategy, defects=parsed, **options))


def load(job: SimulatedJob, rank: int = 0) -> dict:
    return json.loads(job.trace(rank), parse_float=Decimal)


def pick(document: dict, *cats: str) -> list[dict]:
    return [e for e in document["traceEvents"] if e.get("cat") in cats]


DEVICE_CATS = ("kernel", "gpu_memcpy")
CALL_CATS = ("cuda_runtime", "cuda_driver")


@pytest.fixture(scope="module")
def job() -> SimulatedJob:
    return make_job(jitter=0.03)


def test_times_are_exact_nanoseconds_from_the_base(job):
    document = load(job)
    assert document["baseTimeNanoseconds"] == BASE_NS
    written = [
        (e["name"], int(1000 * e["ts"]) - START_NS, int(1000 * e["dur"]))
        for e in pick(document, *DEVICE_CATS)
    ]
    happened = [(e.work.name, e.start_ns, e.end_ns - e.start_ns) for e in job.records[0].device]
    assert written == happened
    assert all(1000 * e["ts"] == int(1000 * e["ts"]) for e in pick(document, *DEVICE_CATS))


def test_truth_is_on_the_clock_of_the_trace(job):
    document = load(job)
    first = job.truth["ranks"][0]["steps"][0]
    marks = [e for e in pick(document, "user_annotation") if e["name"] == "ProfilerStep#10"]
    assert first["start_ns"] == BASE_NS + int(1000 * marks[0]["ts"])


def test_every_device_event_has_its_launch_and_operator(job):
    document = load(job)
    calls = {e["args"]["correlation"]: e for e in pick(document, *CALL_CATS)}
    operators = {e["args"]["External id"]: e for e in pick(document, "cpu_op")}
    events = pick(document, *DEVICE_CATS)
    assert len({e["args"]["correlation"] for e in events}) == len(events)
    for event in events:
        launch = calls[event["args"]["correlation"]]
        operator = operators[event["args"]["External id"]]
        assert launch["args"]["External id"] == event["args"]["External id"]
        assert launch["ts"] + launch["dur"] <= event["ts"]
        assert operator["ts"] <= launch["ts"]
        assert launch["ts"] + launch["dur"] <= operator["ts"] + operator["dur"]
        assert operator["tid"] == launch["tid"]


def test_host_events_of_a_thread_are_nested(job):
    document = load(job)
    by_thread: dict[int, list[dict]] = {}
    for event in pick(document, "cpu_op", "user_annotation", *CALL_CATS):
        by_thread.setdefault(event["tid"], []).append(event)
    assert len(by_thread) == 2
    for events in by_thread.values():
        stack: list[Decimal] = []
        for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
            while stack and stack[-1] <= event["ts"]:
                stack.pop()
            end = event["ts"] + event["dur"]
            assert not stack or end <= stack[-1], event["name"]
            stack.append(end)


def test_collectives_agree_between_operator_kernel_and_ranks(job):
    ids: dict[int, list[tuple]] = {}
    for rank in range(4):
        document = load(job, rank)
        records = {
            e["args"]["External id"]: e["args"]
            for e in pick(document, "cpu_op")
            if e["name"] == "record_param_comms"
        }
        kernels = [e["args"] for e in pick(document, "kernel") if "nccl" in e["name"]]
        assert len(kernels) == len(records)
        for args in kernels:
            record = records[args["External id"]]
            shared = set(args) & set(record)
            assert {"Collective name", "Seq", "Process Group Ranks", "In msg nelems"} <= shared
            assert all(args[key] == record[key] for key in shared)
            members = json.loads(args["Process Group Ranks"])
            assert members[record["Rank"]] == rank
            ids.setdefault(args["Comms Id"], []).append((members, args["Seq"], args["dtype"]))
    for seen in ids.values():
        assert len(seen) == len(seen[0][0])
        assert all(entry == seen[0] for entry in seen)


def test_sizes_are_per_rank(job):
    kernels = [e["args"] for e in pick(load(job), "kernel") if "nccl" in e["name"]]
    for args in kernels:
        into, out, size = args["In msg nelems"], args["Out msg nelems"], args["Group size"]
        expected = {
            "_allgather_base": out == into * size,
            "_reduce_scatter_base": into == out * size,
            "allreduce": into == out,
        }
        assert expected[args["Collective name"]]


def test_distributed_info_lists_the_ranks_own_groups(job):
    info = load(job, 3)["distributedInfo"]
    assert (info["rank"], info["world_size"], info["pg_count"]) == (3, 4, 3)
    assert [g["ranks"] for g in info["pg_config"]] == [[0, 1, 2, 3], [1, 3], [2, 3]]


def test_long_rank_lists_are_cut():
    wide = make_job("dp_replicate=40", "ddp", steps=1, layers=1)
    args = next(e["args"] for e in pick(load(wide), "kernel") if "nccl" in e["name"])
    assert args["Process Group Ranks"].endswith(" 29, ...]")
    assert args["Group size"] == 40


def test_clock_offsets_shift_what_is_written_and_nothing_else():
    true, skewed = make_job(), make_job(clock_skew_ns=5_000_000)
    offsets = skewed.clock_offset_ns
    assert offsets[0] == 0
    assert 0 < max(abs(o) for o in offsets) <= 5_000_000
    assert true.truth["ranks"] == skewed.truth["ranks"]
    for rank, offset in enumerate(offsets):
        before, after = (pick(load(j, rank), "kernel", "cpu_op") for j in (true, skewed))
        shifts = {int(1000 * (b["ts"] - a["ts"])) for a, b in zip(before, after, strict=True)}
        assert shifts == {offset}
        assert [e["dur"] for e in before] == [e["dur"] for e in after]


def test_flows_join_launch_and_work():
    document = load(make_job(flows=True))
    starts = {e["id"]: e for e in document["traceEvents"] if e["ph"] == "s"}
    calls = {e["args"]["correlation"]: e for e in pick(document, *CALL_CATS)}
    ends = [e for e in document["traceEvents"] if e["ph"] == "f"]
    assert len(ends) == len(pick(document, *DEVICE_CATS))
    for end in ends:
        assert starts[end["id"]]["ts"] == calls[end["id"]]["ts"]


def test_sync_events_are_written_on_request():
    defect = "sync-every-layer"
    assert pick(load(make_job("dp_shard=2", "fsdp", defect)), "cuda_sync") == []
    document = load(make_job("dp_shard=2", "fsdp", defect, sync_events=True))
    calls = [e for e in pick(document, *CALL_CATS) if e["name"] == "cudaStreamSynchronize"]
    events = [e for e in pick(document, "cuda_sync") if e["name"] == "Stream Sync"]
    assert len(events) == len(calls) == 2 * 2 * 2
    for event, call in zip(events, calls, strict=True):
        assert (event["ts"], event["dur"]) == (call["ts"], call["dur"])
        assert event["tid"] == STREAM_IDS["compute"]


def test_unlabelled_groups_have_no_description():
    document = load(make_job("dp_shard=2,tp=2", "fsdp_tp", "unlabelled"))
    assert {g["pg_desc"] for g in document["distributedInfo"]["pg_config"]} == {"undefined"}
    kernels = [e["args"] for e in pick(document, "kernel") if "nccl" in e["name"]]
    assert {args["Process Group Description"] for args in kernels} == {"undefined"}


def test_missing_launches_leave_the_rest():
    healthy, broken = (
        load(make_job()),
        load(make_job("dp_shard=2,tp=2", "fsdp_tp", "missing-launches")),
    )
    correlations = {e["args"]["correlation"] for e in pick(broken, *CALL_CATS)}
    assert not correlations & {e["args"]["correlation"] for e in pick(broken, *DEVICE_CATS)}
    for cats in (DEVICE_CATS, ("cpu_op",), ("gpu_user_annotation",)):
        assert pick(broken, *cats) == pick(healthy, *cats)


def test_device_side_step_annotations_span_the_steps_work(job):
    shadows = [e for e in pick(load(job), "gpu_user_annotation") if e["tid"] == 7]
    assert [e["name"] for e in shadows] == ["ProfilerStep#10", "ProfilerStep#11"]
    mine = [e for e in job.records[0].device if e.stream == "compute" and e.step == 10]
    assert int(1000 * shadows[0]["ts"]) - START_NS == mine[0].start_ns


@pytest.mark.parametrize("compress", [True, False])
def test_written_files_are_reproducible(tmp_path, compress):
    small = {"steps": 1, "layers": 1, "hidden": 64}
    first = write(make_job("tp=2", "tp", **small), tmp_path / "a", compress=compress)
    second = write(make_job("tp=2", "tp", **small), tmp_path / "b", compress=compress)
    suffix = ".json.gz" if compress else ".json"
    assert [p.name for p in first] == [f"rank0{suffix}", f"rank1{suffix}", "truth.json"]
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]
