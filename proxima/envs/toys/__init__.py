"""Small envs of our own, for tests, benchmarks and first steps."""
