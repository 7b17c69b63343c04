"""JSON that writers really produced, or that hostile input could hold: load it or explain it."""

from __future__ import annotations

import gzip
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer.errors import InputError
from analyzer.model import RankTrace
from analyzer.schema import TRACE_TABLES, check
from collectors.kineto import read_trace
from collectors.kineto import stream as stream_module
from collectors.kineto.stream import EventStream

HEAD = (
    b'{\n  "schemaVersion": 1,\n  "deviceProperties": [\n'
    b'    {\n      "id": 0, "name": "X"\n    },\n'
    b'    {\n      "id": 1, "name": "Y"\n    }\n  ],\n  "traceEvents": ['
)
TAIL = b'\n  ],\n  "traceName": "t.json"\n}\n'


def event(
    name: bytes = b"aten::mm",
    args: bytes = b'"External id": 7, "Sequence number": 9',
    ts: bytes = b"4458676524670.502",
    dur: bytes = b"92.804",
) -> bytes:
    return (
        b'\n  {\n    "ph": "X", "cat": "cpu_op", "name": "' + name + b'", "pid": 1, "tid": 2,\n'
        b'    "ts": '
        + ts
        + b', "dur": '
        + dur
        + b',\n    "args": {\n      '
        + args
        + b"\n    }\n  }"
    )


def document(*events: bytes) -> bytes:
    return HEAD + b",".join(events) + TAIL


OK = event()


@dataclass
class Expected:
    """What reading an input must give; names are those of the ops table, in file order."""

    ops: list[str]
    events: int | None = None  # default: as many as ops
    dropped: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    truncated: bool = False
    note: str = ""


MM = "aten::mm"
QUOTED = '{"device": "cpu", "dtype": "float32"}(12): run'
CASES: dict[str, tuple[bytes, Expected]] = {
    "boundary text inside a string": (
        document(OK, event(rb"a },\n  { \"ph\": \"X\"} ]"), OK),
        Expected([MM, 'a },\n  { "ph": "X"} ]', MM]),
    ),
    "B-14 unescaped quotes in a name": (
        document(OK, event(QUOTED.encode()), OK),
        Expected([MM, QUOTED, MM], repaired={"unescaped quote": 1}),
    ),
    "unescaped quotes in the first name": (
        document(event(QUOTED.encode()), OK),
        Expected([QUOTED, MM], repaired={"unescaped quote": 1}),
    ),
    "unescaped quotes in the last name": (
        document(OK, event(QUOTED.encode())),
        Expected([MM, QUOTED], repaired={"unescaped quote": 1}),
    ),
    "unescaped quotes in every name": (
        document(*[event(QUOTED.encode())] * 5),
        Expected([QUOTED] * 5, repaired={"unescaped quote": 5}),
    ),
    "raw newline in a name": (
        document(OK, event(b"line1\nline2"), OK),
        Expected([MM, "line1\nline2", MM], repaired={"control character": 1}),
    ),
    "control character in a name": (
        document(OK, event(b"a\x01b"), OK),
        Expected([MM, "a\x01b", MM], repaired={"control character": 1}),
    ),
    "B-13 lone backslashes (Windows path)": (
        document(OK, event(rb"C:\proj\train.py(3): f"), OK),
        Expected([MM, r"C:\proj\train.py(3): f", MM], repaired={"invalid escape": 1}),
    ),
    "backslash before the closing quote": (
        document(OK, event(b"C:\\dir\\"), OK),
        Expected([MM, "C:\\dir\\", MM], repaired={"invalid escape": 1}),
    ),
    "non-UTF-8 name": (
        document(OK, event(b"caf\xe9"), OK),
        Expected([MM, "caf\ufffd", MM], repaired={"invalid UTF-8": 1}),
    ),
    "lone surrogate": (
        document(OK, event(rb"x\ud83d"), OK),
        Expected([MM, "x\ufffd", MM], repaired={"invalid escape": 1}),
    ),
    "NaN argument": (
        document(OK, event(b"k", b'"External id": 7, "memory bandwidth (GB/s)": NaN'), OK),
        Expected([MM, "k", MM], repaired={"bare value": 1}),
    ),
    "inf argument": (
        document(OK, event(b"k", b'"External id": 7, "memory bandwidth (GB/s)": inf'), OK),
        Expected([MM, "k", MM], repaired={"bare value": 1}),
    ),
    "-nan argument": (
        document(OK, event(b"k", b'"External id": 7, "bw": -nan'), OK),
        Expected([MM, "k", MM], repaired={"bare value": 1}),
    ),
    "B-12 bare N/A": (
        document(OK, event(b"k", b'"queued": N/A, "External id": 7'), OK),
        Expected([MM, "k", MM], repaired={"bare value": 1}),
    ),
    "duplicate key": (
        document(OK, event(b"k", b'"External id": 8, "External id": 7')),
        Expected([MM, "k"]),
    ),
    "numbers as strings": (
        document(OK, event(b"k", b'"External id": "7", "bytes": "10"')),
        Expected([MM, "k"]),
    ),
    "ts as string": (document(OK, event(b"k", ts=b'"4458676524670.502"')), Expected([MM, "k"])),
    "ts with an exponent": (
        document(OK, event(b"k", ts=b"4.458676524670502e12")),
        Expected([MM, "k"]),
    ),
    "ts as a list": (
        document(OK, event(b"k", ts=b"[1]")),
        Expected([MM], events=2, dropped={"no timestamp": 1}),
    ),
    "ts as true": (
        document(OK, event(b"k", ts=b"true")),
        Expected([MM], events=2, dropped={"no timestamp": 1}),
    ),
    "id above 2**63": (
        document(OK, event(b"k", b'"External id": 18446744073709551615')),
        Expected([MM, "k"], repaired={"unusable external_id left empty": 1}),
    ),
    "number out of range": (
        document(OK, event(b"k", b'"External id": 7, "x": 1e999, "Sequence number": 1e999'), OK),
        Expected([MM, "k", MM], repaired={"number out of range": 1}),
    ),
    "absurdly long number": (
        document(OK, event(b"k", b'"External id": ' + b"9" * 10_000), OK),
        Expected(
            [MM, "k", MM],
            repaired={"unusable external_id left empty": 1, "number out of range": 1},
        ),
    ),
    "trailing comma in the array": (
        HEAD + OK + b"," + OK + b"," + TAIL,
        Expected([MM, MM], repaired={"trailing comma": 1}),
    ),
    "trailing comma in args": (
        document(OK, event(b"k", b'"External id": 7,'), OK),
        Expected([MM, "k", MM], repaired={"trailing comma": 1}),
    ),
    "trailing comma in every args": (
        document(*[event(b"k", b'"External id": 7,')] * 4),
        Expected(["k"] * 4, repaired={"trailing comma": 4}),
    ),
    "cut in the middle of an event": (
        document(OK, OK, OK)[:-150],
        Expected([MM, MM], dropped={"cut-off event": 1}, truncated=True),
    ),
    "cut inside a string": (
        document(OK, OK, OK)[: -len(TAIL) - len(OK) + 45],
        Expected([MM, MM], dropped={"cut-off event": 1}, truncated=True),
    ),
    "array not closed": (HEAD + OK + b"," + OK + b",\n", Expected([MM, MM], truncated=True)),
    "object not closed": (HEAD + OK + b"," + OK + b"\n ]", Expected([MM, MM], truncated=True)),
    "cut in the metadata behind the events": (document(OK)[:-8], Expected([MM], truncated=True)),
    "bare array": (b"[" + OK + b"," + OK + b"]", Expected([MM, MM])),
    "UTF-8 BOM": (b"\xef\xbb\xbf" + document(OK, OK), Expected([MM, MM])),
    "CRLF": (document(OK, OK).replace(b"\n", b"\r\n"), Expected([MM, MM])),
    "events before the metadata": (
        b'{"traceEvents":[' + OK + b'],"distributedInfo":{"rank":3}}',
        Expected([MM]),
    ),
    "nested traceEvents key in the metadata": (
        b'{"metadata":{"traceEvents":[1,2]},"traceEvents":[' + OK + b"]}",
        Expected([MM]),
    ),
    "nested traceEvents that look like events": (
        b'{"metadata":{"traceEvents":[{"ph":"X"}]},"traceEvents":[' + OK + b"]}",
        Expected([MM]),
    ),
    "null and number between events": (
        b'{"traceEvents":[' + OK + b",null,5," + OK + b"]}",
        Expected([MM, MM], dropped={"not an event object": 2}),
    ),
    "garbage behind the end": (
        document(OK, OK) + b"garbage",
        Expected([MM, MM], note="behind the end"),
    ),
    "second document behind the end": (document(OK) * 2, Expected([MM], note="behind the end")),
    "empty and null args": (
        document(OK, event(b"k", b""), b'\n  {"ph":"X","name":"n","ts":1,"args":null}', OK),
        Expected([MM, "k", MM], events=4, dropped={"no duration": 1}),
    ),
    "args that are no object": (
        document(OK, b'{"ph":"X","cat":"cpu_op","name":"n","ts":1,"dur":1,"args":[1]}'),
        Expected([MM, "n"]),
    ),
    "unquoted string value": (
        document(
            OK, event(b"k", b'"Process Group Name": default_pg, "External id": 7, "Group size": 8')
        ),
        Expected([MM, "k"], repaired={"bare value": 1}),
    ),
    "malformed metadata value": (
        b'{"INFO": ["a "b" c"],\n  "traceEvents": [' + OK + b"," + OK + b"]}",
        Expected([MM, MM]),
    ),
    "malformed metadata behind the events": (
        b'{"traceEvents": [' + OK + b'],\n "INFO": ["a "b" c"],\n "distributedInfo": {"rank": 3}}',
        Expected([MM]),
    ),
    "args nested 100 000 deep": (
        document(OK, event(b"k", b'"x": ' + b"[" * 100_000 + b"]" * 100_000), OK),
        Expected([MM, "k", MM], repaired={"nested too deeply": 1}),
    ),
    "M-18 negative duration": (
        document(OK, event(b"k", dur=b"-5")),
        Expected([MM], events=2, dropped={"negative duration": 1}),
    ),
    "negative time stamp": (document(OK, event(b"k", ts=b"-5.25")), Expected(["k", MM])),
    "name of 100 000 characters": (
        document(OK, event(b"n" * 100_000)),
        Expected([MM, "n" * 100_000]),
    ),
    "lists of objects in args": (
        document(OK, event(b"k", b'"External id": 7, "x": [{"ph":1}, {"ph":2}, {"ph":3}]'), OK),
        Expected([MM, "k", MM]),
    ),
}


def read(tmp_path: Path, data: bytes, name: str = "t.json") -> RankTrace:
    path = tmp_path / name
    path.write_bytes(data)
    return read_trace(path)


@pytest.mark.parametrize("case", CASES)
def test_loads_what_is_legible(tmp_path: Path, case: str) -> None:
    data, expected = CASES[case]
    trace = read(tmp_path, data)
    names = trace.ops["name"].cast(str).to_list()
    assert sorted(names) == sorted(expected.ops)
    assert trace.report.events == (
        expected.events or len(expected.ops) + (expected.truncated and 0)
    )
    assert dict(trace.report.dropped) == expected.dropped
    assert dict(trace.report.repaired) == expected.repaired
    assert trace.report.truncated == expected.truncated
    assert any(expected.note in n for n in trace.report.notes) or not expected.note


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunk", [1, 37, 256, 1024])
def test_chunk_borders_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, chunk: int
) -> None:
    data, _ = CASES[case]
    if len(data) > 20_000 and chunk < 256:
        pytest.skip("a huge event in tiny chunks takes long and shows nothing new")
    whole = read(tmp_path, data)
    events, counters = _stream_names(data, chunk, monkeypatch)
    assert sorted(n for n in events if n is not None) == sorted(_all_names(data, monkeypatch))
    of_text = {k: v for k, v in whole.report.repaired.items() if "left empty" not in k}
    assert counters.repaired == of_text
    assert counters.truncated == whole.report.truncated


def _stream_names(
    data: bytes, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Any], EventStream]:
    """Names of all events when blocks of ``chunk`` bytes arrive and each is tried at once."""
    monkeypatch.setattr(stream_module, "CHUNK_BYTES", chunk)
    blocks = iter([data[i : i + chunk] for i in range(0, len(data), chunk)])
    stream = EventStream(lambda: next(blocks, b""), "t")
    names = [getattr(i, "name", None) for c in stream for i in c.items]
    return names, stream


def _all_names(data: bytes, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    names, _ = _stream_names(data, len(data) + 1, monkeypatch)
    return [n for n in names if n is not None]


def test_repaired_events_keep_their_arguments(tmp_path: Path) -> None:
    args = b'"External id": 7, "Sequence number": 9, "Input Dims": [[2, 3], []]'
    trace = read(tmp_path, document(OK, event(QUOTED.encode(), args)))
    row = trace.ops.row(by_predicate=pl.col("name").cast(pl.String) == QUOTED, named=True)
    assert (row["external_id"], row["sequence"], row["pid"], row["tid"]) == (7, 9, 1, 2)
    assert msgspec.json.decode(row["input_dims"]) == [[2, 3], []]
    assert row["start_ns"] == 4_458_676_524_670_502
    assert row["end_ns"] - row["start_ns"] == 92_804


def test_bare_process_group_name_is_text(tmp_path: Path) -> None:
    args = b'"Collective name": allreduce, "Process Group Name": default_pg, "Group size": 8'
    trace = read(tmp_path, document(event(b"record_param_comms", args)))
    row = trace.comm_args.row(0, named=True)
    assert (row["collective"], row["group_name"], row["group_size"]) == (
        "allreduce",
        "default_pg",
        8,
    )


def test_metadata_survives_a_malformed_neighbour(tmp_path: Path) -> None:
    data, _ = CASES["malformed metadata behind the events"]
    assert read(tmp_path, data).meta.rank == 3


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "empty"),
        (b" \n ", "empty"),
        (b"hello", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 50_000, "nested too deeply"),
        (b'{"a": [1, 2', "broken JSON"),
        (b'{"traceEvents": 5}', "no traceEvents"),
        (b'{"traceEvents": []}', "holds no events"),
        (b"[]", "holds no events"),
        (b"[1, 2, 3]", "not a Kineto or Chrome trace"),
        (b'["a"]', "not a Kineto or Chrome trace"),
        (b'[{"cols": [{"id": 1}]}]', "data table"),
        (b'[{"a": 1}, {"a": 2}]', "not a Kineto or Chrome trace"),
        (b"[[1712707009634059, 1712707009634059], [0, 1]]", "memory timeline"),
        (b'{"rocprofiler-sdk-tool": []}', "rocprofiler"),
        (
            b'{"schema": "1.0.2-chakra.0.0.4", "pid": 1, "time": "x", "nodes": []}',
            "execution trace",
        ),
        (b'{"pg_config": {}, "entries": [{"collective_seq_id": 1}]}', "flight recorder"),
        (b'{"hloModule": 1}', "XLA"),
        (b"\x80\x04\x95\x00", "pickle"),
        (b"PAR1....", "Parquet"),
        (b"SQLite format 3\x00", "SQLite"),
        (b"\xff\xfe{\x00", "UTF-16"),
        (b'{"traceEvents": [{"ph": "X", "na', "cut off before the first complete event"),
    ],
)
def test_says_what_a_file_is_instead(tmp_path: Path, data: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=re.escape(problem)) as caught:
        read(tmp_path, data)
    assert "t.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_truncation_anywhere_keeps_every_complete_event() -> None:
    names = [
        f'n{i} "q" }}, {{'.replace('"', r"\"").encode() if i % 3 else b"plain" for i in range(60)
    ]
    data = document(*[event(n) for n in names])
    rng = random.Random(7)
    for cut in (rng.randrange(len(HEAD) + 1, len(data) - len(TAIL)) for _ in range(150)):
        part = data[:cut]
        blocks = iter([part[i : i + 700] for i in range(0, len(part), 700)])
        stream = EventStream(lambda blocks=blocks: next(blocks, b""), "t")
        found = sum(len(c.items) for c in stream)
        assert stream.truncated
        assert found == part.count(b"\n    }\n  }")


FUZZ = (b"NaN", b"}, {", b'"', b"\\", b"\0", b"\xff", b"[[", b"]}", b"1e999", b"null,", b"-", b".5")


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    edits=st.lists(
        st.tuples(
            st.floats(0, 1, exclude_max=True),  # where
            st.integers(0, 40),  # how much goes
            st.one_of(st.sampled_from(FUZZ), st.binary(max_size=3)),  # what comes
        ),
        min_size=1,
        max_size=6,
    ),
    chunk=st.sampled_from([64, 700, 1 << 22]),
)
def test_damage_anywhere_is_survived(
    tmp_path: Path, edits: list[tuple[float, int, bytes]], chunk: int
) -> None:
    """Whatever happens to the text, it is read as far as it goes or refused in one line."""
    data = bytearray(document(*[OK, event(QUOTED.encode()), event(rb"C:\proj"), OK] * 3))
    for where, gone, new in edits:
        at = int(where * len(data))
        data[at : at + gone] = new
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_module, "CHUNK_BYTES", chunk)
        try:
            trace = read(tmp_path, bytes(data))
        except InputError:
            return  # any other exception fails the test
    for table in TRACE_TABLES:
        check(getattr(trace, table.name), table)
    assert trace.report.events <= data.count(b"{")


def test_truncated_gzip_keeps_what_was_written(tmp_path: Path) -> None:
    data = document(*[event(b"op%d" % i, b'"External id": %d' % i) for i in range(20_000)])
    packed = gzip.compress(data, 6)
    trace = read(tmp_path, packed[: len(packed) // 2], "t.json.gz")
    assert trace.report.truncated
    assert 8_000 < trace.ops.height < 12_000
    assert any("cut off" in n for n in trace.report.notes)


def test_every_event_broken_costs_linear_time(tmp_path: Path) -> None:
    """Twice the events take about twice, not four times as long."""
    quoted = event(QUOTED.encode())

    def seconds(count: int) -> float:
        return min(
            read(tmp_path, HEAD + b",".join([quoted] * count) + TAIL).report.seconds
            for _ in range(2)
        )

    assert seconds(8_000) / seconds(2_000) < 9  # quadratic would be 16


def test_the_decoder_still_names_the_place() -> None:
    """Repair hangs on the wording of these messages."""
    decode = msgspec.json.Decoder(list[Any]).decode
    for text, message in (
        (b'[{"a": "b"c"}]', r"\(byte 10\)"),
        (b'[{"a": 1}] x', r"trailing characters \(byte 12\)"),
        (b'[{"a": 1},]', r"trailing comma in array \(byte 10\)"),
        (b'[{"a": 1}, {"a', "truncated"),
        (b'[{"a": "\xe9"}]', "UTF-8"),
    ):
        with pytest.raises(msgspec.DecodeError, match=message):
            decode(text)
