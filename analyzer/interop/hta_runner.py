"""Runs HolisticTraceAnalysis on one trace and writes what it says as JSON.

Executed by an interpreter that has HTA, which need not be ours, as ``python - TRACE OUT`` with this
file on standard input: so only the standard library, HTA and what HTA brings may be imported. A
process of its own also keeps HTA's global state, its log and its environment variable out of ours.

HTA is asked three times: ``default`` is what its users get, ``exact`` has its rounding of
timestamps to whole microseconds switched off, ``exact_all_steps`` also keeps the last ProfilerStep.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROUNDING_OFF = "HTA_DISABLE_NS_ROUNDING"
GIVES_UP = (
    ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, OSError,
)  # fmt: skip
"""What HTA is known to raise on traces it cannot handle; reported as its answer."""


NO_HTA = 4
"""Exit code: this interpreter has no HTA."""


def main(trace_file: str, out_file: str) -> None:
    """Write HTA's answers about ``trace_file`` to ``out_file``."""
    if find_spec("hta") is None:
        sys.exit(NO_HTA)
    answers: dict[str, Any] = {"version": _version(), "pandas": metadata.version("pandas")}
    for rounding, variants in (("1", ("exact", "exact_all_steps")), ("0", ("default",))):
        os.environ[ROUNDING_OFF] = rounding
        try:
            answers |= _load_and_analyse(trace_file, variants)
        except GIVES_UP as error:
            answers |= {variant: {"failed": _says(error)} for variant in variants}
    Path(out_file).write_text(json.dumps(answers))


def _load_and_analyse(trace_file: str, variants: tuple[str, ...]) -> dict[str, Any]:
    from hta.common.trace import Trace

    trace = Trace(trace_files={0: trace_file})
    trace.parse_traces(use_multiprocessing=False)
    raw = trace.traces[0]
    answers: dict[str, Any] = {}
    if "exact" in variants:
        answers["classes"] = _classes(trace)
        answers["host_rows"] = _host_rows(trace)
    for variant in variants:
        trace.traces = {0: raw.copy()}
        trace.align_and_filter_trace(include_last_profiler_step=variant == "exact_all_steps")
        trace.traces[0] = trace.traces[0].set_index("index", drop=False)
        trace.traces[0].index.names = [None]
        answers[variant] = _analyse(trace)
    return answers


def _analyse(trace: Any) -> dict[str, Any]:
    """Figures of one loaded trace; an analysis that raises is listed under ``failed``."""
    figures: dict[str, Any] = {"failed": {}}
    for analysis in (_counts, _temporal, _overlap, _communication, _idle_causes):
        try:
            figures |= analysis(trace)
        except GIVES_UP as error:
            figures["failed"][analysis.__name__.strip("_")] = _says(error)
    return figures


def _counts(trace: Any) -> dict[str, Any]:
    from hta.utils.utils import get_kernel_type

    frame = trace.traces[0]
    names = trace.symbol_table.get_sym_table()
    kinds = [get_kernel_type(names[i]) for i in frame.loc[frame["stream"].ne(-1), "name"]]
    return {
        "steps": len(trace.get_iterations(0)),
        "compute_events": kinds.count("COMPUTATION"),
        "comm_events": kinds.count("COMMUNICATION"),
        "memory_events": kinds.count("MEMORY"),
    }


def _temporal(trace: Any) -> dict[str, Any]:
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    row = BreakdownAnalysis.get_temporal_breakdown(trace, visualize=False).iloc[0]
    return {
        "window_us": float(row["kernel_time(us)"]),
        "compute_us": float(row["compute_time(us)"]),
        "non_compute_us": float(row["non_compute_time(us)"]),
        "idle_us": float(row["idle_time(us)"]),
        "compute_pct": float(row["compute_time_pctg"]),
        "idle_pct": float(row["idle_time_pctg"]),
    }


def _overlap(trace: Any) -> dict[str, Any]:
    from hta.analyzers.communication_analysis import CommunicationAnalysis

    table = CommunicationAnalysis.get_comm_comp_overlap(trace, visualize=False)
    overlap = float(table["comp_comm_overlap_pctg"].iloc[0])
    return {"overlap_pct": overlap if overlap == overlap else None}  # NaN: no communication


def _communication(trace: Any) -> dict[str, Any]:
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    table, _ = BreakdownAnalysis.get_gpu_kernel_breakdown(
        trace, visualize=False, include_memory_kernels=True
    )
    rows = table[table["kernel_type"].str.contains("COMMUNICATION")]
    return {"comm_us": float(rows["sum"].sum())}


def _idle_causes(trace: Any) -> dict[str, Any]:
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    # 30 is the default of TraceAnalysis.get_idle_time_breakdown.
    table, _ = BreakdownAnalysis.get_idle_time_breakdown(
        trace, consecutive_kernel_delay=30, rank=0, visualize=False
    )
    sums = table.groupby("idle_category")["idle_time"].sum().to_dict()
    causes = ("host_wait", "kernel_wait", "other")
    return {f"{cause}_us": float(sums.get(cause, 0.0)) for cause in causes}


def _classes(trace: Any) -> dict[str, str]:
    """HTA's class of every name on a device stream."""
    from hta.utils.utils import get_kernel_type

    frame = trace.traces[0]
    names = trace.symbol_table.get_sym_table()
    used = frame.loc[frame["stream"].ne(-1), "name"].unique()
    return {names[i]: get_kernel_type(names[i]) for i in used}


def _host_rows(trace: Any) -> list[list[Any]]:
    """Host operators that HTA takes for device work: start and duration in us, name."""
    frame = trace.traces[0]
    names = trace.symbol_table.get_sym_table()
    operators = [i for i, name in enumerate(names) if name in ("cpu_op", "Operator")]
    rows = frame[frame["stream"].ne(-1) & frame["cat"].isin(operators)]
    return [
        [float(ts), float(dur), names[name]]
        for ts, dur, name in zip(rows["ts"], rows["dur"], rows["name"], strict=True)
    ]


def _version() -> str:
    for distribution in ("HolisticTraceAnalysis", "traceinsight"):
        try:
            return f"{distribution} {metadata.version(distribution)}"
        except metadata.PackageNotFoundError:
            continue
    return "HTA of unknown version"


def _says(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}"[:200] if text else type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
