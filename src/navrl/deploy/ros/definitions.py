"""The ROS 2 interfaces that a node speaks, as the distributions define them.

Comments and default values are left out: neither changes the bytes or the type hash.
"""

from __future__ import annotations

MESSAGES: dict[str, str] = {
    "builtin_interfaces/msg/Time": "int32 sec\nuint32 nanosec\n",
    "std_msgs/msg/Header": "builtin_interfaces/Time stamp\nstring frame_id\n",
    "std_msgs/msg/Bool": "bool data\n",
    "std_msgs/msg/MultiArrayDimension": "string label\nuint32 size\nuint32 stride\n",
    "std_msgs/msg/MultiArrayLayout": "MultiArrayDimension[] dim\nuint32 data_offset\n",
    "std_msgs/msg/Float64MultiArray": "MultiArrayLayout layout\nfloat64[] data\n",
    "rosgraph_msgs/msg/Clock": "builtin_interfaces/Time clock\n",
    "geometry_msgs/msg/Point": "float64 x\nfloat64 y\nfloat64 z\n",
    "geometry_msgs/msg/Vector3": "float64 x\nfloat64 y\nfloat64 z\n",
    "geometry_msgs/msg/Quaternion": "float64 x\nfloat64 y\nfloat64 z\nfloat64 w\n",
    "geometry_msgs/msg/Pose": "Point position\nQuaternion orientation\n",
    "geometry_msgs/msg/PoseStamped": "std_msgs/Header header\nPose pose\n",
    "geometry_msgs/msg/PoseWithCovariance": "Pose pose\nfloat64[36] covariance\n",
    "geometry_msgs/msg/Twist": "Vector3 linear\nVector3 angular\n",
    "geometry_msgs/msg/TwistStamped": "std_msgs/Header header\nTwist twist\n",
    "geometry_msgs/msg/TwistWithCovariance": "Twist twist\nfloat64[36] covariance\n",
    "nav_msgs/msg/Odometry": (
        "std_msgs/Header header\n"
        "string child_frame_id\n"
        "geometry_msgs/PoseWithCovariance pose\n"
        "geometry_msgs/TwistWithCovariance twist\n"
    ),
    "sensor_msgs/msg/LaserScan": (
        "std_msgs/Header header\n"
        "float32 angle_min\n"
        "float32 angle_max\n"
        "float32 angle_increment\n"
        "float32 time_increment\n"
        "float32 scan_time\n"
        "float32 range_min\n"
        "float32 range_max\n"
        "float32[] ranges\n"
        "float32[] intensities\n"
    ),
    "sensor_msgs/msg/PointField": (
        "uint8 INT8=1\n"
        "uint8 UINT8=2\n"
        "uint8 INT16=3\n"
        "uint8 UINT16=4\n"
        "uint8 INT32=5\n"
        "uint8 UINT32=6\n"
        "uint8 FLOAT32=7\n"
        "uint8 FLOAT64=8\n"
        "string name\n"
        "uint32 offset\n"
        "uint8 datatype\n"
        "uint32 count\n"
    ),
    "sensor_msgs/msg/PointCloud2": (
        "std_msgs/Header header\n"
        "uint32 height\n"
        "uint32 width\n"
        "PointField[] fields\n"
        "bool is_bigendian\n"
        "uint32 point_step\n"
        "uint32 row_step\n"
        "uint8[] data\n"
        "bool is_dense\n"
    ),
    "diagnostic_msgs/msg/KeyValue": "string key\nstring value\n",
    "diagnostic_msgs/msg/DiagnosticStatus": (
        "byte OK=0\n"
        "byte WARN=1\n"
        "byte ERROR=2\n"
        "byte STALE=3\n"
        "byte level\n"
        "string name\n"
        "string message\n"
        "string hardware_id\n"
        "KeyValue[] values\n"
    ),
    "diagnostic_msgs/msg/DiagnosticArray": "std_msgs/Header header\nDiagnosticStatus[] status\n",
    "mavros_msgs/msg/PositionTarget": (
        "std_msgs/Header header\n"
        "uint8 coordinate_frame\n"
        "uint8 FRAME_LOCAL_NED=1\n"
        "uint8 FRAME_LOCAL_OFFSET_NED=7\n"
        "uint8 FRAME_BODY_NED=8\n"
        "uint8 FRAME_BODY_OFFSET_NED=9\n"
        "uint16 type_mask\n"
        "uint16 IGNORE_PX=1\n"
        "uint16 IGNORE_PY=2\n"
        "uint16 IGNORE_PZ=4\n"
        "uint16 IGNORE_VX=8\n"
        "uint16 IGNORE_VY=16\n"
        "uint16 IGNORE_VZ=32\n"
        "uint16 IGNORE_AFX=64\n"
        "uint16 IGNORE_AFY=128\n"
        "uint16 IGNORE_AFZ=256\n"
        "uint16 FORCE=512\n"
        "uint16 IGNORE_YAW=1024\n"
        "uint16 IGNORE_YAW_RATE=2048\n"
        "geometry_msgs/Point position\n"
        "geometry_msgs/Vector3 velocity\n"
        "geometry_msgs/Vector3 acceleration_or_force\n"
        "float32 yaw\n"
        "float32 yaw_rate\n"
    ),
    "service_msgs/msg/ServiceEventInfo": (
        "uint8 REQUEST_SENT=0\n"
        "uint8 REQUEST_RECEIVED=1\n"
        "uint8 RESPONSE_SENT=2\n"
        "uint8 RESPONSE_RECEIVED=3\n"
        "uint8 event_type\n"
        "builtin_interfaces/Time stamp\n"
        "char[16] client_gid\n"
        "int64 sequence_number\n"
    ),
}

# The services of the original NavRL's ROS packages: request, then response.
SERVICES: dict[str, tuple[str, str]] = {
    "navigation_runner/srv/GetPolicyInference": (
        "float64[] state\n"
        "int32[] state_shape\n"
        "float64[] lidar\n"
        "int32[] lidar_shape\n"
        "float64[] direction\n"
        "int32[] direction_shape\n"
        "float64[] dynamic_obstacle\n"
        "int32[] dynamic_obstacle_shape\n",
        "float64[] action\n",
    ),
    "navigation_runner/srv/GetSafeAction": (
        "geometry_msgs/Point agent_position\n"
        "geometry_msgs/Vector3 agent_velocity\n"
        "float64 agent_size\n"
        "geometry_msgs/Vector3[] obs_position\n"
        "geometry_msgs/Vector3[] obs_velocity\n"
        "geometry_msgs/Vector3[] obs_size\n"
        "float64[] laser_points\n"
        "float64 laser_range\n"
        "float64 laser_res\n"
        "float64 max_velocity\n"
        "geometry_msgs/Vector3 rl_velocity\n",
        "geometry_msgs/Vector3 safe_action\n",
    ),
    "map_manager/srv/RayCast": (
        "geometry_msgs/Point position\n"
        "float64 start_angle\n"
        "float64 range\n"
        "float64 vfov_min\n"
        "float64 vfov_max\n"
        "int32 vbeams\n"
        "float64 hres\n"
        "bool visualize\n",
        "float64[] points\n",
    ),
    "onboard_detector/srv/GetDynamicObstacles": (
        "geometry_msgs/Point current_position\nfloat64 range\n",
        "geometry_msgs/Vector3[] position\n"
        "geometry_msgs/Vector3[] velocity\n"
        "geometry_msgs/Vector3[] size\n",
    ),
}
