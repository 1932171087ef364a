"""The `turnfold` command: thin, it prints what the library returns."""

from __future__ import annotations

import sys

from turnfold.errors import TurnfoldError

__all__ = ["main"]


def main() -> None:
    """Run the command; every mistake of a user ends in one line on standard error and exit code 1 (2 for usage)."""
    try:
        from turnfold.cli.app import app
        from turnfold.cli.render import plain
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit(f"turnfold: the command line needs {error.name}; install it with: pip install 'turnfold[cli]'")
    try:
        app()
    except TurnfoldError as error:
        sys.exit(f"turnfold: {plain(str(error))}")
    except KeyboardInterrupt:
        print("turnfold: stopped; what was written stays, and the same command goes on from there", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
