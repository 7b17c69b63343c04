"""Paths, archives and compressions: what is read, and what is refused with which words."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pickle
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
import zstandard
from builders import TraceBuilder

from analyzer.errors import InputError
from collectors import Progress, open_job, sources
from collectors.kineto import read_trace
from collectors.sources import Source, expand, natural_key, open_source


def trace_bytes(rank: int = 0, world: int = 1) -> bytes:
    trace = TraceBuilder(rank=rank, world_size=world)
    trace.kernel("gemm", 100, 50, op="aten::mm")
    return trace.json()


def zipped(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), data)
    return out.getvalue()


PACKED = {
    "t.json": trace_bytes(),
    "t.json.gz": gzip.compress(trace_bytes()),
    "two_members.json.gz": gzip.compress(trace_bytes()[:500]) + gzip.compress(trace_bytes()[500:]),
    "padded.json.gz": gzip.compress(trace_bytes()) + b"\0" * 512,
    "junk_behind.json.gz": gzip.compress(trace_bytes()) + b"junk",
    "t.json.zst": zstandard.compress(trace_bytes()),
    "frames.json.zst": zstandard.compress(trace_bytes()[:500])
    + zstandard.compress(trace_bytes()[500:]),
    "t.json.bz2": bz2.compress(trace_bytes()),
    "t.json.xz": lzma.compress(trace_bytes()),
    "t.zip": zipped(rank0_dot_json=trace_bytes()),
    "gz_inside.zip": zipped(a__rank0_dot_json_dot_gz=gzip.compress(trace_bytes())),
    "wrong_suffix.json": gzip.compress(trace_bytes()),
    "no_suffix": zstandard.compress(trace_bytes()),
}


@pytest.mark.parametrize("name", PACKED)
def test_content_decides_how_a_file_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(PACKED[name])
    trace = read_trace(path)
    assert trace.device["name"].to_list() == ["gemm"]
    assert not trace.report.truncated
    assert trace.report.json_bytes == len(trace_bytes())


@pytest.mark.parametrize("isal", [True, False])
def test_gzip_without_isal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isal: bool) -> None:
    if not isal:
        monkeypatch.setitem(__import__("sys").modules, "isal", None)
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(trace_bytes()))
    inflater, _ = sources._gzip_inflater()
    assert isinstance(inflater, type(zlib.decompressobj())) is not isal
    assert read_trace(path).device.height == 1


def many(count: int) -> bytes:
    trace = TraceBuilder()
    for i in range(count):
        trace.kernel(f"kernel_{i * 7919 % count}", i * 100, 50, launch=False)
    return trace.json()


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, bz2.compress, lzma.compress])
def test_a_cut_file_gives_what_is_there(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    packed = pack(many(12_000))
    path = tmp_path / "t"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    trace = read_trace(path)
    assert trace.report.truncated
    assert 0 < trace.device.height < 12_000


def test_a_cut_file_without_a_whole_block_says_so(tmp_path: Path) -> None:
    path = tmp_path / "t.json.bz2"
    path.write_bytes(bz2.compress(many(100))[:200])
    with pytest.raises(InputError, match="cut off"):
        read_trace(path)


@pytest.mark.parametrize("isal", [True, False])
def test_a_wrong_checksum_loses_little_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isal: bool
) -> None:
    if not isal:
        monkeypatch.setitem(__import__("sys").modules, "isal", None)
    packed = bytearray(gzip.compress(many(20_000)))
    packed[-6] ^= 0xFF
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    trace = read_trace(path)
    assert trace.report.truncated
    assert trace.device.height > 19_500
    assert any("corrupt" in n for n in trace.report.notes)


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_JSON_BYTES", 10**6)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 5_000_000 + b"]}"))
    with pytest.raises(InputError, match="larger than"):
        read_trace(path)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path}/sprung",)

    (tmp_path / "snapshot.json").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(InputError, match="pickles are never loaded"):
        read_trace(tmp_path / "snapshot.json")
    assert not (tmp_path / "sprung").exists()


def test_tar_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.tar.gz"
    (tmp_path / "rank0.json").write_bytes(trace_bytes())
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "rank0.json", "rank0.json")
    with pytest.raises(InputError, match="tar archive"):
        read_trace(path)


def test_zip_without_traces(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zipped(readme_dot_txt=b"x"))
    with pytest.raises(InputError, match="without a JSON trace"):
        read_trace(tmp_path / "a.zip")
    (tmp_path / "rank0.json").write_bytes(trace_bytes())
    (tmp_path / "broken.zip").write_bytes(zipped(rank0_dot_json=trace_bytes())[:-9] + b"x" * 9)
    job = open_job([tmp_path])
    assert [r.rank for r in job.ranks] == [0]
    assert {Path(left.path).name for left in job.left_out} == {"a.zip", "broken.zip"}


def test_missing_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.json: no such file"):
        open_job([tmp_path / "nowhere.json"])
    with pytest.raises(InputError, match="no file matches"):
        open_job([str(tmp_path / "*.json")])
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match="no trace files in this directory"):
        open_job([tmp_path])
    with pytest.raises(InputError, match="no input"):
        open_job([])


def test_expand_takes_files_globs_and_directories_in_natural_order(tmp_path: Path) -> None:
    for i in (10, 2, 1):
        (tmp_path / f"rank{i}.json").write_bytes(trace_bytes(i))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "rank3.pt.trace.json.gz").write_bytes(gzip.compress(trace_bytes(3)))
    (tmp_path / "rank1.fr.json").write_text("{}")
    names = [Path(s.path).name for s in expand([tmp_path])[0]]
    assert names == ["rank1.json", "rank2.json", "rank10.json", "rank3.pt.trace.json.gz"]
    found, explicit = expand([str(tmp_path / "rank*.json"), tmp_path / "rank2.json"])
    assert [Path(s.path).name for s in found] == [
        "rank1.fr.json",
        "rank1.json",
        "rank2.json",
        "rank10.json",
    ]
    assert not explicit
    assert expand([tmp_path / "rank2.json"])[1]


def test_natural_key() -> None:
    assert sorted(["r10", "r2", "r1b", "r1"], key=natural_key) == ["r1", "r1b", "r2", "r10"]


def test_progress_reaches_the_size_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(many(5_000)))
    seen: list[Progress] = []
    read_trace(path, progress=seen.append)
    assert seen[-1] == Progress(str(path), path.stat().st_size, path.stat().st_size)
    assert [p.bytes_done for p in seen] == sorted(p.bytes_done for p in seen)


def test_stream_counts_delivered_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(trace_bytes())
    with open_source(Source(str(path)), 100) as stream:
        while stream.read():
            pass
        assert stream.done == len(trace_bytes())
        assert stream.damage == ""
