import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from protoflows.model import ProtoFlowClassifier

SMALL = {
    "flow": {
        "units": (1,),
        "couplings": (2,),
        "mid_channels": (8,),
        "net_depth": 1,
        "net_growth": 8,
    }
}


def small(**changes):
    return ProtoFlowClassifier(
        **{"epochs": 3, "num_prototypes": 1, "samples": 2, "settings": SMALL, **changes}
    )


@pytest.mark.slow
@parametrize_with_checks([small()])  # all apply: no check is expected to fail
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_there_are_checks_to_pass():
    assert len(list(estimator_checks_generator(small()))) > 40


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return x[:240], np.array([f"d{label}" for label in y])[:240]


@pytest.fixture(scope="module")
def fitted(digits):
    x, y = digits
    return small(epochs=8, random_state=0).fit(x, y)


def test_learns_digits_from_rows(fitted, digits):
    x, y = digits
    assert fitted.image_shape_ == (1, 8, 8)
    assert fitted.levels_ == 17
    assert fitted.n_features_in_ == 64
    assert list(fitted.classes_) == [f"d{d}" for d in range(10)]
    assert fitted.score(x, y) > 0.8
    proba = fitted.predict_proba(x[:5])
    assert proba.shape == (5, 10)
    assert np.allclose(proba.sum(axis=1), 1)
    assert fitted.model_.config.prototypes.num_prototypes == 1


def test_rows_are_seen_as_images(fitted, digits):
    x, _ = digits
    images = fitted._images(x[:3])
    assert torch.equal(images, torch.from_numpy(x[:3].reshape(3, 1, 8, 8)).to(torch.uint8))


def test_an_answer_follows_the_row_alone(fitted, digits):
    x, _ = digits
    whole = fitted.predict_proba(x[:20])
    assert np.allclose(fitted.predict_proba(x[:20][::-1])[::-1], whole, atol=1e-12)
    alone = np.concatenate([fitted.predict_proba(x[i : i + 1]) for i in range(20)])
    assert np.allclose(alone, whole, atol=1e-12)


def test_values_beyond_the_training_datas_are_clipped(fitted):
    assert np.isfinite(fitted.predict_proba(np.full((2, 64), 1e9))).all()
    assert int(fitted._images(np.full((1, 64), 99.0)).max()) == 16


def test_same_seed_same_model(digits):
    x, y = digits[0][:60], digits[1][:60]
    first, second = (small(random_state=3, epochs=1).fit(x, y) for _ in range(2))
    assert np.array_equal(first.predict_proba(x), second.predict_proba(x))


def test_works_in_cross_validation(digits):
    x, y = digits
    scores = cross_val_score(clone(small(random_state=0)), x, y, cv=2)
    assert scores.shape == (2,)


@pytest.mark.parametrize("shape", [(8, 8), (4, 4, 3)])
def test_images(shape):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 100, (30, *shape)).astype(np.uint8)
    y = rng.integers(0, 2, 30)
    x[y == 1] += 100
    clf = small(random_state=0, epochs=1).fit(x, y)
    assert clf.n_features_in_ == np.prod(shape)
    assert clf.levels_ == 256
    seen = clf._images(x.reshape(30, -1)).numpy()
    assert np.array_equal(seen.transpose(0, 2, 3, 1).reshape(x.shape), x)
    assert clf.predict(x).shape == (30,)
    assert np.array_equal(clf.predict(x.reshape(30, -1)), clf.predict(x))
    with pytest.raises(ValueError, match="X must hold images of shape .* as in fit"):
        clf.predict(x[:, :2])
    scaled = small(random_state=0, epochs=1).fit(x / 255.0, y)
    assert torch.equal(scaled._images((x / 255.0).reshape(30, -1)), clf._images(x.reshape(30, -1)))


def test_features_are_cut_between_their_extremes():
    x = np.array([[0.0, -5.0, 1.5], [1.0, 5.0, 1.5], [0.5, 0.0, 1.5], [0.25, 2.5, 1.5]])
    clf = small(random_state=0, epochs=1).fit(x, [0, 1, 0, 1])
    assert clf.image_shape_ == (1, 1, 3)
    levels = clf._images(x).flatten(1).tolist()
    assert levels == [[0, 0, 0], [255, 255, 0], [128, 128, 0], [64, 191, 0]]


def test_errors(digits):
    x, y = digits
    with pytest.raises(NotFittedError):
        small().predict(x)
    with pytest.raises(ValueError, match="y must hold at least two classes, got only one class"):
        small().fit(x[:5], [1] * 5)
    with pytest.raises(ValueError, match="images of shape|rows"):
        small(epochs=1).fit(x[:20], y[:20]).predict(x[:20].reshape(20, 8, 8))
