"""Strategies priced on a machine: every row of traffic with its group, its times and its cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from analyzer.roofline.collectives import P2P
from analyzer.roofline.expected import CollectiveCall, CollectiveTime, LinkModel, expected_time
from analyzer.roofline.exposure import Cost, Traffic


@dataclass(frozen=True, slots=True)
class Priced:
    """One row of traffic and the time of one of its calls."""

    traffic: Traffic
    time: CollectiveTime

    def cost(self, *, typical: bool, matmul_s: float = 0.0) -> Cost:
        """What ``exposure.exposed_minimum_s`` takes; the level is the link.

        Args:
            typical: the usual time, else the floor.
            matmul_s: matmul beside one call, for decomposed traffic.
        """
        nanoseconds = self.time.t_typ_ns if typical else self.time.t_spec_ns
        row = self.traffic
        return Cost(row.mark, nanoseconds * 1e-9, row.calls, self.time.level, matmul_s, row.ranks)


def group_ranks(mesh: Mapping[str, int], axis: str) -> tuple[int, ...]:
    """Global ranks of the group of rank 0 on a mesh axis.

    Formula:
        LINK-GROUP
        0, q, 2q, ... with q the product of the degrees of all axes inside

    Args:
        mesh: axis -> degree, outermost first. Expert parallelism is folded over the data axes: its
            groups lie directly outside tensor parallelism.
        axis: name; ``ep`` need not be part of the product.

    Returns:
        as many ranks as the axis has.
    Source: row-major ranks, as torch.distributed.DeviceMesh numbers them.
    """
    degree = mesh.get(axis, 1)
    if axis == "ep":
        stride = mesh.get("tp", 1)
    else:
        names = [name for name in mesh if name != "ep"]
        inside = names[names.index(axis) + 1 :] if axis in names else []
        stride = 1
        for name in inside:
            stride *= mesh[name]
    return tuple(range(0, degree * stride, stride))


def price(rows: Iterable[Traffic], mesh: Mapping[str, int], link: LinkModel) -> list[Priced]:
    """Expected times of traffic on a mesh whose ranks fill nodes in order.

    Formula:
        LINK-PRICE
        COLL-EXPECTED of each row on LINK-GROUP of its axis; a message goes to the next rank

    Args:
        rows: traffic of ``strategies.traffic``.
        mesh: axis -> degree, outermost first.
        link: the network.

    Returns:
        the rows with the time of one call.
    Source: this page.
    """
    priced = []
    for row in rows:
        ranks = group_ranks(mesh, row.axis)
        ranks = ranks[:2] if row.op in P2P else ranks
        call = CollectiveCall(row.op, row.size_bytes, ranks)
        priced.append(Priced(row, expected_time(call, link)))
    return priced
