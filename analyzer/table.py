"""Tables with declared columns: what :mod:`analyzer.schema` is written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``kind`` is one of i64, i32, f64, bool, str, list[i64]."""

    name: str
    kind: str
    doc: str
    null: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A named, ordered set of columns."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [c.name for c in self.columns]

    def empty(self) -> pl.DataFrame:
        """A frame with these columns and no rows."""
        import polars as pl

        return pl.DataFrame(schema={c.name: _dtype(c.kind) for c in self.columns})


def _dtype(kind: str) -> pl.DataType:
    import polars as pl

    return {
        "i64": pl.Int64(),
        "i32": pl.Int32(),
        "f64": pl.Float64(),
        "bool": pl.Boolean(),
        "str": pl.String(),
        "list[i64]": pl.List(pl.Int64()),
    }[kind]


def conform(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return ``frame`` with exactly the table's columns, in order.

    Missing nullable columns are added as nulls and numeric columns cast; a missing required
    column raises ``ValueError`` (a programming error, not a user's).
    """
    import polars as pl

    exprs: list[pl.Expr] = []
    for column in table.columns:
        if column.name not in frame.columns:
            if not column.null:
                message = f"{table.name}: column {column.name!r} is missing"
                raise ValueError(message)
            exprs.append(pl.lit(None, dtype=_dtype(column.kind)).alias(column.name))
        elif column.kind == "str":
            exprs.append(pl.col(column.name))
        else:
            exprs.append(pl.col(column.name).cast(_dtype(column.kind)))
    return check(frame.select(exprs), table)


def check(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return ``frame`` unchanged, or raise ``ValueError`` naming the first column that is off."""
    import polars as pl

    if frame.columns != table.names:
        message = f"{table.name}: columns {frame.columns} instead of {table.names}"
        raise ValueError(message)
    for column in table.columns:
        dtype = frame.schema[column.name]
        stringlike = isinstance(dtype, (pl.String, pl.Categorical, pl.Enum))
        if not (stringlike if column.kind == "str" else dtype == _dtype(column.kind)):
            message = f"{table.name}.{column.name}: {dtype} instead of {column.kind}"
            raise ValueError(message)
        if not column.null and frame[column.name].null_count():
            message = f"{table.name}.{column.name}: holds nulls"
            raise ValueError(message)
    return frame


def reference_page(tables: tuple[Table, ...]) -> str:
    """Every table with its columns, as a page."""
    lines = ["# Tables", "", "Generated from `analyzer/schema.py` (`make docs`).", ""]
    for table in tables:
        lines += [
            f"## {table.name}",
            "",
            table.doc,
            "",
            "| column | type | meaning |",
            "|---|---|---|",
        ]
        lines += [
            f"| `{c.name}` | {c.kind}{', null' if c.null else ''} | {c.doc} |"
            for c in table.columns
        ]
        lines.append("")
    return "\n".join(lines)
