"""`tcl` and `python -m tcl_core`: the command line, or one sentence where the packages that it needs are not installed."""

from __future__ import annotations

import sys

from tcl_core.errors import UsageError, missing_extra


def main() -> None:
    try:
        from tcl_core.cli import main as command
    except ModuleNotFoundError as error:
        if (sentence := missing_extra(error)) is None:
            raise
        print(f"tcl: {sentence}", file=sys.stderr)
        sys.exit(UsageError.exit_code)
    command()


if __name__ == "__main__":
    main()
