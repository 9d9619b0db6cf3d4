"""The figures of metrics.json: a trained model on its test images."""

from __future__ import annotations

import math

import torch

from protoflows.data import Split
from protoflows.model import ProtoFlow, image_seeds


@torch.no_grad()
def measure(
    model: ProtoFlow, split: Split, *, samples: int, seed: int, batch_size: int = 256
) -> dict[str, float]:
    """Accuracy and likelihood with several draws of the noise, from one pass per image and draw.

    `accuracy` and `cross_entropy` (nats): log p(x|c) averaged over draws, then Bayes' rule;
    `accuracy_importance` compares log-mean-exps instead. `bits_per_image` is -log2 p(x), marginal
    over classes with their priors, by the importance-weighted bound
    log p(x) ≥ log Σ_c p(c) mean_s p_s(x|c); `bits_per_image_mean_bound` by the looser average of
    one-draw bounds. Per dimension: over the image's C·H·W values (`dims`).

    Args:
        model: The model.
        split: Labelled images; those with label -1 only count for the likelihood.
        samples: Draws per image.
        seed: From which all draws follow.
        batch_size: Images per pass.
    """
    if len(split) == 0:
        return {"images": 0}
    device, prior = model.mixtures.mean.device, model.mixtures.log_prior
    correct = importance_correct = labelled = 0
    cross_entropy = importance = mean_bound = 0.0
    for start in range(0, len(split), batch_size):
        x = split.images[start : start + batch_size].to(device)
        y = split.labels[start : start + batch_size].to(device)
        draws = [
            model.score(x, seeds=image_seeds(start, len(x), s, seed)).log_prob_classes
            for s in range(samples)
        ]
        table = torch.stack(draws)
        mean, best = table.mean(0), table.logsumexp(0) - math.log(samples)
        known = y >= 0
        posterior = model.classify(mean)[known]
        labelled += int(known.sum())
        correct += int((posterior.argmax(1) == y[known]).sum())
        importance_correct += int((model.classify(best)[known].argmax(1) == y[known]).sum())
        cross_entropy -= float(posterior.gather(1, y[known].unsqueeze(1)).sum())
        importance -= float((best + prior).logsumexp(1).sum())
        mean_bound -= float((table + prior).logsumexp(2).mean(0).sum())
    bits = importance / len(split) / math.log(2)
    dims = model.flow.config.dims
    metrics = {
        "bits_per_dim": bits / dims,
        "bits_per_image": bits,
        "bits_per_image_mean_bound": mean_bound / len(split) / math.log(2),
        "dims": dims,
        "levels": model.flow.config.levels,
        "images": len(split),
        "samples": samples,
    }
    if labelled:
        scores = {
            "accuracy": correct / labelled,
            "accuracy_importance": importance_correct / labelled,
            "cross_entropy": cross_entropy / labelled,
        }
        metrics = {**scores, **metrics}
    return metrics
