import dataclasses

import pytest
import torch

from protoflows.data import Augment, AugmentConfig, Split
from protoflows.evaluation import run_passes
from protoflows.evaluation.settling import looks
from protoflows.evaluation.views import (
    NOISY,
    PLAIN,
    augmented_view,
    flow_seeds,
    noisy_view,
)
from protoflows.model import image_seeds
from tests.evaluation.helpers import counted_rows
from tests.model.helpers import small_model, some_images

AUGMENT = Augment(AugmentConfig(share_unaugmented=0.0), levels=17)
EVERYTHING = ("robustness", "distances", "curve")


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def exact():
    """In float64 an image's result does not depend on its batch in any digit that matters."""
    return small_model().double()


def tensors(passes):
    found = {f.name: getattr(passes, f.name) for f in dataclasses.fields(passes)}
    return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def assert_same(one, other, **tolerance):
    a, b = tensors(one), tensors(other)
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], equal_nan=True, msg=name, **tolerance)


@pytest.mark.parametrize("options", [
    {"samples": 3, "collect": EVERYTHING},
    {"samples": 3, "tta": 2, "augment": AUGMENT, "collect": EVERYTHING},
    {"samples": 20, "tta": 2, "augment": AUGMENT, "adaptive": 0.9, "collect": ("robustness",)},
    {"samples": 20, "adaptive": 0.9},
    {"samples": 20, "adaptive": 0.9, "verify": True, "collect": EVERYTHING},
])  # fmt: skip
def test_the_batch_size_changes_nothing(exact, options):
    x = some_images(11)
    whole = run_passes(exact, x, batch_size=64, seed=5, **options)
    for size in (1, 4):
        part = run_passes(exact, x, batch_size=size, seed=5, **options)
        assert_same(whole, part, rtol=1e-9, atol=1e-9)


def test_float32_too_up_to_its_rounding(model):
    x = some_images(11)
    one, other = (run_passes(model, x, samples=5, batch_size=size) for size in (3, 11))
    assert_same(one, other, rtol=1e-5, atol=1e-4)


def test_averages_are_those_of_the_model(model):
    x = some_images(6)
    passes = run_passes(model, x, samples=4, seed=3)
    proba = model.predict_proba(x, samples=4, seed=3)
    torch.testing.assert_close(model.classify(passes.logits).exp(), proba)
    proba = model.predict_proba(x, samples=4, seed=3, rule="importance")
    torch.testing.assert_close(model.classify(passes.logits_importance).exp(), proba)
    expected = model.log_prob(x, samples=4, seed=3)
    torch.testing.assert_close(passes.log_prob_importance, expected)
    expected = model.log_prob(x, samples=4, seed=3, rule="mean")
    torch.testing.assert_close(passes.log_prob_mean, expected)
    assert passes.rounds.tolist() == passes.passes.tolist() == [4] * 6


def test_every_sum_against_a_plain_loop(exact):
    """All views, kept whole and averaged at the end, with calibrated variances."""
    model = small_model(variance_temperature=2.0, prior=(0.5, 0.3, 0.2)).double()
    x, samples, seed = some_images(5), 3, 7
    found = run_passes(
        model, x, samples=samples, tta=2, augment=AUGMENT, seed=seed, start_index=40,
        collect=EVERYTHING,
    )  # fmt: skip
    views = {PLAIN: x, NOISY: noisy_view(x, 17, 40, seed)}
    views |= {v: augmented_view(x, AUGMENT, v, 40, seed) for v in (1, 2)}

    def score(view, sample):
        return model.score(views[view], seeds=flow_seeds(40, 5, view, sample, seed))

    def tempered(scores):
        table = scores.prototype_log_likelihood
        return scores.log_det[:, None] + model.tempered_log_likelihood(table)

    plain = [score(PLAIN, s) for s in range(samples)]
    moved = [score(v, s) for s in range(samples) for v in (1, 2)]
    classes = torch.stack([s.log_prob_classes for s in plain])
    bound = (classes + model.mixtures.log_prior).logsumexp(2)
    decision = torch.stack([tempered(s) for s in moved])
    winners = [s.prototype_log_likelihood.flatten(1).argmax(1) for s in plain]
    noisy = score(NOISY, 1).prototype_log_likelihood.flatten(1).argmax(1)
    distance = torch.cdist(plain[0].latent.flatten(1), model.mixtures.mean.flatten(0, 1))
    expected = {
        "logits": decision.mean(0),
        "logits_importance": decision.logsumexp(0) - torch.tensor(6.0).log(),
        "plain_logits": torch.stack([tempered(s) for s in plain]).mean(0),
        "log_prob_classes": classes.mean(0),
        "view_log_prob_classes": torch.stack([s.log_prob_classes for s in moved]).mean(0),
        "log_prob_mean": bound.mean(0),
        "log_prob_importance": bound.logsumexp(0) - torch.tensor(3.0).log(),
        "log_prob_variance": bound.var(0),
        "winner": winners[0],
        "winner_second": winners[1],
        "winner_noisy": noisy,
        "distance": distance.amin(1),
        "curve_logits": torch.stack(
            [decision[:2].mean(0), decision[:4].mean(0), decision.mean(0)], dim=1
        ).float(),
        "passes": torch.full((5,), samples * 3 + 1),
    }
    for name, value in expected.items():
        torch.testing.assert_close(getattr(found, name), value, msg=name)
    best = classes[:2].mean(0).amax(1)
    curve = torch.stack([bound[:2].mean(0), bound[:2].logsumexp(0) - torch.tensor(2.0).log(), best])
    torch.testing.assert_close(found.curve_log_prob[:, 1], curve.T)
    assert found.curve == (1, 2, 3)


@pytest.mark.parametrize(
    ("options", "each"),
    [
        ({"samples": 3}, 3),
        ({"samples": 3, "tta": 2, "augment": AUGMENT}, 9),
        ({"samples": 3, "collect": EVERYTHING}, 4),
        ({"samples": 1, "collect": ("robustness",)}, 3),
    ],
)
def test_one_flow_pass_per_image_draw_and_view(model, monkeypatch, options, each):
    x = some_images(7)
    with counted_rows(model, monkeypatch) as rows:
        passes = run_passes(model, x, batch_size=4, **options)
    assert sum(rows) == 7 * each == int(passes.passes.sum())
    assert max(rows) <= 4


def test_few_images_travel_several_draws_to_a_pass(model, monkeypatch):
    with counted_rows(model, monkeypatch) as rows:
        run_passes(model, some_images(2), samples=10, batch_size=8)
    assert rows == [8, 8, 4]


@pytest.mark.parametrize("tta", [0, 2])
def test_stopping_early_is_a_prefix_of_the_full_protocol(exact, monkeypatch, tta):
    x, options = some_images(12), {"samples": 30, "tta": tta, "augment": AUGMENT, "adaptive": 0.9}
    with counted_rows(exact, monkeypatch) as rows:
        early = run_passes(exact, x, batch_size=5, **options)
    assert sum(rows) == int(early.passes.sum())
    full = run_passes(exact, x, batch_size=12, verify=True, **options)
    assert full.rounds.tolist() == [30] * 12
    assert early.rounds.tolist() == full.adaptive_rounds.tolist()
    assert set(early.rounds.tolist()) <= {*looks(30), 30}
    assert min(early.rounds) < 30
    torch.testing.assert_close(early.logits, full.adaptive_logits)
    first = looks(30)[0]
    assert early.plain_samples == first
    density = run_passes(exact, x, samples=first)
    torch.testing.assert_close(early.log_prob_importance, density.log_prob_importance)
    wanted = early.rounds * 2 + first if tta else early.rounds
    assert early.passes.tolist() == wanted.tolist()


def test_places_in_the_data_set_count(exact):
    x = some_images(6)
    whole = run_passes(exact, x, samples=2)
    rest = run_passes(exact, x[4:], samples=2, start_index=4)
    torch.testing.assert_close(rest.logits, whole.logits[4:])
    other = run_passes(exact, x, samples=2, seed=1)
    assert not torch.allclose(other.logits, whole.logits)


def test_splits_are_taken_and_modes_left_alone():
    model = small_model().train()
    x = some_images(3)
    split = Split(x, torch.zeros(3, dtype=torch.int64))
    passes = run_passes(model, split, samples=1)
    assert model.training
    assert len(passes) == 3
    assert not passes.logits.requires_grad
    assert passes.log_prob_variance.isnan().all()
    torch.testing.assert_close(passes.logits, run_passes(model.eval(), x, samples=1).logits)


def test_views():
    x = some_images(5)
    seeds = image_seeds(3, 5, 2, 11)
    assert torch.equal(flow_seeds(3, 5, PLAIN, 2, 11), seeds)  # as `predict_proba` draws
    streams = [flow_seeds(0, 50, v, s, 0) for v in (PLAIN, 1, 2, NOISY) for s in range(3)]
    assert len(torch.cat(streams).unique()) == 600
    moved = augmented_view(x, AUGMENT, 1, 3, 11)
    assert torch.equal(moved[2:], augmented_view(x[2:], AUGMENT, 1, 5, 11))
    assert not torch.equal(moved, augmented_view(x, AUGMENT, 2, 3, 11))


def test_the_noisy_view_is_the_papers():
    grey = torch.full((1, 1, 100, 100), 128, dtype=torch.uint8)
    noisy = noisy_view(grey, 256, 0, 0).double() / 255
    assert noisy.std() == pytest.approx(0.2, rel=0.05)  # clamping takes a little
    assert noisy.mean() == pytest.approx(0.5, abs=0.01)
    dark = noisy_view(torch.zeros_like(grey), 17, 0, 0)
    assert dark.max() <= 16
    assert (dark == 0).double().mean() == pytest.approx(0.56, abs=0.03)  # below half a level


@pytest.mark.parametrize(("options", "message"), [
    ({"samples": 0}, "samples must be ≥ 1"),
    ({"batch_size": 0}, "batch_size must be ≥ 1"),
    ({"tta": -1}, "tta must be ≥ 0"),
    ({"tta": 2}, "needs augment"),
    ({"adaptive": 1.0}, "adaptive must be"),
    ({"verify": True}, "verify needs adaptive"),
    ({"collect": ("curves",)}, "curves"),
    ({"adaptive": 0.9, "collect": ("curve",)}, "needs all draws"),
])  # fmt: skip
def test_errors_say_what_is_wrong(model, options, message):
    with pytest.raises(ValueError, match=message):
        run_passes(model, some_images(2), **{"samples": 2, **options})


def test_no_images_are_refused(model):
    with pytest.raises(ValueError, match="at least one image"):
        run_passes(model, some_images(2)[:0], samples=2)
