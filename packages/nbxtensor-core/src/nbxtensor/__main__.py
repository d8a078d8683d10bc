"""``python -m nbxtensor COMMAND``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from nbxtensor import __version__

#: Each command: the module whose ``main(arguments, prog)`` runs it and returns the exit status, and what it does.
COMMANDS = {
    "doctor": ("nbxtensor.doctor", "drivers, devices and GPUs: what works, what does not, and the exact fix"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Exit status: 0 success, 1 failure, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m nbxtensor",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n" + "\n".join(f"  {name:<10}{text}" for name, (_, text) in COMMANDS.items()),
    )
    parser.add_argument("--version", action="version", version=f"nbxtensor {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="COMMAND --help tells")
    given = parser.parse_args(arguments)
    status: int = importlib.import_module(COMMANDS[given.command][0]).main(
        given.arguments, f"{parser.prog} {given.command}"
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
