"""Models as folders: safetensors, config.json and a card. Nothing in them is ever executed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, constants
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from protoflows._version import __version__
from protoflows.model.card import CARD_MARK, model_card
from protoflows.model.config import ModelConfig
from protoflows.model.extras import Extras

if TYPE_CHECKING:
    from protoflows.model.protoflow import ProtoFlow

WeightsDtype = Literal["float32", "float16", "bfloat16"]

WEIGHTS_FILE = constants.SAFETENSORS_SINGLE_FILE
CONFIG_FILE = constants.CONFIG_NAME
EXTRAS_FILE = "extras.safetensors"
CARD_FILE = "README.md"
# Entries of config.json beside the `ModelConfig`'s.
_OUTSIDE = ("model_type", "protoflows_version", "extras")

_T = TypeVar("_T", bound="HubModel")


class HubModel(
    PyTorchModelHubMixin, library_name="protoflows", pipeline_tag="image-classification"
):
    """Saving and loading after the conventions of the Hugging Face Hub."""

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        weights_dtype: WeightsDtype = "float32",
        config: Any = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: Mapping[str, Any] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write the model into a folder, or over what is there.

        `model.safetensors` holds the weights, `config.json` the `ModelConfig`, `extras.safetensors`
        what is known of the training data, `README.md` a card. A card that a person has made their
        own (without its first comment) is left alone.

        Args:
            save_directory: The folder; made where it does not exist.
            weights_dtype: What convolution kernels are stored in; all else is float32 always.
            config: Ignored: a model's configuration is `model.config`.
            repo_id: As in `push_to_hub`; the folder's name when None.
            push_to_hub: Whether to upload it as well.
            model_card_kwargs: Ignored: the card is made from the model.
            **push_to_hub_kwargs: Passed on to `push_to_hub`.

        Returns:
            The commit's address where it was uploaded.
        """
        folder = Path(save_directory)
        write_folder(cast("ProtoFlow", self), folder, weights_dtype)
        if push_to_hub:
            return self.push_to_hub(repo_id or folder.name, **push_to_hub_kwargs)
        return None

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls: type[_T],
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        device: torch.device | str = "cpu",
    ) -> _T:
        """Load what `save_pretrained` wrote, or a repository of the Hugging Face Hub, in eval mode.

        Args:
            pretrained_model_name_or_path: The folder, or "organisation/name".
            force_download: Download again what is in the cache.
            token: Access token for the Hub.
            cache_dir: Where downloads are kept.
            local_files_only: Never download.
            revision: Branch, tag or commit of the repository.
            device: Where the model is to be.
        """
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            folder = Path(
                snapshot_download(
                    str(pretrained_model_name_or_path),
                    allow_patterns=[WEIGHTS_FILE, CONFIG_FILE, EXTRAS_FILE, CARD_FILE],
                    force_download=force_download,
                    token=token,
                    cache_dir=cache_dir,
                    local_files_only=local_files_only,
                    revision=revision,
                )
            )
        return cast(_T, read_folder(folder).to(device))

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The card that `save_pretrained` writes."""
        return ModelCard(model_card(cast("ProtoFlow", self)))


def is_model_folder(folder: Path) -> bool:
    """Whether a folder holds a saved model."""
    return (folder / WEIGHTS_FILE).is_file() and (folder / CONFIG_FILE).is_file()


def write_folder(model: ProtoFlow, folder: Path, weights_dtype: WeightsDtype = "float32") -> None:
    """Write a model's files; see `HubModel.save_pretrained`."""
    if weights_dtype not in get_args(WeightsDtype):
        raise ValueError(
            f"weights_dtype must be one of {', '.join(get_args(WeightsDtype))}; "
            f"got {weights_dtype!r}"
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"save_directory must be a folder, but {folder} is a file")
    tensors = {
        name: _stored(name, tensor, getattr(torch, weights_dtype))
        for name, tensor in model.state_dict().items()
    }
    content: dict[str, Any] = {
        "model_type": "protoflow",
        "protoflows_version": __version__,
        **model.config.to_dict(),
    }
    extras = model.extras
    if extras is not None:
        extras.check(model.config)
        content["extras"] = extras.to_dict()
    folder.mkdir(parents=True, exist_ok=True)
    # Everything is complete on the disk before the first old file goes.
    fresh: list[tuple[Path, Path]] = []

    def write(name: str) -> Path:
        fresh.append((folder / f".{name}.new", folder / name))
        return fresh[-1][0]

    try:
        save_file(tensors, write(WEIGHTS_FILE), metadata={"format": "pt"})
        if extras is not None and extras.tensors():
            save_file(extras.tensors(), write(EXTRAS_FILE), metadata={"format": "pt"})
        if _is_ours(folder / CARD_FILE):
            write(CARD_FILE).write_text(model_card(model), encoding="utf-8")
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        write(CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
        for new, _ in fresh:
            _allow_as_others(new, folder)
        for new, final in fresh:
            new.replace(final)
    except BaseException as error:
        for new, _ in fresh:
            new.unlink(missing_ok=True)
        if isinstance(error, SafetensorError):  # a full disk, which is nobody's mistake in the code
            raise OSError(
                f"the model could not be written to {folder} ({error}); what was there is kept"
            ) from error
        raise
    if extras is None or not extras.tensors():
        (folder / EXTRAS_FILE).unlink(missing_ok=True)


def read_folder(folder: Path) -> ProtoFlow:
    """Build the model that a folder describes, in eval mode on the CPU."""
    from protoflows.model.protoflow import ProtoFlow

    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} holds no saved model: {name} is missing")
    content = _read_json(folder / CONFIG_FILE)
    about = content.get("extras")
    try:
        config = ModelConfig.from_dict({k: v for k, v in content.items() if k not in _OUTSIDE})
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG_FILE}: {error}") from None
    tensors = _read_tensors(folder / WEIGHTS_FILE)
    # Fresh weights are drawn only to be overwritten: nobody's random state should notice.
    with torch.random.fork_rng(devices=[]):
        model = ProtoFlow(config)
    _fill(model, tensors, folder / WEIGHTS_FILE)
    if about is not None:
        found = _read_tensors(folder / EXTRAS_FILE) if (folder / EXTRAS_FILE).is_file() else {}
        model.extras = Extras.from_parts(about, found)
        model.extras.check(config)
    return model.eval()


def _stored(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor as it goes to disk: contiguous, and in 16 bits where that is safe.

    Four-dimensional kernels are nearly all of the weights and only shape what coupling nets
    compute. Everything that enters log-determinants, inverses or densities directly stays float32.
    """
    tensor = tensor.detach().to("cpu")
    if tensor.is_floating_point():
        narrow = tensor.dim() == 4 and name.startswith("flow.")
        stored = tensor.to(dtype if narrow else torch.float32)
        if bool(tensor.isfinite().all()) and not bool(stored.isfinite().all()):
            raise ValueError(f"weights_dtype {dtype} cannot hold {name}: use float32 or bfloat16")
        tensor = stored
    return tensor.contiguous()


def _fill(model: ProtoFlow, tensors: dict[str, Tensor], path: Path) -> None:
    expected = model.state_dict()
    missing = [name for name in expected if name not in tensors]
    unknown = [name for name in tensors if name not in expected]
    wrong = [
        f"{name} {tuple(tensors[name].shape)} instead of {tuple(expected[name].shape)}"
        for name in expected
        if name in tensors and tensors[name].shape != expected[name].shape
    ]
    if missing or unknown or wrong:
        lists = (("missing", missing), ("unknown", unknown), ("of the wrong shape", wrong))
        found = "; ".join(f"{len(n)} {what} ({', '.join(n[:3])})" for what, n in lists if n)
        raise ValueError(f"{path} does not fit the {CONFIG_FILE} beside it: {found}")
    try:
        model.load_state_dict(tensors)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not readable as JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold an object, got {type(content).__name__}")
    return content


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a readable safetensors file ({error}): was it copied completely?"
        ) from None
    return tensors


def _is_ours(card: Path) -> bool:
    return not card.exists() or CARD_MARK in card.read_text(encoding="utf-8", errors="replace")


def _allow_as_others(file: Path, folder: Path) -> None:
    """Readable by whom the folder lets in: safetensors makes its files private."""
    if os.name == "posix":
        file.chmod(0o666 & folder.stat().st_mode)
