import csv
import json
import math

import pytest
import torch

from protoflows.data import Augment, AugmentConfig, Split
from protoflows.evaluation import evaluate, run_passes, summarise
from protoflows.evaluation.distances import covariance_norms
from protoflows.evaluation.report import (
    read_covariance_norms,
    read_distances,
    read_metrics,
    write_report,
)
from protoflows.training.measuring import measure
from tests.model.helpers import small_model, some_images

AUGMENT = Augment(AugmentConfig(), levels=17)
ESTIMATES = (
    "accuracy", "accuracy_top5", "ece", "mce", "nll", "brier", "bits_per_dim",
    "bits_per_dim_mean_bound", "bits_per_dim_best_class", "bits_per_image", "s_rob",
    "s_rob_baseline", "s_div", "aurc",
)  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def split():
    return Split(some_images(24), torch.arange(24) % 3)


def test_metrics_are_flat_and_complete(model, split):
    found = evaluate(model, split, samples=3, tta=2, augment=AUGMENT).metrics
    for name in (*ESTIMATES, "bits_per_dim_paper_protocol", "accuracy_unaugmented"):
        assert math.isfinite(found[name]), name
        assert found[f"{name}_stderr"] >= 0, name
    assert found["mc_samples"] == 3
    assert found["tta"] == 2
    assert found["images"] == 24
    assert found["dims"] == 16
    assert found["passes"] == 24 * (3 * 3 + 1)
    assert all(isinstance(value, int | float) for value in found.values())
    assert found["bits_per_image"] == pytest.approx(16 * found["bits_per_dim"])
    assert found["bits_per_dim"] <= found["bits_per_dim_mean_bound"]


def test_the_same_as_training_measures(model, split):
    """Training's own figures come from other code."""
    found = evaluate(model, split, samples=4, seed=2).metrics
    other = measure(model, split, samples=4, seed=2)
    pairs = {
        "accuracy": "accuracy",
        "accuracy_importance": "accuracy_importance",
        "nll": "cross_entropy",
        "bits_per_dim": "bits_per_dim",
        "bits_per_image": "bits_per_image",
    }
    for name, theirs in pairs.items():
        assert found[name] == pytest.approx(other[theirs], rel=1e-6), name
    per_image = 16 * found["bits_per_dim_mean_bound"]
    assert per_image == pytest.approx(other["bits_per_image_mean_bound"], rel=1e-6)


def test_unlabelled_images_count_for_densities_alone(model, split):
    labels = split.labels.clone()
    labels[12:] = -1
    half = evaluate(model, Split(split.images, labels), samples=2)
    whole = evaluate(model, split, samples=2)
    first = evaluate(model, split.select(torch.arange(12)), samples=2)
    assert half.metrics["bits_per_dim"] == whole.metrics["bits_per_dim"]
    assert half.metrics["s_div"] == whole.metrics["s_div"]
    for name in ("accuracy", "nll", "brier", "ece"):
        assert half.metrics[name] == pytest.approx(first.metrics[name], rel=1e-5)
    none = evaluate(model, Split(split.images, torch.full((24,), -1)), samples=2)
    assert "accuracy" not in none.metrics
    assert none.confusion is None
    assert none.classes == ()
    assert "bits_per_dim" in none.curve[0].figures
    assert none.metrics["bits_per_dim"] == whole.metrics["bits_per_dim"]


def test_figures_of_classes_add_up(model, split):
    found = evaluate(model, split, samples=2)
    assert [entry.images for entry in found.classes] == [8, 8, 8]
    mean = sum(entry.accuracy.value for entry in found.classes) / 3
    assert mean == pytest.approx(found.metrics["accuracy"])
    mean = sum(entry.s_rob.value for entry in found.classes) / 3
    assert mean == pytest.approx(found.metrics["s_rob"])
    assert found.confusion.sum() == 24
    assert found.confusion.diag().sum() / 24 == pytest.approx(found.metrics["accuracy"])
    absent = evaluate(model, split.select((split.labels != 1).nonzero().flatten()), samples=1)
    assert absent.classes[1].accuracy is None


def test_the_curve_ends_where_the_figures_are(model, split):
    found = evaluate(model, split, samples=5)
    assert [point.samples for point in found.curve] == [1, 2, 5]
    for name in ("accuracy", "nll", "ece", "bits_per_dim", "bits_per_dim_best_class"):
        last = found.curve[-1].figures[name].value
        assert last == pytest.approx(found.metrics[name], rel=1e-5), name
    first = evaluate(model, split, samples=1)
    assert first.metrics["nll"] == pytest.approx(found.curve[0].figures["nll"].value, rel=1e-5)


def test_early_stopping_says_what_it_saved(model, split):
    options = {"samples": 40, "tta": 2, "augment": AUGMENT, "adaptive": 0.9}
    early = evaluate(model, split, **options)
    checked = evaluate(model, split, verify=True, **options)
    for found in (early.metrics, checked.metrics):
        assert found["passes_full"] == 24 * 40 * 2
        assert found["adaptive_speedup"] == found["passes_full"] / found["adaptive_passes"]
        assert found["adaptive_speedup"] > 1
    assert early.metrics["adaptive_passes"] == early.metrics["passes"]
    # Robustness takes two passes of the image itself of which one is counted as a draw anyway.
    assert checked.metrics["adaptive_passes"] == early.metrics["passes"]
    assert early.curve == ()
    full = model.classify(checked.passes.logits).argmax(1)
    same = (model.classify(checked.passes.adaptive_logits).argmax(1) == full).double().mean()
    assert checked.metrics["adaptive_agreement"] == pytest.approx(float(same))
    low, high = (checked.metrics[f"adaptive_agreement_{end}"] for end in ("low", "high"))
    assert low < same <= high <= 1


def test_pruned_models_are_measured_by_what_lives(split):
    model = small_model()
    mask = torch.tensor([[True, False], [True, False], [True, False]])
    pruned = model.keep_prototypes(mask)
    found = evaluate(pruned, split, samples=1).metrics
    assert found["prototypes"] == 3
    assert math.isfinite(found["distance_median"])
    assert math.isfinite(found["covariance_norm_median"])


def test_labels_have_to_match(model, split):
    passes = run_passes(model, split, samples=1)
    with pytest.raises(ValueError, match="labels must hold one label for each of the 24"):
        summarise(model, passes, split.labels[:3])
    # Passes alone, without robustness or distances, give what they can.
    assert "s_rob" not in summarise(model, passes, split.labels).metrics


def test_report(model, split, tmp_path):
    found = evaluate(model, split, samples=2)
    written = write_report(tmp_path, found, {"data": "toys", "seed": 0}, model.config.class_names)
    assert all(path.stat().st_size for path in written)
    assert written[-1].name == "metrics.json"  # last: whole or not there
    content = read_metrics(tmp_path)
    assert content["data"] == "toys"
    assert content["accuracy"] == found.metrics["accuracy"]
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    by_name = {row["metric"]: row for row in rows}
    assert float(by_name["nll"]["value"]) == found.metrics["nll"]
    assert float(by_name["nll"]["stderr"]) == found.metrics["nll_stderr"]
    assert not any(name.endswith("_stderr") for name in by_name)
    torch.testing.assert_close(read_distances(tmp_path), found.passes.distance, rtol=1e-8, atol=0)
    norms = covariance_norms(model.mixtures)
    torch.testing.assert_close(read_covariance_norms(tmp_path), norms, rtol=1e-8, atol=0)
    table = list(csv.reader((tmp_path / "evaluation" / "confusion.csv").open()))
    assert [[int(cell) for cell in row[1:]] for row in table[1:]] == found.confusion.tolist()
    curve = list(csv.DictReader((tmp_path / "evaluation" / "curve.csv").open()))
    assert float(curve[-1]["accuracy"]) == found.metrics["accuracy"]
    classes = list(csv.DictReader((tmp_path / "evaluation" / "per_class.csv").open()))
    assert float(classes[2]["s_rob"]) == found.classes[2].s_rob.value


def test_json_holds_no_nan(model, split, tmp_path):
    found = evaluate(model, split.select(torch.arange(1)), samples=1)
    assert math.isnan(found.metrics["accuracy_stderr"])
    write_report(tmp_path, found, {}, model.config.class_names)
    text = (tmp_path / "metrics.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["accuracy_stderr"] is None


def test_reading_a_run_that_was_not_evaluated(tmp_path):
    with pytest.raises(FileNotFoundError, match="protoflows evaluate"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.json").write_text("{")
    with pytest.raises(ValueError, match="not readable"):
        read_metrics(tmp_path)
    assert read_distances(tmp_path) is None
    assert read_covariance_norms(tmp_path) is None
