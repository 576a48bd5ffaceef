"""Rollouts: rows become rollouts in the Gym servers, their answers become training samples.

```
draw order ──► group (group_size rollouts) ──► weights checked ──► advantages ──► sample buffer ──► trainer
   ▲                │ a rollout fails for good     │ unknown, foreign or stale
   │                ▼                              ▼
   └── next row ── dropped, counted              dropped, counted, the same row drawn again
```
A thread of the trainer's process decides what starts and keeps the accounts; the groups run in a process of their own
(process/). The thread that trains only takes from the buffer.
"""
