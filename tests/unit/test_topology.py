"""Meshes and the axis of every process group."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.groups import GroupUse, OpUse
from analyzer.mesh import Mesh
from analyzer.model import Evidence
from analyzer.topology import axis_labels, resolve

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
OPS: Mapping[str, Mapping[str, OpUse]] = {
    "pp": {"send": OpUse(8, 8 << 20, forward=4), "recv": OpUse(8, 8 << 20, forward=4)},
    "dp_replicate": {"all_reduce": OpUse(6, 6 << 20)},
    "dp_shard": {"all_gather": OpUse(9, 9 << 20, forward=5), "reduce_scatter": OpUse(5, 5 << 20)},
    "cp": {"send_recv": OpUse(12, 12 << 20, forward=6)},
    "tp": {"all_reduce": OpUse(16, 16 << 20, forward=8)},
    "ep": {"all_to_allv": OpUse(16, 16 << 20, forward=8)},
}
"""What each axis looks like in a training step."""


def use(axis: str, ranks: Sequence[int], *, desc: str = "", name: str = "0") -> GroupUse:
    hints = {"cp": 12} if axis == "cp" else {}
    return GroupUse(tuple(ranks), len(ranks), name, desc, OPS[axis], hints=hints)


def all_groups(mesh: Mesh, *, shuffle: int | None = None) -> list[tuple[str, GroupUse]]:
    """Every group of every axis, under names that tell nothing, in any order."""
    found = []
    for axis, degree in mesh.axes.items():
        if degree > 1:
            sets = {mesh.group([axis], rank) for rank in range(mesh.size)}
            found += [(axis, use(axis, ranks)) for ranks in sorted(sets)]
    rng = random.Random(shuffle)
    rng.shuffle(found)
    return [
        (axis, GroupUse(g.ranks, g.size, f"h{rng.random()}", "", g.ops, hints=g.hints))
        for axis, g in found
    ]


# ---- rank arithmetic ----------------------------------------------------------------------------


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_groups_are_the_ranks_that_differ_on_their_axes_only(
    degrees: list[int], data: st.DataObject
) -> None:
    mesh = Mesh(dict(zip(AXES, degrees, strict=False)))
    coordinates = list(itertools.product(*(range(d) for d in mesh.axes.values())))  # row-major
    rank = data.draw(st.integers(0, mesh.size - 1))
    axes = data.draw(st.lists(st.sampled_from(list(mesh.axes)), unique=True))
    position = coordinates[rank]
    fixed = [i for i, axis in enumerate(mesh.axes) if axis not in axes]
    expected = [r for r, c in enumerate(coordinates) if all(c[i] == position[i] for i in fixed)]
    assert list(mesh.group(axes, rank)) == expected
    assert mesh.coordinates(rank) == dict(zip(mesh.axes, position, strict=True))


def test_axis_of_rank_sets() -> None:
    mesh = Mesh({"pp": 2, "dp_shard": 2, "cp": 1, "tp": 2})
    assert mesh.axis_of((0, 1)) == "tp"
    assert mesh.axis_of((5, 7)) == "dp_shard"
    assert mesh.axis_of((3, 7)) == "pp"
    assert mesh.axis_of((4, 5, 6, 7)) == "dp_shard+tp"
    assert mesh.axis_of((0, 2, 4, 6)) == "pp+dp_shard"
    assert mesh.axis_of(tuple(range(8))) == "world"
    for none in ((0, 3), (0, 1, 2), (0,), (), (8, 9), (1, 1)):
        assert mesh.axis_of(none) is None
    assert Mesh({"dp_shard": 4}).axis_of((0, 1, 2, 3)) == "dp_shard"


# ---- evidence -----------------------------------------------------------------------------------


def label(
    group: GroupUse, others: Sequence[GroupUse] = (), **options: object
) -> tuple[str, Evidence]:
    options = {"world_size": 8, **options}
    topology, _ = resolve([group, *others], **options)  # type: ignore[arg-type]
    found = topology.labels[group.id]
    return found.axis, found.evidence


@pytest.mark.parametrize(
    ("desc", "axis", "found"),
    [
        ("mesh_tp", "tp", "tp"), ("mesh_pp", "pp", "pp"), ("mesh_dp_shard", "dp_shard", "dp_shard"),
        ("mesh_dp", "dp_shard", "dp_shard"), ("mesh_dp", "dp_replicate", "dp_replicate"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp_shard", "dp_shard"),
        ("CONTEXT_PARALLEL_GROUP", "cp", "cp"), ("EXPERT_MODEL_PARALLEL_GROUP", "ep", "ep"),
    ],
)  # fmt: skip
def test_description(desc: str, axis: str, found: str) -> None:
    assert label(use(axis, (0, 1), desc=desc)) == (found, Evidence.GROUP_DESC)


def test_stated_mesh_wins_and_the_disagreement_is_a_conflict() -> None:
    group = use("tp", (0, 1), desc="mesh_dp_shard")
    topology, conflicts = resolve([group], world_size=4, stated={"dp_shard": 2, "tp": 2})
    assert topology.labels[group.id].axis == "tp"
    assert topology.labels[group.id].evidence is Evidence.MESH
    assert conflicts == (
        "group 0,1: the stated mesh says tp, its description 'mesh_dp_shard' says dp_shard",
    )
    assert topology.mesh == {"dp_shard": 2, "tp": 2}
    assert topology.source == "stated mesh"


def test_groups_off_the_stated_mesh_are_conflicts() -> None:
    group = use("tp", (0, 3), desc="mesh_tp")
    topology, conflicts = resolve([group], world_size=4, stated={"dp_shard": 2, "tp": 2})
    assert topology.labels[group.id].axis == "tp"  # by description
    assert "[0, 3] are no group of the stated mesh dp_shard=2,tp=2" in conflicts[0]


def test_a_stated_mesh_of_the_wrong_size_is_a_conflict() -> None:
    _, conflicts = resolve([], world_size=8, stated={"dp_shard": 2, "tp": 2})
    assert conflicts == ("the stated mesh dp_shard=2,tp=2 has 4 ranks, the job 8",)


def test_expert_axis_beside_a_dense_mesh() -> None:
    groups = [
        use("ep", (0, 1, 2, 3), desc="mesh_ep"),
        use("tp", (0, 1)),
        use("dp_shard", (0, 2, 4, 6)),
    ]
    topology, conflicts = resolve(groups, world_size=8, stated={"dp_shard": 4, "ep": 4, "tp": 2})
    assert [topology.labels[g.id].axis for g in groups] == ["ep", "tp", "dp_shard"]
    assert conflicts == ()


EVERYONE = (0, 1, 2, 3)


@pytest.mark.parametrize("stated", [{"dp_shard": 4, "ep": 4}, {"dp_shard": 4}, {"ep": 4}, None])
@pytest.mark.parametrize("descs", [("mesh_dp_shard", "mesh_ep"), ("default_pg", "undefined")])
def test_expert_and_dense_axes_may_have_one_rank_set(
    stated: dict[str, int] | None, descs: tuple[str, str]
) -> None:
    """Not even a stated mesh decides there: the description does, then the collectives."""
    shard, experts = (
        use(axis, EVERYONE, desc=desc) for axis, desc in zip(("dp_shard", "ep"), descs, strict=True)
    )
    topology, conflicts = resolve([shard, experts], world_size=4, stated=stated)
    found = [topology.labels[group.id] for group in (shard, experts)]
    assert [label.axis for label in found] == ["dp_shard", "ep"]
    by_desc, by_mesh = (Evidence.GROUP_DESC, 0.95), (Evidence.MESH, 1.0)
    undescribed = by_mesh if stated == {"ep": 4} else (Evidence.SIGNATURE, 0.6)
    expected = by_desc if descs[1] == "mesh_ep" else undescribed
    assert (found[1].evidence, found[1].confidence) == expected
    assert conflicts == ()


@pytest.mark.parametrize("ranks", [(0, 1, 2, 3), (0, 2, 4, 6)])
@pytest.mark.parametrize("desc", ["mesh_ep", "undefined"])
def test_experts_over_the_ranks_of_several_dense_axes(ranks: tuple[int, ...], desc: str) -> None:
    """Half of dp_shard with tp (etp=1), or dp_shard alone (etp=tp), on 16 ranks."""
    dense = [
        use("pp", (0, 8)),
        use("dp_shard", (0, 2, 4, 6)),
        use("tp", (0, 1)),
    ]
    experts = use("ep", ranks, desc=desc)
    stated = {"pp": 2, "dp_shard": 4, "ep": 4, "tp": 2}
    topology, conflicts = resolve([*dense, experts], world_size=16, stated=stated)
    assert [topology.labels[g.id].axis for g in dense] == ["pp", "dp_shard", "tp"]
    assert topology.labels[experts.id].axis == "ep"
    assert conflicts == ()


def test_an_expert_group_that_the_stated_mesh_rules_out_is_a_conflict() -> None:
    experts = use("ep", (0, 1, 8, 9), desc="mesh_ep")  # two pipeline stages
    stated = {"pp": 2, "dp_shard": 4, "ep": 4, "tp": 2}
    topology, conflicts = resolve([experts], world_size=16, stated=stated)
    assert topology.labels[experts.id].axis == "ep"
    assert conflicts == (
        "group mesh_ep: ranks [0, 1, 8, 9] are no group of the stated mesh "
        "pp=2,dp_shard=4,ep=4,tp=2",
    )


def test_expert_axes_are_no_factor_of_the_job() -> None:
    _, conflicts = resolve([], world_size=8, stated={"dp_shard": 2, "ep": 4})
    assert conflicts == (
        "the stated mesh dp_shard=2,ep=4 has 2 ranks (expert axes do not count), the job 8",
    )
    _, conflicts = resolve([], world_size=4, stated={"dp_shard": 4, "ep": 3})
    assert "spreads experts over 3 ranks, which do not divide the 4" in conflicts[0]
    assert resolve([], world_size=8, stated={"ep": 4})[1] == ()  # says nothing of the rest


def test_all_to_alls_of_ulysses_stay_on_the_stated_cp() -> None:
    ulysses = GroupUse((0, 1), 2, "1", "", {"all_to_all": OpUse(16, 16 << 20, forward=8)})
    topology, conflicts = resolve([ulysses], world_size=4, stated={"dp_shard": 2, "cp": 2, "ep": 2})
    assert topology.labels[ulysses.id].axis == "cp"
    assert conflicts == ()


SWAPPED = {"tp": 2, "dp_shard": 2}


def test_ranges_that_contradict_a_stated_mesh_are_a_conflict() -> None:
    group = GroupUse(
        (0, 2), 2, "1", "", OPS["dp_shard"], hints={"dp_shard": 14}, ranged=frozenset({"dp_shard"})
    )
    topology, conflicts = resolve([group], world_size=4, stated=SWAPPED)
    assert topology.labels[group.id].axis == "tp"  # the mesh keeps the word
    assert topology.labels[group.id].confidence == 0.5
    assert conflicts == (
        "group 0,2: the stated mesh says tp, the ranges around its collectives say dp_shard",
    )


def test_collectives_that_contradict_a_stated_mesh_are_a_conflict() -> None:
    groups = [use("dp_shard", (0, 2)), use("tp", (0, 1))]
    topology, conflicts = resolve(groups, world_size=4, stated=SWAPPED)
    assert [topology.labels[g.id].axis for g in groups] == ["tp", "dp_shard"]
    assert [topology.labels[g.id].confidence for g in groups] == [0.5, 0.5]
    assert conflicts == (
        "group 0,2: the stated mesh says tp, but its collectives look like dp_shard: "
        "all_gather, reduce_scatter",
        "group 0,1: the stated mesh says dp_shard, but its collectives look like tp: all_reduce",
    )
    pipeline = use("pp", (0, 1))
    _, conflicts = resolve([pipeline], world_size=4, stated={"pp": 2, "dp_shard": 2})
    assert "says dp_shard, but its collectives are not of that axis: recv, send" in conflicts[0]


@pytest.mark.parametrize(
    "axes",
    [{"pp": 2, "dp_replicate": 2, "dp_shard": 2, "tp": 2}, {"dp_shard": 2, "cp": 2}],
    ids=str,
)
def test_a_right_mesh_is_contradicted_by_nothing(axes: dict[str, int]) -> None:
    mesh = Mesh(axes)
    groups = all_groups(mesh)
    topology, conflicts = resolve([g for _, g in groups], world_size=mesh.size, stated=axes)
    assert conflicts == ()
    assert {topology.labels[g.id].confidence for _, g in groups} == {1.0}


@pytest.mark.parametrize(
    ("ops", "axis"),
    [
        ({"all_reduce": OpUse(6, 60 << 20), "all_gather": OpUse(2, 30 << 20, optimizer=2)},
         "dp_shard"),
        ({"all_reduce": OpUse(6, 60 << 20), "broadcast": OpUse(4, 30 << 20, optimizer=4)},
         "dp_shard"),
        # buffers are broadcast in forward, losses gathered in a few bytes: plain DDP
        ({"all_reduce": OpUse(6, 60 << 20), "broadcast": OpUse(4, 30 << 20, forward=4)},
         "dp_replicate"),
        ({"all_reduce": OpUse(6, 60 << 20), "all_gather": OpUse(2, 64, optimizer=2)},
         "dp_replicate"),
    ],
)  # fmt: skip
def test_parameters_that_come_back_are_sharded_data_parallelism(
    ops: dict[str, OpUse], axis: str
) -> None:
    assert label(GroupUse(EVERYONE, 4, "0", "default_pg", ops), world_size=4)[0] == axis
    if "all_gather" not in ops:
        assert label(GroupUse(EVERYONE, 4, "1", "mesh_dp", ops), world_size=4)[0] == axis


def test_huge_degrees_cost_nothing() -> None:
    assert Mesh({"dp_shard": 2**24, "tp": 2**24}).axis_of((0, 1)) is None


def test_ranges_that_contradict_a_description_are_a_conflict() -> None:
    group = GroupUse(
        (0, 1),
        2,
        "1",
        "mesh_tp",
        OPS["dp_shard"],
        hints={"dp_shard": 14},
        ranged=frozenset({"dp_shard"}),
    )
    topology, conflicts = resolve([group], world_size=4)
    assert topology.labels[group.id].axis == "tp"
    assert "says tp, the ranges around its collectives say dp_shard" in conflicts[0]


def test_equal_names_with_disjoint_ranks_are_two_groups() -> None:
    """Case M-12."""
    first, second = use("tp", (0, 1), name="3"), use("dp_shard", (2, 3), name="3")
    topology, conflicts = resolve([first, second], world_size=4)
    assert {key for key, _ in topology.labels} == {"0,1", "2,3"}
    assert topology.labels[first.id].axis == "tp"
    assert topology.labels[second.id].axis == "dp_shard"
    assert conflicts == ()


def test_one_rank_set_may_carry_several_groups() -> None:
    shard, loss = use("dp_shard", (0, 2), desc="mesh_dp_shard"), use("tp", (0, 2), desc="mesh_loss")
    topology, _ = resolve([shard, loss], world_size=4)
    assert topology.labels[loss.id].axis == "dp_shard"
    assert topology.labels[loss.id].evidence is Evidence.RANK_SETS


def test_groups_described_as_spanning_axes_get_their_place_on_the_mesh() -> None:
    mesh = Mesh({"pp": 2, "dp_shard": 2, "tp": 2})
    groups = [
        use(axis, ranks, desc=f"mesh_{axis}")
        for axis in mesh.axes
        for ranks in {mesh.group([axis], rank) for rank in range(8)}
    ]
    norm = use("tp", (0, 1, 2, 3), desc="mesh_loss")
    everyone = GroupUse(tuple(range(8)), 8, "0", "default_pg", {"all_reduce": OpUse(2, 4096)})
    topology, _ = resolve([*groups, norm, everyone], world_size=8)
    assert topology.labels[norm.id].axis == "dp_shard+tp"
    assert topology.labels[everyone.id].axis == "world"
    assert dict(topology.mesh) == {"pp": 2, "dp_shard": 2, "tp": 2}


def test_kernel_names_imply_an_axis() -> None:
    group = GroupUse(
        (), 0, "kernel ep", "", {"dispatch": OpUse(4), "combine": OpUse(4)}, implied="ep"
    )
    topology, _ = resolve([group], world_size=None)
    assert topology.labels[group.id].axis == "ep"
    assert topology.labels[group.id].evidence is Evidence.KERNEL_NAME
    assert topology.mesh == {"ep": None}


def test_what_nothing_explains_stays_unknown() -> None:
    odd = GroupUse((0, 1), 2, "1", "", {"gather": OpUse(3, 100)})
    assert label(odd) == ("unknown", Evidence.NONE)
    topology, _ = resolve([odd, use("tp", (0, 1, 2, 3), desc="mesh_tp")], world_size=4)
    assert topology.labels[odd.id].axis == "unknown"
    assert "unknown" not in topology.mesh


def test_all_ranks_with_only_small_reductions_are_world() -> None:
    group = GroupUse(tuple(range(8)), 8, "0", "default_pg", {}, tiny=12)
    assert label(group) == ("world", Evidence.RANK_SETS)


@pytest.mark.parametrize("axis", ["dp_replicate", "dp_shard", "tp", "pp", "ep", "cp"])
def test_the_only_axis_of_a_job_runs_on_the_default_group(axis: str) -> None:
    found, evidence = label(use(axis, range(8), desc="default_pg"))
    assert found == axis
    assert evidence is Evidence.SIGNATURE


def test_without_phases_an_all_reduce_is_no_evidence() -> None:
    group = GroupUse((0, 1), 2, "1", "", OPS["tp"], phases_known=False)
    assert label(group) == ("unknown", Evidence.NONE)
    assert label(group, expected={"tp": None}) == ("tp", Evidence.SIGNATURE)
    assert label(group, expected={"pp": None}) == ("unknown", Evidence.NONE)  # could not be


def test_expectation_decides_by_degree_but_never_against_a_description() -> None:
    shard = use("dp_shard", (0, 4))
    assert label(shard, expected={"tp": 2, "dp_shard": 4}) == ("tp", Evidence.SIGNATURE)
    described = use("dp_shard", (0, 4), desc="mesh_dp_shard")
    assert label(described, expected={"tp": 2}) == ("dp_shard", Evidence.GROUP_DESC)


COMBINATIONS = [
    dict(zip(axes, degrees, strict=True))
    for count in (1, 2, 3, 4)
    for axes in itertools.combinations(AXES, count)
    for degrees in ((2,) * count, (4, 2, 2, 2)[:count])
]


@pytest.mark.parametrize("axes", COMBINATIONS, ids=str)
def test_every_combination_of_axes_without_any_description(axes: dict[str, int]) -> None:
    mesh = Mesh(axes)
    groups = all_groups(mesh, shuffle=len(str(axes)))
    topology, conflicts = resolve([group for _, group in groups], world_size=mesh.size)
    assert {g.key: topology.labels[g.id].axis for _, g in groups} == {g.key: a for a, g in groups}
    assert conflicts == ()
    assert dict(topology.mesh) == axes
    assert list(topology.mesh) == list(axes)


@pytest.mark.parametrize("axes", COMBINATIONS[-10:], ids=str)
def test_one_rank_alone_tells_the_axes_of_its_own_groups(axes: dict[str, int]) -> None:
    mesh = Mesh(axes)
    groups = [(axis, g) for axis, g in all_groups(mesh) if 0 in g.ranks]
    topology, _ = resolve([group for _, group in groups], world_size=mesh.size)
    assert {topology.labels[g.id].axis for _, g in groups} == set(axes)


def test_permuted_ranks_without_description() -> None:
    groups = [
        use("tp", (0, 3)),
        use("tp", (1, 2)),
        use("dp_shard", (0, 1)),
        use("dp_shard", (2, 3)),
    ]
    topology, _ = resolve(groups, world_size=4)
    assert [topology.labels[g.id].axis for g in groups] == ["tp", "tp", "dp_shard", "dp_shard"]


def test_one_odd_group_among_many_of_its_shape_goes_with_them() -> None:
    groups = [use("tp", (r, r + 1)) for r in range(0, 14, 2)] + [use("dp_replicate", (14, 15))]
    topology, _ = resolve(groups, world_size=16)
    assert {topology.labels[g.id].axis for g in groups} == {"tp"}


def test_uses_of_one_group_seen_by_several_ranks_add_up() -> None:
    one = GroupUse((0, 1), 2, "1", "", {"all_reduce": OpUse(2, 20, forward=2)}, tiny=1)
    other = GroupUse((0, 1), 2, "7", "", {"all_reduce": OpUse(1, 10), "barrier": OpUse(1)}, tiny=2)
    merged = one.merged(other)
    assert merged.ops == {"all_reduce": OpUse(3, 30, forward=2), "barrier": OpUse(1)}
    assert merged.tiny == 3
    assert merged.id == ("0,1", "")


def test_axis_labels_name_the_weakest_evidence() -> None:
    strong, weak = use("tp", (0, 1), desc="mesh_tp"), use("tp", (2, 3))
    topology, _ = resolve([strong, weak], world_size=4)
    assert axis_labels(topology)["tp"].evidence is Evidence.SIGNATURE
