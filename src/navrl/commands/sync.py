"""`navrl sync [RUN...]`: deliver to the trackers what a run could not."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

EPILOG = """examples:
  navrl sync                          all runs below runs/
  navrl sync runs/a runs/b            these
  navrl sync runs/a --tracker mlflow  one tracker only
  navrl sync --dry-run                only say what waits
"""
DESCRIPTION = (
    "Deliver what waits in the queue of a run: metrics, pictures and models of a training whose "
    "tracker was offline, slow "
    "or dead. Nothing is delivered twice; what fails again stays in the queue. Exit code 0: all "
    "delivered, 1: something waits, "
    "or is lost."
)
SHOWN_EVERY = 2.0  # s between lines of progress


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "sync",
        help="deliver to the trackers what a run could not",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUN",
        help="folders of runs; default: all below runs/",
    )
    parser.add_argument("--tracker", help="only this one")
    parser.add_argument(
        "--deadline", type=float, metavar="SECONDS", help="how long a tracker may take to answer"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what waits")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Deliver, and say what became of it."""
    from navrl.errors import TrackingError
    from navrl.tracking.queue import FOLDER, RecordQueue

    folders = arguments.runs or sorted(path.parent for path in Path("runs").glob(f"*/{FOLDER}"))
    queues = [RecordQueue(folder) for folder in folders]
    for queue in queues:
        if not queue.exists():
            raise TrackingError(
                f"{queue.run} has no queue for trackers; expected the folder of a run that was "
                "tracked"
            )
    if not queues:
        print("no run below runs/ has a queue for trackers")
    waits = 0
    for queue in queues:
        infos = [record for record in queue.read() if record["kind"] == "run"]
        names = dict.fromkeys(name for info in infos for name in info["trackers"])
        for tracker in names if arguments.tracker is None else [arguments.tracker]:
            if tracker not in names:
                raise TrackingError(
                    f"{queue.run} is not tracked by {tracker}, but by "
                    f"{', '.join(names) or 'nobody'}"
                )
            waits += _sync(queue, tracker, arguments)
        if queue.damaged:
            print(
                f"{queue.run}: {queue.damaged} damaged records in "
                f"{queue.folder / 'records.log'} were left out"
            )
    return 1 if waits or any(queue.damaged for queue in queues) else 0


def _sync(queue: Any, tracker: str, arguments: argparse.Namespace) -> int:
    """Deliver to one tracker; return how many records still wait or were refused."""
    from navrl.credentials import check_secret
    from navrl.errors import TrackingError
    from navrl.tracking.queue import DeliveryLog

    deliveries = DeliveryLog(queue, tracker).read()
    total, before = len(queue.records), len(deliveries.missing(queue.records))
    options: dict[str, dict[str, str]] = next(
        (record["options"] for record in reversed(queue.records) if record["kind"] == "run"), {}
    )
    if before and not arguments.dry_run:
        try:
            check_secret(options.get(tracker, {}).get("uri", ""))
            code = _run_worker(queue, tracker, deliveries, arguments.deadline)
        except TrackingError as error:
            code = str(error)
        if code is not None:
            print(f"{queue.run}: {tracker}: {code}")
    left = deliveries.read().missing(queue.records)
    done = "would deliver" if arguments.dry_run else "delivered"
    count = before if arguments.dry_run else before - len(left)
    print(
        f"{queue.run}: {tracker}: {done} {count} records; "
        f"{total - len(left) - len(deliveries.refused)} of {total} are there"
    )
    for number, reason in deliveries.refused.items():
        print(f"{queue.run}: {tracker}: record {number} cannot be delivered: {reason}")
    if left and not arguments.dry_run:
        print(
            f"{queue.run}: {tracker}: {len(left)} wait: "
            f"{deliveries.failure or 'no reason is known'}; run `navrl sync` again later"
        )
    return len(left) + len(deliveries.refused)


def _run_worker(queue: Any, tracker: str, deliveries: Any, deadline: float | None) -> str | None:
    """Send a worker, show how far it is, and return what is to be said about its end."""
    from navrl.tracking.delivery_processes import end_workers, start_worker
    from navrl.tracking.delivery_worker import BUSY

    options = ["--deadline", str(deadline)] if deadline is not None else []
    process = start_worker(queue, tracker, *options)
    shown = time.monotonic()
    try:
        while process.poll() is None:
            time.sleep(0.05)
            if time.monotonic() - shown > SHOWN_EVERY:
                shown = time.monotonic()
                print(
                    f"{queue.run}: {tracker}: {len(deliveries.read().missing(queue.records))} "
                    "records wait",
                    flush=True,
                )
    finally:
        end_workers(process, time.monotonic(), queue, [tracker])
    return "another process delivers just now" if process.returncode == BUSY else None
