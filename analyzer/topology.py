"""Which parallel axis a process group belongs to, and the device mesh behind all groups.

A group is known by its rank set: names are counters of each process and repeat with other ranks.
Evidence is used in the order of definitions 1: a stated mesh, the group's description, a mesh that
explains all rank sets, the collectives' signature. Where two of them disagree, the stronger one
labels and the disagreement is returned as a conflict.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from analyzer import catalog
from analyzer.groups import GroupUse
from analyzer.mesh import Mesh
from analyzer.model import UNKNOWN_AXIS, WORLD_AXIS, AxisLabel, Evidence, axis_sort_key
from analyzer.signature import SIGNATURE_CONFIDENCE, Family, assign, likely_axis
from analyzer.stated import (
    EXPERT_AXES,
    by_mesh,
    described,
    looks_like_experts,
    ranges_against,
    read_stated,
    short,
)

BASE_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")  # those that multiply to the job
NAME_CONFIDENCE = 0.8
EXPLAINED_CONFIDENCE = 0.85
RARE_SHARE = 0.2  # of the groups of one shape: below, a different look is noise


@dataclass(frozen=True, slots=True)
class Topology:
    """The axes of a job and the label of every process group.

    Attributes:
        mesh: axis -> degree (None where unknown), outermost first.
        source: where the mesh comes from, in words.
        world_size: ranks of the job, None where unknown.
        labels: (group key, description) -> axis.
    """

    mesh: Mapping[str, int | None]
    source: str
    world_size: int | None
    labels: Mapping[tuple[str, str], AxisLabel]

    def shared_with_world(self, key: str, desc: str) -> bool:
        """The group holds all ranks and nothing but its use tells which axis it is."""
        label = self.labels[key, desc]
        everyone = self.world_size is not None and label.degree == self.world_size
        return everyone and catalog.described_axis(desc) is None


def resolve(
    uses: Iterable[GroupUse],
    *,
    world_size: int | None,
    stated: Mapping[str, int] | None = None,
    expected: Mapping[str, int | None] | None = None,
) -> tuple[Topology, tuple[str, ...]]:
    """Label every group; returns the topology and the conflicts between its sources.

    Args:
        uses: groups as each rank saw them; equal ids are merged.
        world_size: ranks of the job, None where no trace tells.
        stated: the mesh the user or the collector states, outermost first.
        expected: axes the user expects, with degrees where given: they decide between readings of
            the rank sets, never against a description.
    """
    groups = _merged(uses)
    conflicts: list[str] = []
    labels = {group.id: _implied(group) for group in groups if group.implied}
    if stated:
        on_mesh, conflicts = by_mesh(groups, read_stated(stated, world_size))
        labels |= on_mesh
    for group in groups:
        told = described(group)
        if told is not None and group.id not in labels:
            labels[group.id] = told
    for group in groups:
        label = labels.get(group.id)
        if label is not None and label.evidence is Evidence.GROUP_DESC:
            against = ranges_against(group, label.axis)
            if against:
                said = f"{label.why} says {label.axis}"
                conflicts.append(f"group {group.key}: {said}, {against}")
    labels = _by_rank_sets(groups, labels, world_size, expected or {})
    mesh, source = _mesh(groups, labels, stated)
    return Topology(mesh, source, world_size, labels), tuple(dict.fromkeys(conflicts))


def _merged(uses: Iterable[GroupUse]) -> list[GroupUse]:
    table: dict[tuple[str, str], GroupUse] = {}
    for use in uses:
        table[use.id] = table[use.id].merged(use) if use.id in table else use
    return list(table.values())


def _implied(group: GroupUse) -> AxisLabel:
    size = group.size or None
    why = "only this axis uses kernels of that name"
    return AxisLabel(group.implied, Evidence.KERNEL_NAME, NAME_CONFIDENCE, size, why)


# ---- rank sets and signature --------------------------------------------------------------------


def _by_rank_sets(
    groups: Sequence[GroupUse],
    labels: Mapping[tuple[str, str], AxisLabel],
    world_size: int | None,
    expected: Mapping[str, int | None],
) -> dict[tuple[str, str], AxisLabel]:
    """Complete the labels with those of groups that neither a mesh nor a description explains.

    Equal rank sets share an axis, unless one is of experts and the other is not; what is left is
    read by signature, one axis per shape of groups. A group of all ranks comes last: where the
    other axes form the whole job it is none of them.
    """
    made = dict(labels)
    known: dict[str, list[AxisLabel]] = defaultdict(list)
    for (key, _), label in sorted(labels.items(), key=lambda item: item[1].axis in EXPERT_AXES):
        if label.axis != WORLD_AXIS:
            known[key].append(label)
    rest: list[GroupUse] = []
    for group in groups:
        there = known[group.key] if group.ranks else []
        same = next((label for label in there if not _other_layers(group, label.axis)), None)
        if group.id not in made and same is not None:
            made[group.id] = _same_ranks(group, same)
        elif group.id not in made:
            rest.append(group)
    shapes = _shapes(rest)
    everyone = [s for s, members in shapes.items() if world_size and members[0].size == world_size]
    for chosen in ([s for s in shapes if s not in everyone], everyone):
        mesh = _regular_mesh(groups, made, world_size)
        families = {shape: _family(shapes[shape]) for shape in chosen}
        if chosen is everyone and mesh:
            families = {s: f for s, f in families.items() if looks_like_experts(f.use, WORLD_AXIS)}
        axes = assign(families, expected, _taken(groups, made))
        for shape in chosen:
            for group in shapes[shape]:
                made[group.id] = axes.get(shape) or _unsigned(group, world_size)
    return _on_mesh(groups, made, _regular_mesh(groups, made, world_size))


def _taken(
    groups: Sequence[GroupUse], labels: Mapping[tuple[str, str], AxisLabel]
) -> dict[str, list[Family]]:
    taken: dict[str, list[Family]] = defaultdict(list)
    for group in groups:
        if group.id in labels:
            taken[labels[group.id].axis].append(_family([group]))
    return taken


def _other_layers(group: GroupUse, axis: str) -> bool:
    """Expert and dense layers may have one rank set: the group does not look like the axis's."""
    if axis not in EXPERT_AXES:
        return looks_like_experts(group, axis)
    return likely_axis(group) not in ("", axis)


def _same_ranks(group: GroupUse, same: AxisLabel) -> AxisLabel:
    why = f"same ranks as a group labelled {same.axis}"
    confidence = min(same.confidence, EXPLAINED_CONFIDENCE)
    return AxisLabel(same.axis, Evidence.RANK_SETS, confidence, group.size or None, why)


def _regular_mesh(
    groups: Sequence[GroupUse],
    labels: Mapping[tuple[str, str], AxisLabel],
    world_size: int | None,
) -> Mesh | None:
    """The mesh of several axes that explains every labelled rank set, if there is one."""
    degrees: dict[str, int] = {}
    spacing: dict[str, int] = {}
    for group in groups:
        label = labels.get(group.id)
        if label is not None and len(group.ranks) > 1 and label.axis in BASE_AXES:
            degrees[label.axis] = len(group.ranks)
            spacing[label.axis] = group.ranks[1] - group.ranks[0]
    mesh = Mesh({axis: degrees[axis] for axis in sorted(degrees, key=lambda a: -spacing[a])})
    if len(degrees) < 2 or mesh.size != world_size:
        return None
    fits = all(
        mesh.axis_of(group.ranks) == labels[group.id].axis
        for group in groups
        if group.id in labels and group.ranks and labels[group.id].axis in degrees
    )
    return mesh if fits else None


def _on_mesh(
    groups: Sequence[GroupUse], labels: dict[tuple[str, str], AxisLabel], mesh: Mesh | None
) -> dict[tuple[str, str], AxisLabel]:
    """Groups still unexplained, or described as spanning several axes, by their place on the mesh.

    Rank sets that are no axis of the mesh may still be those of another labelled group.
    """
    made = dict(labels)
    settled = (WORLD_AXIS, UNKNOWN_AXIS)
    by_ranks = {
        key: label.axis
        for (key, _), label in labels.items()
        if label.axis not in (*settled, *EXPERT_AXES)  # experts share the ranks of dense axes
    }
    for group in groups:
        label = labels[group.id]
        if label.axis not in settled or not group.ranks:
            continue
        axis = by_ranks.get(group.key) or (mesh.axis_of(group.ranks) if mesh else None)
        if axis is not None and axis != label.axis:
            why = f"ranks {short(group.ranks)} are {axis} on the mesh of the other groups"
            made[group.id] = AxisLabel(axis, Evidence.RANK_SETS, 0.8, label.degree, why)
    return made


def _shapes(groups: Sequence[GroupUse]) -> dict[Hashable, list[GroupUse]]:
    """Groups of one axis are equally large and, on a regular mesh, equally spaced.

    Where groups of one shape look like different axes (ranks are permuted), each look is a shape
    of its own; a look that only a few have, or none at all, goes with the majority.
    """
    spaced: dict[Hashable, list[GroupUse]] = defaultdict(list)
    for group in groups:
        offsets = tuple(rank - group.ranks[0] for rank in group.ranks)
        spaced[offsets or group.id].append(group)
    shapes: dict[Hashable, list[GroupUse]] = defaultdict(list)
    for spacing, members in spaced.items():
        looks = [likely_axis(member) for member in members]
        counts = Counter(look for look in looks if look)
        usual = max(counts, key=lambda look: (counts[look], look), default="")
        for member, look in zip(members, looks, strict=True):
            rare = counts[look] < RARE_SHARE * len(members)
            shapes[spacing, usual if rare else look].append(member)
    return shapes


def _family(members: Sequence[GroupUse]) -> Family:
    use = reduce(GroupUse.merged, members)
    return Family(use, tuple(frozenset(member.ranks) for member in members if member.ranks))


def _unsigned(family: GroupUse, world_size: int | None) -> AxisLabel:
    if world_size and family.size == world_size:
        why = "all ranks, and none of the axes"
        return AxisLabel(WORLD_AXIS, Evidence.RANK_SETS, SIGNATURE_CONFIDENCE, family.size, why)
    why = "no mesh, description or signature explains it"
    return AxisLabel(UNKNOWN_AXIS, Evidence.NONE, 0.0, family.size or None, why)


# ---- the mesh as a whole ------------------------------------------------------------------------


def _mesh(
    groups: Sequence[GroupUse],
    labels: Mapping[tuple[str, str], AxisLabel],
    stated: Mapping[str, int] | None,
) -> tuple[dict[str, int | None], str]:
    """Degrees of the labelled axes by their spacing; joined axes only where their parts are not."""
    if stated:
        return dict(stated), "stated mesh"
    degrees: dict[str, int | None] = {}
    spacing: dict[str, int] = {}
    evidence: list[Evidence] = []
    for group in groups:
        label = labels[group.id]
        if label.axis in (WORLD_AXIS, UNKNOWN_AXIS):
            continue
        known = degrees.get(label.axis)
        degrees[label.axis] = max(known or 0, group.size) or None
        if len(group.ranks) > 1:
            spacing[label.axis] = group.ranks[1] - group.ranks[0]
        evidence.append(label.evidence)
    ordered = sorted(degrees, key=lambda axis: (-spacing.get(axis, 0), axis_sort_key(axis)))
    words = {
        Evidence.GROUP_DESC: "process group descriptions",
        Evidence.RANK_SETS: "rank sets of the groups",
        Evidence.RANGE: "ranges around the collectives",
        Evidence.SIGNATURE: "signature of the collectives",
        Evidence.KERNEL_NAME: "kernel names",
    }
    sources = [words[kind] for kind in words if kind in evidence]
    shown = [
        axis for axis in ordered if "+" not in axis or not set(axis.split("+")) <= set(degrees)
    ]
    return {axis: degrees[axis] for axis in shown}, ", ".join(sources)


def axis_labels(topology: Topology) -> dict[str, AxisLabel]:
    """Per axis the label with the weakest evidence behind it, axes in report order."""
    weakest: dict[str, AxisLabel] = {}
    for label in topology.labels.values():
        known = weakest.get(label.axis)
        if known is None or label.confidence < known.confidence:
            weakest[label.axis] = label
    return dict(sorted(weakest.items(), key=lambda item: axis_sort_key(item[0])))
