"""Every time exact to the nanosecond: against the standard library's JSON and decimals."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import TraceBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer.errors import InputError
from collectors.kineto import read_trace
from collectors.kineto.times import NULL, InexactTimesError, is_unpadded, to_ns

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("MESHSCOPE_TRACES", ROOT.parent / "shared" / "traces"))
BASE_NS = 1_767_189_312_000_000_000

us = st.builds(
    lambda whole, digits: f"{whole}.{digits}" if digits else str(whole),
    st.one_of(st.integers(0, 2**44), st.integers(1_600_000_000_000_000, 1_900_000_000_000_000)),
    st.text("0123456789", max_size=3),
)
short_us = st.builds(
    lambda whole, digits: f"{whole}.{digits}" if digits else str(whole),
    st.integers(0, 10**7),
    st.text("0123456789", max_size=3),
)


def ns(text: str) -> int:
    return int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_UP))


def written(times: list[tuple[str, str]], *, quoted: bool, base: int | None) -> str:
    mark = '"' if quoted else ""
    events = [
        f'{{"ph": "X", "cat": "kernel", "name": "k{i}", "pid": 0, "tid": 7, '
        f'"ts": {mark}{ts}{mark}, "dur": {dur}, "args": {{"stream": {i}, "correlation": {i + 1}}}}}'
        for i, (ts, dur) in enumerate(times)
    ]
    head = "" if base is None else f'"baseTimeNanoseconds": {base}, '
    return f'{{{head}"traceEvents": [{", ".join(events)}]}}'


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    times=st.lists(st.tuples(us, short_us), min_size=1, max_size=12),
    quoted=st.booleans(),
    based=st.booleans(),
)
def test_every_time_is_exact(
    tmp_path: Path, times: list[tuple[str, str]], quoted: bool, based: bool
) -> None:
    base = BASE_NS if based else None
    path = tmp_path / "t.json"
    path.write_text(written(times, quoted=quoted, base=base))
    device = read_trace(path).device.sort("stream")
    assert device["start_ns"].to_list() == [ns(ts) + (base or 0) for ts, _ in times]
    assert device["end_ns"].to_list() == [ns(ts) + ns(dur) + (base or 0) for ts, dur in times]


def test_epoch_time_keeps_its_nanoseconds(tmp_path: Path) -> None:
    trace = TraceBuilder(base_ns=None)
    trace.kernel("gemm", "1789035343287912.456", "0.001", launch=False)
    path = tmp_path / "t.json"
    trace.write(path)
    device = read_trace(path).device
    assert device["start_ns"].to_list() == [1_789_035_343_287_912_456]
    assert device["end_ns"].to_list() == [1_789_035_343_287_912_457]


def test_m05_short_kernels_keep_their_length(tmp_path: Path) -> None:
    """20 000 kernels of 0.9 us back to back: rounding to whole us makes durations negative."""
    trace = TraceBuilder()
    for i in range(2_000):
        trace.kernel("elementwise", f"{20 + i}.050", "0.900", launch=False)
    path = tmp_path / "t.json"
    trace.write(path)
    device = read_trace(path).device
    assert (device["end_ns"] - device["start_ns"]).unique().to_list() == [900]
    gaps = device["start_ns"][1:] - device["end_ns"][:-1]
    assert gaps.unique().to_list() == [100]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2.5, 0.001], [1000, 2500, 1]),
        ([2**52 + 1], [(2**52 + 1) * 1000]),
        ([True, None, [1], "x", ""], [NULL] * 5),
        (["1.5", 2, None], [1500, 2000, NULL]),
        ([" 1704161511420306.491\t"], [1_704_161_511_420_306_491]),
        (["4.458676524670502e12", "-1.5", "+7"], [4_458_676_524_670_502, -1500, 7000]),
        (["1.0004", "1.0005", "1.99999"], [1000, 1001, 2000]),
        (["1e999999999", "nan", "inf", "99999999999999999999"], [NULL] * 4),
        ([10**30, -(10**30)], [NULL, NULL]),
        ([10**400, 1, 2.5], [NULL, 1000, 2500]),
        ([-1.25, -0.001], [-1250, -1]),
        ([], []),
    ],
)
def test_conversion(values: list[Any], expected: list[int]) -> None:
    assert to_ns(values).tolist() == expected


def test_floats_that_lost_digits_are_refused() -> None:
    with pytest.raises(InexactTimesError):
        to_ns([1.0, 1789035343287912.456])
    assert to_ns([float(2**43 - 1), 8.5e12 + 0.125]).tolist() == [
        (2**43 - 1) * 1000,
        8_500_000_000_000_125,
    ]


@pytest.mark.parametrize("exponent", [41, 42, 43])
def test_the_float_path_is_exact_below_its_bound(exponent: int) -> None:
    """All fractions of three decimals near the largest times a float may carry."""
    whole = 2**exponent - 3
    texts = [f"{whole}.{i:03d}" for i in range(1000)]
    assert to_ns([float(t) for t in texts]).tolist() == [whole * 1000 + i for i in range(1000)]


def unpadded(value_ns: int) -> str:
    return f"{value_ns // 1000}.{value_ns % 1000}"


def test_fractions_without_leading_zeros(tmp_path: Path) -> None:
    """Kineto of March 2024 wrote 5 ns as ``.5``."""
    rng = np.random.default_rng(3)
    starts = 1_712_000_000_000_000_000 + np.cumsum(rng.integers(2_000, 9_000, 400))
    durations = rng.integers(1, 2_000, 400)
    times = [(unpadded(int(s)), unpadded(int(d))) for s, d in zip(starts, durations, strict=True)]
    path = tmp_path / "t.json"
    path.write_text(written(times, quoted=False, base=None))
    trace = read_trace(path)
    assert trace.device.sort("stream")["start_ns"].to_list() == starts.tolist()
    assert trace.device.sort("stream")["end_ns"].to_list() == (starts + durations).tolist()
    assert any("leading zeros" in n for n in trace.report.notes)


def test_shortened_decimals_are_not_taken_for_unpadded() -> None:
    values = np.random.default_rng(5).integers(1_000, 10**9, 500)
    assert is_unpadded([unpadded(int(v)) for v in values])
    assert not is_unpadded([f"{v / 1000:.3f}" for v in values])
    assert not is_unpadded([repr(float(v) / 1000) for v in values])
    assert not is_unpadded([str(v) for v in values])


def test_begin_and_end_become_intervals(tmp_path: Path) -> None:
    events = [
        {"ph": "E", "pid": 1, "tid": 1, "ts": 9.5},
        {"ph": "B", "pid": 1, "tid": 1, "ts": 1.25, "name": "outer"},
        {"ph": "B", "pid": 1, "tid": 1, "ts": 2, "name": "inner"},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 3},
        {"ph": "B", "pid": 1, "tid": 2, "ts": 2, "name": "other thread"},
        {"ph": "E", "pid": 1, "tid": 2, "ts": 2.5},
        {"ph": "B", "pid": 1, "tid": 3, "ts": 2, "name": "never ends"},
        {"ph": "E", "pid": 1, "tid": 4, "ts": 2},
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(events))
    trace = read_trace(path)
    rows = {n: (s, e) for n, s, e in trace.ops.select("name", "start_ns", "end_ns").rows()}
    assert rows == {"outer": (1250, 9500), "inner": (2000, 3000), "other thread": (2000, 2500)}
    assert dict(trace.report.dropped) == {"begin without end": 1, "end without begin": 1}


def _corpus() -> list[Any]:
    """Every trace; the first small one of each directory also in quick runs."""
    found: list[Path] = []
    for folder in ("kineto", "et", "torch_cpu", "npu", "pipeline"):
        found += (
            p for p in (TRACES / folder).rglob("*.json*") if not re.search(r"\.(fr|tar)\.", p.name)
        )
    seen: set[Path] = set()
    cases = []
    for path in sorted(p for p in found if p.suffix in (".json", ".gz")):
        quick = path.parent not in seen and path.stat().st_size < 1_200_000
        seen.update([path.parent] if quick else [])
        name = str(path.relative_to(TRACES))[-70:]
        cases.append(pytest.param(path, id=name, marks=[] if quick else [pytest.mark.slow]))
    return cases


def _reference(path: Path) -> tuple[list[dict[str, Any]], int] | None:
    raw = path.read_bytes()
    raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    # numbers stay text, so that no digit is lost
    document = json.loads(raw, parse_float=str, parse_int=str, strict=False)
    if isinstance(document, list):
        events, base = document, 0
    else:
        events, base = document.get("traceEvents"), int(document.get("baseTimeNanoseconds", 0))
    if not isinstance(events, list):
        return None
    events = [e for e in events if isinstance(e, dict) and "ph" in e]
    return (events, base) if events else None


KERNELS = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
OPS = {"cpu_op", "operator"}
LAUNCHES = {"cuda_runtime", "cuda_driver", "runtime"}


@pytest.mark.corpus
@pytest.mark.skipif(not TRACES.is_dir(), reason="no public traces")
@pytest.mark.parametrize("path", _corpus())
def test_real_traces_to_the_nanosecond(path: Path) -> None:
    """Times and names of all device events, operators and launches, as multisets."""
    reference = _reference(path)
    if reference is None:
        with pytest.raises(InputError):
            read_trace(path)
        return
    events, base = reference
    trace = read_trace(path)
    assert trace.report.events == len(events)
    for frame, categories in (
        (trace.device, KERNELS),
        (trace.ops, OPS),
        (trace.launches, LAUNCHES),
    ):
        theirs = [e for e in events if str(e.get("cat")).lower() in categories and e["ph"] == "X"]
        if not theirs:
            continue
        expected = Counter(
            (e["name"], ns(e["ts"]) + base, ns(e["ts"]) + ns(e["dur"]) + base) for e in theirs
        )
        ours = Counter(frame.select("name", "start_ns", "end_ns").rows())
        if categories is not LAUNCHES:  # Ascend adds events of other tracks to its launches
            assert len(theirs) == frame.height
        assert not expected - ours
