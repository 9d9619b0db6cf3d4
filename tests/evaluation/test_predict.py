import csv
import io
import json
import math
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.stats import binom

from protoflows.cli.main import main
from protoflows.data import DataConfig, load_data
from protoflows.evaluation.predict import content_seeds, predict_images
from protoflows.evaluation.predict_files import (
    find_pictures,
    format_rows,
    predict_files,
    requantize,
)
from protoflows.evaluation.reject import (
    DELTA,
    RejectRule,
    binomial_upper_bound,
    fit_rejection,
    word_rule,
)
from protoflows.model import Extras, image_seeds, load
from tests.evaluation.run_fixture import untrained_run
from tests.model.helpers import small_model, some_images

CLOSE = {"rtol": 1e-5, "atol": 1e-4}


# ---- images ----------------------------------------------------------------------------------


def test_predictions_are_the_models_own():
    model = small_model(prior=(0.5, 0.3, 0.2), logit_temperature=3.0, variance_temperature=1.7)
    x = some_images(7)
    found = predict_images(model, x, samples=3, seed=4, batch_size=3)
    torch.testing.assert_close(
        found.proba, model.predict_proba(x, samples=3, seed=4), rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(found.log_prob, model.log_prob(x, samples=3, seed=4), **CLOSE)
    mean = model.log_prob(x, samples=3, seed=4, rule="mean")
    torch.testing.assert_close(found.log_prob_mean, mean, **CLOSE)


def test_the_top_prototype_has_the_largest_part_in_the_density():
    model = small_model(prior=(0.5, 0.3, 0.2))
    x = some_images(9)
    found = predict_images(model, x, samples=2, seed=1)
    scores = [model.score(x, seeds=image_seeds(0, 9, s, 1)) for s in range(2)]
    joint = sum(
        s.prototype_log_likelihood + model.mixtures.log_weights + model.mixtures.log_prior[:, None]
        for s in scores
    ).detach()
    for i, (c, k) in enumerate(found.prototypes.tolist()):
        assert float(joint[i, c, k]) == pytest.approx(float(joint[i].max()))
        own = sum(s.prototype_log_likelihood[i, c, k] + s.log_det[i] for s in scores) / 2
        assert float(found.prototype_log_prob[i]) == pytest.approx(float(own), rel=1e-5)
    assert len(found.prototypes.unique(dim=0)) > 1


def test_prototypes_that_are_gone_are_nobodys_top():
    model = small_model()
    mask = torch.tensor([[False, True], [True, False], [True, True]])
    found = predict_images(model.keep_prototypes(mask), some_images(30), samples=1)
    assert all(bool(mask[c, k]) for c, k in found.prototypes.tolist())


@settings(max_examples=8)
@given(st.integers(0, 6), st.integers(1, 8))
def test_batches_make_no_difference(num, batch_size):
    model = small_model()
    x = some_images(num)
    found = predict_images(model, x, samples=2, batch_size=batch_size)
    whole = predict_images(model, x, samples=2)
    assert found.proba.shape == (num, 3)
    assert torch.equal(found.prototypes, whole.prototypes)
    torch.testing.assert_close(found.log_prob, whole.log_prob, **CLOSE)


def test_bad_numbers_are_refused():
    with pytest.raises(ValueError, match="samples=0"):
        predict_images(small_model(), some_images(2), samples=0)
    with pytest.raises(ValueError, match="one number per image"):
        predict_images(small_model(), some_images(2), seed=torch.zeros(3, dtype=torch.int64))


def test_content_seeds_go_with_the_picture():
    x = some_images(4)
    seeds = content_seeds(x, 0)
    assert len(seeds.unique()) == 4
    assert torch.equal(content_seeds(x.flip(0), 0), seeds.flip(0))
    assert not torch.equal(content_seeds(x, 1), seeds)
    assert torch.equal(content_seeds(x, -1), content_seeds(x, -1))


def test_levels_are_stretched_both_ways():
    few = torch.arange(17, dtype=torch.uint8)
    assert torch.equal(requantize(requantize(few, 17, 256), 256, 17), few)
    assert requantize(few, 17, 17) is few


# ---- abstaining ------------------------------------------------------------------------------


@given(st.integers(0, 30), st.integers(0, 200), st.floats(0.001, 0.5))
def test_the_binomial_bound_solves_its_equation(errors, more, delta):
    num = errors + more
    bound = binomial_upper_bound(errors, num, delta)
    if more == 0:
        assert bound == 1
    else:
        assert binom.cdf(errors, num, bound) == pytest.approx(delta, rel=1e-6)


def test_a_promise_with_figures_worked_by_hand():
    """360 images, six thresholds at sixths. The 60 doubtful ones are wrong; 300 right ones at δ/6
    have the bound 1 − (δ/6)^(1/300)."""
    confidence = torch.cat([torch.linspace(0.9, 0.8, 300), torch.linspace(0.5, 0.4, 60)])
    correct = torch.arange(360) < 300
    shuffle = torch.randperm(360, generator=torch.Generator().manual_seed(0))
    rule = fit_rejection(confidence[shuffle], correct[shuffle], 0.05)
    assert rule.threshold == pytest.approx(0.8)
    assert rule.coverage == pytest.approx(300 / 360)
    assert rule.risk == 0
    assert rule.risk_bound == pytest.approx(1 - (DELTA / 6) ** (1 / 300))
    assert rule.accepts(confidence).tolist() == correct.tolist()
    assert "at most 1.58 % are wrong" in rule.describe()


def test_images_that_nothing_tells_apart_are_answered_together():
    """A saturated posterior: 100 of 120 at exactly 1, five of these wrong."""
    confidence = torch.cat([torch.ones(100), torch.full((20,), 0.3)])
    correct = torch.arange(120) >= 5
    correct[100:] = False
    rule = fit_rejection(confidence, correct, 0.15)
    assert (rule.threshold, rule.coverage, rule.risk) == (1.0, 100 / 120, 0.05)
    assert rule.risk_bound == pytest.approx(binomial_upper_bound(5, 100, DELTA / 2))


def test_few_images_give_an_estimate_and_no_promise():
    """40 images, the two least sure of the first 30 wrong: (0 + 1)/(28 + 2) ≤ 0.05 < 2/31."""
    confidence = torch.linspace(0.99, 0.2, 40).double()
    correct = torch.ones(40, dtype=torch.bool)
    correct[28:] = False
    rule = fit_rejection(confidence, correct, 0.05)
    assert rule.threshold == float(confidence[27])
    assert (rule.risk, rule.risk_bound) == (0.0, None)
    assert "too few images to promise" in rule.describe()


@settings(max_examples=30)
@given(st.integers(1, 500), st.integers(0, 99), st.floats(0.0, 2.0))
def test_a_stricter_bound_never_answers_more(num, seed, slope):
    rng = np.random.default_rng(seed)
    doubt = rng.uniform(0, 0.5, num)
    confidence, correct = (
        torch.tensor(1 - doubt),
        torch.tensor(rng.uniform(size=num) > slope * doubt),
    )
    rules = [fit_rejection(confidence, correct, r) for r in (0.4, 0.2, 0.1, 0.05, 0.02, 0.01)]
    fitted = [rule.threshold for rule in rules if rule.coverage is not None]
    assert fitted == sorted(fitted)


def test_where_confidence_says_nothing_nothing_is_answered():
    generator = torch.Generator().manual_seed(0)
    correct = torch.rand(500, generator=generator) > 0.4
    rule = fit_rejection(torch.ones(500), correct, 0.05)
    assert rule.threshold == math.inf
    assert not bool(rule.accepts(torch.ones(3)).any())
    assert "abstains always" in rule.describe()


def test_without_images_probabilities_are_taken_at_their_word():
    for rule in (fit_rejection(torch.ones(0), torch.ones(0, dtype=torch.bool), 0.05),
                 fit_rejection(torch.ones(5), torch.ones(5, dtype=torch.bool), 0.05),
                 word_rule(0.05)):  # fmt: skip
        accepted = rule.accepts(torch.tensor([0.94, 0.96, math.nan], dtype=torch.float64))
        assert accepted.tolist() == [False, True, False]
        assert "nothing is promised" in rule.describe()


def test_the_promise_is_kept():
    """Of 200 held-out sets, at most a share δ gives a threshold above which the true risk exceeds
    the bound; here with a model that doubts too little by a third."""
    rng = np.random.default_rng(0)
    broken, coverage = 0, 0.0
    for _ in range(200):
        doubt = rng.uniform(0, 0.5, 1000)
        correct = rng.uniform(size=1000) > 1.5 * doubt
        rule = fit_rejection(torch.tensor(1 - doubt), torch.tensor(correct), 0.2)
        assert rule.risk_bound is not None
        coverage += rule.coverage / 200
        broken += 1.5 * (1 - rule.threshold) / 2 > 0.2  # the mean of 1.5·U(0, 1 − θ)
    assert broken <= DELTA * 200
    assert coverage > 0.3  # the most that could be answered is 0.53


@pytest.mark.parametrize("bound", [0.0, 1.0, -0.1, math.nan])
def test_risks_that_mean_nothing_are_refused(bound):
    with pytest.raises(ValueError, match="reject must be a share above 0 and below 1"):
        fit_rejection(torch.ones(3), torch.ones(3), bound)
    with pytest.raises(ValueError, match="reject"):
        word_rule(bound)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="must both be"):
        fit_rejection(torch.ones(3), torch.ones(4), 0.1)


# ---- pictures --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Three pictures of different kinds, one of them deeper, and two files that are none."""
    place = tmp_path / "pictures"
    (place / "deeper").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, shape in (("b.png", (4, 4)), ("a.jpg", (20, 30, 3)), ("deeper/c.bmp", (9, 9))):
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(place / name)
    (place / "broken.png").write_bytes(b"\x89PNG nothing")
    (place / "notes.txt").write_text("no picture")
    return place


def test_pictures_are_found_in_order(folder):
    names = [file.relative_to(folder).as_posix() for file in find_pictures(folder)]
    assert names == ["a.jpg", "b.png", "broken.png", "deeper/c.bmp"]
    assert find_pictures(folder / "b.png") == [folder / "b.png"]
    with pytest.raises(FileNotFoundError, match="no picture or folder"):
        find_pictures(folder / "none")
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no file whose name ends in"):
        find_pictures(folder / "empty")


def test_pictures_of_any_kind_are_predicted(folder):
    model = small_model(class_names=("cat", "dog", "a,b"), prototype_names={(0, 0): "tabby"})
    model.extras = Extras(log_prob_quantiles=torch.linspace(-500, 0, 101))
    found = predict_files(model, find_pictures(folder), samples=2, batch_size=2)
    assert [row.file.rsplit("/", 1)[1] for row in found.rows] == ["a.jpg", "b.png", "c.bmp"]
    assert found.skipped == [f"{folder / 'broken.png'}: not a picture in a known format"]

    grey = np.asarray(Image.open(folder / "b.png")).astype(np.float64)
    x = torch.tensor((grey * 16 / 255).round()).to(torch.uint8)[None, None]
    expected = predict_images(model, x, samples=2, seed=content_seeds(x, 0))
    row = found.rows[1]
    assert list(row.proba) == ["cat", "dog", "a,b"]
    torch.testing.assert_close(
        torch.tensor([list(row.proba.values())]).double(), expected.proba, rtol=1e-4, atol=1e-6
    )
    assert row.label == row.most_probable == max(row.proba, key=row.proba.get)
    assert row.confidence == max(row.proba.values())
    percentile = 100 * (float(expected.log_prob_mean) + 500) / 500
    assert row.percentile == pytest.approx(percentile, abs=1e-3)
    for row in found.rows:
        is_named = (row.prototype_class, row.prototype_index) == ("cat", 0)
        assert row.prototype_name == ("tabby" if is_named else "")
    row = found.rows[1]
    # Alone, a picture gets the answer that it gets among others.
    alone = predict_files(model, [folder / "b.png"], samples=2).rows[0]
    assert alone.log_prob == pytest.approx(row.log_prob, rel=1e-5)


def test_rows_come_back_from_csv_and_json(folder):
    model = small_model(class_names=("cat", "dog", "a,b"))
    files = find_pictures(folder)
    never = RejectRule(math.inf, 0.1, 0.0, None, None, 100)
    rows = predict_files(model, files, samples=1, reject=never).rows
    table = list(csv.DictReader(io.StringIO(format_rows(rows, "csv"))))
    objects = json.loads(format_rows(rows, "json"))
    assert len(table) == len(objects) == len(rows) == 3
    for row, line, content in zip(rows, table, objects, strict=True):
        assert row.label is None
        assert (line["label"], content["label"]) == ("", None)
        assert line["most_probable"] == content["most_probable"] == row.most_probable
        assert float(line["p(a,b)"]) == content["proba"]["a,b"] == row.proba["a,b"]
        assert (line["percentile"], content["percentile"]) == ("", None)
        assert float(line["log_prob"]) == row.log_prob
    broken = [rows[0]._replace(log_prob=math.nan)]
    assert json.loads(format_rows(broken, "json"))[0]["log_prob"] is None
    assert next(csv.DictReader(io.StringIO(format_rows(broken, "csv"))))["log_prob"] == ""
    assert format_rows([], "csv").startswith("file,label,")
    with pytest.raises(ValueError, match="format"):
        format_rows(rows, "xml")


# ---- the command -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return untrained_run(tmp_path_factory.mktemp("runs") / "digits")


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Test digits as pictures of the full range, named by their class."""
    place = tmp_path_factory.mktemp("digits")
    test = load_data(DataConfig()).test
    for i in range(40):
        values = (test.images[i, 0].double() * 255 / 16).round().to(torch.uint8)
        Image.fromarray(values.numpy()).save(place / f"{int(test.labels[i])}_{i:03}.png")
    return place


def _read(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_the_command_classifies_pictures_of_digits(run, digits, capsys):
    assert main(["predict", str(run), str(digits), "--mc", "2"]) == 0
    rows = _read(capsys.readouterr().out)
    assert len(rows) == 40
    right = [row["label"] == row["file"].rsplit("/", 1)[1][0] for row in rows]
    assert np.mean(right) > 0.6
    assert all(0 <= float(row["percentile"]) <= 100 for row in rows)
    again = main(["predict", str(run), str(digits), "--mc", "2"])
    assert again == 0
    assert _read(capsys.readouterr().out) == rows


def test_the_command_abstains_where_it_is_risky(run, digits, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "run")
    command = ["predict", str(copy), str(digits), "--reject", "0.05"]
    assert main([*command, "--mc", "2"]) == 0
    first = capsys.readouterr()
    assert "measuring on 175 validation images" in first.err
    assert "answers where" in first.err
    rows = _read(first.out)
    given = [row for row in rows if row["label"]]
    assert 0 < len(given) < len(rows)
    least = min(float(row["confidence"]) for row in given)
    assert all(float(row["confidence"]) < least for row in rows if not row["label"])

    # After calibration the same is read off what was noted: no data needed.
    assert main(["calibrate", str(copy), "--mc", "2"]) == 0
    (copy / "config.yaml").unlink()
    capsys.readouterr()
    assert main(command) == 0
    noted = capsys.readouterr().err
    assert "measuring" not in noted
    assert "175 held-out images" in noted

    # Neither noted nor data: the probabilities themselves.
    (copy / "held_out.safetensors").unlink()
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "taken at their word" in printed.err
    assert all((float(r["confidence"]) >= 0.95) == bool(r["label"]) for r in _read(printed.out))


def test_unreadable_pictures_are_named_and_tell_by_the_exit_code(run, folder, tmp_path, capsys):
    out = tmp_path / "out.json"
    assert main(["predict", str(run), str(folder), "--mc", "1", "--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert "1 of 4 pictures could not be read" in printed.err
    assert "broken.png: not a picture" in printed.err
    assert "3 pictures in" in printed.out
    assert len(json.loads(out.read_text())) == 3


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--reject", "2"], "reject must be a share"),
        (["--mc", "0"], "mc must be at least 1"),
        (["--batch-size", "0"], "batch-size must be at least 1"),
        (["--out", "/no/such/folder/x.csv"], "out: there is no folder"),
    ],
)
def test_the_command_refuses_what_means_nothing(run, folder, extra, message, capsys):
    assert main(["predict", str(run), str(folder), *extra]) == 1
    assert message in capsys.readouterr().err


def test_one_unnamed_model_folder_is_enough(tmp_path, folder, capsys):
    model = small_model()
    model.save_pretrained(tmp_path / "model")
    assert load(tmp_path).config == model.config
    command = ["predict", str(tmp_path / "model"), str(folder / "a.jpg"), "--format", "json"]
    assert main([*command, "--reject", "0.3"]) == 0
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)) == 1
    assert "no held-out images" in printed.err
