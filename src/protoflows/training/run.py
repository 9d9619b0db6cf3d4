"""A run from beginning to end: data, training, figures, the saved model, and going on."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from protoflows.data import Augment, DataBundle, Split, load_data, training_splits
from protoflows.flows import DenseFlow, DenseFlowConfig
from protoflows.model import ModelConfig, ProtoFlow
from protoflows.training.artefacts import make_extras
from protoflows.training.checkpoint import read_checkpoint
from protoflows.training.config import TrainConfig
from protoflows.training.flow_weights import FOLDER, pretrained_flow, save_flow
from protoflows.training.measuring import measure
from protoflows.training.runfolder import (
    CONFIG,
    METRICS,
    VERSIONS,
    check_writable,
    create_run_folder,
    read_head,
    write_head,
    write_json,
)
from protoflows.training.settings import from_dict, read_yaml

if TYPE_CHECKING:
    from protoflows.training.engine import Outcome

# Weights, moving average, two moments, the best epoch's average, twice while one is replaced.
_COPIES_ON_DISK = 10
_ROOM_FOR_THE_REST = 20 * 2**20


class Run(NamedTuple):
    """What a run came to.

    Attributes:
        folder: Where everything is.
        metrics: Figures on the test images; empty where it was interrupted.
        signal: Number of the signal that interrupted it; 0 where it is complete.
        is_first_process: Whether this process is the one that wrote.
    """

    folder: Path
    metrics: dict[str, float]
    signal: int = 0
    is_first_process: bool = True


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    overwrite: bool = False,
    argv: Sequence[str] | None = None,
) -> Run:
    """Train a classifier into a new run folder.

    Args:
        config: Everything about it. `flow.image_shape` and `flow.levels` come from the data.
        out: The run's folder.
        overwrite: Whether a run that is there already may be replaced.
        argv: The command that was given, for versions.json.
    """
    return _begin(config, Path(out), "classifier", overwrite, argv)


def pretrain(
    config: TrainConfig,
    out: str | Path,
    *,
    overwrite: bool = False,
    argv: Sequence[str] | None = None,
) -> Run:
    """Train the flow alone, by its unconditional density; arguments as in `train`.

    The result, `out`/flow, is a starting point for `train` (`flow_weights`).
    """
    # Neither classes nor a second view mean anything here.
    loss = replace(config.loss, cross_entropy=0.0, elbo=1.0, consistency=0.0, diversity=0.0)
    return _begin(replace(config, loss=loss), Path(out), "density", overwrite, argv)


def resume(folder: str | Path) -> Run:
    """Go on with a run that was interrupted, exactly where its last checkpoint stands.

    Without a checkpoint it begins anew, from the same seed. A run that is complete is left alone.
    """
    place = Path(folder)
    head = read_head(place)
    config = from_dict(TrainConfig, read_yaml(place / CONFIG))
    kind = str(head.get("kind"))
    if kind == "import":
        raise ValueError(
            f"resume: {place} is an imported checkpoint: there is no training to go on with"
        )
    if kind not in ("classifier", "density"):
        raise ValueError(f"resume: {place / VERSIONS} names no known kind of run, but {kind!r}")
    if (place / METRICS).is_file():
        try:
            return Run(place, json.loads((place / METRICS).read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(
                f"resume: {place / METRICS} is damaged ({error}): delete it and resume, and it is "
                "measured again"
            ) from error
    bundle = load_data(config.data)
    if bundle.fingerprint != head.get("data_fingerprint"):
        raise ValueError(
            f"resume: the data ({config.data.name}) is not what {place} was begun with: its "
            f"fingerprint is {bundle.fingerprint[:12]}…, the run's "
            f"{str(head.get('data_fingerprint'))[:12]}…"
        )
    last, best = place / "checkpoints" / "last.ckpt", place / "checkpoints" / "best.ckpt"
    state = read_checkpoint(last, kind) if last.is_file() else None
    best_average = None
    if state is not None and state["progress"]["best"] is not None and best.is_file():
        best_average = read_checkpoint(best, kind)["average"]
    check_writable(place)
    return _fit(config, place, bundle, kind, state, best_average)


def _begin(
    config: TrainConfig, out: Path, kind: str, overwrite: bool, argv: Sequence[str] | None
) -> Run:
    bundle = load_data(config.data)
    check_classes(bundle)
    config = replace(config, flow=flow_for(config.flow, bundle))
    if config.flow_weights is not None:
        # Written down as it is: the run can go on when those weights have been moved away.
        flow = pretrained_flow(config.flow_weights, config.flow).config
        config = replace(config, flow=flow)
    if _is_first_process():
        with torch.device("meta"):  # sizes only
            model = DenseFlow(config.flow)
        classes = 0 if kind == "density" else bundle.num_classes
        mixtures = 2 * classes * config.prototypes.num_prototypes * config.flow.latent_dims
        numbers = sum(p.numel() for p in model.parameters()) + mixtures
        needed = 4 * _COPIES_ON_DISK * numbers + _ROOM_FOR_THE_REST
        create_run_folder(out, overwrite=overwrite, needed_bytes=needed)
        write_head(out, config, bundle, kind, argv)
    return _fit(config, out, bundle, kind, None, None)


def _fit(
    config: TrainConfig,
    folder: Path,
    bundle: DataBundle,
    kind: str,
    state: dict[str, Any] | None,
    best_average: Any,
) -> Run:
    from protoflows.training.engine import fit
    from protoflows.training.task import ClassifierTask, DensityTask

    train, validation, test = training_splits(bundle, config.data)
    task: ClassifierTask | DensityTask
    start = config if state is None else replace(config, flow_weights=None)
    if kind == "classifier":
        task = ClassifierTask(build_model(start, bundle), config)
    else:
        task = DensityTask(build_flow(start), config)
    outcome = fit(
        task, config, train, validation, augmentation(config, bundle),
        kind=kind, folder=folder, state=state, best_average=best_average,
    )  # fmt: skip
    if outcome.signal or not outcome.is_first_process:
        return Run(folder, {}, outcome.signal, outcome.is_first_process)
    if isinstance(task, ClassifierTask):
        metrics = _finish_classifier(task.model, config, folder, bundle, train, test)
    else:
        metrics = _finish_flow(task, folder, test)
    _note_time(folder, outcome)
    write_json(folder / METRICS, metrics)  # last: it says that the run is complete
    return Run(folder, metrics)


def _finish_classifier(
    model: ProtoFlow,
    config: TrainConfig,
    folder: Path,
    bundle: DataBundle,
    train: Split,
    test: Split,
) -> dict[str, float]:
    size = config.trainer.eval_batch_size
    model.compute_in("float32")  # whatever trained fastest: decoding is to be exact
    metrics = measure(
        model, test, samples=config.trainer.test_samples, seed=config.seed, batch_size=size
    )
    model.extras = make_extras(model, bundle, train, metrics, seed=config.seed, batch_size=size)
    model.mixtures.requires_grad_(True)  # EM had no use for their gradients
    model.save_pretrained(folder / "model")
    return metrics


def _finish_flow(task: Any, folder: Path, test: Split) -> dict[str, float]:
    from protoflows.training.datamodule import validation_batches
    from protoflows.training.task import Sums

    task.model.compute_in("float32")
    sums = Sums()
    if len(test):
        for batch in validation_batches(test, task.config):
            sums = sums.plus(task.validate(batch))
    save_flow(task.model, folder / FOLDER)
    dims = task.model.config.dims
    bits = sums.bits_per_dim / max(1.0, sums.images)
    return {
        "bits_per_dim": bits,
        "bits_per_image": bits * dims,
        "dims": dims,
        "levels": task.model.config.levels,
        "images": int(sums.images),
        "samples": 1,
    }


def _note_time(folder: Path, outcome: Outcome) -> None:
    head = read_head(folder)
    head["minutes"] = round(outcome.progress.elapsed, 3)
    head["epochs"] = outcome.progress.epoch
    head["steps"] = outcome.progress.step
    head["skipped_steps"] = outcome.progress.skipped
    write_json(folder / VERSIONS, head)


# ---- parts that other ways of training share -----------------------------------------------


def check_classes(bundle: DataBundle) -> None:
    """Refuse data that there is nothing to tell apart in."""
    if bundle.num_classes < 2:
        raise ValueError(
            f"data set {bundle.name!r} has one class ({bundle.class_names[0]}): a classifier needs "
            "two or more, one sub-folder each"
        )


def flow_for(config: DenseFlowConfig, bundle: DataBundle) -> DenseFlowConfig:
    """The flow's settings for a data set's images."""
    return replace(config, image_shape=bundle.image_shape, levels=bundle.levels)


def augmentation(config: TrainConfig, bundle: DataBundle) -> Augment | None:
    """What moves training images about, or None."""
    if not config.augmented:
        return None
    return Augment(config.augment, bundle.levels, bundle.flip)


def build_flow(config: TrainConfig) -> DenseFlow:
    """A fresh flow from the run's seed, or one with the weights that the run starts from."""
    from protoflows.training.engine import seeded

    if config.flow_weights is not None:
        return pretrained_flow(config.flow_weights, config.flow)
    with seeded(config.seed):
        return DenseFlow(config.flow)


def build_model(config: TrainConfig, bundle: DataBundle) -> ProtoFlow:
    """The model before training; its mixtures get their start from the data."""
    flow = build_flow(config)
    about = ModelConfig(
        num_classes=bundle.num_classes,
        flow=flow.config,
        prototypes=config.prototypes,
        class_names=bundle.class_names,
    )
    return ProtoFlow(about, flow)


def _is_first_process() -> bool:
    """Whether this is the process that writes, before any trainer knows: launchers say so."""
    names = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")
    return all(os.environ.get(name, "0") == "0" for name in names)
