"""Parsed traces on disk, so that a second look at the same files costs nearly nothing.

One directory per trace, a Parquet file per table and ``meta.json``; nothing is ever unpickled.
Entries are keyed by the content of the input and by the versions of tables and reader, written to a
temporary directory and renamed, so that readers never see half an entry and writers may race.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
import uuid
import zlib
from dataclasses import replace
from pathlib import Path

import msgspec

from analyzer.model import IngestReport, RankTrace, TraceMeta
from analyzer.schema import SCHEMA_VERSION, TRACE_TABLES, check

DEFAULT_MAX_BYTES = 5 << 30
READER_VERSION = 1
"""Raised whenever the same file would be read differently."""

_META = "meta.json"
_STALE_SECONDS = 24 * 3600


class _Entry(msgspec.Struct, frozen=True):
    """``meta.json``."""

    meta: TraceMeta
    report: IngestReport
    thread_names: list[tuple[str, str, str]]  # pid, tid, name
    crc32: dict[str, int]  # table -> checksum of its file


class Cache:
    """A size-capped store of parsed traces; the least recently used go first.

    Safe to share between processes. Anything wrong with an entry makes it a miss, and anything
    wrong with the disk makes storing a no-op: the cache never fails an analysis.

    Args:
        directory: where; default ``$MESHSCOPE_CACHE_DIR`` or the platform's cache directory.
        max_bytes: size above which old entries are removed.
    """

    def __init__(self, directory: Path | None = None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.directory = Path(directory) if directory is not None else default_directory()
        self.max_bytes = max_bytes

    def load(self, key: str) -> RankTrace | None:
        """The trace stored under a content key, or None. Its report says it is from the cache."""
        entry = self._entry(key)
        if not entry.is_dir():
            return None
        try:
            trace = _read(entry)
            os.utime(entry)
        except (OSError, ValueError, msgspec.MsgspecError, _polars_error()):
            self._remove(entry)
            return None
        return trace

    def store(self, key: str, trace: RankTrace) -> bool:
        """Keep a trace; returns whether that succeeded."""
        entry = self._entry(key)
        temporary = self.directory / f".tmp-{uuid.uuid4().hex}"
        try:
            temporary.mkdir(parents=True)
            _write(temporary, trace)
            temporary.replace(entry)  # fails when another process was faster: as good
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            return entry.is_dir()
        self._evict(keep=entry)
        return True

    def entries(self) -> list[Path]:
        """Directories of the stored traces, the least recently used first."""
        try:
            found = [
                p for p in self.directory.iterdir() if (p / _META).is_file() and p.name[0] != "."
            ]
            return sorted(found, key=lambda p: p.stat().st_mtime)
        except OSError:
            return []

    def size_bytes(self) -> int:
        """Bytes on disk."""
        return sum(map(_size, self.entries()))

    def clear(self) -> int:
        """Remove everything; returns the bytes freed."""
        freed = 0
        for entry in self.entries():
            freed += _size(entry)
            self._remove(entry)
        self._remove_stale(older_than=0)
        return freed

    def _entry(self, key: str) -> Path:
        versioned = f"{key}/{SCHEMA_VERSION}/{READER_VERSION}"
        return self.directory / hashlib.sha256(versioned.encode()).hexdigest()[:40]

    def _evict(self, keep: Path) -> None:
        entries = self.entries()
        sizes = {entry: _size(entry) for entry in entries}
        total = sum(sizes.values())
        for entry in entries:
            if total <= self.max_bytes:
                break
            if entry != keep:
                self._remove(entry)
                total -= sizes[entry]
        self._remove_stale(_STALE_SECONDS)

    def _remove(self, entry: Path) -> None:
        """Rename first, so that nobody opens a directory that is being emptied."""
        trash = self.directory / f".tmp-{uuid.uuid4().hex}"
        try:
            entry.replace(trash)
        except OSError:
            return
        shutil.rmtree(trash, ignore_errors=True)

    def _remove_stale(self, older_than: float) -> None:
        """Remove what writers that died left behind."""
        try:
            left = list(self.directory.glob(".tmp-*"))
        except OSError:
            return
        for path in left:
            try:
                stale = time.time() - path.stat().st_mtime >= older_than
            except OSError:
                continue
            if stale:
                shutil.rmtree(path, ignore_errors=True)


def default_directory() -> Path:
    """``$MESHSCOPE_CACHE_DIR``, or where this platform keeps caches."""
    if own := os.environ.get("MESHSCOPE_CACHE_DIR"):
        return Path(own)
    if sys.platform == "win32":
        root = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        root = str(Path.home() / "Library" / "Caches")
    else:
        root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "meshscope"


def _write(directory: Path, trace: RankTrace) -> None:
    checksums = {}
    for table in TRACE_TABLES:
        file = directory / f"{table.name}.parquet"
        getattr(trace, table.name).write_parquet(file, compression="zstd", compression_level=1)
        checksums[table.name] = zlib.crc32(file.read_bytes())
    entry = _Entry(
        meta=replace(trace.meta, thread_names={}),
        report=trace.report,
        thread_names=[(pid, tid, name) for (pid, tid), name in trace.meta.thread_names.items()],
        crc32=checksums,
    )
    (directory / _META).write_bytes(msgspec.json.encode(entry))


def _read(directory: Path) -> RankTrace:
    import polars as pl

    entry = msgspec.json.decode((directory / _META).read_bytes(), type=_Entry)
    tables = {}
    for table in TRACE_TABLES:
        data = (directory / f"{table.name}.parquet").read_bytes()
        if zlib.crc32(data) != entry.crc32.get(table.name):
            message = f"{table.name}: checksum differs"
            raise ValueError(message)
        tables[table.name] = check(pl.read_parquet(data), table)
    names = {(pid, tid): name for pid, tid, name in entry.thread_names}
    return RankTrace(
        meta=replace(entry.meta, thread_names=names),
        report=replace(entry.report, from_cache=True),
        **tables,
    )


def _size(entry: Path) -> int:
    try:
        return sum(file.stat().st_size for file in entry.iterdir())
    except OSError:
        return 0


def _polars_error() -> type[Exception]:
    from polars.exceptions import PolarsError

    return PolarsError
