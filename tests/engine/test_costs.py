"""What passes cost: learned curves, outliers, and the price of rows."""

from __future__ import annotations

import pytest

from trifolium.engine.costs import CAUTION, GRID, Budget, PassCosts


def test_costs_are_what_was_observed_and_never_fall_with_rows() -> None:
    costs = PassCosts()
    assert costs.seconds(5) == 0.0 and costs.rate == 0.0 and Budget(9, 3, costs).price(5) == 0.0
    for _ in range(50):
        for rows, seconds in ((1, 1.0), (4, 0.9), (16, 2.0)):
            costs.observe(rows, seconds, 2)
    assert costs.seconds(1) == costs.seconds(4) == pytest.approx(0.95)  # the two disagree, and meet
    assert costs.seconds(10) == pytest.approx(1.475)
    assert costs.seconds(31) == pytest.approx(3.05)
    values = [costs.seconds(rows) for rows in range(1, 700)]
    assert values == sorted(values)
    assert costs.rate == pytest.approx(2 / 1.3, rel=0.05)
    assert Budget(20, 4, costs).price(12) == pytest.approx(
        CAUTION * costs.rate * (costs.seconds(16) - costs.seconds(5))
    )
    assert Budget(20).price(12) == 0.0


def test_narrower_passes_than_any_seen_are_taken_to_cost_less() -> None:
    costs = PassCosts()
    costs.observe(8, 1.0, 1)
    assert 0.3 < costs.seconds(1) < 0.8 < 1.0 < costs.seconds(9)


def test_one_slow_pass_changes_little() -> None:
    costs = PassCosts()
    for _ in range(30):
        costs.observe(2, 1.0, 1)
    costs.observe(2, 500.0, 1)
    assert costs.seconds(2) < 1.2
    for _ in range(60):
        costs.observe(2, 3.0, 1)
    assert costs.seconds(2) == pytest.approx(3.0, rel=0.05)


def test_any_number_of_rows_has_its_place() -> None:
    costs = PassCosts()
    for rows in range(1, 2000, 7):
        costs.observe(rows, float(rows), 1)
    assert set(costs._seconds) <= set(GRID)
    assert costs.seconds(100) == pytest.approx(100, rel=0.1)


def test_one_odd_size_does_not_flatten_the_curve() -> None:
    """Three rows were measured once, beside other work; four rows often, and they say what three can't have cost."""
    costs = PassCosts()
    costs.observe(3, 25.0, 3)
    for _ in range(40):
        costs.observe(1, 8.0, 1)
        costs.observe(4, 15.0, 4)
        costs.observe(8, 22.0, 8)
    assert 15.0 <= costs.seconds(4) < 16.5
    assert costs.seconds(8) == pytest.approx(22.0)


def test_what_proposals_do_to_the_next_pass_is_their_price() -> None:
    costs = PassCosts()
    for _ in range(20):
        costs.observe(1, 8.0, 1)
        costs.observe(1, 8.0, 1, proposals=2, proposing=3.0)
        costs.observe(1, 12.0, 1)
    assert costs.seconds(1) == pytest.approx(8.0)
    assert costs.proposal == pytest.approx((3.0 + 4.0) / 2)


def test_reading_prompts_beside_answers_does_not_make_time_cheap() -> None:
    costs = PassCosts()
    costs.observe(100, 10.0, 5, share=0.1)
    assert costs.rate == pytest.approx(5.0)


def test_the_rate_follows_the_load_within_a_few_passes() -> None:
    """Before, it took thirty passes to see that sixteen requests bring more tokens a second than one, and meanwhile
    everything seemed worth its rows."""
    costs = PassCosts()
    costs.observe(1, 7.0, 0, share=0.0)
    assert costs.rate == 0.0 and Budget(20, 3, costs).price(3) > Budget(20, 0, costs).price(3) > 0
    for _ in range(50):
        costs.observe(1, 7.0, 1)
    assert costs.rate == pytest.approx(1 / 7)
    for _ in range(6):
        costs.observe(16, 40.0, 16)
    assert costs.rate > 0.85 * 16 / 40
