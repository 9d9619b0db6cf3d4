import json

import pytest

from protoflows.flows import DenseFlowConfig
from protoflows.model import ModelConfig
from protoflows.prototypes import PrototypeConfig
from tests.flows.helpers import TINY


def full_config():
    return ModelConfig(
        2,
        TINY,
        PrototypeConfig(num_prototypes=3, prior=(1.0, 3.0)),
        class_names=("cat", "dög"),
        logit_temperature=2.5,
        variance_temperature=4.0,
        prototype_names={(1, 2): "sleeping"},
    )


def test_survives_json():
    config = full_config()
    again = ModelConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert again.prototype_names == {(1, 2): "sleeping"}
    assert again.flow.image_shape == (1, 4, 4)


def test_defaults_need_only_the_classes():
    config = ModelConfig.from_dict({"num_classes": 3})
    assert config.class_names == ("0", "1", "2")
    assert config.flow == DenseFlowConfig()
    assert config == ModelConfig(3)


def test_names_are_copied():
    names = {(0, 0): "a"}
    config = ModelConfig(2, TINY, prototype_names=names)
    names[1, 1] = "b"
    assert config.prototype_names == {(0, 0): "a"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_clases": 2}, "unknown key 'num_clases'.*did you mean 'num_classes'"),
        ({"flow": {"unit": [1]}}, "unknown key 'unit' in flow.*did you mean 'units'"),
        ({"prototypes": {"zzz": 1}}, "unknown key 'zzz' in prototypes.*known are: num_prototypes"),
        ({"flow": 3}, "flow must be an object"),
        ({"prototypes": {"num_prototypes": "three"}}, "prototypes holds a value of the wrong type"),
        ({"format_version": 99}, "format_version is 99.*update protoflows"),
        ({"prototype_names": {"1": "x"}}, "prototype_names must have keys like '3,0'"),
        ({"prototype_names": {"9,0": "x"}}, r"prototype_names must map .*got \(9, 0\)"),
        ({"num_classes": 0}, "num_classes must be a whole number ≥ 1, got 0"),
        ({"class_names": ["a"]}, "class_names must hold one string for each of the 2 classes"),
        ({"logit_temperature": 0}, "logit_temperature must be a finite number above 0, got 0"),
        ({"variance_temperature": "1"}, "variance_temperature must be .* got '1'"),
    ],
)
def test_errors_name_the_key(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dict({"num_classes": 2, **change})


def test_missing_number_of_classes():
    with pytest.raises(ValueError, match="lacks the key 'num_classes'"):
        ModelConfig.from_dict({})


def test_a_string_is_no_sequence_of_names():
    with pytest.raises(ValueError, match="class_names must be a sequence"):
        ModelConfig(2, TINY, class_names="ab")
