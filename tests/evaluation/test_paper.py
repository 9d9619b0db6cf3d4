import pytest

from protoflows.evaluation.paper import paper_dataset, paper_rows, paper_rows_for
from protoflows.evaluation.table import Column, paper_column, text_table


def one(table, dataset, model="ProtoFlow", **figures):
    rows = [
        row
        for row in paper_rows()
        if (row.table, row.dataset, row.model) == (table, dataset, model)
        and all(row.figures.get(name) == value for name, value in figures.items())
    ]
    assert len(rows) == 1
    return rows[0]


def test_both_accuracies_of_mnist_are_kept():
    assert one("tab:clfResults", "MNIST").figures["accuracy"] == 0.9936
    assert one("tab:pruneResults", "MNIST", pruned=0.0).figures["accuracy"] == 0.9939


def test_every_table_is_there():
    rows = paper_rows()
    count = {table: sum(row.table == table for row in rows) for table in {r.table for r in rows}}
    assert count == {
        "tab:clfResults": 19,
        "tab:clfResultsFull": 23,
        "tab:scoreResults": 3,
        "tab:pruneResults": 6,
        "tab:ppResults": 2,
        "tab:loss_ablate": 8,
        "tab:ibinn": 7,
    }


def test_some_numbers():
    cifar = one("tab:clfResults", "CIFAR-10")
    assert cifar.figures == {"accuracy": 0.9154, "bits_per_dim": 3.95, "ece": 0.083, "mce": 0.494}
    assert cifar.resolution == 32
    assert one("tab:scoreResults", "CIFAR-100").figures == {"s_rob": 0.95, "s_div": 0.666}
    pruned = one("tab:pruneResults", "CIFAR-100", pruned=0.899).figures
    assert pruned["accuracy"] == 0.6963
    birds = one("tab:ppResults", "CUB-200-2011").figures
    assert birds == {"accuracy": 0.5058, "accuracy_top5": 0.7746}
    ablation = [row for row in paper_rows() if row.table == "tab:loss_ablate"]
    assert len({tuple(row.losses.values()) for row in ablation}) == 8
    everything = next(row for row in ablation if all(row.losses.values()))
    assert everything.figures == {"accuracy": 0.5966, "bits_per_dim": 8.617}
    flowgmm = one("tab:clfResults", "MNIST", "FlowGMM")
    assert flowgmm.flow_based
    assert not flowgmm.proto_based
    assert "temperature" in flowgmm.note


@pytest.mark.parametrize(("name", "paper"), [
    ("mnist", "MNIST"), ("cifar10", "CIFAR-10"), ("oxford-pet", "Oxford-IIIT Pet"),
    ("CUB-200-2011", "CUB-200-2011"), ("digits", None), ("my-folder", None),
])  # fmt: skip
def test_names_of_data_sets(name, paper):
    assert paper_dataset(name) == paper
    assert all(row.dataset == paper for row in paper_rows_for(name))
    assert bool(paper_rows_for(name)) is (paper is not None)


def test_the_table_is_aligned_and_leaves_unknown_lines_out():
    run = Column("runs/a", {"accuracy": 0.987, "accuracy_stderr": 0.002, "dims": 64, "nll": None})
    text = text_table([run, Column("runs/b", {"ece": 0.01234})])
    assert text.splitlines() == [
        "              runs/a         runs/b",
        "accuracy, %   98.70 ± 0.20   -",
        "ECE           -              0.0123",
        "dims          64             -",
    ]


def test_the_papers_bits_stand_beside_what_counts_the_same():
    row = one("tab:clfResults", "MNIST")
    plain = Column("run", {"bits_per_dim": 0.9, "bits_per_dim_best_class": 1.0})
    assert paper_column(row, [plain]).figures["bits_per_dim_best_class"] == 0.535
    views = Column("run", {**plain.figures, "bits_per_dim_paper_protocol": 1.1})
    column = paper_column(row, [views])
    assert column.figures["bits_per_dim_paper_protocol"] == 0.535
    assert "bits_per_dim" not in column.figures
    assert "tab:clfResults" in column.title
    pruned = one("tab:pruneResults", "MNIST", pruned=0.54)
    assert "54 % pruned" in paper_column(pruned, [plain]).title
