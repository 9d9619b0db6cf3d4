import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from protoflows.evaluation.ood import SCORES, _Counting, fit_images, ood_metrics, ood_table, run_ood
from protoflows.model import Extras
from tests.model.helpers import small_model, some_images


def test_hand_worked_figures():
    """Own 1, 3, 3, 5; others 0, 3, 4, so that ties and mistakes are both there.

    Pairs won by own: 1 beats {0}; each 3 beats {0} and ties with 3: 1.5; 5 beats all: 3.
    AUROC = (1 + 1.5 + 1.5 + 3) / 12 = 7/12.
    """
    metrics = ood_metrics(torch.tensor([1.0, 3, 3, 5]), torch.tensor([0.0, 3, 4]))
    assert metrics["auroc"] == pytest.approx(7 / 12)
    # Falling: 5 own (1/1), 4 other, {3, 3 own, 3 other} (3/5), 1 own (4/6).
    assert metrics["aupr_in"] == pytest.approx((1 + 2 * 3 / 5 + 4 / 6) / 4)
    # Rising: 0 other (1/1), 1 own, {3 other, 3, 3 own} (2/5), 4 other (3/6).
    assert metrics["aupr_out"] == pytest.approx((1 + 2 / 5 + 3 / 6) / 3)
    # 95 % of four own images is all four: threshold 1, which 3 and 4 pass.
    assert metrics["fpr95"] == pytest.approx(2 / 3)


def test_fpr95_is_the_roc_curve_at_a_recall_of_95_per_cent():
    rng = np.random.default_rng(0)
    own, other = rng.normal(1, 1, 200), rng.normal(0, 1, 300)
    found = ood_metrics(torch.tensor(own), torch.tensor(other))["fpr95"]
    labels = np.r_[np.ones(200), np.zeros(300)]
    fpr, tpr, _ = roc_curve(labels, np.r_[own, other], drop_intermediate=False)
    assert found == pytest.approx(fpr[np.argmax(tpr >= 0.95)])


def test_counted_figures_equal_scikit_learns_with_weights():
    rng = np.random.default_rng(1)
    own, other = rng.integers(0, 9, 40).astype(float), rng.integers(-3, 6, 25).astype(float)
    counts = rng.integers(0, 4, 40), rng.integers(0, 4, 25)
    found = _Counting(own, other).figures(*counts)
    score = np.r_[np.repeat(own, counts[0]), np.repeat(other, counts[1])]
    labels = np.r_[np.ones(counts[0].sum()), np.zeros(counts[1].sum())]
    assert found[0] == pytest.approx(roc_auc_score(labels, score))
    assert found[1] == pytest.approx(average_precision_score(labels, score))
    assert found[2] == pytest.approx(average_precision_score(1 - labels, -score))
    repeated = ood_metrics(
        torch.tensor(np.repeat(own, counts[0])), torch.tensor(np.repeat(other, counts[1]))
    )
    assert found[3] == pytest.approx(repeated["fpr95"])


def test_the_bootstrap_agrees_with_the_known_error_of_the_auroc():
    """For two equal normal distributions, AUROC ½: variance (n + m + 1)/12nm (Mann-Whitney)."""
    generator = torch.Generator().manual_seed(0)
    own, other = torch.randn(150, generator=generator), torch.randn(100, generator=generator)
    expected = math.sqrt((150 + 100 + 1) / (12 * 150 * 100))
    assert ood_metrics(own, other)["auroc_stderr"] == pytest.approx(expected, rel=0.2)


def test_figures_follow_from_the_seed_alone():
    own, other = torch.linspace(0, 1, 20), torch.linspace(-0.5, 0.8, 30)
    assert ood_metrics(own, other, seed=3) == ood_metrics(own, other, seed=3)
    assert ood_metrics(own, other, seed=3) != ood_metrics(own, other, seed=4)


@pytest.mark.parametrize("bad", [torch.tensor([]), torch.tensor([1.0, math.nan])])
def test_scores_that_are_none_are_refused(bad):
    with pytest.raises(ValueError, match="in_scores must be a list of at least one finite number"):
        ood_metrics(bad, torch.ones(3))
    with pytest.raises(ValueError, match="out_scores"):
        ood_metrics(torch.ones(3), bad)


def test_a_run_scores_both_sets():
    model = small_model()
    own = some_images(12)
    result = run_ood(model, own, some_images(9, seed=7), samples=2, batch_size=5, out_levels=17)
    assert result.metrics["in_images"] == 12
    assert result.metrics["out_images"] == 9
    log_prob = model.log_prob(own, samples=2, seed=0)
    torch.testing.assert_close(result.in_scores["log_prob"], log_prob, rtol=1e-5, atol=1e-3)
    # Without quantiles the typical image is the own set's median: nobody is nearer to it than 0.
    mean = model.log_prob(own, samples=2, seed=0, rule="mean")
    expected = -(mean - mean.median()).abs()
    torch.testing.assert_close(result.in_scores["typicality"], expected, rtol=1e-5, atol=1e-3)
    assert float(result.in_scores["typicality"].max()) == 0
    for name in SCORES:
        alone = ood_metrics(result.in_scores[name], result.out_scores[name])
        assert result.metrics[f"{name}_auroc"] == alone["auroc"]
        assert f"{alone['auroc']:.4f}" in ood_table(result.metrics)


def test_typicality_goes_by_the_training_images_where_they_are_known():
    model = small_model()
    own = some_images(6)
    quantiles = torch.linspace(-300, -100, 101)
    model.extras = Extras(log_prob_quantiles=quantiles)
    result = run_ood(model, own, own, samples=1, out_levels=17)
    expected = -(model.log_prob(own, samples=1, seed=0) + 200).abs()
    torch.testing.assert_close(result.in_scores["typicality"], expected, rtol=1e-5, atol=1e-3)


def test_images_are_fitted_to_the_model():
    model = small_model()  # 1 x 4 x 4, 17 levels
    white = torch.full((2, 3, 9, 6), 255, dtype=torch.uint8)
    assert torch.equal(fit_images(model, white), torch.full((2, 1, 4, 4), 16, dtype=torch.uint8))
    own = some_images(3)
    assert torch.equal(fit_images(model, own, levels=17), own)
    with pytest.raises(ValueError, match="uint8"):
        fit_images(model, white.float())


def test_an_empty_set_is_refused():
    with pytest.raises(ValueError, match="got 3 and 0"):
        run_ood(small_model(), some_images(3), some_images(0))
