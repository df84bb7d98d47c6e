"""Mathematics on tensors; knows torch, the networks and the data, and nothing else of ours."""
