"""Published DenseFlow and ProtoFlow checkpoints become a `DenseFlow`."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protoflows.flows.config import DenseFlowConfig
from protoflows.flows.denseflow import DenseFlow
from protoflows.flows.safe_pickle import load_namespace, load_torch

_NET = [  # parts of a coupling net, theirs → ours
    (r"transform\.0\.", "project_in."),
    (r"transform\.1\.mha\.qkv\.", "attention.qkv."),
    (r"transform\.1\.mha\.out_transform\.", "attention.out."),
    (r"transform\.1\.mix_conv\.0\.", "norm."),
    (r"transform\.1\.mix_conv\.2\.", "mix."),
    (r"transform\.2\.", "project_out."),
    (r"transform\.1\.dense\.", "dense."),
]
_DENSE = [
    (r"(\d+)\.nn\.0\.", r"pointwise.\1."),
    (r"(\d+)\.nn\.2\.", r"spatial.\1."),
    (r"\d+\.conv\.", "gate."),
]


@dataclass(frozen=True)
class ReferenceCheckpoint:
    """What a published checkpoint holds, read without running any code in it.

    Attributes:
        path: The file the weights come from.
        flow: The flow's tensors under their published names, `transforms.…` and `base_dist.…`.
        mixtures: The class mixtures' tensors, `gmms.…`; empty for a bare DenseFlow.
        settings: The arguments it was trained with, as far as they lie beside it.
    """

    path: Path
    flow: Mapping[str, Tensor]
    mixtures: Mapping[str, Tensor]
    settings: Mapping[str, Any]


def load_reference(
    path: str | Path, image_shape: tuple[int, int, int] | None = None, *, ema: bool = False
) -> DenseFlow:
    """Load a published DenseFlow or ProtoFlow checkpoint as a `DenseFlow`.

    It comes in eval mode and computes in float32.

    Args:
        path: A folder or a `.pt` file in the published layout.
        image_shape: Channels, height and width of the images; no weight fixes the size. Default:
            what the settings beside the checkpoint say, else 3x32x32.
        ema: Take the averaged weights. Their batch-norm statistics are those of the plain weights;
            a warning says so.
    """
    return flow_from_reference(read_reference(path, ema=ema), image_shape)


def read_reference(path: str | Path, *, ema: bool = False) -> ReferenceCheckpoint:
    """Read a checkpoint's tensors and settings; nothing in it is executed."""
    file = _find_checkpoint(Path(path))
    settings = _read_settings(file)
    content = load_torch(file)
    name = "model_ema" if ema else "model"
    state = content.get(name)
    if not isinstance(state, Mapping):
        raise ValueError(
            f"{file} has no entry {name!r}; it holds: {', '.join(map(str, content)) or 'nothing'}"
        )
    if ema:
        warnings.warn(
            f"{file.name}: averaged weights, but batch-norm statistics of the plain ones; "
            "estimate them again on training images before trusting likelihoods",
            stacklevel=3,
        )
    flow: dict[str, Tensor] = {}
    mixtures: dict[str, Tensor] = {}
    odd: list[str] = []
    for key, value in state.items():
        plain = str(key).removeprefix("module.")
        if not isinstance(value, Tensor):
            odd.append(plain)
        elif plain.startswith("gmms."):
            mixtures[plain] = value
        elif plain != "n_averaged":
            flow[plain.removeprefix("model.")] = value
    if odd:
        raise ValueError(f"{file}: entries that are not tensors: {_some(odd)}")
    return ReferenceCheckpoint(file, flow, mixtures, settings)


def flow_from_reference(
    checkpoint: ReferenceCheckpoint, image_shape: tuple[int, int, int] | None = None
) -> DenseFlow:
    """Build the flow that a checkpoint describes and fill in its weights.

    Every key is accounted for.
    """
    config = infer_config(checkpoint, image_shape)
    flow = DenseFlow(config)
    expected = flow.state_dict()
    found: dict[str, Tensor] = {}
    left_over: list[str] = []
    wrong: list[str] = []
    for key, value in checkpoint.flow.items():
        if _is_constant(key, value, wrong):
            continue
        name = translate_key(key)
        if name is None or name not in expected:
            left_over.append(key)
        elif _sizes(value) != _sizes(expected[name]):
            wrong.append(
                f"{key}: shape {tuple(value.shape)}, expected {tuple(expected[name].shape)}"
            )
        else:
            found[name] = value.reshape(expected[name].shape).to(expected[name].dtype)
    missing = [name for name in expected if name not in found and name not in ("loc", "log_scale")]
    if missing or left_over or wrong:
        raise ValueError(_report(checkpoint.path, missing, left_over, wrong))
    flow.load_state_dict(found, strict=False)
    return flow.eval()


def _sizes(value: Tensor) -> list[int]:
    """A tensor's sizes but for ones, which (1, C, 1, 1) has more of than (C,)."""
    return [size for size in value.shape if size != 1]


def translate_key(key: str) -> str | None:
    """Return our name of a published key, or None where it is unknown.

    Example:
        >>> translate_key("transforms.3.blocks.1.transforms.2.transforms.0.shift")
        'blocks.0.units.1.layers.8.shift'
    """
    if key in ("base_dist.loc", "base_dist.log_scale"):
        return key.removeprefix("base_dist.")
    if match := re.fullmatch(r"transforms\.0\.encoder\.base_dist\.(loc|log_scale)", key):
        return f"dequantization.{match[1]}"
    if match := re.fullmatch(r"transforms\.0\.encoder\.context_init\.([123])\.(.+)", key):
        return f"dequantization.context.{int(match[1]) - 1}.{_rename(match[2], _DENSE)}"
    if match := re.fullmatch(r"transforms\.0\.encoder\.transforms\.(\d+)\.weight", key):
        return f"dequantization.chain.layers.{match[1]}.weight"
    if match := re.fullmatch(
        r"transforms\.0\.encoder\.transforms\.(\d+)\.coupling_net\.0\.(.+)", key
    ):
        return f"dequantization.chain.layers.{match[1]}.net.{_rename(match[2], _NET, _DENSE)}"
    if match := re.fullmatch(
        r"transforms\.(\d+)\.noise_params\.(\d+)\.transformation\.([02])\.(\w+)", key
    ):
        return f"blocks.{(int(match[1]) - 3) // 2}.noise.{match[2]}.net.{match[3]}.{match[4]}"
    pattern = (
        r"transforms\.(\d+)\.blocks\.(\d+)\.transforms\.(\d+)\.transforms\.([012])\."
        r"(?:coupling_net\.0\.dn\.)?(.+)"
    )
    if match := re.fullmatch(pattern, key):
        block, layer = (int(match[1]) - 3) // 2, 4 * int(match[3]) + int(match[4])
        rest = f"net.{_rename(match[5], _NET, _DENSE)}" if match[4] == "2" else match[5]
        return f"blocks.{block}.units.{match[2]}.layers.{layer}.{rest}"
    return None


def infer_config(
    checkpoint: ReferenceCheckpoint, image_shape: tuple[int, int, int] | None = None
) -> DenseFlowConfig:
    """Read the architecture off the tensors' names and shapes.

    Settings beside them have to agree.
    """
    keys, path = checkpoint.flow, checkpoint.path
    blocks: dict[int, dict[int, int]] = {}
    for key in keys:
        if match := re.match(r"transforms\.(\d+)\.blocks\.(\d+)\.transforms\.(\d+)\.", key):
            units = blocks.setdefault(int(match[1]), {})
            units[int(match[2])] = max(units.get(int(match[2]), 0), int(match[3]) + 1)
    if not blocks or "transforms.0.encoder.base_dist.loc" not in keys:
        raise ValueError(
            f"{path} is not in the layout of the published checkpoints: "
            "no keys transforms.N.blocks… and transforms.0.encoder.base_dist.loc "
            f"among its {len(keys)} flow keys ({_some(list(keys))})"
        )
    first = sorted(blocks)[0]
    in_block = ".blocks.0.transforms.0.transforms.2.coupling_net.0.dn.transform."
    net = f"transforms.{first}{in_block}"
    channels = keys["transforms.0.encoder.base_dist.loc"].numel() // 4
    dequantizer = "transforms.0.encoder."
    conditional = dequantizer + "transforms.1.coupling_net.0.transform.1.dense."
    try:
        config = DenseFlowConfig(
            image_shape=_image_shape(checkpoint, channels, image_shape),
            units=tuple(len(blocks[b]) for b in sorted(blocks)),
            couplings=tuple(max(blocks[b].values()) for b in sorted(blocks)),
            mid_channels=tuple(
                len(keys[f"transforms.{b}{in_block}0.weight"]) for b in sorted(blocks)
            ),
            noise_growth=_noise_growth(keys),
            net_depth=_depth(keys, net + "1.dense."),
            net_growth=len(keys[net + "1.dense.0.nn.2.weight"]),
            dequantization_couplings=sum(
                bool(re.fullmatch(re.escape(dequantizer) + r"transforms\.\d+\.weight", k))
                for k in keys
            )
            - 1,
            dequantization_channels=len(keys[dequantizer + "context_init.2.weight"]),
            dequantization_depth=_depth(keys, conditional),
            dequantization_growth=len(keys[conditional + "0.nn.2.weight"]),
            context_growth=len(keys[dequantizer + "context_init.1.0.nn.2.weight"]),
        )
    except KeyError as error:
        raise ValueError(
            f"{path}: the key {error.args[0]} is missing, the architecture cannot be read off"
        ) from None
    _check_settings(checkpoint, config)
    return config


def _find_checkpoint(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}: neither a folder nor a file")
    candidates = [
        path / "check" / "checkpoint.pt",
        *sorted(path.glob("checkpoint*.pt"), key=lambda p: p.stat().st_mtime)[::-1],
    ]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(
        f"{path} holds neither check/checkpoint.pt (DenseFlow) nor checkpoint*.pt (ProtoFlow)"
    )


def _read_settings(file: Path) -> dict[str, Any]:
    """Return config.json's content, flow arguments included, or args.pickle's, or nothing."""
    for folder in (file.parent, file.parent.parent):
        if (folder / "config.json").is_file():
            return _read_config(folder / "config.json")
        if (folder / "args.pickle").is_file():
            return load_namespace(folder / "args.pickle")
        if file.parent.name != "check":
            break
    return {}


def _read_config(file: Path) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not readable as JSON: {error}") from None
    if not isinstance(settings, dict):
        raise ValueError(f"{file} must hold an object, got {type(settings).__name__}")
    flow_args = settings.get("flow_args") or {}
    if not isinstance(flow_args, dict):
        raise ValueError(f"{file}: flow_args must be an object, got {type(flow_args).__name__}")
    return {**flow_args, **settings}


def _check_settings(checkpoint: ReferenceCheckpoint, config: DenseFlowConfig) -> None:
    expected = {
        "block_conf": config.units,
        "layers_conf": config.couplings,
        "layer_mid_chnls": config.mid_channels,
        "growth_rate": config.noise_growth,
    }
    for name, value in expected.items():
        given = checkpoint.settings.get(name)
        given = tuple(given) if isinstance(given, list | tuple) else given
        # Without a second unit no weight shows the growth.
        if (
            given is not None
            and given != value
            and not (name == "growth_rate" and max(config.units) == 1)
        ):
            raise ValueError(
                f"{checkpoint.path}: its settings say {name}={given}, its weights {value}"
            )


def _image_shape(
    checkpoint: ReferenceCheckpoint, channels: int, image_shape: tuple[int, int, int] | None
) -> tuple[int, int, int]:
    if image_shape is not None:
        shape = tuple(image_shape)
        if len(shape) != 3 or shape[0] != channels:
            raise ValueError(
                f"image_shape must be (channels, height, width) with the checkpoint's {channels} "
                f"channels, got {shape}"
            )
        return image_shape
    size = checkpoint.settings.get("img_size", 32)
    sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
    if len(sides) != 2 or not all(isinstance(side, int) for side in sides):
        raise ValueError(
            f"{checkpoint.path}: its settings say img_size={size!r}, which is no size in pixels: "
            "give image_shape"
        )
    return channels, *sides


def _is_constant(key: str, value: Tensor, wrong: list[str]) -> bool:
    """Check tensors that are no weights; only the published values are supported."""
    constants = {
        "transforms.1._shift": -0.5,
        "transforms.1._scale": 1.0,
        "transforms.0.ldj_per_dim": -math.log(256),
    }
    if key in constants or re.fullmatch(
        r"transforms\.0\.encoder\.transforms\.\d+\.temperature", key
    ):
        wanted = constants.get(key, 1.0)
        if not torch.allclose(value.double(), torch.tensor(wanted, dtype=torch.float64), atol=1e-5):
            wrong.append(f"{key} = {value.flatten().tolist()}: only {wanted:.6g} is supported")
        return True
    return re.fullmatch(r"transforms\.\d+\.dist\.buffer", key) is not None


def _noise_growth(keys: Mapping[str, Tensor]) -> int:
    for key, value in keys.items():
        if re.fullmatch(r"transforms\.\d+\.noise_params\.\d+\.transformation\.2\.weight", key):
            return len(value) // 2
    return 0


def _depth(keys: Mapping[str, Tensor], prefix: str) -> int:
    return sum(bool(re.fullmatch(re.escape(prefix) + r"\d+\.nn\.0\.weight", key)) for key in keys)


def _rename(name: str, *rules: list[tuple[str, str]]) -> str:
    """Apply the first list's first fitting rule to the start of a name.

    Those of later lists apply wherever they fit.
    """
    for pattern, new in rules[0]:
        if re.match(pattern, name):
            name = re.sub("^" + pattern, new, name)
            break
    for more in rules[1:]:
        for pattern, new in more:
            if name.startswith("dense.") and re.match(pattern, name.removeprefix("dense.")):
                return "dense." + re.sub("^" + pattern, new, name.removeprefix("dense."))
    return name


def _some(names: list[str], limit: int = 6) -> str:
    return ", ".join(names[:limit]) + (
        f" … and {len(names) - limit} more" if len(names) > limit else ""
    )


def _report(path: Path, missing: list[str], left_over: list[str], wrong: list[str]) -> str:
    lines = [f"{path} does not fill the flow that its keys describe:"]
    for title, names in (("missing", missing), ("left over", left_over), ("wrong", wrong)):
        if names:
            lines.append(f"  {title} ({len(names)}): {_some(names, 10)}")
    return "\n".join(lines)
