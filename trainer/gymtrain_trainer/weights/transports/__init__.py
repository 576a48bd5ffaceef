"""The ways from the trainer's tensors to the vLLM servers."""
