"""sensor_msgs/PointCloud2 as columns of numbers, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from navrl.errors import MessageError

# by sensor_msgs/msg/PointField.datatype
FORMATS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}
FLOAT32 = 7


def read_cloud(cloud: Mapping[str, Any], names: Sequence[str]) -> NDArray[np.float64]:
    """Return the named columns of a cloud, (height * width, len(names)).

    Raises:
        MessageError: a column is missing, or the cloud is smaller than it claims.
    """
    known = {field["name"]: field for field in cloud["fields"]}
    missing = [name for name in names if name not in known]
    if missing:
        raise MessageError(f"the cloud has the fields {list(known)}; it lacks {missing}")
    order = ">" if cloud["is_bigendian"] else "<"
    try:
        columns = np.dtype(
            {
                "names": list(names),
                "formats": [order + FORMATS[known[name]["datatype"]] for name in names],
                "offsets": [known[name]["offset"] for name in names],
                "itemsize": cloud["point_step"],
            }
        )
    except (KeyError, ValueError) as error:
        raise MessageError(f"the cloud's fields do not fit its points: {error}") from error
    height, width, row = cloud["height"], cloud["width"], cloud["row_step"]
    used = width * cloud["point_step"]
    data = np.frombuffer(cloud["data"], np.uint8)
    if row < used or len(data) < height * row:
        raise MessageError(f"the cloud has {len(data)} bytes; {height} rows of {row} were claimed")
    rows = np.ascontiguousarray(data[: height * row].reshape(height, row)[:, :used])
    points = rows.reshape(-1).view(columns) if used else np.zeros(0, columns)
    return np.stack([points[name].astype(np.float64) for name in names], 1)


def make_cloud(
    header: Mapping[str, Any],
    names: Sequence[str],
    values: NDArray[np.float64],
    shape: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Return a cloud of float32 columns for values, (P, len(names)); shape is height and width."""
    height, width = shape or (1, len(values))
    step = 4 * len(names)
    return {
        "header": header,
        "height": height,
        "width": width,
        "fields": [
            {"name": name, "offset": 4 * number, "datatype": FLOAT32, "count": 1}
            for number, name in enumerate(names)
        ],
        "is_bigendian": False,
        "point_step": step,
        "row_step": step * width,
        "data": values.astype("<f4").tobytes(),
        "is_dense": bool(np.isfinite(values).all()),
    }
