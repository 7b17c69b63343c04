"""Which rank is which file, and which files are the job."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from builders import TraceBuilder

from analyzer.api import analyze
from analyzer.errors import DuplicateRankError, InputError, UsageError
from collectors import open_job
from collectors.discovery import rank_from_name


def make(path: Path, rank: int | None = None, *, world: int = 4, gpu: bool = True) -> Path:
    """A trace that names its rank in distributedInfo, or (None) nowhere."""
    trace = TraceBuilder(rank=rank or 0, world_size=world, distributed_info=rank is not None)
    if gpu:
        trace.kernel("gemm", 100, 50, op="aten::mm")
    else:
        trace.op("aten::mm", 100, 50)
    return trace.write(path)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.json", 0),
        ("rank7.json.gz", 7),
        ("rank000003_trace.json.gz", 3),  # torchtitan
        ("417be03f__rank000003_trace.json.gz", 3),
        ("rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", 0),
        ("rank-12.json.gz", 12),  # Megatron
        ("mtia_inference_rank_5.json.gz", 5),
        ("torch_profile_rank_3_step_10.json", 3),
        ("profile_trace_rank_0.json.gz", 0),
        ("graph_capture_rank_1.1773709679453551615.pt.trace.json.gz", 1),
        ("modded-nanogpt-hook-gpu-rank-00-chrome-trace.json.gz", 0),
        ("Baseline - 12-11 - 220ff-rank6-chrome-trace.json.gz", 6),
        ("rank[2].json", 2),
        ("Rank=4.json", 4),
        ("global_rank_9_local_rank_1.json", 9),
        ("worker0.pt.trace.json", 0),
        ("d3fb4076__worker0.pt.trace.json.gz", 0),
        ("trainer-3.json", 3),
        ("3.json", 3),
        ("2_trace.json", 2),
        ("rank3/trace.json", 3),
        ("iteration_10/rank1_trace.json.gz", 1),
        ("host_1234.5678.pt.trace.json", None),
        (
            "ip-172-31-16-248.us-east-2.compute.internal_21147.1698955063520869240.pt.trace.json.gz",
            None,
        ),
        ("trace.json", None),
        ("train.json", None),
        ("frank3.json", None),
        ("iteration_10/trace.json", None),
        ("benchmark_result_493459_1694039959_trace.json.gz", None),
    ],
)
def test_rank_from_name(name: str, rank: int | None) -> None:
    assert rank_from_name(name) == rank


def test_ranks_come_from_the_trace_before_the_name(tmp_path: Path) -> None:
    make(tmp_path / "rank0.json", rank=1)
    make(tmp_path / "rank1.json", rank=0)
    job = open_job([tmp_path])
    assert [(r.rank, Path(r.meta.path).name) for r in job.ranks] == [
        (0, "rank1.json"),
        (1, "rank0.json"),
    ]
    assert {r.meta.rank_source for r in job.ranks} == {"distributedInfo"}


def test_b03_ranks_from_names(tmp_path: Path) -> None:
    for i in (10, 2, 0):
        make(tmp_path / f"rank{i}.json.gz")
    job = open_job([tmp_path])
    assert [r.rank for r in job.ranks] == [0, 2, 10]
    assert {r.meta.rank_source for r in job.ranks} == {"file name"}


def test_b03_a_single_anonymous_trace(tmp_path: Path) -> None:
    path = make(tmp_path / "trace.json")
    (only,) = open_job([path]).ranks
    assert (only.meta.rank, only.rank, only.meta.rank_source) == (None, 0, "assumed 0")
    (only,) = open_job([path], rank=5).ranks
    assert (only.meta.rank, only.meta.rank_source) == (5, "--rank")


def test_anonymous_traces_are_numbered_in_name_order(tmp_path: Path) -> None:
    for pid in (99, 100, 7):
        make(tmp_path / f"host_{pid}.1.pt.trace.json")
    job = open_job([tmp_path])
    assert [Path(r.meta.path).name.split(".")[0] for r in job.ranks] == [
        "host_7",
        "host_99",
        "host_100",
    ]
    assert [r.rank for r in job.ranks] == [0, 1, 2]
    assert {r.meta.rank_source for r in job.ranks} == {"assumed from file order"}
    told = "nothing tells the traces' ranks: they were numbered in the order of the files"
    assert told in analyze(tmp_path).measurements.warnings
    make(tmp_path / "named" / "rank0.json")
    assert told not in analyze(tmp_path / "named").measurements.warnings


def test_an_anonymous_trace_among_named_ones_is_left_out(tmp_path: Path) -> None:
    make(tmp_path / "rank0.json", rank=0)
    make(tmp_path / "host_1.2.pt.trace.json")
    job = open_job([tmp_path])
    assert [r.rank for r in job.ranks] == [0]
    assert "tells the rank" in job.left_out[0].reason


def test_m03_two_files_of_one_rank_are_an_error(tmp_path: Path) -> None:
    make(tmp_path / "iteration_5" / "rank0.json", rank=0)
    make(tmp_path / "iteration_10" / "rank0.json", rank=0)
    with pytest.raises(DuplicateRankError) as caught:
        open_job([tmp_path])
    text = str(caught.value)
    assert "iteration_5/rank0.json" in text
    assert "iteration_10/rank0.json" in text
    assert "both claim rank 0" in text
    assert "one iteration's directory" in text
    assert [r.rank for r in open_job([tmp_path / "iteration_10"]).ranks] == [0]


def test_traces_of_different_jobs_that_collide_say_so(tmp_path: Path) -> None:
    make(tmp_path / "a.json", rank=0, world=4)
    make(tmp_path / "b.json", rank=0, world=8)
    with pytest.raises(InputError, match="not one job"):
        open_job([tmp_path])


def test_files_of_jobs_of_different_sizes_are_not_one_job(tmp_path: Path) -> None:
    make(tmp_path / "a.json", rank=0, world=4)
    make(tmp_path / "b.json", rank=1, world=8)
    with pytest.raises(InputError) as caught:
        open_job([tmp_path])
    assert (
        f"{tmp_path}/a.json is of a job of 4 ranks, {tmp_path}/b.json of 8: not one job"
        in caught.value.message
    )
    make(tmp_path / "b.json", rank=1, world=4)
    assert [r.rank for r in open_job([tmp_path]).ranks] == [0, 1]


@pytest.mark.parametrize("second", ["../{dir}/rank0.json", "link.json", "."])
def test_one_file_by_two_paths_is_one_trace(tmp_path: Path, second: str) -> None:
    path = make(tmp_path / "rank0.json", rank=0)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link.json").symlink_to(path)
    again = {"link.json": tmp_path / "other" / "link.json", ".": tmp_path}.get(
        second, f"{tmp_path}/{second.format(dir=tmp_path.name)}"
    )
    assert len(open_job([path, path]).ranks) == 1
    (only,) = open_job([path, again]).ranks
    assert only.meta.path == str(path)


def test_rank_is_for_one_trace(tmp_path: Path) -> None:
    make(tmp_path / "rank0.json", rank=0)
    make(tmp_path / "rank1.json", rank=1)
    with pytest.raises(UsageError, match="2 traces"):
        open_job([tmp_path], rank=0)


def test_rank_against_what_the_trace_says(tmp_path: Path) -> None:
    said = make(tmp_path / "trace.json", rank=0)
    with pytest.raises(UsageError, match=r"--rank 5: .*trace\.json says it is rank 0"):
        open_job([said], rank=5)
    (only,) = open_job([said], rank=0).ranks
    assert (only.rank, only.meta.rank_source) == (0, "distributedInfo")
    (only,) = open_job([make(tmp_path / "rank0.json")], rank=3).ranks  # a name is only a name
    assert (only.rank, only.meta.rank_source) == (3, "--rank")


def test_b51_processes_without_device_work_are_left_out(tmp_path: Path) -> None:
    make(tmp_path / "rank0.json", rank=0)
    make(tmp_path / "rank1.json", rank=1)
    make(tmp_path / "launcher.json", rank=0, gpu=False)
    job = open_job([tmp_path])
    assert [r.rank for r in job.ranks] == [0, 1]
    (left,) = job.left_out
    assert Path(left.path).name == "launcher.json"
    assert "no device activity" in left.reason


def test_cpu_only_jobs_keep_all_ranks(tmp_path: Path) -> None:
    for i in range(3):
        make(tmp_path / f"rank{i}.json", rank=i, gpu=False)
    assert [r.rank for r in open_job([tmp_path]).ranks] == [0, 1, 2]


def test_other_files_of_a_directory_are_left_out_with_a_reason(tmp_path: Path) -> None:
    make(tmp_path / "rank0.json", rank=0)
    (tmp_path / "config.json").write_text('{"lr": 1}')
    (tmp_path / "broken.json").write_text("")
    (tmp_path / "rank0.fr.json").write_text('{"entries": []}')
    (tmp_path / "notes.md").write_text("x")
    job = open_job([tmp_path])
    assert [r.rank for r in job.ranks] == [0]
    reasons = {Path(left.path).name: left.reason for left in job.left_out}
    assert set(reasons) == {"config.json", "broken.json"}
    assert reasons["broken.json"] == "the file is empty"
    assert "no traceEvents" in reasons["config.json"]


def test_a_single_unusable_file_is_an_error_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"lr": 1}')
    with pytest.raises(InputError, match=r"config\.json: JSON, but not"):
        open_job([tmp_path / "config.json"])


def test_nothing_usable_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"lr": 1}')
    (tmp_path / "b.json").write_text("")
    with pytest.raises(InputError, match=r"no usable trace: .*a.json: .*\(and 1 more\)"):
        open_job([tmp_path])


def test_ranks_inside_an_archive(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for i in (1, 0):
            path = make(tmp_path / "x" / f"rank{i}.json")
            archive.write(path, f"run/rank{i}.json")
    (tmp_path / "job.zip").write_bytes(out.getvalue())
    job = open_job([tmp_path / "job.zip"])
    assert [(r.rank, r.meta.path.rsplit("!")[-1]) for r in job.ranks] == [
        (0, "run/rank0.json"),
        (1, "run/rank1.json"),
    ]
