"""Train one learner with one seed; called again with the same folder, it resumes there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from _learning_peers.course import Run
from _learning_peers.training import train
from navrl.training.denormals import flushed_denormals

if __name__ == "__main__":
    run, folder = Run(**json.loads(sys.argv[1])), Path(sys.argv[2])
    torch.set_num_threads(run.threads)
    with flushed_denormals():
        train(run, folder)
    sys.stdout.flush()
    os._exit(0)  # trackers of the libraries may leave threads that delay a normal exit
