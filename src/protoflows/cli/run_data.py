"""A finished run with the data it was trained on, for commands that measure."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from protoflows.data import Augment, DataBundle, Split, load_data, training_splits
from protoflows.model import ProtoFlow, find_model_folder, load
from protoflows.model.shipped import shipped_models
from protoflows.training.config import TrainConfig
from protoflows.training.runfolder import CONFIG
from protoflows.training.settings import from_dict, read_yaml

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class OpenRun:
    """A run, its model and its data.

    Attributes:
        folder: The run's folder.
        model: Its model.
        config: Its settings.
        bundle: Its data set.
    """

    folder: Path
    model: ProtoFlow
    config: TrainConfig
    bundle: DataBundle

    def split(self, name: str) -> Split:
        """One of the splits as training saw them: train, validation or test."""
        if name not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {name!r}")
        parts = training_splits(self.bundle, self.config.data)
        split: Split = getattr(parts, name)
        if len(split) == 0:
            raise ValueError(f"split: {self.bundle.name} has no {name} images")
        return split

    def augment(self) -> Augment:
        """What moved the training images about, for test-time augmentation."""
        if not self.config.augmented:
            raise ValueError(
                f"tta: {self.folder} was trained without augmentation, so that moved images are "
                "nothing it knows: leave --tta out"
            )
        return Augment(self.config.augment, self.bundle.levels, self.bundle.flip)


def open_run(run: str | Path, *, data_root: str | None = None, device: str = "cpu") -> OpenRun:
    """Load a run's model and data.

    Args:
        run: The run's folder.
        data_root: Where the data set is now; None takes the place that training read it from.
        device: Where the model is to be.
    """
    folder = Path(run).expanduser()
    if not folder.is_dir():
        hint = ""
        if str(run) in shipped_models():
            hint = (
                f". The model {run} that ships with the package comes without its run: train one "
                "(protoflows train)"
            )
        raise FileNotFoundError(f"RUN: there is no folder {folder}{hint}")
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            f"RUN: {folder} holds no run ({CONFIG}, which names its data, is missing)"
        )
    if find_model_folder(folder) is None and (folder / "flow").is_dir():
        raise ValueError(f"RUN: {folder} is a flow alone, from `protoflows pretrain`: no classes")
    config = from_dict(TrainConfig, read_yaml(folder / CONFIG))
    model = load(folder, device=device)
    settings = config.data if data_root is None else replace(config.data, root=data_root)
    bundle = load_data(settings)
    wanted = tuple(model.config.flow.image_shape)
    if bundle.image_shape != wanted or bundle.num_classes != model.config.num_classes:
        raise ValueError(
            f"data: {bundle.name} has images {bundle.image_shape} of {bundle.num_classes} classes, "
            f"the model in {folder} takes {wanted} of {model.config.num_classes}"
        )
    known = model.extras.data_fingerprint if model.extras is not None else ""
    if known and known != bundle.fingerprint:
        print(
            f"note: {bundle.name} is not byte for byte the data that {folder} was trained on",
            file=sys.stderr,
        )
    return OpenRun(folder, model, config, bundle)
