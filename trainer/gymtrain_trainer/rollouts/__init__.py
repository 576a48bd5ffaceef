"""Rollouts: rows become rollouts in the Gym servers, their answers become training samples.

```
draw order ──► group (group_size rollouts) ──► weights checked ──► advantages ──► sample buffer ──► trainer
   ▲                │ a rollout fails for good     │ unknown, foreign or stale
   │                ▼                              ▼
   └── next row ── dropped, counted              dropped, counted, the same row drawn again
```
All of it runs in one thread with its own event loop; the trainer's thread only takes from the buffer.
"""
