"""Numbers with error bars: the Monte-Carlo passes, one metric per file, the paper's tables."""

from protoflows.evaluation.estimate import Estimate
from protoflows.evaluation.evaluate import Evaluation, evaluate, summarise
from protoflows.evaluation.paper import PaperRow, paper_rows, paper_rows_for
from protoflows.evaluation.passes import Passes, run_passes

__all__ = [
    "Estimate",
    "Evaluation",
    "PaperRow",
    "Passes",
    "evaluate",
    "paper_rows",
    "paper_rows_for",
    "run_passes",
    "summarise",
]
