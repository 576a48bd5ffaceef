"""What a rollout is worth. Run it where NeMo Gym is installed, in the folder that holds resources_servers: `pytest`."""

import pytest
from resources_servers.hidden_number.app import Session, reward_of


@pytest.mark.parametrize(
    ("guesses", "found", "reward"), [(1, True, 1.0), (5, True, 1.0), (7, True, 0.8), (40, True, 0.0), (3, False, 0.0)]
)
def test_fewer_guesses_are_worth_more(guesses: int, found: bool, reward: float) -> None:
    assert reward_of(Session(number=7, guesses=guesses, found=found), free_guesses=5) == reward
