"""What a trained model takes along of its training data, for explanations later."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from protoflows.data import DataBundle, Split, mean_image
from protoflows.data.batches import derived_seed
from protoflows.data.splits import stratified_choice
from protoflows.model import Extras, ProtoFlow

_PER_CLASS = 8
_QUANTILE_IMAGES = 5_000


def make_extras(
    model: ProtoFlow,
    bundle: DataBundle,
    train: Split,
    metrics: Mapping[str, float],
    *,
    seed: int,
    batch_size: int,
) -> Extras:
    """Mean image, quantiles of log p(x) over training images, and a few images of every class.

    Args:
        model: The trained model.
        bundle: The data set.
        train: The images it was trained on.
        metrics: Figures on the test split.
        seed: Seed of the choice of images and of the noise.
        batch_size: Images per pass.
    """
    chosen = stratified_choice(
        train.labels, min(len(train), _QUANTILE_IMAGES), derived_seed(4, seed)
    )
    log_prob = model.log_prob(train.images[chosen], seed=seed, batch_size=batch_size)
    examples = []
    for label in range(bundle.num_classes):
        members = (train.labels == label).nonzero().flatten()
        generator = torch.Generator().manual_seed(derived_seed(5, seed, label))
        order = torch.randperm(len(members), generator=generator)[:_PER_CLASS]
        examples.append(members[order])
    shown = train.select(torch.cat(examples))
    return Extras(
        mean_image=mean_image(train),
        log_prob_quantiles=Extras.quantiles(log_prob),
        images=shown.images,
        labels=shown.labels,
        data_name=bundle.name,
        data_fingerprint=bundle.fingerprint,
        metrics=dict(metrics),
    )
