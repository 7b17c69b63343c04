"""Public cases about files that are not valid JSON, or not all there."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import Group, TraceBuilder
from case_helpers import Cli, check, small, steps

from analyzer.api import Analysis

Analyse = Callable[..., Analysis]
US = 1_000

# ---- broken JSON ---------------------------------------------------------------------------------

BROKEN_VALUES = ("N/A", "nan", "-nan", "NaN", "inf", "-inf", "Infinity", "undefined", "None")


@pytest.mark.parametrize("token", BROKEN_VALUES)
@pytest.mark.parametrize(
    "place", ['"queued": {}', '"grid": [{}, 1, 1]', '"note": {{"a": {}}}', '"External id": {}']
)
def test_b_12_bare_words_for_numbers(analyse: Analyse, place: str, token: str) -> None:
    trace = small()
    trace.kernel("nvjet_gemm", 700, 100)
    mark = b'"context": 1'
    data = trace.json()
    assert data.count(mark) == 2  # two kernels, both get the broken argument
    document = analyse(data.replace(mark, place.format(token).encode())).document
    assert document["step"]["compute_ns"] == 600 * US
    assert not document["coverage"]["truncated_inputs"]


def test_b_12_bare_words_outside_the_events(analyse: Analyse) -> None:
    data = small(0, 2).json().replace(b'"numSms": 132', b'"numSms": N/A')
    data = data.replace(b'"displayTimeUnit"', b'"clock": nan, "displayTimeUnit"')
    document = analyse(data).document
    assert document["job"]["world_size"] == 2
    assert document["step"]["compute_ns"] == 500 * US


@pytest.mark.parametrize(
    "name",
    [
        rb"C:\proj\train.py(3): f", rb"\\server\share\x.py(1): <module>", rb"C:\new\ugly\bad.py",
        rb"C:\dir" + b"\\", b"two\nlines\tand a tab", rb"\ud800 half a pair",
    ],
)  # fmt: skip
@pytest.mark.parametrize("of", ["op", "kernel"])
def test_b_13_names_with_lone_backslashes(analyse: Analyse, name: bytes, of: str) -> None:
    trace = small()
    if of == "op":
        trace.op("THE-NAME", 10, 5)
    else:
        trace.kernel("THE-NAME", 700, 100)
    document = analyse(trace.json().replace(b"THE-NAME", name)).document
    assert document["step"]["compute_ns"] == (500 if of == "op" else 600) * US
    assert not document["coverage"]["truncated_inputs"]


@pytest.mark.parametrize(
    "name",
    [
        rb'{"device": "cpu"}(12): run', rb'a "quoted" word', rb'"', rb'ends with "', rb'}, {"x": 1',
        rb'["a", "b"]: f', rb'f(x="1", y=[{"k": "v"}])',
    ],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 50])
def test_b_14_unescaped_quotes_cost_no_other_event(
    analyse: Analyse, name: bytes, count: int
) -> None:
    trace = TraceBuilder().step(0, 0, 1000)
    for n in range(count):
        trace.op("THE-NAME", 1 + n, 0.5)
        trace.kernel("nvjet_gemm", 100 + 10 * n, 5, op="aten::mm")
    document = analyse(trace.json().replace(b"THE-NAME", name)).document
    assert document["step"]["compute_ns"] == count * 5 * US
    coverage = document["coverage"]
    handled = [*coverage["repaired_events"].values(), *coverage["dropped_events"].values()]
    assert sum(handled) == count
    assert not coverage["truncated_inputs"]


# ---- truncation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.3, 0.55, 0.8, 0.95, 0.9999])
@pytest.mark.parametrize("packed", [False, True], ids=["json", "gzip"])
def test_m_19_cut_off_files_are_read_and_get_no_verdict(
    tmp_path: Path, run_cli: Cli, share: float, packed: bool
) -> None:
    path = tmp_path / ("rank0.json.gz" if packed else "rank0.json")
    data = steps(20).json()
    data = gzip.compress(data, mtime=0) if packed else data
    path.write_bytes(data[: int(share * len(data))])
    run = run_cli(path, "--max-exposed-comm", "99%", "--json", "-")
    assert run.code == 3
    document = run.document
    check(document)
    assert document["coverage"]["truncated_inputs"] == [str(path)]
    assert document["step"]["compute_ns"] == 500 * US
    assert document["gates"][0]["passed"] is None
    assert "truncated input" in document["gates"][0]["reason"]
    assert "the trace file is cut off" in {s["reason"] for s in document["job"]["steps_dropped"]}


@pytest.mark.parametrize("size", [0, 1, 100, 500, 1000, 3000])
def test_m_19_the_first_bytes_of_a_trace(tmp_path: Path, run_cli: Cli, size: int) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(steps(20).json()[:size])
    run = run_cli(path, "--max-exposed-comm", "99%")
    assert run.code in {2, 3}
    if run.code == 2:
        assert run.err.count("\n") == 1
        assert "rank0.json" in run.err


def test_m_19_one_cut_off_rank_among_good_ones(analyse: Analyse) -> None:
    group = [Group("0", "default_pg", (0, 1))]
    whole, cut = (TraceBuilder(rank=r, world_size=2, groups=group) for r in (0, 1))
    for trace in (whole, cut):
        trace.events = steps(5).events
    document = analyse(whole, cut.json()[:-4000]).document
    assert len(document["coverage"]["truncated_inputs"]) == 1
    kept = {s["step"]: s["ranks"] for s in document["job"]["steps_kept"]}
    assert kept[0] == [0, 1]
    assert kept[4] == [0]
