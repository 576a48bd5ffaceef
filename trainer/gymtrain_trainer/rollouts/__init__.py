"""Rollouts: rows become rollouts in the Gym servers, their answers become training samples.

```
draw order ──► group (num_generations rollouts) ──► weights checked ──► advantages ──► sample buffer ──► TRL
   ▲                │ a rollout fails for good          │ unknown, foreign or stale
   │                ▼                                   ▼
   └── next row ── dropped, counted                   dropped, counted, the same row drawn again
```
All of it runs in one thread with its own event loop; the trainer's thread only takes from the buffer.
"""
