"""Inputs: from paths to byte streams. What a file is, its first bytes decide, not its suffix."""

from __future__ import annotations

import bz2
import glob
import hashlib
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, cast

from analyzer.errors import InputError
from collectors import Progress

READ_BYTES = 1 << 16
"""Compressed bytes read at a time."""

_INFLATE_BYTES = 1 << 16
"""Bytes inflated at a time: what one call was about to return is lost when it fails."""

MAX_JSON_BYTES = 200 * 10**9
"""Uncompressed size above which an input is refused: protects against decompression bombs."""

_CANDIDATE = re.compile(r"\.(json|zip)$|\.json\.(gz|zst|xz|bz2)$|trace.*\.(gz|zst)$", re.IGNORECASE)
_FOREIGN = re.compile(r"\.fr\.json(\.gz|\.zst)?$", re.IGNORECASE)  # flight recorder dumps


@dataclass(frozen=True, slots=True)
class Source:
    """One input: a file, or a member of a zip archive."""

    path: str
    member: str = ""

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"{self.path}!{self.member}" if self.member else self.path

    @property
    def name(self) -> str:
        """The name that may tell the rank."""
        return self.member or self.path


class Reader(Protocol):
    """Something bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes, empty at the end."""
        ...


def expand(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[Source], bool]:
    """Turn files, directories, globs and archives into sources, in natural name order.

    Returns:
        The sources, each file once whatever paths lead to it, and whether they were named one by
        one (so that a single unusable one is an error rather than something to leave out).

    Raises:
        InputError: a path does not exist, a glob matches nothing, a directory holds no candidate.
    """
    found: dict[Source, None] = {}
    explicit = True
    for given in paths:
        path = os.fspath(given)
        if Path(path).is_dir():
            explicit = False
            found.update(dict.fromkeys(_directory(path)))
        elif Path(path).is_file():
            found.update(dict.fromkeys(_file(path)))
        elif glob.has_magic(path):
            explicit = False
            matches = [m for m in glob.glob(path, recursive=True) if Path(m).is_file()]  # noqa: PTH207
            if not matches:
                raise InputError(f"{path}: no file matches")
            for match in sorted(matches, key=natural_key):
                found.update(dict.fromkeys(_file(match)))
        else:
            raise InputError(f"{path}: no such file or directory")
    if not found:
        raise InputError("no input given")
    return _distinct(found), explicit


def _distinct(sources: Iterable[Source]) -> list[Source]:
    """The sources without second ways to the same file, under the path given first."""
    files: dict[tuple[str, str], Source] = {}
    for source in sources:
        files.setdefault((os.path.realpath(source.path), source.member), source)
    return list(files.values())


def natural_key(text: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key under which ``rank2`` comes before ``rank10``."""
    parts = re.split(r"(\d+)", text)
    return tuple((0, int(p)) if p.isdigit() else (1, p) for p in parts)


def _directory(path: str) -> Iterator[Source]:
    files = [
        str(p)
        for p in Path(path).rglob("*")
        if p.is_file() and _CANDIDATE.search(p.name) and not _FOREIGN.search(p.name)
    ]
    if not files:
        raise InputError(
            f"{path}: no trace files in this directory", "looked for *.json[.gz|.zst], *.zip"
        )
    for file in sorted(files, key=natural_key):
        yield from _file(file)


def _file(path: str) -> Iterator[Source]:
    """The file itself, or the traces in it when it is an archive of some."""
    members: list[str] = []
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                members = [i.filename for i in archive.infolist() if not i.is_dir()]
        except (zipfile.BadZipFile, OSError):
            members = []
    traces = [m for m in members if _CANDIDATE.search(m) and not m.lower().endswith(".zip")]
    if not traces:
        yield Source(path)
    for member in sorted(traces, key=natural_key):
        yield Source(path, member)


class _Counted:
    """A file that reports how far it was read."""

    def __init__(
        self, file: IO[bytes], label: str, total: int, notify: Callable[[Progress], None] | None
    ) -> None:
        self._file, self._label, self._total, self._notify = file, label, total, notify
        self._done = 0

    def read(self, size: int, /) -> bytes:
        block = self._file.read(size)
        self._done += len(block)
        if self._notify:
            self._notify(Progress(self._label, self._done, self._total))
        return block


class JsonStream:
    """Decompressed bytes of one source.

    ``damage`` says after the end what was wrong with the compression (cut off, corrupt); whatever
    could be inflated before is delivered. ``done`` counts the bytes delivered.
    """

    def __init__(self, blocks: Iterator[bytes], label: str) -> None:
        self._blocks, self.label = blocks, label
        self.damage = ""
        self.done = 0

    def read(self) -> bytes:
        """The next block of at most a few MB, empty at the end."""
        try:
            block = next(self._blocks, b"")
        except (zlib.error, lzma.LZMAError, OSError, EOFError, zipfile.BadZipFile) as error:
            self.damage = f"compressed data is damaged: {error}"
            return b""
        except _DamagedError as error:
            self.damage = str(error)
            return b""
        self.done += len(block)
        if self.done > MAX_JSON_BYTES:
            limit = MAX_JSON_BYTES // 10**9
            raise InputError(f"{self.label}: larger than {limit} GB when decompressed")
        return block


class _DamagedError(Exception):
    """Compressed data ended early or is corrupt."""


@contextmanager
def open_source(
    source: Source, block: int, notify: Callable[[Progress], None] | None = None
) -> Iterator[JsonStream]:
    """Open a source for reading decompressed blocks of about ``block`` bytes.

    Raises:
        InputError: the file cannot be opened, or is of a kind that is never a JSON trace.
    """
    try:
        size = Path(source.path).stat().st_size
        with Path(source.path).open("rb") as file:
            counted = _Counted(file, source.label, size, notify)
            if source.member:
                # zipfile seeks, so it gets the file itself; progress is then per member
                with zipfile.ZipFile(file) as archive, archive.open(source.member) as inner:
                    size = archive.getinfo(source.member).file_size
                    member = _Counted(inner, source.label, size, notify)
                    yield JsonStream(_decompressed(member, source.label, block), source.label)
            else:
                yield JsonStream(_decompressed(counted, source.label, block), source.label)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        if not source.member:
            raise
        raise InputError(f"{source.label}: cannot be read from the archive: {error}") from None
    except OSError as error:
        raise InputError(f"{source.label}: {error.strerror or error}") from None


def content_key(source: Source) -> str:
    """SHA-256 of the source's bytes on disk (plus the member name), for the cache."""
    try:
        with Path(source.path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    except OSError as error:
        raise InputError(f"{source.label}: {error.strerror or error}") from None
    digest.update(source.member.encode())
    return digest.hexdigest()


_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip archive without a JSON trace inside"),
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "an Arrow file"),
    (b"SQLite format 3", "an SQLite database (Nsight Systems export?)"),
    (b"\x7fELF", "a program"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")


def _decompressed(raw: Reader, label: str, block: int) -> Iterator[bytes]:
    first = raw.read(READ_BYTES)
    if not first:
        raise InputError(f"{label}: the file is empty")
    if first[:2] == b"\x1f\x8b":
        blocks = _gzip_blocks(first, raw, block)
    elif first[:4] == b"\x28\xb5\x2f\xfd":
        blocks = _zstd_blocks(first, raw, block)
    elif first[:3] == b"BZh":
        blocks = _member_blocks(bz2.BZ2Decompressor(), first, raw, block)
    elif first[:6] == b"\xfd7zXZ\x00":
        blocks = _member_blocks(lzma.LZMADecompressor(), first, raw, block)
    else:
        blocks = _plain_blocks(first, raw, block)
    start = next(blocks, b"")
    _refuse_foreign(start, label)
    yield start
    yield from blocks


def _refuse_foreign(start: bytes, label: str) -> None:
    """Refuse what can be told from its first bytes; JSON of other kinds is told by its keys."""
    for magic, kind in _MAGIC:
        if start.startswith(magic):
            raise InputError(f"{label}: not JSON but {kind}")
    if _PICKLE.match(start):
        raise InputError(
            f"{label}: a Python pickle (memory snapshot?), not a trace; pickles are never loaded"
        )
    if start[257:262] == b"ustar":
        raise InputError(f"{label}: a tar archive", "unpack it and pass the directory")


def _plain_blocks(first: bytes, raw: Reader, block: int) -> Iterator[bytes]:
    yield first
    while data := raw.read(block):
        yield data


def _gzip_blocks(first: bytes, raw: Reader, block: int) -> Iterator[bytes]:
    """Inflate concatenated gzip members; bytes behind the last member are ignored, as gzip does."""
    data = first
    while True:
        inflater, corrupt = _gzip_inflater()
        while not inflater.eof:
            if not data:
                data = raw.read(READ_BYTES)
                if not data:
                    raise _DamagedError("the gzip file is cut off")
            try:
                out = inflater.decompress(data, min(block, _INFLATE_BYTES))
            except corrupt as error:
                raise _DamagedError(f"the gzip data is corrupt: {error}") from None
            data = inflater.unconsumed_tail
            if out:
                yield out
        data = inflater.unused_data.lstrip(b"\0") or raw.read(READ_BYTES)
        if not data.startswith(b"\x1f\x8b"):
            return


class _Inflater(Protocol):
    """What zlib's and isal's decompression objects have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unconsumed_tail(self) -> bytes: ...
    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _gzip_inflater() -> tuple[_Inflater, type[Exception]]:
    """An inflater and what it raises; isal's is 3x faster than zlib's where it is installed."""
    try:
        from isal import igzip_lib, isal_zlib
    except ImportError:
        return zlib.decompressobj(wbits=31), zlib.error
    return isal_zlib.decompressobj(wbits=31), cast("type[Exception]", igzip_lib.IsalError)


def _zstd_blocks(first: bytes, raw: Reader, block: int) -> Iterator[bytes]:
    import zstandard

    joined = cast("IO[bytes]", _Joined(first, raw))
    try:
        with zstandard.ZstdDecompressor().stream_reader(joined, read_across_frames=True) as reader:
            while data := reader.read(block):
                yield data
    except zstandard.ZstdError as error:
        raise _DamagedError(f"the zstd data is corrupt: {error}") from None


class _Joined:
    """Bytes already read, then the rest."""

    def __init__(self, head: bytes, rest: Reader) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int, /) -> bytes:
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
            return data
        return self._rest.read(size)


def _member_blocks(
    decompressor: bz2.BZ2Decompressor | lzma.LZMADecompressor, first: bytes, raw: Reader, block: int
) -> Iterator[bytes]:
    data = first
    while not decompressor.eof:
        if decompressor.needs_input and not data:
            data = raw.read(READ_BYTES)
            if not data:
                raise _DamagedError("the compressed file is cut off")
        out = decompressor.decompress(data, block)
        data = b""
        if out:
            yield out
