"""ROS 2 messages without ROS: bundled definitions, CDR bytes, type hashes, conversions."""
