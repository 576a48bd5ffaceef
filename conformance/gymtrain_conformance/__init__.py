"""Does a trainer follow the wiring contract? Plays operator, Gym agents, gateway and vLLM for its process.

    place       folders, run.json, rows: what a pod of the run finds
    stand_ins   the servers, on this machine: they answer as the real ones do, and note what they were asked
    trainer     the process, and what it says of itself while it runs
    trial       the run: two attempts, with a signal between them, a failed rollout and a vLLM pod that lost its weights
    checks      from what was noted to one outcome for each line of the contract. Pure.

Python's standard library alone, and blake3 where weights are sent: it has to run wherever a trainer does.
"""
