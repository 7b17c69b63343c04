"""Specs are checked when they are made, and name groups as torch does."""

from __future__ import annotations

import pytest

from analyzer.errors import UsageError
from collectors.simulate.spec import (
    DEFECTS,
    Defect,
    SimSpec,
    parse_mesh,
    parse_strategy,
    process_groups,
)


def groups(mesh: str, strategy: str, *defects: str) -> list[tuple[str, str, tuple[int, ...], str]]:
    parsed = tuple(Defect.parse(d) for d in defects)
    spec = SimSpec(parse_mesh(mesh), strategy, defects=parsed)
    return [(g.name, g.desc, g.ranks, g.axis) for g in process_groups(spec)]


def test_group_names_count_through_all_slices_of_the_mesh():
    assert groups("dp_replicate=2,dp_shard=2", "hsdp") == [
        ("0", "default_pg", (0, 1, 2, 3), "world"),
        ("1", "mesh_dp_replicate", (0, 2), "dp_replicate"),
        ("2", "mesh_dp_replicate", (1, 3), "dp_replicate"),
        ("3", "mesh_dp_shard", (0, 1), "dp_shard"),
        ("4", "mesh_dp_shard", (2, 3), "dp_shard"),
    ]


def test_inner_axes_are_contiguous_and_outer_ones_strided():
    by_axis: dict[str, list[tuple[int, ...]]] = {}
    for _, _, ranks, axis in groups("dp_shard=2,tp=4", "fsdp_tp"):
        by_axis.setdefault(axis, []).append(ranks)
    assert by_axis["tp"] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert by_axis["dp_shard"] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_a_mesh_of_one_axis_loses_its_name():
    assert groups("dp_shard=4", "fsdp") == [("0", "default_pg", (0, 1, 2, 3), "dp_shard")]
    assert groups("dp_shard=4,tp=1", "fsdp_tp")[0][3] == "dp_shard"


def test_unlabelled_groups():
    assert {desc for _, desc, _, _ in groups("dp_shard=2,tp=2", "fsdp_tp", "unlabelled")} == {
        "undefined"
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no-prefetch", Defect("no-prefetch")),
        ("host-bound", Defect("host-bound", "", 8)),
        ("host-bound=3", Defect("host-bound", "", 3)),
        ("slow-link:tp=2.5", Defect("slow-link", "tp", 2.5)),
        ("straggler:3=1.5", Defect("straggler", "3", 1.5)),
    ],
)
def test_defects_parse_and_print(text, expected):
    defect = Defect.parse(text)
    assert defect == expected
    assert Defect.parse(str(defect)) == defect


@pytest.mark.parametrize(
    "text",
    ["nonsense", "slow-link", "slow-link=2", "no-prefetch=2", "no-prefetch:tp", "host-bound=0",
     "host-bound=x", "straggler:1", "host-bound=inf", ""],
)  # fmt: skip
def test_bad_defects_are_usage_errors(text):
    with pytest.raises(UsageError):
        Defect.parse(text)


def test_every_defect_is_documented():
    assert all(len(what) > 10 for what in DEFECTS.values())


@pytest.mark.parametrize(
    ("mesh", "strategy"),
    [
        ("dp_shard=2", "ddp"),  # axis of another strategy
        ("tp=2", "fsdp_tp"),  # axis missing
        ("dp_shard=2,pp=2", "fsdp"),  # axis of no strategy word
        ("nonsense=2", "fsdp"),
        ("dp_shard=2", "ddp_fsdp"),
        ("dp_shard=2", "fsdp_sp"),
        ("dp_shard=2", "fsdp_fsdp"),
        ("dp_shard=2", "magic"),
        ("dp_shard", "fsdp"),
        ("dp_shard=2,dp_shard=2", "fsdp"),
        ("dp_shard=0", "fsdp"),
        pytest.param("dp_shard=" + "9" * 5000, "fsdp", id="huge"),
    ],
)
def test_mesh_and_strategy_must_fit(mesh, strategy):
    with pytest.raises(UsageError):
        SimSpec(parse_mesh(mesh), strategy)


@pytest.mark.parametrize("change", [{"steps": 0}, {"layers": 0}, {"jitter": 1.0}, {"jitter": -0.1}])
def test_numbers_must_make_sense(change):
    with pytest.raises(UsageError):
        SimSpec({"dp_shard": 2}, "fsdp", **change)


@pytest.mark.parametrize("defect", ["slow-link:tp=2", "straggler:2=2", "straggler:x=2"])
def test_defects_must_name_what_the_mesh_has(defect):
    with pytest.raises(UsageError):
        SimSpec({"dp_shard": 2}, "fsdp", defects=(Defect.parse(defect),))


def test_strategy_words():
    assert parse_strategy("hsdp+tp_sp") == ("hsdp", "tp", "sp")


def test_default_mlp_width_is_rounded_up():
    assert SimSpec({"tp": 2}, "tp", hidden=4096).inner == 11_008
    assert SimSpec({"tp": 2}, "tp", hidden=4096, ffn=100).inner == 100
