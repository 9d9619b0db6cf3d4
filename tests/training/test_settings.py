from dataclasses import replace

import pytest
import torch

from protoflows.flows import DenseFlow, DenseFlowConfig
from protoflows.training import (
    LossConfig,
    OptimConfig,
    TrainConfig,
    TrainerConfig,
    from_dict,
    merge,
    read_recipe,
    read_yaml,
    recipe_names,
    to_dict,
)
from protoflows.training.recipes import describe_recipe
from protoflows.training.settings import parse_yaml, to_yaml


def test_yaml_round_trip():
    config = from_dict(
        TrainConfig,
        {"flow": {"units": [2, 3], "couplings": [1, 1], "mid_channels": [8, 8]}, "seed": 7},
    )
    assert from_dict(TrainConfig, parse_yaml(to_yaml(config), "text")) == config
    assert config.flow.units == (2, 3)


def test_numbers_that_yaml_takes_for_text():
    assert from_dict(OptimConfig, parse_yaml("lr: 3e-4", "text")).lr == 3e-4
    assert from_dict(OptimConfig, {"lr": 1}).lr == 1.0
    assert isinstance(from_dict(OptimConfig, {"lr": 1}).lr, float)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optim": {"lrr": 1}}, r"unknown setting 'optim.lrr'. Did you mean 'optim.lr'"),
        ({"optimiser": {}}, r"unknown setting 'optimiser'. Did you mean 'optim'"),
        ({"zzz": 1}, r"unknown setting 'zzz'. There are: data, augment"),
        ({"optim": {"lr": "fast"}}, r"optim.lr must be a number, got 'fast'"),
        ({"optim": {"epochs": 1.5}}, r"optim.epochs must be a whole number, got 1.5"),
        ({"optim": {"epochs": True}}, r"optim.epochs must be a whole number, got True"),
        ({"optim": {"max_minutes": "x"}}, r"optim.max_minutes must be a number or null"),
        ({"optim": 3}, r"optim must hold keys and values, got 3"),
        ({"flow": {"attention": 1}}, r"flow.attention must be true or false, got 1"),
        ({"flow": {"units": 2}}, r"flow.units must be a list \(a whole number\), got 2"),
        ({"flow": {"units": [2, "x"]}}, r"flow.units\[1\] must be a whole number"),
        ({"flow": {"image_shape": [1, 2]}}, r"flow.image_shape must be a list \(3 of"),
        ({"flow": {"memory": "big"}}, r"flow.memory must be one of 'store', 'checkpoint'"),
    ],
)
def test_wrong_keys_and_types(settings, message):
    with pytest.raises(ValueError, match=message):
        from_dict(TrainConfig, settings)


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (LossConfig, {"cross_entropy": 0, "elbo": 0}, "both 0"),
        (LossConfig, {"diversity": -1}, "loss.diversity"),
        (LossConfig, {"label_smoothing": 1}, "label_smoothing"),
        (OptimConfig, {"epochs": 0}, "optim.epochs"),
        (OptimConfig, {"lr": float("nan")}, "optim.lr"),
        (OptimConfig, {"ema_decay": 1.0}, "optim.ema_decay"),
        (OptimConfig, {"max_minutes": 0}, "optim.max_minutes"),
        (OptimConfig, {"schedule": "step"}, "optim.schedule"),
        (OptimConfig, {"final_lr": 2}, "optim.final_lr"),
        (TrainerConfig, {"devices": 0}, "trainer.devices"),
        (TrainerConfig, {"patience": 0}, "trainer.patience"),
        (TrainerConfig, {"monitor": "x"}, "trainer.monitor"),
        (TrainerConfig, {"export": "x"}, "trainer.export"),
    ],
)
def test_values_that_make_no_sense(cls, values, message):
    with pytest.raises(ValueError, match=message):
        cls(**values)


def test_merge_goes_deep_and_the_last_one_counts():
    merged = merge({"a": {"x": 1, "y": 2}, "b": [1, 2]}, {"a": {"y": 3}, "b": [4]}, {"c": 5})
    assert merged == {"a": {"x": 1, "y": 3}, "b": [4], "c": 5}


def test_configuration_files(tmp_path):
    path = tmp_path / "my.yaml"
    with pytest.raises(FileNotFoundError, match=r"my\.yaml"):
        read_yaml(path)
    path.write_text("")
    assert read_yaml(path) == {}
    path.write_text("a: [1")
    with pytest.raises(ValueError, match="not valid YAML"):
        read_yaml(path)
    path.write_text("- 1")
    with pytest.raises(ValueError, match="keys and values, got list"):
        read_yaml(path)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_a_configuration(name):
    config = from_dict(TrainConfig, read_recipe(name))
    assert describe_recipe(name)
    assert from_dict(TrainConfig, to_dict(config)) == config


def test_recipes_build_on_one_another():
    base, row = read_recipe("paper-cifar10"), read_recipe("ablation-loss-elbo-div")
    assert row["flow"] == base["flow"] == read_recipe("paper")["flow"]
    assert row["loss"] == {**base["loss"], "elbo": 1.0, "consistency": 0.0, "diversity": 1.0}
    assert row["optim"]["epochs"] == 11


def test_the_papers_recipes_have_its_hyper_parameters():
    for data in ("mnist", "cifar10", "cifar100", "flowers102", "oxford-pet", "cub200"):
        config = from_dict(TrainConfig, read_recipe(f"paper-{data}"))
        assert config.data.name == data
        assert config.optim.lr == 1e-4
        assert config.optim.weight_decay == 1e-5
        assert config.optim.clip_norm == 100
        assert (config.optim.batch_size, config.optim.epochs, config.optim.warmup_epochs) == (
            256,
            150,
            5,
        )
        assert config.loss == LossConfig()
        assert config.prototypes.num_prototypes == 10
        default = DenseFlowConfig()
        for name in ("units", "couplings", "mid_channels", "net_depth", "net_growth", "attention"):
            assert getattr(config.flow, name) == getattr(default, name)


def test_the_ablation_has_all_eight_rows():
    rows = [n for n in recipe_names() if n.startswith("ablation-loss")]
    assert len(rows) == 8
    seen = {
        tuple(read_recipe(n)["loss"][term] > 0 for term in ("elbo", "consistency", "diversity"))
        for n in rows
    }
    assert len(seen) == 8


def test_compact_stays_small():
    config = from_dict(TrainConfig, read_recipe("compact"))
    flow = replace(config.flow, image_shape=(1, 28, 28))
    with torch.device("meta"):
        numbers = sum(p.numel() for p in DenseFlow(flow).parameters())
    numbers += 2 * 10 * config.prototypes.num_prototypes * flow.latent_dims
    assert numbers < 1_200_000  # 5 MB on the disk


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(ValueError, match=r"unknown recipe 'compct'. Did you mean 'compact'"):
        read_recipe("compct")
