"""Data-dependent start of the mixtures: K-means per class, or random."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from protoflows.prototypes.mixture import ClassMixtures

# Pseudo-members that pull a cluster's variance towards its class's, and a class's towards all.
_SHRINKAGE = 10.0
# A copied prototype is moved by this share of the spread, so that training can tell it apart.
_JITTER = 0.1
# Standard deviations start at least this far above the floor, where the gradient is still alive.
_FLOOR_FACTOR = 2.0


class _Clusters(NamedTuple):
    """A class's clusters: centres (K, D), summed squares (K, D) around them, members (K,)."""

    centre: np.ndarray
    square: np.ndarray
    members: np.ndarray


@torch.no_grad()
def initialize_mixtures(
    mixtures: ClassMixtures, embeddings: Tensor, labels: Tensor, seed: int
) -> None:
    """Start all mixtures, and an "empirical" prior, from labelled embeddings, in place.

    `config.init = "kmeans"`: the K-means centres of a class's embeddings are its means, cluster
    sizes its weights. A cluster's variance is shrunk towards the class's pooled within-cluster
    variance as if 10 members more had that variance (and the class's towards that of all classes in
    the same way): a cluster of one image has no variance of its own. Classes with fewer different
    embeddings than K repeat them, moved by a tenth of the spread, with a warning; a class without
    any starts from draws of all embeddings' normal.

    `config.init = "random"`: means are drawn from a normal with the mean and spread of all
    embeddings, standard deviations are `initial_std` times that spread, weights equal.

    All prototypes live afterwards. With several processes, call it on gathered embeddings in one
    of them and broadcast the parameters.

    Args:
        mixtures: what to start.
        embeddings: latents, (N, D) or (N, c, h, w).
        labels: (N,) class numbers; -1 (unlabelled) only counts for the overall spread.
        seed: seed of K-means and of every draw.
    """
    flat = mixtures.flatten(embeddings).detach().cpu()
    # K-means in float32 takes half the time and memory; moments below are summed in float64.
    points = (flat if flat.dtype == torch.float64 else flat.float()).numpy()
    classes = check_labels(labels, len(points), mixtures.num_classes).cpu().numpy()
    if not np.isfinite(points).all():
        raise ValueError("embeddings must be finite, got NaN or infinite values")
    if not (classes >= 0).any():
        raise ValueError("labels must name at least one class, got only -1 (unlabelled)")
    rng = np.random.default_rng(seed)
    if mixtures.config.init == "kmeans":
        mean, std, logits = _kmeans_start(mixtures, points, classes, rng)
    else:
        mean, std, logits = _random_start(mixtures, points, rng)
    floor = _FLOOR_FACTOR * mixtures.config.min_std
    device = mixtures.mean.device
    dtype = mixtures.mean.dtype  # converted on the CPU: not every device has float64
    mixtures.set_mixture(
        torch.from_numpy(mean).to(dtype).to(device),
        torch.from_numpy(np.maximum(std, floor)).to(dtype).to(device),
        torch.from_numpy(logits).to(dtype).to(device),
    )
    if mixtures.config.prior == "empirical":
        counts = np.bincount(classes[classes >= 0], minlength=mixtures.num_classes)
        # A class that is absent here may still occur: it counts as seen once.
        mixtures.set_prior(torch.from_numpy(np.maximum(counts, 1)).to(dtype).to(device))


def check_labels(labels: Tensor, count: int, num_classes: int) -> Tensor:
    """Labels (N,) as they are, or a ValueError that says what is wrong with them."""
    if labels.ndim != 1 or len(labels) != count:
        raise ValueError(f"labels must have shape ({count},), got {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"labels must be integers, got {labels.dtype}")
    if count and not -1 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise ValueError(
            f"labels must lie in -1..{num_classes - 1}, "
            f"got {int(labels.min())}..{int(labels.max())}"
        )
    return labels


def _random_start(
    mixtures: ClassMixtures, points: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shape = tuple(mixtures.mean.shape)
    spread = _spread(mixtures, points)
    mean = points.mean(axis=0, dtype=np.float64) + spread * rng.standard_normal(shape)
    std = np.broadcast_to(mixtures.config.initial_std * spread, shape)
    return mean, std, np.zeros(shape[:2])


def _spread(mixtures: ClassMixtures, points: np.ndarray) -> np.ndarray:
    """Standard deviation of each dimension; `initial_std` where the embeddings have none at all."""
    spread = points.std(axis=0, dtype=np.float64)
    return spread if spread.any() else np.full_like(spread, mixtures.config.initial_std)


def _kmeans_start(
    mixtures: ClassMixtures, points: np.ndarray, classes: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    wanted = mixtures.num_prototypes
    found: list[_Clusters | None] = []
    for c in range(mixtures.num_classes):
        own = points[classes == c]
        found.append(_cluster(own, wanted, rng) if len(own) else None)
    few = {c: 0 if f is None else len(f.centre) for c, f in enumerate(found)}
    few = {c: n for c, n in few.items() if n < wanted}
    if few:
        warnings.warn(
            f"fewer different embeddings than num_prototypes={wanted} in classes (class: number) "
            f"{few}; the other prototypes start as jittered copies",
            stacklevel=3,
        )
    spread = _spread(mixtures, points)
    square = sum(f.square.sum(axis=0) for f in found if f is not None)
    freedom = sum(int(f.members.sum()) - len(f.centre) for f in found if f is not None)
    # Clusters of single images say nothing of the variance: the spread of everything stands in.
    pooled = (square + _SHRINKAGE * spread**2) / (max(freedom, 0) + _SHRINKAGE)
    mean = np.empty((mixtures.num_classes, wanted, mixtures.num_dims))
    std = np.empty_like(mean)
    logits = np.zeros((mixtures.num_classes, wanted))
    for c, clusters in enumerate(found):
        if clusters is None:
            mean[c] = points.mean(axis=0) + spread * rng.standard_normal(mean[c].shape)
            std[c] = np.sqrt(pooled)
            continue
        mean[c], std[c], logits[c] = _class_start(clusters, pooled, wanted, rng)
    return mean, std, logits


def _cluster(points: np.ndarray, wanted: int, rng: np.random.Generator) -> _Clusters:
    # scikit-learn takes a second to import, and only this start needs it.
    from sklearn.cluster import KMeans

    distinct = len(np.unique(points, axis=0)) if len(points) <= 10 * wanted else wanted
    count = min(wanted, distinct)
    seed = int(rng.integers(2**31 - 1))
    kmeans = KMeans(count, n_init=3, max_iter=100, random_state=seed)
    with warnings.catch_warnings():
        # Fewer different points than clusters: the empty clusters are dropped below.
        warnings.filterwarnings("ignore", message="Number of distinct clusters")
        assigned = kmeans.fit_predict(points)
    members = np.bincount(assigned, minlength=count)
    kept = np.flatnonzero(members)
    groups = [points[assigned == k].astype(np.float64) for k in kept]
    centre = np.stack([group.mean(axis=0) for group in groups])
    square = np.stack([((group - group.mean(axis=0)) ** 2).sum(axis=0) for group in groups])
    return _Clusters(centre, square, members[kept])


def _class_start(
    clusters: _Clusters, pooled: np.ndarray, wanted: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    found = len(clusters.centre)
    freedom = int(clusters.members.sum()) - found
    own = (clusters.square.sum(axis=0) + _SHRINKAGE * pooled) / (freedom + _SHRINKAGE)
    variance = (clusters.square + _SHRINKAGE * own) / (clusters.members[:, None] + _SHRINKAGE)
    copies = np.arange(wanted) % found  # 0 .. found-1, then the same again
    mean, std = clusters.centre[copies], np.sqrt(variance[copies])
    jitter = rng.standard_normal((wanted - found, mean.shape[1]))
    mean[found:] += _JITTER * std[found:] * jitter
    share = np.bincount(copies, minlength=found)  # a cluster and its copies share its members
    logits = np.log(clusters.members / share)[copies]
    return mean, std, logits - math.log(clusters.members.sum())
