"""`protoflows app`: a page on which anyone can meet a trained model."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from protoflows.cli.parser import CommandParser

_EDITED = "edited-models"
_LOCAL = ("127.0.0.1", "localhost", "::1")


def build_parser() -> argparse.ArgumentParser:
    """Describe the options."""
    parser = CommandParser(
        prog="protoflows app",
        description=(
            "Explore a model in the browser: explain images that are chosen, uploaded or drawn; "
            "look through its prototypes, switch them off, merge and name them; travel through "
            "the latent; see how far to trust it. Runs on this machine and reaches no other."
        ),
        examples=(
            ("the model of a run, with its data", "app runs/digits"),
            ("a model that ships, in the browser at once", "app mnist --open-browser"),
            ("for other machines of the network, too", "app runs/digits --host 0.0.0.0"),
        ),
    )
    parser.add_argument("run", metavar="RUN", help="a run, a saved model, or a shipped one's name")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen at (default: 127.0.0.1, this machine)",
    )
    parser.add_argument("--port", type=int, help="default: the first free one from 7860 on")
    parser.add_argument("--data-root", metavar="DIR", help="folder that holds the run's data set")
    parser.add_argument(
        "--ood", action="append", default=[], metavar="NAME",
        help="another data set or image folder, to see how well it is told apart; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--images", type=int, default=1000, metavar="N",
        help="at most so many images are measured or searched (default: 1000)",
    )  # fmt: skip
    parser.add_argument("--max-upload-mb", type=float, default=10, metavar="MB", help="default: 10")
    parser.add_argument(
        "--save-to", metavar="DIR",
        help=(
            "folder that visitors save edited models in, as new folders (default: "
            f"{_EDITED}; none with a --host that other machines reach)"
        ),
    )  # fmt: skip
    parser.add_argument(
        "--open-browser", action="store_true", help="open the page in this machine's browser"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Args:
        argv: The words after `app`.
    """
    arguments = build_parser().parse_args(list(argv))
    from protoflows.app.server import serve
    from protoflows.app.workspace import open_workspace

    workspace = open_workspace(
        arguments.run, data_root=arguments.data_root, limit=arguments.images, ood=arguments.ood
    )
    for note in workspace.notes:
        print(f"note: {note}", file=sys.stderr)
    keep = arguments.save_to
    if keep is None and arguments.host in _LOCAL:
        keep = _EDITED
    served = serve(
        workspace, host=arguments.host, port=arguments.port,
        max_upload_mb=arguments.max_upload_mb, open_browser=arguments.open_browser,
        keep=None if keep is None else Path(keep).expanduser(),
    )  # fmt: skip
    print(f"exploring {workspace.name} at {served.url} (Ctrl-C ends it)", flush=True)
    if arguments.host not in _LOCAL:
        print(
            f"note: whoever reaches {arguments.host} can use this page; it asks for no password "
            "and does not encrypt",
            file=sys.stderr,
        )
    # Service managers end with SIGTERM: as clean an end as Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        served.wait()
    except KeyboardInterrupt:
        print()
    finally:
        served.close()
        signal.signal(signal.SIGTERM, before)
    return 0
