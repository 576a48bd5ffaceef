"""The transport `NCCL`."""
