"""Labels by a mesh that the user or the collector states, and what contradicts it.

The dense axes of a mesh multiply to the job. Expert axes do not: experts are spread over ranks that
hold other shards of the dense layers, so that several axes may have one rank set. There the mesh
decides nothing, and the group's description or its collectives do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from analyzer import catalog
from analyzer.groups import GroupUse
from analyzer.mesh import Mesh
from analyzer.model import WORLD_AXIS, AxisLabel, Evidence
from analyzer.signature import (
    FORWARD_SHARE,
    SIGNATURE_CONFIDENCE,
    likely_axis,
    returns_parameters,
    signature,
)

EXPERT_AXES = ("ep", "etp", "edp")
DATA_AXES = frozenset({"dp_replicate", "dp_shard"})
DESC_CONFIDENCE = 0.95
DISPUTED_CONFIDENCE = 0.5  # of a stated mesh that other evidence contradicts
RANGED_SHARE = 0.9  # of a group's bulk collectives in another axis's ranges: a contradiction
FOREIGN_SHARE = 0.5  # of them of kinds that no strategy runs on the axis: a contradiction
FEW_CALLS = 4  # bulk collectives below which their kinds contradict nothing

Labels = dict[tuple[str, str], AxisLabel]


@dataclass(frozen=True, slots=True)
class StatedMesh:
    """A stated mesh read against the size of the job.

    Attributes:
        stated: as given, outermost first.
        dense: the axes that multiply to the job, with the arithmetic of its ranks; none where only
            expert axes are stated.
        doubt: why the mesh cannot be the job's, empty where it can.
    """

    stated: Mapping[str, int]
    dense: Mesh
    doubt: str

    @property
    def spelled(self) -> str:
        """As the user writes it."""
        return ",".join(f"{axis}={degree}" for axis, degree in self.stated.items())

    def experts_fit(self, axis: str, ranks: Sequence[int]) -> bool:
        """Whether a group of an expert axis may have these ranks: the degree, in one stage."""
        stages = {self.dense.coordinates(rank).get("pp") for rank in ranks}
        degrees = [self.stated.get(part) for part in axis.split("+")]
        known = [degree for degree in degrees if degree is not None]
        return len(stages) == 1 and (len(known) < len(degrees) or prod(known) == len(ranks))


def read_stated(stated: Mapping[str, int], world_size: int | None) -> StatedMesh:
    """Which axes of a stated mesh multiply to the job, and whether they do."""
    dense = Mesh({axis: d for axis, d in stated.items() if axis not in EXPERT_AXES})
    experts = prod(d for axis, d in stated.items() if axis in EXPERT_AXES)
    spelled = StatedMesh(stated, dense, "").spelled
    if not dense.axes:
        return StatedMesh(stated, dense, "")
    stage = dense.size // dense.axes.get("pp", 1)
    doubt = ""
    if world_size and dense.size != world_size:
        aside = " (expert axes do not count)" if experts > 1 else ""
        doubt = f"the stated mesh {spelled} has {dense.size} ranks{aside}, the job {world_size}"
    elif stage % experts:
        doubt = (
            f"the stated mesh {spelled} spreads experts over {experts} ranks, which do not divide "
            f"the {stage} of a pipeline stage"
        )
    return StatedMesh(stated, dense, doubt)


def by_mesh(groups: Sequence[GroupUse], mesh: StatedMesh) -> tuple[Labels, list[str]]:
    """Labels of the groups that a stated mesh decides, and what disagrees with it.

    A group whose ranks are those of a dense axis is that axis, unless it is one of experts: then
    its description or its collectives say so, and label it. What contradicts the mesh leaves it the
    word, with less confidence, and is returned.
    """
    labels: Labels = {}
    conflicts = [mesh.doubt] if mesh.doubt else []
    for group in groups:
        told = described(group)
        placed = mesh.dense.axis_of(group.ranks)
        experts = _experts(group, mesh, told, placed)
        fits = (
            placed is not None if experts is None else mesh.experts_fit(experts.axis, group.ranks)
        )
        if not fits and len(group.ranks) > 1 and mesh.dense.axes:
            conflicts.append(
                f"group {group.desc or group.name}: ranks {short(group.ranks)} are no group of "
                f"the stated mesh {mesh.spelled}"
            )
        if experts is not None:
            labels[group.id] = experts
        elif placed is not None:
            against = _against(group, told, placed)
            if against:
                conflicts.append(f"group {group.key}: the stated mesh says {placed}, {against}")
            confidence = DISPUTED_CONFIDENCE if against or mesh.doubt else 1.0
            why = f"ranks {short(group.ranks)} on the stated mesh"
            labels[group.id] = AxisLabel(placed, Evidence.MESH, confidence, group.size, why)
    return labels, conflicts


def _against(group: GroupUse, told: AxisLabel | None, placed: str) -> str:
    """What else is known of a group against its place on the mesh, empty where nothing is."""
    if told is None:
        return ranges_against(group, placed) or kinds_against(group, placed)
    if not compatible(placed, told.axis):
        return f"its description {group.desc!r} says {told.axis}"
    return ranges_against(group, placed)


def _experts(
    group: GroupUse, mesh: StatedMesh, told: AxisLabel | None, placed: str | None
) -> AxisLabel | None:
    """The label of a group of experts, None where it is none."""
    if told is not None:
        return told if set(told.axis.split("+")) <= set(EXPERT_AXES) else None
    axis = likely_axis(group)
    if not looks_like_experts(group, placed) or not mesh.experts_fit(axis, group.ranks):
        return None
    if placed is None and axis in mesh.stated:
        why = f"ranks {short(group.ranks)} fit {axis} of the stated mesh alone"
        confidence = DISPUTED_CONFIDENCE if mesh.doubt else 1.0
        return AxisLabel(axis, Evidence.MESH, confidence, group.size, why)
    why = f"looks like {axis}: {', '.join(sorted(group.ops))}, over the ranks of the dense axes"
    confidence = min(signature(group)[axis], SIGNATURE_CONFIDENCE)
    return AxisLabel(axis, Evidence.SIGNATURE, round(confidence, 2), group.size, why)


def looks_like_experts(group: GroupUse, other: str | None) -> bool:
    """The collectives are those of experts: ranges say so, or ``other`` would run few of them."""
    axis = likely_axis(group)
    if axis not in EXPERT_AXES:
        return False
    return axis in group.ranged or other is None or _foreign(group, other)


def described(group: GroupUse) -> AxisLabel | None:
    """The label a group's description gives it, None where that says nothing."""
    axis = catalog.described_axis(group.desc)
    if axis is None:
        return None
    if axis == "dp":
        sharded = bool({"all_gather", "reduce_scatter"} & set(group.ops))
        axis = "dp_shard" if sharded or returns_parameters(group) else "dp_replicate"
    why = f"process group description {group.desc!r}"
    return AxisLabel(axis, Evidence.GROUP_DESC, DESC_CONFIDENCE, group.size or None, why)


# ---- what disagrees -----------------------------------------------------------------------------


def compatible(one: str, other: str) -> bool:
    """Axes agree when one of them is the other, part of it, or says only `several axes`."""
    if WORLD_AXIS in (one, other):
        return True
    return bool(set(one.split("+")) & set(other.split("+")))


def ranges_against(group: GroupUse, axis: str) -> str:
    """Nearly all collectives of a group were issued from another axis's ranges."""
    named = {hinted: n for hinted, n in group.hints.items() if hinted in group.ranged}
    if not named or not group.bulk:
        return ""
    other, count = max(named.items(), key=lambda item: item[1])
    replicated = {other, axis} == DATA_AXES  # HSDP: FSDP ranges do both
    if count < RANGED_SHARE * group.bulk or compatible(axis, other) or replicated:
        return ""
    return f"the ranges around its collectives say {other}"


def kinds_against(group: GroupUse, axis: str) -> str:
    """Kinds and phases of a group's collectives that the axis cannot have."""
    if axis == WORLD_AXIS or group.bulk < FEW_CALLS:
        return ""
    kinds = ", ".join(sorted(group.ops))
    if _foreign(group, axis):
        return f"but its collectives are not of that axis: {kinds}"
    look = _phased_look(group, axis)
    if look and not compatible(axis, look):
        return f"but its collectives look like {look}: {kinds}"
    return ""


def _foreign(group: GroupUse, axis: str) -> bool:
    """Most collectives are of kinds that no strategy runs on the axis."""
    parts = set(axis.split("+"))
    rows = [row for s in catalog.strategies().values() for row in s.axes if row.axis in parts]
    if not rows:
        return axis == WORLD_AXIS
    usual = {op for row in rows for op in row.ops}
    strange = sum(use.count for op, use in group.ops.items() if op not in usual)
    return strange > FOREIGN_SHARE * group.bulk


def _phased_look(group: GroupUse, axis: str) -> str:
    """``tp`` or a data axis, where the phases of the reductions rule out that it is ``axis``.

    Tensor parallelism reduces activations in forward; gradients are never reduced there.
    """
    uses = [group.ops[op] for op in ("all_reduce", "reduce_scatter") if op in group.ops]
    count, forward = sum(use.count for use in uses), sum(use.forward for use in uses)
    if not group.phases_known or count < FEW_CALLS:
        return ""
    if set(axis.split("+")) <= DATA_AXES and forward > FORWARD_SHARE * count:
        return "tp"
    if axis == "tp" and not forward:
        return likely_axis(group)
    return ""


def short(ranks: Sequence[int]) -> str:
    """A rank list, cut behind eight."""
    shown = ", ".join(map(str, ranks[:8]))
    return f"[{shown}]" if len(ranks) <= 8 else f"[{shown}, ... {len(ranks)} ranks]"
