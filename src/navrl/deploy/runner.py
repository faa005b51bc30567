"""Runs an exported policy on a robot. Needs numpy and onnxruntime, nothing else.

    policy = RobotRunner("exported")          # the folder that `navrl export` wrote
    command = policy(position=p, velocity=v, goal=g, start=s, lidar=ranges, obstacles=tracks)

World frame, SI units; `contract.yaml` beside this file says what each input means.
"""

import json
import os

import numpy as np
import onnxruntime

VECTORS = ("position", "velocity", "goal", "start")


class RobotRunner:
    """Loads `policy.onnx` and checks what it is given before it answers."""

    def __init__(self, folder, *, max_age=0.5):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = os.path.join(folder, "policy.onnx")
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(path, options, providers=providers)
        self.contract = json.loads(self.session.get_modelmeta().custom_metadata_map["contract"])
        lidar = self.contract["lidar"]
        self.azimuths, self.beams, self.reach = lidar["azimuths"], lidar["beams"], lidar["range_m"]
        self.max_age = max_age

    def __call__(self, *, position, velocity, goal, start, lidar, obstacles=None, age=0.0):
        """Return the velocity command in the world frame, (3,) or (N, 3), in m/s."""
        if not 0 <= age <= self.max_age:
            raise ValueError(f"the inputs are {age} s old; expected at most {self.max_age}: stop")
        single = np.ndim(position) == 1
        given = dict(zip(VECTORS, (position, velocity, goal, start), strict=True))
        inputs = {name: self._array(name, value, (3,), single) for name, value in given.items()}
        number = len(inputs["position"])
        inputs["lidar"] = self._array("lidar", lidar, (self.azimuths, self.beams), single)
        if obstacles is None or np.size(obstacles) == 0:
            obstacles = np.zeros((number, 1, 8), np.float32)[0 if single else slice(None)]
        inputs["obstacles"] = self._array("obstacles", obstacles, (None, 8), single)
        self._check_scan(inputs["lidar"])
        command = self.session.run(["velocity_world"], inputs)[0]
        return command[0] if single else command

    def _array(self, name, value, shape, single):
        array = np.asarray(value, np.float32)
        array = array[None] if single else array
        expected = tuple("K" if size is None else size for size in shape)
        fits = array.ndim == len(shape) + 1 and all(
            size in (None, found) for size, found in zip(shape, array.shape[1:], strict=True)
        )
        if not fits:
            raise ValueError(f"{name} has the shape {np.shape(value)}; expected (N, *{expected})")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds NaN or infinity; expected finite numbers: stop")
        return np.ascontiguousarray(array)

    def _check_scan(self, lidar):
        if (lidar < 0).any():
            raise ValueError("lidar has ranges below 0; expected metres from the robot")
        if (lidar == 0).all(axis=(1, 2)).any():
            raise ValueError(
                f"every ray of a scan is 0; expected {self.reach} m where nothing is hit (the "
                "policy's own convention, range minus distance, is applied inside)"
            )
