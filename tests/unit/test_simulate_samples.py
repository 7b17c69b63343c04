"""Every sample trace is what its command in the README makes, and the README's figures are true."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from collectors.simulate.command import simulate_command

SAMPLES = Path(__file__).parents[2] / "sample_traces"
README = (SAMPLES / "README.md").read_text()
COMMANDS = {
    Path(words[-1]).name: words[2:-2]
    for line in README.splitlines()
    if line.startswith("meshscope simulate ")
    for words in [shlex.split(line)]
}
FIGURES = {
    cells[0]: cells[1:]
    for line in README.split("## Known truth")[1].splitlines()
    if line.startswith("| ") and not line.startswith("| sample")
    for cells in [[cell.strip() for cell in line.strip("| ").split("|")]]
}


def invoke(*arguments: str):
    app = typer.Typer()
    app.command()(simulate_command)
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def files(directory: Path) -> dict[str, bytes]:
    return {
        path.name: gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for path in sorted(directory.iterdir())
    }


def test_readme_names_every_sample():
    folders = {path.name for path in SAMPLES.iterdir() if path.is_dir()}
    assert folders == set(COMMANDS) == set(FIGURES)
    assert "simulated" in README


@pytest.mark.parametrize("sample", COMMANDS)
def test_sample_is_made_by_its_command(sample, tmp_path):
    result = invoke(*COMMANDS[sample], "--out", str(tmp_path / sample))
    assert result.exit_code == 0, result.output
    assert files(tmp_path / sample) == files(SAMPLES / sample)


@pytest.mark.parametrize("sample", FIGURES)
def test_readme_figures_are_the_truth(sample):
    mean = json.loads((SAMPLES / sample / "truth.json").read_text())["mean"]

    def pct(ns: float) -> str:
        return f"{100 * ns / mean['time_ns']:.2f}"

    def listed(parts: dict[str, float]) -> str:
        return ", ".join(f"{name} {pct(ns)}" for name, ns in parts.items())

    assert FIGURES[sample] == [
        f"{mean['time_ns'] / 1e6:.3f}",
        pct(mean["compute_ns"]),
        f"{mean['exposed_comm_pct']:.2f}",
        listed(mean["exposed_comm_ns"]),
        listed(mean["idle_ns"]),
    ]


def test_samples_stay_small():
    sizes = {path: path.stat().st_size for path in SAMPLES.rglob("*.json*")}
    assert max(size for path, size in sizes.items() if path.suffix == ".gz") <= 60_000
    assert sum(sizes.values()) <= 1_500_000


def truth_share(sample: str, *path: str) -> float:
    mean = json.loads((SAMPLES / sample / "truth.json").read_text())["mean"]
    value = mean
    for key in path:
        value = value[key]
    return 100 * value / mean["time_ns"]


def test_sick_samples_are_sick_where_their_name_says():
    shard = ("exposed_comm_ns", "dp_shard")
    no_prefetch, healthy = (truth_share(f"fsdp_tp_{s}", *shard) for s in ("no_prefetch", "healthy"))
    assert no_prefetch > 2 * healthy
    small, bucketed = (
        truth_share(f"ddp_{s}", "exposed_comm_ns", "dp_replicate")
        for s in ("small_buckets", "healthy")
    )
    assert small > 3 * bucketed
    assert truth_share("fsdp_host_bound", "idle_ns", "host_bound") > 30
    assert truth_share("fsdp_tp_sync", "idle_ns", "sync") > 0.3
    for sample in ("fsdp_tp_healthy", "ddp_healthy"):
        assert truth_share(sample, "idle_ns", "host_bound") < 0.1
        assert truth_share(sample, "idle_ns", "sync") == 0


def test_bad_options_are_usage_errors(tmp_path):
    from analyzer.errors import UsageError

    with pytest.raises(UsageError):
        invoke("--mesh", "dp_shard=2", "--strategy", "ddp", "--out", str(tmp_path))
