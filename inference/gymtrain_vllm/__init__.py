"""What runs in vLLM's pods: launcher, readiness probe, and the weight-transfer engine `gymtrain_pull`.

Only public plugin points of vLLM are used; 0.25 to 0.33 have them.
"""
