"""`navrl sync [RUN...]`: deliver what is still queued for the trackers of a run."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from navrl.tracking.delivery_log import DeliveryLog
    from navrl.tracking.queue import RecordQueue

EPILOG = """examples:
  navrl sync                          all runs below runs/
  navrl sync runs/a runs/b            these runs
  navrl sync runs/a --tracker mlflow  one tracker only
  navrl sync --dry-run                only report what is queued
"""
DESCRIPTION = (
    "Deliver what is queued in a run's folder: metrics, pictures and models of a training whose "
    "tracker was offline, slow or down. Nothing is delivered twice; what fails again stays in the "
    "queue. Exit code 0: everything was delivered, 1: records are left, refused or damaged."
)
PROGRESS = 2.0  # s between lines of progress


def register(subparsers: Any) -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "sync",
        help="deliver what is still queued for the trackers of a run",
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
    parser.add_argument("--tracker", help="deliver to this tracker only")
    parser.add_argument(
        "--deadline", type=float, metavar="SECONDS", help="timeout of a call to a tracker"
    )
    parser.add_argument("--dry-run", action="store_true", help="only report what is queued")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Deliver, print what was delivered, and return the exit code."""
    from navrl.errors import TrackingError
    from navrl.tracking.queue import FOLDER, RecordQueue

    folders = arguments.runs or sorted(path.parent for path in Path("runs").glob(f"*/{FOLDER}"))
    queues = [RecordQueue(folder) for folder in folders]
    for queue in queues:
        if not queue.exists():
            raise TrackingError(
                f"{queue.run} has no queue for trackers; expected the folder of a run with a "
                "tracker"
            )
    if not queues:
        print("no run below runs/ has a queue for trackers")
    left = sum([_sync_run(queue, arguments) for queue in queues])
    return 1 if left or any(queue.damaged for queue in queues) else 0


def _sync_run(queue: RecordQueue, arguments: argparse.Namespace) -> int:
    """Deliver a run to its trackers; return how many records are left or were refused."""
    from navrl.errors import TrackingError

    sessions = [record for record in queue.read() if record["kind"] == "run"]
    names = dict.fromkeys(name for session in sessions for name in session["trackers"])
    if arguments.tracker is not None and arguments.tracker not in names:
        raise TrackingError(
            f"{queue.run} has no tracker {arguments.tracker}; it has {', '.join(names) or 'none'}"
        )
    trackers = [*names] if arguments.tracker is None else [arguments.tracker]
    left = sum([_sync_tracker(queue, tracker, arguments) for tracker in trackers])
    if queue.damaged:
        records = queue.folder / "records.log"
        print(f"{queue.run}: {queue.damaged} damaged records in {records} were left out")
    return left


def _sync_tracker(queue: RecordQueue, tracker: str, arguments: argparse.Namespace) -> int:
    """Deliver to one tracker; return how many records are left or were refused."""
    subject = f"{queue.run}: {tracker}"
    deliveries = queue.deliveries(tracker).read()
    total, before = len(queue.records), len(deliveries.missing(queue.records))
    if before and not arguments.dry_run:
        problem = _deliver(queue, deliveries, arguments.deadline)
        if problem is not None:
            print(f"{subject}: {problem}")
    left = len(deliveries.read().missing(queue.records))
    refused = deliveries.refused
    verb, count = ("would deliver", before) if arguments.dry_run else ("delivered", before - left)
    there = total - left - len(refused)
    print(f"{subject}: {verb} {count} records; {there} of {total} are there")
    for number, reason in refused.items():
        print(f"{subject}: record {number} cannot be delivered: {reason}")
    if left and not arguments.dry_run:
        reason = deliveries.failure or "no reason is known"
        print(f"{subject}: {left} records are left: {reason}; run `navrl sync` again later")
    return left + len(refused)


def _deliver(queue: RecordQueue, deliveries: DeliveryLog, deadline: float | None) -> str | None:
    """Run a delivery worker and print its progress; return what kept it from delivering, if any."""
    from navrl.credentials import check_secret
    from navrl.errors import TrackingError
    from navrl.tracking.delivery_worker import BUSY
    from navrl.tracking.worker_processes import start_worker, stop_worker

    tracker, session = deliveries.tracker, queue.session() or {"options": {}}
    try:
        check_secret(session["options"].get(tracker, {}).get("uri", ""))
    except TrackingError as error:
        return str(error)
    options = ["--deadline", str(deadline)] if deadline is not None else []
    process = start_worker(queue, tracker, *options)
    printed = time.monotonic()
    try:
        while process.poll() is None:
            time.sleep(0.05)
            if time.monotonic() - printed > PROGRESS:
                printed = time.monotonic()
                left = len(deliveries.read().missing(queue.records))
                print(f"{queue.run}: {tracker}: {left} records left", flush=True)
    finally:
        stop_worker(process, time.monotonic())
    return "another process is delivering" if process.returncode == BUSY else None
