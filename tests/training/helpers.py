"""A run so small that a test can afford it."""

from pathlib import Path

import torch

from protoflows.data import Split
from protoflows.flows import DenseFlowConfig
from protoflows.model import ModelConfig, ProtoFlow
from protoflows.prototypes import PrototypeConfig
from protoflows.training import TrainConfig, from_dict, merge, read_recipe

TINY = {
    "data": {"limit": 120, "validation_fraction": 0.2},
    "flow": {
        "units": [2],
        "couplings": [2],
        "mid_channels": [8],
        "noise_growth": 2,
        "net_depth": 1,
        "net_growth": 8,
    },
    "prototypes": {"num_prototypes": 2},
    "optim": {"epochs": 3, "batch_size": 24, "warmup_epochs": 1.0},
    "trainer": {
        "test_samples": 2,
        "tensorboard": False,
        "progress": False,
        "accelerator": "cpu",
    },
}


def tiny_config(**changes) -> TrainConfig:
    return from_dict(TrainConfig, merge(read_recipe("digits"), TINY, changes))


def tiny_model(num_classes: int = 3, prototypes: int = 2, **flow) -> ProtoFlow:
    settings = {
        "image_shape": (1, 8, 8),
        "levels": 17,
        "units": (2,),
        "couplings": (2,),
        "mid_channels": (8,),
        "noise_growth": 2,
        "net_depth": 1,
        "net_growth": 8,
        "attention": False,
        "dequantization": "uniform",
    }
    config = DenseFlowConfig(**(settings | flow))
    return ProtoFlow(ModelConfig(num_classes, config, PrototypeConfig(prototypes)))


def random_split(num: int = 24, num_classes: int = 3, seed: int = 0) -> Split:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 17, (num, 1, 8, 8), generator=generator, dtype=torch.uint8)
    return Split(images, torch.arange(num) % num_classes)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model" / "model.safetensors")


def log_without_time(folder: Path) -> list[str]:
    """log.csv's rows less the last column, the minutes that it took."""
    lines = (folder / "log.csv").read_text().splitlines()
    assert lines[0].endswith(",minutes")
    return [line.rsplit(",", 1)[0] for line in lines]
