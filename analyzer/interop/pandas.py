"""Our tables as pandas DataFrames (extra ``pandas``; pandas 2 and 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import polars as pl
import polars.selectors as cs

from analyzer.errors import MissingExtraError
from analyzer.model import Job, RankTrace
from analyzer.schema import TRACE_TABLES

if TYPE_CHECKING:
    import pandas as pd


@overload
def to_pandas(source: pl.DataFrame) -> pd.DataFrame: ...
@overload
def to_pandas(source: RankTrace | Job) -> dict[str, pd.DataFrame]: ...
def to_pandas(source: pl.DataFrame | RankTrace | Job) -> pd.DataFrame | dict[str, pd.DataFrame]:
    """Copy a table, all tables of a trace, or all tables of a job into pandas.

    Args:
        source: A table yields one DataFrame; a trace or job yields one DataFrame per table of
            :data:`analyzer.schema.TRACE_TABLES`, keyed by the table's name. A job's DataFrames
            hold all ranks and begin with a column ``rank``.

    Columns, units and order are those of :mod:`analyzer.schema`. Strings become categoricals.
    Integers stay integers: columns that hold nulls get the nullable dtype ``Int64`` (``Int32``),
    not float64, which would round identifiers above 2**53.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    pandas = import_pandas()
    if isinstance(source, pl.DataFrame):
        return _frame(source, pandas)
    if isinstance(source, RankTrace):
        return {t.name: _frame(getattr(source, t.name), pandas) for t in TRACE_TABLES}
    return {t.name: _frame(_all_ranks(source, t.name), pandas) for t in TRACE_TABLES}


def import_pandas() -> Any:
    """The pandas module, or MissingExtraError."""
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        message = "pandas is not installed"
        raise MissingExtraError(message, "pip install 'meshscope[pandas]'") from error
    return pd


def _all_ranks(job: Job, table: str) -> pl.DataFrame:
    # Every rank has its own dictionary of strings (Enum); polars does not concatenate those.
    dictionaries = cs.by_dtype(pl.Enum, pl.Categorical)
    frames: list[pl.DataFrame] = [
        getattr(trace, table)
        .with_columns(dictionaries.cast(pl.String))
        .select(pl.lit(trace.rank, dtype=pl.Int32).alias("rank"), pl.all())
        for trace in job.ranks
    ]
    return pl.concat(frames)


def _frame(frame: pl.DataFrame, pandas: Any) -> pd.DataFrame:
    columns = {column.name: _column(column, pandas) for column in frame}
    made: pd.DataFrame = pandas.DataFrame(columns, index=pandas.RangeIndex(frame.height))
    return made


def _column(column: pl.Series, pandas: Any) -> Any:
    dtype = column.dtype
    if isinstance(dtype, (pl.String, pl.Categorical, pl.Enum)):
        texts = column.cast(pl.String)
        categories = texts.drop_nulls().unique(maintain_order=True)
        codes = texts.cast(pl.Enum(categories)).to_physical().cast(pl.Int32).fill_null(-1)
        return pandas.Categorical.from_codes(codes.to_numpy(), categories.to_list())
    if dtype.is_nested():
        return column.to_list()
    if not column.null_count():
        return column.to_numpy()
    missing = column.is_null().to_numpy()
    if dtype.is_integer():
        return pandas.arrays.IntegerArray(column.fill_null(0).to_numpy(writable=True), missing)
    if dtype == pl.Boolean:
        return pandas.arrays.BooleanArray(column.fill_null(False).to_numpy(writable=True), missing)
    return column.to_numpy()
