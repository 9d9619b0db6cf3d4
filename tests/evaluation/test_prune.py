import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from protoflows.cli.main import main
from protoflows.data import Split
from protoflows.evaluation import evaluate
from protoflows.evaluation.prune import (
    choose_prototypes,
    measure_pruning,
    pruning_figure,
    pruning_table,
)
from protoflows.model import load
from protoflows.prototypes import ClassMixtures, PrototypeConfig
from tests.evaluation.run_fixture import untrained_run
from tests.model.helpers import small_model, some_images


def _mixtures(weights, mask=None):
    weights = torch.tensor(weights)
    classes, prototypes = weights.shape
    mixtures = ClassMixtures(classes, 2, PrototypeConfig(num_prototypes=prototypes))
    with torch.no_grad():
        mixtures.logits.copy_(weights.log())
    if mask is not None:
        mixtures.set_mask(torch.tensor(mask))
    return mixtures


def test_otsu_over_all_classes():
    """Weights .05 .05 .1 | .4 .5 .9: the least variance within groups is with the cut at ¼."""
    found = choose_prototypes(_mixtures([[0.05, 0.05, 0.9], [0.1, 0.4, 0.5]]))
    assert found.mask.tolist() == [[False, False, True], [False, True, True]]
    assert found.thresholds.tolist() == pytest.approx([0.25])
    assert (found.before, found.after, found.share) == (6, 3, 0.5)


def test_otsu_class_by_class():
    """0.2 | 0.35 0.45 and 0.05 0.15 | 0.8, each with a threshold of its own."""
    found = choose_prototypes(_mixtures([[0.2, 0.35, 0.45], [0.05, 0.15, 0.8]]), per_class=True)
    assert found.mask.tolist() == [[False, True, True], [False, False, True]]
    assert found.thresholds.tolist() == pytest.approx([0.275, 0.475])


def _least_variance_within(values):
    """Otsu by trying every cut of the sorted values: the size of the lower group."""
    ordered = np.sort(values)
    costs = [
        k * ordered[:k].var() + (len(ordered) - k) * ordered[k:].var()
        for k in range(1, len(ordered))
    ]
    return int(np.argmin(costs)) + 1, sorted(costs)


@settings(max_examples=40)
@given(st.lists(st.floats(-4, 4), min_size=3, max_size=12))
def test_otsu_is_the_best_cut_of_all(logits):
    weights = torch.tensor(logits, dtype=torch.float64).softmax(0).tolist()
    lower, costs = _least_variance_within(np.array(weights))
    spread = max(weights) - min(weights)
    if spread < 1e-3 or (len(costs) > 1 and costs[1] - costs[0] < 0.05 * costs[0] + 1e-9):
        return  # too close to call in a histogram of 256 bins
    gaps = np.diff(np.sort(weights))
    if gaps[lower - 1] < spread / 100:
        return  # both sides of the cut in one bin
    found = choose_prototypes(_mixtures([weights]))
    assert found.before - found.after == lower


def test_the_last_prototype_of_a_class_stays():
    """The second class's weights, ten of 0.1, are all below the threshold of all classes."""
    weights = [[0.9] + 9 * [0.1 / 9], 10 * [0.1]]
    found = choose_prototypes(_mixtures(weights))
    assert found.mask.sum(1).tolist() == [1, 1]
    assert found.spared == ((1, 0),)
    kept = small_model(2, 10).keep_prototypes(found.mask)
    assert torch.allclose(kept.mixtures.weights.sum(1), torch.ones(2))


@pytest.mark.parametrize("per_class", [False, True])
def test_equal_weights_lose_nothing(per_class):
    found = choose_prototypes(_mixtures([[0.25] * 4, [0.25] * 4]), per_class=per_class)
    assert found.share == 0
    assert all(math.isnan(t) for t in found.thresholds.tolist())


def test_a_share_goes_lightest_first():
    mixtures = _mixtures([[0.1, 0.2, 0.7], [0.05, 0.45, 0.5]])
    half = choose_prototypes(mixtures, fraction=0.5)
    assert half.mask.tolist() == [[False, False, True], [False, True, True]]
    # 0.8 of six would be four (rounded down), and there is none to spare beyond them.
    most = choose_prototypes(mixtures, fraction=0.8)
    assert most.mask.tolist() == [[False, False, True], [False, False, True]]
    third = choose_prototypes(mixtures, fraction=0.34, per_class=True)
    assert third.mask.tolist() == [[False, True, True], [False, True, True]]


def test_a_share_spares_the_last_of_a_class_of_light_prototypes():
    """Without that, 0.7 of ten would take all of the first class."""
    mixtures = _mixtures([[0.2, 0.21, 0.19, 0.2, 0.2], [0.46, 0.5, 0.02, 0.01, 0.01]])
    found = choose_prototypes(mixtures, fraction=0.7)
    assert found.mask.tolist() == [[False, True, False, False, False], [True, True] + 3 * [False]]


def test_prototypes_that_are_gone_do_not_count():
    mixtures = _mixtures(
        [[0.2, 0.2, 0.6], [0.5, 0.25, 0.25]], mask=[[False, True, True], [True, True, False]]
    )
    found = choose_prototypes(mixtures, fraction=0.5)
    assert (found.before, found.after) == (4, 2)
    assert found.mask.tolist() == [[False, False, True], [True, False, False]]


@settings(max_examples=30)
@given(
    st.integers(1, 4), st.integers(1, 6), st.booleans(), st.none() | st.floats(0.01, 0.99),
    st.integers(0, 99),
)  # fmt: skip
def test_whatever_is_asked_every_class_keeps_one(classes, prototypes, per_class, fraction, seed):
    generator = torch.Generator().manual_seed(seed)
    weights = (3 * torch.randn(classes, prototypes, generator=generator)).softmax(1)
    found = choose_prototypes(_mixtures(weights.tolist()), per_class=per_class, fraction=fraction)
    assert bool(found.mask.any(1).all())
    if fraction is not None:
        assert found.share <= fraction + 1e-9
    pairs = itertools.product(weights[found.mask].tolist(), weights[~found.mask].tolist())
    if not per_class and not found.spared and fraction is None:
        assert all(kept > gone for kept, gone in pairs)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, math.nan])
def test_shares_that_mean_nothing_are_refused(fraction):
    with pytest.raises(ValueError, match="fraction must be above 0 and below 1"):
        choose_prototypes(_mixtures([[0.5, 0.5]]), fraction=fraction)


def test_before_and_after_are_measured_alike():
    model = small_model()
    x = some_images(20)
    labels = model.predict(x, samples=2)
    labels[:5] = (labels[:5] + 1) % 3
    labels[5] = -1
    same = model.keep_prototypes(torch.ones(3, 2, dtype=torch.bool))
    before, after = measure_pruning((model, same), Split(x, labels), samples=2, batch_size=7)
    assert before == after
    assert before["accuracy"] == pytest.approx(14 / 19)
    expected = -float(model.log_prob(x, samples=2).mean()) / 16 / math.log(2)
    assert before["bits_per_dim"] == pytest.approx(expected, rel=1e-5)
    mask = torch.tensor([[True, False], [True, True], [False, True]])
    pruned = model.keep_prototypes(mask)
    less = measure_pruning((model, pruned), Split(x, labels), samples=2)[1]
    alone = evaluate(pruned, Split(x, labels), samples=2).metrics
    assert less == pytest.approx(alone, rel=1e-6, nan_ok=True)
    assert less["prototypes"] == 4
    proba = pruned.predict_proba(x, samples=2)
    known = labels >= 0
    loss = -proba[known].gather(1, labels[known, None]).log().mean()
    assert less["nll"] == pytest.approx(float(loss), rel=1e-4)
    assert less["bits_per_dim"] != before["bits_per_dim"]
    table = pruning_table([(0.0, before), (0.333, less)]).splitlines()
    assert table[1].split()[:2] == ["0.0", "73.68"]
    assert table[2].split()[0] == "33.3"


def test_the_figure_counts_every_living_prototype():
    found = choose_prototypes(_mixtures([[0.05, 0.05, 0.9], [0.1, 0.4, 0.5]]))
    figure = pruning_figure(found)
    assert isinstance(figure, Figure)
    axes = figure.axes[0]
    assert axes.get_legend_handles_labels()[1] == ["pruned (3)", "kept (3)", "threshold"]
    tops = {}
    for patch in axes.patches:
        tops[patch.get_x()] = max(tops.get(patch.get_x(), 0), patch.get_y() + patch.get_height())
    assert sum(tops.values()) == 6


def test_the_command_makes_a_run_of_its_own(tmp_path, capsys):
    source = untrained_run(tmp_path / "run")
    out = tmp_path / "pruned"
    command = ["prune", str(source), "--out", str(out), "--mc", "1", "--fraction", "0.5"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "10 of 20 prototypes are gone" in text
    report = json.loads((out / "pruning.json").read_text())
    assert (report["prototypes_before"], report["prototypes_after"]) == (20, 10)
    assert report["before"]["accuracy"] > 0.5  # far above chance: prototypes are K-means'
    assert report["after"] == json.loads((out / "metrics.json").read_text())
    assert report["after"]["pruned"] == 0.5
    assert {"brier", "aurc", "s_rob_stderr", "s_div", "bits_per_image"} <= set(report["after"])
    assert (out / "config.yaml").read_text() == (source / "config.yaml").read_text()
    assert (out / "figures" / "pruning.png").stat().st_size > 1000

    pruned, model = load(out), load(source)
    assert int(pruned.mixtures.mask.sum()) == 10
    assert int(model.mixtures.mask.sum()) == 20
    assert torch.allclose(pruned.mixtures.weights.sum(1), torch.ones(10))
    # Its p(x) is another one, and so are the quantiles that percentiles are read from.
    assert not torch.equal(pruned.extras.log_prob_quantiles, model.extras.log_prob_quantiles)

    assert main(command) == 1
    assert "holds a run already" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0
    # A pruned run is a run: it can be pruned (here: nothing is left to prune) and looked over.
    assert (
        main(["prune", str(out), "--out", str(tmp_path / "again"), "--mc", "1", "--limit", "50"])
        == 0
    )
    report = json.loads((tmp_path / "again" / "pruning.json").read_text())
    assert (report["share_pruned"], report["after"]["images"]) == (0, 50)
    assert main(["doctor", str(out)]) == 0


def test_a_run_is_not_pruned_over_itself(tmp_path, capsys):
    assert main(["prune", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "is the run itself" in capsys.readouterr().err
