"""The pictures of README and docs, drawn by the program from a model that ships with it.

    python docs/make_figures.py                                   # all of them, from `digits`
    python docs/make_figures.py --only hero --model mnist --data mnist --data-root DIR --index 18

Every file is written into docs/images; docs/images/bias.png is drawn by benchmarks/bias.py.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from protoflows.data import DataConfig, load_data
from protoflows.explain import (
    Attribution,
    Counterfactuals,
    explain,
    find_counterfactuals,
    living_prototypes,
    load_parts,
    picture_prototype,
    read_out,
)
from protoflows.explain.figures.gallery import draw_class_gallery, draw_sheet
from protoflows.explain.figures.paths import draw_way
from protoflows.explain.figures.style import (
    GREY,
    limit_of,
    plain,
    png_bytes,
    show_heat,
    show_image,
)
from protoflows.model import ProtoFlow, find_model_folder, load
from protoflows.model.shipped import shipped_folder
from protoflows.report import Plan, Source, make_report

IMAGES = Path(__file__).parent / "images"
MAX_BYTES = 150_000
_SAMPLES = 8


@dataclass(frozen=True)
class Subject:
    """What pictures are drawn of.

    Attributes:
        name: What the model is called on the command line.
        model: The model.
        images: Test images, uint8 (N, C, H, W).
        index: The one that is explained.
        target: Class that its counterfactual is to become; the runner-up when None.
    """

    name: str
    model: ProtoFlow
    images: Tensor
    index: int
    target: int | None

    @property
    def query(self) -> Tensor:
        """The image that is explained, (1, C, H, W)."""
        return self.images[self.index][None]

    def counterfactual(self) -> Counterfactuals:
        """The query as another class."""
        posterior = read_out(self.model, self.query, samples=_SAMPLES).posterior[0]
        runner_up = int(posterior.argsort(descending=True)[1])
        chosen = runner_up if self.target is None else self.target
        return find_counterfactuals(self.model, self.query, chosen, samples=_SAMPLES)


def draw_hero(subject: Subject) -> Figure:
    """A decision in a row: the image, the prototype it is like, evidence, what would undo it."""
    model, levels = subject.model, subject.model.config.flow.levels
    names = model.config.class_names
    why = explain(model, subject.query, top=1, samples=_SAMPLES)
    best, other = why.prototypes[0], subject.counterfactual()
    drawn = picture_prototype(model, best.prototype, radii=(1.0,), samples=4).grid[0]
    figure = Figure(figsize=(12, 3.05))
    spec = figure.add_gridspec(
        1, 5, left=0.005, right=0.99, top=0.79, bottom=0.09, wspace=0.17,
    )  # fmt: skip
    share = 100 * float(why.posterior[why.label])
    _show(
        figure.add_subplot(spec[0]), why.image, levels, "This", "image, of the test set,",
        f"is “{plain(why.prediction, 14)}”, {share:.1f} %",
    )  # fmt: skip
    _show(
        figure.add_subplot(spec[1]), best.mean_image, levels, "looks exactly like that:",
        "the mean of a prototype", f"{100 * best.share:.1f} % of the decision",
    )  # fmt: skip
    inner = spec[2].subgridspec(2, 2, wspace=0.06, hspace=0.06)
    for place, image in enumerate(drawn):
        show_image(figure.add_subplot(inner[place // 2, place % 2]), image, levels)
    _show(figure.add_subplot(spec[2]), None, levels, "A distribution:", "four images drawn from it")
    if why.evidence is not None:
        _draw_evidence(figure.add_subplot(spec[3]), why.evidence, names)
    wanted = plain(names[int(other.target[0])], 12)
    _show(
        figure.add_subplot(spec[4]), other.images[0], levels, "The least change",
        f"that would make it a “{wanted}”",
        f"{100 * float(other.pixel_change[0]):.0f} % of brightness",
    )  # fmt: skip
    return figure


def _show(
    axes: Axes, image: Tensor | None, levels: int, title: str, second: str, below: str = ""
) -> None:
    """An image, or only the words above a place that others fill."""
    if image is None:
        axes.axis("off")
        axes.set_box_aspect(1)
    else:
        show_image(axes, image, levels)
    _words(axes, title, second, below)


def _words(axes: Axes, title: str, second: str, below: str) -> None:
    axes.text(0, 1.15, title, transform=axes.transAxes, fontsize=12.5, weight="bold")
    axes.text(0, 1.04, second, transform=axes.transAxes, fontsize=11.5)
    axes.text(0, -0.12, below, transform=axes.transAxes, fontsize=11.5, color=GREY)


def _draw_evidence(axes: Axes, evidence: Attribution, names: Sequence[str]) -> None:
    """The log-odds against the runner-up, cell by cell."""
    cells = evidence.cells[0]
    limit = limit_of(cells)
    show_heat(axes, cells, limit)
    if cells.numel() <= 16:
        for i, row in enumerate(cells.tolist()):
            for j, value in enumerate(row):
                ink = "white" if abs(value) > 0.6 * limit else "black"
                axes.text(j, i, f"{value:+.1f}", ha="center", va="center", fontsize=12, color=ink)
    target, against = (plain(names[c], 10) for c in (evidence.target[0], evidence.against[0]))
    _words(axes, "Where it is decided:", f"nats for “{target}” against “{against}”",
                f"in all {float(evidence.log_odds[0]):+.1f} nats")  # fmt: skip


def draw_means(subject: Subject) -> Figure:
    """The mean of every prototype, a row per class."""
    model = subject.model
    titles, means = [], []
    for label, index in living_prototypes(model):
        means.append(model.prototype_mean_image(label, index))
        weight = float(model.mixtures.log_weights[label, index].detach().exp())
        titles.append(f"{model.config.class_names[label]} · {index}, {100 * weight:.0f} %")
    per_row = model.mixtures.mask.shape[1]
    return draw_sheet(model, torch.stack(means), titles, columns=max(per_row, 9 // per_row * 3))


def draw_gallery(subject: Subject) -> Figure:
    """One class: each prototype's mean and images drawn around it."""
    model = subject.model
    label = int(read_out(model, subject.query, samples=_SAMPLES).labels[0])
    pictures = [picture_prototype(model, p) for p in living_prototypes(model, label)]
    return draw_class_gallery(model, pictures, counts=False)


def draw_explanation(subject: Subject) -> Figure:
    """What `protoflows explain` writes."""
    home = find_model_folder(Path(subject.name))
    if home is not None:
        parts = load_parts(home, subject.model)
    else:
        with shipped_folder(subject.name) as folder:
            parts = load_parts(folder, subject.model)
    return explain(subject.model, subject.query, samples=_SAMPLES, top=2, parts=parts).figure()


def draw_counterfactual(subject: Subject) -> Figure:
    """What `protoflows counterfactual` writes: the way there."""
    model, found = subject.model, subject.counterfactual()
    names = model.config.class_names
    source, target = int(found.source[0]), int(found.target[0])
    images, weights = found.way(model, 0)
    likelihoods = read_out(model, images, samples=_SAMPLES).class_log_prob[:, [source, target]]
    return draw_way(
        images, likelihoods, weights, model.config.flow.levels, (names[source], names[target])
    )


FIGURES: dict[str, Callable[[Subject], Figure]] = {
    "hero": draw_hero,
    "prototypes": draw_means,
    "gallery": draw_gallery,
    "explanation": draw_explanation,
    "counterfactual": draw_counterfactual,
}
_DPI = {"hero": 140, "gallery": 90, "explanation": 100, "counterfactual": 110, "prototypes": 100}


def shoot_report(subject: Subject, browser: str) -> bytes:
    """The top of what `protoflows report` writes, as a headless browser shows it."""
    plan = Plan(images=200, train_images=500, relevance_images=8, examples=1)
    bundle = load_data(DataConfig(name="digits"))
    source = Source(
        subject.model, subject.name, data_name=bundle.name, metrics={}, train=bundle.train,
        test=bundle.test,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder) / "report.html", Path(folder) / "report.png"
        page.write_text(make_report(source, plan), encoding="utf-8")
        words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        subprocess.run(
            [*words, "--window-size=1100,950", f"--screenshot={shot}", page.as_uri()],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        return shot.read_bytes()


def fewer_colours(png: bytes) -> bytes:
    """A picture of at most 256 colours: half the bytes, and nobody sees it."""
    buffer = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def main() -> None:
    """Draw what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="digits", help="shipped model or run (default: digits)")
    parser.add_argument("--data", default="digits", help="data set whose test images are shown")
    parser.add_argument("--data-root", help="folder that holds the data set")
    parser.add_argument("--index", type=int, default=84, help="test image to explain")
    parser.add_argument(
        "--target", type=int, help="class of the counterfactual (default: likeliest)"
    )
    parser.add_argument("--only", nargs="+", choices=[*FIGURES, "report"], help="default: all")
    parser.add_argument("--browser", default="chromium", help="takes the picture of the report")
    parser.add_argument("--out", type=Path, default=IMAGES)
    arguments = parser.parse_args()
    bundle = load_data(DataConfig(name=arguments.data, root=arguments.data_root))
    subject = Subject(
        arguments.model, load(arguments.model), bundle.test.images, arguments.index,
        arguments.target,
    )  # fmt: skip
    for name in arguments.only or [*FIGURES, "report"]:
        if name == "report":
            png = shoot_report(subject, arguments.browser)
        else:
            png = png_bytes(FIGURES[name](subject), _DPI[name])
        file = arguments.out / f"{name}.png"
        file.write_bytes(fewer_colours(png))
        size = file.stat().st_size
        print(f"{file}   {size / 1000:.0f} kB")
        if size > MAX_BYTES:
            raise SystemExit(f"{file} is larger than {MAX_BYTES / 1000:.0f} kB")


if __name__ == "__main__":
    main()
