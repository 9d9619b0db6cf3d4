import math

import pytest
import torch

from protoflows.model import Extras
from tests.model.helpers import small_model


def ramp():
    """Quantiles 0, 10, … 1000."""
    return Extras(log_prob_quantiles=torch.arange(101.0) * 10)


def test_percentile_by_hand():
    values = torch.tensor([[-5.0, 0.0, 15.0], [500.0, 1000.0, 2000.0]])
    expected = torch.tensor([[0.0, 0.0, 1.5], [50.0, 100.0, 100.0]], dtype=torch.float64)
    assert torch.allclose(ramp().percentile(values), expected)


def test_percentile_amid_equal_quantiles():
    quantiles = torch.cat([torch.arange(40.0), torch.full((21,), 40.0), torch.arange(60.0, 100.0)])
    extras = Extras(log_prob_quantiles=quantiles)
    assert extras.percentile(torch.tensor([40.0])).item() == 50


def test_quantiles_and_percentile_undo_each_other():
    log_prob = torch.randn(5000, generator=torch.Generator().manual_seed(0)).double()
    extras = Extras(log_prob_quantiles=Extras.quantiles(log_prob))
    ranks = log_prob.argsort().argsort() / 4999 * 100
    assert (extras.percentile(log_prob) - ranks).abs().max() < 1.0


def test_percentile_needs_quantiles():
    with pytest.raises(ValueError, match="without log_prob_quantiles"):
        Extras().percentile(torch.zeros(1))


def test_types_are_set():
    extras = Extras(
        mean_image=torch.zeros(1, 2, 2, dtype=torch.float64),
        images=torch.zeros(2, 1, 2, 2, dtype=torch.uint8),
        labels=torch.zeros(2, dtype=torch.int32),
    )
    assert extras.mean_image.dtype == torch.float32
    assert extras.labels.dtype == torch.int64


def test_parts_survive():
    extras = Extras(labels=torch.tensor([1]), images=torch.zeros(1, 1, 2, 2, dtype=torch.uint8),
                    metrics={"a": 0.5, "b": math.nan}, data_name="d", licence="mit")  # fmt: skip
    again = Extras.from_parts(extras.to_dict(), extras.tensors())
    assert again.to_dict() == extras.to_dict()
    assert math.isnan(again.metrics["b"])
    assert torch.equal(again.images, extras.images)
    assert again.mean_image is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mean_image": torch.zeros(2, 2)}, r"mean_image must be \(C, H, W\), got \(2, 2\)"),
        ({"log_prob_quantiles": torch.zeros(100)}, r"log_prob_quantiles must be \(101,\)"),
        ({"log_prob_quantiles": -torch.arange(101.0)}, "must ascend and hold no NaN"),
        ({"log_prob_quantiles": torch.full((101,), torch.nan)}, "must ascend and hold no NaN"),
        ({"images": torch.zeros(1, 1, 2, 2)}, "images must be uint8, got torch.float32"),
        ({"labels": torch.zeros(1)}, "images and labels must be given together"),
        (
            {"images": torch.zeros(2, 1, 2, 2).byte(), "labels": torch.zeros(3)},
            r"images must be \(M, C, H, W\) and labels \(M,\)",
        ),
    ],
)
def test_errors(fields, message):
    with pytest.raises(ValueError, match=message):
        Extras(**fields)


def test_extras_of_another_model_are_refused():
    config = small_model().config
    with pytest.raises(ValueError, match="mean_image must hold images of shape"):
        Extras(mean_image=torch.zeros(1, 5, 5)).check(config)
    with pytest.raises(ValueError, match="labels must be in 0…2"):
        Extras(images=torch.zeros(1, 1, 4, 4).byte(), labels=torch.tensor([3])).check(config)


def test_quantiles_of_nothing():
    with pytest.raises(ValueError, match="at least one value"):
        Extras.quantiles(torch.zeros(0))
