"""The command ``meshscope crosscheck``. Imports polars and HTA only when run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from analyzer.errors import ExitCode


def crosscheck_command(
    paths: Annotated[list[Path], typer.Argument(help="Traces: files or directories.")],
    json: Annotated[
        Path | None, typer.Option(help="Write the rows as JSON to this file (- for stdout).")
    ] = None,
    hta_python: Annotated[
        Path | None, typer.Option(help="Interpreter that has HolisticTraceAnalysis.")
    ] = None,
) -> None:
    """Run HolisticTraceAnalysis on the same traces and explain every difference.

    Exit code 1 when our computation by HTA's own conventions gives another figure than HTA, 3 when
    HTA gave none to compare.
    """
    from analyzer.interop.crosscheck import crosscheck, render

    check = crosscheck(paths, hta_python=hta_python)
    if json is None:
        typer.echo(render(check))
    elif str(json) == "-":
        typer.echo(check.to_json())
    else:
        json.write_text(check.to_json() + "\n", encoding="utf-8")
        typer.echo(render(check))
    if check.disagreements:
        raise typer.Exit(ExitCode.GATE_FAILED)
    if not check.compared:
        raise typer.Exit(ExitCode.NO_VERDICT)
