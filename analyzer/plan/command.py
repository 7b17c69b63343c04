"""The command ``meshscope plan``. Imports the planner only when run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analyzer.console import stdout, write
from analyzer.errors import UsageError

if TYPE_CHECKING:
    from analyzer.plan.machine import Stated

Rate = Annotated[float | None, typer.Option(min=1e-3, help="GB/s, one direction: overrides.")]


def plan_command(  # noqa: PLR0913 - one parameter an option
    model: Annotated[
        str, typer.Option(help="llama3-70b, a config.json, or layers=..,hidden=..,ffn=..,...")
    ],
    hardware: Annotated[str, typer.Option(help="Device of the catalogue: h100-sxm, tpu-v5p, ...")],
    devices: Annotated[str, typer.Option(help="All devices: 512; a torus slice: 16x16x16.")],
    batch_tokens: Annotated[str, typer.Option(help="Tokens of an optimizer step: 4M is 4e6.")],
    sequence: Annotated[int, typer.Option(min=1, max=2**24, help="Tokens of a sequence.")] = 8192,
    strategy: Annotated[
        str | None, typer.Option(help="Consider only these words: fsdp+tp8, zero1+pp, ...")
    ] = None,
    from_path: Annotated[
        Path | None, typer.Option("--from", help="Result whose measured efficiencies to use.")
    ] = None,
    json_path: Annotated[str | None, typer.Option("--json", help="Write it; - is stdout.")] = None,
    html_path: Annotated[Path | None, typer.Option("--html", help="Write a page.")] = None,
    efficiency: Annotated[
        str | None, typer.Option(help="Share of the peak compute reaches: 40%.")
    ] = None,
    accounting: Annotated[
        str, typer.Option(help="Bytes a parameter: fsdp, zero, megatron, scaling-book, ...")
    ] = "fsdp",
    grad_bytes: Annotated[float, typer.Option(min=1, max=8, help="Gradient on the wire.")] = 4,
    reserve: Annotated[str, typer.Option(help="Memory kept free for the runtime.")] = "10%",
    dtype: Annotated[str, typer.Option(help="Of the matmuls: bf16, fp8.")] = "bf16",
    pods: Annotated[int, typer.Option(min=1, max=4096, help="Slices of a torus.")] = 1,
    node_size: Annotated[
        int | None, typer.Option(min=1, max=2**16, help="Devices of a node or NVLink domain.")
    ] = None,
    tp_across_nodes: Annotated[
        bool, typer.Option("--tp-across-nodes", help="Let tensor parallelism leave the node.")
    ] = False,
    peak_tflops: Annotated[float | None, typer.Option(min=1e-3, help="Dense peak.")] = None,
    memory_gb: Annotated[float | None, typer.Option(min=1e-3, help="Device memory.")] = None,
    memory_gbps: Rate = None,
    link_gbps: Rate = None,
    network_gbps: Rate = None,
    checkpoint_s: Annotated[float, typer.Option(min=1e-3, help="A checkpoint's pause.")] = 60,
    restart_s: Annotated[float, typer.Option(min=0, help="From a failure to training.")] = 600,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on the terminal.")] = False,
) -> None:
    """Plan a training job: conditions, memory, predicted step, ranked meshes, and why they lose."""
    from analyzer.plan import document as made
    from analyzer.plan import request as read
    from analyzer.plan.machine import Stated, build_machine

    _check_outputs(
        [model, str(from_path or "")], [json_path, str(html_path) if html_path else None]
    )
    measured = read.read_result(from_path) if from_path else None
    stated = Stated(
        peak_tflops, memory_gb, memory_gbps, link_gbps, network_gbps, node_size,
        read.read_share(efficiency, "--efficiency"),
    )  # fmt: skip
    stated = _with_measured(stated, measured, from_path)
    total, shape = read.read_devices(devices, pods)
    machine = build_machine(hardware, total, shape, pods, stated, dtype)
    request = read.Request(
        read.read_model(model), read.read_tokens(batch_tokens), sequence,
        read.read_strategy(strategy), read.read_accounting(accounting), grad_bytes,
        read.read_share(reserve, "--reserve") or 0.0, tp_across_nodes,
    )  # fmt: skip
    plan = made.build_plan(
        request, machine, made.Stakes(hardware, strategy, str(from_path) if from_path else None),
        measured, made.Upkeep(checkpoint_s, restart_s),
    )  # fmt: skip
    _write(plan, json_path, html_path, quiet=quiet)


def _with_measured(stated: Stated, measured: Any, path: Path | None) -> Stated:
    """Measured efficiencies; what the user states stays."""
    if measured is None:
        return stated
    from dataclasses import replace

    stated = replace(stated, link_efficiency=measured.link_efficiency)
    if stated.efficiency is None and measured.compute_efficiency is not None:
        return replace(
            stated,
            efficiency=measured.compute_efficiency,
            efficiency_source=f"measured in {path}",
        )
    return stated


def _check_outputs(inputs: list[str], outputs: list[str | None]) -> None:
    """No output may overwrite an input or another output."""
    used = {str(Path(path).resolve()) for path in inputs if path and Path(path).is_file()}
    for output in outputs:
        if output is None or output == "-":
            continue
        target = str(Path(output).resolve())
        if target in used:
            raise UsageError(f"{output}: would overwrite an input or another output")
        used.add(target)


def _write(
    plan: dict[str, Any], json_path: str | None, html_path: Path | None, *, quiet: bool
) -> None:
    if json_path:
        from reports.json_ import render_json

        write(json_path, render_json(plan))
    if html_path:
        from reports.plan_html import render_plan_html

        write(str(html_path), render_plan_html(plan))
    if quiet or json_path == "-":
        return
    from rich.console import Console

    from reports.plan_terminal import render_plan

    with stdout():
        render_plan(plan, Console(highlight=False))
