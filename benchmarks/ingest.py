"""How fast and how small reading a trace is, as ratios in one run.

    python benchmarks/ingest.py                      # makes a 200-MB trace in a temporary directory
    python benchmarks/ingest.py --mb 1000 --rounds 1
    python benchmarks/ingest.py --trace my.json.gz --hta-python ~/hta/bin/python

Every subject runs in a process of its own (user + system CPU and peak RSS from ``wait4``),
interleaved over the rounds; medians are printed. ``floor`` only inflates, ``json`` is
``json.load`` of the same file, ``hta`` loads it and computes three breakdowns.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRACES = Path(os.environ.get("MESHSCOPE_TRACES", ROOT.parent / "shared" / "traces"))
TEMPLATES = (
    TRACES / "kineto/tracelens/tests/traces/mi300/resnet_act_checkpoint.json.gz",  # stacks, shapes
    TRACES / "kineto/hta/tests/data/nccl_parser_config/nccl_data.json.gz",
)
SHIFTED = re.compile(
    r'"(ts|correlation|External id|Ev Idx|Python id|Python parent id)": (\d+)(\.\d+)?'
)

SUBJECTS = {
    "floor": """
import sys
from collectors.sources import Source, open_source
with open_source(Source(sys.argv[1]), 1 << 20) as stream:
    while stream.read(): pass
""",
    "json": """
import gzip, json, sys
opened = gzip.open if open(sys.argv[1], "rb").read(2) == b"\\x1f\\x8b" else open
json.load(opened(sys.argv[1], "rt"))
""",
    "meshscope": """
import sys
from collectors.kineto import read_trace
print(read_trace(sys.argv[1]).report.events)
""",
    "cached": """
import sys, pathlib
from collectors import open_job
from collectors.cache import Cache
open_job([sys.argv[1]], cache=Cache(pathlib.Path(sys.argv[1]).parent / "cache"))
""",
    "import": "import collectors.kineto.reader",
}
HTA = """
import shutil, sys, tempfile, pathlib, contextlib, io
from hta.trace_analysis import TraceAnalysis
with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
    shutil.copy(sys.argv[1], folder)
    analysis = TraceAnalysis(trace_dir=folder)
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)
    analysis.get_idle_time_breakdown(visualize=False)
"""


def replicate(template: Path, target: Path, megabytes: float) -> None:
    """Write ``template``'s events over and over, times and ids moved on by text, gzipped."""
    with gzip.open(template, "rt") as file:
        text = file.read()
    start = text.index("[", text.index('"traceEvents"')) + 1
    decoder = json.JSONDecoder()
    _, end = decoder.raw_decode(text, start - 1)
    events = text[start : end - 1]
    stamps = [float(m) for m in re.findall(r'"ph": "X".*?"ts": ([\d.]+)', events, re.DOTALL)]
    period = int(max(stamps) - min(stamps)) + 1000
    step = {"ts": period}
    pieces, at = [], 0
    for match in SHIFTED.finditer(events):
        pieces.append(
            (events[at : match.start(2)], int(match.group(2)), step.get(match.group(1), 10**7))
        )
        at = match.end(2)
    rest = events[at:]
    copies = max(1, round(megabytes * 1e6 / len(text)))
    with gzip.open(target, "wt", compresslevel=6) as out:
        out.write(text[:start])
        for copy in range(copies):
            out.write("," if copy else "")
            out.write(
                "".join(f"{before}{number + copy * shift}" for before, number, shift in pieces)
            )
            out.write(rest)
        out.write(text[end - 1 :])


EVENT = """
  {{
    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{
      {args}
    }}
  }}"""


def synthetic(target: Path, megabytes: float) -> None:
    """Without the public traces: a plain trace of operators, launches and kernels."""
    head = '{"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1},\n"traceEvents": ['
    with gzip.open(target, "wt", compresslevel=6) as out:
        out.write(head)
        step = written = 0
        while written < megabytes * 1e6:
            block = ",".join(one_step(step))
            out.write(("," if step else "") + block)
            written += len(block)
            step += 1
        out.write("\n]}\n")


def one_step(step: int) -> list[str]:
    """An operator, its launch and its kernel."""
    ts = 5_000_000_000.123 + step * 40
    link = f'"External id": {step}'
    dims = f'{link}, "Input Dims": [[{step % 31}, 512], []], "Input type": ["float", ""]'
    call = f'{link}, "cbid": 211, "correlation": {step}'
    launched = f'{link}, "queued": 0, "device": 0, "context": 1, "stream": 7'
    kernel = f'{launched}, "correlation": {step}, "grid": [64, 1, 1]'
    host = {"pid": 9, "tid": 9}
    op, gemm = f"aten::op{step % 97}", f"void gemm_kernel<{step % 53}>(float*)"
    return [
        EVENT.format(cat="cpu_op", name=op, **host, ts=ts, dur=17.25, args=dims),
        EVENT.format(
            cat="cuda_runtime", name="cudaLaunchKernel", **host, ts=ts + 1, dur=5.5, args=call
        ),
        EVENT.format(cat="kernel", name=gemm, pid=0, tid=7, ts=ts + 2, dur=30.125, args=kernel),
    ]


def measure(code: str, trace: Path, python: str = sys.executable) -> tuple[float, float]:
    """CPU seconds and peak RSS in MB of one subject."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [python, "-c", code, str(trace)],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"a subject failed with exit code {process.returncode}:\n{code}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mb", type=float, default=200, help="uncompressed size of the generated trace"
    )
    parser.add_argument("--trace", type=Path, help="measure this file instead")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip", default="", help="subjects to leave out, separated by commas")
    parser.add_argument(
        "--hta-python", help="an interpreter with HolisticTraceAnalysis and pandas<3"
    )
    parser.add_argument(
        "--also", action="append", default=[], help="another script to time: NAME=FILE"
    )
    parser.add_argument("--template", type=int, default=0, help="0: stacks and shapes, 1: plain")
    parser.add_argument("--write", type=Path, help="only generate the trace")
    options = parser.parse_args()
    if options.write:
        write(options.write, options.mb, options.template)
        return
    with tempfile.TemporaryDirectory() as folder:
        trace = options.trace or generate(Path(folder), options.mb, options.template)
        subjects = {
            n: (c, sys.executable) for n, c in SUBJECTS.items() if n not in options.skip.split(",")
        }
        for extra in options.also:
            name, _, file = extra.partition("=")
            subjects[name] = (Path(file).read_text(), sys.executable)
        if options.hta_python:
            subjects["hta"] = (HTA, options.hta_python)
        if "cached" in subjects:
            measure(SUBJECTS["cached"], trace)  # fills the cache
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in subjects}
        for _ in range(options.rounds):
            for name, (code, python) in subjects.items():
                results[name].append(measure(code, trace, python))
        report(trace, results)


def generate(folder: Path, megabytes: float, template: int) -> Path:
    """Make the trace in a process of its own: a child inherits the peak RSS of its parent."""
    target = folder / "bench.json.gz"
    began = time.perf_counter()
    command = [sys.executable, __file__, "--mb", str(megabytes), "--write", str(target)]
    subprocess.run([*command, "--template", str(template)], check=True)
    print(f"generated in {time.perf_counter() - began:.1f} s")
    return target


def write(target: Path, megabytes: float, template: int) -> None:
    if TEMPLATES[template].exists():
        replicate(TEMPLATES[template], target, megabytes)
    else:
        synthetic(target, megabytes)


def report(trace: Path, results: dict[str, list[tuple[float, float]]]) -> None:
    size = trace.stat().st_size
    print(
        f"{trace.name}: {size / 1e6:.1f} MB on disk, median of {len(next(iter(results.values())))}"
    )
    print(f"{'subject':<12}{'CPU s':>8}{'/ floor':>9}{'/ ours':>9}{'RSS MB':>9}")
    medians = {n: statistics.median(cpu for cpu, _ in r) for n, r in results.items()}
    floor, ours = medians.get("floor"), medians.get("meshscope")
    for name, runs in results.items():
        cpu, rss = medians[name], max(peak for _, peak in runs)
        against_floor = f"{cpu / floor:9.1f}" if floor else f"{'':>9}"
        against_ours = f"{cpu / ours:9.2f}" if ours else f"{'':>9}"
        print(f"{name:<12}{cpu:8.2f}{against_floor}{against_ours}{rss:9.0f}")


if __name__ == "__main__":
    main()
