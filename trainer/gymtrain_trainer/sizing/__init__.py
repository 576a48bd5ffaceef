"""How much memory a run takes, computed from the model's shape and the run's settings. Pure; nothing is loaded.

| module | what |
|---|---|
| shapes.py | a model's shape, from its config.json or built in: parameters, and bytes of one layer's activations |
| training.py | a training GPU, its node's memory, the checkpoint volume |
| serving.py | a vLLM GPU: weights, and rollouts that fit at once |
| proposals.py | the smallest changes with which training fits |
| runs.py | all of it for a GymTrainingRun |
| page.py | docs/sizing.md |
| command.py | `python -m gymtrain_trainer.sizing` |

The formulas are estimates. docs/sizing.md says where they come from, and what they leave out.
"""
