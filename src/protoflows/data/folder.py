"""Any folder of images: one sub-folder per class, with or without train/ and test/ above them."""

from __future__ import annotations

from pathlib import Path

from protoflows.data.config import DataConfig
from protoflows.data.images import PICTURE_SUFFIXES
from protoflows.data.pictures import Picture, assemble, some
from protoflows.data.splits import DataBundle

_PARTS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}


def load_folder(path: str | Path, config: DataConfig) -> DataBundle:
    """Load an image folder.

    Class names are the sub-folders' names in alphabetical order; pictures may lie deeper. Where
    only train/ and val/ exist, val/ is the test split; with test/ too it is the validation split.
    Mirror images are not taken for the same class (letters, left and right hands): set the
    augmentation's `flip` where they are.
    """
    base = Path(path).expanduser()
    if not base.exists():
        raise FileNotFoundError(f"no such image folder: {base}")
    if not base.is_dir():
        raise ValueError(f"{base} is a file, not an image folder with one sub-folder per class")
    parts = find_parts(base)
    train_classes = _class_folders(parts["train"])
    if len(train_classes) < 2:
        found = f"only one, {train_classes[0].name!r}" if train_classes else "none"
        raise ValueError(
            f"{parts['train']} must hold one sub-folder per class, at least two; found {found}"
        )
    class_names = [folder.name for folder in train_classes]
    pictures: list[Picture] = []
    for part, folder in parts.items():
        for class_folder in _class_folders(folder):
            if class_folder.name not in class_names:
                raise ValueError(
                    f"{class_folder} is a class that {parts['train']} does not have; "
                    f"its classes are {some(class_names)}"
                )
            label = class_names.index(class_folder.name)
            files = _picture_files(class_folder)
            if not files:
                raise ValueError(
                    f"class folder {class_folder} is empty: it holds no file whose name ends in "
                    f"{', '.join(sorted(PICTURE_SUFFIXES))}"
                )
            pictures += [Picture(file, label, part) for file in files]
    return assemble(base.resolve().name, base, pictures, class_names, config)


def find_parts(base: Path) -> dict[str, Path]:
    """The folders whose sub-folders are the classes, by part of the data set.

    Names like train and test divide the data only where all sub-folders have such names and one is
    train: a class may be called "train" (trains, cars, buses) as well.
    """
    folders = _class_folders(base)
    named = [(_PARTS[f.name.lower()], f) for f in folders if f.name.lower() in _PARTS]
    if not named or len(named) < len(folders):
        return {"train": base}
    parts: dict[str, Path] = {}
    for part, folder in named:
        if part in parts:
            raise ValueError(f"{base} holds {part} images twice: {parts[part]} and {folder}")
        parts[part] = folder
    if "train" not in parts:
        raise ValueError(
            f"{base} holds {some([folder.name for folder in folders])} but no train/ folder"
        )
    if "test" not in parts and "validation" in parts:
        parts["test"] = parts.pop("validation")
    return parts


def _class_folders(folder: Path) -> list[Path]:
    """Sub-folders, hidden ones (.git, __MACOSX) left out."""
    return sorted(
        entry
        for entry in folder.iterdir()
        if entry.is_dir() and not entry.name.startswith((".", "__"))
    )


def _picture_files(folder: Path) -> list[Path]:
    """Files that are named like pictures; notes, tables and hidden files are not meant as such."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in PICTURE_SUFFIXES
        and not file.name.startswith(".")
        and file.is_file()
    )
