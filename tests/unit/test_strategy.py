"""Strategy words, meshes, and the strategy a trace shows."""

from __future__ import annotations

import pytest

from analyzer.errors import UsageError
from analyzer.strategy import AxisFacts, infer_strategy, parse_expect, parse_mesh


@pytest.mark.parametrize(
    ("text", "words", "axes"),
    [
        ("fsdp_tp", ("fsdp", "tp"), {"dp_shard": None, "tp": None}),
        ("fsdp8_tp4", ("fsdp", "tp"), {"dp_shard": 8, "tp": 4}),
        ("hsdp+tp", ("hsdp", "tp"), {"dp_replicate": None, "dp_shard": None, "tp": None}),
        ("ZeRO3", ("fsdp",), {"dp_shard": None}),
        ("zero24", ("zero2",), {"dp_shard": 4}),
        ("DDP", ("ddp",), {"dp_replicate": None}),
        ("ep64", ("ep",), {"ep": 64}),
        ("ulysses4", ("ulysses",), {"cp": 4}),
    ],
)  # fmt: skip
def test_expect(text: str, words: tuple[str, ...], axes: dict[str, int | None]) -> None:
    strategy = parse_expect(text)
    assert strategy.text == text
    assert strategy.words == words
    assert {axis: row.degree for axis, row in strategy.axes.items()} == axes


@pytest.mark.parametrize("text", ["megatron", "fsdp_xy", "tp-4", "fsdp_tpx4", "zero3_16", "fsdp_4"])
def test_an_unknown_word_lists_the_words(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"unknown strategy .*words: ddp, zero1, zero2, fsdp, zero3, hsdp"
    ):
        parse_expect(text)


@pytest.mark.parametrize("text", ["", " ", "_", "fsdp1", "tp0", "hsdp8"])
def test_expectations_that_mean_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="--expect"):
        parse_expect(text)


def test_what_strategies_put_on_the_critical_path() -> None:
    tp = parse_expect("tp").axes["tp"]
    assert all(op.critical and op.exposed_minimum == "all" for op in tp.ops.values())
    fsdp = parse_expect("fsdp").axes["dp_shard"]
    assert fsdp.ops["all_gather"].exposed_minimum == "first"
    assert fsdp.ops["reduce_scatter"].exposed_minimum == "last"
    assert not fsdp.ops["all_gather"].critical
    assert fsdp.required == (frozenset({"all_gather"}), frozenset({"reduce_scatter"}))


@pytest.mark.parametrize("digits", ["16777217", "9" * 23, "9" * 5000])
def test_degrees_beyond_any_job_are_usage_errors(digits: str) -> None:
    with pytest.raises(UsageError, match="--mesh: the degree of tp must be from 1 to 16777216"):
        parse_mesh(f"tp={digits}")
    with pytest.raises(UsageError, match="--expect: the degree of tp must be from 2 to 16777216"):
        parse_expect(f"fsdp_tp{digits}")
    assert parse_mesh("tp=16777216") == {"tp": 2**24}
    assert parse_expect("tp0016").axes["tp"].degree == 16


def test_mesh_keeps_the_order() -> None:
    assert list(parse_mesh("pp=2,dp_shard=4, tp=2").items()) == [
        ("pp", 2),
        ("dp_shard", 4),
        ("tp", 2),
    ]
    assert parse_mesh("TP=8") == {"tp": 8}


@pytest.mark.parametrize(
    "text", ["", "tp", "tp=", "tp=x", "tp=0", "tp=-2", "foo=2", "tp=2,tp=4", "world=4", "unknown=2"]
)
def test_bad_meshes(text: str) -> None:
    with pytest.raises(UsageError, match="--mesh"):
        parse_mesh(text)


def facts(*calls: tuple[str, str, int]) -> AxisFacts:
    made = AxisFacts()
    for op, phase, count in calls:
        made = made.seen(op, phase, count, 4)
    return made


FSDP = facts(
    ("all_gather", "forward", 5), ("all_gather", "backward", 4), ("reduce_scatter", "backward", 5)
)
ZERO2 = facts(("all_gather", "forward", 5), ("reduce_scatter", "backward", 5))
ZERO1 = facts(("all_gather", "optimizer", 5), ("reduce_scatter", "backward", 5))
ZERO1_REDUCED = facts(("all_gather", "optimizer", 1), ("all_reduce", "backward", 5))
ZERO1_BROADCAST = facts(("broadcast", "optimizer", 4), ("all_reduce", "backward", 5))
REPLICATE = facts(("all_reduce", "backward", 6))
TP = facts(("all_reduce", "forward", 8), ("all_reduce", "backward", 8))
TP_SP = facts(("all_gather", "forward", 8), ("reduce_scatter", "forward", 8))
PP = facts(("send", "forward", 8), ("recv", "backward", 8))
EP = facts(("dispatch", "forward", 8), ("combine", "forward", 8))
ULYSSES = facts(("all_to_all", "forward", 16))
RING = facts(("send_recv", "forward", 12))


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        ({"dp_shard": FSDP}, "fsdp"),
        ({"dp_shard": ZERO2}, "zero2"),
        ({"dp_shard": ZERO1}, "zero1"),
        ({"dp_shard": ZERO1_REDUCED}, "zero1"),
        ({"dp_shard": ZERO1_BROADCAST}, "zero1"),
        ({"dp_shard": REPLICATE}, "ddp"),
        ({"dp_replicate": REPLICATE}, "ddp"),
        ({"dp_replicate": REPLICATE, "dp_shard": FSDP}, "hsdp"),
        ({"dp_shard": FSDP, "tp": TP}, "fsdp_tp"),
        ({"dp_shard": FSDP, "tp": TP_SP, "world": REPLICATE}, "fsdp_tp"),
        ({"pp": PP, "dp_replicate": REPLICATE, "tp": TP}, "ddp_tp_pp"),
        ({"ep": EP}, "ep"),
        ({"cp": ULYSSES}, "ulysses"),
        ({"cp": RING}, "cp"),
        ({"dp_shard+cp": FSDP, "cp": RING}, "fsdp_cp"),
        ({"world": REPLICATE, "unknown": FSDP}, "none"),
        ({}, "none"),
    ],
)
def test_inferred_strategy(seen: dict[str, AxisFacts], text: str) -> None:
    strategy, why = infer_strategy(seen)
    assert strategy.text == text
    assert why
    if text != "none":
        assert parse_expect(text).words == strategy.words


def test_inferred_degrees_and_reason() -> None:
    strategy, why = infer_strategy({"dp_shard": FSDP})
    assert strategy.axes["dp_shard"].degree == 4
    assert infer_strategy({"dp_shard": FSDP}, 2)[1].startswith(
        "per step and rank 4.5 all-gathers, 2.5 reduce-scatters over dp_shard"
    )
    assert why == (
        "per step and rank 9 all-gathers, 5 reduce-scatters over dp_shard: "
        "weights gathered again in backward"
    )
