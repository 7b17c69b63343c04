"""The parsed-trace cache: equal results, nothing stale, nothing fatal."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from builders import TraceBuilder

from analyzer import schema
from analyzer.model import RankTrace
from collectors import cache as cache_module
from collectors import open_job
from collectors.cache import Cache, default_directory


def write_trace(path: Path, kernels: int = 50, rank: int = 1) -> Path:
    trace = TraceBuilder(rank=rank, world_size=2, groups=[("1", "mesh_tp", (0, 1))])
    trace.step(0, 0, 1000)
    for i in range(kernels):
        trace.kernel(f"gemm_{i}", i * 100, 50, op="aten::mm")
    trace.collective("all_reduce", 250, 150, group="1", nelems=4096)
    trace.memory(50, 512)
    trace.sync("Stream Sync", 400, 100)
    trace.thread_name("main")
    trace.metadata["meshscope"] = {"mesh": {"tp": 2}, "note": ["x"]}
    return trace.write(path)


def same(first: RankTrace, second: RankTrace) -> bool:
    return (
        first.meta == second.meta
        and replace(first.report, from_cache=False) == replace(second.report, from_cache=False)
        and all(getattr(first, t.name).equals(getattr(second, t.name)) for t in schema.TRACE_TABLES)
        and all(
            getattr(first, t.name).schema == getattr(second, t.name).schema
            for t in schema.TRACE_TABLES
        )
    )


def test_a_hit_is_identical(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank1.json.gz")
    cache = Cache(tmp_path / "cache")
    (fresh,) = open_job([path], cache=cache).ranks
    (cached,) = open_job([path], cache=cache).ranks
    assert not fresh.report.from_cache
    assert cached.report.from_cache
    assert same(fresh, cached)
    assert len(cache.entries()) == 1
    assert cache.size_bytes() > 0


def test_content_counts_not_the_name(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    open_job([write_trace(tmp_path / "a" / "rank1.json")], cache=cache)
    (moved,) = open_job([write_trace(tmp_path / "b" / "other.json")], cache=cache).ranks
    assert moved.report.from_cache
    assert moved.meta.path == str(tmp_path / "b" / "other.json")
    write_trace(tmp_path / "b" / "other.json", kernels=51)
    (changed,) = open_job([tmp_path / "b" / "other.json"], cache=cache).ranks
    assert not changed.report.from_cache
    assert changed.device.height == 52


def test_rank_from_the_name_is_not_cached(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    trace = TraceBuilder(distributed_info=False)
    trace.kernel("gemm", 1, 1)
    for rank in (3, 4):
        (read,) = open_job([trace.write(tmp_path / f"rank{rank}.json")], cache=cache).ranks
        assert read.rank == rank
    assert len(cache.entries()) == 1


@pytest.mark.parametrize("version", ["SCHEMA_VERSION", "READER_VERSION"])
def test_other_versions_do_not_hit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    path = write_trace(tmp_path / "rank1.json")
    cache = Cache(tmp_path / "cache")
    open_job([path], cache=cache)
    monkeypatch.setattr(cache_module, version, 999)
    assert not open_job([path], cache=cache).ranks[0].report.from_cache


def corrupt_flip(entry: Path) -> None:
    file = entry / "device.parquet"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


def corrupt_cut(entry: Path) -> None:
    file = entry / "ops.parquet"
    file.write_bytes(file.read_bytes()[:100])


def corrupt_meta(entry: Path) -> None:
    (entry / "meta.json").write_text("{")


def corrupt_missing(entry: Path) -> None:
    (entry / "launches.parquet").unlink()


def corrupt_no_meta(entry: Path) -> None:
    (entry / "meta.json").unlink()


@pytest.mark.parametrize(
    "damage", [corrupt_flip, corrupt_cut, corrupt_meta, corrupt_missing, corrupt_no_meta]
)
def test_a_damaged_entry_is_rebuilt(tmp_path: Path, damage: object) -> None:
    path = write_trace(tmp_path / "rank1.json")
    cache = Cache(tmp_path / "cache")
    (fresh,) = open_job([path], cache=cache).ranks
    assert callable(damage)
    damage(cache.entries()[0])
    (again,) = open_job([path], cache=cache).ranks
    assert not again.report.from_cache
    assert again.device.equals(fresh.device)
    assert open_job([path], cache=cache).ranks[0].report.from_cache


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    paths = [write_trace(tmp_path / f"rank{i}.json", kernels=60 + i, rank=i) for i in range(3)]
    cache = Cache(tmp_path / "cache")
    for age, path in enumerate(paths[:2]):
        open_job([path], cache=cache)
        os.utime(cache.entries()[-1], (age + 1, age + 1))
    open_job([paths[0]], cache=cache)  # used again: now the newest
    cache.max_bytes = cache.size_bytes() + 2_000  # room for two
    open_job([paths[2]], cache=cache)
    assert len(cache.entries()) == 2
    hits = [open_job([p], cache=cache).ranks[0].report.from_cache for p in (paths[0], paths[2])]
    assert hits == [True, True]


def test_clear_frees_everything(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    open_job([write_trace(tmp_path / "rank1.json")], cache=cache)
    size = cache.size_bytes()
    assert cache.clear() == size
    assert cache.size_bytes() == 0
    assert list((tmp_path / "cache").iterdir()) == []
    assert Cache(tmp_path / "none").clear() == 0


def test_a_disk_that_refuses_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file")
    (read,) = open_job([write_trace(tmp_path / "rank1.json")], cache=cache).ranks
    assert read.device.height == 51
    assert cache.entries() == []


def test_writers_may_race(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank1.json", kernels=300)
    (fresh,) = open_job([path]).ranks
    results: list[RankTrace] = []

    def work() -> None:
        for _ in range(5):
            results.extend(open_job([path], cache=Cache(tmp_path / "cache")).ranks)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 20
    assert all(r.device.equals(fresh.device) for r in results)
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [
        Cache(tmp_path / "cache").entries()[0].name
    ]


def test_the_directory_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MESHSCOPE_CACHE_DIR", str(tmp_path / "here"))
    assert default_directory() == tmp_path / "here"
    assert Cache().directory == tmp_path / "here"
    monkeypatch.delenv("MESHSCOPE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr("sys.platform", "linux")
    assert default_directory() == tmp_path / "xdg" / "meshscope"
