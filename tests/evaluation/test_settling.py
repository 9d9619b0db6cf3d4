import math

import pytest
import torch
from scipy.stats import t

from protoflows.evaluation.settling import Settling, looks


def feed(settling: Settling, draws: torch.Tensor) -> None:
    """Draws (S, N, C), one by one."""
    for number, logits in enumerate(draws):
        settling.add(torch.arange(draws.shape[1]), logits, number)


def test_looks():
    assert looks(4) == ()
    assert looks(5) == (4,)
    assert looks(100) == (4, 6, 8, 12, 16, 24, 32, 48, 64, 96)


def test_bound_by_hand():
    """Gaps 1, 2, 3, 2 have the mean 2 and the variance 2/3."""
    gaps = torch.tensor([1.0, 2.0, 3.0, 2.0])
    draws = torch.stack([gaps, torch.zeros(4)], dim=1)[:, None]
    level = 1 - 0.2 / len(looks(8))
    bound = float(t.ppf(level, 3)) * math.sqrt(2 / 3) * math.sqrt(1 / 4 - 1 / 8)
    for shift, expected in ((2 - bound - 0.01, True), (2 - bound + 0.01, False)):
        settling = Settling(torch.zeros(2), 1, samples=8, confidence=0.8)
        feed(settling, draws - torch.tensor([shift, 0.0]))
        assert settling.settled(torch.tensor([0]), 4).tolist() == [expected]


def test_every_class_has_to_be_beaten():
    """The third class is far behind on average, but nobody knows by how much."""
    sure, unsure = torch.zeros(4, 2, 3), torch.zeros(4, 2, 3)
    sure[:, :, 1:] = -5.0
    unsure[:] = sure
    unsure[:, 1, 2] = torch.tensor([-40.0, 20.0, -40.0, 20.0])
    settling = Settling(torch.zeros(3), 2, samples=20, confidence=0.95)
    feed(settling, unsure)
    assert settling.settled(torch.arange(2), 4).tolist() == [True, False]


def test_priors_count():
    draws = torch.zeros(4, 1, 2, dtype=torch.float64)
    draws[:, 0, 0] = torch.tensor([1.0, 1.1, 0.9, 1.0])
    for prior, expected in ((0.5, True), (0.27, False)):  # log odds 0 and −1
        settling = Settling(torch.tensor([prior, 1 - prior]).log(), 1, 20, 0.99)
        feed(settling, draws)
        assert bool(settling.settled(torch.tensor([0]), 4)) is expected


def test_the_lead_may_pass_from_the_first_draws_winner():
    """Without the reference in the lead, deviations are added: the bound errs to the safe side."""
    generator = torch.Generator().manual_seed(0)
    noise = 0.1 * torch.randn(8, 1, 3, generator=generator, dtype=torch.float64)
    draws = noise + torch.tensor([0.0, 4.0, 1.0])
    draws[0, 0, 0] = 5.0  # class 0 wins the first draw alone
    settling = Settling(torch.zeros(3), 1, 100, 0.9)
    feed(settling, draws)
    gap, gaps = settling._mean[0], draws[:, 0] - draws[:, 0, :1]
    torch.testing.assert_close(gap, gaps.mean(0))
    torch.testing.assert_close(settling._squares[0] / 7, gaps.var(0))
    paired = (draws[:, 0, 1] - draws[:, 0, 2]).std()
    assert paired < gaps[:, 1].std() + gaps[:, 2].std()
    assert settling.settled(torch.tensor([0]), 8).dtype == torch.bool


@pytest.mark.parametrize("gap", [0.1, 0.3, 1.0])
def test_stopping_errs_no_more_often_than_promised(gap):
    """Normal draws of two classes with little between them, stopped at the first success."""
    samples, num, confidence = 50, 4000, 0.9
    generator = torch.Generator().manual_seed(1)
    draws = torch.randn(samples, num, 2, generator=generator, dtype=torch.float64)
    draws[:, :, 0] += gap
    final = draws.mean(0).argmax(1)
    settling = Settling(torch.zeros(2), num, samples, confidence)
    everyone, stopped = torch.arange(num), torch.zeros(num, dtype=torch.bool)
    wrong = 0
    for number, logits in enumerate(draws):
        settling.add(everyone, logits, number)
        if number + 1 in settling.looks:
            fresh = settling.settled(everyone, number + 1) & ~stopped
            wrong += int((draws[: number + 1, fresh].mean(0).argmax(1) != final[fresh]).sum())
            stopped |= fresh
    assert wrong <= (1 - confidence) * num
    assert int(stopped.sum()) > 0.1 * num


def test_confidence_is_checked():
    for wrong in (0.5, 1.0, math.nan):
        with pytest.raises(ValueError, match="adaptive"):
            Settling(torch.zeros(2), 1, 10, wrong)
