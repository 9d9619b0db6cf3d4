"""A run folder without training: K-means prototypes in the latent of a fresh flow.

On scikit-learn's digits that classifies well above chance, and is overconfident, as a run is.
"""

from pathlib import Path

from protoflows.data import load_data, training_splits
from protoflows.model import image_seeds
from protoflows.prototypes import initialize_mixtures
from protoflows.training.artefacts import make_extras
from protoflows.training.run import build_model, flow_for
from protoflows.training.runfolder import write_head, write_json
from tests.training.helpers import tiny_config


def untrained_run(folder: Path) -> Path:
    config = tiny_config(data={"limit": 700, "validation_fraction": 0.25})
    bundle = load_data(config.data)
    config = tiny_config(
        data={"limit": 700, "validation_fraction": 0.25},
        flow=vars(flow_for(config.flow, bundle)) | {"attention": False},
    )
    train = training_splits(bundle, config.data).train
    model = build_model(config, bundle)
    model.train()
    model.encode(train.images, seed=0)  # sets the actnorms
    model.eval()
    latent = model.encode(train.images, seed=image_seeds(0, len(train), 0, 0)).latent
    initialize_mixtures(model.mixtures, latent.detach(), train.labels, seed=0)
    model.extras = make_extras(model, bundle, train, {"accuracy": 0.5, "bits_per_dim": 4.0},
                               seed=0, batch_size=256)  # fmt: skip
    folder.mkdir(parents=True)
    write_head(folder, config, bundle, "classifier", None)
    model.save_pretrained(folder / "model")
    write_json(folder / "metrics.json", {"accuracy": 0.5})
    return folder
