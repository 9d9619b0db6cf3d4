"""Published checkpoints become runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from protoflows.data import DataConfig, load_data
from protoflows.model import import_reference
from protoflows.training.artefacts import make_extras
from protoflows.training.config import TrainConfig
from protoflows.training.measuring import measure
from protoflows.training.runfolder import (
    METRICS,
    create_run_folder,
    write_head,
    write_json,
    write_provenance,
)


def import_checkpoint(
    source: str | Path,
    out: str | Path,
    *,
    data: str | None = None,
    data_root: str | None = None,
    image_size: int | None = None,
    ema: bool = False,
    samples: int = 1,
    limit: int | None = None,
    overwrite: bool = False,
    argv: Sequence[str] | None = None,
) -> dict[str, float]:
    """Make a run of a published ProtoFlow checkpoint; its figures where there is data.

    Args:
        source: The checkpoint's folder or file.
        out: The run's folder.
        data: Name or folder of the data set it was trained on; without it nothing is measured.
        data_root: Where a named data set lies.
        image_size: Side of the images; as published when None.
        ema: Take the averaged weights.
        samples: Noise draws per test image.
        limit: Measure on at most so many images.
        overwrite: Whether a run that is there already may be replaced.
        argv: The command that was given, for versions.json.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    shape = None if image_size is None else (3, image_size, image_size)
    model = import_reference(source, image_shape=shape, ema=ema)
    folder = Path(out)
    size = sum(p.numel() for p in model.parameters()) * 4
    if data is None:
        create_run_folder(folder, overwrite=overwrite, needed_bytes=size)
        write_provenance(folder, "import", argv)  # no config.yaml: it would have to name data
        model.save_pretrained(folder / "model")
        return {}
    flow = model.config.flow
    about = DataConfig(
        name=data, root=data_root, image_size=flow.image_shape[1], channels=3, limit=limit
    )
    bundle = load_data(about)
    if bundle.num_classes != model.config.num_classes:
        raise ValueError(
            f"data: {data} has {bundle.num_classes} classes, the checkpoint has "
            f"{model.config.num_classes}"
        )
    create_run_folder(folder, overwrite=overwrite, needed_bytes=size)
    config = TrainConfig(data=about, flow=flow, prototypes=model.config.prototypes)
    write_head(folder, config, bundle, "import", argv)
    model.config = replace(model.config, class_names=bundle.class_names)
    metrics = measure(model, bundle.test, samples=samples, seed=0, batch_size=64)
    model.extras = make_extras(model, bundle, bundle.train, metrics, seed=0, batch_size=64)
    model.save_pretrained(folder / "model")
    write_json(folder / METRICS, metrics)
    return metrics
