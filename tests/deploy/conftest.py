"""An exported policy, made once, and a contract for nodes whose policy is made up."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    pytest.importorskip("onnxruntime", reason="navrl[export] is not installed")
    from navrl.deploy.policy_export import export_policy

    return export_policy("pretrained", tmp_path_factory.mktemp("export") / "out")


@pytest.fixture
def contract():
    return {
        "rate": {"decision_s": 0.08, "max_input_age_s": 0.5},
        "robot": {"speed_limit_m_per_s": 2.0},
        "lidar": {
            "azimuths": 36,
            "beams": 4,
            "range_m": 4.0,
            "elevations_degrees": [-10.0, 0.0, 10.0, 20.0],
        },
    }


@pytest.fixture
def straight():
    """A policy that flies at the goal with 1 m/s, and keeps what it was given."""

    def policy(**inputs):
        policy.given = inputs
        offset = np.asarray(inputs["goal"]) - np.asarray(inputs["position"])
        return offset / np.linalg.norm(offset)

    return policy
