"""Published ProtoFlow checkpoints become a `ProtoFlow`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from protoflows.flows.reference import ReferenceCheckpoint, flow_from_reference, read_reference
from protoflows.model.config import ModelConfig
from protoflows.model.protoflow import ProtoFlow
from protoflows.prototypes import PrototypeConfig

# Published variances are clipped at 2.4e-38, which makes standard deviations of 3.9e-10 and more.
_MIN_STD = 1e-12
_OTHER_LAYOUTS = {"inv_cov_stds": "SSLGaussMixture", "gaussians": "GaussianMixtureConv2d"}


@dataclass(frozen=True, eq=False)
class _Mixtures:
    mean: Tensor  # (C, K, D)
    std: Tensor  # (C, K, D)
    logits: Tensor  # (C, K)


def import_reference(
    path: str | Path,
    image_shape: tuple[int, int, int] | None = None,
    class_names: Sequence[str] | None = None,
    ema: bool = False,
) -> ProtoFlow:
    """Load a published ProtoFlow checkpoint, in eval mode; its numbers are the published code's.

    Class priors are uniform, as there. Refused, because the published description leaves open how
    they score or because they are no mixture: mixtures of the kinds SSLGaussMixture and
    GaussianMixtureConv2d, and models with `likelihood_approach: max`, whose classes are scored by
    their best component instead of the sum.

    Args:
        path: A folder with `checkpoint*.pt` and `config.json`, or the `.pt` file.
        image_shape: Channels, height and width of the images; what the settings say when None.
        class_names: One name per class; numbers when None. The checkpoint has none.
        ema: Take the averaged weights, see `protoflows.flows.reference.load_reference`.
    """
    checkpoint = read_reference(path, ema=ema)
    mixtures = _read_mixtures(checkpoint)
    approach = checkpoint.settings.get("likelihood_approach")
    if approach == "max":
        raise ValueError(
            f"{checkpoint.path}: trained with likelihood_approach 'max', which scores a class by "
            "its best component; only the sum over components, a mixture's likelihood, is supported"
        )
    flow = flow_from_reference(checkpoint, image_shape)
    num_classes, num_prototypes, dims = mixtures.mean.shape
    if dims != flow.config.latent_dims:
        raise ValueError(
            f"{checkpoint.path}: its prototypes have {dims} dimensions, but images of shape "
            f"{flow.config.image_shape} make {flow.config.latent_dims}: give the right image_shape"
        )
    config = ModelConfig(
        num_classes,
        flow.config,
        PrototypeConfig(num_prototypes=num_prototypes, min_std=_MIN_STD),
        class_names=tuple(class_names or ()),
    )
    model = ProtoFlow(config, flow)
    model.mixtures.set_mixture(mixtures.mean, mixtures.std, mixtures.logits)
    return model.eval()


def _read_mixtures(checkpoint: ReferenceCheckpoint) -> _Mixtures:
    classes: dict[int, dict[str, Tensor]] = {}
    for key, value in checkpoint.mixtures.items():
        match = re.fullmatch(r"gmms\.(\d+)\.(.+)", key)
        if match is None:
            raise ValueError(f"{checkpoint.path}: unknown key {key!r}, expected gmms.CLASS.NAME")
        classes.setdefault(int(match[1]), {})[match[2]] = value
    if not classes:
        raise ValueError(
            f"{checkpoint.path} holds a flow without class mixtures (no keys gmms.…): it is a bare "
            "DenseFlow, to start training from"
        )
    if sorted(classes) != list(range(len(classes))):
        raise ValueError(
            f"{checkpoint.path}: its classes must be 0…{len(classes) - 1}, got {sorted(classes)}"
        )
    for c, entries in classes.items():
        _check_layout(checkpoint.path, c, entries)
    ordered = [classes[c] for c in range(len(classes))]
    shapes = {tuple(entries["mu"].shape) for entries in ordered}
    if len(shapes) > 1:
        raise ValueError(
            f"{checkpoint.path}: gmms.…mu differ in shape between classes: {sorted(shapes)}"
        )
    # It scores with precision var^(−1/2): the true variance is sqrt(var), the std var^(1/4).
    variance = torch.stack([entries["var"][0] for entries in ordered]).double().sqrt()
    return _Mixtures(
        torch.stack([entries["mu"][0] for entries in ordered]),
        variance.sqrt(),
        torch.stack([entries["pi"][0, :, 0] for entries in ordered]),
    )


def _check_layout(path: Path, c: int, entries: Mapping[str, Tensor]) -> None:
    for name in entries:
        layout = _OTHER_LAYOUTS.get(name.split(".")[0])
        if layout is not None:
            raise ValueError(
                f"{path}: gmms.{c}.{name} belongs to mixtures of the kind {layout}, which are not "
                "supported; only those with gmms.c.mu, gmms.c.var and gmms.c.pi are"
            )
    if sorted(entries) != ["mu", "pi", "var"]:
        raise ValueError(
            f"{path}: class {c} must have the entries mu, var and pi, got {sorted(entries)}"
        )
    mu, var, pi = entries["mu"], entries["var"], entries["pi"]
    if (
        mu.dim() != 3
        or len(mu) != 1
        or var.shape != mu.shape
        or tuple(pi.shape) != (1, mu.shape[1], 1)
    ):
        raise ValueError(
            f"{path}: class {c} must have mu and var (1, K, D) and pi (1, K, 1), got "
            f"{tuple(mu.shape)}, {tuple(var.shape)} and {tuple(pi.shape)}"
        )
    if not bool((var > 0).all()):  # NaN fails too
        raise ValueError(f"{path}: gmms.{c}.var must be above 0 everywhere")
