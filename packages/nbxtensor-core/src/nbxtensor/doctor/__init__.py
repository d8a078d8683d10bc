"""``python -m nbxtensor doctor``: what works on this machine, what does not, and the exact fix."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

#: Seconds that one driver may take to answer, and one device to compute.
TIMEOUT = 60.0


def main(arguments: Sequence[str], prog: str = "python -m nbxtensor doctor") -> int:
    """Prints the report. Exit status: 0 when the default device works, no driver is broken and no device failed; 1 when
    not; 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog=prog, description="Tells what works on this machine, what does not, and the exact fix."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=TIMEOUT,
        metavar="S",
        help=f"seconds for one driver or device ({TIMEOUT:.0f})",
    )
    parser.add_argument(
        "--check", nargs=2, metavar=("NAME", "ORDINAL"), help="compute on one device of a driver, in this very process"
    )
    # What the doctor asks of its child processes.
    parser.add_argument("--check-default", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--probe", nargs=2, metavar=("NAME", "DISTRIBUTION"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)

    if given.check or given.check_default or given.probe:
        from nbxtensor.doctor import examine

        if given.probe:
            return examine.answer(lambda: examine.probe(*given.probe))
        if given.check and not given.check[1].isdecimal():
            parser.error(f"argument --check: ORDINAL {given.check[1]!r} is not a number from 0")
        return examine.answer(lambda: examine.check(*given.check) if given.check else examine.check_default())

    from nbxtensor.doctor import report, survey

    if given.json:
        found = survey.survey(given.timeout)
        print(json.dumps(found.as_dict(), indent=2))
    else:
        with report.waiting():
            found = survey.survey(given.timeout)
        report.show(found)
    return 0 if found.works else 1


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
