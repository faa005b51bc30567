"""How a node and a robot talk: UDP with JSON, zenoh as rmw_zenoh speaks it, or rclpy."""
