import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from protoflows.evaluation.calibration_error import reliability
from protoflows.evaluation.curve import CurvePoint
from protoflows.evaluation.estimate import Estimate, wilson_interval
from protoflows.evaluation.figures import (
    draw_distances,
    draw_likelihoods,
    draw_mc_curve,
    draw_reliability,
    draw_risk_coverage,
)
from protoflows.evaluation.risk_coverage import risk_coverage
from tests.evaluation.helpers import random_labels, random_proba


@pytest.fixture(autouse=True)
def _nothing_is_left_open():
    """Figures are the caller's: pyplot knows of none."""
    yield
    assert plt.get_fignums() == []


def drawn(figure, tmp_path):
    assert isinstance(figure, Figure)
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
    return figure.axes


def test_reliability(tmp_path):
    bins = reliability(random_proba(300, 3), random_labels(300, 3))
    axes, below = drawn(draw_reliability(bins, Estimate(0.1, 0.01)), tmp_path)
    filled = bins.counts > 0
    heights = [bar.get_height() for bar in axes.patches]
    np.testing.assert_allclose(heights, bins.accuracy[filled])
    assert [bar.get_height() for bar in below.patches] == bins.counts[filled].tolist()
    assert "ECE 0.1000" in axes.get_legend().get_title().get_text()
    dots = next(line for line in axes.lines if line.get_label().startswith("at the bin's"))
    np.testing.assert_allclose(dots.get_xdata(), bins.confidence[filled])
    np.testing.assert_allclose(dots.get_ydata(), bins.accuracy[filled])


def test_a_bin_of_one_image_is_seen_and_claims_nothing():
    """One right answer at 0.7: the whisker reaches far down, and the count has a bar."""
    bins = reliability(torch.tensor([[0.7, 0.3]]), torch.tensor([0]))
    axes, below = draw_reliability(bins).axes
    (whisker,) = axes.collections[0].get_segments()
    assert whisker[:, 1].tolist() == pytest.approx(wilson_interval(1, 1, 0.6827), abs=1e-9)
    assert whisker[0, 1] < 0.55
    assert below.get_ylim()[0] < below.patches[0].get_height() == 1


def test_risk_coverage(tmp_path):
    found = risk_coverage(torch.rand(50), torch.rand(50) < 0.8)
    (axes,) = drawn(draw_risk_coverage(found), tmp_path)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), 100 * found.risk)


def test_mc_curve(tmp_path):
    names = ("accuracy", "nll", "ece", "mce", "brier", "bits_per_dim", "bits_per_dim_mean_bound")
    names += ("bits_per_dim_best_class",)
    points = [CurvePoint(n, {m: Estimate(0.5 / n, 0.01) for m in names}) for n in (1, 2, 5)]
    panels = drawn(draw_mc_curve(points), tmp_path)
    # ECE and MCE apart: on one axis the smaller would be a line along the bottom.
    kinds = ["accuracy, %", "-log p(y|x), nats", "Brier score", "ECE", "MCE", "bits/dim"]
    assert [axes.get_ylabel() for axes in panels] == kinds
    assert [len(axes.lines) for axes in panels] == [1, 1, 1, 1, 1, 3]
    np.testing.assert_allclose(panels[0].lines[0].get_ydata(), [50, 25, 10])
    densities = [CurvePoint(p.samples, {m: p.figures[m] for m in names[5:]}) for p in points]
    assert len(drawn(draw_mc_curve(densities), tmp_path)) == 1
    with pytest.raises(ValueError, match="points"):
        draw_mc_curve([])


def test_distances_of_two_runs_with_their_quartiles(tmp_path):
    one, other = torch.randn(200) + 9, torch.randn(200) + 12
    (axes,) = drawn(draw_distances({"with": one, "without": other}), tmp_path)
    marks = sorted(float(line.get_xdata()[0]) for line in axes.lines)
    shares = torch.tensor([0.25, 0.5, 0.75])
    expected = sorted([*one.quantile(shares).tolist(), *other.quantile(shares).tolist()])
    np.testing.assert_allclose(marks, expected, rtol=1e-5)
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == ["with", "without", "quartiles"]
    drawn(draw_distances({"all the same": torch.ones(5)}), tmp_path)
    with pytest.raises(ValueError, match="distances"):
        draw_distances({})


def test_covariance_norms_stand_beside_distances_in_the_same_colours(tmp_path):
    distances = {"with": torch.randn(200) + 9, "without": torch.randn(200) + 12}
    norms = {"without": torch.rand(30) + 5}  # a run that was evaluated before norms were kept
    left, right = drawn(draw_distances(distances, norms), tmp_path)
    assert "covariance" in right.get_xlabel()
    expected = norms["without"].quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
    np.testing.assert_allclose(sorted(ln.get_xdata()[0] for ln in right.lines), expected, rtol=1e-5)
    assert {ln.get_color() for ln in right.lines} == {left.lines[-1].get_color()}
    assert left.lines[0].get_color() != left.lines[-1].get_color()


def test_likelihoods_far_away_are_counted_and_do_not_press_the_own_flat(tmp_path):
    own = torch.linspace(-100, -80, 50)
    other = torch.cat([torch.full((30,), -9000.0), torch.linspace(-110, -100, 10)])
    (axes,) = drawn(draw_likelihoods(own, other, "others"), tmp_path)
    assert axes.get_title(loc="left") == "75 % of the others lie further left"
    assert axes.get_xlim()[0] > -300
    assert [t.get_text() for t in axes.get_legend().get_texts()] == [
        "its own images (50)", "others (40)",
    ]  # fmt: skip
    heights = [sum(bar.get_height() for bar in bars) for bars in axes.containers]
    assert heights[0] == pytest.approx(100)


@pytest.mark.parametrize(("own", "other"), [(0, 3), (3, 0)])
def test_likelihoods_of_nothing_are_refused(own, other):
    with pytest.raises(ValueError, match="must both hold values"):
        draw_likelihoods(torch.zeros(own), torch.zeros(other), "others")
