"""Rollouts: rows become POST /run calls, answers become training samples.

```
draw order ──► group (num_generations × POST /run) ──► weights checked ──► advantages ──► sample buffer ──► TRL
   ▲                │ a rollout fails for good             │ not this run's weights
   │                ▼                                      ▼
   └── next row ── dropped, counted                      discarded, counted, drawn again
```
All of it runs in one thread with its own event loop; the trainer's thread only takes from the buffer.
"""
