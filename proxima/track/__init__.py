"""Where metrics go: metrics.jsonl, TensorBoard, the progress bar and the console."""
