"""What the matmuls achieved against the device's roofline, and MFU and HFU of the step.

All sums are means over kept windows (rank, device, step), as the budget's are: model FLOPs are
those of one device in one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from analyzer.catalog import Device, find_device
from analyzer.errors import UsageError
from analyzer.measure.compute import GRADIENT, OPTIMIZER, RERUN, matmuls
from analyzer.measure.model_run import ModelRun
from analyzer.measure.results import Budget, ComputeFamily, ComputeSummary
from analyzer.measure.shapes import ATTENTION
from analyzer.model import LabeledRank
from analyzer.roofline.flops import ImplausibleFigureError, utilization
from analyzer.roofline.hardware import peak_flops_per_s

MIN_KNOWN_PCT = 95.0
"""Below this share of matmul time with known FLOPs no total is given: it would be too small."""

FROM_SHAPES = "operator shapes, forward and backward without reruns"
DEFAULT_DTYPE = "bf16"
"""Peak that utilisation is commonly quoted against, where no shape tells the dtype."""

NO_MATMUL = "no matrix multiply, attention or convolution was found"
NO_STEP = "needs a mean step that takes time"


@dataclass(frozen=True, slots=True)
class Scope:
    """What the sums are divided by and held against."""

    mean: Budget
    windows: int  # kept (rank, lane, step) windows
    device: str  # name as written, empty where unknown
    host_side: bool
    world_size: int | None


def measure_compute(
    ranks: Sequence[LabeledRank],
    mean: Budget | None,
    world_size: int | None,
    run: ModelRun | None = None,
) -> ComputeSummary | None:
    """Compute figures of a job; None without a mean step, or without matmuls and model.

    Args:
        ranks: all ranks read.
        mean: the mean step.
        world_size: devices that share a step's tokens.
        run: what is known of the model.
    """
    kept = [
        rank.steps.filter("kept").select(
            pl.lit(rank.trace.rank, dtype=pl.Int32).alias("rank"),
            "lane",
            pl.col("index").alias("step"),
        )
        for rank in ranks
    ]
    windows = sum(steps.height for steps in kept)
    if mean is None or not _usable(mean) or not windows:
        return None
    calls = matmuls(ranks).join(pl.concat(kept), on=["rank", "lane", "step"], how="semi")
    if calls.is_empty() and run is None:
        return None
    host_side = any(rank.host_side for rank in ranks)
    device = next((n for rank in ranks for n in rank.trace.meta.device_names), "")
    scope = Scope(mean, windows, device, host_side, world_size)
    return summarize_compute(calls, scope, run)


def compute_reasons(compute: ComputeSummary | None, mean: Budget | None) -> dict[str, str]:
    """Why compute figures of the document are null, by their key."""
    if compute is None:
        why = NO_MATMUL if _usable(mean) else NO_STEP
        return {"compute": why, "mfu_pct": why}
    return {
        key if key == "mfu_pct" else f"compute.{key}": why for key, why in compute.reasons.items()
    }


def _usable(mean: Budget | None) -> bool:
    return mean is not None and mean.time_ns > 0


def summarize_compute(
    calls: pl.DataFrame, scope: Scope, run: ModelRun | None = None
) -> ComputeSummary:
    """Achieved FLOP/s, roofline and utilisation of the mean step.

    Args:
        calls: :data:`analyzer.measure.compute.MATMULS` rows of kept steps.
        scope: means and device of the job.
        run: the model, where it is known. Without it model FLOPs come from the shapes.

    Returns:
        Figures whose ``reasons`` say why those that are None are.
    """
    device = None if scope.host_side else find_device(scope.device)
    reasons: dict[str, str] = {}
    dtype = _peak_dtype(calls) or (DEFAULT_DTYPE if run else None)
    peak = _peak(device, dtype, scope, reasons)
    known = _known_pct(calls)
    executed = _executed(calls, scope, known, reasons)
    model, convention = _model_flops(calls, scope, run, reasons)
    families, warnings = _families(calls, scope, device)
    step_s = scope.mean.time_ns / 1e9
    mfu = _utilisation("mfu_pct", model, step_s, peak, reasons)
    hfu = _utilisation("hfu_pct", executed, step_s, peak, reasons)
    impossible = [
        f"{name.removesuffix('_pct').upper()} is not given: {reasons[name]}"
        for name, value, flops in (("mfu_pct", mfu, model), ("hfu_pct", hfu, executed))
        if value is None and flops is not None and peak is not None
    ]
    rerun = None if executed is None else _total(calls.filter(pl.col("role") == RERUN), "flops")
    return ComputeSummary(
        convention=convention,
        peak_flops_per_s=peak,
        peak_dtype=dtype if peak is not None else None,
        memory_bytes_per_s=_memory(device),
        model_flops_per_step=model,
        executed_flops_per_step=executed,
        rerun_flops_per_step=None if rerun is None else rerun / scope.windows,
        known_pct=known,
        mfu_pct=mfu,
        hfu_pct=hfu,
        families=families,
        reasons=reasons,
        warnings=(*warnings, *impossible),
    )


def _total(calls: pl.DataFrame, column: str) -> float:
    return float(calls.select((pl.col(column) * pl.col("calls")).sum()).item() or 0.0)


def _known_pct(calls: pl.DataFrame) -> float | None:
    """Share of matmul time whose FLOPs are known, in percent; None without any."""
    whole = int(calls["time_ns"].sum())
    known = int(calls.filter(pl.col("flops").is_not_null())["time_ns"].sum())
    return 100 * known / whole if whole else None


def _peak_dtype(calls: pl.DataFrame) -> str | None:
    """The dtype most FLOPs are executed in."""
    work = (
        calls.filter(pl.col("flops").is_not_null() & pl.col("dtype").is_not_null())
        .group_by("dtype")
        .agg((pl.col("flops") * pl.col("calls")).sum())
        .sort("flops", "dtype", descending=[True, False])
    )
    return None if work.is_empty() else str(work["dtype"][0])


def _peak(
    device: Device | None, dtype: str | None, scope: Scope, reasons: dict[str, str]
) -> float | None:
    if scope.host_side:
        reasons["peak_flops_per_s"] = "a CPU trace does not say what its device can do"
    elif device is None:
        named = f"device {scope.device!r}" if scope.device else "a device that is not named"
        reasons["peak_flops_per_s"] = f"no peak is known of {named}"
    elif dtype is None:
        reasons["peak_flops_per_s"] = "no shape tells the dtype of the matmuls"
    else:
        try:
            return peak_flops_per_s(device, dtype)
        except UsageError as error:
            reasons["peak_flops_per_s"] = str(error)
    return None


def _memory(device: Device | None) -> float | None:
    return device.memory_gbps.value * 1e9 if device and device.memory_gbps else None


def _executed(
    calls: pl.DataFrame, scope: Scope, known: float | None, reasons: dict[str, str]
) -> float | None:
    if known is not None and known >= MIN_KNOWN_PCT:
        return _total(calls, "flops") / scope.windows
    if known is None:
        why = "no matmul was found"
    elif known == 0:
        why = "operator shapes were not recorded (record_shapes=True) or not linked to kernels"
    else:
        why = f"FLOPs are known of only {known:.0f} % of matmul time: the total would be too small"
    reasons["executed_flops_per_step"] = why
    return None


def _model_flops(
    calls: pl.DataFrame,
    scope: Scope,
    run: ModelRun | None,
    reasons: dict[str, str],
) -> tuple[float | None, str]:
    """Model FLOPs of one device and step, and how they are counted."""
    if run is not None:
        name = f"{run.convention.value}: {run.dims.name}, {run.sequence} tokens a sequence"
        if scope.world_size is None:
            reasons["model_flops_per_step"] = "the trace does not say how many devices share a step"
            return None, name
        return run.flops_per_step() / scope.world_size, name
    if "executed_flops_per_step" in reasons:
        reasons["model_flops_per_step"] = reasons["executed_flops_per_step"]
        return None, FROM_SHAPES
    needed = calls.filter(~pl.col("role").is_in([RERUN, OPTIMIZER]))
    return _total(needed, "model_flops") / scope.windows, _from_shapes(needed)


def _from_shapes(calls: pl.DataFrame) -> str:
    """The convention of counting from shapes, with how attention was counted."""
    attention = calls.filter(pl.col("family") == ATTENTION)
    backward = "" if (calls["role"] == GRADIENT).any() else ", no backward seen"
    if attention.is_empty():
        return FROM_SHAPES + backward
    full = attention["assumed_full"]
    how = "causal where masked so"
    if full.any():
        how = "full, masks not known" if full.all() else "full where the mask is not known"
    return f"{FROM_SHAPES}{backward}; attention {how}"


def _utilisation(
    figure: str,
    flops: float | None,
    step_s: float,
    peak: float | None,
    reasons: dict[str, str],
) -> float | None:
    """``flops`` of a step over what the device could have done in its time, in percent."""
    basis = "model_flops_per_step" if figure == "mfu_pct" else "executed_flops_per_step"
    if flops is None or peak is None:
        reasons[figure] = reasons[basis if flops is None else "peak_flops_per_s"]
        return None
    try:
        return 100 * utilization(1 / step_s, flops, 1, peak)
    except ImplausibleFigureError as error:
        reasons[figure] = str(error)
        return None


def _families(
    calls: pl.DataFrame, scope: Scope, device: Device | None
) -> tuple[tuple[ComputeFamily, ...], list[str]]:
    """One row for each family and dtype, the longest first, and what is wrong with them."""
    peaks = (
        {dtype: cell.value * 1e12 for dtype, cell in device.peak_tflops.items()} if device else {}
    )
    times = _roofline_ns(calls, peaks, _memory(device))
    count, known = pl.col("calls"), pl.col("flops").is_not_null()
    sums = (
        calls.with_columns(times.alias("roof_ns"))
        .group_by("family", "dtype", known.alias("known"))
        .agg(
            count.sum(),
            pl.col("time_ns").sum(),
            (pl.col("flops") * count).sum().alias("flops"),
            (pl.col("bytes") * count).sum().alias("bytes"),
            pl.when(pl.col("roof_ns").null_count() == 0).then(pl.col("roof_ns").sum()),
        )
        .sort("time_ns", "family", "dtype", descending=[True, False, False], nulls_last=True)
    )
    rows = [_family(row, scope, peaks) for row in sums.iter_rows(named=True)]
    warnings = [
        f"{row.family} in {row.dtype} would run at {row.achieved_flops_per_s / 1e12:,.0f} TFLOP/s, "
        f"above the peak of {scope.device}: its shapes, its time or the peak is wrong"
        for row in rows
        if row.achieved_flops_per_s is not None
        and row.achieved_flops_per_s > peaks.get(row.dtype or "", float("inf"))
    ]
    return tuple(rows), warnings


def _roofline_ns(
    calls: pl.DataFrame, peaks: Mapping[str, float], memory: float | None
) -> pl.Series:
    """Time of each row's calls at the roofline (COMPUTE-ROOFLINE solved for time).

    FLOPs over min(C, I W) is the longer of FLOPs over C and bytes over W.
    """
    if memory is None:
        return pl.Series([None] * calls.height, dtype=pl.Float64)
    peak = pl.col("dtype").replace_strict(
        list(peaks), list(peaks.values()), default=None, return_dtype=pl.Float64
    )
    longer = pl.max_horizontal(pl.col("flops") / peak, pl.col("bytes") / memory)
    return calls.select(
        pl.when(peak.is_not_null()).then(1e9 * pl.col("calls") * longer)
    ).to_series()


def _family(
    row: Mapping[str, float | str | None], scope: Scope, peaks: Mapping[str, float]
) -> ComputeFamily:
    time = float(row["time_ns"] or 0)
    known = bool(row["known"]) and time > 0
    flops, moved, roof = (float(row[key] or 0) for key in ("flops", "bytes", "roof_ns"))
    achieved = flops / time * 1e9 if known else None
    dtype = None if row["dtype"] is None else str(row["dtype"])
    possible = achieved is not None and achieved <= peaks.get(dtype or "", float("inf"))
    judged = known and possible and row["roof_ns"] is not None and roof > 0
    return ComputeFamily(
        family=str(row["family"]),
        dtype=dtype,
        calls=float(row["calls"] or 0) / scope.windows,
        time_ns=round(time / scope.windows),
        flops=flops / scope.windows if known else None,
        bytes=moved / scope.windows if known else None,
        intensity=flops / moved if known and moved else None,
        achieved_flops_per_s=achieved,
        peak_flops_per_s=peaks.get(dtype or ""),
        roofline_flops_per_s=flops / roof * 1e9 if judged else None,
        efficiency_pct=100 * roof / time if judged else None,
        share_pct=100 * time / scope.windows / scope.mean.time_ns,
    )
