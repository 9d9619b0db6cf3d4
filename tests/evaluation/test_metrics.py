"""Each metric against cases worked out by hand and against other people's code."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from protoflows.evaluation.accuracy import accuracy, hits
from protoflows.evaluation.bits import bits
from protoflows.evaluation.brier import brier
from protoflows.evaluation.confusion import confusion
from protoflows.evaluation.distances import covariance_norms, quartiles
from protoflows.evaluation.diversity import diversity
from protoflows.evaluation.nll import nll
from protoflows.evaluation.risk_coverage import log_odds, risk_coverage
from protoflows.evaluation.robustness import robustness
from protoflows.prototypes import ClassMixtures, PrototypeConfig
from tests.evaluation.helpers import random_labels, random_proba

sizes = st.tuples(st.integers(1, 40), st.integers(2, 12), st.integers(0, 99))


def test_accuracy_by_hand():
    proba = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.3, 0.4, 0.3], [0.2, 0.3, 0.5]])
    labels = torch.tensor([0, 1, 1, 0])
    assert accuracy(proba, labels) == (0.5, pytest.approx(math.sqrt(1 / 12)))
    assert accuracy(proba, labels, k=2).value == 0.75
    assert accuracy(proba, labels, k=9).value == 1


def test_ties_go_to_the_lower_class_as_in_argmax():
    same = torch.full((3, 3), 1 / 3)
    assert hits(same, torch.tensor([0, 1, 2])).tolist() == [True, False, False]
    assert hits(same, torch.tensor([0, 1, 2]), k=2).tolist() == [True, True, False]


@given(sizes, st.integers(1, 6))
def test_accuracy_against_sklearn(size, k):
    num, classes, seed = size
    proba, labels = random_proba(num, classes, seed), random_labels(num, classes, seed + 1)
    k = min(k, classes - 1)
    if classes == 2:
        expected = sk.accuracy_score(labels, proba.argmax(1))
    else:
        expected = sk.top_k_accuracy_score(labels, proba.numpy(), k=k, labels=np.arange(classes))
    assert accuracy(proba, labels, k).value == pytest.approx(expected)


@given(sizes)
def test_nll_brier_and_confusion_against_sklearn(size):
    num, classes, seed = size
    proba, labels = random_proba(num, classes, seed), random_labels(num, classes, seed + 1)
    names = np.arange(classes)
    expected = sk.log_loss(labels, proba.numpy(), labels=names)
    assert nll(proba.log(), labels).value == pytest.approx(expected)
    squares = (proba.numpy() - np.eye(classes)[labels.numpy()]) ** 2
    assert brier(proba, labels).value == pytest.approx(squares.sum(1).mean())
    if classes == 2:
        half = sk.brier_score_loss(labels, proba[:, 1].numpy(), labels=names)
        assert brier(proba, labels).value == pytest.approx(2 * half)
    expected = sk.confusion_matrix(labels, proba.argmax(1), labels=names)
    assert confusion(proba, labels).tolist() == expected.tolist()


def test_nll_of_what_underflows():
    assert nll(torch.tensor([[-1e4, 0.0]]), torch.tensor([0])).value == 1e4


def test_wrong_input_is_named():
    proba = random_proba(4, 3)
    for metric in (accuracy, nll, brier, confusion):
        with pytest.raises(ValueError, match="labels must be whole numbers"):
            metric(proba, torch.tensor([0, 1, 2, -1]))
        with pytest.raises(ValueError, match="scores must be"):
            metric(proba, torch.tensor([0, 1]))
        with pytest.raises(ValueError, match="NaN"):
            metric(proba * math.nan, torch.tensor([0, 1, 2, 0]))
    with pytest.raises(ValueError, match="k must be"):
        accuracy(proba, torch.zeros(4, dtype=torch.int64), k=0)


def test_risk_coverage_by_hand():
    found = risk_coverage(
        torch.tensor([0.6, 0.9, 0.7, 0.8]), torch.tensor([False, True, True, False])
    )
    assert found.coverage.tolist() == [0.25, 0.5, 0.75, 1]
    assert found.risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2])
    assert found.aurc.value == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)


def test_equal_confidences_give_the_mean_over_all_orders():
    confidence = [0.9, 0.5, 0.5, 0.5, 0.1]
    correct = [True, True, False, False, True]
    areas = []
    for order in itertools.permutations(range(5)):
        if [confidence[i] for i in order] != confidence:
            continue
        wrong = np.cumsum([not correct[i] for i in order])
        areas.append((wrong / np.arange(1, 6)).mean())
    assert len(areas) == 6
    found = risk_coverage(torch.tensor(confidence), torch.tensor(correct))
    assert found.aurc.value == pytest.approx(np.mean(areas))


def test_area_has_an_error_and_needs_numbers():
    confidence, correct = torch.rand(400), torch.rand(400) < 0.8
    found = risk_coverage(confidence, correct, seed=1).aurc
    areas = [risk_coverage(torch.rand(400), torch.rand(400) < 0.8).aurc.value for _ in range(60)]
    assert found.stderr == pytest.approx(np.std(areas), rel=0.5)
    with pytest.raises(ValueError, match="NaN"):
        risk_coverage(confidence * math.nan, correct)
    with pytest.raises(ValueError, match="confidence and correct"):
        risk_coverage(confidence, correct[:3])


def test_log_odds_do_not_saturate():
    log_proba = torch.tensor([[0.0, -50.0, -60.0], [0.0, -80.0, -90.0]], dtype=torch.float64)
    assert (log_proba.exp()[:, 0] == 1).all()
    assert log_odds(log_proba).tolist() == pytest.approx([50, 80], abs=1e-3)
    proba = random_proba(20, 4)
    top = proba.amax(1)
    torch.testing.assert_close(log_odds(proba.log()), (top / (1 - top)).log())


def test_bits_by_hand():
    # Two images of 3 values at 8 levels, each of probability 1/8 per value: 3 bits per dimension.
    uniform = torch.full((2,), -3 * math.log(8))
    classes = torch.tensor([[-1.0, -2.0], [-6.0, -4.0]]) * math.log(2)
    found = bits(uniform, uniform - 3 * math.log(2), classes, dims=3)
    assert found.marginal == pytest.approx((3, 0))
    assert found.mean_bound == pytest.approx((4, 0))
    assert found.per_image.value == pytest.approx(9)
    assert found.best_class.value == pytest.approx((1 + 4) / 2 / 3)
    assert found.best_class.stderr == pytest.approx(1.5 / 3)
    with pytest.raises(ValueError, match="dims"):
        bits(uniform, uniform, classes, dims=0)


def test_robustness_by_hand():
    first, second = torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2, 0])
    found = robustness(first, second, torch.tensor([0, 0, 0, 0]))
    assert found.score.value == 0.25
    assert found.baseline.value == 0.75


def test_diversity_by_hand():
    assert diversity(torch.full((7,), 3), 10) == (0, 0)
    half = diversity(torch.tensor([0, 5, 0, 5]), 4)
    assert half.value == pytest.approx(0.5)  # log 2 / log 4
    assert half.stderr == 0
    with pytest.raises(ValueError, match="num_prototypes"):
        diversity(torch.tensor([0]), 1)
    with pytest.raises(ValueError, match="winner holds 3"):
        diversity(torch.tensor([0, 1, 2]), 2)
    with pytest.raises(ValueError, match="winner must be"):
        diversity(torch.zeros(0, dtype=torch.int64), 2)


def test_error_of_the_entropy():
    share = torch.tensor([0.6, 0.3, 0.1])
    generator = torch.Generator().manual_seed(0)
    draws = [torch.multinomial(share, 300, True, generator=generator) for _ in range(300)]
    found = [diversity(d, 5) for d in draws]
    spread = np.std([f.value for f in found])
    assert np.mean([f.stderr for f in found]) == pytest.approx(spread, rel=0.15)
    entropy = -float((share * share.log()).sum()) / math.log(5)
    assert np.mean([f.value for f in found]) == pytest.approx(entropy, abs=0.01)


def test_quartiles_and_covariance_norms():
    assert quartiles(torch.tensor([5.0, 1.0, 3.0])) == (2, 3, 4)
    with pytest.raises(ValueError, match="values"):
        quartiles(torch.zeros(0))
    mixtures = ClassMixtures(2, 2, PrototypeConfig(num_prototypes=2))
    std = torch.tensor([[[1.0, 1.0], [1.0, 2.0]], [[3.0, 1.0], [2.0, 2.0]]])
    mask = torch.tensor([[True, True], [False, True]])
    mixtures.set_mixture(torch.zeros(2, 2, 2), std, torch.zeros(2, 2), mask)
    expected = [math.sqrt(2), math.sqrt(17), math.sqrt(32)]
    assert covariance_norms(mixtures).tolist() == pytest.approx(expected, rel=1e-5)
