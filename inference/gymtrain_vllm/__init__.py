"""What runs in vLLM's pods: launcher, readiness probe, and the weight-transfer engine `gymtrain_pull`.

Public plug-in points of vLLM are used, which 0.25 to 0.33 have; what is not public stands in `vllm_internals`.
"""
