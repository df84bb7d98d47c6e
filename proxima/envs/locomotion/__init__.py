"""A quadruped robot that follows velocity commands over terrain."""
