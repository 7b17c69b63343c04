"""Balance of mixture-of-experts layers: metrics, and what chance alone does to them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

EULER_GAMMA = 0.577
GUMBEL_P99 = 4.60  # -ln(-ln 0.99)


@dataclass(frozen=True, slots=True)
class Routing:
    """One layer's routing: T tokens counted together, E experts, k of them a token, Z ranks."""

    tokens: int
    experts: int
    top_k: int
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """Max over mean of the load when every token picks at random."""

    mean: float
    p99: float


def max_violation(loads: Sequence[float]) -> float:
    """Excess of the most loaded expert or rank.

    Formula:
        MOE-MAXVIO
        (max l - mean l) / mean l

    Args:
        loads: tokens of each expert or rank.

    Returns:
        0 when balanced; imbalance (max over mean) minus one.
    Source: loss-free balancing (arXiv 2408.15664), equation 4.
    """
    mean = sum(loads) / len(loads)
    return max(loads) / mean - 1


def coefficient_of_variation(loads: Sequence[float]) -> float:
    """Spread of the load.

    Formula:
        MOE-CV
        sigma / mean

    Args:
        loads: tokens of each expert or rank.

    Returns:
        ratio; sigma over all of them (not a sample).
    Source: standard.
    """
    mean = sum(loads) / len(loads)
    return math.sqrt(sum((load - mean) ** 2 for load in loads) / len(loads)) / mean


def dropped_share(loads: Sequence[float], capacity_factor: float) -> float:
    """Token copies that exceed the experts' capacity.

    Formula:
        MOE-DROPPED
        sum max(0, l - cap) / sum l, cap = ceil(CF · sum l / E)

    Args:
        loads: token copies of each expert, k·T in all.
        capacity_factor: CF.

    Returns:
        share, 0 to 1.
    Source: GShard (arXiv 2006.16668).
    """
    total = sum(loads)
    capacity = math.ceil(capacity_factor * total / len(loads))
    return sum(max(0.0, load - capacity) for load in loads) / total


def chance_sigma(routing: Routing) -> float:
    """Relative standard deviation of one rank's load under random routing.

    Formula:
        MOE-SIGMA
        expert (Z = E): sqrt((1-k/E)·E/(kT))
        rank of c = E/Z experts: sqrt(T·k·(c/E)(1-c/E)(E-k)/(E-1)) / (Tk/Z)

    Args:
        routing: T, E, k and Z; Z = E gives the figure of an expert.

    Returns:
        sigma over the mean load.
    Source: derived: hypergeometric draws, k distinct experts a token.
    Valid: independent tokens; a real batch is correlated, so that this is a lower reference.
    """
    t, e, k, z = routing.tokens, routing.experts, routing.top_k, routing.ranks
    share = 1 / z
    variance = t * k * share * (1 - share) * (e - k) / (e - 1)
    return math.sqrt(variance) / (t * k / z)


def chance_imbalance(routing: Routing) -> NoiseFloor:
    """Max over mean load that random routing gives.

    Formula:
        MOE-CHANCE
        mean 1 + sigma·(a + 0.577/b), p99 1 + sigma·(a + 4.60/b)
        b = sqrt(2·ln Z), a = b - (ln ln Z + ln 4pi)/(2b), sigma of MOE-SIGMA

    Args:
        routing: T, E, k and Z; Z = E gives the figure of experts.

    Returns:
        mean and 99th percentile; p99 is above the Monte Carlo value by up to 2 %.
    Source: derived: largest of Z normal variables (Gumbel limit).
    Valid: at least 8 groups and some 50 tokens each.
    """
    sigma, groups = chance_sigma(routing), routing.ranks
    b = math.sqrt(2 * math.log(groups))
    a = b - (math.log(math.log(groups)) + math.log(4 * math.pi)) / (2 * b)
    return NoiseFloor(1 + sigma * (a + EULER_GAMMA / b), 1 + sigma * (a + GUMBEL_P99 / b))


def chance_imbalance_sampled(routing: Routing, trials: int = 200, seed: int = 0) -> NoiseFloor:
    """MOE-CHANCE by drawing the routing: for few groups or few tokens.

    Formula:
        MOE-CHANCE-SAMPLED
        mean and 99th percentile of max over mean in drawn batches

    Args:
        routing: T, E, k and Z.
        trials: batches drawn; their cost is trials·T·k draws.
        seed: of the generator: same seed, same answer.

    Returns:
        mean and 99th percentile (nearest rank).
    Source: Monte Carlo.
    """
    draw = random.Random(seed)  # noqa: S311 - statistics, not security
    per_rank, experts = routing.experts // routing.ranks, range(routing.experts)
    mean_load = routing.tokens * routing.top_k / routing.ranks
    seen = []
    for _ in range(trials):
        loads = [0] * routing.ranks
        for _ in range(routing.tokens):
            for expert in draw.sample(experts, routing.top_k):
                loads[expert // per_rank] += 1
        seen.append(max(loads) / mean_load)
    seen.sort()
    return NoiseFloor(sum(seen) / trials, seen[math.ceil(0.99 * trials) - 1])


def chance_drop_share(routing: Routing, capacity_factor: float) -> float:
    """Token copies dropped under random routing.

    Formula:
        MOE-CHANCE-DROP
        sigma·[phi(z) - z·Q(z)], z = (CF-1)/sigma; 0.399·sigma at CF = 1

    Args:
        routing: T, E and k; sigma is that of an expert.
        capacity_factor: CF.

    Returns:
        share, 0 to 1.
    Source: derived: mean excess of a normal variable.
    """
    per_expert = Routing(routing.tokens, routing.experts, routing.top_k, routing.experts)
    sigma = chance_sigma(per_expert)
    z = (capacity_factor - 1) / sigma
    normal = NormalDist()
    return sigma * (normal.pdf(z) - z * (1 - normal.cdf(z)))


def tile_utilization(rows_per_expert: float, tile_rows: int = 128) -> float:
    """Useful rows of a grouped matmul whose experts each round up to whole tiles.

    Formula:
        MOE-TILES
        lambda / (lambda + tile/2)

    Args:
        rows_per_expert: lambda, mean tokens of an expert.
        tile_rows: rows of a tile.

    Returns:
        share, 0 to 1.
    Source: derived: half a tile is lost an expert on average.
    Valid: lambda above half a tile, spread over more than one tile.
    """
    return rows_per_expert / (rows_per_expert + tile_rows / 2)


def straggler_s(imbalance: float, mean_expert_s: float) -> float:
    """Wait of the other ranks for the most loaded one in a layer.

    Formula:
        MOE-STRAGGLER
        (rho - 1)·t

    Args:
        imbalance: rho, max over mean load of the ranks.
        mean_expert_s: t, expert time that grows with the load, at the mean load.

    Returns:
        seconds; it shows inside the combine of the light ranks.
    Source: derived.
    """
    return (imbalance - 1) * mean_expert_s
