"""Every environment of NeMo Gym, started and played with a scripted policy: what docs/environments.md says.

make test-environments                 all, an hour; then the page is made anew
python -m tests.environments run mcqa  some, with the Gym image's packages
"""
