"""What the tabs compute, without a browser."""

import pytest
import torch

from protoflows.app.edits import Merge, SwitchOff
from protoflows.app.prototypes_tab import PrototypesTab
from protoflows.app.prototypes_view import closest_prototypes, render_gallery
from protoflows.app.prototypes_work import Opened, draw_samples, find_nearest, open_pages
from protoflows.app.travel_view import render_way
from protoflows.app.travel_work import way_to_class, way_to_image
from protoflows.app.trust_work import errors, tell_apart
from protoflows.app.workspace import open_workspace
from protoflows.prototypes import pairwise_modified_hellinger


def test_samples_leave_the_mean_along_their_directions(workspace):
    seen = []
    found = draw_samples(workspace, (), (2, 1), 7, lambda *at: seen.append(at))
    mean = workspace.mean_images((), 2)[2, 1]
    assert found.radii[0] == 0
    assert bool((found.images[0] == mean).all())
    away = (found.images.double() - mean.double()).abs().flatten(1).mean(1)
    assert float(away[-1]) > float(away[2]) > 0
    assert seen[-1] == (len(found.radii), len(found.radii))
    assert draw_samples(workspace, (SwitchOff((3, 0)),), (2, 1), 7) is found
    other = draw_samples(workspace, (), (2, 1), 8)
    assert not torch.equal(other.images[-1], found.images[-1])


def test_closest_prototypes_are_those_of_the_whole_table(workspace, model):
    where = model.mixtures.mask.nonzero()
    c, k = where.T
    table = pairwise_modified_hellinger(
        model.mixtures.mean[c, k].detach().double(), model.mixtures.std[c, k].detach().double()
    )
    row = table[2 * 4 + 1].clone()
    row[2 * 4 + 1] = torch.inf
    expected = row.argsort(stable=True)[:5]
    found = closest_prototypes(model, (4, 1), 5)
    assert [list(pair) for pair, _ in found] == where[expected].tolist()
    assert [v for _, v in found] == pytest.approx(row[expected].tolist())
    assert (4, 0) not in [p for p, _ in closest_prototypes(
        workspace.edited((SwitchOff((4, 0)),)), (4, 1), 50)]  # fmt: skip


def test_nearest_images_follow_a_merge(workspace):
    before = find_nearest(workspace, (), (5, 0))
    after = find_nearest(workspace, (Merge((5, 0), (5, 1)),), (5, 0))
    assert before.total == after.total == 200
    assert after.explained > before.explained


def test_pages_of_prototypes_in_every_state(workspace):
    off, merged = SwitchOff((3, 1)), Merge((5, 0), (5, 1))
    quiet = lambda what: lambda done, total: None  # noqa: E731
    for edits, pair, words in (
        ((), (3, 1), "Nearest images"),
        ((off,), (3, 1), "Nearest images"),
        ((off, merged), (5, 1), ""),
    ):
        *_, last = open_pages(workspace, edits, Opened(pair), quiet)
        assert words in last
    images = {**workspace.mean_images((), 3), **workspace.mean_images((merged,), 5)}
    shown = render_gallery(workspace.edited((off, merged)), (off, merged), images, (3, 0))
    assert shown.count("pf-gone") == 2
    assert shown.count('aria-pressed="true"') == 1


def test_strange_presses_open_nothing(workspace):
    class Press:
        def __init__(self, value):
            self.value = value

    tab = PrototypesTab.__new__(PrototypesTab)
    tab.workspace = workspace
    here = Opened((0, 0))
    for value in ("", "x", "1", "99-0", "0-99", "-1-0", "1-1-1", "draw-draw", None):
        opened, said = tab._pressed((), here, Press(value))
        assert opened.prototype == (0, 0)
        assert "no such prototype" in said or value == "draw-draw"
    assert tab._pressed((), here, Press("2-1"))[0].prototype == (2, 1)


def test_ways_end_in_what_was_asked_for(workspace, model):
    split, _ = workspace.measured()
    first = int(split.labels[0])
    last = int((split.labels != first).nonzero()[0])
    a, b = split.images[:1], split.images[last : last + 1]
    seen = []
    way = way_to_image(model, a, b, lambda *at: seen.append(at))
    assert torch.equal(way.images[0], a[0])
    assert torch.equal(way.images[-1], b[0])
    assert "exact" in way.notes[0]
    assert seen[-1] == (41, 41)
    shown = render_way(way, model.config.class_names, 17)
    assert shown.count("data-frame") == 41
    assert shown.count(" hidden") == 40

    predicted = int(way.posterior[0].argmax())
    assert way_to_class(model, a, predicted) is None
    other = way_to_class(model, a, (predicted + 1) % 10)
    assert torch.equal(other.images[0], a[0])
    assert "exact" in other.notes[1]


def test_errors_are_those_and_the_surest_come_first(workspace):
    split, _ = workspace.measured()
    found = workspace.answers((), split)
    wrong = errors(found, split.labels)
    said = found.log_proba.argmax(1)
    assert sorted(wrong) == (said != split.labels).nonzero().flatten().tolist()
    sure = found.log_proba.amax(1)[wrong]
    assert bool((sure.diff() <= 1e-9).all())


def test_noise_is_told_apart(workspace):
    found = tell_apart(workspace, (), "uniform noise")
    assert found.auroc[0] > 0.9
    assert found.passing < 0.5
    assert len(found.own) == len(found.other) == 200


def test_nothing_is_measured_without_data(saved_model):
    assert tell_apart(open_workspace(str(saved_model)), (), "uniform noise") is None
