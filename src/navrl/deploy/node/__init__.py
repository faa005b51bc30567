"""The robot-side node: checked inputs in, velocity commands at the trained rate out."""
