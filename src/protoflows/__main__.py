"""`python -m protoflows` is the command `protoflows`."""

from protoflows.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
