"""Sandboxes measured side by side with agent-sandbox and `kubectl exec`, on one cluster in one run.

    python -m benchmarks.sandboxes [PART ...]        # KUBECONFIG names the cluster; make bench-sandboxes does all

| part | what it measures |
|---|---|
| claims | claims of real pods, warm and cold, at 1 and 20 a second, and the writes to the API server that they cost |
| rate | the same up to 75 a second, with pods of fake nodes |
| exec | one command, and 50 in a row: by the daemon, by the API server's exec, by kubectl |
| hundred | 100 real sandboxes at once |
| fleet | 2,000 sandboxes at once on fake nodes |
| ahead | rollouts on per-task images, with and without look-ahead |

`ours` is this checkout's broker, started as a process of this machine with the rights that the operator gives it, for a
run that is suspended, so that its spec can differ from part to part and nothing else runs. `theirs` is agent-sandbox's
controller with its defaults (`dev/run addon agent-sandbox`), claimed from by writing SandboxClaims and watching them.
A claim is timed from the moment at which it should have been sent to the moment at which its client knows that the
sandbox can be used: ours, the broker's answer (lease written, daemon answered); theirs, the claim's condition Ready.
"""
