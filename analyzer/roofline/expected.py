"""Expected time of one collective: the floor of the datasheet, and what is typically reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from analyzer.errors import UsageError
from analyzer.roofline import collectives as c
from analyzer.roofline import torus
from analyzer.roofline.achievable import (
    COPY_FRACTION,
    IN_NETWORK_GAIN,
    Curve,
    measured_curve,
)
from analyzer.roofline.hierarchy import Level, hierarchical_all_to_all_s, tree_gather_s
from analyzer.roofline.nccl import BASE_US, HOP_US, Fabric, Protocol, ring_latency_s

HOP_S = HOP_US["ring", Fabric.NVLINK][Protocol.LL] * 1e-6
NET_HOP_S = HOP_US["ring", Fabric.NET][Protocol.LL] * 1e-6
LAUNCH_S = BASE_US["ring"][Protocol.LL] * 1e-6
GATHERS = frozenset({"all_gather", "reduce_scatter"})
ALL_TO_ALLS = frozenset({"all_to_all", "all_to_allv", "dispatch", "combine"})


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective: canonical op, size S by the nccl-tests convention, global ranks."""

    op: str
    size_bytes: float
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SwitchedLink:
    """GPUs behind switches: a node (or NVLink domain), and one network port a GPU between nodes."""

    node_size: int
    node_bytes_per_s: float  # egress of a GPU inside its node, one direction
    nic_bytes_per_s: float | None  # egress of a GPU into the network; None: unknown
    in_network: bool = False  # the switch can add (NVLS, SHARP)
    inside: Curve = field(default_factory=lambda: measured_curve(across_nodes=False))
    between: Curve = field(default_factory=lambda: measured_curve(across_nodes=True))


@dataclass(frozen=True, slots=True)
class TorusLink:
    """Axes of a torus of chips that the group spans; the axis rate counts both its links."""

    axis_sizes: tuple[int, ...]
    axis_bytes_per_s: float
    wraps: bool = True
    hop_s: float = torus.HOP_S
    fraction: float = 0.9  # of the datasheet: 540 usable of 600 GB/s on v5p (scaling-book)


LinkModel = SwitchedLink | TorusLink


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """Times of one collective; ``t_spec_ns`` is a floor, ``t_typ_ns`` what is usually reached."""

    t_spec_ns: int
    t_typ_ns: int
    formula_id: str
    level: str  # node, network, torus or none
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """How a group lies on nodes."""

    nodes: int
    per_node: int  # most members on one node
    even: bool


@dataclass(frozen=True, slots=True)
class _Parts:
    """Bandwidth terms at spec rate, hops of the floor, and the formula they came from."""

    inside_s: float
    between_s: float
    hops_s: float
    formula_id: str


def placement(ranks: Sequence[int], node_size: int) -> Placement:
    """How a group of global ranks lies on nodes of consecutive ranks.

    Formula:
        LINK-PLACEMENT
        node of a rank = floor(rank / g); k = number of distinct nodes

    Args:
        ranks: global ranks.
        node_size: g, GPUs a node.

    Returns:
        nodes, most members on one, and whether all hold as many.
    Source: ranks are numbered node by node by every common launcher.
    """
    counts = Counter(rank // node_size for rank in ranks)
    return Placement(len(counts), max(counts.values()), len(set(counts.values())) == 1)


def expected_time(call: CollectiveCall, link: LinkModel) -> CollectiveTime:
    """Floor and typical time of a collective on a link.

    Formula:
        COLL-EXPECTED
        t_spec = least hops + max over levels of bytes/W
        t_typ = NCCL ring latency + max over levels of bytes/(W·eta(S))

    Args:
        call: operation, size and ranks.
        link: the network; a group on one node is priced on the node's links, any other on both.

    Returns:
        both times, the formula of the floor, and what was assumed.

    Raises:
        UsageError: the group spans nodes and the rate between them is not known, or a torus link
            does not fit the group.
    Source: alpha-beta models of this chapter; eta from public all-reduce benchmarks.
    Valid: an idle network. A measured duration compares only after the wait for the last peer was
        taken off.
    """
    size = len(call.ranks)
    if size < 2:
        return CollectiveTime(0, 0, "COLL-EXPECTED", "none", ("a group of one moves nothing",))
    if isinstance(link, TorusLink):
        return _on_torus(call, link)
    place = placement(call.ranks, link.node_size)
    assumptions = [] if place.even else ["members are spread unevenly over nodes: taken as even"]
    parts = _parts_in_node(call, link) if place.nodes == 1 else _parts_between(call, link, place)
    inside, between = _fractions(call, link, place)
    spec, formula_id = _floor(call, link, place, parts)
    typical = max(parts.inside_s / inside, parts.between_s / between)
    typical += _usual_latency_s(call.op, size, place)
    if call.op == "all_reduce" and not link.in_network:
        assumptions.append("no in-network reduction (NVLS, SHARP)")
    if place.nodes > 1:
        assumptions.append("one network port a GPU, rail-aligned")
    assumptions.append(f"{inside if place.nodes == 1 else between:.2f} of the link rate is typical")
    return CollectiveTime(
        round(spec * 1e9),
        max(round(typical * 1e9), round(spec * 1e9)),
        formula_id,
        "node" if place.nodes == 1 else "network",
        tuple(assumptions),
    )


def _floor(
    call: CollectiveCall, link: SwitchedLink, place: Placement, parts: _Parts
) -> tuple[float, str]:
    """Least time and its formula: small all-reduces inside a node are fastest in one shot."""
    least = parts.hops_s + max(parts.inside_s, parts.between_s)
    if call.op == "all_reduce" and place.nodes == 1 and not link.in_network:
        n, rate = len(call.ranks), link.node_bytes_per_s
        one = c.one_shot_all_reduce_s(call.size_bytes, n, rate, HOP_S)
        return min((least, parts.formula_id), (one, "COLL-ONESHOT-AR"))
    return least, parts.formula_id


def _parts_in_node(call: CollectiveCall, link: SwitchedLink) -> _Parts:
    op, size, n, rate = call.op, call.size_bytes, len(call.ranks), link.node_bytes_per_s
    if op == "all_reduce":
        if link.in_network:
            return _Parts(size / rate, 0.0, 2 * HOP_S, "COLL-NVLS-AR")
        return _Parts(c.two_shot_all_reduce_s(size, n, rate), 0.0, 2 * HOP_S, "COLL-TWOSHOT-AR")
    if op in GATHERS:
        return _Parts(c.direct_gather_s(size, n, rate), 0.0, HOP_S, "COLL-DIRECT-AG")
    if op in ALL_TO_ALLS or op in c.SCATTERED:
        return _Parts(c.direct_all_to_all_s(size, n, rate), 0.0, HOP_S, "COLL-A2A")
    bytes_ = size if op in c.P2P | c.ROOTED else 0.0
    return _Parts(c.point_to_point_s(bytes_, rate), 0.0, HOP_S, "COLL-P2P")


def _parts_between(call: CollectiveCall, link: SwitchedLink, place: Placement) -> _Parts:
    if link.nic_bytes_per_s is None:
        raise UsageError(
            f"{call.op} over {place.nodes} nodes: the rate between nodes is not known",
            hint="state the network bandwidth of a device",
        )
    op, size, d, k = call.op, call.size_bytes, place.per_node, place.nodes
    inside, port = link.node_bytes_per_s, link.nic_bytes_per_s
    hops = NET_HOP_S + (HOP_S if d > 1 else 0.0)
    if op in GATHERS or op == "all_reduce":
        rounds = 2 if op == "all_reduce" else 1
        within = rounds * tree_gather_s(size, [Level(d, inside)])
        across = rounds * tree_gather_s(size, [Level(k, d * port)])
        return _Parts(within, across, rounds * hops, "COLL-TREE-AG")
    if op in ALL_TO_ALLS:
        both = hierarchical_all_to_all_s(size, d, k, inside, port)
        return _Parts(0.0, both, hops, "COLL-HIER-A2A")
    if op in c.P2P:
        return _Parts(0.0, c.point_to_point_s(size, port), NET_HOP_S, "COLL-P2P")
    bytes_ = size if op in c.ROOTED | c.SCATTERED else 0.0
    return _Parts(bytes_ / inside, bytes_ / (d * port), hops, "COLL-P2P")


def _fractions(call: CollectiveCall, link: SwitchedLink, place: Placement) -> tuple[float, float]:
    """Usual share of the rate inside the node and between nodes.

    In-network reduction is seen at 1.31 of the ring, not at the (n-1)/n·2 its floor promises.
    """
    inside = link.inside.at(call.size_bytes)
    if call.op in c.P2P:
        inside = COPY_FRACTION
    elif call.op == "all_reduce" and link.in_network and place.nodes == 1:
        n = len(call.ranks)
        inside *= IN_NETWORK_GAIN / (2 * (n - 1) / n)
    return inside, link.between.at(call.size_bytes)


def _usual_latency_s(op: str, ranks: int, place: Placement) -> float:
    if op in GATHERS or op == "all_reduce":
        return ring_latency_s(op, ranks, place.nodes, Protocol.LL)
    return LAUNCH_S + (NET_HOP_S if place.nodes > 1 else HOP_S)


def _on_torus(call: CollectiveCall, link: TorusLink) -> CollectiveTime:
    chips = 1
    for size in link.axis_sizes:
        chips *= size
    if chips != len(call.ranks):
        raise UsageError(
            f"{call.op} over {len(call.ranks)} ranks does not fill torus axes "
            f"{'x'.join(map(str, link.axis_sizes))}"
        )
    if (not link.wraps or call.op in ALL_TO_ALLS) and len(link.axis_sizes) > 1:
        raise UsageError(
            f"{call.op}: several torus axes at once need wrap-around and no all-to-all"
        )
    spec, formula_id = _torus_s(call, link, 1.0)
    typical, _ = _torus_s(call, link, link.fraction)
    shape = "ring" if link.wraps else "line (no wrap-around)"
    return CollectiveTime(
        round(spec * 1e9),
        round(typical * 1e9),
        formula_id,
        "torus",
        (f"each axis is a {shape}", f"{link.fraction:.2f} of the link rate is typical"),
    )


def _torus_s(call: CollectiveCall, link: TorusLink, fraction: float) -> tuple[float, str]:
    rate, axes = link.axis_bytes_per_s * fraction, link.axis_sizes
    if call.op in ALL_TO_ALLS:
        # S is one rank's buffer, the formula wants the array over all ranks
        whole = call.size_bytes * len(call.ranks)
        time = torus.torus_all_to_all_s(whole, axes[0], rate, wraps=link.wraps, hop_s=link.hop_s)
        return time, "COLL-TORUS-A2A"
    if call.op in c.P2P:
        return c.point_to_point_s(call.size_bytes, rate / 2, link.hop_s), "COLL-P2P"
    rounds = 2 if call.op == "all_reduce" else 1
    if link.wraps:
        time = torus.torus_gather_s(call.size_bytes, axes, rate, link.hop_s)
        return rounds * time, "COLL-TORUS-AG"
    return rounds * torus.line_gather_s(call.size_bytes, axes[0], rate, link.hop_s), "COLL-LINE-AG"
