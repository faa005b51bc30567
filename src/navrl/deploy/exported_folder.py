"""What `navrl export` wrote, as a node reads it: without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from navrl.errors import ConfigError, missing_extra


def read_contract(folder: str | Path) -> dict[str, Any]:
    """Return the contract inside `policy.onnx`.

    Raises:
        ConfigError: the folder holds no exported policy.
        MissingExtraError: onnxruntime is not installed.
    """
    path = Path(folder) / "policy.onnx"
    if not path.exists():
        raise ConfigError(
            f"{folder} holds no policy.onnx; expected a folder that `navrl export` wrote"
        )
    try:
        import onnxruntime
    except ImportError as error:
        raise missing_extra("running an ONNX file", "export", "onnxruntime") from error
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = session.get_modelmeta().custom_metadata_map.get("contract")
    if found is None:
        raise ConfigError(f"{path} carries no contract; expected a file that `navrl export` wrote")
    contract: dict[str, Any] = json.loads(found)
    return contract
