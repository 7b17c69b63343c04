"""Chance imbalance of mixture-of-experts routing against Monte Carlo and enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from analyzer.roofline import moe
from analyzer.roofline.moe import Routing

NOISE = [  # tokens, experts, k, ranks: mean and p99 of experts, mean of ranks (Monte Carlo)
    (4096, 8, 2, 8, 1.041, 1.082, 1.041),
    (4096, 64, 8, 8, 1.099, 1.139, 1.021),
    (4096, 256, 8, 64, 1.250, 1.336, 1.101),
    (262_144, 256, 8, 64, 1.030, 1.037, 1.012),
]


@pytest.mark.parametrize(("tokens", "experts", "k", "ranks", "mean", "p99", "rank_mean"), NOISE)
def test_noise_table(
    tokens: int, experts: int, k: int, ranks: int, mean: float, p99: float, rank_mean: float
) -> None:
    by_expert = moe.chance_imbalance(Routing(tokens, experts, k, experts))
    assert by_expert.mean == pytest.approx(mean, rel=0.005)
    assert by_expert.p99 == pytest.approx(p99, rel=0.02)
    by_rank = moe.chance_imbalance(Routing(tokens, experts, k, ranks))
    assert by_rank.mean == pytest.approx(rank_mean, rel=0.005)


def drawn_loads(tokens: int, experts: int, k: int, trials: int) -> np.ndarray:
    """Loads of every expert in drawn batches; k distinct experts a token."""
    generator = np.random.default_rng(7)
    keys = generator.random((trials, tokens, experts))
    chosen = np.argpartition(keys, k, axis=-1)[..., :k].reshape(trials, -1)
    return np.stack([np.bincount(row, minlength=experts) for row in chosen])


@pytest.fixture(scope="module")
def loads() -> np.ndarray:
    return drawn_loads(1024, 32, 4, 200)


def test_sigma_against_drawn_batches(loads: np.ndarray) -> None:
    mean = 1024 * 4 / 32
    assert moe.chance_sigma(Routing(1024, 32, 4, 32)) == pytest.approx(loads.std() / mean, rel=0.03)
    by_rank = loads.reshape(200, 8, 4).sum(axis=2)
    assert moe.chance_sigma(Routing(1024, 32, 4, 8)) == pytest.approx(
        by_rank.std() / (mean * 4), rel=0.05
    )


def test_imbalance_against_drawn_batches(loads: np.ndarray) -> None:
    found = moe.chance_imbalance(Routing(1024, 32, 4, 32))
    assert found.mean == pytest.approx((loads.max(axis=1) / 128).mean(), rel=0.01)


def test_drop_share_against_drawn_batches(loads: np.ndarray) -> None:
    routing = Routing(1024, 32, 4)
    for factor in (1.0, 1.1):
        dropped = np.mean([moe.dropped_share(row.tolist(), factor) for row in loads])
        assert moe.chance_drop_share(routing, factor) == pytest.approx(dropped, rel=0.05)


def test_drop_share_published() -> None:
    routing = Routing(4096, 64, 8)
    sigma = moe.chance_sigma(Routing(4096, 64, 8, 64))
    assert moe.chance_drop_share(routing, 1.0) == pytest.approx(0.399 * sigma, rel=0.001)
    assert moe.chance_drop_share(routing, 1.0) == pytest.approx(0.016, abs=0.0005)
    assert moe.chance_drop_share(routing, 1.1) < 0.0002
    assert moe.chance_drop_share(Routing(2048, 128, 8), 1.0) == pytest.approx(0.034, abs=0.0005)
    assert moe.chance_drop_share(Routing(2048, 128, 8), 1.1) == pytest.approx(0.005, abs=0.0005)


def test_sampled_floor_by_enumeration() -> None:
    # two tokens, four experts, two each: every batch once
    pairs = list(itertools.combinations(range(4), 2))
    exact = 0.0
    for first in pairs:
        for second in pairs:
            exact += max(first.count(e) + second.count(e) for e in range(4))
    exact /= len(pairs) ** 2
    found = moe.chance_imbalance_sampled(Routing(2, 4, 2, 4), trials=4000, seed=3)
    assert found.mean == pytest.approx(exact, rel=0.02)
    assert found.p99 == 2.0
    assert found == moe.chance_imbalance_sampled(Routing(2, 4, 2, 4), trials=4000, seed=3)


def test_sampled_floor_agrees_with_the_formula() -> None:
    routing = Routing(512, 16, 2, 16)
    sampled = moe.chance_imbalance_sampled(routing, trials=200, seed=1)
    formula = moe.chance_imbalance(routing)
    assert sampled.mean == pytest.approx(formula.mean, rel=0.01)
    assert sampled.p99 == pytest.approx(formula.p99, rel=0.04)


def test_metrics() -> None:
    assert moe.max_violation([4, 4, 4, 4]) == 0
    assert moe.max_violation([8, 4, 2, 2]) == 1
    assert moe.coefficient_of_variation([1, 3]) == 0.5
    assert moe.dropped_share([8, 4, 2, 2], 1.0) == 0.25
    assert moe.dropped_share([8, 4, 2, 2], 2.0) == 0
    assert moe.straggler_s(1.25, 4.0) == 1.0


@pytest.mark.parametrize(
    ("rows", "share"), [(64, 0.50), (128, 0.68), (256, 0.81), (512, 0.89), (1024, 0.94)]
)
def test_tiles(rows: int, share: float) -> None:
    # published values are drawn ones: Poisson rows, tiles of 128
    assert moe.tile_utilization(rows) == rows / (rows + 64)
    drawn = np.random.default_rng(5).poisson(rows, 20_000)
    played = drawn.sum() / (np.ceil(drawn / 128).sum() * 128)
    assert played == pytest.approx(share, abs=0.01)
    assert moe.tile_utilization(rows) == pytest.approx(played, abs=0.02)
    assert math.isclose(moe.tile_utilization(rows, 2 * rows), 0.5)
