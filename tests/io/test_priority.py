"""Processes and threads that give way to training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest
from sessions import niceness_of_session

from navrl.io.container.priority import lower_priority

GIVES_WAY = """
import json, os
from navrl.io.container.priority import give_way
session = lambda: open("/proc/self/autogroup").read().split()[-1:]
before = session()
give_way(os.getpid(), 7)
print(json.dumps([os.getpriority(os.PRIO_PROCESS, 0), before, session()]))
"""


@pytest.mark.skipif(not niceness_of_session(), reason="this system has no niceness of sessions")
@pytest.mark.parametrize("own_session", [True, False])
def test_a_process_gives_way_and_does_not_pull_the_session_of_others_along(own_session):
    before = niceness_of_session()
    done = subprocess.run(
        [sys.executable, "-c", GIVES_WAY],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=own_session,
    )
    lowered, session_before, session = json.loads(done.stdout)
    assert lowered == max(7, os.getpriority(os.PRIO_PROCESS, 0))
    assert session == (["7"] if own_session and session_before else session_before)
    assert niceness_of_session() == before


def test_a_thread_gives_way_alone():
    found = []

    def look():
        lower_priority(7)
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, 0)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [max(7, before)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
