"""Reading a group's axis from what its collectives look like: kinds, phases and surroundings."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from analyzer import catalog
from analyzer.groups import ALL_TO_ALL_OPS, P2P_OPS, GroupUse, OpUse
from analyzer.model import AxisLabel, Evidence, axis_sort_key

NOTABLE_SHARE = 0.05  # of a group's bulk collectives: below, it does not characterise the group
PLACED_SHARE = 0.15  # the same for collectives that only stand where an axis puts them
FORWARD_SHARE = 0.25  # of an op's bulk calls: above, it is not a gradient's collective
PARAMETER_SHARE = 0.1  # of the gradients' bytes: below, what is sent is no parameters
SIGNATURE_CONFIDENCE = 0.6
HINT_CONFIDENCE = 0.7


def signature(group: GroupUse) -> dict[str, float]:
    """How well each axis explains what was seen on a group, 0..1; empty when nothing does.

    The surroundings of the collectives (FSDP, DDP or pipeline ranges, DTensor redistribution,
    attention, experts) count most; then kinds and phases: point-to-point is a pipeline,
    all-to-all is expert dispatch, gathers and scatters of gradients-only phases are sharded data
    parallelism, all-reduces in forward are tensor parallelism, in backward data parallelism
    (sharded where parameters come back with the optimizer).
    """
    bulk = group.bulk
    if not bulk:
        return {}
    scores = {
        axis: 0.65 + 0.3 * count / bulk
        for axis, count in group.hints.items()
        if count > (NOTABLE_SHARE if axis in group.ranged else PLACED_SHARE) * bulk
    }
    for axis, score in _by_kind(group).items():
        scores[axis] = max(scores.get(axis, 0.0), score)
    return scores


def likely_axis(group: GroupUse) -> str:
    """The axis that explains a group best on its own, empty when none does."""
    scores = signature(group)
    return max(scores, key=lambda axis: (scores[axis], axis), default="")


def _by_kind(group: GroupUse) -> dict[str, float]:
    """The part of the signature that only kinds of collectives and their phases tell."""

    def has(*ops: str) -> bool:
        count = sum(group.ops[op].count for op in ops if op in group.ops)
        return count > NOTABLE_SHARE * group.bulk

    def forward(op: str) -> bool:
        use = group.ops[op]
        return use.forward > FORWARD_SHARE * use.count

    known = group.phases_known
    if has(*ALL_TO_ALL_OPS):
        return {"ep": 0.6}
    if has(*P2P_OPS):
        return {"pp": 0.6}
    if has("reduce_scatter"):
        axis = "tp" if known and forward("reduce_scatter") else "dp_shard"
        return {axis: 0.6 if has("all_gather") else 0.45}
    if has("all_reduce") and known:
        if forward("all_reduce"):
            return {"tp": 0.55}
        return {"dp_shard": 0.55} if returns_parameters(group) else {"dp_replicate": 0.55}
    return {}


def returns_parameters(group: GroupUse) -> bool:
    """The optimizer's ranks send each other the parameters they own, beside gradient all-reduces.

    That is ZeRO-1: gathers outside forward, or broadcasts with the optimizer, of the gradients'
    order of size. Gathered losses are smaller, and the broadcasts of buffers are in forward.
    """
    gradients = group.ops.get("all_reduce", OpUse())
    gathers, sent = (group.ops.get(op, OpUse()) for op in ("all_gather", "broadcast"))
    large = PARAMETER_SHARE * gradients.nbytes
    gathered = gathers.count > 0 and gathers.forward <= FORWARD_SHARE * gathers.count
    owners = sent.optimizer > sent.count / 2
    return (gathered and gathers.nbytes >= large) or (owners and sent.nbytes >= large)


@dataclass(frozen=True, slots=True)
class Family:
    """Groups of one shape, read together: their pooled use, and the rank sets where known."""

    use: GroupUse
    rank_sets: tuple[frozenset[int], ...] = ()

    def fits_beside(self, other: Family) -> bool:
        """Both may be groups of one axis: equally large, and no rank in two of them."""
        if not self.rank_sets or not other.rank_sets:
            return True
        disjoint = not frozenset().union(*self.rank_sets) & frozenset().union(*other.rank_sets)
        return disjoint and self.use.size == other.use.size


def assign(
    families: Mapping[Hashable, Family],
    expected: Mapping[str, int | None],
    taken: Mapping[str, Sequence[Family]],
) -> dict[Hashable, AxisLabel]:
    """Give families an axis each, best score first; expectation decides where scores do not.

    Args:
        families: shape -> groups of that shape.
        expected: axes the user expects, with degrees where given.
        taken: axis -> groups that have it already. Weak readings do not put another one there
            that could not be on the same axis.
    """
    scored = [
        (_preference(score, axis, family.use, expected), axis, shape)
        for shape, family in families.items()
        for axis, score in _readings(family.use, expected).items()
    ]
    scored.sort(key=lambda row: (-row[0], axis_sort_key(row[1]), str(row[2])))
    holders = {axis: list(held) for axis, held in taken.items()}
    labels: dict[Hashable, AxisLabel] = {}
    for score, axis, shape in scored:
        family = families[shape]
        fits = all(family.fits_beside(other) for other in holders.get(axis, ()))
        if shape in labels or (not fits and score < HINT_CONFIDENCE):
            continue
        holders.setdefault(axis, []).append(family)
        labels[shape] = _signed(family.use, axis, score)
    return labels


def _readings(family: GroupUse, expected: Mapping[str, int | None]) -> dict[str, float]:
    scores = signature(family)
    for axis in expected:
        if axis not in scores and family.bulk and _plausible(axis, family):
            scores[axis] = 0.3
    return scores


def _plausible(axis: str, family: GroupUse) -> bool:
    """Whether an expected axis could have issued these ops at all."""
    ops = set(family.ops)
    uses = [use for row in catalog.strategies().values() for use in row.axes if use.axis == axis]
    return any(all(ops & needed for needed in use.required) for use in uses)


def _preference(
    score: float, axis: str, family: GroupUse, expected: Mapping[str, int | None]
) -> float:
    """Score with what the user expects and geometry (inner axes are contiguous) as tie-breakers."""
    if axis in expected:
        score += 0.15
        if expected[axis] is not None:
            score += 0.2 if expected[axis] == family.size else -0.3
    elif expected:
        score -= 0.1
    if len(family.ranks) > 1:
        contiguous = family.ranks[-1] - family.ranks[0] == len(family.ranks) - 1
        score += 0.05 if contiguous == (axis in ("tp", "ep", "etp")) else 0.0
    return score


def _signed(family: GroupUse, axis: str, score: float) -> AxisLabel:
    size = family.size or None
    hinted = family.hints.get(axis, 0)
    if axis in family.ranged:
        why = f"{hinted} of {family.bulk} collectives issued inside what only {axis} runs"
        confidence = round(min(score, HINT_CONFIDENCE), 2)
        return AxisLabel(axis, Evidence.RANGE, confidence, size, why)
    kinds = ", ".join(sorted(family.ops))
    why = f"looks like {axis}: {kinds} on {size or 'an unknown number of'} ranks"
    if hinted:
        why += f", {hinted} of {family.bulk} placed as only {axis} places them"
    confidence = round(min(score, SIGNATURE_CONFIDENCE), 2)
    return AxisLabel(axis, Evidence.SIGNATURE, confidence, size, why)
