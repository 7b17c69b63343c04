"""HTA's analyses of our tables give what they give through HTA's own parser."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from builders import TraceBuilder
from interop_helpers import CORPUS

from analyzer.errors import MissingExtraError
from analyzer.interop.hta import to_hta
from analyzer.model import Job
from collectors import open_job


def needs_hta(test):
    missing = pytest.mark.skipif(find_spec("hta") is None, reason="HTA is not installed")
    return pytest.mark.hta(missing(pytest.mark.filterwarnings("ignore")(test)))  # HTA's warnings


def test_without_hta_the_extra_is_named(monkeypatch):
    pytest.importorskip("pandas")
    for module in [name for name in sys.modules if name.partition(".")[0] == "hta"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "hta", None)
    with pytest.raises(MissingExtraError, match=r"meshscope\[hta\]"):
        to_hta(Job(()))


def sample() -> TraceBuilder:
    trace = TraceBuilder(rank=0, world_size=2)
    for n in range(3):
        at = 1000 * n
        trace.step(n, at, 1000)
        for i in range(8):
            trace.kernel(f"gemm_{i % 3}", f"{at + 60 + 100 * i}.125", 70, op="aten::mm")
        trace.collective("all_gather", f"{at + 90}.5", 300, group="0", nelems=1 << 16)
        trace.memcpy(at + 870, 30)
        trace.memset(at + 910, "0.75")
        trace.kernel("orphan", at + 915, 20, launch=False)
        trace.sync("Stream Sync", at + 930, 40)
    return trace


def both(path, monkeypatch):
    from hta.trace_analysis import TraceAnalysis

    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    job = open_job([path])
    return TraceAnalysis(trace_files={job.ranks[0].rank: str(path)}), to_hta(job)


def communication_ns(trace, rank):
    """Union of NCCL intervals by a plain scan of HTA's frame."""
    frame, names = trace.traces[rank], trace.symbol_table.get_sym_table()
    rows = [
        (t, e)
        for n, t, e, s in frame[["name", "ts", "end", "stream"]].itertuples(index=False)
        if s != -1 and names[int(n)].startswith("nccl")
    ]
    covered, reach = 0.0, float("-inf")
    for start, end in sorted(rows):
        covered += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return covered * 1000


def idle_causes(analysis, rank):
    table, _ = analysis.get_idle_time_breakdown(ranks=[rank], visualize=False)
    return table.sort_values(["stream", "idle_category"])


def assert_same(theirs, ours):
    from pandas.testing import assert_frame_equal

    (rank,) = ours.t.get_ranks()
    to_two_decimals = 0.011
    analyses = (
        (to_two_decimals, lambda a: a.get_temporal_breakdown(visualize=False)),
        (to_two_decimals, lambda a: a.get_comm_comp_overlap(visualize=False)),
        # HTA cuts every segment to whole us, and a float may fall just short of one.
        (2, lambda a: a.get_gpu_kernel_breakdown(visualize=False)[0].sort_values("kernel_type")),
        (to_two_decimals, lambda a: a.get_gpu_kernel_breakdown(visualize=False)[1]),
        (to_two_decimals, lambda a: idle_causes(a, rank)),
    )
    for tolerance, analysis in analyses:
        expected, found = analysis(theirs), analysis(ours)
        assert len(expected) > 0
        assert_frame_equal(
            found.reset_index(drop=True), expected.reset_index(drop=True),
            check_dtype=False, rtol=1e-6, atol=tolerance,
        )  # fmt: skip
    assert ours.t.get_iterations(rank) == theirs.t.get_iterations(rank)


@needs_hta
def test_same_figures_as_through_htas_parser(tmp_path, monkeypatch):
    theirs, ours = both(sample().write(tmp_path / "rank0.json"), monkeypatch)
    assert_same(theirs, ours)
    # Closed form, so that both cannot be wrong together: two of three steps, orphans dropped.
    row = ours.get_temporal_breakdown(visualize=False).iloc[0]
    assert row["compute_time(us)"] == pytest.approx(2 * 8 * 70)


@needs_hta
def test_a_job_of_four_ranks_against_the_simulators_truth():
    """HTA's overlap, all steps loaded, is that of the simulator that made the sample."""
    samples = Path(__file__).parent.parent.parent / "sample_traces" / "fsdp_tp_healthy"
    truth = json.loads((samples / "truth.json").read_text())
    analysis = to_hta(open_job([samples]), include_last_profiler_step=True)
    table = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
    busy = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    assert table.index.tolist() == [0, 1, 2, 3]
    for rank in truth["ranks"]:
        compute = sum(step["compute_ns"] for step in rank["steps"])
        assert busy["compute_time(us)"][rank["rank"]] == pytest.approx(compute / 1000)
        exposed = sum(sum(step["exposed_comm_ns"].values()) for step in rank["steps"])
        comm = communication_ns(analysis.t, rank["rank"])
        overlap = 100 * (1 - exposed / comm)
        assert table["comp_comm_overlap_pctg"][rank["rank"]] == pytest.approx(overlap, abs=0.006)


@needs_hta
@pytest.mark.corpus
@pytest.mark.parametrize(
    "name",
    [
        "hta/tests/data/nccl_parser_config/nccl_data.json.gz",
        "hta/tests/data/trace_diff/control/control.json.gz",
        "tracelens/tests/traces/mi300/resnet_act_checkpoint.json.gz",
    ],
)
def test_same_figures_on_real_traces(name, monkeypatch):
    path = CORPUS / "kineto" / name
    if not path.exists():
        pytest.skip("no corpus")
    theirs, ours = both(path, monkeypatch)
    assert_same(theirs, ours)
