"""Whole runs on two GPUs: ours and TRL's own trainer, side by side (`python3 -m benchmarks.gpu.chain`)."""
