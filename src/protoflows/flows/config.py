"""What a flow is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_WHOLE = (
    "levels",
    "noise_growth",
    "net_depth",
    "net_growth",
    "dequantization_couplings",
    "dequantization_channels",
    "dequantization_depth",
    "dequantization_growth",
    "context_growth",
)


@dataclass(frozen=True)
class DenseFlowConfig:
    """Every choice that defines a `DenseFlow`; the defaults are the paper's.

    Attributes:
        image_shape: Channels, height and width of the images; any size (awkward ones are padded).
        levels: How many integer values a pixel can take: 256 for bytes, 17 for sklearn's digits.
        units: Units of each block; a block works at half the size of the one before.
        couplings: Couplings of each unit, by block.
        mid_channels: Width of the coupling nets, by block.
        noise_growth: Noise channels appended before every unit but a block's first; 0 appends none.
        net_depth: Layers of the coupling nets' dense blocks.
        net_growth: Channels each of those layers adds.
        attention: Whether Nyström attention stands beside the dense blocks.
        logit_alpha: Above 0, pixels go through a logit that is finite down to this margin: for
            images with much pure black or white, such as digits. 0: they are only centred.
        dequantization: How integers become continuous: by a learned flow or by uniform noise.
        dequantization_couplings: Couplings of the variational dequantiser.
        dequantization_channels: Width of its nets and of its context.
        dequantization_depth: Layers of its dense blocks.
        dequantization_growth: Growth of its coupling nets' dense blocks.
        context_growth: Growth of its context's dense blocks.
        memory: What training keeps: every activation, each layer's input, or each unit's ends.
        net_dtype: What coupling nets compute in; all else stays in the parameters' own precision.
    """

    image_shape: tuple[int, int, int] = (3, 32, 32)
    levels: int = 256
    units: tuple[int, ...] = (6, 4, 1)
    couplings: tuple[int, ...] = (5, 6, 20)
    mid_channels: tuple[int, ...] = (48, 48, 48)
    noise_growth: int = 10
    net_depth: int = 7
    net_growth: int = 64
    attention: bool = True
    logit_alpha: float = 0.0
    dequantization: Literal["variational", "uniform"] = "variational"
    dequantization_couplings: int = 4
    dequantization_channels: int = 64
    dequantization_depth: int = 4
    dequantization_growth: int = 64
    context_growth: int = 16
    memory: Literal["store", "checkpoint", "reversible"] = "store"
    net_dtype: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        """Check every field and freeze lists (as YAML and JSON give them) into tuples."""
        for name in ("image_shape", "units", "couplings", "mid_channels"):
            value = getattr(self, name)
            value = tuple(value) if isinstance(value, list | tuple) else (None,)
            if not value or any(
                not isinstance(v, int) or isinstance(v, bool) or v < 1 for v in value
            ):
                raise ValueError(f"{name} must be whole numbers ≥ 1, got {getattr(self, name)!r}")
            object.__setattr__(self, name, value)
        if len(self.image_shape) != 3:
            raise ValueError(
                f"image_shape must be (channels, height, width), got {self.image_shape}"
            )
        if not len(self.units) == len(self.couplings) == len(self.mid_channels):
            raise ValueError(
                "units, couplings and mid_channels must have one entry per block, got "
                f"{len(self.units)}, {len(self.couplings)} and {len(self.mid_channels)}"
            )
        kinds: tuple[tuple[str, type | tuple[type, ...], str], ...] = (
            *((name, int, "a whole number") for name in _WHOLE),
            ("logit_alpha", (int, float), "a number"),
            ("attention", bool, "true or false"),
        )
        for name, kind, wanted in kinds:
            value = getattr(self, name)
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                raise ValueError(f"{name} must be {wanted}, got {value!r}")
        if not 0 <= self.logit_alpha < 0.5:
            raise ValueError(
                f"logit_alpha must be at least 0 and below 0.5, got {self.logit_alpha}"
            )
        if not 2 <= self.levels <= 256:
            raise ValueError(f"levels must be in 2…256 (images are uint8), got {self.levels}")
        if self.attention and min(self.mid_channels) < 2:
            raise ValueError(f"mid_channels must be ≥ 2 with attention, got {self.mid_channels}")
        for name in (
            "noise_growth",
            "net_depth",
            "dequantization_depth",
            "dequantization_couplings",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be ≥ 0, got {getattr(self, name)}")
        for name in (
            "net_growth",
            "dequantization_channels",
            "dequantization_growth",
            "context_growth",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be ≥ 1, got {getattr(self, name)}")
        for name, allowed in (
            ("dequantization", ("variational", "uniform")),
            ("memory", ("store", "checkpoint", "reversible")),
            ("net_dtype", ("float32", "bfloat16")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} must be one of {', '.join(allowed)}; got {getattr(self, name)!r}"
                )

    @property
    def multiple(self) -> int:
        """What height and width are padded to a multiple of: 2 for each block."""
        return 2 ** len(self.units)

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the latent.

        Example:
            >>> DenseFlowConfig().latent_shape
            (308, 4, 4)
        """
        channels, height, width = self.image_shape
        channels *= 4
        for i, units in enumerate(self.units):
            channels = (2 * channels if i else channels) + (units - 1) * self.noise_growth
        return channels, -(-height // self.multiple), -(-width // self.multiple)

    @property
    def latent_dims(self) -> int:
        """D: how many numbers a latent is."""
        channels, height, width = self.latent_shape
        return channels * height * width

    @property
    def dims(self) -> int:
        """How many values an image has: what bits per dimension are counted over."""
        channels, height, width = self.image_shape
        return channels * height * width
