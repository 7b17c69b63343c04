"""Compares meshscope with other readers of the same trace, as ratios measured in one run.

    python benchmarks/run.py [--rounds 3] [--megabytes 200] [--source TRACE] [--hta-python PYTHON]
                             [--tracelens CHECKOUT [--tracelens-python PYTHON]] [--large]

Every figure is of a whole process from start to exit: user + system CPU time and peak resident
memory of the process and what it waited for (``os.wait4``). The contenders take turns within each
round, so that other load on the machine hits all of them alike; a ratio is the median of the
ratios within each round. Prints a Markdown table, and where it was measured.

This file imports only the standard library: a child's peak memory starts at its parent's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("polars", "numpy", "msgspec", "isal")

INGEST = "import sys; from collectors import open_job; open_job(sys.argv[1:])"
JSON_LOAD = "import gzip, json, sys; json.load(gzip.open(sys.argv[1]))"
INFLATE = """
import sys, {module} as gzip
buffer = bytearray(1 << 20)
with gzip.open(sys.argv[1]) as file:
    while file.readinto(buffer):
        pass
"""
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
"""
TRACELENS = """
import sys
sys.path.insert(0, sys.argv[2])
from TraceLens import TreePerfAnalyzer
analyzer = TreePerfAnalyzer.from_file(sys.argv[1])
analyzer.get_df_gpu_timeline()
analyzer.get_df_kernel_launchers()
"""


@dataclass(frozen=True)
class Run:
    """One process: CPU seconds (user + system) and peak resident megabytes (1e6 bytes)."""

    cpu_s: float
    peak_mb: float


@dataclass(frozen=True)
class Contender:
    """A program run on a trace. ``before`` prepares what the program finds."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None


def measure(contender: Contender) -> Run:
    """Run once to the end; a failing program ends the benchmark with what it said."""
    if contender.before is not None:
        contender.before()
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **contender.environment}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            contender.command, env=environment, stdout=subprocess.DEVNULL, stderr=errors,
            cwd=tempfile.gettempdir(),
        )  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            said = errors.read().decode(errors="replace")[-2000:]
            raise SystemExit(f"{contender.name} failed with {process.returncode}:\n{said}")
    scale = 1 if sys.platform == "darwin" else 1024
    return Run(used.ru_utime + used.ru_stime, used.ru_maxrss * scale / 1e6)


def contenders(trace: Path, scratch: Path, given: argparse.Namespace) -> list[Contender]:
    """Everything to run on one trace; ours first."""
    ours = {"PYTHONPATH": str(ROOT)}
    path = str(trace)
    analyze = [sys.executable, "-m", "analyzer", "analyze", path, "--quiet", "--no-config"]
    analyze += ["--json", str(scratch / "result.json")]
    cache = scratch / "cache"
    cached = {**ours, "MESHSCOPE_CACHE_DIR": str(cache)}

    def fill_cache() -> None:
        if not cache.exists():
            measure(Contender("fill the cache", analyze, cached))

    found = [
        Contender(FULL, [*analyze, "--no-cache"], ours),
        Contender(READ, [sys.executable, "-c", INGEST, path], ours),
        Contender("meshscope analyze, second run", analyze, cached, fill_cache),
        Contender("stdlib json.load", [sys.executable, "-c", JSON_LOAD, path]),
        Contender("inflate only, stdlib", [sys.executable, "-c", _inflate("gzip"), path]),
        Contender("inflate only, isal", [sys.executable, "-c", _inflate("isal.igzip"), path]),
    ]
    if given.hta_python:
        found.append(Contender("HTA, load + 3 breakdowns", [given.hta_python, "-c", HTA, path]))
    if given.tracelens:
        python = given.tracelens_python or given.hta_python or sys.executable
        command = [python, "-c", TRACELENS, path, given.tracelens]
        found.append(Contender("TraceLens, load + timeline + launchers", command))
    return found


def _inflate(module: str) -> str:
    return INFLATE.format(module=module)


FULL, READ = "meshscope analyze", "meshscope, ingest only"
COMPARED: Mapping[str, tuple[tuple[str, ...], str]] = {
    # contender: (whose CPU time its own is divided by, target of the first ratio)
    "HTA, load + 3 breakdowns": ((FULL, READ), ">= 6"),
    "TraceLens, load + timeline + launchers": ((FULL, READ), ">= 3.5"),
    "meshscope analyze, second run": ((FULL,), "<= 1/5"),
    FULL: ((READ,), "<= 2"),
    "stdlib json.load": ((FULL, READ), ""),
    "inflate only, stdlib": ((READ,), ""),
    "inflate only, isal": ((READ,), ""),
}


def table(title: str, runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """One trace's results as Markdown lines."""
    yield f"### {title}"
    yield ""
    yield "| process | CPU s | peak MB | ratio of CPU | target |"
    yield "|---|---:|---:|---:|---|"
    for name, mine in runs.items():
        cpu = statistics.median(run.cpu_s for run in mine)
        peak = statistics.median(run.peak_mb for run in mine)
        bases, target = COMPARED.get(name, ((), ""))
        ratio = ", ".join(
            f"{_ratio(mine, runs[base]):.2f} x {base.removeprefix('meshscope').strip(', ')}"
            for base in bases
        )
        yield f"| {name} | {cpu:.2f} | {peak:.0f} | {ratio} | {target} |"
    yield ""


def _ratio(mine: Sequence[Run], base: Sequence[Run]) -> float:
    """Median over the rounds of the ratio of CPU times within the round."""
    return statistics.median(a.cpu_s / b.cpu_s for a, b in zip(mine, base, strict=True))


def machine(given: argparse.Namespace) -> Iterator[str]:
    """Where and with what this was measured."""
    yield f"- {_cpu_model()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    yield f"- Python {platform.python_version()}, {_versions(sys.executable, PACKAGES)}"
    if given.hta_python:
        packages = ("HolisticTraceAnalysis", "pandas", "numpy")
        yield f"- HTA: {_versions(given.hta_python, packages)}"
    yield f"- medians of {given.rounds} interleaved rounds; CPU is user + system, whole process"


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown CPU"


def _versions(python: str, packages: Sequence[str]) -> str:
    code = "import sys; from importlib.metadata import version as v\n"
    code += "for name in sys.argv[1:]: print(name, v(name))"
    asked = subprocess.run([python, "-c", code, *packages], capture_output=True, text=True)
    return ", ".join(asked.stdout.splitlines())


def _generate(target: Path, megabytes: float, flavour: str, given: argparse.Namespace) -> str:
    """Make a trace in a process of its own; what it is like."""
    command = [sys.executable, str(Path(__file__).with_name("generate.py")), str(target)]
    command += ["--megabytes", str(megabytes), "--flavour", flavour]
    command += ["--source", str(given.source)] if given.source else []
    command += ["--steps", str(given.steps)] if given.steps else []
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    made = json.loads(said)
    size = (
        f"{made['json_bytes'] / 1e6:.0f} MB of JSON, {target.stat().st_size / 1e6:.1f} MB gzipped"
    )
    return f"{made['events']:,} events, {size}, repeated from {made['source']}"


def compare(flavour: str, scratch: Path, given: argparse.Namespace) -> Iterator[str]:
    """Generate one trace and run everybody on it."""
    trace = scratch / f"{flavour}.json.gz"
    made = _generate(trace, given.megabytes, flavour, given)
    own = scratch / flavour
    own.mkdir()
    everybody = contenders(trace, own, given)
    runs: dict[str, list[Run]] = {contender.name: [] for contender in everybody}
    for _ in range(given.rounds):
        for contender in everybody:
            runs[contender.name].append(measure(contender))
    yield from table(f"{flavour}: {made}", runs)


def large(scratch: Path, given: argparse.Namespace) -> Iterator[str]:
    """Peak memory and second run on a 1-GB trace; ours only."""
    trace = scratch / "large.json.gz"
    made = _generate(trace, 1000, "stacks", given)
    own = scratch / "large"
    own.mkdir()
    everybody = contenders(trace, own, argparse.Namespace(hta_python=None, tracelens=None))[:3]
    runs = {contender.name: [measure(contender)] for contender in everybody}
    yield from table(f"large: {made}; target of peak memory: <= 650 MB", runs)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=200, help="of JSON, before gzip")
    parser.add_argument("--flavour", action="append", choices=("stacks", "plain"))
    parser.add_argument("--source", type=Path, help="trace to repeat (see generate.py)")
    parser.add_argument("--steps", type=int, help="ProfilerSteps in it, else as in the source")
    parser.add_argument("--hta-python", help="interpreter that has HolisticTraceAnalysis")
    parser.add_argument("--tracelens", help="checkout of TraceLens")
    parser.add_argument("--tracelens-python", help="interpreter that has what TraceLens needs")
    parser.add_argument("--large", action="store_true", help="also a 1-GB trace, ours only")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="meshscope-bench-") as directory:
        scratch = Path(directory)
        for flavour in given.flavour or ("stacks", "plain"):
            print("\n".join(compare(flavour, scratch, given)), flush=True)
        if given.large:
            print("\n".join(large(scratch, given)), flush=True)
    print("\n".join(machine(given)))


if __name__ == "__main__":
    main()
