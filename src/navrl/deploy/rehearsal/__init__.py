"""The simulator in the place of the robot, behind a link that delays and loses messages."""
