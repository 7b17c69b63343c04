"""What the command line prints: stdout that may close, files, a progress bar."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors import Progress

PROGRESS_FROM_BYTES = 8 << 20


def printable(line: str) -> str:
    """One line without control characters: names in traces and paths are not trusted."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


@contextmanager
def stdout() -> Iterator[None]:
    """Write to stdout. A reader that went away (head, less) changes nothing about the verdict."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise UsageError(f"stdout: cannot be written: {error.strerror}") from None


def write(path: str, text: str) -> None:
    """Write ``text`` to a file, or to stdout for ``-``; ``UsageError`` when that fails."""
    if path == "-":
        with stdout():
            sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


@contextmanager
def progress(*, enabled: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A progress bar on stderr for long inputs, nothing where nobody watches."""
    if not enabled or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class Name(TextColumn):
        def render(self, task: Any) -> Text:
            return Text(Path(str(task.fields["path"])).name)  # never parsed as markup

    bar = Bar(Name(""), BarColumn(), DownloadColumn(), console=Console(stderr=True), transient=True)
    tasks: dict[str, Any] = {}

    def update(event: Progress) -> None:
        if event.bytes_total < PROGRESS_FROM_BYTES:
            return
        if event.path not in tasks:
            tasks[event.path] = bar.add_task("", total=event.bytes_total, path=event.path)
        bar.update(tasks[event.path], completed=event.bytes_done)

    with bar:
        yield update
