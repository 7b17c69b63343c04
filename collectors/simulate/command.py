"""The command ``meshscope simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from collectors.simulate.job import simulate, write
from collectors.simulate.spec import DEFECTS, STRATEGY_WORDS, Defect, SimSpec, parse_mesh

_STRATEGY_HELP = f"Words joined by _: {', '.join(STRATEGY_WORDS)} (fsdp_tp, hsdp_tp_sp, ...)."
_DEFECT_HELP = "Inject a defect; may be repeated. " + "; ".join(
    f"{name}: {what}" for name, what in DEFECTS.items()
)


def simulate_command(  # noqa: PLR0913 - one parameter an option
    mesh: Annotated[str, typer.Option(help="Axes and degrees, outermost first: dp_shard=4,tp=2.")],
    out: Annotated[
        Path, typer.Option(help="Directory to write rank<N>.json.gz and truth.json to.")
    ],
    strategy: Annotated[str, typer.Option(help=_STRATEGY_HELP)] = "fsdp_tp",
    steps: Annotated[int, typer.Option(help="Training steps.")] = 3,
    layers: Annotated[int, typer.Option(help="Transformer blocks.")] = 8,
    hidden: Annotated[int, typer.Option(help="Model width.")] = 4096,
    ffn: Annotated[int, typer.Option(help="MLP width; 0 for 8/3 of the model width.")] = 0,
    vocab: Annotated[int, typer.Option(help="Vocabulary.")] = 32_000,
    sequence: Annotated[int, typer.Option(help="Tokens a sequence.")] = 4096,
    batch: Annotated[int, typer.Option(help="Sequences a rank and step.")] = 1,
    defect: Annotated[list[str] | None, typer.Option(help=_DEFECT_HELP)] = None,
    jitter: Annotated[float, typer.Option(help="Relative noise on every duration.")] = 0.02,
    clock_skew_us: Annotated[float, typer.Option(help="Largest clock error of a rank.")] = 0.0,
    clock_drift_ppm: Annotated[float, typer.Option(help="Largest clock drift of a rank.")] = 0.0,
    ranks_per_node: Annotated[int, typer.Option(help="Ranks that share a node's links.")] = 8,
    grad_norm: Annotated[bool, typer.Option(help="Clip gradients by their global norm.")] = True,
    flows: Annotated[bool, typer.Option(help="Write ac2g flow events.")] = False,
    sync_events: Annotated[bool, typer.Option(help="Write cuda_sync events.")] = False,
    compress: Annotated[bool, typer.Option(help="Write .json.gz rather than .json.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of noise and clock errors.")] = 0,
) -> None:
    """Simulate training steps on a device mesh and write one Kineto trace per rank.

    The traces look like those of PyTorch's profiler on GPUs, but nothing in them was measured.
    ``truth.json`` beside them says where the time went.
    """
    options: dict[str, Any] = {
        "steps": steps, "layers": layers, "hidden": hidden, "ffn": ffn, "vocab": vocab,
        "sequence": sequence, "batch": batch, "jitter": jitter, "grad_norm": grad_norm,
        "ranks_per_node": ranks_per_node, "flows": flows, "sync_events": sync_events, "seed": seed,
    }  # fmt: skip
    spec = SimSpec(
        mesh=parse_mesh(mesh),
        strategy=strategy,
        defects=tuple(Defect.parse(text) for text in defect or ()),
        clock_skew_ns=round(1000 * clock_skew_us),
        clock_drift_ppm=clock_drift_ppm,
        **options,
    )
    job = simulate(spec)
    paths = write(job, out, compress=compress)
    share = job.truth["mean"]["exposed_comm_pct"]
    typer.echo(f"{len(paths) - 1} simulated ranks in {out}, exposed communication {share:.2f} %")
