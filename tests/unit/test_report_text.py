"""Numbers and foreign text as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import text
from reports.view import axis_key, cells


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (None, "–"),
        (0, "0 ns"),
        (7, "7 ns"),
        (999, "999 ns"),
        (1_000, "1 us"),
        (812_400, "812 us"),
        (4_190_000, "4.19 ms"),
        (10_048_000, "10.0 ms"),
        (10_000_000, "10 ms"),
        (129_000_000, "129 ms"),
        (12_345_678_901, "12.3 s"),
        (4_200_000_000_000, "4,200 s"),
    ],
)
def test_duration(ns: int | None, shown: str) -> None:
    assert text.duration(ns) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0.0 %"),
        (0.01, "<0.1 %"),
        (0.06, "0.1 %"),
        (17.545, "17.5 %"),
        (100, "100.0 %"),
    ],
)
def test_percent(value: float | None, shown: str) -> None:
    assert text.percent(value) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "–"),
        (0, "0 B"),
        (512, "512 B"),
        (1536, "1.50 KiB"),
        (352 * 2**20, "352 MiB"),
        (2**40, "1 TiB"),
    ],
)
def test_size(count: int | None, shown: str) -> None:
    assert text.size(count) == shown


@pytest.mark.parametrize(
    ("members", "shown"),
    [([], ""), ([3], "3"), ([0, 1, 2, 3, 6], "0-3, 6"), ([6, 2, 0, 1, 1], "0-2, 6")],
)
def test_ranks(members: list[int], shown: str) -> None:
    assert text.ranks(members) == shown


def test_long_rank_lists_are_cut_and_counted() -> None:
    phrase = text.ranks_phrase(list(range(0, 400, 2)))
    assert phrase.startswith("ranks 0, 2, 4")
    assert phrase.endswith("… (200 in all)")
    assert text.ranks_phrase([5]) == "rank 5"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("Grüße × µs", "Grüße × µs"),
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\nb\tc", "a\\x0ab\\x09c"),
        ("evil\u202egpj.exe", "evil\\u202egpj.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("line\u2028break", "line\\u2028break"),
        ("\U000e0001tag", "\\U000e0001tag"),
    ],
)
def test_visible(raw: str, shown: str) -> None:
    assert text.visible(raw) == shown


@given(st.text())
def test_visible_text_prints_on_one_line(raw: str) -> None:
    shown = text.visible(raw)
    assert all(char.isprintable() or char.isspace() for char in shown)
    assert len(shown.splitlines()) <= 1
    assert text.visible(shown) == shown


def test_shorten_keeps_both_ends() -> None:
    name = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    short = text.shorten(name, 30)
    assert len(short) == 30
    assert name.startswith(short.split("…")[0])
    assert name.endswith(short.split("…")[1])
    assert text.shorten("abc", 3) == "abc"


def test_milliseconds_column_has_one_number_of_decimals() -> None:
    column = text.Milliseconds([1_234_567_890, 5, None])
    assert [column(v) for v in (1_234_567_890, 5, 0, None)] == ["1,234.6", "<0.1", "0.0", "–"]
    assert text.Milliseconds([7_662_000])(180_000) == "0.180"
    assert text.Milliseconds([32_000_000])(4_000) == "<0.01"
    assert text.Milliseconds([])(0) == "0.000"


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (None, "%", "–"),
        (1.7, "%", "1.7 %"),
        (180_000, "ns", "180 us"),
        (2048, "bytes", "2 KiB"),
        (3, "findings", "3 findings"),
        (0.25, "GB/s", "0.25 GB/s"),
        (4, "", "4"),
    ],
)
def test_quantity(value: float | None, unit: str, shown: str) -> None:
    assert text.quantity(value, unit) == shown


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=12), st.integers(1, 200))
def test_cells_add_up_and_are_proportional(amounts: list[int], width: int) -> None:
    shared = cells(amounts, width)
    total = sum(amounts)
    assert sum(shared) == (width if total else 0)
    for count, amount in zip(shared, amounts, strict=True):
        assert not total or abs(count - amount * width / total) < 1 + 1e-9


@pytest.mark.parametrize(
    ("axis", "key"),
    [("tp", "tp"), ("dp_shard+cp", "dp_shard"), ("</style>", "unknown"), ("", "unknown")],
)
def test_axis_key_is_one_of_the_known_colours(axis: str, key: str) -> None:
    assert axis_key(axis) == key


def test_units_stay_with_their_numbers() -> None:
    shown = text.keep_units("step 7.66 ms (17.5 %) of 3 GiB, 2 steps, 5 items")
    assert shown == "step 7.66\u00a0ms (17.5\u00a0%) of 3\u00a0GiB, 2 steps, 5 items"
