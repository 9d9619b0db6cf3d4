"""Training in memory: arrays in, a model out, nothing written and nothing printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from protoflows.data import DataBundle, Split
from protoflows.model import ProtoFlow
from protoflows.training.artefacts import make_extras
from protoflows.training.config import TrainConfig
from protoflows.training.recipes import read_recipe
from protoflows.training.run import augmentation, build_model, flow_for
from protoflows.training.settings import from_dict, merge


def fit_arrays(
    train: Split,
    *,
    num_classes: int,
    levels: int,
    image_shape: tuple[int, int, int],
    epochs: int,
    seed: int,
    validation: Split | None = None,
    recipe: str = "digits",
    class_names: tuple[str, ...] = (),
    **overrides: Mapping[str, Any] | Any,
) -> ProtoFlow:
    """Train a model on images in memory.

    Args:
        train: Training images and labels.
        num_classes: Number of classes.
        levels: Number of values that a pixel can take.
        image_shape: Channels, height and width, those of the training images.
        epochs: Passes over the images.
        seed: Seed of everything.
        validation: Images to choose the best epoch by, if any.
        recipe: Whose settings to start from.
        class_names: One name per class; numbers when empty.
        **overrides: Settings by section, as in a recipe: `optim={"lr": 1e-3}`, `augmented=False`.
    """
    if tuple(train.images.shape[1:]) != tuple(image_shape):
        raise ValueError(
            f"image_shape must be that of the training images, {tuple(train.images.shape[1:])}, "
            f"got {tuple(image_shape)}"
        )
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}")
    from protoflows.training.engine import fit
    from protoflows.training.task import ClassifierTask

    quiet = {"progress": False, "tensorboard": False, "accelerator": "cpu"}
    given = {"optim": {"epochs": epochs}, "seed": seed, "trainer": quiet}
    config = from_dict(TrainConfig, merge(read_recipe(recipe), given, overrides))
    names = class_names or tuple(str(c) for c in range(num_classes))
    empty = Split(train.images[:0], train.labels[:0])
    bundle = DataBundle("arrays", train, empty, names, levels, validation=validation)
    config = replace(config, flow=flow_for(config.flow, bundle))
    task = ClassifierTask(build_model(config, bundle), config)
    fit(task, config, train, validation, augmentation(config, bundle))
    model = task.model.compute_in("float32")
    model.mixtures.requires_grad_(True)
    model.extras = make_extras(
        model, bundle, train, {}, seed=seed, batch_size=config.trainer.eval_batch_size
    )
    return model
