import dataclasses
import math

import pytest

from protoflows.prototypes import PrototypeConfig


def test_defaults_are_the_papers_choices():
    config = PrototypeConfig()
    assert (config.num_prototypes, config.prior, config.update) == (10, "uniform", "sgd")


def test_frozen_and_prior_list_becomes_tuple():
    config = PrototypeConfig(prior=[1.0, 3.0])
    assert config.prior == (1.0, 3.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.min_std = 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_prototypes", 0),
        ("init", "k-means"),
        ("prior", "flat"),
        ("prior", (1.0, 0.0)),
        ("prior", ()),
        ("initial_std", 0.0),
        ("initial_std", math.nan),
        ("min_std", 0.0),
        ("min_std", math.inf),
        ("prototype_dropout", 1.0),
        ("latent_dropout", -0.1),
        ("update", "adam"),
        ("em_momentum", 1.0),
    ],
)
def test_wrong_values_name_the_field(field, value):
    with pytest.raises(ValueError, match=field):
        PrototypeConfig(**{field: value})
